"""The best share of its floor that a measured call has reached, chip by chip: `python benchmarks/fastest.py [--write]`.

Of every published row of dense attention and of every batch, whatever the row is used for: floor over measured time.
Left out are rows above a ceiling of their GPU for a known reason (above.yaml), those that lie below the floor, which
are named, and LLMServingSim's skewed decode, whose times are taken as those of three forwards. `--write` makes
`attnsim/api/fastest.csv` of it, in which answers look. A share is no fitted number and moves no time and no range.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.api.asking import read_conditions
from attnsim.api.bounds import COLUMNS, TABLE, floor_s
from attnsim.errors import InputError
from attnsim.models.mechanisms import MECHANISMS
from attnsim.validation.checking.batches import SKEWED
from attnsim.validation.checking.claims import known
from attnsim.validation.measured.datasets import Row, batches, published_cases, row_of
from attnsim.validation.measured.sources import BATCHES, ROLES

DENSE = ("flash", "sliding-window", "naive")


def measured() -> Iterator[Row]:
    """Every published row of dense attention, and the batches."""
    for case in published_cases(*ROLES):
        if case.algorithm in DENSE:
            with suppress(InputError):
                yield row_of(case)
    for table in sorted(BATCHES.glob("*.csv")):
        if table.stem not in ("sources", SKEWED):
            yield from batches(table.stem)


def share(row: Row) -> float:
    """Floor over measured time."""
    useful = MECHANISMS["flash"].useful(row.workload)
    conditions = read_conditions(cache=row.case.cache, launch=row.case.launch)
    return floor_s(row.schedule, useful, row.gpu, conditions) / row.measured_s


def best(rows: Iterable[Row]) -> tuple[list[dict[str, str]], list[str]]:
    """A line for each chip and pass, and what was left out."""
    doubted = {(one.source, one.gpu) for one in known()}
    found: dict[tuple[str, str], tuple[float, Row]] = {}
    counts: dict[tuple[str, str], int] = {}
    left: list[str] = []
    for row in rows:
        try:
            reached = share(row)
        except InputError:
            continue
        where = row.gpu.base_id, row.case.passes
        if reached > 1:
            left.append(f"{row.case.source} on {where[0]}, {row.workload}: {reached:.2f} of its floor")
        elif (row.case.source, where[0]) not in doubted:
            counts[where] = counts.get(where, 0) + 1
            if where not in found or reached > found[where][0]:
                found[where] = reached, row
    lines = []
    for (gpu, passes), (reached, row) in sorted(found.items()):
        cells = (gpu, passes, f"{reached:.3f}", str(counts[gpu, passes]), row.record.name, row.case.source)
        lines.append(dict(zip(COLUMNS, (*cells, str(row.workload)), strict=True)))
    return lines, left


def main() -> int:
    lines, left = best(measured())
    with TABLE.open("w", encoding="utf-8", newline="") if "--write" in sys.argv[1:] else sys.stdout as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(*(f"left out: {one}" for one in left), sep="\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
