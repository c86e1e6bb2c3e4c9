"""The records of a measuring run as a case table, which predictions and fits read, and as a summary for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnsim.kernels.gpu.machine_record import attached_of
from attnsim.models.errors import InputError
from attnsim.models.hardware.attached import gpu_of_attached
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mechanisms import MECHANISMS, running
from attnsim.models.question.case_file import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "measured"
EXTRA_COLUMNS = ("version", "launch", "clock_mhz")
"""Optional columns of a case table that every measured row has."""

Record = Mapping[str, Any]


def measured_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A row of a case table for every point that was timed, in the order in which they were.

    A mask with patterns has no row: case tables hold bands. The time is the median of the samples that were not
    throttled, or of all where every one was, which the notes then say.

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
    machines = machines_of(everything)
    orphan = next((record for record in everything if _is_timed(record) and record["session"] not in machines), None)
    if orphan is not None:
        raise InputError(f"the points of {orphan['session']} have no machine record beside them; measure them again")
    null = {
        (record["session"], record["mode"]): record["median_s"]
        for record in everything
        if record.get("kind") == "null" and "error" not in record
    }
    return [
        _row(record, machines[record["session"]], null.get((record["session"], record["mode"])))
        for record in everything
        if _is_timed(record) and record["workload"]["band"]
    ]


def measured_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows in the columns of a case table, ready to be written."""
    import pandas as pd

    return pd.DataFrame(list(rows), columns=pd.Index([*COLUMNS, *EXTRA_COLUMNS]), dtype=object)


def machines_of(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """The machine record of each session, ``gpu_id`` being the built-in GPU that it is, where there is one.

    Raises
    ------
    InputError
        When there is none.
    """
    known = [load_gpu(name) for name in builtin_gpu_ids()]
    found = {
        record["session"]: {**record, "gpu_id": gpu_of_attached(attached_of(record), known).id}
        for record in records
        if record.get("kind") == "machine" and "error" not in record
    }
    if not found:
        raise InputError("the records hold no machine record; give those of attnsim measure or benchmarks/gpu_run.py")
    return found


def summary(records: Iterable[Record]) -> list[dict[str, Any]]:
    """What was measured of each operation: points, samples, throttling, spread and the best rates reached.

    Returns
    -------
    list of dict
        ``operation, points, failed, samples, throttled, spread`` (median of quartile distance over median time),
        ``clock_mhz`` (median), ``flops_per_s`` and ``bytes_per_s`` (best of useful FLOPs, and of Q, K, V and O once,
        over time).
    """
    by_operation: dict[str, list[Record]] = {}
    for record in records:
        if record.get("kind") == "time":
            by_operation.setdefault(record["operation"], []).append(record)
    return [_summary(name, mine) for name, mine in by_operation.items()]


def _summary(name: str, records: Sequence[Record]) -> dict[str, Any]:
    timed = [record for record in records if _is_timed(record)]
    clocks = [record["sm_mhz"] for record in timed if record["sm_mhz"]]
    rates = [record["useful_flops"] / record["median_s"] for record in timed]
    moved = [_array_bytes(record["workload"]) / record["median_s"] for record in timed]
    return {
        "operation": name,
        "points": len(timed),
        "failed": len(records) - len(timed),
        "samples": sum(record["kept"] for record in timed),
        "throttled": sum(record["throttled"] for record in timed),
        "spread": statistics.median(record["iqr_s"] / record["median_s"] for record in timed) if timed else None,
        "clock_mhz": statistics.median(clocks) if clocks else None,
        "flops_per_s": max(rates, default=None),
        "bytes_per_s": max(moved, default=None),
    }


def _is_timed(record: Record) -> bool:
    return record.get("kind") == "time" and "error" not in record


def _array_bytes(w: Record) -> float:
    """Bytes of Q, K, V and O, 16 bits an element."""
    queries = w["heads_q"] * w["seq_q"] * (w["head_dim"] + w["head_dim_v"])
    keys = w["heads_kv"] * w["seq_kv"] * (w["head_dim"] + w["head_dim_v"])
    return float(2 * w["batch"] * (queries + keys))


def _row(record: Record, machine: Record, null_s: float | None) -> dict[str, Any]:
    w = record["workload"]
    implementation, splitting = find_implementation(record["implementation"]), MECHANISMS["split-kv"]
    decodes = w["pass"] == "decode" and splitting.run_by(implementation)
    shape = {name: w[name] for name in COLUMNS if name in w and name not in ("causal", "window")}
    return {
        "source": SOURCE,
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
    told = [f"median of {record['kept']} samples, quartiles {record['iqr_s'] / record['median_s']:.2%} apart"]
    if record["throttled"]:
        dropped = record["throttled"] < samples
        fate = f"{record['throttled']} throttled and dropped" if dropped else "all throttled, none dropped"
        told.append(f"{fate} ({', '.join(record['reasons'])})")
    if null_s is not None:
        told.append(f"null kernel {null_s * 1e6:.2f} us")
    told.append(f"driver {machine['driver'] or 'unknown'}, {record['session']}")
    return "; ".join(told)
