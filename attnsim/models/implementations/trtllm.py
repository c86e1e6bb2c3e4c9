"""Kernels that TensorRT-LLM launches for a context and for a generation step, by GPU.

Its attention operator takes Q, K and V packed. A first kernel adds bias, rotates Q and K (RoPE), writes K and V into
the paged cache and Q into a buffer (``invokeQKVPreprocessing``); the attention kernel follows. Masked multi-head
attention does all of this in one kernel. vLLM and SGLang call the same kernels on data-centre Blackwell through
FlashInfer, each after its own kernel that writes the cache.

Partial results of split keys are merged by the last block of a sequence, without a separate kernel.

Choice of kernel, tile and number of splits is public source of NVIDIA/TensorRT-LLM 1.3 and
flashinfer-ai/flashinfer; nothing is fitted:

- context before Blackwell: ``cpp/kernels/fmha_v2/setup.py`` (tiles by architecture and head_dim) and
  ``contextFusedMultiHeadAttention/fmhaRunner.cpp`` (which of them);
- generation before Blackwell: XQA, ``cpp/kernels/xqa/mha.cu`` (tile), ``decoderXQAImplJIT.cpp`` and
  ``kernelUtils.cpp`` (when), ``decoderXQAImplCommon.h`` (blocks per sequence); otherwise masked multi-head attention
  (below);
- data-centre Blackwell: trtllm-gen, whose kernels are binaries with their tiles in their names, and whose selection is
  ``flashinfer/trtllm/fmha/fmhaKernels.cuh``.

Masked multi-head attention is one query of one head against its keys, on the FP32 lanes:
``cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention`` of NVIDIA/TensorRT-LLM. The grid is chosen in
``decoderMaskedMultiheadAttentionLaunch.h``, the kernel is ``decoderMaskedMultiheadAttentionTemplate.h``. Keys are
divided among threads, 16 bytes of one key each. Threads look up the page of every key, and process K, then V; heads of
a group share no reads. Bias, rotation and cache write are in the same kernel. Partial results of split keys are merged
by the last block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention_4 import plain_tile
from attnsim.models.implementations.fused.building import alike, flash_schedule, override
from attnsim.models.implementations.fused.forward import flash_forward, flash_peak_bytes
from attnsim.models.implementations.fused.splits import cache_write, merging_last, store_cache
from attnsim.models.implementations.fused.tile import FlashTile, Order
from attnsim.models.implementations.implementation import TileRequest, preset, record
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import LANES
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule, edited
from attnsim.models.schedule.splits import UNCUT, Splits

SHARED_READS = by_hand(2, "blocks of trtllm-gen (closed) that share a read of K and V where each has one tile of rows")
"""Derived from times: at head_dim 256, blocks that each read for themselves would request 11 TB/s from the L2."""
XQA_LARGEST_GROUP = 32
"""Most query heads per key head that XQA has kernels for (``supportConfigHMMA``)."""
XQA_KEYS_PER_BLOCK = 128
"""``kMinHistoryTokensPerBlock``."""
XQA_WAVES = 8
"""``kTargetWaveFactor``."""
XQA_SUB_SEQUENCES = 6000
"""``getXqaMaxNumSubSeq``: sequences times splits that the workspace holds."""
EARLY_LAUNCHES = 90
"""Compute capability from which XQA is launched while the kernel before it drains (``CubinObj::launch``, and
``getEnvEnablePDL``, which is on by default in 1.3)."""
XQA_TILE = 256
"""Keys that a block's four warps cover in one turn (``ctaTile.x``)."""
FRAGMENT = 16
"""Least rows of a group's heads: one MMA's."""
XQA_WARP_KEYS = 64
"""Keys, and columns of V, of one of the four warps that multiply (``warpTile.x``)."""
GEN_MERGED = by_hand(8, "partial results that the last block of trtllm-gen (closed) reads at a time")
BY_SEQUENCE: Order = "grid_by_sequence"
"""Sequences are the outermost dimension of the grids, or of the tile numbers that counters assign."""
GEN_KEYS = 256
"""Keys of one step of a trtllm-gen block, two tiles of 128."""


