"""The last block of a sequence merges the partial results of all its blocks, in place of a kernel of its own.

Blocks that share out the keys of a sequence write partial results and count themselves off at a semaphore. The one that
comes last reads all results back and writes the output (``cpp/kernels/xqa/mha.cu`` and
``decoderMaskedMultiheadAttentionTemplate.h`` of NVIDIA/TensorRT-LLM). Here it is the last of
those blocks that have most keys.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.models.implementations.fused.splits import MERGE_INSTRUCTIONS, SCALE_INSTRUCTIONS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

MAXIMA_AT_ONCE = 8
"""Ranges whose row maxima are read at a time (``mergeRowMax<8>`` of XQA)."""
ROUND_TRIPS = 2
"""To the L2, before a block knows whether it is the last: until its results are visible to all, and the semaphore."""
MERGE_CLKS = by_hand(300, "latency of one turn of a merge: barrier, exponentials, through shared memory")


def merging_last(kernel: Kernel, w: Workload, splits: int, tiles: int, at_once: int, clks: int = MERGE_CLKS) -> Kernel:
    """`kernel` with the merge of its partial results in one block of each group of heads.

    Parameters
    ----------
    kernel : Kernel
        Launches of groups of blocks: the tiles of rows of each range of keys after those of the range before.
    w : Workload
        With as many queries of every sequence.
    splits, tiles : int
        Ranges of keys, and tiles of rows of a head.
    at_once : int
        Partial results that the block reads at a time, while it merges those before.
    clks : int
        Latency of one turn of its merge.
    """
    groups = kernel.blocks // splits
    rows = -(-w.queries * w.heads_q // groups)
    segments, counts = loop_nest(_merge(w, rows, splits, at_once, clks))
    classes = len(kernel.repeats)
    merging = np.concatenate([kernel.repeats, np.broadcast_to(counts, (classes, 1, len(segments)))], axis=2)
    plain = merging.copy()
    plain[:, :, 1 - len(segments) :] = 0  # all but counting off
    turns = kernel.turns.sum(axis=1)

    def marked(launch: Launch) -> Launch:
        """With the merge in the last of those ranges of each head that have most keys: the last may be empty."""
        order = launch.classes.reshape(-1, splits, tiles)
        work = turns[order].sum(axis=2)
        last = splits - 1 - work[:, ::-1].argmax(axis=1)
        here = (np.arange(splits) == last[:, None])[:, :, None]
        return Launch((order + classes * here).reshape(-1), launch.times)

    size = w.head_dim_v * rows
    return replace(
        kernel,
        segments=(*kernel.segments, *segments),
        repeats=np.concatenate([plain, merging]),
        launches=tuple(map(marked, kernel.launches)),
        uses=(
            *kernel.uses,
            TensorUse("semaphores", 4, groups, splits, just_written=True),
            TensorUse("O partial", size * 4, groups * splits, just_written=True),
            TensorUse("LSE partial", rows * 4, groups * splits, just_written=True),
            TensorUse("O", size * w.output_bytes, groups, written=True),
        ),
    )


def _merge(w: Workload, rows: int, splits: int, at_once: int, clks: int) -> Nest:
    """The merge of `rows` rows: all maxima, then the results, the next ones in flight while some are merged."""
    size = rows * w.head_dim_v
    whole, rest = divmod(splits, at_once)
    last = rest or at_once

    def maxima(tag: str, n: int) -> Segment:
        load = TileOp("load", "LSE partial", bytes=n * rows * 4)
        scale = TileOp("vector", "scale", exps=n * rows, fp32=n * rows * SCALE_INSTRUCTIONS)
        return Segment(f"maxima{tag}", (load, TileOp("wait", "LSE partial"), scale))

    def results(tag: str, n: int, following: int) -> Segment:
        merge = TileOp("vector", "O", fp32=n * size * MERGE_INSTRUCTIONS)
        late = TileOp("delay", "merge", clks=clks)
        return Segment(f"merge{tag}", (*load(following), TileOp("wait", "O partial"), late, merge))

    def load(n: int) -> tuple[TileOp, ...]:
        return (TileOp("load", "O partial", bytes=n * size * 4),) if n else ()

    semaphore = TileOp("load", "semaphores", bytes=4)
    return [
        (Segment("count off", (semaphore, TileOp("wait", "semaphores"))), ROUND_TRIPS),
        (maxima("", MAXIMA_AT_ONCE), splits // MAXIMA_AT_ONCE),
        (maxima(" (rest)", splits % MAXIMA_AT_ONCE), int(splits % MAXIMA_AT_ONCE > 0)),
        (Segment("first results", load(at_once if whole else rest)), 1),
        (results("", at_once, at_once), max(0, whole - 1)),
        (results(", rest next", at_once, rest), int(whole > 0 and rest > 0)),
        (results(" (last)", last, 0), 1),
        (Segment("store O", (TileOp("store", "O", bytes=size * w.output_bytes),)), 1),
    ]
