"""Implementations of multi-head latent attention: the decompressed form, and attention over the cache itself.

The implementations of `RECORDS` take the question as it is asked, in decompressed terms: Q of every head and the cached
latents are the inputs, O of every head the output, so the products with W_UK and W_UV are among the kernels. If the
name begins with a serving framework, it is the attention call alone, as the framework's tables time it: W_UK and W_UV
belong to the layer around it (`serving` below), the write of the new token into the cache belongs to the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import fa2_forward, fa3_forward, hopper_tile
from attnsim.models.implementations.flash_attention_4 import plain_tile
from attnsim.models.implementations.fused.building import alike
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import Implementation, TileRequest, preset, record
from attnsim.models.implementations.latent import tiles as mla_tiles
from attnsim.models.implementations.latent.mla import copy, latent_attention, latent_combine, product
from attnsim.models.implementations.latent.tiles import (
    LatentTile,
    absorbed,
    even_visits,
    flash_mla_shares,
    flash_mla_visits,
    latent_of,
    split_requests,
)
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule, renamed
from attnsim.models.schedule.splits import UNCUT, Splits

Attended = tuple[list[Kernel], LatentTile, Splits, int]
"""The kernels that attend the cache, their tile, the splits of the keys, and the partial results of a row."""
Attention = Callable[[Workload, Gpu], Attended]
Choose = Callable[[Workload, Gpu], FlashTile]

COMBINE_IN_FLIGHT = by_hand(4, "partial results that a combining block of latent attention has asked for at a time")
"""FA3's kernel has four stages. FlashMLA's requests one result ahead in a loop that the compiler may unroll; it is
assumed to do the same."""
GEN_IN_FLIGHT = by_hand(6, "the same of trtllm-gen's closed reduction, so that it costs little beside what it merges")

MADE_TENSORS = {"V": "K nope, V"}
"""Tensor in which kernels on the decompressed heads find V."""
RAGGED = "sglang.fa3-mla or sglang.triton-mla"
"""Implementations that take different numbers of queries per sequence over the cache."""
ATTENTION_ALONE = "the attention call alone: the products with W_UK and W_UV are not in the time"


def absorbing_pays(w: Workload) -> bool:
    """Return whether the absorbed form has fewer FLOPs: each pair costs more in it, but no key is decompressed.

    Per head, ``2 Nq Nk (2 r + dr)`` against ``2 Nq Nk (d + dv) + 2 Nk r (d - dr + dv)``.
    """
    latent = latent_of(w)
    more = 2 * latent.rank + latent.rope - w.head_dim - w.head_dim_v
    return w.all_pairs * more < w.keys * latent.rank * (w.head_dim - latent.rope + w.head_dim_v)


def preferred(names: Sequence[str], w: Workload) -> list[str]:
    """The implementations of MLA, those of the form with fewer FLOPs first."""
    first = w.latent is None or absorbing_pays(w)
    decompressed = {record.name for record in RECORDS if record.form == "decompressed"}
    return sorted(names, key=lambda name: (name in decompressed) == first)


def peak_bytes(w: Workload, form: str, partials: int = 0) -> int:
    """Peak memory: inputs, weights, outputs and the tensors that a form keeps between its kernels."""
    latent, e = latent_of(w), w.element_bytes
    queries, keys = w.heads_q * w.queries, w.keys
    widths = w.head_dim - latent.rope + w.head_dim_v
    both_ends = queries * (w.head_dim * e + w.head_dim_v * w.output_bytes) + w.kv_cache_bytes
    weights = w.heads_q * latent.rank * widths * e
    inside = (
        queries * (latent.width * e + latent.rank * w.output_bytes + 4) + partials * queries * (latent.rank + 1) * 4
    )
    if form == "decompressed":
        return both_ends + weights + keys * w.heads_q * (widths + w.head_dim) * e + 4 * queries
    return inside + (both_ends + weights if form == "absorbed" else w.kv_cache_bytes)


def _plain(w: Workload, name: str) -> Workload:
    """The question without a mask that hides nothing; refused if no kernel of MLA plays its mask."""
    latent_of(w)
    if w.mask.is_windowed:
        raise InputError(f"{name} has no sliding window, the mask is {w.mask}; allowed: full or causal")
    return replace(w, mask=Mask()) if w.seq_q == 1 and w.mask.right == 0 else w


def _flash_mla_attention(w: Workload, gpu: Gpu) -> Attended:
    """FlashMLA: split-KV over shares of its scheduler, and a combine kernel that is always launched.

    Its shares do not depend on the mask, so that with several queries the keys after a row tile are multiplied too.
    """
    latent, own, tile = latent_of(w), absorbed(alike(w, "FlashMLA", RAGGED)), LatentTile(**preset("mla-flash"))
    if (latent.rank, latent.rope) != (512, 64):
        raise InputError(f"FlashMLA is compiled for a latent of 512x64, not {latent}; take sglang.triton-mla-absorbed")
    pieces, wanted = flash_mla_shares(own, tile, gpu.sm.count)
    main = latent_attention(own, tile, flash_mla_visits(own, tile, pieces), latent)
    counts = split_requests(pieces)
    rows = w.heads_q * w.seq_q
    merge = _MERGE(own, {(rows, n): times for n, times in counts.items()}) if counts else copy(w, "combine (exits)")
    return [main, merge], tile, Splits(shares=wanted), max(counts, default=0)


def _even_attention(w: Workload, tile: LatentTile, splits: Splits, combine: Callable[..., Kernel] | None) -> Attended:
    """A kernel over even ranges of keys and, if there are several, the kernel that merges them.

    If the grid has more ranges, those without keys are launched too and results are always partial.
    """
    own = absorbed(w)
    merged = combine is not None and splits.partial
    main = latent_attention(own, tile, even_visits(own, tile, splits, merged=merged), latent_of(w))
    if not merged or combine is None:
        return [main], tile, splits, 0
    counts: Counter[tuple[int, int]] = Counter()
    for one, of in zip(w.parts, splits.merged(len(w.parts)).tolist(), strict=True):
        if of:
            counts[w.heads_q * one.queries, of] += one.times
    return [main, combine(own, counts)], tile, splits, splits.count


_MERGE = partial(latent_combine, rows_per_block=8, threads=256, in_flight=COMBINE_IN_FLIGHT)
_GEN_MERGE = partial(latent_combine, rows_per_block=1, threads=128, in_flight=GEN_IN_FLIGHT)
_TRITON_MERGE = partial(latent_combine, rows_per_block=1, threads=128, in_flight=1)


def _fa3_attention(w: Workload, gpu: Gpu) -> Attended:
    tile = LatentTile(**preset("mla-fa3"))
    splits, upper = mla_tiles.fa3_splits(w, gpu, tile)
    kernels, _, _, partials = _even_attention(w, tile, splits, _MERGE)
    exits = [copy(w, "combine (exits)")] if upper > 1 and not partials else []
    return [copy(w, "prepare"), *kernels, *exits], tile, splits, partials


def _triton_attention(w: Workload, gpu: Gpu) -> Attended:
    if w.seq_q > 1:
        return _even_attention(w, mla_tiles.triton_prefill(gpu), UNCUT, None)
    tile = mla_tiles.triton_decode(gpu)
    return _even_attention(w, tile, mla_tiles.triton_splits(w, gpu, tile), _TRITON_MERGE)


def _fmha_v2_attention(w: Workload, gpu: Gpu) -> Attended:
    return _even_attention(w, LatentTile(**preset("mla-fmha-v2")), UNCUT, None)


def _trtllm_gen_attention(w: Workload, gpu: Gpu) -> Attended:
    tile = mla_tiles.trtllm_gen(alike(w, "trtllm-gen's decode", RAGGED), gpu)
    return _even_attention(w, tile, mla_tiles.trtllm_gen_splits(w, gpu, tile), _GEN_MERGE)


def _cutlass_attention(w: Workload, gpu: Gpu) -> Attended:
    tile = mla_tiles.cutlass(alike(w, "CUTLASS's decode", RAGGED))
    return _even_attention(w, tile, mla_tiles.cutlass_splits(w, gpu, tile), _MERGE)


def _absorbed(name: str, attention: Attention) -> Implementation:
    """Queries into the latent space, attention over the cache, outputs back."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        plain = _plain(w, name)
        kernels, tile, splits, partials = attention(plain, gpu)
        peak = peak_bytes(w, "absorbed", partials)
        before, after = product(w, "absorb_q", gpu), product(w, "output_up", gpu)
        return Schedule("mla", name, (*before, *kernels, *after), tile, peak, splits=splits)

    return record(name, build, peak_bytes=partial(peak_bytes, form="absorbed"))


