"""The small kernels around an attention kernel: split rules, combine, cache write, copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS, Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.splits import UNCUT, Splits
from attnsim.models.schedule.uses import TensorUse

MAX_SPLITS = 128
SCALE_INSTRUCTIONS = by_hand(4, "FP32-lane instructions of a combine kernel per split and row")
MERGE_INSTRUCTIONS = by_hand(2, "FP32-lane instructions of a combine kernel per split and element")
ADDRESS_INSTRUCTIONS = by_hand(8, "FP32-lane instructions per 16 bytes of a paged cache write: addresses")
INDEX_ELEMENTS = 512
"""Elements of a block of PyTorch's index assignment: 128 threads with four each (``launch_size_nd`` in
``aten/src/ATen/native/cuda/IndexKernel.cu``)."""


def split_count(tiles: int, slots: int, key_tiles: int, eligible_only: bool = True) -> int:
    """How many ranges FlashAttention cuts the keys into.

    The smallest count whose wave efficiency is at least 0.85 of the best, one where the tiles fill 0.8 of the slots
    already (``num_splits_heuristic`` in ``csrc/flash_attn/flash_api.cpp`` and ``hopper/heuristics.h``).

    Parameters
    ----------
    tiles : int
        Blocks without splitting.
    slots : int
        Blocks that run at the same time by the rule's own reckoning (2 x SMs in FA2, SMs in FA3).
    key_tiles : int
        Key tiles to share out.
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
    """Splits that a combine kernel merges: so many of all sequences, where it is a number."""
    return replace(UNCUT, count=splits, grid=splits) if isinstance(splits, int) else splits


def merged_rows(w: Workload, splits: Splits) -> dict[int, int]:
    """Rows of O that are merged from so many partial results each."""
    rows: dict[int, int] = {}
    for one, n in zip(w.parts, splits.merged(len(w.parts)).tolist(), strict=True):
        if n:
            rows[n] = rows.get(n, 0) + w.heads_q * one.queries * one.times
    return rows


def own_segments(loops: Sequence[Sequence[int]]) -> Ints:
    """How often classes of blocks run segments, where each has as many of its own, one class after another."""
    each = np.array(loops, dtype=np.int64)
    repeats = np.zeros((len(each), 1, each.size), dtype=np.int64)
    own = np.arange(len(each))
    repeats.reshape(len(each), *each.shape)[own, own] = each
    return repeats


