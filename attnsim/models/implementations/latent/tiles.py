"""Tiles and split rules of the kernels that attend a latent cache, from public source; nothing is fitted.

FlashMLA: deepseek-ai/FlashMLA ``csrc/sm90/decode/dense``, ``csrc/api/dense_decode.h``, ``get_decoding_sched_meta.cu``
and ``docs/20250422-new-kernel-deep-dive.md``. FlashAttention-3 on latents: ``hopper/tile_size.h`` (head_dim 64 with a V
of 512, Q V^T added). SGLang's Triton kernels: ``triton_ops/decode_attention.py``, ``extend_attention.py`` and
``triton_backend.py``. TensorRT-LLM: the names of its kernels before Hopper and on sm_120
(``fmha_v2_flash_attention_bf16_64_64_S_q_paged_kv_576x512``), FlashMLA on Hopper, trtllm-gen on data-centre Blackwell
(``fmhaKernels.h``). CUTLASS: ``examples/77_blackwell_fmha``, ``Sm100FmhaMlaKernelTmaWarpspecialized``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.order import joined, longest_sequences
from attnsim.models.implementations.fused.splits import split_count
from attnsim.models.implementations.implementation import preset
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.schedule.row_tiles import classes, row_tiles
from attnsim.models.schedule.schedule import Buffers, Launch, Path
from attnsim.models.schedule.splits import UNCUT, Splits

FIXED_OVERHEAD_BLOCKS = 5
"""Blocks of 64 keys that FlashMLA's scheduler charges a request in addition to its own (``dense_decode.h``)."""
MIN_SPLIT_KEYS = 32
"""Multiple of keys that SGLang's Triton decode rounds a range to (``_MIN_BLOCK_KV``)."""
BASE_SPLITS = 8
"""``--triton-attention-num-kv-splits``, the least value of its rule's upper bound."""


