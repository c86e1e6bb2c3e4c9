"""Tiles and split rules of the kernels that attend a latent cache. Facts of public source, nothing fitted.

FlashMLA: deepseek-ai/FlashMLA ``csrc/sm90/decode/dense``, ``csrc/api/dense_decode.h``, ``get_decoding_sched_meta.cu``
and ``docs/20250422-new-kernel-deep-dive.md``. FlashAttention-3 on latents: ``hopper/tile_size.h`` (head_dim 64 with a V
of 512, Q V^T added). SGLang's Triton kernels: ``triton_ops/decode_attention.py``, ``extend_attention.py`` and
``triton_backend.py``. TensorRT-LLM: the names of its kernels before Hopper and on sm_120
(``fmha_v2_flash_attention_bf16_64_64_S_q_paged_kv_576x512``), FlashMLA on Hopper, trtllm-gen on data-centre Blackwell
(``fmhaKernels.h``). CUTLASS: ``examples/77_blackwell_fmha``, ``Sm100FmhaMlaKernelTmaWarpspecialized``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.splits import split_count
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.schedule.schedule import Path

FIXED_OVERHEAD_BLOCKS = 5
"""Blocks of 64 keys that FlashMLA's scheduler charges a request for beside its own (``dense_decode.h``)."""
MIN_SPLIT_KEYS = 32
"""Keys to whose multiple SGLang's Triton decode rounds a range (``_MIN_BLOCK_KV``)."""
BASE_SPLITS = 8
"""``--triton-attention-num-kv-splits``, the least that its rule's upper bound can be."""


@dataclass(frozen=True, slots=True)
class LatentTile:
    """How a kernel cuts attention over a latent cache into tiles.

    Parameters
    ----------
    rows, keys : int
        Tile of (query, head) rows x cached tokens.
    warps : int
        Compute warps of a block.
    path : str
        Instruction path.
    loop : {"overlapped", "serial"}
        Whether S of the next tile is issued with P V of this one, or one product follows the other.
    stages : int
        Tiles of the cache in flight.
    warpgroups : int
        Groups of warps that share the work of a tile and may run ahead of one another.
    extra_threads : int
        Threads that only copy.
    registers : int
        Per thread.
    reload : bool
        Whether the columns that serve as V are copied a second time, rather than read where they lie as K.
    v_over_k : bool
        Whether that copy takes the place of K in shared memory.
    chunk : int
        Columns of K and V in shared memory at a time; 0 for all.
    packed : bool
        Whether the heads of a token share the rows of a tile; else each head has tiles of its own.
    longest_first : bool
        Whether the last row tiles, which see most keys, are launched first.
    pair : int
        Blocks of a cluster that multiply together, each of which copies its share of a tile of the cache.
    persistent : bool
        Whether one block an SM fetches tiles.
    max_blocks_per_sm : int or None
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

    def buffers(self, latent: Latent, element: int) -> tuple[tuple[str, int], ...]:
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


def flash_mla() -> LatentTile:
    """FlashMLA on Hopper: two warpgroups take turns at tiles of 64 tokens, each owning half of O ("seesaw")."""
    return LatentTile(
        64, 64, 8, "wgmma", "overlapped", stages=2, warpgroups=2, registers=255, persistent=True, max_blocks_per_sm=1
    )


def fa3() -> LatentTile:
    """FlashAttention-3: one warpgroup computes S and P, two multiply with V, no overlap of the steps."""
    return LatentTile(
        64, 64, 8, "wgmma", stages=2, extra_threads=128, registers=168, longest_first=True, max_blocks_per_sm=1
    )


def triton_decode(gpu: Gpu) -> LatentTile:
    """SGLang's and vLLM's grouped decode kernel: 16 heads, 32 tokens; K and V are separate loads."""
    stages = 2 if gpu.sm.shared_memory_per_block_bytes > 128 * 1024 else 1
    return LatentTile(16, 32, 4, stages=stages, reload=True)


def triton_prefill(gpu: Gpu) -> LatentTile:
    """SGLang's extend kernel: 32 queries of one head, 32 tokens where shared memory is short, else 64."""
    short = gpu.sm.shared_memory_per_block_bytes < 128 * 1024
    return LatentTile(32, 32 if short else 64, 8, reload=True, v_over_k=True, packed=False)


def fmha_v2() -> LatentTile:
    """TensorRT-LLM's FMHA v2 before Hopper and on sm_120: 64 x 64, K and V copied by chunks of columns."""
    return LatentTile(64, 64, 4, reload=True, chunk=64, max_blocks_per_sm=1)


def blackwell(w: Workload) -> LatentTile:
    """Kernels with accumulators in tensor memory: rows for the heads there are, at most 64 a block.

    With few heads trtllm-gen swaps A and B, so that the heads are the narrow side of the MMA (``SwapsMmaAb``); with
    more than 64, and in CUTLASS, two blocks of a cluster multiply 128 rows together (2-CTA MMA).
    """
    total = w.heads_q * w.seq_q
    rows, pair = next((size for size in (16, 32) if total <= size), 64), 2 if total > 64 else 1
    return LatentTile(
        rows, 64 * pair, 8, "tcgen05", "overlapped", stages=2, extra_threads=128, registers=128, pair=pair,
        max_blocks_per_sm=1,
    )  # fmt: skip