def merged_uses(w: Workload, runs: dict[int, int], columns: int = 1) -> tuple[TensorUse, ...]:
    """What a merge of such rows reads and writes, in pieces where all have as many; sums once for each of `columns`."""
    read, merged = sum(n * rows for n, rows in runs.items()), sum(runs.values())
    pieces = next(iter(runs)) if len(runs) == 1 else 1
    return (
        TensorUse("O partial", read // pieces * w.head_dim_v * 4, pieces),
        TensorUse("LSE partial", read // pieces * 4, pieces, float(columns)),
        TensorUse("O", merged * w.head_dim_v * w.output_bytes, 1, written=True),
    )


def combine(w: Workload, splits: int | Splits, rows_per_block: int, threads: int) -> Kernel:
    """Merge the partial outputs of `splits` ranges of keys: each block walks the splits of its rows one by one.

    A number of `splits` is that of all sequences.
    """
    width, runs = w.head_dim_v, merged_rows(w, of_all(splits))

    def segments(tag: str, n: int, ranges: int) -> tuple[Segment, Segment, Segment]:
        return (
            Segment(
                f"log-sum-exps{tag}",
                (
                    TileOp("load", "LSE partial", bytes=n * ranges * 4),
                    TileOp("wait", "LSE partial"),
                    TileOp("vector", "scale", exps=n * ranges, fp32=SCALE_INSTRUCTIONS * n * ranges),
                ),
            ),
            Segment(
                f"split{tag}",
                (
                    TileOp("load", "O partial", bytes=n * width * 4),
                    TileOp("wait", "O partial"),
                    TileOp("vector", "O", fp32=MERGE_INSTRUCTIONS * n * width),
                ),
            ),
            Segment(f"store{tag}", (TileOp("store", "O", bytes=n * width * w.output_bytes),)),
        )

    stretches: list[Segment] = []
    loops: list[list[int]] = []
    launches: list[Launch] = []
    for ranges, rows in runs.items():
        blocks = -(-rows // rows_per_block)
        last = rows - (blocks - 1) * rows_per_block
        for tag, n, times in (("", rows_per_block, blocks - 1), (" (last rows)", last, 1)):
            if times:
                launches.append(Launch.alike(times, len(loops)))
            stretches += segments(tag, n, ranges)
            loops.append([1, ranges, 1])
    return Kernel(
        name="combine",
        threads=threads,
        registers_per_thread=64,
        buffers=(("LSE", rows_per_block * max(runs) * 4),),
        segments=tuple(stretches),
        repeats=own_segments(loops),
        launches=tuple(launches),
        uses=merged_uses(w, runs),
        dtype="fp32",
        step="split",
    )


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

    Launched while the attention kernel drains (programmatic dependent launch). A number of `splits` is
    that of all sequences.

    Launched `alone`, nothing hides how its blocks begin and end, each with the latency of a block of attention: they
    look up the split count of their sequence, then where it begins (``SeqlenInfo``), then load; at the end they store.
    On Hopper the look-ups are done while the attention kernel drains.
    """
    size, width = fa3_combine_tile(w)
    latency = (TileOp("delay", "block"),) if alone else ()
    width = min(width, w.head_dim_v)
    columns = -(-w.head_dim_v // width)
    runs = merged_rows(w, of_all(splits))

    def segments(tag: str, n: int, wide: int, ranges: int) -> tuple[Segment, ...]:
        partial = TileOp("load", "O partial", bytes=n * wide * 4)
        merge = (TileOp("wait", "O partial"), TileOp("vector", "O", fp32=MERGE_INSTRUCTIONS * n * wide))
        scales = (
            *latency,
            TileOp("load", "LSE partial", bytes=n * ranges * 4),
            *([partial] * min(ranges, IN_FLIGHT - 1)),
            TileOp("wait", "LSE partial"),
            TileOp("vector", "scale", exps=n * ranges, fp32=SCALE_INSTRUCTIONS * n * ranges),
        )
        return (
            Segment(f"log-sum-exps{tag}", scales),
            Segment(f"split{tag}", (*merge[:1], partial, *merge[1:])),
            Segment(f"last splits{tag}", merge),
            Segment(f"store{tag}", (*latency, TileOp("store", "O", bytes=n * wide * w.output_bytes))),
        )

    last_wide = w.head_dim_v - (columns - 1) * width
    stretches: list[Segment] = []
    loops: list[list[int]] = []
    launches: list[Launch] = []
    for ranges, rows in runs.items():
        blocks = -(-rows // size)
        last_rows = rows - (blocks - 1) * size
        for tag, n, wide, times in (
            ("", size, width, (blocks - 1) * (columns - 1)), (" (last columns)", size, last_wide, blocks - 1),
            (" (last rows)", last_rows, width, columns - 1), (" (last rows and columns)", last_rows, last_wide, 1),
        ):  # fmt: skip
            if times:
                launches.append(Launch.alike(times, len(loops)))
            stretches += segments(tag, n, wide, ranges)
            ahead = min(ranges, IN_FLIGHT - 1)
            loops.append([1, ranges - ahead, ahead, 1])
    return Kernel(
        name="combine (staged)",
        threads=256,
        registers_per_thread=64,
        buffers=(("O", IN_FLIGHT * size * width * 4), ("LSE", size * max(runs) * 4)),
        segments=tuple(stretches),
        repeats=own_segments(loops),
        launches=tuple(launches),
        uses=merged_uses(w, runs, columns),
        dtype="fp32",
        step="split",
        launched_early=True,
    )


def cache_write(w: Workload, new_tokens: int) -> Kernel:
    """Write the new tokens' K and V into the paged cache, one block a token (vLLM's `reshape_and_cache_flash`).

    Each block looks up its slot, then copies the token's K and after it its V in 16-byte pieces with up to 512
    threads; the latency of the look-up and of address arithmetic is the implementation's `extra`, in units of 1,000
    clocks.
    """
    threads = max(32, min(512, w.heads_kv * w.head_dim))
    e = w.element_bytes

    def copy(tensor: str, width: int) -> Segment:
        size = w.heads_kv * width * e
        return Segment(
            f"copy {tensor}",
            (
                TileOp("load", f"new {tensor}", bytes=size),
                TileOp("wait", f"new {tensor}"),
                TileOp("vector", "address", fp32=ADDRESS_INSTRUCTIONS * -(-size // 16)),
                TileOp("store", f"{tensor} cache", bytes=size),
            ),
        )

    slot = Segment(
        "slot",
        (
            TileOp("load", "slot mapping", bytes=8),
            TileOp("wait", "slot mapping"),
            TileOp("delay", "extra", clks=1000),
        ),
    )
    sizes = {"K": new_tokens * w.heads_kv * w.head_dim * e, "V": new_tokens * w.heads_kv * w.head_dim_v * e}
    return Kernel(
        name="cache_write",
        threads=threads,
        registers_per_thread=32,
        segments=(slot, copy("K", w.head_dim), copy("V", w.head_dim_v)),
        repeats=np.ones((1, 1, 3), dtype=np.int64),
        launches=(Launch.alike(new_tokens),),
        uses=(
            TensorUse("slot mapping", 8 * new_tokens, 1),
            *(TensorUse(f"new {tensor}", size, 1) for tensor, size in sizes.items()),
            *(TensorUse(f"{tensor} cache", size, 1, written=True) for tensor, size in sizes.items()),
        ),
        dtype="fp32",
        step="token",
    )


def store_cache(w: Workload, new_tokens: int) -> list[Kernel]:
    """Write the new tokens' K and V into the cache as SGLang does: rows spread over warps, bound by bytes.

    Where K and V differ in width, which its kernel does not take, PyTorch's index assignment writes one after the
    other, element by element with the offset arithmetic of a broadcast pass. Each first turns the slots, which are
    32-bit in AIConfigurator's collector (``collector/sglang/collect_attn.py``), into 64-bit ones (``make_info`` in
    ``aten/src/ATen/native/TensorAdvancedIndexing.cpp``).
    """
    sizes = {"K": new_tokens * w.heads_kv * w.head_dim, "V": new_tokens * w.heads_kv * w.head_dim_v}
    e = w.element_bytes
    if w.head_dim == w.head_dim_v:
        size = sum(sizes.values()) * e
        accesses = [Access("new KV", size), Access("KV cache", size, True)]
        return [streaming("store_cache", accesses, elements=size // e)]
    kernels = []
    for tensor, n in sizes.items():
        slots = [Access("slots", 4 * new_tokens), Access(f"64-bit slots {tensor}", 8 * new_tokens, True)]
        kernels.append(streaming(f"slots {tensor}", slots, elements=new_tokens))
        kernels.append(
            streaming(
                f"index {tensor}",
                [Access(f"new {tensor}", n * e), Access(f"{tensor} cache", n * e, True)],
                elements=n,
                int32_per_element=BROADCAST_INSTRUCTIONS,
                block_bytes=INDEX_ELEMENTS * e,
            )
        )
    return kernels


def copy_rows(w: Workload, tensor: str) -> Kernel:
    """A transpose of the query or output rows of a decode step, as grouped heads need."""
    size = w.heads_q * w.queries * (w.head_dim if tensor == "Q" else w.head_dim_v) * w.element_bytes
    accesses = [Access(tensor, size), Access(f"{tensor} transposed", size, True)]
    return streaming(f"{tensor} transpose", accesses, elements=size // w.element_bytes)


def fa3_splits(w: Workload, gpu: Gpu, blocks: int, tile: FlashTile) -> int:
    """FA3's split rule for `blocks` tiles: none up to four key tiles, of a window those that it loads."""
    loaded = w.seq_kv
    if w.mask.is_windowed and w.mask.left is not None:
        loaded = min(loaded, w.mask.left + (w.mask.right or 0) + 1 + tile.rows)
    key_tiles = -(-loaded // tile.keys)
    return 1 if key_tiles <= 4 else split_count(blocks, gpu.sm.count, key_tiles, eligible_only=False)
