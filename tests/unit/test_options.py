"""Sinks, soft-capping, the cache's number format and pages: what they compute, who does them, and what they cost."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attnsim
from attnsim import Mask, Workload, load_gpu
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation, match
from attnsim.models.implementations.names import version_parts
from attnsim.models.implementations.options import REASONS, SUPPORTS, WORK, lacking
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.choosing import choose_implementation
from attnsim.models.question.words import KERNEL_OPTIONS
from attnsim.models.references.softmax import attention, attention_backward
from attnsim.models.references.tiled import flash1_reference, flash_reference, split_kv_reference
from attnsim.models.schedule.schedule import Schedule

H100, A100, H20 = load_gpu("h100-sxm5-80gb"), load_gpu("a100-sxm4-80gb"), load_gpu("h20")
PREFILL = Workload(batch=2, heads_q=16, heads_kv=4, seq_q=2048, head_dim=128, mask=Mask.causal())
DECODE = Workload(batch=32, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")
SINKS = np.array([0.3, -2.0, 5.0, 0.0])


def drawn(queries: int = 13, keys: int = 21) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(1).standard_normal
    return draw((2, 4, queries, 8)) * 3, draw((2, 2, keys, 8)), draw((2, 2, keys, 5))


def build(name: str, w: Workload, gpu: attnsim.Gpu = H100) -> Schedule:
    return find_implementation(name).build(w, gpu, None)


def test_a_capped_score_and_a_sink_are_their_definitions() -> None:
    q, k, v = drawn()
    o, lse = attention(q, k, v, Mask.causal(), softcap=2.5, sinks=SINKS)
    b, h, i = 1, 2, 7
    scores = [2.5 * math.tanh(float(q[b, h, i] @ k[b, h // 2, j]) / math.sqrt(8) / 2.5) for j in range(i + 21 - 13 + 1)]
    total = math.fsum(map(math.exp, scores)) + math.exp(SINKS[h])
    want = sum(math.exp(score) / total * v[b, h // 2, j] for j, score in enumerate(scores))
    np.testing.assert_allclose(o[b, h, i], want, rtol=1e-12)
    assert lse[b, h, i] == pytest.approx(math.log(total))
    far, _ = attention(q, k, v, softcap=1e6, sinks=np.full(4, -1e6))
    np.testing.assert_allclose(far, attention(q, k, v)[0], atol=1e-9)


@pytest.mark.parametrize("tiled", [flash_reference, flash1_reference, split_kv_reference])
def test_tiles_compute_the_same(tiled: Any) -> None:
    q, k, v = drawn(13, 40)
    asked: dict[str, Any] = {"softcap": 2.0, "sinks": SINKS}
    for mask in (Mask.full(), Mask(left=3, right=0)):
        for got, want in zip(tiled(q, k, v, mask, keys=16, **asked), attention(q, k, v, mask, **asked), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_gradients_are_finite_differences() -> None:
    q, k, v = drawn(4, 6)
    do = np.random.default_rng(2).standard_normal((2, 4, 4, 5))
    asked: dict[str, Any] = {"softcap": 1.5, "sinks": SINKS}
    gradients = attention_backward(q, k, v, do, Mask.causal(), **asked)
    for place, gradient in enumerate(gradients):
        for at in ((0, 0, 1, 2), (1, 1, 3, 4)):
            ends = []
            for step in (1e-6, -1e-6):
                moved = (q.copy(), k.copy(), v.copy())
                moved[place][at] += step
                ends.append((attention(moved[0], moved[1], moved[2], Mask.causal(), **asked)[0] * do).sum())
            assert gradient[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_every_line_of_the_table_names_what_there_is_and_where_it_was_read() -> None:
    assert REASONS.keys().isdisjoint(SUPPORTS) and {name for _, name in REASONS} <= IMPLEMENTATIONS.keys()
    for (option, name), one in SUPPORTS.items():
        assert option in (*KERNEL_OPTIONS, "page_size") and name in IMPLEMENTATIONS
        assert one.work in WORK or (option, one.work) == ("page_size", "")
        assert one.passes in ("fwd", "all") and one.source and (not one.since or version_parts(one.since))
        assert option != "page_size" or IMPLEMENTATIONS[name].pages


@pytest.mark.parametrize("option", KERNEL_OPTIONS)
def test_who_stands_in_no_line_refuses_and_names_who_does_not(option: str) -> None:
    value: Any = {"kv_dtype": "fp8", "sinks": True}.get(option, 30.0)
    w = Workload(heads_q=16, seq_q=512, head_dim=64, **{option: value})
    for record in IMPLEMENTATIONS.values():
        said = lacking(record, w)
        assert bool(said) == ((option, record.name) not in SUPPORTS), record.name
        assert REASONS.get((option, record.name), "") in said
        assert not said or ("take " in said and "\n" not in said and said.startswith(record.name))


def test_a_usual_algorithm_without_sinks_has_a_dash_and_the_other_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "predict",
        "--gpu",
        "t4",
        "--heads",
        "8",
        "--seq",
        "2k",
        "--head-dim",
        "64",
        "--dtype",
        "fp16",
        "--sinks",
    ]
    assert main([*command, "--json"]) == 0
    naive, flash = json.loads(capsys.readouterr().out)
    assert naive["algorithm"] == "naive" and naive["time_s"] > 0
    assert flash["algorithm"] == "flash" and flash["time_s"] is None
    assert flash["error"].startswith("flash-attn.1 has no attention sinks; leave it out, or take ")
    assert main(command) == 0
    assert "flash-attn.1 has no attention sinks" in capsys.readouterr().out
    assert main([*command, "--algorithm", "flash"]) == 2


@pytest.mark.parametrize("gpu", ["t4", "v100-sxm2-32gb", "a100-sxm4-80gb", "l40s", "h100-sxm5-80gb", "b200-sxm-180gb"])
@pytest.mark.parametrize("option", ["sinks", "softcap"])
def test_every_gpu_has_a_default_that_does_it_or_a_refusal_that_names_what_does_it_there(gpu: str, option: str) -> None:
    machine = load_gpu(gpu)
    for passes in ("fwd", "decode"):
        asked: dict[str, Any] = {"heads_q": 16, "seq_q": 512 if passes == "fwd" else 1, "seq_kv": 512, "head_dim": 64}
        asked[option] = 30.0 if option == "softcap" else True
        w = Workload(**asked, dtype="fp16", passes=passes)
        for mechanism in (MECHANISMS["flash"], MECHANISMS["naive"]):
            try:
                assert not lacking(choose_implementation(mechanism, None, w, machine), w)
            except InputError as error:
                assert machine.sm_arch in ("sm_70", "sm_75") and mechanism.name == "flash"
                assert str(error).endswith("take transformers.eager, torch.eager, torch.baddbmm (algorithm naive)")


def test_who_lacks_it_names_those_that_run_there() -> None:
    w = replace(PREFILL, sinks=True)
    with pytest.raises(InputError, match="no attention sinks; leave it out, or take ") as error:
        choose_implementation(MECHANISMS["flash"], find_implementation("flash-attn.2"), w, A100)
    assert "vllm.triton" in str(error.value) and "flash-attn-3" not in str(error.value)
    with pytest.raises(InputError, match="leave it out: no other that runs the question there does it"):
        choose_implementation(MECHANISMS["linear"], None, replace(PREFILL, softcap=30.0), H100)
    fp8 = replace(PREFILL, dtype="fp16", kv_dtype="fp8")
    with pytest.raises(InputError, match="leave it out: no other that runs the question there does it"):
        choose_implementation(MECHANISMS["flash"], None, fp8, load_gpu("t4"))


@pytest.mark.parametrize("name", ["flash-attn.2", "flash-attn.3", "vllm.triton", "torch.flex", "flashinfer.fa2"])
def test_a_tanh_adds_its_instructions_to_every_score_and_nothing_else(name: str) -> None:
    plain, capped = (
        build(name, replace(PREFILL, softcap=cap), A100 if name == "torch.flex" else H100) for cap in (0, 50)
    )
    scores, work = plain.total("scores"), WORK[SUPPORTS["softcap", name].work]
    for amount in ("exps", "fp32", "int32"):
        assert capped.total(amount) - plain.total(amount) == pytest.approx(scores * getattr(work, amount), rel=1e-3)
    assert capped.total("flops") == plain.total("flops")
    assert [one.blocks for one in capped.kernels] == [one.blocks for one in plain.kernels]
    counted = plain.total("issues") > 0
    assert counted == (capped.total("issues") > plain.total("issues"))


def test_a_backward_pass_computes_the_tanh_again_with_its_derivative() -> None:
    w = replace(PREFILL, passes="bwd")
    more = build("flash-attn.2", replace(w, softcap=50.0)).total("fp32") - build("flash-attn.2", w).total("fp32")
    assert more == pytest.approx(4 * build("flash-attn.2", w).total("scores"), rel=1e-3)


def test_a_sink_is_read_by_every_row_and_costs_next_to_nothing() -> None:
    plain, sunk = (build("vllm.flash-attn-3", replace(PREFILL, sinks=asked)) for asked in (False, True))
    (kernel,) = [one for one in sunk.kernels if any(use.tensor == "sinks" for use in one.uses)]
    assert kernel.requested()["load", "sinks"] == 4 * PREFILL.batch * PREFILL.heads_q * PREFILL.seq_q
    times = [
        attnsim.predict(replace(PREFILL, sinks=asked), H100, "flash", implementation="vllm.flash-attn-3").time_s
        for asked in (False, True)
    ]
    assert times[0] and times[1] and times[0] <= times[1] <= 1.03 * times[0]
    assert sunk.total("scores") == plain.total("scores")


def test_eager_options_are_passes_over_the_scores() -> None:
    names = [one.name for one in build("transformers.eager", replace(PREFILL, softcap=50.0, sinks=True)).kernels]
    assert [one for one in names if one in ("over the cap", "tanh", "times cap", "cat sinks", "max", "less max")] == [
        "over the cap", "tanh", "times cap", "cat sinks", "max", "less max",
    ]  # fmt: skip
    assert names.index("tanh") < names.index("mask") < names.index("cat sinks") < names.index("softmax")


def test_a_cache_of_eight_bits_is_half_the_bytes_and_is_converted_by_instructions() -> None:
    wide, narrow = (build("flashinfer.fa2", replace(DECODE, kv_dtype=dtype)) for dtype in ("", "fp8"))
    read = [sum(one.requested().get(("load", "K"), 0) for one in schedule.kernels) for schedule in (wide, narrow)]
    assert read[0] == 2 * read[1] > 0
    rows_of_keys = DECODE.batch * DECODE.heads_kv * DECODE.seq_kv
    assert narrow.total("fp32") - wide.total("fp32") >= rows_of_keys * 256
    assert narrow.total("load_stores") > wide.total("load_stores"), "fragments are shuffled where no tile is staged"
    assert replace(DECODE, kv_dtype="fp8").kv_cache_bytes * 2 == DECODE.kv_cache_bytes
    staged = build("flashinfer.fa2", replace(PREFILL, kv_dtype="fp8"))
    assert ("K, V converted", 64 * 128 * 2) in staged.kernels[0].buffers or staged.total("smem_bytes") > 0


def test_a_cache_is_in_the_format_of_the_queries_or_in_fp8() -> None:
    assert Workload(heads_q=4, seq_q=64, head_dim=64, kv_dtype="bfloat16") == Workload(heads_q=4, seq_q=64, head_dim=64)
    assert Workload(heads_q=4, seq_q=64, head_dim=64, dtype="fp8", kv_dtype="fp8_e4m3").kv_dtype == ""
    with pytest.raises(InputError, match="kv_dtype is 'fp16' beside bf16 queries; allowed: bf16, as Q, or fp8"):
        Workload(heads_q=4, seq_q=64, head_dim=64, kv_dtype="fp16")
    with pytest.raises(InputError, match="no gradients"):
        Workload(heads_q=4, seq_q=64, head_dim=64, kv_dtype="fp8", passes="bwd")


def test_pages_of_flash_attention_2_and_3_are_those_of_their_sources() -> None:
    pages = replace(DECODE, page_size=256)
    assert [one.name for one in build("flash-attn.2", replace(pages, batch=256), A100).kernels] == ["flash_fwd_splitkv"]
    with pytest.raises(InputError, match="multiples of 256"):
        build("flash-attn.2", replace(DECODE, page_size=128), A100)
    old = match("flash-attn.2", "2.3").record
    with pytest.raises(InputError, match=r"it came with version 2\.5, asked is 2\.3"):
        choose_implementation(MECHANISMS["flash"], old, pages, A100)
    long = replace(PREFILL, seq_q=8192, seq_kv=8192)
    by_tile, by_key = (build("flash-attn.3", replace(long, page_size=size)) for size in (128, 64))
    assert by_tile.tile.forward.by_row is False and by_key.tile.forward.by_row is True  # type: ignore[attr-defined]
    assert build("flash-attn.3", replace(DECODE, page_size=128)).tile.forward.by_row  # type: ignore[attr-defined]


def test_addresses_of_a_paged_cache_are_work_of_each_key() -> None:
    whole = build("flashinfer.fa2", DECODE, H20).total("int32")
    found = {
        size: build("flashinfer.fa2", replace(DECODE, page_size=size), H20).total("int32") for size in (1, 16, 128)
    }
    keys = DECODE.batch * DECODE.heads_kv * DECODE.seq_kv
    assert all(one - whole == pytest.approx(136 * keys, rel=1e-2) for one in found.values())


def test_a_question_with_options_is_never_validated() -> None:
    plain = attnsim.predict(PREFILL, H100, "flash", implementation="vllm.flash-attn-3")
    for w in (replace(PREFILL, sinks=True), replace(PREFILL, softcap=30.0)):
        asked = attnsim.predict(w, H100, "flash", implementation="vllm.flash-attn-3")
        assert asked.trust.level != "validated" and "not measured" in asked.trust.reason
    assert "not measured" not in plain.trust.reason or plain.trust.level != "validated"
