"""FlashAttention-1: keys outside, 16-row steps of queries inside, partial O through memory in fp32.

Dao et al., arXiv 2205.14135; tiles, the split of the query steps over blocks and the fp32 ``o_tmp`` follow
``csrc/flash_attn/src`` of Dao-AILab/flash-attention v1.0.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.dropout import dropped
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import Buffers
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import visible_queries
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

DROPOUT_BITS, DROPOUT_INSTRUCTIONS = 16, 3
"""Of a score: random bits, and its extraction, comparison and selection (`apply_dropout_16bits`)."""
ROWS = 16
"""Query rows of an inner step."""

KINDS = ("only", "last", "first", "middle")
"""Visits of a row step by the key blocks: whether partial results are read (last, middle) and written (first, middle).
Steps whose last visit it is come first: they are the ones on the diagonal."""


@dataclass(frozen=True, slots=True)
class Flash1Tile:
    """Query rows of an inner step x keys that a block holds."""

    keys: int

    def __str__(self) -> str:
        return f"{ROWS} x {self.keys}, keys outside"


def key_block(w: Workload, gpu: Gpu) -> int:
    """Keys held by a block at a time: 256, or 128 at head_dim above 64, for 128 keys, and in 64 KiB (Turing)."""
    small = gpu.sm.shared_memory_per_block_bytes < 80 * 1024
    return 128 if w.head_dim > 64 or w.seq_kv <= 128 or small else 256


def flash1_forward(w: Workload, gpu: Gpu) -> Kernel:
    """The forward kernel; blocks are (batch, head, range of query steps)."""
    counts = np.arange(1, min(30, -(-w.seq_q // ROWS)) + 1)
    waves = w.batch * w.heads_q * counts / (2 * gpu.sm.count)
    efficiency = waves / np.ceil(waves)
    splits = int(counts[np.argmax(efficiency > 0.95 * efficiency.max())])
    return _kernel(w, key_block(w, gpu), splits, backward=False)


def flash1_backward(w: Workload, gpu: Gpu) -> tuple[Kernel, ...]:
    """Row dots, then the main kernel: one block a head, or one for every key block where heads are few or rows long."""
    turns = -(-w.seq_kv // key_block(w, gpu))
    heads = w.batch * w.heads_q
    out = heads * w.seq_q * w.head_dim_v * w.element_bytes
    dot = streaming(
        "dot_do_o",
        [Access("O", out), Access("dO", out), Access("D", heads * w.seq_q * 4, True)],
        elements=out // w.element_bytes,
        fp32_per_element=3,
    )
    parallel = (w.mask.is_causal and turns >= 10) or heads < gpu.sm.count
    return (dot, _kernel(w, key_block(w, gpu), turns if parallel else 1, backward=True))


def _visits(w: Workload, block: int, low: np.int64, high: np.int64) -> Ints:
    """Row steps in ``[low, high)`` that each key block visits, by kind of visit: shape [turns, kinds]."""
    turns = -(-w.seq_kv // block)
    first = np.arange(turns, dtype=np.int64) * block
    seen_from, seen_to = visible_queries(w, first, np.minimum(first + block, w.seq_kv) - 1)
    start, stop = seen_from // ROWS, -(-seen_to // ROWS)
    never_before = np.maximum(np.concatenate([start[:1], stop[:-1]]), start)
    never_again = np.minimum(np.concatenate([start[1:], stop[-1:]]), stop)

    def inside(a: Ints, b: Ints) -> Ints:
        return np.asarray(np.maximum(np.minimum(b, high) - np.maximum(a, low), 0), dtype=np.int64)

    only = inside(never_before, never_again)
    last = inside(start, never_again) - only
    new = inside(never_before, stop) - only
    return np.stack([only, last, new, inside(start, stop) - only - last - new], axis=1)


def _kernel(w: Workload, block: int, splits: int, *, backward: bool) -> Kernel:
    """One nest for both directions: keys outside, rows inside. The forward splits the rows, the backward the keys."""
    turns, total = -(-w.seq_kv // block), -(-w.seq_q // ROWS)
    short_row, short_keys = w.seq_q % ROWS > 0, w.seq_kv % block > 0
    keys = np.ones(turns, dtype=np.int64)
    keys[-1] = not short_keys
    ends = np.stack([keys, 1 - keys], axis=1)
    share = -(-total // splits)
    parts = [(0, total)] if backward else [(i * share, min((i + 1) * share, total)) for i in range(splits)]
    shared = []
    for low, high in parts:
        whole = _visits(w, block, np.int64(low), np.int64(high - short_row * (high == total)))
        rest = _visits(w, block, np.int64(max(low, total - 1)), np.int64(high)) if short_row else 0 * whole
        shared.append(np.concatenate([ends, whole, rest, ends], axis=1))
    repeats = np.stack(shared)
    if backward and splits > 1:  # a block for each turn
        repeats = repeats.transpose(1, 0, 2)
    heads = w.batch * w.heads_q
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    buffers: Buffers = (("K, V", block * (d + dv) * e), ("Q, O", 2 * ROWS * (d + dv) * 4))
    if backward:
        buffers = (
            ("K, V", block * (d + dv) * e),
            ("Q, dO, dQ", 2 * ROWS * (d + dv) * 4),
            ("P, dS", 4 * ROWS * block),
        )
    written = _Steps(w, block, backward).segments()
    segments, repeats = loop_nest(list(zip(written, np.moveaxis(repeats, 2, 0), strict=True)))
    return Kernel(
        name="flash1_bwd" if backward else "flash1_fwd",
        threads=256 if backward else 128,
        registers_per_thread=255,
        segments=segments,
        repeats=repeats,
        launches=(Launch(np.arange(splits, dtype=np.int64), heads),),
        uses=_uses(w, turns, splits, backward),
        path="mma_sync",
        slowed_by_extra=backward,
        buffers=buffers,
        dtype=w.dtype,
        step="row step",
    )


def _uses(w: Workload, turns: int, splits: int, backward: bool) -> tuple[TensorUse, ...]:
    heads, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    sharers = splits if backward else 1
    passes = turns / splits if backward else turns
    kv_sharers = w.group * (1 if backward else splits)
    uses = [
        TensorUse("K", w.seq_kv * d * e, kv, kv_sharers),
        TensorUse("V", w.seq_kv * dv * e, kv, kv_sharers),
        TensorUse("Q", w.seq_q * d * e, heads, sharers, passes),
    ]
    if backward:
        uses += [
            TensorUse("dO", w.seq_q * dv * e, heads, sharers, passes),
            TensorUse("LSE, D", w.seq_q * 8, heads, sharers, passes),
            TensorUse("dQ", w.seq_q * d * e, heads, written=True),
            TensorUse("dK", w.seq_kv * d * e, heads, written=True),
            TensorUse("dV", w.seq_kv * dv * e, heads, written=True),
        ]
        partial, width = "dQ tmp", d
    else:
        uses += [
            TensorUse("O", w.seq_q * dv * e, heads, written=True),
            TensorUse("LSE", w.seq_q * 4, heads, written=True),
        ]
        partial, width = "O tmp", dv
    if turns > 1:
        again = max(1.0, passes - 1)
        uses.append(TensorUse(partial, w.seq_q * width * 4, heads, sharers, again))
        uses.append(TensorUse(partial, w.seq_q * width * 4, heads, sharers, again, written=True))
    return tuple(uses)


class _Steps:
    """Segments of one turn of the outer loop: its keys, row steps by kind of visit (whole, then short), its end."""

    def __init__(self, w: Workload, block: int, backward: bool) -> None:
        self.w, self.block, self.backward = w, block, backward
        self.last_rows = w.seq_q - (-(-w.seq_q // ROWS) - 1) * ROWS
        self.last_keys = w.seq_kv - (-(-w.seq_kv // block) - 1) * block

    def segments(self) -> tuple[Segment, ...]:
        sizes = ((self.block, ""), (self.last_keys, " (last keys)"))
        rows = ((ROWS, ""), (self.last_rows, " (last rows)"))
        return (
            *(self.keys(f"keys{tag}", n) for n, tag in sizes),
            *(self.rows(f"{kind} visit{tag}", kind, n) for n, tag in rows for kind in KINDS),
            *(self.finish(f"keys done{tag}", n) for n, tag in sizes),
        )

    def keys(self, name: str, keys: int) -> Segment:
        w = self.w
        return Segment(
            name,
            (
                TileOp("delay", "block"),
                TileOp("load", "K", bytes=keys * w.head_dim * w.element_bytes),
                TileOp("load", "V", bytes=keys * w.head_dim_v * w.element_bytes),
                TileOp("wait", "K"),
                TileOp("wait", "V"),
            ),
        )

    def rows(self, name: str, kind: str, rows: int) -> Segment:
        w, block = self.w, self.block
        e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
        scores = ROWS * block
        width, partial, final = (d, "dQ tmp", "dQ") if self.backward else (dv, "O tmp", "O")
        loads = [TileOp("load", "Q", bytes=rows * d * e)]
        if self.backward:
            loads += [TileOp("load", "dO", bytes=rows * dv * e), TileOp("load", "LSE, D", bytes=rows * 8)]
        if kind in ("middle", "last"):
            loads.append(TileOp("load", partial, bytes=rows * width * 4))
        if kind in ("first", "middle"):
            stores = [TileOp("store", partial, bytes=rows * width * 4)]
        else:
            stores = [TileOp("store", final, bytes=rows * width * e)]
            if not self.backward:
                stores.append(TileOp("store", "LSE", bytes=rows * 4))
        # Warps split the keys, so each sums its own O (or dQ) and they add them up through shared memory in fp32.
        reduction = 8 * ROWS * width * 4
        products = [("S", d, 4 * ROWS * d * e), ("O", dv, reduction)]
        if self.backward:
            products = [
                ("S", d, 8 * ROWS * d * e), ("dP", dv, 8 * ROWS * dv * e), ("dV", dv, 8 * ROWS * dv * e + scores * e),
                ("dQ", d, reduction + block * d * e), ("dK", d, 8 * ROWS * d * e + scores * e),
            ]  # fmt: skip
        mmas = [TileOp("mma", name, flops=2 * scores * columns, smem_bytes=reads) for name, columns, reads in products]
        softmax = TileOp("vector", "P", scores=scores, exps=scores, fp32=4 * scores if self.backward else ROWS * dv)
        if w.dropout:
            softmax = dropped(softmax, scores, DROPOUT_BITS, DROPOUT_INSTRUCTIONS)
        waits = [TileOp("wait", load.tensor) for load in loads]
        return Segment(name, (*loads, *waits, TileOp("delay", "step"), mmas[0], softmax, *mmas[1:], *stores))

    def finish(self, name: str, keys: int) -> Segment:
        w = self.w
        if not self.backward:
            return Segment(name, ())
        e = w.element_bytes
        return Segment(
            name,
            (
                TileOp("store", "dK", bytes=keys * w.head_dim * e),
                TileOp("store", "dV", bytes=keys * w.head_dim_v * e),
            ),
        )
