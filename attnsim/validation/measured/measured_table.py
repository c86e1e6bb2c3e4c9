"""Converts the records of a measuring run to a case table, for predictions and fits, and to a summary."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from attnsim.errors import InputError
from attnsim.kernels.gpu.records import attached_of
from attnsim.models.hardware.attached import gpu_of_attached
from attnsim.models.hardware.files import known_gpu_ids, load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mechanisms import MECHANISMS, running
from attnsim.models.question.case_file import COLUMNS
from attnsim.validation.measured.datasets import grouped

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