def compiled_width(width: int) -> int:
    """The head_dim that TensorRT-LLM's own kernels are compiled for: 32, 64, 128, and multiples of 64 beyond."""
    return -(-width // 64) * 64 if width > 128 else max(32, 1 << (width - 1).bit_length())


def compiled_widths(w: Workload) -> tuple[int, int]:
    """Head dimensions of K and of V that those kernels compute with; copies are predicated to the valid columns."""
    return compiled_width(w.head_dim), compiled_width(w.head_dim_v)


def _width(w: Workload) -> int:
    return compiled_width(max(w.head_dim, w.head_dim_v))


def _from_the_end(w: Workload) -> Order:
    """Last row tiles first; by the longest sequence's grid if sequences differ."""
    return "last_rows_first" if w.lengths else "longest_first"


def context_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """FMHA v2: warp-specialised with TMA on Hopper, otherwise Ampere's loop, "tiled" with 128 keys if faster."""
    d = _width(w)
    if gpu.features.wgmma:
        keys = 256 if d <= 64 else 128 if d <= 128 else 64
        kv_bytes = 2 * w.element_bytes * w.batch * w.heads_q * w.seq_q * w.head_dim
        balanced = w.mask.is_causal and kv_bytes <= gpu.l2.capacity_bytes
        order = _from_the_end(w) if balanced else BY_SEQUENCE
        return FlashTile(128, keys, order=order, **preset("fmha-v2-hopper"))
    if architecture_of(gpu.compute_capability_number).small_shared_memory and d < 256:
        return FlashTile(64, 64 if d <= 64 else 32, order=BY_SEQUENCE)
    tile = FlashTile(128 if d <= 64 else 64, 128, order=BY_SEQUENCE)
    while tile.shared_memory_bytes(d, d, w.element_bytes) > gpu.sm.shared_memory_per_block_bytes:
        tile = replace(tile, keys=tile.keys // 2)
    return tile


def has_gen_kernel(w: Workload) -> bool:
    """Return whether trtllm-gen has a kernel as TensorRT-LLM calls it; otherwise FMHA v2 or masked attention runs.

    The encoder's times at head_dim 72 (three times those at 80), and those of more than 32 query heads per key head,
    show where it has none.
    """
    widths = w.head_dim % 16 == 0 and w.head_dim_v % 16 == 0
    return widths and (w.passes == "fwd" or w.group * w.seq_q <= XQA_LARGEST_GROUP)


def runs_xqa(w: Workload, gpu: Gpu) -> bool:
    """Return whether a generation step uses XQA: grouped heads, and enough blocks (``mayHavePerfGain``).

    Both rules count the token of the step itself among the keys (``max_past_kv_length``).
    """
    if w.seq_q > 1:
        return True  # only XQA takes several tokens per sequence
    blocks = w.batch * w.heads_kv * max(1, w.seq_kv // XQA_KEYS_PER_BLOCK)
    return 1 < w.group <= XQA_LARGEST_GROUP and 4 * blocks >= gpu.sm.count


def xqa_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """XQA: a group's heads in 16 or 32 rows, keys divided over four warps; two buffers of 64 or 32 KiB of K."""
    d = _xqa_width(w)
    kept = 64 if gpu.compute_capability_number in (80, 90) else 32  # KiB of K and as much of V
    keys = min(XQA_TILE, kept * 1024 // (2 * d * w.element_bytes) // 16 * 16)
    rows = -(-w.group * w.seq_q // FRAGMENT) * FRAGMENT
    return FlashTile(rows, keys, widths=(d, d), **preset("xqa"))


def _xqa_width(w: Workload) -> int:
    """The head_dim that XQA computes with: 64, 128 or 256 (``headElems`` of ``defines.h``)."""
    return max(64, 1 << (max(w.head_dim, w.head_dim_v) - 1).bit_length())


def xqa_splits(w: Workload, gpu: Gpu) -> int:
    """Blocks per sequence and key head: ``computeMultiBlockCount``, for the whole cache even with a window."""
    count = w.seq_kv // XQA_KEYS_PER_BLOCK
    count = max(1, min(count, round(math.sqrt(8 * count))))
    excess = w.batch * w.heads_kv * count / gpu.sm.count / XQA_WAVES
    if excess > 1:
        count = max(1, int(count / excess))
    return max(1, min(count, XQA_SUB_SEQUENCES // w.batch))


def gen_context_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """trtllm-gen's context kernel: two tiles of 128 rows (one at head_dim 256), with a softmax warpgroup each."""
    stages = 1 if max(w.head_dim, w.head_dim_v) > 128 else 2
    order = _from_the_end(w) if w.mask.is_causal else BY_SEQUENCE
    return replace(plain_tile(w, gpu), keys=128, loop="staged", stages=stages, order=order)


def gen_generation_tile(w: Workload) -> FlashTile:
    """trtllm-gen's generation kernel: the group's heads in the N of the MMA from 8 on (swapsMmaAb), or 64, 128 rows."""
    d, heads = padded(max(w.head_dim, w.head_dim_v)), w.group * w.seq_q
    rows = next((size for size in (8, 16, 32, 64) if heads <= size), 128)
    kv_tile = 2 * 128 * d * w.element_bytes
    stages = max(1, min(3, (224 * 1024 - rows * d * w.element_bytes) // kv_tile))  # of 227 KiB
    return FlashTile(rows, 128, stages=stages, **preset("trtllm-gen-generation"))


def gen_splits(w: Workload, gpu: Gpu, tile: FlashTile) -> int:
    """Blocks per sequence: as many as free SMs allow, each with at least two steps of keys in its window."""
    reach = w.seq_kv
    if w.mask.left is not None and w.mask.left + 1 < w.seq_kv:
        reach = min(w.seq_kv, w.mask.left + GEN_KEYS)
    blocks = w.batch * w.heads_kv * -(-w.group * w.seq_q // tile.rows)
    return min(-(-reach // (2 * GEN_KEYS)), max(1, gpu.sm.count // blocks))


MASKED = "masked_attention"
THREADS = (256, 512, 1024)
"""Compiled block sizes (``mmha_launch_kernel_ex``)."""
REGISTERS = by_hand(
    64, "of a thread of masked attention, of which an SM holds 32 warps by the comment in its launch code"
)
ELEMENTS = 8
"""Elements of a key per thread: 16 bytes of 16-bit formats (``K_VEC_SIZE``)."""
KEYS_AT_ONCE = 4
"""Keys that a thread loads before it uses the first (``K_LOOP_UNROLL``); for V twice as many."""
KEYS_AT_LEAST = 8
"""Least keys per thread in a block of split keys (``multi_block_grid_setup``)."""
LOGIT_BYTES = 6
"""Shared memory of a logit: fp32, and 16 bit for the second product."""
SHARED_MEMORY_LEFT = 2048
"""Bytes of a block's shared memory that logits do not use (``mMaxSharedMemoryPerBlockOptin - 2048``)."""
MERGE_CLKS = by_hand(7000, "latency of the merge in the last block of masked attention, beside its round trips")
"""A fence before the counter, four loads that wait for one another and some twenty barriers of all threads. Read off
steps from one range of keys to two: 4.1 us on H100, 3.3 us on L40S, on both 8,200 clocks with the round trips. A number
fitted by hand: the rows of these two GPUs (``fit`` and ``choose``) are no test of it."""
BARRIERS_CLKS = by_hand(2100, "latency of a block of masked attention beyond XQA's: its twenty barriers")
"""For rotation, maximum, sum, and the outputs of groups of threads, which are halved between two barriers. Read off
steps of up to 32 keys on H100, of one wave and of eight: fitted by hand on rows that are ``fit``."""

Attended = tuple[list[Kernel], FlashTile, Splits]
"""The attention kernels, their tile, and the splits of the keys."""


class VectorCounts(NamedTuple):
    """Instructions of a thread for 16 bytes of K or V, read in the source: page, address, products, bounds.

    Parameters
    ----------
    issued : int
        All instructions.
    fp32, integer, load_store : int
        Instructions of each pipe; integer multiplications run with FP32, conversions with the integers.
    """

    issued: int
    fp32: int
    integer: int
    load_store: int


OF_K = by_hand(
    VectorCounts(59, 22, 30, 3),
    "instructions a 16 bytes of K: 20 for page and address (`getKBlockPtr`, `getKVLocalIdx`), 23 for the product of 8 "
    "elements in fp32 (`qk_dot_`), 16 for scale, bias, bounds, maximum and store",
)
OF_V = by_hand(
    VectorCounts(45, 13, 26, 3),
    "the same of V: 20 for page and address, 16 for 8 elements (`Logit_value_fma`), 9 for bounds, logit and loop",
)


@dataclass(frozen=True, slots=True)
class MaskedTile:
    """A block of masked multi-head attention: one query head.

    Parameters
    ----------
    keys : int
        Keys of one iteration.
    splits : int
        Blocks per sequence and head.
    lanes : int
        Threads that share a key.
    """

    threads: int
    keys: int
    splits: int
    lanes: int

    @property
    def keys_at_once(self) -> int:
        """Keys, or partial results of a merge, that a block reads at a time."""
        return self.threads // self.lanes


def masked_tile(w: Workload, gpu: Gpu) -> MaskedTile:
    """Threads by the number of blocks, and splits so that blocks of 1024 threads fill the SMs once.

    The SMs' places for blocks of 256 threads are divided among the blocks. The quotient is rounded up, times 256
    threads, then down to a compiled size (``mmha_launch_kernel_ex``). Keys are split at least as often as the shared
    memory of their logits requires (``estimate_min_multi_block_count``), into ranges of equally many keys, which need
    not be whole iterations.
    """
    blocks, smallest = w.batch * w.heads_q, THREADS[0]
    held = THREADS[-1] // smallest
    factor = min(held, -(-held * gpu.sm.count // blocks))
    threads = max(size for size in THREADS if size <= smallest * factor)
    width = max(32, 1 << (max(w.head_dim, w.head_dim_v) - 1).bit_length())
    lanes = width // ELEMENTS
    at_once = threads // lanes
    seen = w.seq_kv if w.mask.left is None else min(w.seq_kv, w.mask.left + 1)
    room = (gpu.sm.shared_memory_per_block_bytes - SHARED_MEMORY_LEFT) // LOGIT_BYTES
    wanted = min(-(-gpu.sm.count // blocks), -(-w.seq_kv // (at_once * KEYS_AT_LEAST)))
    splits = max(-(-seen // room), wanted)
    share = -(-seen // splits)
    turns = -(-share // (at_once * KEYS_AT_ONCE))
    return MaskedTile(threads, -(-share // turns), splits, lanes)


def masked_attention(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    """The kernel, its tile and its splits.

    Raises
    ------
    InputError
        If a tile is requested.
    """
    if shape is not None:
        raise InputError("masked multi-head attention has no tile to choose; leave --tile out")
    chosen = masked_tile(w, gpu)
    tile = FlashTile(
        1,
        chosen.keys,
        warps=chosen.threads // 32,
        loop="staged",
        registers=REGISTERS,
        path="simt",
        widths=(chosen.lanes * ELEMENTS,) * 2,
        order=BY_SEQUENCE,
    )
    seen = within_window(w, 1)
    # `timesteps_per_block`: ranges as long as the longest sequence's; the last of shorter sequences are empty.
    splits = Splits(chosen.splits, chunk=-(-seen.seq_kv // (chosen.keys * chosen.splits)))
    main = _on_lanes(flash_forward(seen, gpu, tile, MASKED, splits, lse=False), chosen.lanes)
    logits = min(-(-seen.seq_kv // splits.count) * LOGIT_BYTES, gpu.sm.shared_memory_per_block_bytes)
    main = replace(
        main,
        buffers=(("logits", logits),),
        in_flight_bytes=chosen.threads * KEYS_AT_ONCE * ELEMENTS * w.element_bytes,
    )
    if splits.partial:
        main = merging_last(main, w, splits.count, 1, chosen.keys_at_once, MERGE_CLKS)
    return [main], tile, splits


def _on_lanes(kernel: Kernel, lanes: int) -> Kernel:
    """The kernel with products as instructions of threads, the sum of Q K over the lanes of a key, and the barriers."""
    halvings = lanes.bit_length() - 1  # one shuffle and one addition each
    summed = OF_K._replace(
        issued=OF_K.issued + 2 * halvings, fp32=OF_K.fp32 + halvings, load_store=OF_K.load_store + halvings
    )
    counts = {"S": summed, "O": OF_V}

    def edit(op: TileOp) -> TileOp:
        if op.waits == "block":
            return op._replace(clks=BARRIERS_CLKS // 2)
        if op.kind != "mma":
            return op
        vectors, each = op.flops // 2 // ELEMENTS, counts[op.tensor]
        return TileOp(
            "vector",
            op.tensor,
            fp32=vectors * each.fp32,
            int32=vectors * each.integer,
            load_stores=vectors * each.load_store,
            issues=-(-vectors * each.issued // 32),
        )

    return edited(kernel, edit)


def within_window(w: Workload, step: int) -> Workload:
    """A generation step without whole steps of keys before its window: blocks start after them."""
    if w.seq_q == 1 and w.mask.right == 0:
        w = replace(w, mask=Mask(left=w.mask.left))
    if w.mask.left is None:
        return w
    left = w.mask.left
    return w.having(
        one._replace(keys=one.keys - max(0, one.keys - one.queries - left) // step * step) for one in w.parts
    )


PREPARE, PREPROCESS, MAIN = "decoder_info", "qkv_preprocessing", "flash_fwd"
ROPE_INSTRUCTIONS = by_hand(
    70, "instructions per element of Q, K and V in TensorRT-LLM's first kernel, half of them integer"
)
BIAS_INSTRUCTIONS = by_hand(4, "the same without a rotation")
"""Derived from context times on H100 and B200, whose first kernel moves 1.5 and 2 TB/s: 60 to 80 instructions per
element (sine and cosine of each position, page look-ups), while its bytes alone would take a half to a third of the
time. An encoder's takes no longer than its bytes. They issue as fast on an A100, whose SM has half the FP32 lanes."""
STEPS_APART = (
    "all sequences are played by the context kernel; TensorRT-LLM runs those with one new token by its generation "
    "kernels, in launches of their own: ask them apart, with pass decode"
)

Write = Callable[[Workload, int], list[Kernel]]


def decoder_info(w: Workload) -> Kernel:
    """``invokeBuildDecoderInfo``: offsets of the sequences, and the sequence of every token."""
    tokens = w.queries
    accesses = [Access("lengths", 8 * w.batch), Access("tokens", 8 * tokens, True)]
    return streaming(PREPARE, accesses, elements=tokens)


def qkv_preprocessing(w: Workload) -> Kernel:
    """Bias, RoPE and cache write: reads packed Q, K and V; writes Q, and K and V into the cache."""
    e, tokens = w.element_bytes, w.new_tokens
    q = w.queries * w.heads_q * w.head_dim * e
    k, v = (tokens * w.heads_kv * width * e for width in (w.head_dim, w.head_dim_v))
    out = [Access("Q", q, True), Access("K", k, True), Access("V", v, True)]
    size = q + k + v
    rotated = w.mask.is_causal or w.passes == "decode"
    per_element = ROPE_INSTRUCTIONS if rotated else BIAS_INSTRUCTIONS
    half = per_element // 2
    kernel = streaming(
        PREPROCESS, [Access("QKV", size), *out], elements=size // e, fp32_per_element=half, int32_per_element=half
    )
    return edited(kernel, lambda op: op._replace(issues=(op.fp32 + op.int32) // LANES))


def trtllm(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """TensorRT-LLM's own attention operator.

    Raises
    ------
    InputError
        On a GPU with tcgen05 other than sm_100 and sm_103, for which trtllm-gen's binaries are built.
    """
    if gpu.features.tcgen05 and not 100 <= gpu.compute_capability_number <= 109:
        raise InputError(
            f"no schedule: what tensorrt-llm.attention runs on {gpu.id} ({gpu.sm_arch}) is not known, modelled are "
            "trtllm-gen on sm_100 to sm_109 and mma.sync and wgmma kernels; nearest: nvidia.cudnn"
        )
    if gpu.features.tcgen05 and has_gen_kernel(w):
        before = [decoder_info(w), qkv_preprocessing(w)] if w.passes == "fwd" else [qkv_preprocessing(w)]
        kernels, tile, splits = _gen(w, gpu, shape)
        return _schedule(w, "tensorrt-llm.attention", [*before, *kernels], tile, splits)
    if w.passes == "fwd":
        chosen = override(replace(context_tile(w, gpu), widths=compiled_widths(w)), shape, w, gpu)
        main = flash_forward(w, gpu, chosen, lse=False)
        return _schedule(w, "tensorrt-llm.attention", [decoder_info(w), qkv_preprocessing(w), main], chosen)
    alike(w, "a generation step of tensorrt-llm.attention", "vllm.flash-attn-3 or flashinfer.fa2")
    if runs_xqa(w, gpu):
        kernels, tile, splits = _xqa(w, gpu, shape)
        return _schedule(w, "tensorrt-llm.attention", [qkv_preprocessing(w), *kernels], tile, splits)
    return _schedule(w, "tensorrt-llm.attention", *masked_attention(w, gpu, shape))


def through_flashinfer(name: str, write: Write) -> Callable[[Workload, Gpu, TileRequest | None], Schedule]:
    """TensorRT-LLM's Blackwell kernels as another framework calls them, after its kernel that writes the cache."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        kernels, tile, splits = _gen(w, gpu, shape)
        return _schedule(w, name, [*write(w, w.new_tokens), *kernels], tile, splits)

    return build


vllm_trtllm = through_flashinfer("vllm.trtllm-gen", lambda w, tokens: [cache_write(w, tokens)])
sglang_trtllm = through_flashinfer("sglang.trtllm-gen", store_cache)


def _gen(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    if w.passes == "fwd":
        tile = override(gen_context_tile(w, gpu), shape, w, gpu)
        main = flash_forward(w, gpu, tile, MAIN, lse=False)
        # Blocks that share a read of K and V.
        return [replace(main, multicast=SHARED_READS if tile.rows <= 128 else 1)], tile, UNCUT
    alike(w, "trtllm-gen's generation step", "vllm.flash-attn-4 or flashinfer.fa2")
    tile = override(gen_generation_tile(w), shape, w, gpu)
    splits = Splits(gen_splits(w, gpu, tile))
    main = flash_forward(within_window(w, tile.keys), gpu, tile, MAIN, splits, lse=False)
    return _merged(w, main, tile, splits, GEN_MERGED), tile, splits


def _merged(w: Workload, main: Kernel, tile: FlashTile, splits: Splits, at_once: int) -> list[Kernel]:
    """The attention kernel; it also merges its partial results if keys are split."""
    tiles = -(-w.seq_q * (w.group if tile.pack_gqa else 1) // tile.rows)
    return [merging_last(main, w, splits.count, tiles, at_once) if splits.partial else main]


def _xqa(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    """XQA: the heads of a group against keys that are divided over its warps."""
    tile, splits = override(xqa_tile(w, gpu), shape, w, gpu), Splits(xqa_splits(w, gpu))
    main = flash_forward(
        within_window(w, XQA_TILE), gpu, tile, MAIN, splits, lse=False, fragments=-(-tile.rows // FRAGMENT)
    )
    main = replace(main, launched_early=gpu.compute_capability_number >= EARLY_LAUNCHES)
    # Partial results that XQA's last block reads at a time: one for each group of warps that share a V tile.
    return _merged(w, main, tile, splits, max(1, 4 * XQA_WARP_KEYS // _xqa_width(w))), tile, splits


def _schedule(w: Workload, name: str, kernels: list[Kernel], tile: FlashTile, splits: Splits = UNCUT) -> Schedule:
    steps = w.passes == "fwd" and any(one.queries == 1 < one.keys for one in w.lengths)
    schedule = flash_schedule(w, name, kernels, str(tile), splits, (STEPS_APART,) if steps else ())
    return replace(
        schedule, peak_memory_bytes=flash_peak_bytes(w)
    )  # the workspace of partial results is allocated once


RECORDS = (
    record("tensorrt-llm.attention", trtllm),
    record("vllm.trtllm-gen", vllm_trtllm),
    record("sglang.trtllm-gen", sglang_trtllm),
)
