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

from attnsim.models.by_hand import by_hand
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import trtllm_tiles as tiles
from attnsim.models.implementations.fused.building import edited, flash_schedule, override
from attnsim.models.implementations.fused.forward import flash_forward, flash_peak_bytes
from attnsim.models.implementations.fused.last_block import merging_last
from attnsim.models.implementations.fused.splits import cache_write, store_cache
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import UNCUT, Splits

PREPARE, PREPROCESS, MAIN, MASKED = "decoder_info", "qkv_preprocessing", "flash_fwd", "masked_attention"
LOGIT_BYTES = 6
"""Shared memory of a logit in masked multi-head attention: fp32, and 16 bit for the second product."""
ROPE_INSTRUCTIONS = by_hand(70, "FP32-lane instructions per element of Q, K and V in TensorRT-LLM's first kernel")
BIAS_INSTRUCTIONS = by_hand(4, "the same without a rotation")
"""Read off context times on H100, B200, whose first kernel moves 1.5 and 2 TB/s: 60 to 80 instructions an element (sine
and cosine of each position, page look-ups), where its bytes alone would pass two to three times as fast. An encoder's
takes no longer than its bytes."""
SHUFFLE_AND_ADD = by_hand(5, "FP32-lane instructions that a shuffle and an addition take the time of")

Attended = tuple[list[Kernel], FlashTile, Splits]
"""The kernels that attend, their tile, and how the keys are cut."""
Write = Callable[[Workload, int], list[Kernel]]


@dataclass(frozen=True, slots=True)
class PackedTile:
    """The tile of an attention kernel of TensorRT-LLM, whose Q, K and V come packed and with widths of its own."""

    tile: FlashTile

    def __str__(self) -> str:
        return str(self.tile)


def new_tokens(w: Workload) -> int:
    """Tokens whose K and V are written."""
    return w.batch * min(w.seq_q, w.seq_kv)


def decoder_info(w: Workload) -> Kernel:
    """``invokeBuildDecoderInfo``: offsets of the sequences, and for every token which sequence it belongs to."""
    tokens = w.batch * w.seq_q
    accesses = [Access("lengths", 8 * w.batch), Access("tokens", 8 * tokens, True)]
    return streaming(PREPARE, accesses, elements=tokens)


