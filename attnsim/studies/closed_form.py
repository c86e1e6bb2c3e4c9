"""Closed-form times of many points at once.

The same estimate sorts tiles before they are replayed (:mod:`attnsim.api.estimating`); here it works on columns instead
of one schedule. It adds up:

- the busier of the tensor and the vector units, slowed by the other one as in the replay;
- latencies of inner steps, as far as other warpgroups of the SM do not hide them, and latencies of blocks;
- rounding up to whole waves;
- at least the time of the L2 and of the HBM (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009, at
  fitted rates);
- launches.

:mod:`attnsim.studies.uncertainty` lists what the estimate leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api.estimating import compute_time, vector_times
from attnsim.arrays import Floats
from attnsim.models.hardware.clock_law import limit_felt, settled
from attnsim.models.hardware.units import ASYNC_SHARE, CONCURRENT, COUNTED, UNITS
from attnsim.simulator.memory import KNEE
from attnsim.simulator.replay import LAUNCH_BOUND
from attnsim.studies.plans import Plan

ON_CHIP = ("flops", "useful", "lanes", "exps", "smem_bytes", "l2_bytes")
"""Columns of work whose energy depends on the clock."""

BOUNDS = (*UNITS, "launch")
"""Names of the units that a point may be bound by, as in the replay."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of each point for the GPU's units, one column each.

    Parameters
    ----------
    flops, useful, smem_bytes, exps, lanes : ndarray
        Executed tensor FLOPs, useful FLOPs among them, operand bytes from shared memory, exponentials, FP32-lane
        instructions.
    issues, int32, load_stores : ndarray
        Counted instructions of the schedulers and their pipes; 0 for kernels without counted instructions.
    steps, blocks : ndarray
        Waits for an inner step, and thread blocks, of the kernel with most FLOPs.
    l2_bytes, hbm_read_bytes, hbm_write_bytes, peak_bytes : ndarray
    pass_l2_bytes, pass_hbm_bytes : ndarray
        The part of those bytes in kernels without products, which run before or after the others.
    """

    flops: Floats
    useful: Floats
    smem_bytes: Floats
    exps: Floats
    lanes: Floats
    issues: Floats
    int32: Floats
    load_stores: Floats
    steps: Floats
    blocks: Floats
    l2_bytes: Floats
    hbm_read_bytes: Floats
    hbm_write_bytes: Floats
    peak_bytes: Floats
    pass_l2_bytes: Floats
    pass_hbm_bytes: Floats

    @classmethod
    def empty(cls, count: int) -> Work:
        """Return columns of NaN, to be filled."""
        return cls(*(np.full(count, np.nan) for _ in fields(cls)))

    def take(self, rows: NDArray[np.bool_]) -> Work:
        """Return the work of some points."""
        return Work(*(getattr(self, item.name)[rows] for item in fields(self)))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Closed-form answers, one column each.

    Parameters
    ----------
    busiest : ndarray of int
        Index into `BOUNDS`.
    units_s : ndarray, shape [BOUNDS, points]
        Busy seconds of each unit.
    compute_s : ndarray
        Tensor and vector units together, with latencies and whole waves.
    """

    time_s: Floats
    busiest: NDArray[np.int64]
    units_s: Floats
    compute_s: Floats
    waves: Floats


def kept(footprint: Floats, capacity: Floats) -> Floats:
    """:func:`attnsim.simulator.memory.kept` of columns."""
    low, high = KNEE
    return np.asarray(np.clip((high - footprint / capacity) / (high - low), 0.0, 1.0))


