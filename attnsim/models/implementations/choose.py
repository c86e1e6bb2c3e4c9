"""The implementations that can be imitated: which kernels each launches for a workload on a GPU.

A name stands for the code behind a column of measurements. Each record builds the sequence of kernels that code
launches; tiles come from :mod:`attnsim.models.implementations.fused.tiles`, nothing here is fitted.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from attnsim.models.closed_forms import trtllm as trtllm_cost
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import flash_attention_4 as flash4
from attnsim.models.implementations import trtllm
from attnsim.models.implementations.frameworks.eager import check_no_tile, gemm_path
from attnsim.models.implementations.frameworks.linear_records import LINEAR_IMPLEMENTATIONS
from attnsim.models.implementations.frameworks.naive import FORMS, naive
from attnsim.models.implementations.frameworks.records import FRAMEWORK_KERNELS
from attnsim.models.implementations.fused import tiles
from attnsim.models.implementations.fused.backward import BackwardTile, flash_backward
from attnsim.models.implementations.fused.building import fa2_combine, flash_schedule, one_query, override
from attnsim.models.implementations.fused.flash1 import flash1_backward, flash1_forward, key_block
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import fa3_combine, split_count
from attnsim.models.implementations.fused.tile import FlashTile, Splits
from attnsim.models.implementations.fused.two_pass import closed_form as two_pass_closed_form
from attnsim.models.implementations.fused.two_pass import two_pass_backward
from attnsim.models.implementations.implementation import Builder, Implementation, Shape
from attnsim.models.implementations.latent.records import MLA, preferred
from attnsim.models.implementations.own.records import OWN_KERNELS
from attnsim.models.implementations.serving import encoder_hopper, fa3_splits, serving_hopper, sglang_fa3_sm80, vllm_fa2
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import find_algorithm, sizing
from attnsim.models.question.workload import LARGEST, Workload
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Kernel, Schedule


def _direction(w: Workload, direction: str) -> bool:
    return direction in w.directions


def _flash2_forward(w: Workload, gpu: Gpu, shape: Shape | None) -> tuple[list[Kernel], FlashTile, int]:
    """FA2's `mha_fwd`: the split-KV kernel where its rule wants more than one split, else the standard kernel."""
    w = one_query(w)
    swapped = w.seq_q == 1 and w.group > 1 and not w.mask.is_windowed
    split_tile = replace(tiles.fa2_split(w, gpu), pack_gqa=swapped)
    heads = w.batch * (w.heads_kv if swapped else w.heads_q)
    rows = -(-w.seq_q * (w.group if swapped else 1) // 64)
    splits = 1 if w.dropout else split_count(heads * rows, 2 * gpu.sm.count, -(-w.seq_kv // split_tile.keys))
    if splits > 1:
        tile = override(split_tile, shape, w, gpu)
        splits = min(splits, -(-w.seq_kv // tile.keys))
        main = flash_forward(w, gpu, tile, "flash_fwd_splitkv", Splits(splits))
        return [main, fa2_combine(w, splits)], tile, splits
    tile = override(replace(tiles.fa2_forward(w, gpu), pack_gqa=swapped), shape, w, gpu)
    return [flash_forward(w, gpu, tile)], tile, 1


def flash2(w: Workload, gpu: Gpu, shape: Shape | None, name: str = "flash_attn_v2") -> Schedule:
    """FlashAttention-2, forward and backward."""
    kernels: list[Kernel] = []
    splits, text = 1, ""
    if _direction(w, "fwd"):
        forward, tile, splits = _flash2_forward(w, gpu, shape)
        kernels, text = forward, str(tile)
    if _direction(w, "bwd"):
        back = _backward_tile(tiles.fa2_backward(w, gpu), shape)
        kernels += flash_backward(w, back)
        text = "; ".join(part for part in (text, str(back)) if part)
    return flash_schedule(w, name, kernels, text, splits)


def _backward_tile(tile: BackwardTile, shape: Shape | None) -> BackwardTile:
    return tile if shape is None else replace(tile, rows=shape[0], keys=shape[1])


def flash1(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
    """FlashAttention-1."""
    if shape is not None:
        raise InputError("flash_attn_v1 has one tile per head_dim, 16 rows x 128 or 256 keys; leave --tile out")
    kernels: list[Kernel] = []
    if _direction(w, "fwd"):
        kernels.append(flash1_forward(w, gpu))
    if _direction(w, "bwd"):
        kernels += flash1_backward(w, gpu)
    return flash_schedule(w, "flash_attn_v1", kernels, f"16 x {key_block(w, gpu)}, keys outside")


def flash3(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
    """FlashAttention-3 with fixed lengths, as its paper measured it: TMA, clusters where non-causal."""
    w_fwd = one_query(w)
    kernels: list[Kernel] = []
    splits, text = 1, ""
    if _direction(w, "fwd"):
        base = tiles.fa3_forward(w_fwd, gpu)
        # `flash_attn_func` never splits; `flash_attn_with_kvcache`, the decode entry, asks the rule.
        rows = -(-w.seq_q * w.group // base.rows)
        splits = fa3_splits(w_fwd, gpu, w.batch * w.heads_kv * rows, base) if w.passes == "decode" else 1
        packed = w.group > 1 and (splits > 1 or _packing_pays(w, base.rows))
        tile = override(replace(base, pack_gqa=packed), shape, w_fwd, gpu)
        main = flash_forward(w_fwd, gpu, tile, splits=Splits(splits, of_seen=True))
        kernels.append(replace(main, multicast=2) if _multicast(w_fwd, tile, splits) else main)
        if splits > 1:
            kernels.append(fa3_combine(w, splits))
        text = str(tile)
    if _direction(w, "bwd"):
        back = _backward_tile(tiles.fa3_backward(w, gpu), shape)
        kernels += flash_backward(w, back)
        text = "; ".join(part for part in (text, str(back)) if part)
    return flash_schedule(w, "flash_attn_v3", kernels, text, splits, of_seen=True)


def _packing_pays(w: Workload, rows: int) -> bool:
    """FA3 packs a group's heads when that wastes less of the last tile (`should_pack_gqa`)."""

    def efficiency(length: int) -> float:
        return length / (-(-length // rows) * rows)

    return efficiency(w.seq_q) < 0.9 * efficiency(w.seq_q * w.group)


def _multicast(w: Workload, tile: FlashTile, splits: int) -> bool:
    """Clusters of two blocks that share K and V: 16-bit, head_dim >= 128, no mask, an even number of row tiles."""
    plain = w.mask == Mask() and splits == 1 and tile.path == "wgmma"
    return plain and w.head_dim > 96 and w.element_bytes == 2 and (-(-w.seq_q // tile.rows)) % 2 == 0


def generic_flash(name: str, choose: Callable[[Workload, Gpu], FlashTile]) -> Builder:
    """A fused implementation that is one forward kernel and FA2-like backward kernels."""

    def build(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
        kernels: list[Kernel] = []
        text = ""
        w_main = one_query(w)
        if _direction(w, "fwd"):
            tile = override(choose(w_main, gpu), shape, w_main, gpu)
            kernels.append(flash_forward(w_main, gpu, tile))
            text = str(tile)
        if _direction(w, "bwd"):
            choice = tiles.xformers_backward if name == "xformers_cutlass" else tiles.fa2_backward
            back = _backward_tile(choice(w, gpu), shape)
            kernels += flash_backward(w, back)
            text = "; ".join(part for part in (text, str(back)) if part)
        return flash_schedule(w, name, kernels, text)

    return build


def two_pass(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
    """FlashAttention-2's backward tiles, dQ in a pass of its own."""
    tile = _backward_tile(tiles.fa2_backward(w, gpu), shape)
    return flash_schedule(w, "flash_two_pass", list(two_pass_backward(w, tile)), str(tile))


_CLOSED = ("closed source: tiles and order are those of the nearest public kernel",)


def _nearest_public(name: str) -> Builder:
    """A closed implementation: FA2's schedule before Hopper, FA3's on it, FA4's forward on Blackwell."""

    def build(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
        if gpu.features.tcgen05 and w.passes == "fwd":
            schedule = generic_flash(name, tiles.fa4)(w, gpu, shape)
        else:
            schedule = flash3(w, gpu, shape) if gpu.features.wgmma else flash2(w, gpu, shape)
        return replace(schedule, implementation=name, notes=_CLOSED)

    return build


def _cudnn(name: str) -> Builder:
    """CuDNN's fused attention: FA3's schedule on Hopper; before it, what its timings show.

    Its chunked-prefill times on A100 step with whole waves of 128-row blocks, one to an SM, and its decode reaches the
    HBM bandwidth with 8 query heads a key head, which a 64-row tile cannot: 16 rows, the heads of a
    group packed, keys split.
    """

    def build(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
        if gpu.features.wgmma or "bwd" in w.directions:
            forward = _nearest_public(name)(w, gpu, shape)
            if w.passes != "fwd+bwd" or gpu.features.wgmma:
                return forward
        w_main = one_query(w)
        decode = w.seq_q * w.group <= 16
        tile = override(tiles.cudnn(w, gpu, decode), shape, w_main, gpu)
        splits = 1
        if decode:
            heads = w.batch * w.heads_kv
            splits = split_count(heads, 2 * gpu.sm.count, -(-w.seq_kv // tile.keys))
        kernels = [flash_forward(w_main, gpu, tile, splits=Splits(splits))]
        if splits > 1:
            kernels.append(fa2_combine(w, splits))
        if "bwd" in w.directions:
            kernels += flash_backward(w, _backward_tile(tiles.fa2_backward(w, gpu), shape))
        return flash_schedule(w, name, kernels, tile, splits, _CLOSED)

    return build


def _naive(name: str, form: str) -> Builder:
    def build(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
        check_no_tile(name, shape)
        return naive(w, gpu, name, FORMS[form], gemm_path(gpu))

    return build


_FA = "Dao-AILab/flash-attention"
_BROADCAST = "integer instructions per element of a broadcast pass, over 50"
_CACHE_WRITE = "latency of a cache-write block, 1,000 clk"
_SERVING = ("fwd", "decode")
_ANY_WIDTH = LARGEST["head_dim"]
_ALL = ("fp32", "fp16", "bf16", "fp8")


def _normalising(record: Implementation) -> Builder:
    """The record's builder for masks that it plays, without limits that are never reached unless it asks for them."""

    def normalised(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
        check_mask(record, w)
        if record.sees_window:
            return record.build(w, gpu, shape)
        return record.build(w.bounded(), gpu, shape)

    return normalised


def check_mask(record: Implementation, w: Workload) -> None:
    """Refuse patterns in the mask of an implementation that plays none.

    Raises
    ------
    InputError
    """
    if not (w.mask.is_band or record.patterns):
        raise InputError(
            f"{record.name} plays diagonal bands only, the mask is {w.mask}; take attnsim_sparse (--algorithm sparse)"
        )


IMPLEMENTATIONS: dict[str, Implementation] = {
    record.name: replace(record, build=_normalising(record))
    for record in (
        Implementation(
            "pytorch", "naive", _naive("pytorch", "benchmark"), (70, 129),
            f"{_FA} benchmarks/benchmark_flash_attention.py", ("standard",), dtypes=("fp32", "fp16", "bf16"),
            extra=_BROADCAST, largest_head_dim=_ANY_WIDTH, form="benchmark",
        ),
        Implementation(
            "pytorch_eager", "naive", _naive("pytorch_eager", "eager"), (70, 129),
            "PyTorch matmul, softmax, dropout, matmul on [batch, heads, seq, head_dim]", like="pytorch",
            dtypes=("fp32", "fp16", "bf16"), extra=_BROADCAST, largest_head_dim=_ANY_WIDTH, form="eager",
        ),
        Implementation(
            "hf_eager", "naive", _naive("hf_eager", "hf_eager"), (70, 129),
            "Hugging Face transformers eager_attention_forward", like="pytorch", dtypes=("fp32", "fp16", "bf16"),
            largest_head_dim=_ANY_WIDTH, form="hf_eager",
        ),
        Implementation(
            "pytorch_sdpa_math", "naive", _naive("pytorch_sdpa_math", "sdpa_math"), (70, 129),
            "PyTorch 2.5 scaled_dot_product_attention, math backend", like="pytorch",
            dtypes=("fp32", "fp16", "bf16"), largest_head_dim=_ANY_WIDTH, form="sdpa_math",
        ),
        Implementation(
            "naive_fused_epilogue", "naive", _naive("naive_fused_epilogue", "fused_epilogue"), (70, 129),
            "the fewest passes that an unfused form can make", like="pytorch_eager",
            dtypes=_ALL, largest_head_dim=_ANY_WIDTH,
            form="fused_epilogue",
        ),
        Implementation(
            "flash_attn_v1", "flash-1", flash1, (75, 90), f"{_FA} v1.0.9 csrc/flash_attn", like="flash_attn_v2",
            largest_head_dim=128,
        ),
        Implementation(
            "flash_attn_v2", "flash-2", flash2, (80, 129), f"{_FA} v2.8.3 csrc/flash_attn",
            ("flash_attn", "flash_attn_v2*"),
        ),
        Implementation(
            "flash_attn_v3", "flash-3", flash3, (90, 90), f"{_FA}@0251105a hopper/", like="flash_attn_v2",
            dtypes=("fp16", "bf16", "fp8"), aliases=("flash_attn_v3*", "fa3_no_*"),
        ),
        Implementation(
            "flash_attn_v4", "flash-3", flash4.flash4, (100, 109), f"{_FA} flash_attn/cute (FlashAttention-4)",
            like="vllm_trtllm", passes=_SERVING, closed_form=flash4.closed_form,
        ),
        Implementation(
            "vllm_vit_flash_attn_fa4", "flash-3", flash4.vllm_flash4, (100, 109),
            f"{_FA} flash_attn/cute (FlashAttention-4), vLLM 0.24 leaves the splits open",
            like="flash_attn_v4", passes=_SERVING, closed_form=flash4.closed_form,
        ),
        Implementation(
            "flash_attn_v4_cute", "flash-2", lambda w, g, s: flash2(w, g, s, "flash_attn_v4_cute"), (80, 89),
            f"{_FA} flash_attn/cute on Ampere, FA2's loop order", like="flash_attn_v2",
        ),
        Implementation(
            "vllm_flash_attn", "flash-2", vllm_fa2, (80, 129), "vllm-project/flash-attention@188be165",
            like="flash_attn_v2", extra=_CACHE_WRITE, passes=_SERVING, sees_window=True,
        ),
        Implementation(
            "flash_attention", "flash-2", sglang_fa3_sm80, (80, 89), "sgl-project/sgl-attn@203b9b3d, FA3 sm_80 path",
            like="vllm_flash_attn", extra=_CACHE_WRITE, passes=_SERVING,
        ),
        Implementation(
            "vllm_flash_attn_fa3", "flash-3",
            lambda w, g, s: serving_hopper(w, g, s, "vllm_flash_attn_fa3", vllm=True), (90, 90),
            "vllm-project/flash-attention@617264c1 hopper/", like="flash_attn_v3", extra=_CACHE_WRITE,
            dtypes=("fp16", "bf16", "fp8"), passes=_SERVING,
        ),
        Implementation(
            "fa3", "flash-3", lambda w, g, s: serving_hopper(w, g, s, "fa3", vllm=False), (90, 90),
            "sgl-project/sgl-attn@203b9b3d hopper/", like="vllm_flash_attn_fa3", extra=_BROADCAST,
            dtypes=("fp16", "bf16", "fp8"), passes=_SERVING,
        ),
        Implementation(
            "flash_attn_v3_varlen", "flash-3",
            lambda w, g, s: encoder_hopper(w, g, s, "flash_attn_v3_varlen", split=False), (90, 90),
            "sgl-project/sgl-attn@203b9b3d hopper/, flash_attn_varlen_func of an encoder", like="flash_attn_v3",
            passes=("fwd",),
        ),
        Implementation(
            "vllm_vit_flash_attn_fa3", "flash-3",
            lambda w, g, s: encoder_hopper(w, g, s, "vllm_vit_flash_attn_fa3", split=True), (90, 90),
            "vllm-project/flash-attention@617264c1 hopper/, flash_attn_varlen_func of an encoder, num_splits 0",
            like="flash_attn_v3_varlen", passes=("fwd",),
        ),
        Implementation(
            "cudnn", "flash-2", _cudnn("cudnn"), (80, 129), "NVIDIA cuDNN (closed)", ("cudnn_9*", "cudnn_8*"),
            like="flash_attn_v2", closed=True,
        ),
        Implementation(
            "cudnn_oss_sm80", "flash-2", _cudnn("cudnn_oss_sm80"), (80, 89),
            "NVIDIA cudnn-frontend, open sm_80 kernels",
            like="cudnn", closed=True,
        ),
        Implementation(
            "trtllm", "flash-2", trtllm.trtllm, (80, 129), "NVIDIA/TensorRT-LLM 1.3, fmha_v2, XQA, MMHA, trtllm-gen",
            ("torch_flow", "tensorrt_llm", "trtllm_*", "trtllm-*"), like="vllm_flash_attn", closed=True,
            extra="latency of a masked-attention block, 1,000 clk", passes=_SERVING,
            closed_form=trtllm_cost.closed_form,
        ),
        *(
            Implementation(
                name, "flash-3", build, (100, 109), f"trtllm-gen through flashinfer-ai/flashinfer, called by {caller}",
                like=like, closed=True, extra=_CACHE_WRITE, passes=_SERVING, closed_form=trtllm_cost.closed_form,
            )
            for name, build, caller, like in (
                ("vllm_trtllm", trtllm.vllm_trtllm, "vLLM 0.24", "trtllm"),
                ("sglang_trtllm", trtllm.sglang_trtllm, "SGLang 0.5.14", "vllm_trtllm"),
            )
        ),
        Implementation(
            "flash_attn_triton", "flash-2", generic_flash("flash_attn_triton", tiles.triton), (75, 129),
            "triton-lang/triton@003da478 python/tutorials/06-fused-attention.py", ("triton_fa2", "triton*"),
            like="flash_attn_v2",
        ),
        Implementation(
            "flash_two_pass", "flash-2", two_pass, (80, 129),
            "triton-lang/triton@003da478 python/tutorials/06-fused-attention.py, _attn_bwd", like="flash_attn_v2",
            passes=("bwd",), closed_form=two_pass_closed_form,
        ),
        Implementation(
            "xformers_cutlass", "flash-2", generic_flash("xformers_cutlass", tiles.xformers), (70, 129),
            "facebookresearch/xformers December 2024, csrc/attention/cuda/fmha", ("xformers", "efficient_attention"),
            like="flash_attn_v2", dtypes=("fp32", "fp16", "bf16"),
        ),
        *MLA,
        *OWN_KERNELS,
        *FRAMEWORK_KERNELS,
        *LINEAR_IMPLEMENTATIONS,
    )
}  # fmt: skip


def find_implementation(name: str) -> Implementation:
    """The record behind a name or alias; ``NAME@N`` is its twin with N features or projected keys.

    Raises
    ------
    InputError
        Naming the nearest known names.
    """
    key = name.strip().lower()
    if "@" in key:
        return _sized(key)
    if key in IMPLEMENTATIONS:
        return IMPLEMENTATIONS[key]
    for record in IMPLEMENTATIONS.values():
        for alias in record.aliases:
            if key == alias or (alias.endswith("*") and key.startswith(alias[:-1])):
                return record
    names = [
        *IMPLEMENTATIONS,
        *(a for r in IMPLEMENTATIONS.values() for a in r.aliases if not a.endswith("*")),
    ]
    near = difflib.get_close_matches(key, names, 3, 0.4) or sorted(IMPLEMENTATIONS)
    raise InputError(f"implementation {name!r} is not known; nearest: {', '.join(near)}; see `attnsim algorithms`")


def _sized(name: str) -> Implementation:
    base, _, number = name.partition("@")
    record = find_implementation(base)
    if record.sized is None:
        able = ", ".join(f"{one.name}@N" for one in IMPLEMENTATIONS.values() if one.sized)
        raise InputError(f"{record.name} has no number to choose, {name!r} gives one; those that have: {able}")
    twin = record.sized(sizing(number, name))
    return replace(twin, build=_normalising(twin))


def runs_on(record: Implementation, gpu: Gpu) -> bool:
    """Whether an implementation has kernels for the GPU."""
    low, high = record.compute_capability
    return low <= gpu.compute_capability_number <= high


def check_runs(record: Implementation, w: Workload, gpu: Gpu) -> None:
    """Refuse an implementation or a number format that the GPU cannot run, naming the nearest that it can.

    Raises
    ------
    InputError
    """
    if not gpu.supports_dtype(w.dtype):
        able = [dtype for dtype in ("fp16", "bf16", "fp8", "fp32") if gpu.supports_dtype(dtype)]
        need = {"bf16": "Ampere (sm_80)", "fp8": "Ada (sm_89) or Hopper (sm_90)"}.get(w.dtype, "a newer GPU")
        raise InputError(
            f"{gpu.id} ({gpu.sm_arch}) has no {w.dtype} tensor cores, which need {need}; nearest it can: {able[0]}"
        )
    if not runs_on(record, gpu):
        low, high = record.compute_capability
        span = f"sm_{low}" if low == high else f"sm_{low} or newer" if high >= 120 else f"sm_{low} to sm_{high}"
        near = default_implementation("naive" if record.family in ("naive", "sparse") else "flash", gpu, w)
        raise InputError(f"{record.name} needs {span}, {gpu.id} is {gpu.sm_arch}; nearest it can: {near.name}")
    if w.passes not in record.passes:
        raise InputError(f"{record.name} has no {w.passes} kernels; allowed: {', '.join(record.passes)}")
    if max(w.head_dim, w.head_dim_v) > record.largest_head_dim:
        raise InputError(
            f"{record.name} has kernels up to head_dim {record.largest_head_dim}, not "
            f"{max(w.head_dim, w.head_dim_v)}; take --algorithm naive"
        )
    check_mask(record, w)
    if w.dtype not in record.dtypes:
        raise InputError(
            f"{record.name} has no {w.dtype} kernels; allowed: {', '.join(record.dtypes)}"
            + (" (or --algorithm naive)" if record.family != "naive" else "")
        )


def _fits(record: Implementation, w: Workload, gpu: Gpu) -> bool:
    """Whether the implementation's own tiles fit; unfused GEMMs are not tried, their grids may be enormous."""
    if record.family == "naive":
        return True
    small = replace(w, batch=1, seq_q=min(w.seq_q, 1024), seq_kv=min(w.seq_kv, 1024))  # tiles do not ask for length
    return _tiles_fit(record.name, small, _Limits(gpu)) and max(w.head_dim, w.head_dim_v) <= record.largest_head_dim


class _Limits:
    """A GPU that stands for all with its SMs: whether a tile fits does not depend on bandwidths, rates and clocks."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.key = (gpu.base_id, gpu.compute_capability, gpu.sm, gpu.features)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Limits) and self.key == other.key


@lru_cache(maxsize=4096)
def _tiles_fit(name: str, w: Workload, limits: _Limits) -> bool:
    try:
        for kernel in find_implementation(name).build(w, limits.gpu, None).kernels:
            occupancy(kernel, limits.gpu)
    except InputError:
        return False
    return True


def default_implementation(algorithm: str, gpu: Gpu, w: Workload) -> Implementation:
    """The best implementation available for an algorithm on a GPU.

    Raises
    ------
    InputError
        When none runs there.
    """
    names = find_algorithm(algorithm).implementations
    records = [find_implementation(name) for name in (preferred(names, w) if algorithm == "mla" else names)]
    usable = [record for record in records if runs_on(record, gpu)]
    able = [record for record in usable if w.dtype in record.dtypes]
    for record in able:
        if _fits(record, w, gpu):
            return record
    if able:
        return able[0]
    if usable:
        return usable[0]
    raise InputError(
        f"{algorithm} has no kernels for {gpu.id} ({gpu.sm_arch}); nearest: "
        f"{default_implementation('flash', gpu, w).name} (--algorithm flash)"
    )
