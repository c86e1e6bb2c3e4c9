"""Work of many points: vectorised closed forms if there are some, else counts of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api.asking import Question
from attnsim.api.building import peak_bytes, scheduled
from attnsim.api.playing import too_large
from attnsim.arrays import Floats, Ints
from attnsim.errors import InputError
from attnsim.models.closed_forms.columns import CostTable, ShapeTable, costs
from attnsim.models.hardware.units import COUNTED
from attnsim.models.schedule.gemm import library_counts
from attnsim.simulator.memory import L2_KEPT
from attnsim.simulator.program import prepare
from attnsim.studies.closed_form import Work, kept
from attnsim.studies.plans import Plan

MOST_FLOPS = 2.0**59
"""Dense FLOPs above which 64-bit counts may overflow, see :func:`attnsim.models.closed_forms.columns.costs`."""
GEMM_TILE = 128
"""Rows and columns of a GEMM tile, as in :mod:`attnsim.models.closed_forms.columns`."""


def fill(
    work: Work,
    rows: Ints,
    same: Ints,
    sizes: Mapping[str, Ints],
    plans: Sequence[Plan],
    which: Ints,
    gpu: Mapping[str, Floats],
    warm: bool,
) -> None:
    """Fill in the work of some points, whose plans all have a vectorised closed form.

    Parameters
    ----------
    work : Work
        Columns over all points.
    rows : ndarray of int
        The points to fill in.
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
    for name, values in counted.items():
        getattr(work, name)[rows] = values[back]
    for name, values in _through_hbm({name: column[back] for name, column in moves.items()}, capacity, warm).items():
        getattr(work, name)[rows] = values


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
        "smem_bytes": flops * of([item.smem_per_flop for item in plans]),
        "lanes": np.where(unfused, 0.0, exps * of([item.lanes_per_exp for item in plans])),
        **{one.amount: flops * of([item.counted_per_flop[one.amount] for item in plans]) for one in COUNTED},
        "steps": flops * of([item.steps_per_flop for item in plans]),
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


def fill_row(work: Work, row: int, question: Question, item: Plan) -> None:
    """Fill in the work of one point from its schedule.

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
    columns = {
        "flops": schedule.total("flops"),
        "useful": schedule.total("flops") * schedule.useful_share,
        "exps": schedule.total("exps"),
        "smem_bytes": schedule.total("smem_bytes"),
        "lanes": sum(one.kernel.total("fp32") for one in prepared),
        **{one.amount: sum(kernel.total(one.amount) for kernel in counted) for one in COUNTED},
        "steps": main.total("flops") * item.steps_per_flop,
        "blocks": main.blocks,
        "l2_bytes": sum(use.l2_bytes for use in moved),
        "hbm_read_bytes": sum(use.hbm_bytes for use in moved if not use.written),
        "hbm_write_bytes": sum(use.hbm_bytes for use in moved if use.written),
        "peak_bytes": schedule.peak_memory_bytes,
        "pass_l2_bytes": sum(use.l2_bytes for use in passes),
        "pass_hbm_bytes": sum(use.hbm_bytes for use in passes),
    }
    for name, value in columns.items():
        getattr(work, name)[row] = value