def estimate(
    work: Work, gpu: Mapping[str, Floats], plans: Sequence[Plan], which: NDArray[np.int64], launch: str
) -> Estimate:
    """Estimate the times of points.

    Parameters
    ----------
    gpu : mapping of str to ndarray
        Figures from :func:`attnsim.studies.points.figures`.
    which : ndarray of int
        Plan of each point.
    launch : {"stream", "host", "graph", "kernel"}
    """

    def of(name: str) -> Floats:
        """Return an attribute of each point's plan, 0 without a fitted value."""
        return np.array([float(attrgetter(name)(item) or 0.0) for item in plans])[which]

    fitted = "numbers.implementation."
    full_hz = np.where(gpu["clock.sustained"] > 0, gpu["clock.sustained"], gpu["clock.free"])
    clk = 1 / full_hz
    sms = gpu["sm.count"]
    flop = clk / _tensor_rate(plans, which, gpu)
    exp_s = work.exps * clk / gpu["sm.exp_rate"]
    fp32_s = work.lanes * clk / (gpu["sm.fp32_rate"] / 2)
    smem_s = work.smem_bytes * clk / gpu["sm.shared_memory_bandwidth"]
    tensor = np.maximum(work.flops * flop, smem_s)
    counted_s = {one.name: getattr(work, one.amount) * clk / gpu[one.figure] for one in COUNTED}
    vector, disturbs = vector_times((exp_s, fp32_s), list(counted_s.values()), work.issues > 0)
    slots = sms * of("blocks_per_sm")
    waves = work.blocks / slots
    step, block = (getattr(work, f"{one}s") * of(f"{fitted}{one}_clks") * clk / slots for one in ("step", "block"))
    compute = compute_time(
        tensor, vector, disturbs, interference=of("stall"), own_path=of("own_path"), sms=sms, groups=of("groups"),
        step=step, block=block, waves=waves, even=(of("split") > 0) | (of("main.persistent") > 0) & (waves > 1),
    )  # fmt: skip
    l2_s = 1 / gpu["l2.bandwidth"]
    hbm_s = 1 / (gpu["hbm.bandwidth"] * gpu["hbm.achievable_fraction"])
    hbm_bytes = work.hbm_read_bytes + work.hbm_write_bytes
    copied = work.pass_l2_bytes * (1 + 1 / gpu["l2.write_share"]) / 2  # passes write as much as they read
    moving = np.maximum(copied * l2_s, work.pass_hbm_bytes * hbm_s)
    l2 = (work.l2_bytes - work.pass_l2_bytes + copied) * l2_s
    hbm, launches = hbm_bytes * hbm_s, np.zeros_like(clk)
    of_passes = _vector_of_passes(work, plans, which, gpu) * clk / sms
    computing = of_passes.sum(axis=0)  # nobody counted their instructions: a pipe's come after another's
    memory = np.maximum((work.l2_bytes - work.pass_l2_bytes) * l2_s, (hbm_bytes - work.pass_hbm_bytes) * hbm_s)
    if launch != "kernel":
        each = gpu["launch.graph" if launch == "graph" else "launch.stream"]
        launches = of("kernels") * each + of(fitted + "call_s")

    def time_at(share: Floats) -> tuple[Floats, Floats]:
        held = np.where(compute / share < memory, memory, 0.0) + np.where(computing / share < moving, moving, 0.0)
        return np.maximum(compute / share, memory) + np.maximum(computing / share, moving) + launches, held + launches

    full = time, _ = time_at(np.ones_like(clk))
    chip_j = sum(of(f"joules.{name}") * getattr(work, name) for name in ON_CHIP) * full_hz / of("law.tensor_hz")
    memory_j, power_w = of("joules.hbm_bytes") * hbm_bytes, gpu["power.limit"] - of("law.static_w")
    felt = np.where(gpu["clock.sustained"] > 0, 0.0, limit_felt(time, of("law.from_s"), of("law.to_s")))
    slow = settled(full, time_at, chip_j, memory_j, power_w, felt, of("law.least_hz") / full_hz)
    time, _ = time_at(slow)
    flop, exp_s, fp32_s, smem_s, compute = (one / slow for one in (flop, exp_s, fp32_s, smem_s, compute))
    counted_s = {name: seconds / slow / sms for name, seconds in counted_s.items()}
    if launch in ("stream", "host"):
        from_python = of("is_eager") if launch == "stream" else 1.0
        waited = np.maximum(of("host_s") * from_python - time, 0)
        launches, time = launches + waited, time + waited
    busy_s = {
        "tensor": work.flops * flop / sms,
        "exp": exp_s / sms,
        "fp32": fp32_s / sms + of_passes[1] / slow,
        "shared_memory": smem_s / sms,
        "l2": l2,
        "hbm": hbm,
        "launch": launches,
        **counted_s,
        "int32": counted_s["int32"] + of_passes[2] / slow,
    }
    units = np.stack([busy_s.get(name, np.zeros_like(clk)) for name in BOUNDS])
    busiest = units[:-1].argmax(axis=0)
    busiest = np.where(launches > LAUNCH_BOUND * time, BOUNDS.index("launch"), busiest)
    return Estimate(time, busiest, units, compute, waves)


def _vector_of_passes(work: Work, plans: Sequence[Plan], which: NDArray[np.int64], gpu: Mapping[str, Floats]) -> Floats:
    """Return one SM's clocks for exponentials, FP32 and integer instructions of passes, ``[3, points]``."""
    rates = np.stack([gpu["sm.exp_rate"], gpu["sm.fp32_rate"] / 2, gpu["sm.int32_rate"]])
    each = np.array([(item.pass_exps, item.pass_fp32, item.pass_int32) for item in plans])[which].T
    return np.asarray(work.pass_l2_bytes * each / rates)


def _tensor_rate(plans: Sequence[Plan], which: NDArray[np.int64], gpu: Mapping[str, Floats]) -> Floats:
    """Return the tensor FLOPs per SM and clock on each point's instruction path."""

    def of(values: list[Any]) -> Any:
        return np.array(values)[which]

    rate = np.empty(len(which))
    for dtype in {item.main.dtype for item in plans}:
        here = of([item.main.dtype == dtype for item in plans])
        rate[here] = gpu["sm.fp32_rate" if dtype == "fp32" else f"tensor.{dtype}"][here]
    synchronous = of([item.main.path == "mma_sync" and item.main.dtype != "fp32" for item in plans])
    others = np.where(of([item.main.path in CONCURRENT for item in plans]), ASYNC_SHARE, 1.0)
    return np.asarray(rate * np.where(synchronous, gpu["tensor.mma_sync_fraction"], others))
