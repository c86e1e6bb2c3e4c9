"""Kernels of ``kernels/cuda/linear_merge.cu`` as loop nests: states of ranges put together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.own.linear_kernels import Uses, block_kernel
from attnsim.models.implementations.own.linear_tiles import REDUCE, SCAN, block_of, merge_blocks
from attnsim.models.implementations.own.loading import FLYING, LOADING
from attnsim.models.implementations.own.resources import TURN, counts_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import together
from attnsim.models.schedule.nest import Nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

RANGES = "ranges"
"""Part of a turn that goes with the ranges that are there."""
STORED = "+stores"
"""Part behind the last stores; of `linear_reduce` behind the first of its two."""
AHEAD = 8
"""Partial states whose loads are in flight together, `kAhead` of ``kernels/cuda/linear_merge.cu``."""

BESIDE = ("", LOADING, FLYING, STORED)
"""Parts that grow with the ranges that a turn has."""

Stores = Callable[[int, bool, bool, tuple[TileOp, ...]], tuple[TileOp, ...]]
"""What a turn stores: of how many ranges it adds, whether it is the first, and the last one; and the work behind."""


def _merge_kernel(w: Workload, gpu: Gpu, name: str, ranges: int, stores: Stores, written: Uses) -> Kernel:
    """Partial states of a head added up; a block has as many rows of S as its threads hold, and their z.

    Addresses come before the loads of up to `AHEAD` ranges, which begin and are waited for together. What a turn of the
    loop does from that wait to the next adds these and begins the loads of the following ones.
    """
    block = block_of(name, w.head_dim)
    d, heads = w.head_dim, w.batch * w.heads_kv
    rows = 4 * block.threads // d
    label = block.label(w.dtype)
    counts = {part: counts_of(label, gpu, part) for part in (TURN, *BESIDE, *(RANGES + one for one in BESIDE))}

    def work(part: str, **ranges: int) -> tuple[TileOp, ...]:
        """What a part does with the ranges that it goes with, one of each counted with it."""
        many = {part: 1, **{RANGES + one: n - 1 for one, n in ranges.items()}}
        ops = [one.work("S", rows * d * n) for name, n in many.items() if (one := counts[name])]
        return (together("S", *ops),) if ops else ()

    def loads(here: int) -> tuple[TileOp, ...]:
        sizes = {"State partial": 4 * rows * d, "Normalizer partial": 4 * rows}
        started = tuple(TileOp("load", tensor, bytes=here * size) for tensor, size in sizes.items())
        return *started, *work(FLYING, **{FLYING: here})

    def turn(added: int, loaded: int, first: bool) -> Segment:
        ranges = {"": added, LOADING: loaded} if loaded else {"": added}
        worked = work(TURN if loaded else "", **ranges) or (TileOp("vector", "S", fp32=rows * (d + 1) * added),)
        behind = () if loaded else work(STORED, **{STORED: added})
        waits = TileOp("wait", "State partial"), TileOp("wait", "Normalizer partial")
        ops = *waits, *worked, *stores(added, first, not loaded, behind), *(loads(loaded) if loaded else ())
        return Segment(f"{added} ranges added, {loaded} loaded" if loaded else f"{added} ranges added", ops)

    turns = [min(AHEAD, ranges - first) for first in range(0, ranges, AHEAD)]
    alike = groupby((added, loaded, number == 0) for number, (added, loaded) in enumerate(pairwise([*turns, 0])))
    nest: Nest = [(Segment("first ranges", (*work(LOADING, **{LOADING: turns[0]}), *loads(turns[0]))), 1)]
    nest += [(turn(*one), len([*same])) for one, same in alike]
    uses = (
        TensorUse("State partial", 4 * d * d * ranges, heads),
        TensorUse("Normalizer partial", 4 * d * ranges, heads),
        *written,
    )
    return block_kernel(w, gpu, block, nest, Launch.alike(merge_blocks(w)), uses, "ranges")


def reduce_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """All ranges: S / z in 16 bits, and z."""
    d, heads = w.head_dim, w.batch * w.heads_kv
    rows = 4 * block_of(REDUCE, d).threads // d

    def stores(added: int, first: bool, last: bool, behind: tuple[TileOp, ...]) -> tuple[TileOp, ...]:
        sums, state = TileOp("store", "Normalizer", bytes=4 * rows), TileOp("store", "State", bytes=2 * rows * d)
        return (TileOp("delay", "step"), sums, *behind, state) if last else ()

    written = (
        TensorUse("State", 2 * d * d, heads, written=True),
        TensorUse("Normalizer", 4 * d, heads, written=True),
    )
    return _merge_kernel(w, gpu, REDUCE, ranges, stores, written)


def scan_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Sums up to each range, in place; the first is one already."""
    d, heads = w.head_dim, w.batch * w.heads_kv
    rows = 4 * block_of(SCAN, d).threads // d
    sizes = {"State partial": 4 * d, "Normalizer partial": 4}

    def stores(added: int, first: bool, last: bool, behind: tuple[TileOp, ...]) -> tuple[TileOp, ...]:
        kept = added - first
        out = *(TileOp("store", name, bytes=rows * kept * size) for name, size in sizes.items()), *behind
        return (TileOp("delay", "step"), *out) if first else out

    written = tuple(TensorUse(name, d * (ranges - 1) * size, heads, written=True) for name, size in sizes.items())
    return _merge_kernel(w, gpu, SCAN, ranges, stores, written)
