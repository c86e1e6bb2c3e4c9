"""Measured times beside the published: our kernels' committed tables, tables of users, and what is measured here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from attnsim.errors import InputError
from attnsim.kernels.gpu.records import FILE_NAME, Records
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.case_file import read_cases
from attnsim.models.question.case_row import Case, parse_row
from attnsim.models.question.columns import NOTHING_SAID, Columns, Naming
from attnsim.ptx import compile_cache
from attnsim.validation.measured.datasets import Row, row_of
from attnsim.validation.measured.measured_table import measured_rows
from attnsim.validation.measuring.measure import Told


def rows_of(table: Path, naming: Naming = NOTHING_SAID, told: Callable[[Columns], None] = lambda _: None) -> list[Row]:
    """The measured rows of a table, or of a run's folder.

    Parameters
    ----------
    table : Path
        A CSV or Parquet file, its columns in the names of a case table or in others', or a folder of `attnsim measure`.
    naming : Naming
        What the names of a table's columns do not tell.
    told : callable
        Called with how a table's columns were read, once all rows are known to be good.

    Raises
    ------
    InputError
        When it cannot be read, or a row has no time or cannot be predicted.
    """
    if not table.is_dir():
        read: list[Columns] = []
        rows = [_row(table, case) for case in read_cases(table, naming, read.append)]
        told(*read)
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


def measure_here(minutes: float, told: Told) -> tuple[list[Row], str]:
    """Measure on the GPU that is here, going on with what earlier calls have measured.

    Parameters
    ----------
    minutes : float
        No point is begun after this time.
    told : callable
        Called with the key of each point that is done.

    Returns
    -------
    rows : list of Row
        Empty where nothing can be measured.
    why : str
        In that case the reason, in one line; else where the records are.
    """
    from attnsim.kernels.gpu.bench import attached_bench
    from attnsim.validation.measuring.measure import chosen, measure

    try:
        bench = attached_bench(int(time.time()) % (1 << 31))
    except InputError as error:
        return [], f"nothing was measured here: {error}"
    folder = compile_cache.folder().parent / "measured" / bench.device.gpu.id
    folder.mkdir(parents=True, exist_ok=True)
    operations, _ = chosen([], bench.device.gpu)
    finished = measure(
        bench, Records(folder / FILE_NAME), operations, budget_s=60 * minutes, keep_going=True, told=told
    )
    wrong = "".join(f"; {name} is wrong and left out: {complaint}" for name, complaint in finished.wrong.items())
    stopped = f"; stopped: {finished.stopped}" if finished.stopped else ""
    return rows_of(folder), f"measured here, {finished.left} points left for another run: {folder}{wrong}{stopped}"
