"""Schedules of ``kernels/cuda/linear_*.cu``: linear attention with phi = elu + 1 (Katharopoulos et al., 2006.16236).

* Without a mask: `linear_state` sums ranges of the keys, `linear_reduce` combines them, `linear_output` multiplies
  every query with the one state.
* Causal: `linear_causal` walks chunks of a range with the state in registers. If there are several ranges,
  `linear_state` and `linear_scan` compute the states that they begin with (the chunked form, as in Yang et al., arXiv
  2312.06635, section 4).
* Decode: `linear_decode` updates the state token by token.

Work is linear in the sequence length; in decoding it is independent of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.linear_tiles import (
    CAUSAL,
    CHUNK,
    DECODE,
    KEYS,
    NAME,
    OUTPUT,
    PARTS,
    REDUCE,
    ROWS,
    SCAN,
    SLAB,
    STATE,
    WARPS,
    Block,
    LinearTile,
    block_of,
    causal_ranges,
    check_takes,
    is_causal,
    lengths,
    row_ranges,
    state_ranges,
)
from attnsim.models.implementations.own.resources import FLYING, LOADING, TURN, counts_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.instructions import StepCounts, product, together
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.schedule import Kernel, Schedule

NOTES = ("weights are phi(q) phi(k) with phi = elu + 1, not softmax's: another function of the same inputs",)
PHI_INSTRUCTIONS = 6
"""FP32-lane instructions per element of phi, without its exponential: unpack, scale, add, compare, select, pack."""
WEIGHT_INSTRUCTIONS = 4
"""Instructions per weight of a feature: times z, add to the sum, scale, pack."""
FRAGMENT_BYTES = 512
"""Bytes of a 16 x 16 fragment of a 16-bit operand, as a warp reads it from shared memory."""
DIAGONAL_BLOCKS = WARPS * (WARPS + 1) // 2
"""Blocks of 16 x 16 in a chunk on or below the diagonal."""
RANGES = "ranges"
"""Part of an iteration that is proportional to its ranges."""
STORED = "+stores"
"""Part after the last stores; for `linear_reduce` after the first of its two."""
AHEAD = 8
"""Partial states whose loads are in flight together, `kAhead` of ``kernels/cuda/linear_merge.cu``."""

PER_RANGE = ("", LOADING, FLYING, STORED)
"""Parts that are proportional to the ranges of an iteration."""


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The kernels of a workload as the operations launch them.

    Raises
    ------
    InputError
        If the kernels do not support it, or do not fit.
    """
    check_takes(w)
    kernels: tuple[Kernel, ...]
    tile, scratch = LinearTile(w.head_dim), 0
    if w.passes == "decode":
        kernels = (decode_kernel(w, gpu),)
    elif is_causal(w):
        tile = LinearTile(w.head_dim, causal_ranges(w, gpu))
        before = [state_kernel(w, gpu, tile.ranges, tile.ranges - 1)] if tile.ranges > 1 else []
        before += [scan_kernel(w, gpu, tile.ranges - 1)] if tile.ranges > 2 else []
        kernels = (*before, causal_kernel(w, gpu, tile.ranges))
        scratch = (tile.ranges - 1) * _state_bytes(w)
    else:
        tile = LinearTile(w.head_dim, state_ranges(w, gpu), row_ranges(w, gpu))
        before = [state_kernel(w, gpu, tile.ranges, tile.ranges), reduce_kernel(w, gpu, tile.ranges)]
        kernels = (*before, output_kernel(w, gpu, tile.row_ranges))
        scratch = tile.ranges * _state_bytes(w) + w.batch * w.heads_kv * w.head_dim * (2 * w.head_dim_v + 4)
    notes = (*NOTES, _state_note(w)) if w.passes == "decode" else NOTES
    return Schedule("linear", NAME, kernels, tile, peak_memory_bytes(w) + scratch, notes)


def peak_memory_bytes(w: Workload) -> int:
    """Peak memory: inputs and outputs; in decoding the state and its normaliser in place of the earlier keys."""
    keys = w.seq_q if w.passes == "decode" else w.seq_kv
    rows = w.batch * (w.heads_q * w.seq_q + w.heads_kv * keys)
    state = _state_bytes(w) if w.passes == "decode" else 0
    return rows * (w.head_dim * w.element_bytes + w.head_dim_v * w.output_bytes) + state


