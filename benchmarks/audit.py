"""How often the audit of `attnsim check` finds what is wrong with a table, and how often it cries wolf.

Ten rows of each of some published tables (a source, GPU, kernel and pass) are audited as they stand, and with a fault
planted: each cause of `attnsim/api/adapting/audit.py` that moves their times by at least 15 % is taken as what ran, so
that the measured times are those of the stated calls times the ratio of the two replays; a launch is 0.6 to 1.6 times,
a clock 0.6 to 1.4 times as far off as it is tried. Single rows are multiplied, too.

    python benchmarks/audit.py --rows audit.json [--groups 130] [--after 130]
    python benchmarks/audit.py --tables tables.json [--minutes 60]

`--rows` keeps what was replayed (minutes) for the next call. `--tables` audits all rows of the published tables as they
stand, with causes tried on some rows of each kernel and pass, and keeps what it found of each table: the next call goes
on where this one ended, and takes anew only tables that changed or were found by another model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from attnsim.api.adapting.audit import Tried, audit, kinds_of, named, points_of, probabilities, standing_alone, trials
from attnsim.api.adapting.own import Points, model_digest
from attnsim.api.checking import check
from attnsim.api.tables import AnsweredRow, predict_case
from attnsim.models.question.case_row import Case, parse_row, workload_of
from attnsim.models.question.columns import OWN, Column, Columns
from attnsim.validation.measured.datasets import grouped, published_cases
from attnsim.validation.measured.sources import ROLES, source_of
from benchmarks.adapting import asked_groups

ROWS = 10
FEWEST = 12
"""Rows of a group of which ten are taken."""
MOVES = 0.15
"""Root mean square of log time by which a planted fault moves the rows."""
CLEAN_BIAS, CLEAN_SPREAD, ORDINARY = 0.12, 0.10, 0.30
"""Log bias and spread of a clean group, and the mean error of an ordinary one."""
PLANTED = (3.0, 2.5, 2.0, 0.5, 1 / 3)
"""Times a single row is taken."""
TRIED = 16
"""Rows of a kernel and pass of a published table on which causes are tried."""
RATES = Columns((Column("tflops", "tflops"),))


@dataclass(frozen=True)
class Group:
    """Rows of one source, GPU, kernel and pass, as they stand and under each cause."""

    name: str
    points: Points
    stated: Tried
    tried: list[Tried]

    @property
    def off(self) -> np.ndarray:
        return self.stated.off

    @property
    def error(self) -> float:
        return float(np.abs(np.expm1(-self.off)).mean())

    @property
    def kind(self) -> str:
        if abs(self.off.mean()) < CLEAN_BIAS and self.off.std() < CLEAN_SPREAD:
            return "clean"
        return "ordinary" if self.error < ORDINARY else "other"

    def with_fault(self, at: int, much: float) -> Group:
        """The group as it would stand if rows had been run under a cause, `much` as far off as it is tried."""
        cause = self.tried[at]
        moved = self.off - cause.off
        if cause.name.startswith(("launch=", "cache=")):
            moved = np.log(np.maximum(1 + much * np.expm1(moved), 0.1))
        elif cause.name.startswith("clock"):
            moved = much * moved
        every = [replace(one, off=one.off + moved, above=one.above + moved) for one in (self.stated, *self.tried)]
        return Group(self.name, self.points, every[0], every[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="What the audit of tables finds.")
    parser.add_argument("--rows", type=Path, help="JSON of what was replayed; made where it is not there")
    parser.add_argument("--groups", type=int, default=200, help="groups that are audited (200)")
    parser.add_argument("--after", type=int, default=0, help="groups that are left out before them (0)")
    parser.add_argument("--tables", type=Path, metavar="KEPT", help="audit every published table as it stands")
    parser.add_argument("--minutes", type=float, default=60, help="after which --tables begins no other table (60)")
    asked = parser.parse_args()
    if asked.tables:
        whole_tables(asked.tables, asked.minutes)
        return
    groups = read(asked.rows) if asked.rows and asked.rows.exists() else list(replayed(asked.after, asked.groups))
    if asked.rows and not asked.rows.exists():
        write(asked.rows, groups)
    print(f"{len(groups)} groups of {ROWS} rows")
    as_they_stand(groups)
    planted(groups)
    single(groups)


def as_they_stand(groups: list[Group]) -> None:
    """Alarms on tables in which nothing was planted."""
    parts = (
        ("clean", [one for one in groups if one.kind == "clean"]),
        ("mean error below 20 %", [one for one in groups if one.error < 0.2]),
        ("20 to 40 %", [one for one in groups if 0.2 <= one.error < 0.4]),
        ("above", [one for one in groups if one.error >= 0.4]),
    )
    for name, mine in parts:
        alarms = sum(bool(named(one.points, one.stated, one.tried)[1]) for one in mine)
        print(f"as they stand, {name}: {alarms} alarms in {len(mine)} groups")
    for one in groups:
        for reason in named(one.points, one.stated, one.tried)[1][:1]:
            print(f"    {one.name}: {reason} ({reason.probability:.2f})")


def planted(groups: list[Group]) -> None:
    """Planted faults that are found."""
    print(f"{'planted faults':32} {'plants':>6} {'first':>6} {'in two':>6} {'named':>6} {'right':>6} {'wrong':>6}  %")
    rng = np.random.default_rng(0)
    counts: dict[str, list[tuple[bool, ...]]] = {}
    for group in groups:
        for at, cause in enumerate(group.tried):
            much = rng.uniform(0.6, 1.6) if cause.kind == "launch" else rng.uniform(0.6, 1.4)
            if np.sqrt(np.mean((group.off - cause.off) ** 2)) < MOVES or group.kind == "other":
                continue
            made = group.with_fault(at, much)
            _, each = probabilities(made.points, made.stated, made.tried)
            kinds = [made.tried[place].kind for _, place in kinds_of(made.tried, each)]
            reasons = named(made.points, made.stated, made.tried)[1]
            said = bool(reasons), bool(reasons) and reasons[0].kind == cause.kind
            found = kinds[0] == cause.kind, cause.kind in kinds[:2], *said, said[0] and not said[1]
            for name in (group.kind, f"  {group.kind}, {cause.kind}"):
                counts.setdefault(name, []).append(found)
    for name in sorted(counts, key=lambda one: (one.strip().split(",")[0], one.strip())):
        shares = " ".join(f"{100 * share:6.1f}" for share in np.mean(counts[name], axis=0))
        print(f"{name:32} {len(counts[name]):6} {shares}")


def single(groups: list[Group]) -> None:
    """Single rows that are off alone, in clean groups."""
    clean = [one for one in groups if one.kind == "clean"]
    rows = sum(len(one.off) for one in clean)
    false = sum(len(standing_alone(one.points, one.off)) for one in clean)
    print(f"single rows, clean groups: {false} of {rows} false")
    for factor in PLANTED:
        found = 0
        for one in clean:
            for row in range(len(one.off)):
                off = one.off.copy()
                off[row] += np.log(factor)
                found += row in standing_alone(one.points, off)
        print(f"    x {factor:.2g}: {100 * found / max(rows, 1):.1f} % of {rows} found")


def whole_tables(kept: Path, minutes: float) -> None:
    """What `attnsim check` says of the published tables, a source and GPU at a time, some rows of each kernel."""
    tables = grouped(published_cases(*ROLES), lambda case: (source_of(case.source), case.gpu))
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    asked = []
    for (source, gpu), cases in tables.items():
        rows = list(
            {json.dumps(row): row for row in (as_row(case, rate=False) for case in cases if case.time_s)}.values()
        )
        digest = hashlib.sha256(json.dumps([model_digest(), TRIED, rows]).encode()).hexdigest()[:16]
        asked.append((f"{source}, {gpu}", digest, rows))
    until = time.monotonic() + 60 * minutes
    left = [one for one in asked if known.get(one[0], {}).get("digest") != one[1]]
    found = Parallel(n_jobs=2, return_as="generator_unordered", pre_dispatch=2)(
        delayed(table_audited)(*one, until) for one in left
    )
    for number, told in enumerate(found, 1):
        if told:
            known[told["name"]] = told
            kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
            print(f"{number} of {len(left)}: {told['name']}, {told['seconds']:.0f} s", file=sys.stderr, flush=True)
    done = [known[name] for name, digest, _ in asked if known.get(name, {}).get("digest") == digest]
    for one in done:
        for line in one["lines"]:
            print(f"{one['name']}: {line}")
    rows = sum(one["rows"] for one in done)
    suspicious = sum(bool(one["lines"]) for one in done)
    print(f"{len(done)} of {len(asked)} tables, {rows:,} rows: {suspicious} have suspicious rows")


def table_audited(name: str, digest: str, rows: list[dict[str, object]], until: float) -> dict[str, Any] | None:
    """What is to be said of a table; None once the time is over."""
    begun = time.monotonic()
    if begun > until:
        return None
    found = check(pd.DataFrame(rows), processes=1, progress=False)
    told = audit(found.frame, found.columns, found.answered, most=TRIED)
    lines = [*told.lines, *(f"row {places} impossible: {why}" for why, places in found.impossible.items())]
    lines += [f"row {places} without an answer: {why}" for why, places in found.failed.items()]
    seconds = time.monotonic() - begun
    return {"name": name, "digest": digest, "rows": len(rows), "lines": lines, "seconds": seconds}


def replayed(after: int, count: int) -> Iterator[Group]:
    """So many groups at random, every other one with rates in place of times."""
    rng = np.random.default_rng(0)
    found = [one for one in asked_groups(FEWEST).items() if len(one[1]) >= FEWEST]
    for number, place in enumerate(rng.permutation(len(found))[after : after + count]):
        name, mine = found[place]
        chosen = [mine[row][1] for row in rng.permutation(len(mine))[:ROWS]]
        table = [as_row(case, rate=number % 2 == 1) for case in chosen]
        columns = RATES if number % 2 else Columns((Column("time_s", "time_s"),))
        answered = [AnsweredRow(read, predict_case(read)) for read in (parse_row(row, OWN) for row in table)]
        if any(row.ratio is None for row in answered):
            continue
        yield Group(name, points_of(answered), *trials(table, columns, answered))


def as_row(case: Case, rate: bool) -> dict[str, object]:
    """A case as a row of a table."""
    assert case.time_s
    cells = {
        "gpu": case.gpu, "implementation": case.implementation, "algorithm": case.algorithm, "pass": case.passes,
        "dtype": case.dtype, "batch": case.batch, "heads_q": case.heads_q, "heads_kv": case.heads_kv,
        "seq_q": case.seq_q, "seq_kv": case.seq_kv, "head_dim": case.head_dim, "head_dim_v": case.head_dim_v,
        "causal": int(case.causal), "window": case.window, "cache": case.cache, "launch": case.launch,
        "version": case.version, "clock_mhz": case.clock_mhz, "page_size": case.page_size, "framework": case.whose,
        "options": ";".join(f"{name}={text}" for name, text in case.options.items()), "time_s": case.time_s,
    }  # fmt: skip
    if rate:
        w = workload_of(case)
        cells |= {"time_s": "", "tflops": w.matrix_flops(w.visible_pairs) / case.time_s / 1e12}
    return {name: "" if cell is None else str(cell) for name, cell in cells.items()}


def write(path: Path, groups: list[Group]) -> None:
    plain = [
        {
            "name": one.name,
            "points": [one.points.shape.tolist(), one.points.sd.tolist(), one.points.predicted_s.tolist()],
            "tried": [
                [x.kind, x.name, *(getattr(x, part).tolist() for part in ("off", "predicted_s", "inside", "above"))]
                for x in (one.stated, *one.tried)
            ],
        }
        for one in groups
    ]
    path.write_text(json.dumps(plain), encoding="utf-8")


def read(path: Path) -> list[Group]:
    found = []
    for one in json.loads(path.read_text(encoding="utf-8")):
        stated, *tried = (Tried(kind, name, *map(np.array, rest)) for kind, name, *rest in one["tried"])
        found.append(Group(one["name"], Points(*map(np.array, one["points"])), stated, tried))
    return found


if __name__ == "__main__":
    main()