def _decompressed(name: str, choose: Choose, *, same_width: bool = False) -> Implementation:
    """K and V of every head from the latent, then fused attention; with `same_width`, V must be as wide as K."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        plain = _plain(w, name)
        heads = replace(plain, latent=None, head_dim_v=w.head_dim if same_width else w.head_dim_v)
        tile = choose(heads, gpu)
        names = {"V": "V padded", "O": "O padded"} if same_width else MADE_TENSORS
        main = renamed(flash_forward(heads, gpu, tile), names)
        first = [*product(w, "decompress", gpu), copy(w, "concat_k")]
        kernels = [*first, copy(w, "pad_v"), main, copy(w, "slice_o")] if same_width else [*first, main]
        return Schedule("mla", name, tuple(kernels), str(tile), peak_bytes(w, "decompressed"))

    return record(name, build, peak_bytes=partial(peak_bytes, form="decompressed"))


def _serving(name: str, before: Sequence[str], decode: Attention, prefill: Choose | None = None) -> Implementation:
    """A framework's attention call: cache write, then attention over the cache or, given `prefill`, per head."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        plain = _plain(w, name)
        writes = [copy(w, kernel) for kernel in before if kernel != "metadata" or w.passes == "decode"]
        if prefill is not None and w.passes != "decode":
            heads = replace(plain, latent=None)
            tile = prefill(heads, gpu)
            main = renamed(flash_forward(heads, gpu, tile), MADE_TENSORS)
            peak = peak_bytes(w, "decompressed")
            return Schedule("mla", name, (*writes, main), str(tile), peak, (ATTENTION_ALONE,))
        kernels, latent_tile, splits, partials = decode(plain, gpu)
        peak = peak_bytes(w, "attention", partials)
        return Schedule("mla", name, (*writes, *kernels), latent_tile, peak, (ATTENTION_ALONE,), splits)

    return record(name, build, peak_bytes=partial(peak_bytes, form="attention"))


