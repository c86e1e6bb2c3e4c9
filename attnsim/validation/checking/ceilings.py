"""Feasibility check: finds measured rows that are faster than the peak rate of a unit allows.

Ceilings are the GPU file's figures at the rated boost clock: the tensor cores' rate of the instruction path, the
exponential units, the L2 for all requested bytes, and the HBM for compulsory bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.validation.checking.evidence import SERVING_SAMPLE, serving_rows
from attnsim.validation.measured.datasets import Row, batches, published_cases, row_of
from attnsim.validation.measured.sources import BATCHES, MEASUREMENTS, ROLES


@dataclass(frozen=True, slots=True)
class Known:
    """Rows of a source on a GPU that are known to exceed a unit's ceiling, and the reason."""

    source: str
    gpu: str
    unit: str
    reason: str


def least_s(schedule: Schedule, gpu: Gpu, cache: str) -> Mapping[str, float]:
    """Return the least seconds that each unit needs for a schedule's work.

    Up to its capacity, a warm L2 holds the inputs, and any L2 holds the last written data.
    """
    clks, l2 = gpu.sm.count * gpu.clock.boost_hz, gpu.l2.bandwidth_bytes_per_s
    found = dict.fromkeys(("tensor", "exp", "l2", "hbm"), 0.0)
    for kernel in schedule.kernels:
        found["tensor"] += kernel.total("flops") / (_flops_per_clk(kernel, gpu) * clks)
        found["exp"] += kernel.total("exps") / (gpu.sm.exp_per_clk * clks)
        for (kind, _), size in kernel.requested().items():
            found["l2"] += size / (kernel.multicast if kind == "load" else gpu.l2.write_share) / l2
    for kind, kept in (("load", cache != "cold"), ("store", True)):
        moved = sum(size for (_, direction, _), size in schedule.compulsory().items() if direction == kind)
        found["hbm"] += max(0, moved - kept * gpu.l2.capacity_bytes) / gpu.hbm.bandwidth_bytes_per_s
    return found


def _flops_per_clk(kernel: Kernel, gpu: Gpu) -> float:
    if kernel.path == "simt":
        return gpu.sm.fp32_flops_per_clk
    of = gpu.mma_sync_flops_per_clk if kernel.path == "mma_sync" else gpu.tensor_flops_per_clk
    return of(kernel.dtype)


def measured_rows() -> Iterator[Row]:
    """Yield every measured row with a schedule: published rows of every role, batches, a sample of serving tables."""
    yield from (
        row for table in sorted(BATCHES.glob("*.csv")) if table.stem != "sources" for row in batches(table.stem)
    )
    for case in published_cases(*ROLES):
        with suppress(InputError):
            yield row_of(case)
    yield from serving_rows(SERVING_SAMPLE)


def above(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows that exceed a ceiling.

    Returns
    -------
    list of dict
        ``source, gpu, implementation, question, unit, least_s, measured_s, reason``: `unit` is the unit with the
        largest least time; `reason` is the known reason, or "".
    """
    reasons = {(one.source, one.gpu, one.unit): one.reason for one in known()}
    table = []
    for row in rows:
        try:
            needed = least_s(row.schedule, row.gpu, row.case.cache)
        except InputError:
            continue  # refused, as `attnsim accuracy --sources` tells
        unit = max(needed, key=needed.__getitem__)
        if needed[unit] > row.measured_s:
            where = row.case.source, row.gpu.base_id
            names = dict(zip(("source", "gpu"), where, strict=True)) | {"implementation": row.record.name}
            times = {"least_s": needed[unit], "measured_s": row.measured_s}
            why = reasons.get((*where, unit), "")
            table.append(names | {"question": str(row.workload), "unit": unit} | times | {"reason": why})
    return table


def known() -> tuple[Known, ...]:
    """Return the committed rows above a ceiling, with their reasons."""
    return read_typed(MEASUREMENTS / "above.yaml", "rows above a ceiling", tuple[Known, ...])
