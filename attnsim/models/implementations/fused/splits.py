"""Split rules, and small kernels before and after an attention kernel: combine, cache write, copies.

Merge of partial results by the last block of a sequence, in place of a separate kernel.

Blocks that split the keys of a sequence write partial results and increment a semaphore. The last one reads all results
back and writes the output (``cpp/kernels/xqa/mha.cu`` and ``decoderMaskedMultiheadAttentionTemplate.h`` of
NVIDIA/TensorRT-LLM). Here the merging block is the last of the blocks with most keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, along, declared, uses_of
from attnsim.models.schedule.operation import BLOCK, Nest, TileOp, apart, loop, loop_nest, once
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS, Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch, TensorUse
from attnsim.models.schedule.splits import UNCUT, Splits

MAX_SPLITS = 128
SCALE_INSTRUCTIONS = by_hand(4, "FP32-lane instructions of a combine kernel per split and row")
MERGE_INSTRUCTIONS = by_hand(2, "FP32-lane instructions of a combine kernel per split and element")
ADDRESS_INSTRUCTIONS = by_hand(8, "FP32-lane instructions per 16 bytes of a paged cache write: addresses")
INDEX_ELEMENTS = 512
"""Elements per block of PyTorch's index assignment: 128 threads with four each (``launch_size_nd`` in
``aten/src/ATen/native/cuda/IndexKernel.cu``)."""


def split_count(tiles: int, slots: int, key_tiles: int, eligible_only: bool = True) -> int:
    """Number of ranges that FlashAttention splits the keys into.

    The smallest count whose wave efficiency is at least 0.85 of the best; 1 if the tiles already fill 0.8 of the slots
    (``num_splits_heuristic`` in ``csrc/flash_attn/flash_api.cpp`` and ``hopper/heuristics.h``).

    Parameters
    ----------
    tiles : int
        Blocks without splitting.
    slots : int
        Concurrent blocks as the rule assumes them (2 x SMs in FA2, SMs in FA3).
    key_tiles : int
        Key tiles to be split.
    eligible_only : bool
        Skip counts that give the same tiles per split as the count before (FA2 does, FA3 does not).
    """
    if tiles >= 0.8 * slots:
        return 1
    counts = np.arange(1, min(MAX_SPLITS, slots, key_tiles) + 1)
    share = -(-key_tiles // counts)
    eligible = np.ones(len(counts), dtype=bool)
    if eligible_only:
        eligible[1:] = share[1:] != share[:-1]
    waves = tiles * counts / slots
    efficiency = np.where(eligible, waves / np.ceil(waves), 0.0)
    return int(counts[np.argmax(efficiency >= 0.85 * efficiency.max())])


def of_all(splits: int | Splits) -> Splits:
    """Splits that a combine kernel merges; a number means that many for every sequence."""
    return replace(UNCUT, count=splits, grid=splits) if isinstance(splits, int) else splits


def merged_rows(w: Workload, splits: Splits) -> dict[int, int]:
    """Rows of O by the number of partial results they are merged from."""
    rows: dict[int, int] = {}
    for one, n in zip(w.parts, splits.merged(len(w.parts)).tolist(), strict=True):
        if n:
            rows[n] = rows.get(n, 0) + w.heads_q * one.queries * one.times
    return rows


def tiles_of(size: int, tile: int) -> list[tuple[int, int]]:
    """(elements, count) of an axis's whole tiles, then of a shorter one."""
    return [(n, count) for n, count in ((tile, size // tile), (size % tile, 1)) if n and count]


def merged(
    w: Workload, runs: dict[int, int], rows: int = 1, columns: int = 1
) -> tuple[tuple[Tensor, ...], tuple[TensorUse, ...]]:
    """Partial results O[s, r, c] and LSE[s, r] of a merge, its O[r, c] and LSE[r], and how blocks of a tile share them.

    Partial sums are read once per tile of columns.
    """
    final = Tensor("O", "r c", w.output_bytes, written=True), Tensor("LSE", "r", 4, written=True)
    tensors = Tensor("O partial", "s r c", 4), Tensor("LSE partial", "s r", 4), *final
    axes = {"s": Axis(tuple(runs)), "r": Axis(tuple(runs.values()), rows), "c": Axis(w.head_dim_v, columns)}
    return tensors, uses_of(tensors, axes, "r c")


def combine(w: Workload, splits: int | Splits, rows_per_block: int, threads: int) -> Kernel:
    """Kernel that merges the partial outputs of `splits` ranges of keys: each block walks the splits of its rows.

    A number as `splits` holds for all sequences.
    """
    width, runs = w.head_dim_v, merged_rows(w, of_all(splits))
    (parts, sums, out, lse), uses = merged(w, runs, rows_per_block, width)
    kinds = [(ranges, *rows) for ranges, all_rows in runs.items() for rows in tiles_of(all_rows, rows_per_block)]

    def body(ranges: int, rows: int) -> Nest:
        scale = TileOp("vector", "scale", exps=rows * ranges, fp32=SCALE_INSTRUCTIONS * rows * ranges)
        add = TileOp("vector", "O", fp32=MERGE_INSTRUCTIONS * rows * width)
        return [
            *once("log-sum-exps", [sums.load(rows * ranges), sums.wait(), scale]),
            *loop("split", ranges, lambda: (parts.load(rows * width), parts.wait(), add)),
            *once("store", [out.store(rows * width), lse.store(rows)]),
        ]

    buffers = (("LSE", rows_per_block * max(runs) * 4),)
    return merging("combine", kinds, body, threads=threads, buffers=buffers, uses=uses)


def merging(name: str, kinds: Sequence[tuple[int, ...]], body: Callable[..., Nest], **resources: Any) -> Kernel:
    """A kernel that merges partial results.

    Parameters
    ----------
    kinds : sequence of tuple of int
        For each kind of blocks, arguments of `body`, and at the end the number of blocks.
    body : callable
        Returns the loop nest of a block, from all but the last entry.
    **resources
        Fields of :class:`Kernel`.
    """
    nest = apart([body(*kind) for *kind, _ in kinds])
    launches = tuple(Launch.alike(blocks, number) for number, (*_, blocks) in enumerate(kinds))
    fixed = {"registers_per_thread": 64, "dtype": "fp32", "step": "split"}
    return Kernel.of(nest, name=name, launches=launches, **fixed, **resources)


IN_FLIGHT = 4
"""Partial results that a block of FA3's combine kernel has in flight (``kStages`` of
``hopper/flash_fwd_combine_kernel.h``)."""


def fa3_combine_tile(w: Workload) -> tuple[int, int]:
    """Rows and columns of a block of FA3's combine kernel."""
    return (16, 64) if w.head_dim_v <= 64 else (8, 128)


def fa3_combine_blocks(w: Workload) -> int:
    """Blocks of FA3's combine kernel for variable lengths: whole blocks of each sequence."""
    rows, width = fa3_combine_tile(w)
    tiles = sum(one.times * -(-w.heads_q * one.queries // rows) for one in w.parts)
    return tiles * -(-w.head_dim_v // width)


def fa3_combine(w: Workload, splits: int | Splits, alone: bool = False) -> Kernel:
    """FA3's combine kernel: blocks of 8 rows x 128 columns (16 x 64), partial results of four splits in flight.

    It is launched while the attention kernel drains (programmatic dependent launch). A number as `splits` holds for all
    sequences.

    If it is launched `alone`, nothing hides the beginning and the end of its blocks, each with the latency of an
    attention block: they look up the split count of their sequence, then its start (``SeqlenInfo``), then load; at the
    end they store. On Hopper the look-ups are done while the attention kernel drains.
    """
    size, width = fa3_combine_tile(w)
    latency = (BLOCK,) if alone else ()
    width, runs = min(width, w.head_dim_v), merged_rows(w, of_all(splits))
    (parts, sums, out, lse), uses = merged(w, runs, size, width)
    others = [(columns, across, False) for columns, across in tiles_of(w.head_dim_v - width, width)]
    kinds = [
        (ranges, rows, columns, first, blocks * across)
        for ranges, all_rows in runs.items()
        for rows, blocks in tiles_of(all_rows, size)
        for columns, across, first in ((width, 1, True), *others)  # the first block of a row writes its log-sum-exp
    ]

    def body(ranges: int, rows: int, columns: int, first: bool) -> Nest:
        scale = TileOp("vector", "scale", exps=rows * ranges, fp32=SCALE_INSTRUCTIONS * rows * ranges)
        load, ahead = parts.load(rows * columns), min(ranges, IN_FLIGHT - 1)

        def turn(load_next: bool) -> Iterator[TileOp]:
            yield parts.wait()
            if load_next:
                yield load
            yield TileOp("vector", "O", fp32=MERGE_INSTRUCTIONS * rows * columns)

        return [
            *once("log-sum-exps", [*latency, sums.load(rows * ranges), *[load] * ahead, sums.wait(), scale]),
            *loop("split", ranges, turn, load_next=ranges - ahead),
            *once("store", [*latency, out.store(rows * columns), *[lse.store(rows)] * first]),
        ]

    buffers = (("O", IN_FLIGHT * size * width * 4), ("LSE", size * max(runs) * 4))
    return merging("combine (staged)", kinds, body, threads=256, buffers=buffers, uses=uses, launched_early=True)


def cache_write(w: Workload, new_tokens: int) -> Kernel:
    """Kernel that writes new K and V into the paged cache, a block per token (vLLM's `reshape_and_cache_flash`).

    Each block looks up its slot, then copies the token's K and then its V in 16-byte pieces with up to 512 threads. The
    latency of the look-up and of address arithmetic is the implementation's `write_clks`.
    """
    widths = {"K": w.head_dim, "V": w.head_dim_v}
    sizes = {x: w.heads_kv * width * w.cache_bytes for x, width in widths.items()}
    wide = w.element_bytes // w.cache_bytes
    slots, new = Tensor("slot mapping", "t", 8), [Tensor(f"new {x}", "t", wide * size) for x, size in sizes.items()]
    cache = [Tensor(x, "t", size, written=True) for x, size in sizes.items()]

    def body() -> Nest:
        nest = once("slot", [slots.load(), slots.wait(), TileOp("delay", waits="write")])
        for source, to in zip(new, cache, strict=True):
            address = TileOp("vector", "address", fp32=ADDRESS_INSTRUCTIONS * -(-to.bytes // 16))
            nest += once(f"copy {source.name}", [source.load(), source.wait(), address, to.store()])
        return nest

    return declared(
        "cache_write",
        {"t": Axis(new_tokens)},
        "t",
        (slots, *new, *cache),
        {},
        body,
        threads=max(32, min(512, w.heads_kv * w.head_dim)),
        registers_per_thread=32,
        dtype="fp32",
        step="token",
    )


def store_cache(w: Workload, new_tokens: int) -> list[Kernel]:
    """Kernels that write the new tokens' K and V into the cache as SGLang does: rows spread over warps, bound by bytes.

    If K and V differ in width, which its kernel does not support, PyTorch's index assignment writes one after the
    other, element by element with the offset arithmetic of a broadcast pass. Each first converts the slots, which are
    32-bit in AIConfigurator's collector (``collector/sglang/collect_attn.py``), to 64-bit ones (``make_info`` in
    ``aten/src/ATen/native/TensorAdvancedIndexing.cpp``).
    """
    sizes = {"K": new_tokens * w.heads_kv * w.head_dim, "V": new_tokens * w.heads_kv * w.head_dim_v}
    e = w.element_bytes
    if w.head_dim == w.head_dim_v:
        size = sum(sizes.values())
        accesses = [Access("new KV", size * e), *(Access(tensor, n * e, True) for tensor, n in sizes.items())]
        return [streaming("store_cache", accesses, elements=size)]
    kernels = []
    for tensor, n in sizes.items():
        slots, read = f"64-bit slots {tensor}", 8 * new_tokens
        turned = [Access("slots", 4 * new_tokens), Access(slots, read, True)]
        kernels.append(streaming(f"slots {tensor}", turned, elements=new_tokens))
        accesses = [Access(f"new {tensor}", n * e), Access(slots, read), Access(tensor, n * e, True)]
        kernels.append(
            streaming(
                f"index {tensor}",
                accesses,
                elements=n,
                int32_per_element=BROADCAST_INSTRUCTIONS,
                block_bytes=INDEX_ELEMENTS * e,
            )
        )
    return kernels


def copy_rows(w: Workload, tensor: str) -> Kernel:
    """Transpose of the query or output rows of a decode step, as grouped heads need it."""
    size = w.heads_q * w.queries * (w.head_dim if tensor == "Q" else w.head_dim_v) * w.element_bytes
    source, to = ("Q strided", "Q") if tensor == "Q" else ("O", "O strided")
    accesses = [Access(source, size), Access(to, size, True)]
    return streaming(f"{tensor} transpose", accesses, elements=size // w.element_bytes)


def fa3_splits(w: Workload, gpu: Gpu, blocks: int, tile: FlashTile) -> int:
    """FA3's split rule for `blocks` tiles: no split up to four key tiles; with a window, the loaded ones count."""
    loaded = w.seq_kv
    if w.mask.is_windowed and w.mask.left is not None:
        loaded = min(loaded, w.mask.left + (w.mask.right or 0) + 1 + tile.rows)
    key_tiles = -(-loaded // tile.keys)
    return 1 if key_tiles <= 4 else split_count(blocks, gpu.sm.count, key_tiles, eligible_only=False)


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
        *along("groups s", {"O partial": size * 4, "LSE partial": rows * 4}, just_written=True),
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