@dataclass(frozen=True, slots=True)
class LatentTile:
    """Tiling of attention over a latent cache by a kernel.

    Parameters
    ----------
    rows, keys : int
        Tile of (query, head) rows x cached tokens.
    warps : int
        Compute warps of a block.
    path : str
        Instruction path.
    loop : {"overlapped", "serial"}
        Whether S of the next tile is issued with P V of this one, or the products are sequential.
    stages : int
        Tiles of the cache in flight.
    warpgroups : int
        Groups of warps that share the work of a tile and may run ahead of one another.
    extra_threads : int
        Threads that only copy.
    registers : int
        Registers per thread.
    reload : bool
        Whether the columns that serve as V are copied a second time, rather than read from K's buffer.
    v_over_k : bool
        Whether that copy overwrites K in shared memory.
    chunk : int
        Columns of K and V in shared memory at a time; 0 for all.
    packed : bool
        Whether the heads of a token share the rows of a tile; otherwise each head has separate tiles.
    longest_first : bool
        Whether the last row tiles, which see most keys, are launched first.
    pair : int
        Blocks of a cluster that multiply together, each of which copies its share of a tile of the cache.
    persistent : bool
        Whether one block per SM fetches tiles.
    """

    rows: int
    keys: int
    warps: int
    path: Path = "mma_sync"
    loop: Literal["overlapped", "serial"] = "serial"
    stages: int = 1
    warpgroups: int = 1
    extra_threads: int = 0
    registers: int = 255
    reload: bool = False
    v_over_k: bool = False
    chunk: int = 0
    packed: bool = True
    longest_first: bool = False
    pair: int = 1
    persistent: bool = False
    max_blocks_per_sm: int | None = None

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * 32 + self.extra_threads

    def buffers(self, latent: Latent, element: int) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        width = self.chunk or latent.width
        parts = [
            ("Q", self.rows * latent.width * element),
            ("Latent", self.stages * self.keys * width * element // self.pair),
        ]
        if self.path != "tcgen05":  # there P lies in tensor memory
            parts.append(("P", self.rows * self.keys * element))
        if self.reload and not self.v_over_k:
            parts.insert(2, ("V", self.keys * (self.chunk or latent.rank) * element))
        return tuple(parts)

    def __str__(self) -> str:
        stages = f", {self.stages} stages" if self.stages > 1 else ""
        heads = "" if self.packed else ", heads apart"
        again = ", V again" if self.reload else ""
        pairs = f", pairs of {self.pair}" if self.pair > 1 else ""
        return f"{self.rows} x {self.keys}, {self.warps} warps{stages}{heads}{again}{pairs}"


def triton_decode(gpu: Gpu) -> LatentTile:
    """SGLang's and vLLM's grouped decode kernel: 16 heads, 32 tokens; K and V are separate loads."""
    stages = 2 if gpu.sm.shared_memory_per_block_bytes > 128 * 1024 else 1
    return LatentTile(16, 32, 4, stages=stages, reload=True)


def triton_prefill(gpu: Gpu) -> LatentTile:
    """SGLang's extend kernel: 32 queries of one head, 32 tokens if shared memory is short, otherwise 64."""
    short = gpu.sm.shared_memory_per_block_bytes < 128 * 1024
    return LatentTile(32, 32 if short else 64, 8, reload=True, v_over_k=True, packed=False)


def _tcgen05(rows: int, pair: int) -> LatentTile:
    """A kernel with accumulators in tensor memory; in a pair, two blocks of a cluster multiply together (2-CTA MMA)."""
    return LatentTile(rows, 64 * pair, pair=pair, **preset("mla-tcgen05"))


def trtllm_gen(w: Workload, gpu: Gpu) -> LatentTile:
    """trtllm-gen's decode: 8 or 16 heads per block if A and B are swapped (heads on the narrow side); otherwise 64.

    ``selectMlaGenerationKernel`` of ``fmhaKernels.cuh``: swapped up to 32 heads, and for more if blocks of 16 all find
    an SM and have at most 1,024 keys each (``useSwapsMmaAbMlaGenKernel``). A number of heads that is not a power of two
    has one tile, of the next power (``getPaddedMlaTileSizeQ``). For 128 heads two blocks multiply together. Each block
    reads the cache for itself.
    """
    heads = w.heads_q
    padded = max(8, _power_of_two(heads))
    if heads <= 64 and heads & (heads - 1):
        return _tcgen05(padded, 1)
    blocks = w.batch * w.seq_q * -(-heads // 16)
    shares = _gen_shares(w.seq_kv, blocks, gpu)
    if heads <= 32 or (blocks <= gpu.sm.count and -(-w.seq_kv // shares) <= 1024):
        return _tcgen05(min(16, padded), 1)
    return _tcgen05(64, 2 if heads > 64 else 1)


def cutlass(w: Workload) -> LatentTile:
    """CUTLASS's decode: rows for the heads; with more than 64, two blocks of a cluster share 128."""
    total = w.heads_q * w.seq_q
    rows = next((size for size in (16, 32) if total <= size), 64)
    return _tcgen05(rows, 2 if total > 64 else 1)


def triton_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> Splits:
    """Ranges of keys of SGLang's Triton decode, and those of its grid, of which the excess is empty.

    ``get_num_kv_splits_triton`` and ``_mla_decode_kv_splits_cap``. Sequences of very different lengths get ranges of
    the length of the shortest, if the grid has as many.
    """
    longest, shortest = w.seq_kv, min(one.keys for one in w.parts)
    upper = max(BASE_SPLITS, _power_of_two(gpu.sm.count))
    cores = int(gpu.sm.count * max(math.log2(longest / 64), 1.0))
    blocks = w.batch * -(-w.heads_q // min(tile.rows, w.heads_q))
    shortest = longest if 8 * longest < 10 * shortest else shortest
    chunks = [-(-longest // min(-(-n // of), upper)) for n, of in ((longest, shortest), (cores, blocks))]

    def ranges(keys: int) -> int:
        share = -(-keys // max(-(-keys // chunk) for chunk in chunks))
        return -(-keys // (-(-share // MIN_SPLIT_KEYS) * MIN_SPLIT_KEYS))

    return _apart([ranges(one.keys) for one in w.parts], upper)


def _apart(each: list[int], grid: int) -> Splits:
    """Splits with `each` ranges of the sequences in a grid of `grid` ranges; 0: of the largest number."""
    if len(set(each)) == 1:
        return Splits(each[0], grid=grid)
    return Splits(max(each), grid=grid or max(each), each=tuple(each), direct=False)


def trtllm_gen_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> Splits:
    """Blocks that share each sequence's keys in trtllm-gen (`_gen_shares`).

    The grid is that of the longest sequence; for the others, blocks without keys are assumed to exit (closed).
    """
    blocks = w.batch * -(-w.heads_q * w.seq_q // tile.rows)
    return _apart([_gen_shares(one.keys, blocks, gpu) for one in w.parts], 0)


def _gen_shares(keys: int, blocks: int, gpu: Gpu) -> int:
    """Blocks that share a sequence's keys: as many as fill the SMs, each with at least two tiles of 128 keys."""
    return min(-(-keys // 256), max(1, gpu.sm.count // blocks))


def cutlass_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> Splits:
    """Ranges of keys that CUTLASS's Blackwell example makes: whole waves of clusters (``device/sm100_mla.hpp``).

    Each sequence has the same number of ranges with equal numbers of tiles; ranges without a tile exit
    (``kernel/sm100_fmha_mla_tma_warpspecialized.hpp``).
    """
    splits = min(-(-w.seq_kv // 128), max(1, gpu.sm.count // (w.batch * tile.pair)))
    tiles = [-(-one.keys // 128) for one in w.parts]
    return _apart([-(-n // -(-n // splits)) for n in tiles], 0)


def fa3_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> tuple[Splits, int]:
    """Ranges of keys of FlashAttention-3's variable-length scheduler, and the upper bound that its rule gave.

    The rule assumes a batch of one, the longest sequence; the scheduler then assigns each SM an equal share
    (``heuristics.h``, ``flash_prepare_scheduler.cu``).
    """
    blocks, key_tiles = -(-w.seq_q * w.heads_q // tile.rows), -(-w.seq_kv // tile.keys)
    upper = 1 if key_tiles <= 4 else split_count(blocks, gpu.sm.count, key_tiles, eligible_only=False)
    if upper == 1:
        return UNCUT, 1
    tiles = [(one.times * -(-one.queries * w.heads_q // tile.rows), -(-one.keys // tile.keys)) for one in w.parts]
    per_sm = -(-int(1.1 * sum(rows * keys for rows, keys in tiles)) // gpu.sm.count)
    each = tuple(min(upper, -(-keys // per_sm)) for _, keys in tiles)
    return Splits(max(each), each=each if len(set(each)) > 1 else ()), upper


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


class Piece(NamedTuple):
    """Consecutive blocks of 64 keys of a request, which FlashMLA's scheduler assigns to one part.

    Parameters
    ----------
    whole : bool
        Whether they are all blocks of the request.
    ends : bool
        Whether the request's last block is among them.
    """

    request: int
    blocks: int
    whole: bool
    ends: bool


def flash_mla_pieces(blocks: Sequence[int], parts: int) -> list[Piece]:
    """Distribute requests with the given numbers of key blocks over `parts` parts (``get_mla_metadata_kernel``).

    The rule is greedy: each part takes up to its share of all blocks, where each request that it touches costs 5 more,
    and splits the last request when the share is used up. Pieces are in the order in which all parts together reach
    them.
    """
    charge = FIXED_OVERHEAD_BLOCKS
    payload = -(-(sum(blocks) + charge * len(blocks)) // parts) + charge
    found: list[tuple[int, int, Piece]] = []
    request = done = 0
    for part in range(parts):
        room = payload
        while request < len(blocks) and room > charge:
            left = blocks[request] - done
            taken, ends = min(left, room - charge), left <= room - charge
            found.append((payload - room, part, Piece(request, taken, ends and not done, ends)))
            room -= taken + charge
            request, done = (request + 1, 0) if ends else (request, done + taken)
    return [piece for _, _, piece in sorted(found)]


COUNTED = ("steps", "masked", "missing_keys", "missing_rows")
FINAL, PARTIAL, NOTHING = range(3)
"""Output of a block: its rows of O; a partial result in fp32; or nothing, as there was no key for it."""


def latent_of(w: Workload) -> Latent:
    """The latent of a workload.

    Raises
    ------
    InputError
        If it has none.
    """
    if w.latent is None:
        raise InputError("the question has no latent; give one, --latent 512x64 or latent=Latent(512, 64)")
    return w.latent


def absorbed(w: Workload) -> Workload:
    """The attention over the cache: one key and value head, as wide as the latent with and without its rotary key."""
    latent = latent_of(w)
    return replace(w, heads_kv=1, head_dim=latent.width, head_dim_v=latent.rank, latent=None)


@dataclass(frozen=True, eq=False)
class Visits:
    """Key tiles and output of each class of blocks.

    Parameters
    ----------
    steps, masked : ndarray of int, ``[classes]``
        Key tiles visited, and those of them that are masked.
    missing_keys, missing_rows : ndarray of int, ``[classes]``
        Keys missing from the last key tile, if it is visited, and rows missing from the row tile.
    written : ndarray of int, ``[classes]``
        Output: `FINAL`, `PARTIAL` or `NOTHING`.
    partial_rows : int
        Rows of all partial results.
    """

    steps: Ints
    masked: Ints
    missing_keys: Ints
    missing_rows: Ints
    written: Ints
    launches: tuple[Launch, ...]
    partial_rows: int


def even_visits(w: Workload, tile: LatentTile, splits: Splits, *, merged: bool = False) -> Visits:
    """The keys of every request split into equal ranges, one block each, by row tile.

    Blocks without a row tile or a range of keys come last and exit. FlashAttention-3's scheduler has none, and takes
    the longest sequences first.

    Parameters
    ----------
    w : Workload
        The absorbed form.
    merged : bool
        Whether a combine kernel merges the ranges.
    """
    pack = w.heads_q if tile.packed else 1
    heads = w.heads_q // pack
    ranges = np.array(splits.each or [splits.count] * len(w.parts))
    of_parts = splits.merged(len(w.parts)) * merged
    cut = [row_tiles(w, tile.rows, tile.keys, pack, s, ranges) for s in range(splits.count)]
    part, number = np.concatenate([one.part for one in cut]), np.repeat(np.arange(len(cut)), len(cut[0].part))
    launched = np.flatnonzero(number < ranges[part])
    part = part[launched]
    columns = [np.concatenate([getattr(one, name) for one in cut])[launched] for name in COUNTED]
    (*counted, written), order = classes(*columns, np.where(of_parts[part] > 0, PARTIAL, FINAL))
    tiles = np.bincount(cut[0].part)
    blocks = [order[part == one].reshape(-1, count) for one, count in enumerate(tiles.tolist())]
    visits = Visits(
        **dict(zip(COUNTED, counted, strict=True)),
        written=written,
        launches=_launches(w, tile, blocks, heads),
        partial_rows=sum(
            one.times * of * w.heads_q * one.queries for one, of in zip(w.parts, of_parts.tolist(), strict=True)
        ),
    )
    grid = np.maximum(splits.grid, ranges) * (tiles if tile.longest_first else tiles.max())
    counts = np.array([one.times for one in w.parts])
    idle = int(counts @ (grid - ranges * tiles)) * heads
    return _with_idle(visits, idle) if idle else visits


def _launches(w: Workload, tile: LatentTile, blocks: Sequence[Ints], heads: int) -> tuple[Launch, ...]:
    """Requests in turn, with their ranges of keys, row tiles fastest; or the longest first, from the end."""
    parts: Sequence[tuple[Length, Ints]] = list(zip(w.parts, blocks, strict=True))
    if tile.longest_first:
        parts = [(one, of[::-1, ::-1]) for one, of in longest_sequences(w, tile.rows, tile.keys, parts)]
    return joined([Launch(of.reshape(-1), one.times * heads) for one, of in parts])


def _with_idle(visits: Visits, blocks: int) -> Visits:
    """Append `blocks` blocks that have nothing to do."""
    last = Launch.alike(blocks, len(visits.steps))
    counted: dict[str, Any] = {name: np.append(getattr(visits, name), 0) for name in COUNTED}
    return replace(visits, **counted, written=np.append(visits.written, NOTHING), launches=(*visits.launches, last))


def flash_mla_visits(w: Workload, tile: LatentTile, pieces: Sequence[Piece]) -> Visits:
    """FlashMLA's shares: a work tile for each request that a part touches and each row tile; `w` is absorbed.

    A part processes its requests in turn. Here they are launched in the order in which all parts together reach them,
    the first of every part before the second of any. The next free SM takes the next one, which is the part's own if
    shares are equal.
    """
    keys = np.repeat([one.keys for one in w.parts], [one.times for one in w.parts])
    total_rows = w.seq_q * w.heads_q
    row_count = -(-total_rows // tile.rows)
    missing = -keys % tile.keys
    table = [
        (piece.blocks, FINAL if piece.whole else PARTIAL, int(piece.ends), int(missing[piece.request] * piece.ends))
        for piece in pieces
    ]
    unique, order = np.unique(np.array(table, dtype=np.int64), axis=0, return_inverse=True)
    short = int(row_count * tile.rows > total_rows)
    steps, written, ends, missing_keys = np.repeat(unique, 1 + short, axis=0).T
    missing_rows = np.tile(np.arange(1 + short) * (row_count * tile.rows - total_rows), len(unique))
    classes_in_order = np.repeat(order.reshape(-1) * (1 + short), row_count)
    classes_in_order[row_count - 1 :: row_count] += short
    partial = sum(not piece.whole for piece in pieces)
    return Visits(
        steps=steps,
        masked=ends,
        missing_keys=missing_keys,
        missing_rows=missing_rows,
        written=written,
        launches=(Launch(classes_in_order),),
        partial_rows=partial * total_rows,
    )


def split_requests(pieces: Sequence[Piece]) -> Counter[int]:
    """Number of split requests, by their number of ranges."""
    return Counter(Counter(piece.request for piece in pieces if not piece.whole).values())


def flash_mla_shares(w: Workload, tile: LatentTile, sms: int) -> tuple[list[Piece], int]:
    """Pieces of FlashMLA's schedule, and the number of parts by its rule."""
    wanted = max(1, sms // -(-w.seq_q * w.heads_q // tile.rows))
    blocks = [-(-one.keys // tile.keys) for one in w.parts for _ in range(one.times)]
    return flash_mla_pieces(blocks, wanted), wanted
