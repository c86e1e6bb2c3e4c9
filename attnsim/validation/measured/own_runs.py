"""Measured times other than published ones: committed tables of our kernels, users' tables, measurements on this GPU.

The records of a measuring run become a case table, for predictions and fits, and a summary. A committed table under
``measurements/own`` has the records of one GPU. Tables that say that they are synthetic, made for tests without a GPU,
are refused.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from attnsim.api.tables import read
from attnsim.errors import InputError
from attnsim.kernels.gpu.measuring import attached_bench
from attnsim.kernels.gpu.records import FILE_NAME, Records, attached_of
from attnsim.models.hardware.attached import gpu_of_attached
from attnsim.models.hardware.files import known_gpu_ids, load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mechanisms import MECHANISMS, running
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.case_file import COLUMNS, cases_of, read_cases, write_table
from attnsim.models.question.case_row import Case, parse_row
from attnsim.models.question.columns import NOTHING_SAID, Columns, Naming
from attnsim.ptx import compile_cache
from attnsim.validation.measured.datasets import Row, grouped, row_of
from attnsim.validation.measured.sources import MEASUREMENTS
from attnsim.validation.measuring.measure import Progress, chosen, measure

SOURCE = "measured"
SYNTHETIC = "synthetic"
"""Source of rows whose machine record says that they are synthetic."""
CHECKS = ("correct", "smoke")
"""Kinds of records that are correctness checks."""
EXTRA_COLUMNS = ("version", "launch", "clock_mhz")
"""Optional columns of case tables that every measured row has."""

Record = Mapping[str, Any]


def measured_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return a row of a case table for every timed kernel, in the order of measurement.

    - If several kernels alternated at a point, each implementation has a row, PyTorch's included.
    - Masks with patterns have no row, since case tables hold bands only.
    - Kernels that a check in these records found wrong have no row.
    - The time is the median of the samples that were not throttled. If all were throttled, it is the median of all, and
      the notes say so.

    Parameters
    ----------
    records : iterable of mapping
        Of `attnsim measure` or of ``benchmarks/gpu_run.py``.

    Raises
    ------
    InputError
        When points have no machine record.
    """
    everything = list(records)
    machines, points = machines_of(everything), list(timed(everything))
    orphan = next((one for one in points if one["session"] not in machines), None)
    if orphan is not None:
        raise InputError(f"the points of {orphan['session']} have no machine record beside them; measure them again")
    null = {
        (record["session"], record["mode"]): record["median_s"]
        for record in everything
        if record.get("kind") == "null" and "error" not in record
    }
    return [
        _row(one, machines[one["session"]], null.get((one["session"], one["mode"])))
        for one in points
        if one["workload"]["band"]
    ]