def _state_bytes(w: Workload) -> int:
    """Bytes of S and z of every key head, fp32."""
    return w.batch * w.heads_kv * w.head_dim * (w.head_dim_v + 1) * 4


def _state_note(w: Workload) -> str:
    whole, head = _state_bytes(w), _state_bytes(w) // (w.batch * w.heads_kv)
    return f"state of {whole:,} bytes ({head:,} a key head), read and written at each step, whatever the length"


def _kernel(w: Workload, gpu: Gpu, block: Block, *declaration: Any, step: str) -> Kernel:
    """Kernel of a block; axes, grid, tensors, facts and body are those of :func:`declared`."""
    dtype = w.dtype if block.kernel in (STATE, OUTPUT, CAUSAL) else "fp32"
    return declared(block.kernel, *declaration, step=step, **block.resources(block.label(w.dtype), gpu, dtype))


def _ranges(tiles: Axis, ranges: int, blocks: int) -> dict[str, Ints]:
    """Tiles of the first `blocks` of `ranges` ranges, and elements missing from the last one."""
    missing = np.where(np.arange(ranges) == ranges - 1, tiles.short, 0)
    return {"steps": lengths(tiles.tiles, ranges)[:blocks], "missing": missing[:blocks]}


def state_kernel(w: Workload, gpu: Gpu, ranges: int, blocks: int) -> Kernel:
    """Kernel for the first `blocks` of `ranges` ranges of each key head, with fp32 partial states."""
    block = block_of(STATE, w.head_dim)
    d, row, stages = w.head_dim, w.head_dim * w.element_bytes, dict(block.shape)["STAGES"]
    facts = _ranges(Axis(w.seq_kv, KEYS), ranges, blocks)
    summed = min(w.seq_kv, int(facts["steps"].sum()) * KEYS)
    axes = {"b": Axis(w.batch), "h": Axis(w.heads_kv), "r": Axis(blocks, cuts="j"), "j": Axis(summed, KEYS)}
    k, v = Tensor("K", "b h j", row), Tensor("V", "b h j", row)
    state = Tensor("State partial", "b h r", 4 * d * d, written=True)
    sums = Tensor("Normalizer partial", "b h r", 4 * d, written=True)
    counts = counts_of(block.label(w.dtype), gpu)
    multiply = product(_state_product(d)) if counts else _state_product(d)

    def body(steps: Ints, missing: Ints) -> Nest:
        filled, whole, short = np.minimum(steps, stages - 1), steps - (missing > 0), int(missing.max())

        def loads(whole: bool) -> tuple[TileOp, TileOp]:
            keys = KEYS - short * (not whole)
            return k.load(keys), v.load(keys)

        def turn(load_next: bool, next_whole: bool, missing: int = 0) -> Iterator[TileOp]:
            yield from (k.wait(), v.wait(), STEP, phi((KEYS - missing) * d, "phi(K)", counts))
            yield from loads(next_whole) if load_next else ()
            yield multiply

        return [
            *once("prologue", [BLOCK]),
            *loop("fill", filled, loads, whole=whole),
            *loop("step", steps - 1, turn, load_next=steps - filled, next_whole=whole - filled),
            *by_size("last step", missing, lambda n: turn(False, False, n)),
            *once("epilogue", (BLOCK, state.store(), sums.store())),
        ]

    return _kernel(w, gpu, block, axes, "b h r", (k, v, state, sums), facts, body, step="key tile")