def qkv_preprocessing(w: Workload) -> Kernel:
    """Bias, RoPE and cache write: packed Q, K and V in; Q, and K and V in the cache, out."""
    e, tokens = w.element_bytes, new_tokens(w)
    q = w.batch * w.seq_q * w.heads_q * w.head_dim * e
    k, v = (tokens * w.heads_kv * width * e for width in (w.head_dim, w.head_dim_v))
    names = ("K", "V") if w.passes == "fwd" else ("new K", "new V")
    out = [Access("Q", q, True), Access(names[0], k, True), Access(names[1], v, True)]
    size = q + k + v
    rotated = w.mask.is_causal or w.passes == "decode"
    per_element = ROPE_INSTRUCTIONS if rotated else BIAS_INSTRUCTIONS
    return streaming(PREPROCESS, [Access("QKV", size), *out], elements=size // e, fp32_per_element=per_element)


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
    if tiles.runs_xqa(w, gpu):
        kernels, tile, splits = _xqa(w, gpu, shape)
        return _schedule(w, "tensorrt-llm.attention", [qkv_preprocessing(w), *kernels], tile, splits)
    return _schedule(w, "tensorrt-llm.attention", *_masked(w, gpu, shape))


def through_flashinfer(name: str, write: Write) -> Callable[[Workload, Gpu, TileRequest | None], Schedule]:
    """TensorRT-LLM's Blackwell kernels as another framework calls them, after its kernel that writes the cache."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        kernels, tile, splits = _gen(w, gpu, shape)
        return _schedule(w, name, [*write(w, new_tokens(w)), *kernels], tile, splits)

    return build


vllm_trtllm = through_flashinfer("vllm.trtllm-gen", lambda w, tokens: [cache_write(w, tokens)])
sglang_trtllm = through_flashinfer("sglang.trtllm-gen", store_cache)


def _gen(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    if w.passes == "fwd":
        tile = override(tiles.gen_context_tile(w), shape, w, gpu)
        main = flash_forward(w, gpu, tile, MAIN, lse=False)
        return [replace(main, multicast=tiles.gen_multicast(tile))], tile, UNCUT
    tile = override(tiles.gen_generation_tile(w), shape, w, gpu)
    splits = Splits(tiles.gen_splits(w, gpu, tile))
    main = flash_forward(within_window(w, tile.keys), gpu, tile, MAIN, splits, lse=False)
    return _merged(w, main, splits, tiles.GEN_MERGED), tile, splits


def within_window(w: Workload, step: int) -> Workload:
    """A generation step without the keys before its window, in whole steps: blocks start behind them."""
    if w.seq_q == 1 and w.mask.right == 0:
        w = replace(w, mask=Mask(left=w.mask.left))
    if w.mask.left is None:
        return w
    skipped = max(0, w.seq_kv - w.seq_q - w.mask.left) // step * step
    return replace(w, seq_kv=w.seq_kv - skipped)


def _merged(w: Workload, main: Kernel, splits: Splits, at_once: int) -> list[Kernel]:
    """The attention kernel, which merges its partial results where keys are split."""
    return [merging_last(main, w, splits.count, at_once) if splits.partial else main]


def _xqa(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    """XQA: the heads of a group against keys that its warps share out."""
    tile, splits = override(tiles.xqa_tile(w, gpu), shape, w, gpu), Splits(tiles.xqa_splits(w, gpu))
    main = flash_forward(within_window(w, tiles.XQA_TILE), gpu, tile, MAIN, splits, lse=False)
    return _merged(w, main, splits, tiles.xqa_merged(w)), tile, splits


def _masked(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    """Masked multi-head attention: products on the FP32 lanes, bias, RoPE and cache write in the same kernel."""
    if shape is not None:
        raise InputError("masked multi-head attention has no tile to choose; leave --tile out")
    chosen = tiles.masked_tile(w, gpu)
    tile = FlashTile(
        1, chosen.keys, warps=chosen.threads // 32, loop="staged", registers=64, path="simt",
        widths=tiles.compiled_widths(w),
    )  # fmt: skip
    splits, seen = Splits(chosen.splits), within_window(w, chosen.keys)
    main = _on_fp32_lanes(flash_forward(seen, gpu, tile, MASKED, splits, lse=False), tiles.compiled_width(w.head_dim))
    logits = min(-(-seen.seq_kv // splits.count) * LOGIT_BYTES, gpu.sm.shared_memory_per_block_bytes)
    main = replace(
        main,
        shared_memory_bytes=logits,
        buffers=(("logits", logits),),
        in_flight_bytes=chosen.threads * tiles.MMHA_IN_FLIGHT,
    )
    return _merged(w, main, splits, tiles.MMHA_MERGED), tile, splits


def _on_fp32_lanes(kernel: Kernel, width: int) -> Kernel:
    """Products as conversions to fp32 and multiply-adds, and the sum of Q K over the lanes that share a key.

    A lane has 8 elements of a key; a shuffle takes four times as long as an addition (CUDA C++ Programming Guide,
    "Arithmetic Instructions": 32 a clock and SM).
    """
    over_lanes = SHUFFLE_AND_ADD * (width // 8).bit_length()

    def edit(op: TileOp) -> TileOp:
        if op.kind != "mma":
            return op
        shared = op.flops // 2 * over_lanes // 8 if op.tensor == "S" else 0
        return op._replace(kind="vector", flops=0, smem_bytes=0, fp32=op.flops + shared)

    return edited(kernel, edit)


def _schedule(w: Workload, name: str, kernels: list[Kernel], tile: FlashTile, splits: Splits = UNCUT) -> Schedule:
    schedule = flash_schedule(w, name, kernels, PackedTile(tile), splits)
    return replace(
        schedule, peak_memory_bytes=flash_peak_bytes(w)
    )  # the workspace of partial results is allocated once


RECORDS = (
    record("tensorrt-llm.attention", trtllm),
    record("vllm.trtllm-gen", vllm_trtllm),
    record("sglang.trtllm-gen", sglang_trtllm),
)
