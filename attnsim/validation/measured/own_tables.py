"""The measured rows of our own runs: tables under ``measurements/own``, each made of the records of one GPU.

What `attnsim fit` and `attnsim accuracy` read of them. A table that names itself synthetic, made to try all this
without a GPU, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.models.question.case_file import read_cases, write_table
from attnsim.validation.measured.datasets import Row, row_of
from attnsim.validation.measured.measured_table import SYNTHETIC, Record, machines_of, measured_frame, measured_rows
from attnsim.validation.measured.sources import MEASUREMENTS

OWN = MEASUREMENTS / "own"


def own_tables(folder: Path = OWN) -> list[Path]:
    """The committed tables, in the order of their names."""
    return sorted(folder.glob("*.csv"))


@lru_cache(maxsize=4)
def own_rows(folder: Path = OWN, *, synthetic: bool = False) -> tuple[Row, ...]:
    """Every row of the tables, `source` being its table's name.

    Parameters
    ----------
    folder : Path
    synthetic : bool
        Whether tables that were never measured are let through: for tests of what follows.

    Raises
    ------
    InputError
        When a table is synthetic, cannot be read, or has a row that no schedule answers.
    """
    return tuple(row for table in own_tables(folder) for row in _rows(table, synthetic))


def _rows(table: Path, synthetic: bool) -> list[Row]:
    made_up = SYNTHETIC in f"{table.name} {table.read_text(encoding='utf-8')}".lower()  # its notes say so too
    if made_up and not synthetic:
        raise InputError(f"{table.name} says that it is synthetic: nothing may be fitted on it; take it out of {OWN}")
    return [row_of(case) for case in read_cases(table)]


def keep(records: Iterable[Record], folder: Path = OWN, *, synthetic: bool = False) -> list[Path]:
    """Write the rows of a run where fits find them: ``GPU-DATE.csv``, one a GPU, by the day of its last session.

    Parameters
    ----------
    records : iterable of mapping
        Of `attnsim measure` or of ``benchmarks/gpu_run.py``.
    folder : Path
    synthetic : bool
        As in :func:`own_rows`.

    Returns
    -------
    list of Path

    Raises
    ------
    InputError
        When a machine record says that nothing was measured, or there is nothing to keep.
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
    """Rows by the name of their table: GPU and date, after what says that they are synthetic."""
    last: dict[str, str] = {}
    for machine in machines_of(records).values():
        last[machine["gpu_id"]] = max(machine["date"], last.get(machine["gpu_id"], ""))
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        made_up = f"{SYNTHETIC}-" * (row["source"] == SYNTHETIC)
        tables.setdefault(f"{made_up}{row['gpu']}-{last[row['gpu']][:10]}", []).append(row)
    return tables