def output_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Kernel over ranges of row tiles; each warp multiplies its own slabs with the state in shared memory."""
    block = block_of(OUTPUT, w.head_dim)
    d, stages = w.head_dim, dict(block.shape)["STAGES"]
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group),
        "r": Axis(ranges, cuts="i"),
        "i": Axis(w.seq_q, ROWS),
    }
    state, sums = Tensor("State", "b h", 2 * d * d), Tensor("Normalizer", "b h", 4 * d)
    q = Tensor("Q", "b h g i", d * w.element_bytes)
    o = Tensor("O", "b h g i", d * w.output_bytes, written=True)
    _, weighed, rounded, following = (counts_of(block.label(w.dtype), gpu, part) for part in PARTS)

    def row_tile(rows: int, last: bool, next_rows: int = 0) -> Iterator[TileOp]:
        slabs = -(-rows // SLAB)
        elements, fragments = slabs * SLAB * d, slabs * (d // 16) * (SLAB // 16 + d // 16)
        multiply = TileOp("mma", "O", flops=2 * elements * d, smem_bytes=fragments * FRAGMENT_BYTES)
        yield from (q.wait(), STEP, features(elements, "weights", PHI_INSTRUCTIONS + WEIGHT_INSTRUCTIONS, weighed))
        yield from (
            product(multiply) if weighed else multiply,
            _rounded(elements, rounded),
            *[BLOCK] * last,
            o.store(rows),
        )
        if next_rows and following:
            yield following.work("next Q", elements)
        if next_rows:
            yield q.load(next_rows)

    def body(steps: Ints, missing: Ints) -> Nest:
        filled, whole, short = np.minimum(steps, stages), steps - (missing > 0), int(missing.max())

        def turn(load_next: bool, next_whole: bool) -> Iterator[TileOp]:
            return row_tile(ROWS, False, load_next * (ROWS - short * (not next_whole)))

        return [
            *once("prologue", (BLOCK, state.load())),
            *loop("fill", filled, lambda whole: [q.load(ROWS - short * (not whole))], whole=whole),
            *once("wait S", (sums.load(), sums.wait(), state.wait())),
            *loop("step", steps - 1, turn, load_next=steps - filled, next_whole=whole - filled),
            *by_size("last step", missing, lambda n: row_tile(ROWS - n, True)),
        ]

    facts = _ranges(axes["i"], ranges, ranges)
    return _kernel(w, gpu, block, axes, "b h g r", (state, sums, q, o), facts, body, step="row tile")


def causal_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Kernel over ranges of chunks in order; all but the first of a head begin with the state before them."""
    block = block_of(CAUSAL, w.head_dim)
    d, row = w.head_dim, w.head_dim * w.element_bytes
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group),
        "r": Axis(ranges, cuts="i before"),
        "i": Axis(w.seq_q, CHUNK),
        "before": Axis(ranges - 1),
    }
    q, k, v = Tensor("Q", "b h g i", row), Tensor("K", "b h i", row), Tensor("V", "b h i", row)
    state, sums = Tensor("State partial", "b h before", 4 * d * d), Tensor("Normalizer partial", "b h before", 4 * d)
    o = Tensor("O", "b h g i", d * w.output_bytes, written=True)
    counted, weights, rounded, updated = (counts_of(block.label(w.dtype), gpu, part) for part in PARTS)
    products = *_chunk_products(d, weights), _rounded(CHUNK * d, rounded)
    averages = updated.work("S / z", d * d) if updated else TileOp("vector", "S / z", fp32=2 * d * d)
    update = product(_state_product(d)) if updated else _state_product(d)

    def outputs(rows: int) -> Iterator[TileOp]:
        yield from (q.wait(), k.wait(), v.wait(), STEP, phi(2 * rows * d, "phi(Q), phi(K)", counted), *products)

    def turn(missing: int) -> Iterator[TileOp]:
        rows = CHUNK - missing
        yield from (*outputs(CHUNK), o.store(CHUNK), q.load(rows), update, k.load(rows), v.load(rows), averages)

    def body(steps: Ints, missing: Ints, later: Ints) -> Nest:
        only, short, whole = missing * (steps == 1), int(missing.max()), steps - (missing > 0)
        return [
            *once("prologue", [BLOCK]),
            *by_size("first chunk", only, lambda n: (x.load(CHUNK - n) for x in (q, k, v))),
            *once("state before", (sums.load(), sums.wait(), state.load(), state.wait()), later),
            *loop("chunk", steps - 1, lambda next_whole: turn(short * (not next_whole)), next_whole=whole - 1),
            *by_size("last chunk", missing, lambda n: (*outputs(CHUNK - n), BLOCK, o.store(CHUNK - n))),
        ]

    facts = _ranges(axes["i"], ranges, ranges) | {"later": (np.arange(ranges) > 0).astype(np.int64)}
    earlier = (state, sums) if ranges > 1 else ()
    return _kernel(w, gpu, block, axes, "b h g r", (q, k, v, *earlier, o), facts, body, step="chunk")


