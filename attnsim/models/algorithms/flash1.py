"""FlashAttention-1: keys outside, 16-row steps of queries inside, partial O through memory in fp32.

Dao et al., arXiv 2205.14135; tiles, the split of the query steps over blocks and the fp32 ``o_tmp`` follow
``csrc/flash_attn/src`` of Dao-AILab/flash-attention v1.0.9.
"""

from __future__ import annotations

import numpy as np

from attnsim.models.algorithms.passes import Access, streaming
from attnsim.models.algorithms.tiling import visible_queries
from attnsim.models.gpu import Gpu
from attnsim.models.schedule import Kernel, Launch, Segment, TensorUse, TileOp
from attnsim.models.workload import Workload

ROWS = 16
"""Query rows of an inner step."""


def key_block(w: Workload) -> int:
    """Keys held by a block at a time: 256, or 128 at head_dim 128 and for 128 keys."""
    return 128 if w.head_dim > 64 or w.seq_kv <= 128 else 256


def flash1_forward(w: Workload, gpu: Gpu) -> Kernel:
    """The forward kernel; blocks are (batch, head, range of query steps)."""
    turns = -(-w.seq_kv // key_block(w))
    heads = w.batch * w.heads_q
    splits = _splits(heads, 2 * gpu.sm.count, -(-w.seq_q // ROWS))
    return _kernel(w, turns, splits, backward=False)


def flash1_backward(w: Workload, gpu: Gpu) -> tuple[Kernel, ...]:
    """Row dots, then the main kernel; with few heads or long causal rows, one block per range of keys with atomics."""
    turns = -(-w.seq_kv // key_block(w))
    heads = w.batch * w.heads_q
    out = heads * w.seq_q * w.head_dim_v * w.element_bytes
    dot = streaming(
        "dot_do_o",
        [Access("O", out), Access("dO", out), Access("D", heads * w.seq_q * 4, True)],
        elements=out // w.element_bytes,
        fp32_per_element=3,
    )
    parallel = (w.mask.is_causal and turns >= 10) or heads < gpu.sm.count
    return (dot, _kernel(w, turns, turns if parallel else 1, backward=True))


def _splits(heads: int, slots: int, steps: int) -> int:
    """Smallest split count up to 30 whose wave efficiency is within 5 % of the best."""
    counts = np.arange(1, min(30, steps) + 1)
    waves = heads * counts / slots
    efficiency = waves / np.ceil(waves)
    return int(counts[np.argmax(efficiency > 0.95 * efficiency.max())])


def _kernel(w: Workload, turns: int, splits: int, *, backward: bool) -> Kernel:
    """One nest for both directions: keys outside, rows inside.

    The forward splits the rows over blocks, the backward the keys.
    """
    block = key_block(w)
    first = np.arange(turns, dtype=np.int64) * block
    last = np.minimum(first + block, w.seq_kv) - 1
    low, high = visible_queries(w, first, last)
    start, stop = low // ROWS, -(-high // ROWS)
    total = -(-w.seq_q // ROWS)
    ops = _Steps(w, block, backward)
    segments, columns = ops.segments(turns)
    repeats = np.zeros((splits, turns, len(segments)), dtype=np.int64)
    for split in range(splits):
        if backward and splits > 1:
            steps = np.where(np.arange(turns) == split, stop - start, 0)
            mine = np.arange(turns) == split
        else:
            share = -(-total // splits)
            steps = np.clip(np.minimum(stop, (split + 1) * share) - np.maximum(start, split * share), 0, None)
            mine = np.ones(turns, dtype=bool)
        steps = np.maximum(steps, 0)
        ragged = (stop == total) & (w.seq_q % ROWS > 0) & (steps > 0) & _reaches_end(backward, split, splits)
        for turn in range(turns):
            if mine[turn]:
                repeats[split, turn] = columns(turn, turns, int(steps[turn]), bool(ragged[turn]))
    heads = w.batch * w.heads_q
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    buffers = (("K, V", block * (d + dv) * e), ("Q, O", 2 * ROWS * (d + dv) * 4))
    if backward:
        buffers = (("K, V", block * (d + dv) * e), ("Q, dO, dQ", 2 * ROWS * (d + dv) * 4), ("P, dS", 4 * ROWS * block))
    return Kernel(
        name="flash1_bwd" if backward else "flash1_fwd",
        threads=256 if backward else 128,
        registers_per_thread=255,
        shared_memory_bytes=sum(size for _, size in buffers),
        segments=segments,
        repeats=repeats,
        launches=(Launch(np.arange(splits, dtype=np.int64), heads),),
        uses=_uses(w, turns, splits, backward),
        warpgroups=1,
        path="mma_sync",
        buffers=buffers,
        dtype=w.dtype,
        step="row step",
    )


def _reaches_end(backward: bool, split: int, splits: int) -> bool:
    return backward or split == splits - 1


def _uses(w: Workload, turns: int, splits: int, backward: bool) -> tuple[TensorUse, ...]:
    heads, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    sharers = splits if backward else 1
    passes = turns / splits if backward else turns
    uses = [
        TensorUse("K", w.seq_kv * d * e, kv, w.group * (1 if backward else splits)),
        TensorUse("V", w.seq_kv * dv * e, kv, w.group * (1 if backward else splits)),
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
        uses += [TensorUse("O", w.seq_q * dv * e, heads, written=True), TensorUse("LSE", w.seq_q * 4, heads, written=True)]
        partial, width = "O tmp", dv
    if turns > 1:
        again = max(1.0, passes - 1)
        uses.append(TensorUse(partial, w.seq_q * width * 4, heads, sharers, again))
        uses.append(TensorUse(f"{partial} out", w.seq_q * width * 4, heads, sharers, again, written=True))
    return tuple(uses)


class _Steps:
    """Segments of one turn of the outer loop: first, middle, last or only turn, whole and shorter last row step."""

    def __init__(self, w: Workload, block: int, backward: bool) -> None:
        self.w, self.block, self.backward = w, block, backward
        self.last_rows = w.seq_q - (-(-w.seq_q // ROWS) - 1) * ROWS
        self.last_keys = w.seq_kv - (-(-w.seq_kv // block) - 1) * block

    def segments(self, turns: int):  # type: ignore[no-untyped-def]
        kinds = ("only",) if turns == 1 else ("first", "middle", "last")
        segments: list[Segment] = []
        for kind in kinds:
            keys = self.last_keys if kind in ("last", "only") else self.block
            segments.append(self.keys(kind, keys))
            segments.append(self.rows(f"{kind} keys: row step", kind, ROWS))
            segments.append(self.rows(f"{kind} keys: last row step", kind, self.last_rows))
            segments.append(self.finish(kind, keys))

        def columns(turn: int, turns: int, steps: int, ragged: bool) -> list[int]:
            kind = 0 if turns == 1 or turn == 0 else 2 if turn == turns - 1 else 1
            out = [0] * (4 * len(kinds))
            out[4 * kind : 4 * kind + 4] = [1, steps - ragged, int(ragged), 1]
            return out

        return tuple(segments), columns

    def keys(self, kind: str, keys: int) -> Segment:
        w = self.w
        return Segment(
            f"{kind} keys",
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
        width = d if self.backward else dv
        partial = "dQ tmp" if self.backward else "O tmp"
        final = "dQ" if self.backward else "O"
        loads = [TileOp("load", "Q", bytes=rows * d * e)]
        if self.backward:
            loads += [TileOp("load", "dO", bytes=rows * dv * e), TileOp("load", "LSE, D", bytes=rows * 8)]
        if kind in ("middle", "last"):
            loads.append(TileOp("load", partial, bytes=rows * width * 4))
        if kind in ("first", "middle"):
            stores = [TileOp("store", f"{partial} out", bytes=rows * width * 4)]
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
        mmas = [
            TileOp("mma", name, flops=2 * scores * width, smem_bytes=reads) for name, width, reads in products
        ]
        softmax = TileOp("vector", "P", scores=scores, exps=scores, fp32=4 * scores if self.backward else ROWS * dv)
        waits = [TileOp("wait", load.tensor) for load in loads]
        # The next step's rows are loaded while this step computes: one step's loads are in flight at its start.
        return Segment(name, (*loads, *waits, TileOp("delay", "step"), mmas[0], softmax, *mmas[1:], *stores))

    def finish(self, kind: str, keys: int) -> Segment:
        w = self.w
        if not self.backward:
            return Segment(f"{kind} keys done", ())
        e = w.element_bytes
        return Segment(
            f"{kind} keys done",
            (
                TileOp("store", "dK", bytes=keys * w.head_dim * e),
                TileOp("store", "dV", bytes=keys * w.head_dim_v * e),
            ),
        )
