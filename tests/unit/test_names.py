"""What a published name stands for, by GPU, version and workload; calls that choose; builds and their speed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnsim import Mask, Workload, load_gpu, predict
from attnsim.api.tables import predict_case
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import built, choose
from attnsim.models.implementations.choose import IMPLEMENTATIONS, match, settled_name
from attnsim.models.implementations.names import BUILDS, MEANINGS, build_speed
from attnsim.models.question.case_row import parse_row
from attnsim.tables import read_csv
from attnsim.validation.checking.validate import assumed_table
from attnsim.validation.measured.datasets import row_of

A100, H100, B200, RTX_4090, RTX_5090, V100 = (
    load_gpu(name)
    for name in (
        "a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "rtx-4090", "rtx-5090", "v100-sxm2-32gb",
    )
)  # fmt: skip
GPUS = {"A100": A100, "H100": H100, "B200": B200, "4090": RTX_4090, "5090": RTX_5090}
B300 = load_gpu("b300-sxm-288gb")
EQUAL = {"heads_kv": 16}
PREFILL = Workload(batch=2, heads_q=16, heads_kv=4, seq_q=2048, head_dim=128, mask=Mask.causal())

PUBLISHED = """
cudnn                         A100 H100 B200 5090  -       nvidia.cudnn
cudnn_9.27                    A100 H100 B200       -       nvidia.cudnn
cudnn_fe                      H100 B200            -       nvidia.cudnn
cudnn_transformer_engine      H100                 -       transformer-engine.cudnn
flash_attention               A100 H100 B200 5090  -       flash-attn.2
flash_attention_v3            H100                 -       flash-attn.3
flash_attn_v2                 A100 H100 B200       -       flash-attn.2
flash_attn_v2                 A100 H100            2.1.2   flash-attn.2-unsplit
flash_attn_v2                 A100                 2.3     flash-attn.2
flash_attn_v2.0.9             A100                 -       flash-attn.2-unsplit
flash_attn_v2.8.3             H100                 -       flash-attn.2
flash_attn_v2_varlen          A100 4090            -       flash-attn.2
flash_attn_v3_fp16            H100                 -       flash-attn.3
flash_attn_v4_cute            A100 4090            -       flash-attn.4-sm80
flash_attn_v4_cute            H100                 -       flash-attn.4-sm90
flash_attn_v4_cute            B200                 -       flash-attn.4
flash_decoding_splitkv        A100                 -       flash-attn.2
flash_mask                    A100                 -       paddle.flash-mask-2
flash_mask                    H100                 -       paddle.flash-mask-3
flashinfer                    H100                 -       flashinfer.fa3
flashinfer                    A100 B200 5090       -       flashinfer.fa2
flashinfer_fa2_paged          A100 H100            -       flashinfer.fa2
flashinfer_fa3_ragged         H100                 -       flashinfer.fa3
flex_attention                A100 H100 5090       -       torch.flex
magi_ffa                      H100                 -       magi.ffa
pyt_cudnn                     H100 B200            -       torch.sdpa-cudnn
pyt_flash_attention           H100 B200            -       torch.sdpa-flash
pyt_math                      H100                 2.6     torch.sdpa-math
pyt_math                      H100                 2.4     torch.sdpa-math-16bit
pytorch_sdpa                  A100 4090            -       torch.sdpa-flash
pytorch_sdpa                  H100 B200            -       torch.sdpa-cudnn
pytorch_sdpa                  H100                 2.6     torch.sdpa-flash
pytorch_sdpa_flash            H100                 -       torch.sdpa-flash
pytorch_sdpa_flash            A100                 2.2     torch.sdpa-flash
standard                      H100                 -       torch.baddbmm
torch                         A100                 -       torch.sdpa-math-16bit
torch_flow                    A100 H100 B200       -       tensorrt-llm.attention
trtllm_mha                    B200                 -       sglang.trtllm-gen
vllm_0.19_flash_attn          4090 5090            -       vllm.flash-attn-2
vllm_0.19_flash_attn          H100                 -       vllm.flash-attn-3
vllm_flash_attn               A100 4090 5090       -       vllm.flash-attn-2
vllm_flash_attn               H100                 0.14.0  vllm.flash-attn-3
vllm_flash_attn               B200                 0.14.0  vllm.flash-attn-2
vllm_flash_attn               B200                 0.24.0  vllm.flash-attn-4
vllm_flashinfer_trtllmprefill B200                 -       vllm.trtllm-gen
vllm_flashinfer_trtllmdecode  B200                 -       vllm.trtllm-gen
vllm_flashinfer_fidecode      4090                 -       vllm.flashinfer
vllm_triton_attn              A100 H100 B200       -       vllm.triton
vllm_vit_flash_attn           A100 5090            -       flash-attn.2
vllm_vit_flash_attn           H100                 -       vllm.vit-flash-attn-3
vllm_vit_flash_attn           B200                 -       vllm.vit-flash-attn-4
xformers                      A100 H100            -       xformers.cutlass
"""
CASES = [
    (words[0], gpu, words[-2].strip("-"), words[-1])
    for words in map(str.split, PUBLISHED.strip().splitlines())
    for gpu in words[1:-2]
]


@pytest.mark.parametrize(("name", "gpu", "version", "found"), CASES)
def test_a_published_name_is_the_record_that_ran(name: str, gpu: str, version: str, found: str) -> None:
    assert match(name, version, GPUS[gpu], PREFILL).record.name == found


@pytest.mark.parametrize(
    ("name", "gpu", "said"),
    [
        (
            "magi_ffa",
            "B200",
            "magi_ffa is not modelled on b200-sxm-180gb (sm_100): its kernels there are FlashAttention-4's; nearest "
            "that is: flash-attn.4",
        ),
        ("flash_mask", "5090", "flash_mask is not modelled on rtx-5090 (sm_120): there is none for this GPU; nearest"),
        ("sglang flashinfer", "B200", "nearest that is: sglang.trtllm-gen"),
        ("trtllm_mha", "H100", "the back end is for sm_100; nearest that is: tensorrt-llm.attention"),
        ("ffpa_cutedsl", "B200", "nearest that is: torch.sdpa-math"),
    ],
)
def test_what_is_not_modelled_is_refused_in_one_line_with_the_nearest_that_is(name: str, gpu: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as error:
        match(name, "", GPUS[gpu], PREFILL)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("FlashAttention-2", "flash-attn.2"),
        ("FlashAttention 3", "flash-attn.3"),
        ("flash_attn_2", "flash-attn.2"),
        ("FA2", "flash-attn.2"),
        ("fa3", "flash-attn.3"),
    ],
)
def test_a_table_means_what_people_say(name: str, found: str) -> None:
    assert match(name, "", H100, PREFILL).record.name == found


FIELD = read_csv(Path(__file__).resolve().parents[1] / "data" / "names_of_the_field.csv")


@pytest.mark.parametrize("row", FIELD, ids=[f"{row['name']} on {row['gpu']} {row['version']}" for row in FIELD])
def test_a_name_of_the_field_means_what_its_owner_means(row: dict[str, str]) -> None:
    """Each was seen where its line says; what has no schedule is refused with its reason and the nearest that has."""
    passes, _, paged = row["pass"].partition("/")
    queries = 1 if passes == "decode" else 2048
    asked = Workload(
        batch=2, heads_q=16, seq_q=queries, seq_kv=2048, head_dim=128, mask=Mask.causal(), passes=passes,
        page_size=16 if paged else 0,
    )  # fmt: skip
    gpu = load_gpu("l40s") if row["gpu"] == "L40S" else GPUS[row["gpu"]]
    if row["found"]:
        assert match(row["name"], row["version"], gpu, asked).record.name == row["found"]
        return
    with pytest.raises(InputError, match=row["refused"]) as error:
        match(row["name"], row["version"], gpu, asked)
    assert "nearest that is: " in str(error.value)


def test_at_least_150_names_of_the_field_are_tried_each_with_where_it_was_seen() -> None:
    assert len({row["name"] for row in FIELD}) >= 150 and all(row["seen"] for row in FIELD)


def test_a_name_is_its_owners_first_where_a_table_says_whose() -> None:
    """By a column's own name, or by the version of the server that calls; PyTorch's version says nothing of others."""
    for whose, name, found in (
        ("transformers", "eager", "transformers.eager"),
        ("", "eager", "torch.eager"),
        ("transformers", "banana_split", ""),
    ):
        if found:
            assert match(name, "", A100, PREFILL, whose).record.name == found
        else:
            with pytest.raises(InputError, match="is not known"):
                match(name, "", A100, PREFILL, whose)
    assert match("flash_attn", "vllm 0.24.0", H100, PREFILL).record.name == "vllm.flash-attn-3"
    assert match("flash_attn", "torch 2.11.0", H100, PREFILL).record.name == "flash-attn.2"
    assert match("sdpa", "vllm 0.24.0, torch 2.6.0", H100, PREFILL).record.name == "torch.sdpa-flash"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"algorithm": "banana"}, "algorithm 'banana' is not known"),
        (
            {"algorithm": "sparse"},
            "algorithm is 'sparse' and implementation 'flash-attn.3', which is flash-attn.3 and runs",
        ),
        ({"algorithm": "naive"}, "write flash, leave one of them empty, or take one of torch.baddbmm"),
        ({"algorithm": "naive", "implementation": "sdpa"}, "runs flash"),
        ({"algorithm": "flash"}, ""),
        ({"algorithm": "flash-3"}, ""),
        ({"algorithm": "FA3"}, ""),
        ({"algorithm": "FA2"}, "algorithm 'fa2' is not known; it is the name of an implementation"),
        ({"algorithm": "Flash Attention"}, ""),
        ({"algorithm": "Flash Attention", "implementation": "torch.eager"}, "flash attention"),
        ({"algorithm": "FLASH_ATTN", "implementation": ""}, ""),
        ({"algorithm": "mha"}, ""),
        ({"algorithm": "flash", "implementation": "sdpa", "dtype": "fp32", "heads_kv": "4"}, ""),
        ({}, ""),
    ],
)
def test_an_algorithm_that_is_unknown_or_contradicts_its_implementation_is_refused(
    cells: dict[str, str], said: str
) -> None:
    row = {"gpu": "h100-sxm5-80gb", "batch": "4", "heads_q": "16", "seq_q": "1024", "head_dim": "128"}
    found = predict_case(parse_row(row | {"implementation": "flash-attn.3"} | cells))
    assert said in str(found["error"]) if said else found["error"] == ""


def test_the_table_of_names_names_records_alone() -> None:
    for line in MEANINGS:
        assert bool(line.implementation) != bool(line.nearest), line
        assert (line.implementation or line.nearest) in IMPLEMENTATIONS, line


def test_a_line_without_kernels_for_the_pass_gives_way_to_the_next() -> None:
    assert match("flash_attention", "", A100, PREFILL.with_passes("bwd")).record.name == "flash-attn.2"
    wide = replace(PREFILL, head_dim=256, head_dim_v=256)
    assert match("vllm_flash_attn", "0.24", B200, wide).record.name == "vllm.flash-attn-2"


def test_where_no_schedule_has_the_instructions_there_is_no_number() -> None:
    name = "triton.tutorial"
    with pytest.raises(
        InputError, match=r"no schedule: .* runs tcgen05 instructions on b200-sxm-180gb .*nearest: flash-attn\.4"
    ):
        predict(PREFILL, B200, implementation=name, baseline=False)
    for able, gpu in ((name, RTX_5090), ("torch.flex", RTX_5090), ("torch.flex", B200)):
        assert predict(PREFILL, gpu, implementation=able, baseline=False).implementation == able


@pytest.mark.parametrize(
    ("changes", "gpu", "version", "found"),
    [
        ({}, A100, "", "torch.sdpa-flash"),
        ({}, H100, "2.10", "torch.sdpa-flash"),
        ({}, A100, "2.1", "torch.sdpa-flash-1"),
        ({}, H100, "2.11", "torch.sdpa-cudnn"),
        ({}, H100, "2.5.0", "torch.sdpa-cudnn"),
        ({}, H100, "2.5.1", "torch.sdpa-flash"),
        ({}, B300, "2.11", "torch.sdpa-cudnn"),
        ({"head_dim": 256, "head_dim_v": 256}, H100, "2.12", "torch.sdpa-cudnn"),
        ({"head_dim": 256, "head_dim_v": 256}, B200, "2.12", "torch.sdpa-flash"),
        ({"head_dim": 256, "head_dim_v": 256}, B200, "2.14", "torch.sdpa-cudnn"),
        ({"head_dim": 192, "head_dim_v": 128}, B200, "2.12", "torch.sdpa-cudnn"),
        ({"head_dim": 208, "head_dim_v": 208}, RTX_4090, "", "torch.sdpa-flash"),
        ({"head_dim": 208, "head_dim_v": 208, "passes": "fwd+bwd", **EQUAL}, RTX_4090, "", "torch.sdpa-efficient"),
        ({"head_dim": 320, "head_dim_v": 320}, H100, "", "torch.sdpa-math"),
        ({"head_dim": 320, "head_dim_v": 320, **EQUAL}, H100, "", "torch.sdpa-efficient"),
        ({"head_dim": 128, "head_dim_v": 64}, H100, "", "torch.sdpa-cudnn"),
        ({"head_dim": 128, "head_dim_v": 64, **EQUAL}, A100, "", "torch.sdpa-efficient"),
        ({"dtype": "fp32"}, A100, "", "torch.sdpa-math"),
        ({"dtype": "fp32"}, A100, "2.14", "torch.sdpa-efficient"),
        ({"dtype": "fp32", **EQUAL}, A100, "", "torch.sdpa-efficient"),
        ({"head_dim": 127, "head_dim_v": 127}, A100, "", "torch.sdpa-flash"),
        ({"head_dim": 127, "head_dim_v": 127, "dtype": "fp32", **EQUAL}, A100, "", "torch.sdpa-math"),
        ({"mask": Mask.sliding_window(256), **EQUAL}, A100, "", "torch.sdpa-efficient"),
        ({"mask": Mask.sliding_window(256)}, A100, "", "torch.sdpa-math"),
        ({"mask": Mask.sliding_window(256)}, H100, "", "torch.sdpa-cudnn"),
        ({"mask": Mask.sliding_window(4096)}, A100, "", "torch.sdpa-flash"),
        ({"dtype": "fp16", **EQUAL}, V100, "", "torch.sdpa-efficient"),
        ({"dtype": "fp16"}, V100, "", "torch.sdpa-math"),
        ({"dtype": "bf16"}, V100, "", "torch.sdpa-math"),
        ({"dtype": "bf16"}, V100, "2.4", "torch.sdpa-math-16bit"),
    ],
)
def test_sdpa_runs_the_first_back_end_that_can(
    changes: dict[str, object], gpu: object, version: str, found: str
) -> None:
    told = match("torch.sdpa", version, gpu, replace(PREFILL, **changes))  # type: ignore[arg-type]
    assert told.record.name == found and f"torch.sdpa runs {found} here" in told.taken


def test_a_call_that_chooses_is_answered_by_what_it_runs() -> None:
    found = predict(PREFILL, H100, implementation="transformers.sdpa", baseline=False)
    assert found.implementation == "torch.sdpa-cudnn"
    assert "transformers.sdpa runs torch.sdpa-cudnn here" in found.trust.reason
    odd = replace(PREFILL, head_dim=127, head_dim_v=127)
    padded, whole = (predict(one, A100, implementation="torch.sdpa", baseline=False) for one in (odd, PREFILL))
    assert padded.implementation == "torch.sdpa-flash" and "copy K" in dict(padded.kernels)
    assert "copy K" not in dict(whole.kernels)


def test_a_window_is_a_mask_tensor_to_sdpa_which_computes_all_pairs_and_reads_it() -> None:
    alike = replace(PREFILL, heads_kv=16, mask=Mask.full())
    windowed = replace(alike, mask=Mask.sliding_window(256))
    size = windowed.seq_q * windowed.seq_kv * windowed.element_bytes
    for gpu, name in ((A100, "torch.sdpa-efficient"), (H100, "torch.sdpa-cudnn")):
        for passes in ("fwd", "bwd"):
            full, seen = (
                predict(one.with_passes(passes), gpu, implementation=name, baseline=False, mode="exact")
                for one in (alike, windowed)
            )
            assert seen.flops_executed == full.flops_executed and seen.flops_useful < full.flops_useful
            heads = windowed.batch * windowed.heads_q
            assert seen.l2_bytes and full.l2_bytes and seen.hbm_read_bytes and full.hbm_read_bytes
            assert seen.l2_bytes - full.l2_bytes == pytest.approx(heads * size, rel=0.05)
            assert seen.hbm_read_bytes - full.hbm_read_bytes >= size
            assert seen.peak_memory_bytes == full.peak_memory_bytes + size
            assert seen.time_s and full.time_s and (passes == "bwd" or seen.time_s >= full.time_s)
            assert any("the window is a mask tensor" in note for note in seen.notes)
    asked = predict(windowed, A100, implementation="torch.sdpa", baseline=False)
    assert asked.implementation == "torch.sdpa-efficient"
    called = predict(replace(windowed, heads_kv=4), A100, implementation="transformers.sdpa", baseline=False)
    assert called.implementation == "torch.sdpa-efficient", "transformers repeats K and V where it gives a mask"


def test_another_build_takes_its_speed_longer_where_the_sms_are_busy_and_no_longer_where_memory_is() -> None:
    busy = replace(PREFILL, batch=16, heads_kv=16, seq_q=4096, seq_kv=4096, mask=Mask.full())
    its, original = (
        predict(busy, H100.replace("clock.sustained", "1.83 GHz"), implementation=n, baseline=False, mode="exact")
        for n in ("torch.sdpa-flash", "flash-attn.2")
    )
    assert its.time_s and original.time_s
    assert its.time_s / original.time_s == pytest.approx(1 / 0.93, rel=0.01)
    decode = Workload(batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")
    its, original = (
        predict(decode, H100, implementation=n, baseline=False) for n in ("torch.sdpa-flash", "flash-attn.2")
    )
    assert its.time_s and original.time_s and its.time_s / original.time_s < 1.03
    assert "the kernels of flash-attn.2 in a build of their own, 0.93 as fast" in its.trust.reason


def test_the_speed_of_both_passes_is_that_of_their_work() -> None:
    record = IMPLEMENTATIONS["torch.sdpa-flash"]
    each = {passes: build_speed(record, PREFILL.with_passes(passes), A100) for passes in ("fwd", "bwd", "fwd+bwd")}
    assert (each["fwd"], each["bwd"]) == pytest.approx((0.93, 0.96))
    assert each["fwd+bwd"] == pytest.approx(3.5 / (1 / 0.93 + 2.5 / 0.96))


def test_a_version_changes_the_answer_or_is_said_to_be_another() -> None:
    row = {
        "gpu": "h100-sxm5-80gb",
        "batch": "4",
        "heads_q": "16",
        "seq_q": "8192",
        "head_dim": "128",
        "launch": "kernel",
    }
    newest, oldest = (
        predict_case(parse_row(row | {"implementation": "cudnn", "version": version})) for version in ("9.27", "9.1.1")
    )
    assert float(str(oldest["predicted_s"])) > 1.03 * float(str(newest["predicted_s"]))
    other = predict_case(parse_row(row | {"implementation": "cudnn", "version": "9.5"}))
    assert "nvidia.cudnn of version 9.1 taken for 9.5" in str(other["trust"])
    unsaid = predict_case(parse_row(row | {"implementation": "cudnn"}))
    assert "version empty, taken as 9.27" in str(unsaid["trust"]) and "launch empty" not in str(unsaid["trust"])
    assert unsaid["predicted_s"] == newest["predicted_s"]


def test_numbers_are_of_the_build_that_is_asked_about() -> None:
    for record in (match("cudnn_9.1.1").record, match("nvidia.cudnn@9.1").record):
        assert built(choose(record, H100), record, PREFILL, H100).numbers.speed == pytest.approx(0.94)
        assert built(choose(record, A100), record, PREFILL, A100).numbers.speed == 1.0
    assert all(0.5 < one.speed <= 1 and one.implementation in IMPLEMENTATIONS for one in BUILDS)


def test_a_measured_row_resolves_as_a_question_does_and_says_what_it_leaves_open() -> None:
    cells = {"gpu": "h100-sxm5-80gb", "batch": "1", "heads_q": "8", "seq_q": "512", "head_dim": "128", "time_s": "1e-4"}
    row = row_of(parse_row(cells | {"implementation": "vllm_flash_attn", "source": "here"}))
    assert row.record.name == "vllm.flash-attn-3"
    assert row.assumed == (
        "cache empty, taken as warm",
        "launch empty, taken as stream",
        "version empty, taken as 0.24",
    )
    assert assumed_table([row, row]) == [{"source": "here", "rows": 2, "assumed": "; ".join(row.assumed)}]
    told = {"launch": "graph", "cache": "cold", "version": "vllm 0.24.0"}
    assert row_of(parse_row(cells | told | {"implementation": "vllm_flash_attn"})).assumed == ()


def test_a_study_keeps_a_name_whose_meaning_the_gpu_decides() -> None:
    assert settled_name("vllm_flash_attn") == "vllm_flash_attn"
    assert settled_name("flash_attn") == "flash_attn" and match("flash_attn").record.name == "flash-attn.2"
