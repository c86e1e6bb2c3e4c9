"""FlashAttention-1: keys in the outer loop, steps of 16 query rows in the inner one, partial O through memory in fp32.

Dao et al., arXiv 2205.14135; tiles, the split of the query steps over blocks and the fp32 ``o_tmp`` follow
``csrc/flash_attn/src`` of Dao-AILab/flash-attention v1.0.9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import dot_do_o
from attnsim.models.implementations.fused.forward import dropped
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, uses_of
from attnsim.models.schedule.operation import BLOCK, STEP, TileOp, by_size, loop
from attnsim.models.schedule.row_tiles import visible_queries
from attnsim.models.schedule.schedule import Buffers, Kernel, Launch

DROPOUT_BITS, DROPOUT_INSTRUCTIONS = 16, 3
"""Random bits per score, and instructions to extract, compare and select it (`apply_dropout_16bits`)."""
ROWS = 16
"""Query rows of an inner step."""


def key_block(w: Workload, gpu: Gpu) -> int:
    """Keys held by a block: 256; 128 above head_dim 64, for at most 128 keys, and with 64 KiB (Turing)."""
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
    """Row dots, then the main kernel: a block per head, or per key block if heads are few or rows long."""
    turns = -(-w.seq_kv // key_block(w, gpu))
    parallel = (w.mask.is_causal and turns >= 10) or w.batch * w.heads_q < gpu.sm.count
    return (dot_do_o(w), _kernel(w, key_block(w, gpu), turns if parallel else 1, backward=True))


def _kernel(w: Workload, block: int, splits: int, *, backward: bool) -> Kernel:
    """Loop nest of both directions: keys outside, rows inside. The forward splits the rows, the backward the keys."""
    i, j, heads, parallel = Axis(w.seq_q, ROWS), Axis(w.seq_kv, block), w.batch * w.heads_q, backward and splits > 1
    axes = {"b": Axis(w.batch), "h": Axis(w.heads_kv), "g": Axis(w.group), "i": i, "j": j}
    axes["s"] = Axis(1 if backward else splits, cuts="i")
    passes = 1 if parallel else j.tiles
    (k, v, *rows), (results, of_keys), partial = _tensors(w, passes, backward)
    computed = _computed(w, block, backward)

    def row_step(visited_before: bool, last_visit: bool, whole: bool = True) -> Iterator[TileOp]:
        n = ROWS if whole else w.seq_q % ROWS
        read = [*rows, partial] if visited_before else rows
        yield from (tensor.load(n) for tensor in read)
        yield from (tensor.wait() for tensor in read)
        yield from (STEP, *computed)
        yield from (tensor.store(n) for tensor in (results if last_visit else [partial]))

    def load_keys(missing: int) -> Iterator[TileOp]:
        yield from (BLOCK, k.load(block - missing), v.load(block - missing), k.wait(), v.wait())

    first = np.arange(j.tiles, dtype=np.int64) * block
    seen_from, seen_to = visible_queries(w, first, np.minimum(first + block, w.seq_kv) - 1)
    start, stop = seen_from // ROWS, -(-seen_to // ROWS)
    share = -(-i.tiles // axes["s"].tiles)
    low = np.arange(axes["s"].tiles, dtype=np.int64)[:, None] * share
    begin, end = np.maximum(start, low), np.minimum(stop, low + share)
    until = {
        "visited_before": np.concatenate([start[:1], stop[:-1]]) - begin,
        "last_visit": np.concatenate([start[1:], stop[-1:]]) - begin,
    }
    if w.seq_q % ROWS:
        until["whole"] = w.seq_q // ROWS - begin
    steps = np.maximum(end - begin, 0)
    if parallel:  # a block for each iteration
        steps, until = steps[0], {flag: turns[0] for flag, turns in until.items()}
    nest = [
        *by_size("keys", j.missing, load_keys),
        *loop("row step", steps, row_step, **until),
        *by_size("keys done", j.missing, lambda n: (tensor.store(block - n) for tensor in of_keys)),
    ]
    summed = [partial, replace(partial, written=True)] if j.tiles > 1 else []
    grid = "b h g j" if parallel else "b h g s"
    return Kernel.of(
        nest,
        name="flash1_bwd" if backward else "flash1_fwd",
        threads=256 if backward else 128,
        registers_per_thread=255,
        launches=(Launch(np.arange(splits, dtype=np.int64), heads),),
        uses=uses_of((k, v, *rows, *results, *of_keys, *summed), axes, grid),
        path="mma_sync",
        is_backward=backward,
        buffers=_buffers(w, block, backward),
        dtype=w.dtype,
        step="row step",
    )


def _tensors(
    w: Workload, passes: int, backward: bool
) -> tuple[list[Tensor], tuple[list[Tensor], list[Tensor]], Tensor]:
    """Tensors read (K and V first); tensors written, by rows and by keys; and row sums that go through memory."""
    d, dv, e = w.head_dim, w.head_dim_v, w.element_bytes
    read = [Tensor("K", "b h j", d * e), Tensor("V", "b h j", dv * e), Tensor("Q", "b h g i", d * e, times=passes)]
    if not backward:
        results = [Tensor("O", "b h g i", dv * e, written=True), Tensor("LSE", "b h g i", 4, written=True)]
        return read, (results, []), Tensor("O tmp", "b h g i", dv * 4, times=max(1, passes - 1))
    widths = {"dO": dv * e, "LSE": 4, "D": 4}
    read += [Tensor(name, "b h g i", width, times=passes) for name, width in widths.items()]
    results = [Tensor("dQ", "b h g i", d * e, written=True)]
    of_keys = [Tensor("dK", "b h g j", d * e, written=True), Tensor("dV", "b h g j", dv * e, written=True)]
    return read, (results, of_keys), Tensor("dQ tmp", "b h g i", d * 4, times=max(1, passes - 1))


def _buffers(w: Workload, block: int, backward: bool) -> Buffers:
    columns, e = w.head_dim + w.head_dim_v, w.element_bytes
    keys, rows = ("K, V", block * columns * e), 2 * ROWS * columns * 4
    return (keys, ("Q, dO, dQ", rows), ("P, dS", 4 * ROWS * block)) if backward else (keys, ("Q, O", rows))


def _computed(w: Workload, block: int, backward: bool) -> tuple[TileOp, ...]:
    """Products and softmax of a row step. Warps split the keys and sum their O or dQ through shared memory."""
    e, d, dv, scores = w.element_bytes, w.head_dim, w.head_dim_v, ROWS * block
    reduction = 8 * ROWS * (d if backward else dv) * 4
    products = [("S", d, 4 * ROWS * d * e), ("O", dv, reduction)]
    if backward:
        products = [
            ("S", d, 8 * ROWS * d * e),
            ("dP", dv, 8 * ROWS * dv * e),
            ("dV", dv, 8 * ROWS * dv * e + scores * e),
            ("dQ", d, reduction + block * d * e),
            ("dK", d, 8 * ROWS * d * e + scores * e),
        ]
    s, *others = (
        TileOp("mma", name, flops=2 * scores * columns, smem_bytes=reads) for name, columns, reads in products
    )
    softmax = TileOp("vector", "P", scores=scores, exps=scores, fp32=4 * scores if backward else ROWS * dv)
    if w.dropout:
        softmax = dropped(softmax, scores, DROPOUT_BITS, DROPOUT_INSTRUCTIONS)
    return (s, softmax, *others)