def features(elements: int, name: str, each: int, counts: StepCounts | None = None) -> TileOp:
    """Vector work on `elements` elements of phi, `each` instructions per element if not counted."""
    if counts:
        return counts.work(name, elements, elements)
    return TileOp("vector", name, exps=elements, fp32=each * elements)


def phi(elements: int, name: str, counts: StepCounts | None = None) -> TileOp:
    """phi of elements that are read from shared memory and written there."""
    return features(elements, name, PHI_INSTRUCTIONS, counts)._replace(smem_bytes=4 * elements)


def _state_product(d: int) -> TileOp:
    """S += phi(K)^T V for `KEYS` keys by warps in a 2 x 2 grid, and z by a column of ones, padded to eight."""
    fragments = KEYS // 16 * WARPS * d // 16
    return TileOp("mma", "S", flops=2 * KEYS * d * (d + 8), smem_bytes=fragments * FRAGMENT_BYTES)


def _chunk_products(d: int, counts: StepCounts | None) -> tuple[TileOp, ...]:
    """A = phi(Q) phi(K)^T up to the diagonal, the weights, and O = W (S / z) + P V."""
    deep, scores = d // 16, DIAGONAL_BLOCKS * 16 * 16
    estimated = TileOp("vector", "weights", fp32=WEIGHT_INSTRUCTIONS * CHUNK * d + 3 * scores)
    weights = counts.work("weights", CHUNK * d) if counts else estimated
    output_fragments = WARPS * deep * (1 + deep) + DIAGONAL_BLOCKS * deep
    ops = (
        TileOp("mma", "A", flops=2 * scores * d, smem_bytes=deep * (WARPS + DIAGONAL_BLOCKS) * FRAGMENT_BYTES),
        weights,
        TileOp("mma", "O", flops=2 * (CHUNK * d + scores) * d, smem_bytes=output_fragments * FRAGMENT_BYTES),
    )
    return tuple(product(op) if counts and op.flops else op for op in ops)


def _rounded(elements: int, counts: StepCounts | None) -> TileOp:
    """`elements` elements of O rounded to 16 bits in Q's buffer and read again."""
    worked = counts.work("O", elements) if counts else TileOp("vector", "O")
    return worked._replace(smem_bytes=4 * elements)


def decode_kernel(w: Workload, gpu: Gpu) -> Kernel:
    """A block reads the state of a key head, processes the new tokens for all its query heads, and writes it."""
    block = block_of(DECODE, w.head_dim)
    block.slots(gpu)  # raises if the GPU is too small
    d, row = w.head_dim, w.head_dim * w.element_bytes
    axes = {"b": Axis(w.batch), "h": Axis(w.heads_kv), "g": Axis(w.group), "t": Axis(w.seq_q)}
    sizes = {"State": 4 * d * d, "Normalizer": 4 * d}
    before = [Tensor(name, "b h", size, in_place=True) for name, size in sizes.items()]
    after = [Tensor(name, "b h", size, written=True) for name, size in sizes.items()]
    k, v, q = Tensor("K", "b h t", row), Tensor("V", "b h t", row), Tensor("Q", "b h t g", row)
    o = Tensor("O", "b h t g", d * w.output_bytes, written=True)
    token = (
        k.load(),
        v.load(),
        q.load(w.group),
        k.wait(),
        v.wait(),
        q.wait(),
        STEP,
        phi(d * (1 + w.group), "phi(K), phi(Q)"),
        TileOp("mma", "S", flops=2 * d * d * (1 + w.group)),
        o.store(w.group),
    )
    nest = [
        *once("read the state", (BLOCK, *(one.load() for one in before))),
        *once("wait", (one.wait() for one in before)),
        *loop("token", w.seq_q, lambda: token),
        *once("write the state", (one.store() for one in after)),
    ]
    return _kernel(w, gpu, block, axes, "b h", (*before, k, v, q, *after, o), {}, lambda: nest, step="token")


Stores = Callable[[int, bool, bool, tuple[TileOp, ...]], tuple[TileOp, ...]]
"""Function of (ranges that an iteration adds, whether it is the first, whether the last, subsequent work) to its
stores."""


