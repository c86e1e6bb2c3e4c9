"""Closed-form work and times of many points at once.

Work is counted by vectorised closed forms if there are some, else from a schedule. The estimate of time also sorts
tiles before they are replayed (:mod:`attnsim.api.playing`); here it works on columns instead of one schedule. It adds
up:

- the busier of the tensor and the vector units, slowed by the other one as in the replay;
- latencies of inner steps, as far as other warpgroups of the SM do not hide them, and latencies of blocks;
- rounding up to whole waves;
- at least the time of the L2 and of the HBM (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009, at
  fitted rates);
- launches.

:mod:`attnsim.studies.closed_answers` lists what the estimate leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api.asking import Question
from attnsim.api.playing import compute_time, peak_bytes, scheduled, too_large, vector_times
from attnsim.arrays import Floats, Ints
from attnsim.errors import InputError
from attnsim.models.closed_forms.columns import CostTable, ShapeTable, costs
from attnsim.models.hardware.clock_law import limit_felt, settled
from attnsim.models.hardware.units import ASYNC_SHARE, CONCURRENT, COUNTED, UNITS
from attnsim.models.schedule.gemm import library_counts
from attnsim.simulator.memory import KNEE, L2_KEPT
from attnsim.simulator.program import prepare
from attnsim.simulator.replay import LAUNCH_BOUND
from attnsim.studies.plans import PER_FLOP, Plan

ON_CHIP = ("flops", "useful", "lanes", "exps", "smem_bytes", "l2_bytes")
"""Columns of work whose energy depends on the clock."""

BOUNDS = (*UNITS, "launch")
"""Names of the units that a point may be bound by, as in the replay."""


Work = Mapping[str, Floats]
"""Work of each point for the GPU's units, a column for each of `COLUMNS`."""