def triton_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> tuple[int, int]:
    """Ranges of keys of SGLang's Triton decode, and those of its grid, the others of which are empty.

    ``get_num_kv_splits_triton`` and ``_mla_decode_kv_splits_cap``.
    """
    length = w.seq_kv
    upper = max(BASE_SPLITS, _power_of_two(gpu.sm.count))
    cores = int(gpu.sm.count * max(math.log2(length / 64), 1.0))
    blocks = w.batch * -(-w.heads_q // min(tile.rows, w.heads_q))
    wanted = min(-(-cores // blocks), upper)
    share = -(-length // wanted)
    keys = -(-share // MIN_SPLIT_KEYS) * MIN_SPLIT_KEYS
    return -(-length // keys), upper


def trtllm_gen_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> int:
    """Blocks that share a sequence's keys in trtllm-gen: what fills the SMs, two tiles of 128 keys each at least."""
    blocks = w.batch * -(-w.heads_q * w.seq_q // tile.rows)
    return min(-(-w.seq_kv // 256), max(1, gpu.sm.count // blocks))


def cutlass_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> int:
    """Ranges of keys that CUTLASS's Blackwell example makes: whole waves of clusters (``device/sm100_mla.hpp``)."""
    tiles = -(-w.seq_kv // 128)
    splits = min(tiles, max(1, gpu.sm.count // (w.batch * tile.pair)))
    rounds = -(-tiles // splits)
    return -(-tiles // rounds)


def fa3_splits(w: Workload, gpu: Gpu, tile: LatentTile) -> tuple[int, int]:
    """Ranges of keys of FlashAttention-3's variable-length scheduler, and the upper bound that its rule gave.

    The rule pretends a batch of one; the scheduler then hands each SM an equal share (``heuristics.h``,
    ``flash_prepare_scheduler.cu``).
    """
    blocks, key_tiles = -(-w.seq_q * w.heads_q // tile.rows), -(-w.seq_kv // tile.keys)
    upper = 1 if key_tiles <= 4 else split_count(blocks, gpu.sm.count, key_tiles, eligible_only=False)
    per_sm = -(-int(1.1 * w.batch * blocks * key_tiles) // gpu.sm.count)
    return (1 if upper == 1 else min(upper, -(-key_tiles // per_sm))), upper


def _power_of_two(count: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << (count - 1).bit_length()


@dataclass(frozen=True, slots=True)
class DecompressedTile:
    """The tile of a fused kernel on the heads that were made from the latents.

    Parameters
    ----------
    tile : FlashTile
    same_width : bool
        Whether V is padded to the width of K, and O with it.
    """

    tile: FlashTile
    same_width: bool = False

    @property
    def names(self) -> dict[str, str]:
        """What the kernel's V and O are called."""
        return {"V": "V padded", "O": "O padded"} if self.same_width else {"V": "K nope, V"}

    def __str__(self) -> str:
        return str(self.tile)


@dataclass(frozen=True, slots=True)
class Share:
    """What FlashMLA's scheduler gives one block per tile of rows: requests of equal length, in blocks of 64 keys.

    Parameters
    ----------
    first : int
        Blocks of a request that an earlier part began; 0 without one.
    first_ends : bool
        Whether that request ends here.
    whole : int
        Requests that it does alone.
    last : int
        Blocks of a request that a later part ends; 0 without one.
    """

    first: int
    first_ends: bool
    whole: int
    last: int


def flash_mla_parts(batch: int, blocks: int, parts: int) -> list[Share]:
    """Share `batch` requests of `blocks` key blocks each out over `parts` (``get_mla_metadata_kernel``).

    Greedy: each part takes up to ``ceil(batch (blocks + 5) / parts) + 5`` blocks, 5 being charged for each request it
    touches, and cuts the last request where that is used up. Parts that get nothing are left out.
    """
    charge = FIXED_OVERHEAD_BLOCKS
    payload = -(-batch * (blocks + charge) // parts) + charge
    found: list[Share] = []
    request, done = 0, 0
    for _ in range(parts):
        room, first, ends, last = payload, 0, False, 0
        if request < batch and done:
            left = blocks - done
            if room >= left + charge:
                first, ends, room = left, True, room - left - charge
                request, done = request + 1, 0
            else:
                first = max(room - charge, 0)
                done, room = done + first, 0
        whole = min(room // (blocks + charge), batch - request)
        request, room = request + whole, room - whole * (blocks + charge)
        if request < batch and not done and room > charge:
            last = done = room - charge
        if first or whole or last:
            found.append(Share(first, ends, whole, last))
    return found