def timed(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of timed implementations that no check found wrong; alternating kernels one by one."""
    everything = list(records)
    wrong = wrong_kernels(everything)
    return (one for one in _timed(everything) if (one.get("operation"), one["version"]) not in wrong)


def wrong_kernels(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """Return operations (with kernel version) that a check found wrong, and the first failing workload."""
    found: dict[tuple[str, str], str] = {}
    for record in records:
        if record.get("kind") in CHECKS and record.get("ok") is False:
            inputs = f", {record['inputs']} inputs" if "inputs" in record else ""
            found.setdefault((record["operation"], record["version"]), f"{record['workload']}{inputs}")
    return found


def _timed(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        if "error" in record:
            continue
        if record.get("kind") == "time":
            yield record
        elif record.get("kind") == "beside":
            about = {name: value for name, value in record.items() if name != "times"}
            for found in record["times"].values():
                if "implementation" in found and "error" not in found:
                    yield {**about, **found}


def measured_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows in the columns of a case table, ready to be written."""
    return pd.DataFrame(list(rows), columns=pd.Index([*COLUMNS, *EXTRA_COLUMNS]), dtype=object)


def machines_of(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return the machine record of each session; ``gpu_id`` is the matching built-in GPU, if there is one.

    Raises
    ------
    InputError
        If there is no machine record.
    """
    known = [load_gpu(name) for name in known_gpu_ids()]
    found = {
        record["session"]: {**record, "gpu_id": gpu_of_attached(attached_of(record), known).id}
        for record in records
        if record.get("kind") == "machine" and "error" not in record
    }
    if not found:
        raise InputError("the records hold no machine record; give those of attnsim measure or benchmarks/gpu_run.py")
    return found


def summary(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Summarise each operation: points, samples, throttling, spread and the best rates.

    Returns
    -------
    list of dict
        ``operation, points, failed, samples, throttled, spread`` (median of quartile distance over median time),
        ``clock_mhz`` (median), ``flops_per_s`` and ``bytes_per_s`` (best of useful FLOPs, and of Q, K, V and O once,
        over time).
    """
    everything = list(records)
    failed = Counter(one["operation"] for one in everything if one.get("kind") == "time" and "error" in one)
    by_operation = grouped(timed(everything), lambda one: str(one.get("operation", one["implementation"])))
    return [
        _summary(name, by_operation.get(name, []), failed[name]) for name in dict.fromkeys((*by_operation, *failed))
    ]


def _summary(name: str, points: Sequence[Record], failed: int) -> dict[str, Any]:
    clocks = [one["sm_mhz"] for one in points if one["sm_mhz"]]
    rates = [one["useful_flops"] / one["median_s"] for one in points]
    moved = [_array_bytes(one["workload"]) / one["median_s"] for one in points]
    return {
        "operation": name,
        "points": len(points),
        "failed": failed,
        "samples": sum(one["kept"] for one in points),
        "throttled": sum(one["throttled"] for one in points),
        "spread": statistics.median(one["iqr_s"] / one["median_s"] for one in points) if points else None,
        "clock_mhz": statistics.median(clocks) if clocks else None,
        "flops_per_s": max(rates, default=None),
        "bytes_per_s": max(moved, default=None),
    }


def _array_bytes(w: Record) -> float:
    """Return the bytes of Q, K, V and O with 16-bit elements."""
    queries = w["heads_q"] * w["seq_q"] * (w["head_dim"] + w["head_dim_v"])
    keys = w["heads_kv"] * w["seq_kv"] * (w["head_dim"] + w["head_dim_v"])
    return float(2 * w["batch"] * (queries + keys))


def _row(record: Record, machine: Record, null_s: float | None) -> dict[str, Any]:
    w = record["workload"]
    implementation, splitting = find_implementation(record["implementation"]), MECHANISMS["split-kv"]
    decodes = w["pass"] == "decode" and splitting.run_by(implementation)
    shape = {name: w[name] for name in COLUMNS if name in w and name not in ("causal", "window")}
    return {
        "source": SYNTHETIC if machine.get("synthetic") else SOURCE,
        "gpu": machine["gpu_id"],
        "implementation": record["implementation"],
        "algorithm": (splitting if decodes else running(implementation)[0]).name,
        **shape,
        "causal": int(w["causal"]),
        "window": w["window"],
        "cache": record["cache"],
        "time_s": float(f"{record['median_s']:.6g}"),
        "notes": _notes(record, machine, null_s),
        "version": record["version"],
        "launch": record["launch"],
        "clock_mhz": record["sm_mhz"],
    }


def _notes(record: Record, machine: Record, null_s: float | None) -> str:
    samples = sum(len(burst["samples_s"]) for burst in record["bursts"])
    notes = [f"SYNTHETIC, nothing was measured: {machine['synthetic']}"] if machine.get("synthetic") else []
    notes += [f"median of {record['kept']} samples, quartiles {record['iqr_s'] / record['median_s']:.2%} apart"]
    if record["throttled"]:
        dropped = record["throttled"] < samples
        fate = f"{record['throttled']} throttled and dropped" if dropped else "all throttled, none dropped"
        notes.append(f"{fate} ({', '.join(record['reasons'])})")
    if null_s is not None:
        notes.append(f"null kernel {null_s * 1e6:.2f} us")
    notes.append(f"driver {machine['driver'] or 'unknown'}, {record['session']}")
    return "; ".join(notes)


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
        rows = [_row_own(table, case) for case in cases_of(table, frame, columns)]
        done(columns)
        return rows
    if not (table / FILE_NAME).is_file():
        raise InputError(f"{table} has no {FILE_NAME}; give the folder of attnsim measure, or a table")
    return [_row_own(table, parse_row(row)) for row in measured_rows(Records(table / FILE_NAME).done.values())]


def _row_own(table: Path, case: Case) -> Row:
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
