"""Merge of partial results by the last block of a sequence, in place of a separate kernel.

Blocks that split the keys of a sequence write partial results and increment a semaphore. The last one reads all results
back and writes the output (``cpp/kernels/xqa/mha.cu`` and ``decoderMaskedMultiheadAttentionTemplate.h`` of
NVIDIA/TensorRT-LLM). Here the merging block is the last of the blocks with most keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.models.implementations.fused.splits import MERGE_INSTRUCTIONS, SCALE_INSTRUCTIONS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, uses_of
from attnsim.models.schedule.operation import Nest, TileOp, loop, loop_nest, once
from attnsim.models.schedule.schedule import Kernel, Launch

MAXIMA_AT_ONCE = 8
"""Ranges whose row maxima are read at a time (``mergeRowMax<8>`` of XQA)."""
ROUND_TRIPS = 2
"""Round trips to the L2 before a block knows whether it is the last: until its results are visible, and the
semaphore."""
MERGE_CLKS = by_hand(300, "latency of one turn of a merge: barrier, exponentials, through shared memory")


def merging_last(kernel: Kernel, w: Workload, splits: int, tiles: int, at_once: int, clks: int = MERGE_CLKS) -> Kernel:
    """The kernel with the merge of its partial results in one block of each group of heads.

    Parameters
    ----------
    kernel : Kernel
        Launches groups of blocks: the row tiles of each range of keys after those of the range before.
    w : Workload
        All sequences have equally many queries.
    splits, tiles : int
        Ranges of keys, and row tiles per head.
    at_once : int
        Partial results that the block reads at a time, while it merges the previous ones.
    clks : int
        Latency of one iteration of the merge, in clocks.
    """
    groups = kernel.blocks // splits
    rows = -(-w.queries * w.heads_q // groups)
    axes = {"groups": Axis(groups), "s": Axis(splits)}
    size = w.head_dim_v * rows
    tensors = (
        Tensor("semaphores", "groups", 4, just_written=True),
        Tensor("O partial", "groups s", size * 4, just_written=True),
        Tensor("LSE partial", "groups s", rows * 4, just_written=True),
        Tensor("O", "groups", size * w.output_bytes, written=True),
    )
    segments, counts = loop_nest(_merge(tensors, rows, size, splits, at_once, clks))
    classes = len(kernel.repeats)
    merging = np.concatenate([kernel.repeats, np.broadcast_to(counts, (classes, 1, len(segments)))], axis=2)
    plain = merging.copy()
    plain[:, :, 1 - len(segments) :] = 0  # all but the semaphore
    turns = kernel.turns.sum(axis=1)

    def marked(launch: Launch) -> Launch:
        """With the merge in the last of those ranges of each head that have most keys: the last may be empty."""
        order = launch.classes.reshape(-1, splits, tiles)
        work = turns[order].sum(axis=2)
        last = splits - 1 - work[:, ::-1].argmax(axis=1)
        here = (np.arange(splits) == last[:, None])[:, :, None]
        return Launch((order + classes * here).reshape(-1), launch.times)

    return replace(
        kernel,
        segments=(*kernel.segments, *segments),
        repeats=np.concatenate([plain, merging]),
        launches=tuple(map(marked, kernel.launches)),
        uses=(*kernel.uses, *uses_of(tensors, axes, "groups s")),
    )


def _merge(tensors: tuple[Tensor, ...], rows: int, size: int, splits: int, at_once: int, clks: int) -> Nest:
    """Merge of `rows` rows: all maxima, then the results; the next ones are in flight while some are merged."""
    semaphores, results, sums, out = tensors
    whole, rest = divmod(splits, at_once)

    def maxima(whole: bool) -> Iterator[TileOp]:
        n = MAXIMA_AT_ONCE if whole else splits % MAXIMA_AT_ONCE
        scale = TileOp("vector", "scale", exps=n * rows, fp32=n * rows * SCALE_INSTRUCTIONS)
        yield from (sums.load(n), sums.wait(), scale)

    def merge(load_next: bool, next_whole: bool, whole: bool) -> Iterator[TileOp]:
        if load_next:
            yield results.load(at_once if next_whole else rest)
        yield from (results.wait(), TileOp("delay", "merge", clks=clks))
        yield TileOp("vector", "O", fp32=(at_once if whole else rest) * size * MERGE_INSTRUCTIONS)

    turns = whole + (rest > 0)
    return [
        *once("count off", [semaphores.load(), semaphores.wait()], ROUND_TRIPS),
        *loop("maxima", -(-splits // MAXIMA_AT_ONCE), maxima, whole=splits // MAXIMA_AT_ONCE),
        *once("first results", [results.load(at_once if whole else rest)]),
        *loop("merge", turns, merge, load_next=turns - 1, next_whole=whole - 1, whole=whole),
        *once("store O", [out.store()]),
    ]