def _hopper_prefill(w: Workload, gpu: Gpu) -> FlashTile:
    """TensorRT-LLM's warp-specialised FMHA on Hopper at 192/128: 64 rows a warpgroup, 128 keys."""
    return hopper_tile(128, 128, order="longest_first")


def _fmha_v2_prefill(w: Workload, gpu: Gpu) -> FlashTile:
    """TensorRT-LLM's ``fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_192x128``."""
    keys = 128 if gpu.sm.shared_memory_per_block_bytes > 128 * 1024 else 64
    return FlashTile(64, keys)


def _blackwell_prefill(w: Workload, gpu: Gpu) -> FlashTile:
    """FlashAttention-4 and trtllm-gen at 192/128: two tiles of 128 rows, K and V in one ring of three buffers."""
    return replace(plain_tile(replace(w, head_dim=128, head_dim_v=128), gpu), stages=1)


RECORDS: tuple[Implementation, ...] = (
    _absorbed("flashmla.dense", _flash_mla_attention),
    _absorbed("cutlass.mla", _cutlass_attention),
    _absorbed("sglang.triton-mla-absorbed", _triton_attention),
    _decompressed("vllm.mla-flash-attn-3", fa3_forward),
    _decompressed("vllm.mla-flash-attn-4", _blackwell_prefill),
    _decompressed("vllm.mla-flash-attn-2", fa2_forward, same_width=True),
    _serving("sglang.fa3-mla", ["cache_write"], _fa3_attention),
    _serving("sglang.triton-mla", ["cache_write"], _triton_attention),
    _serving("tensorrt-llm.mla-hopper", ["rope_append", "metadata"], _flash_mla_attention, _hopper_prefill),
    _serving("tensorrt-llm.mla-fmha-v2", ["rope_append"], _fmha_v2_attention, _fmha_v2_prefill),
    _serving("tensorrt-llm.mla-trtllm-gen", ["rope_append"], _trtllm_gen_attention, _blackwell_prefill),
)
