"""Measured times other than published ones: committed tables of our kernels, users' tables, measurements on this GPU.

A committed table under ``measurements/own`` has the records of one GPU. Tables that say that they are synthetic, made
for tests without a GPU, are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnsim.api.tables import read
from attnsim.errors import InputError
from attnsim.kernels.gpu.measuring import attached_bench
from attnsim.kernels.gpu.records import FILE_NAME, Records
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.case_file import cases_of, read_cases, write_table
from attnsim.models.question.case_row import Case, parse_row
from attnsim.models.question.columns import NOTHING_SAID, Columns, Naming
from attnsim.ptx import compile_cache
from attnsim.validation.measured.datasets import Row, grouped, row_of
from attnsim.validation.measured.measured_table import SYNTHETIC, Record, machines_of, measured_frame, measured_rows
from attnsim.validation.measured.sources import MEASUREMENTS
from attnsim.validation.measuring.measure import Progress, chosen, measure

OWN = MEASUREMENTS / "own"


def own_tables(folder: Path = OWN) -> list[Path]:
    """Return the committed tables, sorted by name."""
    return sorted(folder.glob("*.csv"))


@lru_cache(maxsize=4)
def own_rows(folder: Path = OWN, *, synthetic: bool = False) -> tuple[Row, ...]:
    """Return every row of the tables; `source` is the table's name.

    Parameters
    ----------
    synthetic : bool
        Accept synthetic tables, for tests.

    Raises
    ------
    InputError
        If a table is synthetic, cannot be read, or has a row without a schedule.
    """
    return tuple(row for table in own_tables(folder) for row in _rows(table, synthetic))


def _rows(table: Path, synthetic: bool) -> list[Row]:
    made_up = SYNTHETIC in f"{table.name} {table.read_text(encoding='utf-8')}".lower()  # its notes say so too
    if made_up and not synthetic:
        raise InputError(f"{table.name} says that it is synthetic: nothing may be fitted on it; take it out of {OWN}")
    return [row_of(case) for case in read_cases(table)]


def keep(records: Iterable[Record], folder: Path = OWN, *, synthetic: bool = False) -> list[Path]:
    """Write the rows of a run to the folder of fits: ``GPU-DATE.csv`` for each GPU, with the date of its last session.

    Parameters
    ----------
    records : iterable of mapping
        Of `attnsim measure` or of ``benchmarks/gpu_run.py``.
    synthetic : bool
        As in :func:`own_rows`.

    Returns
    -------
    list of Path

    Raises
    ------
    InputError
        If a machine record is synthetic, or there is nothing to keep.
    """
    everything = list(records)
    made_up = next((one for one in machines_of(everything).values() if one.get("synthetic")), None)
    if made_up is not None and not synthetic:
        raise InputError(
            f"these records are synthetic ({made_up['synthetic']}): they are no measurement and are not kept"
        )
    tables = _by_table(everything, measured_rows(everything))
    if not tables:
        raise InputError("the records hold no timed point that a case table can hold; nothing to keep")
    written = []
    for name, rows in tables.items():
        write_table(measured_frame([{**row, "source": name} for row in rows]), folder / f"{name}.csv")
        written.append(folder / f"{name}.csv")
    own_rows.cache_clear()
    return written


def _by_table(records: Sequence[Record], rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group rows by the name of their table: GPU and date, with a prefix for synthetic rows."""
    last: dict[str, str] = {}
    for machine in machines_of(records).values():
        last[machine["gpu_id"]] = max(machine["date"], last.get(machine["gpu_id"], ""))
    made_up = f"{SYNTHETIC}-"
    return grouped(rows, lambda row: f"{made_up * (row['source'] == SYNTHETIC)}{row['gpu']}-{last[row['gpu']][:10]}")


def rows_of(table: Path, naming: Naming = NOTHING_SAID, done: Callable[[Columns], None] = lambda _: None) -> list[Row]:
    """Read the measured rows of a table, or of a run's folder.

    Parameters
    ----------
    table : Path
        A CSV or Parquet file, with columns named as in a case table or as other tools do; or a folder of `attnsim
        measure`.
    naming : Naming
        What the column names do not say.
    done : callable
        Called with the reading of the columns, after all rows were read successfully.

    Raises
    ------
    InputError
        If it cannot be read, or a row has no time or cannot be predicted.
    """
    if not table.is_dir():
        frame, columns = read(table, naming)
        rows = [_row(table, case) for case in cases_of(table, frame, columns)]
        done(columns)
        return rows
    if not (table / FILE_NAME).is_file():
        raise InputError(f"{table} has no {FILE_NAME}; give the folder of attnsim measure, or a table")
    return [_row(table, parse_row(row)) for row in measured_rows(Records(table / FILE_NAME).done.values())]


def _row(table: Path, case: Case) -> Row:
    if case.time_s is None or case.implementation is None:
        raise InputError(
            f"{table}: a row has no time_s or no implementation (in these names or others'); a measured row has both"
        )
    row = row_of(case)
    check_runs(row.record, row.workload, row.gpu)
    return row


def measure_here(minutes: float, progress: Progress) -> tuple[list[Row], str]:
    """Measure on this machine's GPU, continuing earlier measurements.

    Parameters
    ----------
    minutes : float
        No point is started after this time.
    progress : callable
        Called with the key of each finished point.

    Returns
    -------
    rows : list of Row
        Empty if nothing can be measured.
    why : str
        The reason if there are no rows, in one line; else the place of the records.
    """
    try:
        bench = attached_bench(int(time.time()) % (1 << 31))
    except InputError as error:
        return [], f"nothing was measured here: {error}"
    folder = compile_cache.folder().parent / "measured" / bench.device.gpu.id
    folder.mkdir(parents=True, exist_ok=True)
    operations, _ = chosen([], bench.device.gpu)
    finished = measure(
        bench, Records(folder / FILE_NAME), operations, budget_s=60 * minutes, keep_going=True, progress=progress
    )
    wrong = "".join(f"; {name} is wrong and left out: {complaint}" for name, complaint in finished.wrong.items())
    stopped = f"; stopped: {finished.stopped}" if finished.stopped else ""
    return rows_of(folder), f"measured here, {finished.left} points left for another run: {folder}{wrong}{stopped}"