def _merge_axes(w: Workload, block: Block, ranges: int) -> dict[str, Axis]:
    """Axes of a merge; a block has as many rows x of S as its threads hold."""
    rows = Axis(w.head_dim, 4 * block.threads // w.head_dim)
    return {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "x": rows,
        "r": Axis(ranges, AHEAD),
        "later": Axis(ranges - 1),
    }


def _merge_kernel(
    w: Workload, gpu: Gpu, block: Block, axes: Mapping[str, Axis], stores: Stores, written: tuple[Tensor, ...]
) -> Kernel:
    """Kernel that adds the partial states of a head, and their z.

    Addresses come before the loads of up to `AHEAD` ranges, which are issued and waited for together. From one wait to
    the next, an iteration of the loop adds these and issues the loads of the following ranges.
    """
    d, rows, turns, short = w.head_dim, axes["x"].tile, axes["r"].tiles, axes["r"].short
    partials = Tensor("State partial", "b h r x", 4 * d), Tensor("Normalizer partial", "b h r x", 4)
    label = block.label(w.dtype)
    counts = {part: counts_of(label, gpu, part) for part in (TURN, *PER_RANGE, *(RANGES + one for one in PER_RANGE))}

    def work(part: str, **ranges: int) -> tuple[TileOp, ...]:
        """Work of a part per group of its ranges."""
        many = {part: 1, **{RANGES + one: n - 1 for one, n in ranges.items()}}
        ops = [one.work("S", rows * d * n) for name, n in many.items() if (one := counts[name])]
        return (together("S", *ops),) if ops else ()

    def loads(here: int) -> Iterator[TileOp]:
        yield from (one.load(here * rows) for one in partials)
        yield from work(FLYING, **{FLYING: here})

    def turn(added: int, loaded: int, first: bool) -> Iterator[TileOp]:
        ranges = {"": added, LOADING: loaded} if loaded else {"": added}
        yield from (one.wait() for one in partials)
        yield from work(TURN if loaded else "", **ranges) or [TileOp("vector", "S", fp32=rows * (d + 1) * added)]
        yield from stores(added, first, not loaded, () if loaded else work(STORED, **{STORED: added}))
        yield from loads(loaded) if loaded else ()

    def added(first: bool, next_whole: bool) -> Iterator[TileOp]:
        return turn(AHEAD, AHEAD - short * (not next_whole), first)

    ahead = AHEAD - short * (turns == 1)
    nest = [
        *once("first ranges", (*work(LOADING, **{LOADING: ahead}), *loads(ahead))),
        *loop(f"{AHEAD} ranges", turns - 1, added, first=1, next_whole=turns - 1 - (short > 0)),
        *once("last ranges", turn(AHEAD - short, 0, turns == 1)),
    ]
    return _kernel(w, gpu, block, axes, "b h x", (*partials, *written), {}, lambda: nest, step="ranges")


def reduce_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Sum of all ranges: S / z in 16 bits, and z."""
    block = block_of(REDUCE, w.head_dim)
    axes = _merge_axes(w, block, ranges)
    state = Tensor("State", "b h x", 2 * w.head_dim, written=True)
    sums = Tensor("Normalizer", "b h x", 4, written=True)

    def stores(added: int, first: bool, last: bool, behind: tuple[TileOp, ...]) -> tuple[TileOp, ...]:
        rows = axes["x"].tile
        return (STEP, sums.store(rows), *behind, state.store(rows)) if last else ()

    return _merge_kernel(w, gpu, block, axes, stores, (state, sums))


def scan_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Prefix sums over ranges, in place; the first one is complete already."""
    block = block_of(SCAN, w.head_dim)
    axes = _merge_axes(w, block, ranges)
    state = Tensor("State partial", "b h later x", 4 * w.head_dim, written=True)
    sums = Tensor("Normalizer partial", "b h later x", 4, written=True)

    def stores(added: int, first: bool, last: bool, behind: tuple[TileOp, ...]) -> tuple[TileOp, ...]:
        kept = axes["x"].tile * (added - first)
        return *[STEP] * first, state.store(kept), sums.store(kept), *behind

    return _merge_kernel(w, gpu, block, axes, stores, (state, sums))


RECORD = record(NAME, build, peak_bytes=peak_memory_bytes)