COLUMNS = (
    *("flops", "useful", "smem_bytes", "exps", "lanes", "issues", "int32", "load_stores", "steps", "blocks"),
    *("l2_bytes", "hbm_read_bytes", "hbm_write_bytes", "peak_bytes", "pass_l2_bytes", "pass_hbm_bytes"),
)
"""Columns of work.

flops, useful, smem_bytes, exps, lanes
    Executed tensor FLOPs, useful FLOPs among them, operand bytes from shared memory, exponentials, FP32-lane
    instructions.
issues, int32, load_stores
    Counted instructions of the schedulers and their pipes; 0 for kernels without counted instructions.
steps, blocks
    Waits for an inner step, and thread blocks, of the kernel with most FLOPs.
l2_bytes, hbm_read_bytes, hbm_write_bytes, peak_bytes
    Bytes of the whole call.
pass_l2_bytes, pass_hbm_bytes
    The part of those bytes in kernels without products, which run before or after the others.
"""


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
    exp_s = work["exps"] * clk / gpu["sm.exp_rate"]
    fp32_s = work["lanes"] * clk / (gpu["sm.fp32_rate"] / 2)
    smem_s = work["smem_bytes"] * clk / gpu["sm.shared_memory_bandwidth"]
    tensor = np.maximum(work["flops"] * flop, smem_s)
    counted_s = {one.name: work[one.amount] * clk / gpu[one.figure] for one in COUNTED}
    vector, disturbs = vector_times((exp_s, fp32_s), list(counted_s.values()), work["issues"] > 0)
    slots, split = sms * of("blocks_per_sm"), of("schedule.splits.partial") > 0
    waves = work["blocks"] / slots
    step, block = (work[f"{one}s"] * of(f"{fitted}{one}_clks") * clk / slots for one in ("step", "block"))
    compute = compute_time(
        tensor, vector, disturbs, interference=of("stall"), own_path=of("own_path"), sms=sms, groups=of("groups"),
        step=step, block=block, waves=waves, even=split | (of("main.persistent") > 0) & (waves > 1),
    )  # fmt: skip
    l2_s = 1 / gpu["l2.bandwidth"]
    hbm_s = 1 / (gpu["hbm.bandwidth"] * gpu["hbm.achievable_fraction"])
    hbm_bytes = work["hbm_read_bytes"] + work["hbm_write_bytes"]
    copied = work["pass_l2_bytes"] * (1 + 1 / gpu["l2.write_share"]) / 2  # passes write as much as they read
    moving = np.maximum(copied * l2_s, work["pass_hbm_bytes"] * hbm_s)
    l2 = (work["l2_bytes"] - work["pass_l2_bytes"] + copied) * l2_s
    hbm, launches = hbm_bytes * hbm_s, np.zeros_like(clk)
    of_passes = _vector_of_passes(work, plans, which, gpu) * clk / sms
    computing = of_passes.sum(axis=0)  # nobody counted their instructions: a pipe's come after another's
    memory = np.maximum((work["l2_bytes"] - work["pass_l2_bytes"]) * l2_s, (hbm_bytes - work["pass_hbm_bytes"]) * hbm_s)
    if launch != "kernel":
        each = gpu["launch.graph" if launch == "graph" else "launch.stream"]
        launches = of("kernels") * each + of(fitted + "call_s")

    def time_at(share: Floats) -> tuple[Floats, Floats]:
        held = np.where(compute / share < memory, memory, 0.0) + np.where(computing / share < moving, moving, 0.0)
        return np.maximum(compute / share, memory) + np.maximum(computing / share, moving) + launches, held + launches

    full = time, _ = time_at(np.ones_like(clk))
    joules = {name: np.array([item.joules[name] for item in plans])[which] for name in (*ON_CHIP, "hbm_bytes")}
    chip_j = sum(joules[name] * work[name] for name in ON_CHIP) * full_hz / of("law.tensor_hz")
    memory_j, power_w = joules["hbm_bytes"] * hbm_bytes, gpu["power.limit"] - of("law.static_w")
    felt = np.where(gpu["clock.sustained"] > 0, 0.0, limit_felt(time, of("law.from_s"), of("law.to_s")))
    slow = settled(full, time_at, chip_j, memory_j, power_w, felt, of("law.least_hz") / full_hz)
    time, _ = time_at(slow)
    flop, exp_s, fp32_s, smem_s, compute = (one / slow for one in (flop, exp_s, fp32_s, smem_s, compute))
    counted_s = {name: seconds / slow / sms for name, seconds in counted_s.items()}
    if launch in ("stream", "host"):
        from_python = of("schedule.is_eager") if launch == "stream" else 1.0
        waited = np.maximum(of("schedule.host_s") * from_python - time, 0)
        launches, time = launches + waited, time + waited
    busy_s = {
        "tensor": work["flops"] * flop / sms,
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
    each = np.array([item.per_pass_byte for item in plans])[which].T
    return np.asarray(work["pass_l2_bytes"] * each / rates)


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


MOST_FLOPS = 2.0**59
"""Dense FLOPs above which 64-bit counts may overflow, see :func:`attnsim.models.closed_forms.columns.costs`."""
GEMM_TILE = 128
"""Rows and columns of a GEMM tile, as in :mod:`attnsim.models.closed_forms.columns`."""


def counted_work(
    rows: Ints,
    same: Ints,
    sizes: Mapping[str, Ints],
    plans: Sequence[Plan],
    which: Ints,
    gpu: Mapping[str, Floats],
    warm: bool,
) -> Work:
    """Return the work of some points, whose plans all have a vectorised closed form.

    Parameters
    ----------
    rows : ndarray of int
        The points, of those that the other columns hold.
    same : ndarray of int
        Group number; points that differ only in rates are in one group, whose work is counted once.
    sizes : mapping of str to ndarray
        From :func:`attnsim.studies.points.counts`.
    plans, which : sequence of Plan, ndarray of int
        Plans, and the index of each point's plan.
    warm : bool
        True if the L2 holds the data that the same call left there.
    """
    _, first, back = np.unique(same[rows], return_index=True, return_inverse=True)
    distinct = rows[first]
    counted, moves = _counted({name: column[distinct] for name, column in sizes.items()}, plans, which[distinct])
    capacity = gpu["l2.capacity"][rows] * np.where(gpu["l2.partitions"][rows] > 1, L2_KEPT, 1.0)
    through = _through_hbm({name: column[back] for name, column in moves.items()}, capacity, warm)
    return {name: values[back] for name, values in counted.items()} | through


def _counted(n: dict[str, Ints], plans: Sequence[Plan], which: Ints) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the rate-independent work of points, and the bytes of their tensors (:func:`_moves`)."""

    def of(values: Sequence[float]) -> Any:
        return np.array(values)[which]

    rows = of([item.rows for item in plans])
    left = of([-1 if item.w.mask.left is None else item.w.mask.left for item in plans])
    right = of([-1 if item.w.mask.right is None else item.w.mask.right for item in plans])
    # One query sees all keys whatever the causal side; where the heads of a group share a tile, they are its rows.
    single = (n["seq_q"] == 1) & of([item.packed for item in plans]) & (left < 0)
    table = ShapeTable(
        batch=n["batch"],
        heads_q=np.where(single, n["heads_kv"], n["heads_q"]),
        heads_kv=n["heads_kv"],
        seq_q=np.where(single, n["heads_q"] // n["heads_kv"], n["seq_q"]),
        seq_kv=n["seq_kv"],
        head_dim=n["head_dim"],
        head_dim_v=n["head_dim_v"],
        element_bytes=of([item.w.element_bytes for item in plans]),
        left=left,
        right=np.where(n["seq_q"] == 1, -1, right),
        rows=rows,
        keys=of([item.keys for item in plans]),
    )
    found = costs(table, partial(_gemms, plans, which))
    unfused = rows == 0
    flops, exps = found.flops_executed.astype(np.float64), found.exponentials.astype(np.float64)
    gemm_tiles = -(-table.seq_q // GEMM_TILE) * -(-table.seq_kv // GEMM_TILE)
    tiles = np.where(unfused, gemm_tiles, -(-table.seq_q // np.maximum(rows, 1)))
    counted = {
        "flops": flops,
        "useful": np.where(unfused, flops, np.minimum(flops, found.flops_useful)),
        "exps": exps,
        "lanes": np.where(unfused, 0.0, exps * of([item.lanes_per_exp for item in plans])),
        **{name: flops * of([item.per_flop[name] for item in plans]) for name in PER_FLOP},
        "blocks": (table.batch * table.heads_q * tiles).astype(np.float64),
        "l2_bytes": (found.load_bytes + found.store_bytes).astype(np.float64),
        "peak_bytes": found.peak_memory_bytes.astype(np.float64),
    }
    return counted, _moves(table, found, unfused)


def _gemms(
    plans: Sequence[Plan], which: Ints, rows: NDArray[np.bool_], batch: Ints, m: Ints, n: Ints, k: Ints, e: Ints
) -> Ints:
    """Count the products of unfused attention at some points, on the tiles that cuBLAS has for their GPUs."""
    found, own = np.zeros((3, len(m)), np.int64), which[rows]
    for number in np.unique(own):
        some, one = np.flatnonzero(own == number), plans[number]
        shape = m[some], n[some], k[some]
        found[:, some] = library_counts(one.gpu, one.w.dtype, batch[some], *shape, int(e[some[0]]))
    return found


def _moves(t: ShapeTable, found: CostTable, unfused: NDArray[np.bool_]) -> dict[str, Floats]:
    """Return the bytes of a call's tensors: inputs, outputs, and for unfused attention the bytes of its passes.

    Unfused attention copies Q, K and V, then passes over the scores: the mask and the softmax read S, the second GEMM
    reads P.
    """
    heads, kv, e = t.batch * t.heads_q, t.batch * t.heads_kv, t.element_bytes
    s = np.maximum(2, e)
    stores = found.store_bytes.astype(np.float64)
    inputs = ((heads * t.seq_q * t.head_dim + kv * t.seq_kv * (t.head_dim + t.head_dim_v)) * e).astype(np.float64)
    masked = ((t.left >= 0) | (t.right >= 0)).astype(np.float64)
    mask = masked * t.seq_q * t.seq_kv * s
    scores = np.where(unfused, heads * t.seq_q * t.seq_kv * s, 0).astype(np.float64)
    return {
        "outside": np.where(unfused, inputs + mask, found.compulsory_bytes - stores),
        "stores": stores,
        "copies": np.where(unfused, inputs, 0.0),
        "mask": np.where(unfused, mask, 0.0),
        "scores": scores,
        "score passes": 1 + masked,
    }


def _through_hbm(moves: Mapping[str, Floats], capacity: Floats, warm: bool) -> dict[str, Floats]:
    """Return the bytes through the HBM, and those of the passes of unfused attention.

    - Each input is read once.
    - A matrix that a later kernel re-reads goes to HBM as far as the L2 has evicted it since it was written.
    - With a warm cache, inputs and outputs do not go to HBM as far as the L2 still holds them.
    """
    outside, stores, copies, scores = (moves[name] for name in ("outside", "stores", "copies", "scores"))
    passes = scores * moves["score passes"]
    fresh = 1 - kept(outside + stores, capacity) if warm else np.ones_like(stores)
    lost = 1 - kept(2 * scores, capacity)
    return {
        "hbm_read_bytes": outside * fresh + (copies + passes + scores) * lost,
        "hbm_write_bytes": stores * fresh,
        "pass_l2_bytes": 2 * (copies + passes) + moves["mask"],
        "pass_hbm_bytes": (2 * copies + moves["mask"] + passes) * fresh + passes * lost,
    }


def scheduled_work(question: Question, item: Plan) -> dict[str, float]:
    """Return the work of one point, counted from its schedule.

    Raises
    ------
    InputError
        If the schedule does not fit the GPU.
    """
    w, gpu = question.w, question.gpu
    least = peak_bytes(item.record, w)
    if least > gpu.hbm.capacity_bytes:  # before a schedule is built that nobody can run
        raise InputError(too_large(least, gpu.hbm.capacity_bytes))
    schedule = scheduled(item.record, w, gpu, question.conditions)
    prepared = prepare(schedule, gpu, item.numbers, question.conditions.cache)
    moved = [use for one in prepared for use in one.rows]
    passes = [use for one in prepared if not one.kernel.total("flops") for use in one.rows]
    main = schedule.main
    counted = [one.kernel for one in prepared if one.kernel.counted]
    return {
        "flops": schedule.total("flops"),
        "useful": schedule.total("flops") * schedule.useful_share,
        "exps": schedule.total("exps"),
        "smem_bytes": schedule.total("smem_bytes"),
        "lanes": sum(one.kernel.total("fp32") for one in prepared),
        **{one.amount: sum(kernel.total(one.amount) for kernel in counted) for one in COUNTED},
        "steps": main.total("flops") * item.per_flop["steps"],
        "blocks": main.blocks,
        "l2_bytes": sum(use.l2_bytes for use in moved),
        "hbm_read_bytes": sum(use.hbm_bytes for use in moved if not use.written),
        "hbm_write_bytes": sum(use.hbm_bytes for use in moved if use.written),
        "peak_bytes": schedule.peak_memory_bytes,
        "pass_l2_bytes": sum(use.l2_bytes for use in passes),
        "pass_hbm_bytes": sum(use.hbm_bytes for use in passes),
    }
