"""The errors of predictions for people: in short, by measurements, of strangers, steps, batches, claims and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attnsim
from attnsim import wording
from attnsim.plots import document
from attnsim.plots.document import Document, Paragraph, Section, html_text
from attnsim.plots.errors import validation
from attnsim.reports.pictures import on_page
from attnsim.studies.folder import calibration
from attnsim.tables import Block, Table, grouped, texts
from attnsim.validation.checking.accuracy import overview, sentence
from attnsim.validation.checking.claims import GPT2_GPU, PAPER
from attnsim.validation.checking.validate import SHARES, TITLES, Report
from attnsim.validation.measured import aiconfigurator
from attnsim.wording import share_text
from attnsim.writing import write_whole

Rows = list[dict[str, Any]]

SHARE_TEXTS = dict.fromkeys(("mean", "median", "p90", "worst", "committed", "now", "held"), share_text)
SHARE_TEXTS |= {"bias": partial(share_text, signed=True)}


def percent(share: float) -> str:
    """A share in percent, under a heading that says so."""
    return f"{100 * share:.1f}"


OF_LOGS: dict[str, Callable[[Any], object]] = dict.fromkeys(
    ("within", "sd", "half_width", "needed", "held", "held_chip", "error"), percent
)
"""Formats of standard deviations and half-widths of log time or log ratio."""
COMPONENT = {
    **{name: name for name in ("component", "sources")},
    **{"laboratories": "labs", "groups": "groups", "within": "within", "sd": "in trust", "half_width": "half-width"},
    **{"needed": "needed", "ratio": "of it", "held": "held", "held_chip": "chip"},
}
RATIO = {"ratio": "speedup", "sd": "in trust", "half_width": "half-width"}


def sources_blocks(found: Mapping[str, Rows]) -> Iterator[Block]:
    """The errors on sources that no fit has seen, and what ranges are made of."""
    total = texts(found["total"], SHARE_TEXTS)
    yield Table("Errors away from home: sources that their calibration has not seen", total)
    title = "By what is said of them, strangers apart from the others"
    yield from grouped(title, texts(found["group"], SHARE_TEXTS), ("use", "level"))
    yield from grouped("By source and GPU", texts(found["source"], SHARE_TEXTS), ("laboratory", "source"))
    yield Table(
        "Components of ranges: standard deviations and half-widths of log time, in percent",
        texts(found["component"], OF_LOGS | {"ratio": "{:.2f}".format}, COMPONENT),
    )
    yield (
        "needed: the half-width that holds 90 % of the rows whose farthest component it is; of it: the stated one over "
        "it; held: rows inside with their laboratory, and with their chip, left out of the widths.\n"
    )
    for kind, title in (
        (
            "ratio",
            "Ranges of ratios, one kernel on two GPUs: standard deviations and half-widths of log ratio, in percent",
        ),
        ("pair", "By pair of GPUs, with the pair left out of the widths"),
        ("kernels", "Two kernels on one GPU, with the laboratory left out of the widths"),
    ):
        heads = {key: RATIO.get(key, key) for row in found[kind] for key in row}
        yield Table(title, texts(found[kind], OF_LOGS | {"ratio": wording.times_text}, heads))
    yield (
        "numbers: each GPU's own, or the older one's carried over to the newer one's datasheet; speedup, error and "
        "half-width are medians; held: steps inside the stated range. change: times how far it moves the call.\n"
    )
    if found["refused"]:
        yield from grouped("Rows without a prediction", found["refused"], ("source", "why"))
    if missing := aiconfigurator.missing():
        yield missing


def kinds_of(tables: Mapping[str, Rows], key: str = "kind") -> Iterator[dict[str, Any]]:
    """The rows of all tables, each with the name of its table."""
    return ({key: name, **row} for name, rows in tables.items() for row in rows)


def overview_blocks(held: Any, tables: Mapping[str, Rows], path: Path | None, verbose: bool) -> Iterator[Block]:
    """The errors in short, with a sentence to cite, and where `verbose` asks for them every one."""
    if held:
        names = {"mean": "mean error", "p90": "9 in 10 below"}
        heads = {key: names.get(key, key) for row in overview(held) for key in row}
        yield Table("Errors on rows the fit did not see", texts(overview(held), SHARE_TEXTS, heads))
        yield f"To cite: attnsim {attnsim.__version__} (calibration {calibration()}): {sentence(held)}.\n"
    if verbose or not held:
        yield from every_error(*tables.values())
    if path is not None:
        yield f"written: {path}"
    elif not verbose:
        yield "-v prints every line and every constant, --out FILE.csv writes them."


def forecasts_blocks(tables: Mapping[str, Rows]) -> Iterator[Block]:
    """Measured rows beside what was forecast of them."""
    for name, title in (("time", "Forecast times"), ("ratio", "Forecast ratios over another chip")):
        if tables[name]:
            yield from grouped(f"{title}, by release", texts(tables[name], SHARE_TEXTS), ("release", "gpu"))
    if tables["not scored"]:
        yield Table("Rows that are not scored", tables["not scored"], whole=("why",))


def batches_blocks(tables: Mapping[str, Rows]) -> Iterator[Block]:
    """Errors on measured calls whose sequences differ in length."""
    for name, rows in tables.items():
        title = f"{name.capitalize()}: errors on rows whose role is {rows[0]['role']!r}"
        yield Table(title, texts(rows, SHARE_TEXTS, without=("role",)))


def steps_blocks(step: Rows, share: Rows) -> Iterator[Block]:
    """Errors of measured steps, and shares of pipes."""
    formats = dict.fromkeys(("measured", "predicted"), wording.times_text)
    formats |= dict.fromkeys(("error", "direction", "held"), partial(share_text, digits=0))
    title = "Measured steps in which one thing changed, by what the numbers that predict them have seen"
    yield from grouped(title, texts(step, formats), ("kind", "step", "use"))
    yield (
        "held out: no number rests on both rows; left out: predicted by a fold without either; fit: seen. measured, "
        "predicted: medians of how many times faster the second is; error: mean size of the log of one over the other; "
        "direction: right, of steps of more than 5 %; held: inside the stated range.\n"
    )
    floats = {name: share_text for row in share for name, value in row.items() if isinstance(value, float)}
    yield Table("Shares of pipes, as profilers read them and as played", texts(share, floats))
    if missing := aiconfigurator.missing():
        yield missing


def every_error(summary: Rows, sparse: Rows, gated: Rows, errors: Rows, numbers: Rows) -> Iterator[Block]:
    """The errors by what is predicted, of sparse and linear attention by kernel, by measurements; and the constants."""
    yield Table("Errors on rows the fit did not see, by what is predicted", texts(summary, SHARE_TEXTS))
    for chapter, rows in (("Sparse attention", sparse), ("Linear attention with gates", gated)):
        title = f"{chapter}: errors of each kernel, on rows that no fit has seen"
        yield from grouped(title, texts(rows, SHARE_TEXTS), ("mechanism", "implementation"))
    by = ("source", "implementation", "gpu")
    yield from grouped("By measurements, implementation and GPU", texts(errors, SHARE_TEXTS), by)
    yield from grouped(
        "Constants that are neither datasheet nor public source", [_constant(row) for row in numbers], ("owner",)
    )


def _constant(row: dict[str, Any]) -> dict[str, Any]:
    """A constant with its interval in one cell and its unit behind its meaning: narrow enough for 80 columns."""
    interval = "" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}"
    unit = "" if row["unit"] in ("", "1") else f" ({row['unit']})"
    shown = {"number": row["number"], "value": row["value"], "95 % interval": interval, "fitted": row["fitted"]}
    return {"owner": row["owner"], **shown, "meaning": row["meaning"] + unit}


def claims_blocks(gpt2_medium: Rows, speedup: Rows, count: Rows) -> Iterator[Block]:
    """Figures that papers state, beside what the replay counts."""
    formats: dict[str, Callable[[Any], object]] = {
        "assumed": lambda one: "yes" if one else "",
        **dict.fromkeys(("hbm_bytes", "published_bytes"), lambda size: f"{size / 1e9:.1f} GB"),
        **dict.fromkeys(("time_s", "published_s"), lambda time_s: f"{time_s * 1e3:.1f} ms"),
        **dict.fromkeys(("bytes_ratio", "time_ratio"), "{:.2f}".format),
    }
    heads = {"algorithm": "algorithm", "mask": "mask", "note": "", "assumed": "assumed", "hbm_bytes": "HBM"}
    heads |= {"published_bytes": "paper", "bytes_ratio": "ratio", "time_s": "time", "published_s": "stated"}
    title = f"GPT-2 medium, forward + backward, {GPT2_GPU} ({PAPER}, figure 2)"
    yield Table(title, texts(gpt2_medium, formats, heads | {"time_ratio": "of it"}))
    for setting in dict.fromkeys(row["setting"] for row in speedup):
        rows = [row for row in speedup if row["setting"] == setting]
        title = f"{rows[0]['claim']}, {rows[0]['gpu']}: {setting}\n({rows[0]['source']})"
        yield Table(title, [_speedup(row) for row in rows], right=("paper", "full", "causal, dropout"))
    yield "full: without mask and dropout. The fused kernel is played without dropout's random numbers.\n"
    shown = texts(
        count,
        dict.fromkeys(("stated", "ours"), "{:,.10g}".format) | {"error": share_text},
        {name: name for name in ("claim", "stated", "ours", "error")},
    )
    yield Table("What follows from shapes and datasheets", shown, ("stated", "ours", "error"), ("claim",))


def _speedup(row: dict[str, Any]) -> dict[str, Any]:
    """A stated speedup beside ours, without a mask and causal with dropout, and how far each is out of the range."""
    low, high = row["low"], row["high"]
    return {
        "seq": row["seq"],
        "paper": f"{low:g}x" if low == high else f"{low:g} to {high:g}x",
        "full": wording.times_text(row["full"]),
        "off": _missed(row["full_error"]),
        "causal, dropout": wording.times_text(row["causal"]),
        "off ": _missed(row["causal_error"]),
    }


def _missed(error: float) -> str:
    return "within" if error == 0 else f"{100 * error:+.0f} %"


def checked_blocks(rows: Rows, beyond: Rows) -> Iterator[Block]:
    """Committed errors beside those of today, and rows that cannot be true."""
    table = texts(rows, SHARE_TEXTS | {"same": lambda same: "yes" if same else "NO"})
    yield Table("Committed calibrations, mean errors on held-out rows", table)
    for row in beyond:
        if not row["reason"]:
            yield (
                f"above a ceiling: {row['source']}, {row['implementation']} on {row['gpu']}, {row['question']}: "
                f"measured {wording.time_text(row['measured_s'])}, {row['unit']} alone needs "
                f"{wording.time_text(row['least_s'])}"
            )
    yield f"{sum(bool(row['reason']) for row in beyond)} rows lie above a ceiling for a known reason (above.yaml)"


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write ``validation.png``, the table of its points and ``validation.html``.

    Parameters
    ----------
    report : Report
    folder : Path
        Exists.

    Raises
    ------
    InputError
        When the folder cannot be written.
    """
    written = validation(report.points).write(folder / "validation.png")
    page = folder / "validation.html"
    write_whole(page, html_page(report))
    return [*written, page]


