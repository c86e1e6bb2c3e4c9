"""Kernels of ``kernels/cuda/linear_merge.cu`` as loop nests: states of ranges put together."""

from __future__ import annotations

from collections.abc import Sequence

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.own.linear_kernels import Uses, block_kernel
from attnsim.models.implementations.own.linear_tiles import REDUCE, SCAN, block_of, merge_blocks
from attnsim.models.implementations.own.resources import TURN, counts_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import together
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

RANGES = "ranges"
"""Part of a turn that goes with the ranges that are there."""
AHEAD = 8
"""Partial states whose loads are in flight together, `kAhead` of ``kernels/cuda/linear_merge.cu``."""


def _merge_kernel(w: Workload, gpu: Gpu, name: str, ranges: int, stores: Sequence[TileOp], written: Uses) -> Kernel:
    """Partial states of a head added up; a block has as many rows of S as its threads hold, and their z."""
    block = block_of(name, w.head_dim)
    d, heads = w.head_dim, w.batch * w.heads_kv
    rows = 4 * block.threads // d
    label = block.label(w.dtype)
    turn, there, rest = (counts_of(label, gpu, part) for part in (TURN, RANGES, ""))
    adding = TileOp("vector", "S", fp32=rows * (d + 1) * ranges)
    if turn and there and rest:  # ranges that are not there are added under predicates
        of_turns = turn.work("S", rows * d * -(-ranges // AHEAD))
        of_ranges = there.work("S", rows * d * ranges)
        adding = together("S", of_turns, of_ranges, rest.work("S", rows * d))
    ops = (
        TileOp("load", "State partial", bytes=4 * rows * d * ranges),
        TileOp("load", "Normalizer partial", bytes=4 * rows * ranges),
        TileOp("wait", "State partial"),
        TileOp("wait", "Normalizer partial"),
        adding,
        TileOp("delay", "step"),
        *stores,
    )
    uses = (
        TensorUse("State partial", 4 * d * d * ranges, heads),
        TensorUse("Normalizer partial", 4 * d * ranges, heads),
        *written,
    )
    launch = Launch.alike(merge_blocks(w))
    return block_kernel(w, gpu, block, [(Segment("rows", ops), 1)], launch, uses, "rows")


def reduce_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """All ranges: S / z in 16 bits, and z."""
    d, heads = w.head_dim, w.batch * w.heads_kv
    rows = 4 * block_of(REDUCE, d).threads // d
    stores = (TileOp("store", "State", bytes=2 * rows * d), TileOp("store", "Normalizer", bytes=4 * rows))
    written = (
        TensorUse("State", 2 * d * d, heads, written=True),
        TensorUse("Normalizer", 4 * d, heads, written=True),
    )
    return _merge_kernel(w, gpu, REDUCE, ranges, stores, written)


def scan_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Sums up to each range, in place; the first is one already."""
    d, heads = w.head_dim, w.batch * w.heads_kv
    rows = 4 * block_of(SCAN, d).threads // d
    sizes = {"State partial": 4 * d * (ranges - 1), "Normalizer partial": 4 * (ranges - 1)}
    stores = tuple(TileOp("store", name, bytes=rows * size) for name, size in sizes.items())
    written = tuple(TensorUse(name, d * size, heads, written=True) for name, size in sizes.items())
    return _merge_kernel(w, gpu, SCAN, ranges, stores, written)
