"""Kernels of ``kernels/cuda/linear_*.cu`` as loop nests: states of ranges, outputs, chunks, tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.own.linear_tiles import (
    CAUSAL,
    CHUNK,
    DECODE,
    KEYS,
    OUTPUT,
    PARTS,
    ROWS,
    SLAB,
    STATE,
    WARPS,
    Block,
    block_of,
    lengths,
)
from attnsim.models.implementations.own.linear_work import PHI_INSTRUCTIONS, WEIGHT_INSTRUCTIONS, features, phi
from attnsim.models.implementations.own.resources import counts_of, registers_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts, product
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

FRAGMENT_BYTES = 512
"""A 16 x 16 fragment of a 16-bit operand, as a warp reads it from shared memory."""
DIAGONAL_BLOCKS = WARPS * (WARPS + 1) // 2
"""Blocks of 16 x 16 in a chunk that are not above the diagonal."""

Uses = Sequence[TensorUse]


def block_kernel(w: Workload, gpu: Gpu, block: Block, nest: Nest, launch: Launch, uses: Uses, step: str) -> Kernel:
    """A kernel of linear attention from its loop nest."""
    segments, repeats = loop_nest(nest)
    tensor = block.kernel in (STATE, OUTPUT, CAUSAL)
    return Kernel(
        name=block.kernel,
        threads=block.threads,
        registers_per_thread=registers_of(block.label(w.dtype), gpu, block.threads),
        segments=segments,
        repeats=repeats,
        launches=(launch,),
        uses=tuple(uses),
        path="mma_sync" if tensor else "simt",
        buffers=block.buffers,
        dtype=w.dtype if tensor else "fp32",
        step=step,
    )


def _classes(length: int, tile: int, ranges: int, blocks: int) -> tuple[Ints, Ints, Ints, int]:
    """Of the first `blocks` of `ranges` ranges: tiles, whether the last is shorter, and classes; and its length."""
    tiles = -(-length // tile)
    last = length - (tiles - 1) * tile
    shorter = (np.arange(ranges) == ranges - 1) & (last < tile)
    (steps, ragged), inverse = classes(lengths(tiles, ranges)[:blocks], shorter[:blocks])
    return steps, ragged, inverse, last


def _state_product(d: int) -> TileOp:
    """S += phi(K)^T V for `KEYS` keys by warps in a 2 x 2 grid, and z by a column of ones, padded to eight."""
    fragments = KEYS // 16 * WARPS * d // 16
    return TileOp("mma", "S", flops=2 * KEYS * d * (d + 8), smem_bytes=fragments * FRAGMENT_BYTES)


def state_kernel(w: Workload, gpu: Gpu, ranges: int, blocks: int) -> Kernel:
    """`blocks` of `ranges` ranges of each key head, fp32 partial states."""
    block = block_of(STATE, w.head_dim)
    d, row = w.head_dim, w.head_dim * w.element_bytes
    stages = dict(block.shape)["STAGES"]
    steps, ragged, inverse, last = _classes(w.seq_kv, KEYS, ranges, blocks)
    filled = np.minimum(steps, stages - 1)
    refills = steps - filled
    ragged_fill, ragged_refill = ragged * (refills == 0), ragged * (refills > 0)

    def copies(keys: int) -> tuple[TileOp, TileOp]:
        return TileOp("load", "K", bytes=keys * row), TileOp("load", "V", bytes=keys * row)

    counts = counts_of(block.label(w.dtype), gpu)
    multiply = product(_state_product(d)) if counts else _state_product(d)

    def step(name: str, keys: int, ahead: tuple[TileOp, ...]) -> Segment:
        worked = phi(keys * d, "phi(K)", counts)
        waits = TileOp("wait", "K"), TileOp("wait", "V")
        return Segment(name, (*waits, TileOp("delay", "step"), worked, *ahead, multiply))

    nest: Nest = [
        (Segment("prologue", (TileOp("delay", "block"),)), 1),
        (Segment("fill", copies(KEYS)), filled - ragged_fill),
        (Segment("fill (last keys)", copies(last)), ragged_fill),
        (step("step", KEYS, copies(KEYS)), refills - ragged_refill),
        (step("step, loads last keys", KEYS, copies(last)), ragged_refill),
        (step("step, no load", KEYS, ()), filled - ragged),
        (step("step (last keys)", last, ()), ragged),
        (
            Segment(
                "epilogue",
                (
                    TileOp("delay", "block"),
                    TileOp("store", "State partial", bytes=4 * d * d),
                    TileOp("store", "Normalizer partial", bytes=4 * d),
                ),
            ),
            1,
        ),
    ]
    heads = w.batch * w.heads_kv
    summed = min(w.seq_kv, int(lengths(-(-w.seq_kv // KEYS), ranges)[:blocks].sum()) * KEYS)
    uses = (
        TensorUse("K", summed * row, heads),
        TensorUse("V", summed * row, heads),
        TensorUse("State partial", 4 * d * d, heads * blocks, written=True),
        TensorUse("Normalizer partial", 4 * d, heads * blocks, written=True),
    )
    return block_kernel(w, gpu, block, nest, Launch(inverse, heads), uses, "key tile")


def output_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Ranges of row tiles; each warp multiplies slabs of its own with the state in shared memory."""
    block = block_of(OUTPUT, w.head_dim)
    d, row = w.head_dim, w.head_dim * w.element_bytes
    stages = dict(block.shape)["STAGES"]
    steps, ragged, inverse, last = _classes(w.seq_q, ROWS, ranges, ranges)
    filled = np.minimum(steps, stages)
    refills = steps - filled
    ragged_fill, ragged_refill = ragged * (refills == 0), ragged * (refills > 0)

    def load_q(rows: int) -> TileOp:
        return TileOp("load", "Q", bytes=rows * row)

    _, weighed, rounded, following = (counts_of(block.label(w.dtype), gpu, part) for part in PARTS)

    def step(name: str, rows: int, ahead: tuple[TileOp, ...] = (), *, last: bool = False) -> Segment:
        slabs = -(-rows // SLAB)
        elements = slabs * SLAB * d
        fragments = slabs * (d // 16) * (SLAB // 16 + d // 16)
        weights = features(elements, "weights", PHI_INSTRUCTIONS + WEIGHT_INSTRUCTIONS, weighed)
        next_rows = (following.work("next Q", elements),) if following and ahead else ()
        multiply = TileOp("mma", "O", flops=2 * elements * d, smem_bytes=fragments * FRAGMENT_BYTES)
        return Segment(
            name,
            (
                TileOp("wait", "Q"),
                TileOp("delay", "step"),
                weights,
                product(multiply) if weighed else multiply,
                _rounded(elements, rounded),
                *((TileOp("delay", "block"),) if last else ()),
                TileOp("store", "O", bytes=rows * d * w.output_bytes),
                *next_rows,
                *ahead,
            ),
        )

    begin = TileOp("delay", "block"), TileOp("load", "State", bytes=2 * d * d)
    divisors = TileOp("load", "Normalizer", bytes=4 * d), TileOp("wait", "Normalizer")
    nest: Nest = [
        (Segment("prologue", begin), 1),
        (Segment("fill", (load_q(ROWS),)), filled - ragged_fill),
        (Segment("fill (last rows)", (load_q(last),)), ragged_fill),
        (Segment("wait S", (*divisors, TileOp("wait", "State"))), 1),
        (step("step", ROWS, (load_q(ROWS),)), refills - ragged_refill),
        (step("step, loads last rows", ROWS, (load_q(last),)), ragged_refill),
        (step("step, no load", ROWS), filled - 1),
        (step("last step", ROWS, last=True), 1 - ragged),
        (step("last step (last rows)", last, last=True), ragged),
    ]
    heads = w.batch * w.heads_q
    uses = (
        TensorUse("State", 2 * d * d, w.batch * w.heads_kv, w.group * ranges),
        TensorUse("Normalizer", 4 * d, w.batch * w.heads_kv, w.group * ranges),
        TensorUse("Q", w.seq_q * row, heads),
        TensorUse("O", w.seq_q * d * w.output_bytes, heads, written=True),
    )
    return block_kernel(w, gpu, block, nest, Launch(inverse, heads), uses, "row tile")


def causal_kernel(w: Workload, gpu: Gpu, ranges: int) -> Kernel:
    """Ranges of chunks in order; all but the first of a head begin with the state before them."""
    block = block_of(CAUSAL, w.head_dim)
    d, row = w.head_dim, w.head_dim * w.element_bytes
    chunks = -(-w.seq_q // CHUNK)
    last = w.seq_q - (chunks - 1) * CHUNK
    place = np.arange(ranges)
    shorter = (place == ranges - 1) & (last < CHUNK)
    (steps, ragged, later), inverse = classes(lengths(chunks, ranges), shorter, place > 0)

    features, weights, rounded, state = (counts_of(block.label(w.dtype), gpu, part) for part in PARTS)

    def copies(rows: int) -> tuple[TileOp, ...]:
        return tuple(TileOp("load", tensor, bytes=rows * row) for tensor in "QKV")

    def chunk(name: str, rows: int, following: int | None) -> Segment:
        worked = phi(2 * rows * d, "phi(Q), phi(K)", features)
        arrive = (*(TileOp("wait", tensor) for tensor in "QKV"), TileOp("delay", "step"), worked)
        out = TileOp("store", "O", bytes=rows * d * w.output_bytes)
        products = *_chunk_products(d, weights), _rounded(CHUNK * d, rounded)
        if following is None:
            return Segment(name, (*arrive, *products, TileOp("delay", "block"), out))
        load_q, *load_kv = copies(following)
        averages = state.work("S / z", d * d) if state else TileOp("vector", "S / z", fp32=2 * d * d)
        update = product(_state_product(d)) if state else _state_product(d)
        then = (load_q, update, *load_kv, averages)
        return Segment(name, (*arrive, *products, out, *then))

    only_ragged = ragged * (steps == 1)
    before = {"Normalizer partial": 4 * d, "State partial": 4 * d * d}  # z goes to shared memory first
    begin = tuple(
        op for name, size in before.items() for op in (TileOp("load", name, bytes=size), TileOp("wait", name))
    )
    nest: Nest = [
        (Segment("prologue", (TileOp("delay", "block"),)), 1),
        (Segment("first chunk", copies(CHUNK)), 1 - only_ragged),
        (Segment("first chunk (last rows)", copies(last)), only_ragged),
        (Segment("state before", begin), later),
        (chunk("chunk", CHUNK, CHUNK), steps - 1 - ragged + only_ragged),
        (chunk("chunk, loads last rows", CHUNK, last), ragged - only_ragged),
        (chunk("last chunk", CHUNK, None), 1 - ragged),
        (chunk("last chunk (last rows)", last, None), ragged),
    ]
    heads, kv_heads = w.batch * w.heads_q, w.batch * w.heads_kv
    earlier = (
        TensorUse("State partial", 4 * d * d, kv_heads * (ranges - 1), w.group),
        TensorUse("Normalizer partial", 4 * d, kv_heads * (ranges - 1), w.group),
    )
    uses = (
        TensorUse("Q", w.seq_q * row, heads),
        TensorUse("K", w.seq_q * row, kv_heads, w.group),
        TensorUse("V", w.seq_q * row, kv_heads, w.group),
        *(earlier if ranges > 1 else ()),
        TensorUse("O", w.seq_q * d * w.output_bytes, heads, written=True),
    )
    return block_kernel(w, gpu, block, nest, Launch(inverse, heads), uses, "chunk")


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
    """So many elements of O rounded to 16 bits in Q's place and read again."""
    worked = counts.work("O", elements) if counts else TileOp("vector", "O")
    return worked._replace(smem_bytes=4 * elements)


def decode_kernel(w: Workload, gpu: Gpu) -> Kernel:
    """A block reads the state of a key head, steps through the new tokens for all its query heads, and writes it."""
    block = block_of(DECODE, w.head_dim)
    block.slots(gpu)  # refuses a GPU that is too small
    d, row, heads = w.head_dim, w.head_dim * w.element_bytes, w.batch * w.heads_kv
    sizes = {"State": 4 * d * d, "Normalizer": 4 * d}
    load_kv = (TileOp("load", "K", bytes=row), TileOp("load", "V", bytes=row))
    token = (
        *load_kv,
        TileOp("load", "Q", bytes=w.group * row),
        *(TileOp("wait", tensor) for tensor in "KVQ"),
        TileOp("delay", "step"),
        phi(d * (1 + w.group), "phi(K), phi(Q)"),
        TileOp("mma", "S", flops=2 * d * d * (1 + w.group)),
        TileOp("store", "O", bytes=w.group * d * w.output_bytes),
    )
    nest: Nest = [
        (
            Segment(
                "read the state",
                (TileOp("delay", "block"), *(TileOp("load", name, bytes=size) for name, size in sizes.items())),
            ),
            1,
        ),
        (Segment("wait", tuple(TileOp("wait", name) for name in sizes)), 1),
        (Segment("token", token), w.seq_q),
        (Segment("write the state", tuple(TileOp("store", name, bytes=size) for name, size in sizes.items())), 1),
    ]
    uses = (
        TensorUse("State", sizes["State"], heads, in_place=True),
        TensorUse("Normalizer", sizes["Normalizer"], heads, in_place=True),
        TensorUse("K", w.seq_q * row, heads),
        TensorUse("V", w.seq_q * row, heads),
        TensorUse("Q", w.seq_q * row, w.batch * w.heads_q),
        TensorUse("State", sizes["State"], heads, written=True),
        TensorUse("Normalizer", sizes["Normalizer"], heads, written=True),
        TensorUse("O", w.seq_q * d * w.output_bytes, w.batch * w.heads_q, written=True),
    )
    return block_kernel(w, gpu, block, nest, Launch.alike(heads), uses, "token")