def html_page(report: Report) -> str:
    """A page that needs no other file."""
    verdict = (
        "Every committed calibration gives its committed errors."
        if report.ok
        else "Some committed calibrations no longer give their committed errors."
    )
    lead: list[document.Block] = [Paragraph(verdict), *([Paragraph(report.missing)] if report.missing else [])]
    alt = "Predicted over measured time, a line an implementation."
    shown = on_page(validation(report.points), "validation", "", alt)
    sections = [Section("picture", "Predicted over measured time", (shown,))]
    sections += [
        Section(name.replace("_", "-"), title, (table_of(title, report.tables[name]),))
        for name, title in TITLES.items()
        if report.tables[name]
    ]
    return html_text(Document("attnsim: predictions against measurements", tuple(lead), tuple(sections)))


def hypothetical_tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """A table for each GPU that is predicted from an older one."""
    for older, newer in dict.fromkeys((row["older"], row["newer"]) for row in rows):
        mine = [row for row in rows if (row["older"], row["newer"]) == (older, newer)]
        title = f"{newer} as if it did not exist, from {older}"
        yield table_of(title, mine, ("older", "newer", "numbers", "pairs"))


def table_of(title: str, rows: Sequence[Mapping[str, Any]], without: Collection[str] = ()) -> Table:
    """Rows of the validation with their shares in percent, columns of numbers on the right."""
    heads = {name: name.replace("_", " ") for row in rows for name in row if name not in without}
    right = [head for name, head in heads.items() if all(_is_number(row.get(name)) for row in rows)]
    return Table(title, [{head: _cell_of(name, row.get(name)) for name, head in heads.items()} for row in rows], right)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell_of(name: str, value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float) and name in SHARES:
        return share_text(value)
    return f"{value:.2f}" if isinstance(value, float) and name in ("over", "bias") else value
