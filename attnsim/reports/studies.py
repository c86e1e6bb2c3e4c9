"""Studies for people: sensitivities, break-even densities, sweeps and serving traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnsim import wording
from attnsim.api.comparing.breakeven import BreakEven, verdict
from attnsim.api.serving_steps import Served
from attnsim.models.hardware.sections import FIELDS
from attnsim.studies import Study
from attnsim.studies.folder import dataset
from attnsim.studies.sensitivity import Elasticity, Index
from attnsim.tables import Block, Remarks, Table, Unfolded, grouped, written

SMALL = 0.005
"""Elasticities below are not told apart from 0."""


def elasticities_table(found: list[Elasticity], step: float) -> Iterator[Block]:
    """A line for each figure that moves the time, the one whose increase shortens it most first."""
    timed = any(item.timing for item in found)
    rows = [
        {
            "figure": item.figure,
            "value": FIELDS[item.figure].show(item.value),
            "elasticity": f"{item.elasticity:+.2f}" + (f" +-{item.timing:.2f}" if timed else ""),
            "down": wording.NOTHING if item.down is None else f"{item.down:+.2f}",
            "up": wording.NOTHING if item.up is None else f"{item.up:+.2f}",
            "10 % more": wording.NOTHING if item.up is None else f"{100 * (1.1**item.up - 1):+.1f} %",
            "": "kink" if item.kink else "",
        }
        for item in found
        if abs(item.elasticity) >= SMALL or item.kink
    ]
    yield Table("", rows, right=("elasticity", "down", "up", "10 % more"))
    idle = [item.figure for item in found if abs(item.elasticity) < SMALL and not item.kink]
    details = [f"no effect: {', '.join(idle)}"] if idle else []
    details.append(
        f"elasticity: d log time / d log figure, central difference over {100 * step:g} % down and up (beside it). "
        "-1: the figure alone decides; 0: it does not matter. The figure whose increase shortens the time most comes "
        "first. kink: the two sides differ, another unit takes over here or the number of "
        "waves changes. Tiles stay as they are; times are replayed, and may jump from anomalies of scheduling, by "
        "more than 2 % in one change of 1,000."
        + (" +-: how far it moves as resident blocks fall into step or not." if timed else "")
    )
    short = "-1: the figure alone decides the time; 0: it does not matter. -v says how it is taken, and which are 0."
    yield Remarks(short, details)


def indices_table(shares: list[Index], samples: int, spread: float) -> Iterator[Block]:
    """Sobol indices of the figures."""
    rows = [
        {"figure": item.figure, "first order": f"{item.first:.2f}", "total": f"{item.total:.2f}"} for item in shares
    ]
    yield ""
    yield Table(f"Sobol indices of log time, {samples} samples", rows, right=("first order", "total"))
    yield (
        f"shares of the variance when every figure varies from 1/{spread:g} to {spread:g} times its value "
        "(log-uniform, independent): first order alone, total with interactions. Times in closed form."
    )


def breakeven_tables(rows: list[BreakEven], title: str, files: Sequence[Path]) -> Iterator[Block]:
    """Densities below which sparse attention pays, and what they say."""
    table: list[dict[str, object]] = [
        {
            "gpu": row.at.machine,
            "against": f"against {row.at.dense}",
            "seq": row.at.seq,
            "sparse as": row.at.sparse,
            "tile": row.at.shape,
            "pays below": row.band,
            "your mask" if row.yours else "near 10 %": str(row.expected.speedup),
            "dense": wording.time_text(row.at.dense_s),
        }
        for row in rows
    ]
    yield from grouped(f"Break-even density: {title}", table, by=("gpu", "against"))
    yield from verdict(rows)
    details = [
        "Pays below: visible pairs over those of dense attention at which both take equally long (in brackets: at "
        "which the ends of the speedup's 90 % range are 1). 100 %: even where every tile is visited, 0 %: not even "
        "with one block of keys a row.",
        f"dense: {', '.join(dict.fromkeys(f'{row.at.dense} on {row.at.machine}' for row in rows))}",
        *(f"trust: {row.trust}" for row in rows),
    ]
    short = "In brackets: where the ends of the speedup's 90 % range are 1. -v says how to read it, and why."
    yield Remarks(short, details)
    yield from written(files)


def summary_of(study: Study, out: Path, found: int, seconds: float) -> dict[str, Any]:
    """Counts over the whole folder, read column by column."""
    counts: dict[str, dict[str, int]] = {"method": {}, "busiest": {}, "error": {}}
    fastest: dict[str, Any] | None = None
    for batch in dataset(out).to_batches(columns=[*counts, "point", "predicted_s"]):
        frame = batch.to_pandas()
        for name, into in counts.items():
            for value, number in frame[name].value_counts().items():
                if number:
                    into[str(value)] = into.get(str(value), 0) + int(number)
        known = frame["predicted_s"].dropna()
        if len(known) and (fastest is None or known.min() < fastest["predicted_s"]):
            row = known.idxmin()
            fastest = {"point": int(frame.loc[row, "point"]), "predicted_s": float(known[row])}
    answered = sum(counts["error"].values()) - sum(n for text, n in counts["error"].items() if text)
    return {
        "title": study.title,
        "out": str(out),
        "points": len(study),
        "axes": {axis.column: len(axis.values) for axis in study.varying},
        "combine": study.combine,
        "cache": study.cache,
        "answered": answered,
        "methods": counts["method"],
        "busiest": {name: number for name, number in counts["busiest"].items() if name},
        "errors": dict(sorted(((t, n) for t, n in counts["error"].items() if t), key=lambda pair: -pair[1])[:5]),
        "fastest": fastest,
        "chunks": study.chunks(),
        "chunks_found": found,
        "seconds": round(seconds, 3),
    }


def sweep_tables(summary: dict[str, Any]) -> Iterator[Block]:
    """The points of a sweep by what answered them and by what is busiest."""
    axes = ", ".join(f"{name} ({count})" for name, count in summary["axes"].items()) or "nothing varies"
    yield Unfolded(
        f"{summary['title'] or 'study'}: {summary['points']:,} points, {summary['combine']} of {axes}; "
        f"{summary['cache']} L2\n"
    )
    yield Table("", [{"answered by": name, "points": number} for name, number in sorted(summary["methods"].items())])
    busiest = sorted(summary["busiest"].items(), key=lambda pair: -pair[1])
    yield Table("", [{"busiest": name, "points": number} for name, number in busiest])
    found = f", {summary['chunks_found']} of them by an earlier run" if summary["chunks_found"] else ""
    where = ", ".join([f"{summary['out']}/points", *summary["exported"]])
    yield Unfolded(f"{summary['chunks']} chunks{found}, {summary['seconds']:.1f} s; written: {where}")


def serving_tables(served: Served, title: str, cache: str | None, requests: int) -> Iterator[Block]:
    """Steps of a serving trace by kind, and how long all of them take."""
    attention = served.of == "attention"
    what = "attention of a layer" if attention else "attention"
    yield Unfolded(f"{title}{requests} requests on {served.gpu}, {what} as {served.implementation}\n")
    rows = [
        {
            "steps": row["kind"],
            "number": str(row["steps"]),
            "tokens": f"{row['tokens']:,}",
            "time": wording.time_text(row["time_s"]),
            "share": f"{row['share']:.0%}",
            **({} if attention else {"attention": f"{row['attention_s'] / row['time_s']:.0%}"}),
            "longest": wording.time_text(row["longest_s"]),
        }
        for row in served.by_kind()
    ]
    title = "Attention by kind of step" if attention else "Steps by kind"
    yield Table(title, rows, right=("number", "tokens", "time", "share", "attention", "longest"))
    total, end = wording.time_text(served.time_s), wording.time_text(served.end_s)
    total += f" (90 % range {wording.interval_text(*served.range_s, served.time_s)})"
    counted = f"{len(served.steps)} steps, {served.predicted} of them predicted"
    found = f"{total} {'of attention ' * attention}in {counted}; the trace ends at {end}."
    cold = "cold where sequences decode, as in a model" if attention else "cold, since the other layers have run"
    l2 = f"L2 before each layer: {cache or cold}."
    yield Remarks(f"{found} -v says what is left out.", (found, l2, served.left_out))
