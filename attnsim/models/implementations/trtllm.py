"""The kernels that TensorRT-LLM launches for a context and for a generation step, by GPU, as the replay plays them.

Its attention operator takes Q, K and V packed. A first kernel adds bias, rotates Q and K (RoPE), writes K and V into
the paged cache and Q into a buffer (``invokeQKVPreprocessing``); the attention kernel follows. Masked multi-head
attention does all in one. vLLM and SGLang call the same kernels on data-centre Blackwell through FlashInfer, each after
its own kernel that writes the cache. Tiles and rules: :mod:`attnsim.models.implementations.trtllm_tiles`.

Partial results of split keys are merged by the last block of a sequence, with no kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import trtllm_tiles as tiles
from attnsim.models.implementations.fused.building import alike, flash_schedule, override
from attnsim.models.implementations.fused.forward import block_begins, flash_forward, flash_peak_bytes
from attnsim.models.implementations.fused.last_block import merging_last
from attnsim.models.implementations.fused.splits import cache_write, store_cache
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.trtllm_masked import Attended, masked_attention, within_window
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.editing import edited
from attnsim.models.schedule.instructions import LANES
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import UNCUT, Splits

PREPARE, PREPROCESS, MAIN = "decoder_info", "qkv_preprocessing", "flash_fwd"
ROPE_INSTRUCTIONS = by_hand(
    70, "instructions per element of Q, K and V in TensorRT-LLM's first kernel, half of them integer"
)
BIAS_INSTRUCTIONS = by_hand(4, "the same without a rotation")
"""Read off context times on H100, B200, whose first kernel moves 1.5 and 2 TB/s: 60 to 80 instructions an element (sine
and cosine of each position, page look-ups), where its bytes alone would pass two to three times as fast. An encoder's
takes no longer than its bytes. They issue as fast on an A100, whose SM has half the FP32 lanes."""
STEPS_APART = (
    "all sequences are played by the context kernel; TensorRT-LLM runs those with one new token by its generation "
    "kernels, in launches of their own: ask them apart, with pass decode"
)

Write = Callable[[Workload, int], list[Kernel]]


@dataclass(frozen=True, slots=True)
class PackedTile:
    """The tile of an attention kernel of TensorRT-LLM, whose Q, K and V come packed and with widths of its own."""

    tile: FlashTile

    def __str__(self) -> str:
        return str(self.tile)


def decoder_info(w: Workload) -> Kernel:
    """``invokeBuildDecoderInfo``: offsets of the sequences, and for every token which sequence it belongs to."""
    tokens = w.queries
    accesses = [Access("lengths", 8 * w.batch), Access("tokens", 8 * tokens, True)]
    return streaming(PREPARE, accesses, elements=tokens)


def qkv_preprocessing(w: Workload) -> Kernel:
    """Bias, RoPE and cache write: packed Q, K and V in; Q, and K and V in the cache, out."""
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
        On a GPU with tcgen05 that trtllm-gen's binaries, of sm_100 and sm_103, do not run on.
    """
    if gpu.features.tcgen05 and not 100 <= gpu.compute_capability_number <= 109:
        raise InputError(
            f"no schedule: what tensorrt-llm.attention runs on {gpu.id} ({gpu.sm_arch}) is not known, modelled are "
            "trtllm-gen on sm_100 to sm_109 and mma.sync and wgmma kernels; nearest: nvidia.cudnn"
        )
    if gpu.features.tcgen05 and tiles.has_gen_kernel(w):
        before = [decoder_info(w), qkv_preprocessing(w)] if w.passes == "fwd" else [qkv_preprocessing(w)]
        kernels, tile, splits = _gen(w, gpu, shape)
        return _schedule(w, "tensorrt-llm.attention", [*before, *kernels], tile, splits)
    if w.passes == "fwd":
        chosen = override(replace(tiles.context_tile(w, gpu), widths=tiles.compiled_widths(w)), shape, w, gpu)
        main = flash_forward(w, gpu, chosen, lse=False)
        return _schedule(w, "tensorrt-llm.attention", [decoder_info(w), qkv_preprocessing(w), main], chosen)
    alike(w, "a generation step of tensorrt-llm.attention", "vllm.flash-attn-3 or flashinfer.fa2")
    if tiles.runs_xqa(w, gpu):
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
        tile = override(tiles.gen_context_tile(w), shape, w, gpu)
        main = flash_forward(w, gpu, tile, MAIN, lse=False)
        return [replace(main, multicast=tiles.gen_multicast(tile))], tile, UNCUT
    alike(w, "trtllm-gen's generation step", "vllm.flash-attn-4 or flashinfer.fa2")
    tile = override(tiles.gen_generation_tile(w), shape, w, gpu)
    splits = Splits(tiles.gen_splits(w, gpu, tile))
    main = flash_forward(within_window(w, tile.keys), gpu, tile, MAIN, splits, lse=False)
    return _merged(w, main, tile, splits, tiles.GEN_MERGED), tile, splits


def _merged(w: Workload, main: Kernel, tile: FlashTile, splits: Splits, at_once: int) -> list[Kernel]:
    """The attention kernel, which merges its partial results where keys are split."""
    tiles = -(-w.seq_q * (w.group if tile.pack_gqa else 1) // tile.rows)
    return [merging_last(main, w, splits.count, tiles, at_once) if splits.partial else main]


def _xqa(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    """XQA: the heads of a group against keys that its warps share out."""
    tile, splits = override(tiles.xqa_tile(w, gpu), shape, w, gpu), Splits(tiles.xqa_splits(w, gpu))
    main = flash_forward(within_window(w, tiles.XQA_TILE), gpu, tile, MAIN, splits, lse=False)
    begins = block_begins(*tile.compiled(w), fragments=-(-tile.rows // tiles.FRAGMENT))
    main = replace(_beginning(main, begins), launched_early=gpu.compute_capability_number >= tiles.EARLY_LAUNCHES)
    return _merged(w, main, tile, splits, tiles.xqa_merged(w)), tile, splits


def _beginning(kernel: Kernel, begins: TileOp) -> Kernel:
    """The kernel whose blocks begin with another latency."""

    def edit(op: TileOp) -> TileOp:
        return begins if (op.kind, op.tensor) == (begins.kind, begins.tensor) else op

    segments = [
        replace(one, ops=tuple(map(edit, one.ops))) if one.name.startswith("prologue") else one
        for one in kernel.segments
    ]
    return replace(kernel, segments=tuple(segments))


def _schedule(w: Workload, name: str, kernels: list[Kernel], tile: FlashTile, splits: Splits = UNCUT) -> Schedule:
    steps = w.passes == "fwd" and any(one.queries == 1 < one.keys for one in w.lengths)
    schedule = flash_schedule(w, name, kernels, PackedTile(tile), splits, (STEPS_APART,) if steps else ())
    return replace(
        schedule, peak_memory_bytes=flash_peak_bytes(w)
    )  # the workspace of partial results is allocated once


RECORDS = (
    record("tensorrt-llm.attention", trtllm),
    record("vllm.trtllm-gen", vllm_trtllm),
    record("sglang.trtllm-gen", sglang_trtllm),
)
