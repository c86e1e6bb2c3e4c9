"""Closed form == sum of the stream == bytes asked for in the exact replay, and known figures."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnsim.models.calibrations.numbers import ImplementationNumbers, Numbers
from attnsim.models.closed_forms.cost import ShapeTable, cost_of, costs
from attnsim.models.closed_forms.useful import softmax
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import replay
from tests.model.bounds import cost, roofline_time

A100, H100, B200 = (load_gpu(name) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb"))
SHAPES = 24
MASKS = {
    "any": (Mask.full(), Mask.causal(), Mask.causal(), Mask.sliding_window(70)),
    "full": (Mask.full(),),
    "causal": (Mask.causal(),),
    "window": (Mask.sliding_window(1), Mask.sliding_window(65), Mask.sliding_window(200, causal=False)),
    "patterns": (
        Mask.longformer(100, 3),
        Mask.bigbird(16),
        Mask.sparse_transformer(50),
        Mask.parse("causal, dilated 20 step 9, global at 70 200-210"),
        Mask.blocks(64, ((0, 1), (2, 0), (1, 3))),
    ),
    "bounds": (
        Mask.parse("document 100 200 33"),
        Mask.parse("causal, document 33 300"),
        Mask.parse("causal, document 333"),
        Mask.parse("prefix 70"),
    ),
    "blocks": (Mask.full(), Mask.parse("random 1x64 seed 1"), Mask.parse("random 2x128"), Mask.parse("random 2x384")),
}
CASES = {
    "flash-1 forward": ("flash-attn.1", A100, "fwd", "full"),
    "flash-1 forward + backward": ("flash-attn.1", A100, "fwd+bwd", "full"),
    "flash-2 forward": ("flash-attn.2", A100, "fwd", "any"),
    "flash-2 backward": ("flash-attn.2", A100, "bwd", "any"),
    "flash-2 on Hopper, both": ("flash-attn.2", H100, "fwd+bwd", "any"),
    "flash-3 forward": ("flash-attn.3", H100, "fwd", "any"),
    "flash-3 backward": ("flash-attn.3", H100, "bwd", "any"),
    "flash-4 forward": ("flash-attn.4", B200, "fwd", "any"),
    "flash-4 backward": ("flash-attn.4", B200, "bwd", "any"),
    "flash-4 both, windows": ("flash-attn.4", B200, "fwd+bwd", "window"),
    "flash-4 forward, splits open": ("vllm.vit-flash-attn-4", B200, "fwd", "any"),
    "cuDNN on Blackwell": ("nvidia.cudnn", B200, "fwd", "any"),
    "cuDNN on Blackwell, both": ("nvidia.cudnn", B200, "fwd+bwd", "any"),
    "cuDNN on Blackwell, decode": ("nvidia.cudnn", B200, "decode", "any"),
    "cuDNN on Hopper": ("nvidia.cudnn", H100, "fwd", "any"),
    "triton forward": ("triton.tutorial", A100, "fwd", "any"),
    "triton.ops, both": ("triton.ops", A100, "fwd+bwd", "full"),
    "triton.ops, causal": ("triton.ops", A100, "fwd+bwd", "causal"),
    "xformers both": ("xformers.cutlass", A100, "fwd+bwd", "any"),
    "FlexAttention forward": ("torch.flex", A100, "fwd", "any"),
    "FlexAttention backward on Hopper": ("torch.flex", H100, "bwd", "any"),
    "FlexAttention decoding": ("torch.flex", H100, "decode", "any"),
    "FlashInfer's FlashAttention-2": ("flashinfer.fa2", A100, "fwd", "any"),
    "FlashInfer's FlashAttention-2, decoding": ("sglang.flashinfer", A100, "decode", "any"),
    "FlashInfer's FlashAttention-3": ("flashinfer.fa3", H100, "fwd", "any"),
    "vLLM's Triton kernel": ("vllm.triton", H100, "fwd", "any"),
    "vLLM's Triton kernel, decoding": ("vllm.triton", B200, "decode", "any"),
    "SDPA's flash back end": ("torch.sdpa-flash", A100, "fwd+bwd", "full"),
    "sliding-window flash-2": ("flash-attn.2", A100, "fwd", "window"),
    "sliding-window flash-3": ("flash-attn.3", H100, "fwd", "window"),
    "split-KV flash-2": ("flash-attn.2", A100, "decode", "any"),
    "split-KV flash-3": ("flash-attn.3", H100, "decode", "any"),
    "serving, vLLM on Ampere": ("vllm.flash-attn-2", A100, "decode", "any"),
    "serving, SGLang on Ampere": ("sglang.fa3-sm80", A100, "decode", "any"),
    "serving, vLLM on Hopper": ("vllm.flash-attn-3", H100, "fwd", "any"),
    "TensorRT-LLM context on Ampere": ("tensorrt-llm.attention", A100, "fwd", "any"),
    "TensorRT-LLM context on Hopper": ("tensorrt-llm.attention", H100, "fwd", "any"),
    "TensorRT-LLM generation on Ampere": ("tensorrt-llm.attention", A100, "decode", "any"),
    "TensorRT-LLM generation on Hopper": ("tensorrt-llm.attention", H100, "decode", "any"),
    "TensorRT-LLM context on Blackwell": ("tensorrt-llm.attention", B200, "fwd", "any"),
    "TensorRT-LLM generation on Blackwell": ("tensorrt-llm.attention", B200, "decode", "any"),
    "TensorRT-LLM's kernels called by vLLM": ("vllm.trtllm-gen", B200, "fwd", "any"),
    "TensorRT-LLM's kernels called by SGLang": ("sglang.trtllm-gen", B200, "decode", "any"),
    "serving, vLLM on Hopper, windows": ("vllm.flash-attn-3", H100, "decode", "window"),
    "serving, SGLang on Hopper": ("sglang.fa3", H100, "fwd", "any"),
    "encoder of SGLang on Hopper": ("sglang.vit-fa3", H100, "fwd", "full"),
    "encoder of vLLM on Hopper": ("vllm.vit-flash-attn-3", H100, "fwd", "full"),
    "our unfused kernels": ("attnsim.naive", A100, "fwd", "any"),
    "our unfused kernels, scale and mask apart": ("attnsim.naive-passes", H100, "decode", "window"),
    "FlashAttention-2 before its split": ("flash-attn.2-unsplit", A100, "fwd", "any"),
    "our flash": ("attnsim.flash", A100, "fwd", "any"),
    "our sigmoid": ("attnsim.sigmoid", A100, "fwd", "any"),
    "our flash on Hopper, windows": ("attnsim.flash", H100, "fwd", "window"),
    "our flash with wgmma": ("attnsim.flash-hopper", H100, "fwd", "any"),
    "our flash with wgmma, windows": ("attnsim.flash-hopper", H100, "fwd", "window"),
    "our split-KV decode": ("attnsim.decode", A100, "decode", "any"),
    "our split-KV decode on Hopper, windows": ("attnsim.decode", H100, "decode", "window"),
    "our backward": ("attnsim.flash-backward", A100, "bwd", "any"),
    "our backward on Hopper, windows": ("attnsim.flash-backward", H100, "bwd", "window"),
    "our block-sparse flash": ("attnsim.sparse", A100, "fwd", "patterns"),
    "block-sparse FlashAttention on Hopper": ("flash-attn.4-sparse", H100, "fwd", "patterns"),
    "FlexAttention with a BlockMask": ("torch.flex-mask", A100, "fwd", "patterns"),
    "FlexAttention with a BlockMask, both": ("torch.flex-mask", H100, "fwd+bwd", "patterns"),
    "FlexAttention with a BlockMask, backward": ("torch.flex-mask", A100, "bwd", "any"),
    "flex-block-attn": ("tencent.flex-block-attn", H100, "fwd", "blocks"),
    "FlashMask": ("paddle.flash-mask", H100, "fwd", "any"),
    "FlashMask, documents and a prefix": ("paddle.flash-mask", H100, "fwd", "bounds"),
    "FlexAttention with a BlockMask on Hopper, bands": ("torch.flex-mask", H100, "fwd", "any"),
    "block-sparse FlashAttention on Hopper, bands": ("flash-attn.4-sparse", H100, "fwd", "any"),
    "our block-sparse flash on Hopper, bands": ("attnsim.sparse", H100, "fwd", "any"),
    "our block-sparse flash, few queries": ("attnsim.sparse", H100, "decode", "patterns"),
    "our linear attention": ("attnsim.linear", A100, "fwd", "full"),
    "our linear attention on Hopper, causal": ("attnsim.linear", H100, "fwd", "causal"),
    "our linear attention, recurrent": ("attnsim.linear", A100, "decode", "causal"),
    "naive forward": ("torch.baddbmm", A100, "fwd", "any"),
    "naive backward": ("torch.baddbmm", A100, "bwd", "any"),
    "naive, Hugging Face, both": ("transformers.eager", A100, "fwd+bwd", "any"),
    "naive, SDPA math, both": ("torch.sdpa-math", H100, "fwd+bwd", "any"),
    "naive, fused epilogue": ("ideal.unfused", A100, "fwd+bwd", "any"),
}


def shapes(case: str) -> Iterator[Workload]:
    """Random shapes, the same at every run: ragged, grouped, Nq != Nk, one query, wider or narrower V."""
    name, _, passes, masks = CASES[case]
    draw = random.Random(case)
    for number in range(SHAPES):
        seq_q = draw.choice([1, 2, 7]) if passes == "decode" else draw.choice([1, 17, 64, 129, 200, 256, 301])
        seq_kv = draw.choice([65, 640, 1000, 1500]) if passes == "decode" else draw.choice([seq_q, seq_q, 60, 333])
        if name == "flash-attn.1":
            seq_q = draw.choice([17, 33, 64, 208, 256])  # see test_flash_1_reads_every_query_row_once_per_key_block
        heads_kv = draw.choice([1, 2])
        narrow = name in ("flash-attn.1", "flash-attn.4-sparse", "torch.flex-mask") or (
            name == "flash-attn.4" and passes == "fwd"
        )
        d = draw.choice([40, 64, 96, 128] if narrow else [40, 64, 96, 128, 192, 256])
        ours = name.startswith("attnsim.")
        d = draw.choice([64, 128, 256]) if ours else d
        if name == "attnsim.flash-hopper":
            d = draw.choice([64, 128])
        if name == "tencent.flex-block-attn":
            seq_q, seq_kv, d = draw.choice([384, 768, 1152]), draw.choice([384, 768, 1536]), 128
        whole = name == "triton.ops"
        if whole:
            seq_q, d = draw.choice([128, 256, 640]), draw.choice([16, 32, 64, 128])
            seq_kv = seq_q
        if masks == "bounds":
            seq_q = seq_kv = 333
        if name == "paddle.flash-mask":
            d = draw.choice([100, 128, 200, 256])
        if name == "attnsim.linear":
            d = draw.choice([64, 128])
            if masks == "causal" and passes == "fwd":
                seq_q = seq_kv = draw.choice([1, 64, 200, 1000, 2500])
        yield Workload(
            batch=draw.choice([1, 2]),
            heads_q=heads_kv * draw.choice([1] if whole else [1, 2, 3, 7]),
            seq_q=seq_q,
            head_dim=d,
            heads_kv=heads_kv,
            seq_kv=seq_kv,
            head_dim_v=d if ours or whole or masks == "blocks" else draw.choice([d, d, 64]),
            dtype=draw.choice(["fp16", "bf16"]),
            passes=passes,
            mask=draw.choice(MASKS[masks]),
            dropout="naive" in case and number % 5 == 0,
        )  # fmt: skip


def build(case: str) -> tuple[Implementation, Gpu]:
    name, gpu, _, _ = CASES[case]
    return IMPLEMENTATIONS[name], gpu


@pytest.mark.parametrize("case", CASES)
def test_closed_form_stream_and_exact_replay_ask_for_the_same_bytes(case: str) -> None:
    record, gpu = build(case)
    few = gpu.replace("sm.count", 3)  # a small chip plays quickly; the schedule is the whole chip's
    for number, w in enumerate(shapes(case)):
        schedule = record.build(w, gpu, None)
        assert dict(cost(w, gpu, record).requested_bytes) == schedule.requested(), str(w)
        if number % 3 == 0:
            played = replay(schedule, few, Numbers(), mode="exact", cache="cold")
            for kernel, shown in zip(schedule.kernels, played.kernels, strict=True):
                assert shown.requested == kernel.requested(), f"{kernel.name}: {w}"


@pytest.mark.parametrize("case", CASES)
def test_closed_form_and_stream_count_the_same_work(case: str) -> None:
    record, gpu = build(case)
    for w in shapes(case):
        schedule = record.build(w, gpu, None)
        form = cost_of(w, schedule)
        assert form.flops_executed == schedule.total("flops"), str(w)
        assert form.smem_bytes == schedule.total("smem_bytes"), str(w)
        # A streaming kernel shares its exponentials out over whole blocks: up to one per block is lost.
        blocks = sum(kernel.blocks for kernel in schedule.kernels) if "naive" in case else 0
        assert 0 <= form.exponentials - schedule.total("exps") <= blocks, str(w)


@pytest.mark.parametrize("case", CASES)
def test_closed_forms_bracket_the_replay(case: str) -> None:
    record, gpu = build(case)
    for w in list(shapes(case))[::2]:
        schedule = record.build(w, gpu, None)
        form = cost_of(w, schedule)
        cold = replay(schedule, gpu, Numbers(), cache="cold")
        moved = cold.hbm_read_bytes + cold.hbm_write_bytes
        assert form.compulsory_bytes <= moved * (1 + 1e-9), str(w)
        assert moved <= form.no_reuse_bytes * (1 + 1e-9), str(w)
        assert cold.l2_bytes == form.no_reuse_bytes


@pytest.mark.parametrize("case", CASES)
def test_never_faster_than_the_roofline_bound(case: str) -> None:
    record, gpu = build(case)
    best = Numbers(
        ImplementationNumbers(
            tensor_efficiency=1.0,
            smem_exposed=0.0,
            softmax_instructions=1.0,
            interference=0.0,
            step_clks=0.0,
            block_clks=0.0,
            call_s=0.0,
        )
    )
    for w in list(shapes(case))[::2]:
        schedule = record.build(w, gpu, None)
        for numbers in (Numbers(), best):
            time = replay(schedule, gpu, numbers, cache="cold", launch="kernel").time_s
            assert time >= roofline_time(schedule, w, gpu) * (1 - 1e-9), str(w)


def test_the_stream_of_every_class_adds_up_to_what_is_requested() -> None:
    w = Workload(2, 4, 333, 64, 2, 500, mask=Mask.causal())
    schedule: Schedule = IMPLEMENTATIONS["flash-attn.2"].build(w, A100, None)
    for kernel in schedule.kernels:
        added: dict[tuple[str, str], int] = {}
        for block_class, count in enumerate(kernel.class_counts.tolist()):
            for segment, n in kernel.runs(block_class):
                for op in kernel.segments[segment].ops:
                    if op.bytes:
                        key = (op.kind, op.tensor)
                        added[key] = added.get(key, 0) + op.bytes * n * count
        assert added == kernel.requested()


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_flash_1_writes_every_causal_row_once(passes: str) -> None:
    w = Workload(1, 8, 1024, 64, dtype="fp16", passes=passes, mask=Mask.causal())
    schedule = IMPLEMENTATIONS["flash-attn.1"].build(w, A100, None)
    assert dict(cost_of(w, schedule).requested_bytes) == schedule.requested()


def test_flash_1_reads_every_query_row_once_per_key_block() -> None:
    w = Workload(1, 1, 485, 64, dtype="fp16")
    schedule = IMPLEMENTATIONS["flash-attn.1"].build(w, A100, None)
    assert dict(cost_of(w, schedule).requested_bytes) == schedule.requested()


def test_keys_and_values_of_one_pass() -> None:
    """Llama-3-8B at 8,192 tokens: 8 KV heads x 8192 x 128 x (K, V) x 2 bytes = 32 MiB a layer."""
    w = Workload(1, 32, 1, 128, 8, 8192, passes="decode")
    requested = cost(w, H100, IMPLEMENTATIONS["flash-attn.3"]).requested_bytes
    kv = sum(n for (_, kind, tensor), n in requested.items() if kind == "load" and tensor in "KV")
    assert kv == 32 << 20


@pytest.mark.parametrize(("passes", "factor"), [("fwd", 1.0), ("decode", 1.0), ("bwd", 2.5), ("fwd+bwd", 3.5)])
def test_useful_flops_are_the_papers(passes: str, factor: float) -> None:
    """4 N^2 d heads batch forward, half of it causal (arXiv 2307.08691, section 4.1)."""
    w = Workload(2, 16, 2048, 128, passes=passes)
    assert softmax(w).flops == softmax(w).dense == factor * 4 * 2048**2 * 128 * 16 * 2
    causal = Workload(2, 16, 2048, 128, passes=passes, mask=Mask.causal())
    assert softmax(causal).flops == factor * 4 * (2048 * 2049 // 2) * 128 * 16 * 2
    assert softmax(causal).dense == softmax(w).dense


@given(
    st.integers(1, 4000),
    st.integers(1, 4000),
    st.none() | st.integers(0, 4000),
    st.none() | st.integers(0, 300),
)
def test_executed_flops_cover_the_useful_ones(seq_q: int, seq_kv: int, left: int | None, right: int | None) -> None:
    w = Workload(1, 2, seq_q, 64, seq_kv=seq_kv, mask=Mask(left, right))
    form = cost(w, A100, IMPLEMENTATIONS["triton.tutorial"])
    assert softmax(w).flops <= form.flops_executed
    assert softmax(w).flops <= softmax(w).dense
    assert form.compulsory_bytes <= form.no_reuse_bytes


@given(st.integers(1, 600), st.integers(1, 400), st.integers(1, 500))
def test_masks_order_the_work_of_one_tile(seq: int, window: int, extra: int) -> None:
    """Window <= causal <= full, and a window as long as the sequence is causal."""
    record = IMPLEMENTATIONS["triton.tutorial"]

    def form(mask: Mask) -> tuple[int, int]:
        found = cost(Workload(1, 1, seq, 64, mask=mask), A100, record)
        return found.flops_executed, found.no_reuse_bytes

    window_, causal, full = form(Mask.sliding_window(window)), form(Mask.causal()), form(Mask.full())
    assert window_[0] <= causal[0] <= full[0] and window_[1] <= causal[1] <= full[1]
    assert form(Mask.sliding_window(seq + extra)) == causal


def table_row(w: Workload, rows: int, keys: int) -> list[int]:
    left, right = (-1 if reach is None else reach for reach in (w.mask.left, w.mask.right))
    shape = [w.batch, w.heads_q, w.heads_kv, w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v, w.element_bytes]
    return [*shape, left, right, rows, keys]


@settings(max_examples=40, deadline=None)
@example(2, 1, Mask(199, 199), False)  # limits that nothing reaches
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from(MASKS["any"] + MASKS["window"]), st.booleans())
def test_the_vectorised_form_is_the_single_one(seq_q: int, seq_kv: int, mask: Mask, fused: bool) -> None:
    w = Workload(2, 6, seq_q, 80, 2, seq_kv, 64, mask=mask)
    name = "triton.tutorial" if fused else "torch.baddbmm"
    single = cost(w, A100, IMPLEMENTATIONS[name])
    columns = np.array([table_row(w, 128 * fused, 64 * fused)] * 2).T
    table = costs(ShapeTable(*columns))
    assert table.flops_useful.tolist() == [softmax(w).flops] * 2
    assert table.flops_dense.tolist() == [softmax(w).dense] * 2
    for field in ("flops_executed", "exponentials", "compulsory_bytes", "no_reuse_bytes", "peak_memory_bytes"):
        assert getattr(table, field).tolist() == [getattr(single, field)] * 2, field
    split = [sum(n for (_, k, _), n in single.requested_bytes.items() if k == kind) for kind in ("load", "store")]
    assert [int(table.load_bytes[0]), int(table.store_bytes[0])] == split


def test_a_million_tokens_is_one_row_like_any_other() -> None:
    w = Workload(1, 32, 1 << 20, 128, 8, mask=Mask.causal())
    table = costs(ShapeTable(*np.array([table_row(w, 128, 64)]).T))
    assert int(table.flops_useful[0]) == softmax(w).flops
    assert int(table.flops_executed[0]) / softmax(w).flops == pytest.approx(1, abs=2e-4)
