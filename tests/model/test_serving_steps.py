"""Serving traces step by step: every token is made once, within the budget, by whoever has come."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from attnsim import InputError, Workload, predict
from attnsim.api.requests import Request, read_requests
from attnsim.api.serving_steps import Served, serve, timed_attention, timed_model
from attnsim.api.step import step
from attnsim.cli.app import app
from attnsim.errors import Taken
from attnsim.models.mask.mask import Mask
from attnsim.models.question.columns import Naming
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Latent

A100, H100 = "a100-sxm4-80gb", "h100-sxm5-80gb"
HEADS = Workload(heads_q=8, heads_kv=2, seq_q=1, head_dim=128, causal=True)  # type: ignore[call-arg]
REQUESTS = (Request(0.0, 700, 5), Request(0.0, 90, 1), Request(0.0, 3000, 12), Request(5.0, 40, 3))


def served(stride: int = 1, **given: float) -> Served:
    timing = timed_attention(HEADS, A100, "vllm.flash-attn-2", prompt=REQUESTS[0].prompt)
    return serve(REQUESTS, timing, A100, of="attention", tokens=512, stride=stride, **given)  # type: ignore[arg-type]


def test_every_token_is_made_once_and_within_the_budget() -> None:
    found = served()
    assert sum(one.prefill_tokens for one in found.steps) == sum(one.prompt for one in REQUESTS)
    assert sum(one.decodes for one in found.steps) == sum(one.output - 1 for one in REQUESTS)
    assert all(one.prefill_tokens + one.decodes <= 512 for one in found.steps)
    assert found.predicted == len(found.steps)


def test_who_comes_later_starts_later() -> None:
    found = served(rest_s=0.01)
    assert found.steps[-3].start_s == 5.0 and [one.kind for one in found.steps[-3:]] == ["prefill", "decode", "decode"]
    assert found.end_s == pytest.approx(5.03, rel=0.01)


def test_kinds_add_up_and_a_stride_moves_the_total_little() -> None:
    every, some = served(), served(stride=8)
    assert sum(row["time_s"] for row in every.by_kind()) == pytest.approx(every.attention_s)
    assert some.predicted < every.predicted
    assert some.attention_s == pytest.approx(every.attention_s, rel=0.02)
    decode = [one for one in some.steps if one.kind == "decode"]
    assert max(one.time_s for one in decode) < min(one.time_s for one in some.steps if one.prefill_tokens > 400)


def test_a_latent_is_read_by_its_own_kernels_and_prompts_and_decodes_are_two_calls() -> None:
    w = Workload(heads_q=16, seq_q=1, head_dim=192, head_dim_v=128, latent=Latent(512, 64), mask=Mask.causal())
    both = [Request(0.0, 8, 400), Request(1e-5, 700, 1)]
    found = serve(both, timed_attention(w, H100, prompt=8), H100, of="attention", stride=1000)
    mixed, decode = found.steps[1], found.steps[2]
    assert (mixed.kind, decode.kind) == ("mixed", "decode")

    def time_s(length: Length, passes: str) -> float:
        asked = w.having([length]).with_passes(passes)
        answer = predict(asked, "h100-sxm5-80gb", "mla", launch="graph", cache="cold", baseline=False)
        return answer.time_s or 0.0

    assert decode.time_s == pytest.approx(time_s(Length(1, 10), "decode"))
    assert mixed.time_s == pytest.approx(time_s(Length(700, 700), "fwd") + time_s(Length(1, 9), "decode"))
    with pytest.raises(InputError, match=r"flash-attn\.3 does not run algorithm mla"):
        serve(both, timed_attention(w, H100, "flash-attn.3", prompt=8), H100)


def test_a_cache_that_the_card_cannot_hold_is_refused() -> None:
    """Of a model over all layers, though each call of a layer fits."""
    long = [Request(0.0, 700_000, 2)]
    told = "step 1: llama-3-8b with this batch does not fit: needs 108 GB, the card has 80 GB; share it among more GPUs"
    with pytest.raises(InputError, match=told):
        serve(long, timed_model("llama-3-8b", H100), H100, tokens=1 << 20)
    heads = timed_attention(replace(HEADS, heads_q=32, heads_kv=32), H100, prompt=8)
    with pytest.raises(InputError, match=r"step 1: the KV cache does not fit: needs 91.8 GB, .*; run fewer sequences"):
        serve([Request(0.0, 5_600_000, 2)], heads, H100, tokens=1 << 23)


def test_a_step_has_the_range_of_the_call_that_it_is() -> None:
    found = served()
    asked = HEADS.having((Length(512, 512),)).with_passes("fwd")
    call = predict(asked, "a100-sxm4-80gb", implementation="vllm.flash-attn-2", launch="graph")
    first = found.steps[0]
    assert (first.time_s, first.time_low_s, first.time_high_s) == (call.time_s, call.time_low_s, call.time_high_s)
    assert found.range_s[0] < found.attention_s < found.range_s[1]


def test_a_step_of_a_model_is_what_predict_answers() -> None:
    requests = (Request(0.0, 700, 3), Request(0.0, 90, 2))
    found = serve(requests, timed_model("llama-3-8b", H100, tp=2), H100, tokens=512, stride=1)
    batches = (((512, 512),), ((188, 700), (90, 90)), ((1, 701), (1, 91)), ((1, 702),))
    for one, batch in zip(found.steps, batches, strict=True):
        whole = step("llama-3-8b", H100, batch, tp=2)
        assert (one.time_s, one.time_high_s) == (whole.time_s, whole.time_high_s)
        assert one.attention_s == pytest.approx(whole.share("attention") * whole.time_s)
    assert found.time_s > 5 * found.attention_s and found.end_s == pytest.approx(found.time_s)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prompt,output\n5,0\n", "every output is 0"),
        ("prompt,output\n0,5\n", "line 2: prompt is 0"),
        ("prompt,out\n5,1\n", "no column output"),
        ("prompt,output,arrival\n5,1,-2\n", "arrival is -2"),
        ("prompt,output,arrival\n5,1,1e300\n", "arrival is 1e300; allowed: seconds from 0 to 1e+07"),
        ("prompt,output\n5,1,7\n", "line 2: 3 cells under 2 column names"),
        ("prompt,output,arrival\n5,1\n", "line 2: arrival is ''; give a number"),
        ("prompt,output,when_submitted\n5,1,0\n", "write --map arrival=when_submitted"),
        ("prompt,output,x\n5,1,2024-05-10 00:00:00\n", "column 'x' looks like arrivals"),
        ("prompt,output,x\n5,1,0.1\n5,1,0.4\n5,1,0.4\n", "column 'x' looks like arrivals"),
        ("input_length,output_length,timestamp\n5,1,0\n5,1,3\n", "'timestamp' has no unit in its name, from 0 to 3"),
        ("prompt,output,arrival\n5,1,1741569952000\n", "is Unix time in ms, not in s; give --time-unit ms"),
        ("prompt,output\n", "no requests"),
        ("prompt,output\n5,x\n", "output is 'x'; give a number"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_a_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_requests(path)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_columns_of_a_trace_that_are_not_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("arrival,ContextTokens,GeneratedTokens,output\n3.5,600,3,2\n")
    with pytest.warns(Taken, match="prompt is 'ContextTokens'; not used: 'GeneratedTokens'"):
        assert read_requests(path) == (Request(3.5, 600, 2),)


WANTED = (Request(0.0, 374, 44), Request(4.5, 396, 30))
FORMS: dict[str, tuple[str, Naming]] = {
    "azure.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00+00:00,374,44\n2024-05-10 00:00:04.500+00:00,396,30\n",
        Naming(),
    ),
    "burst.csv": (
        "Timestamp,Model,Request tokens,Response tokens\n0,GPT-4,374,44\n2,GPT-4,9,0\n4.5,GPT-4,396,30\n",
        Naming(),
    ),
    "vidur.csv": ("arrived_at,num_prefill_tokens,num_decode_tokens\n4.5,396,30\n0,374,44\n", Naming()),
    "mooncake.jsonl": (
        '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
        '{"timestamp": 4500, "input_length": 396, "output_length": 30, "hash_ids": [1, 2]}\n',
        Naming(),
    ),
    "bailian.jsonl": (
        '{"chat_id": 1, "timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
        '{"chat_id": 2, "timestamp": 4.5, "input_length": 396, "output_length": 30, "hash_ids": [1, 2]}\n',
        Naming(),
    ),
    "usage.json": (
        '{"log": [{"created": 1741569952, "usage": {"prompt_tokens": 374, "completion_tokens": 44}},'
        ' {"created": 1741569956.5, "usage": {"prompt_tokens": 396, "completion_tokens": 30}}]}',
        Naming(),
    ),
    "named.csv": ("arrival_time_ms,isl,osl\n0,374,44\n4500,396,30\n", Naming()),
    "mapped.csv": ("when,isl,osl\n0,374,44\n4500,396,30\n", Naming({"arrival": "when"}, "ms")),
}


@pytest.mark.filterwarnings("ignore::attnsim.errors.Taken")
@pytest.mark.parametrize("name", FORMS)
def test_a_trace_of_each_owner_has_its_arrivals_in_seconds(tmp_path: Path, name: str) -> None:
    text, naming = FORMS[name]
    (tmp_path / name).write_text(text)
    assert read_requests(tmp_path / name, naming) == WANTED


@pytest.mark.filterwarnings("ignore::attnsim.errors.Taken")
def test_a_parquet_trace_reads_as_its_csv(tmp_path: Path) -> None:
    dates = pd.to_datetime(["2024-05-10 00:00:00", "2024-05-10 00:00:04.5"], format="mixed")
    frame = pd.DataFrame({"TIMESTAMP": dates, "ContextTokens": [374, 396], "GeneratedTokens": [44, 30]})
    frame.to_parquet(tmp_path / "trace.parquet")
    assert read_requests(tmp_path / "trace.parquet") == WANTED


def test_conversations_say_that_their_tokens_are_assumed(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y" * 80}]
    (tmp_path / "sharegpt.json").write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    with pytest.warns(Taken, match="assumed to be 4 characters each.*1 shorter ones are left out"):
        assert read_requests(tmp_path / "sharegpt.json") == (Request(0.0, 100, 20),)


def test_the_example_simulates_what_serving_steps_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "requests.csv"
    trace.write_text("arrival,prompt,output\n0,2100,4\n0,300,9\n0.03,3000,5\n5,40,2\n")
    monkeypatch.setattr("sys.argv", ["serving_simulator.py", str(trace)])
    ran = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "serving_simulator.py"))
    found = serve(read_requests(trace), timed_model("llama-3-8b", H100), H100, stride=1, sequences=64)
    assert ran["steps"] == len(found.steps) and ran["now"] == pytest.approx(found.end_s, rel=0.001)
    assert found.end_s > 5 and len(ran["predictor"].seen) < ran["steps"]


def test_the_command_writes_steps_and_picture(tmp_path: Path) -> None:
    path, picture = tmp_path / "requests.csv", tmp_path / "steps.png"
    path.write_text("ContextTokens,GeneratedTokens\n600,3\n40,2\n")
    flags = ["--gpu", "a100-sxm4-80gb", "--model", "llama-3-8b", "--tokens", "512", "--plot", str(picture), "-v"]
    result = CliRunner().invoke(app, ["serving", str(path), *flags])
    assert result.exit_code == 0, result.output
    assert "Steps by kind" in result.output and "Left out:" in result.output and "(90 % range " in result.output
    assert picture.exists() and picture.with_suffix(".csv").read_text().count("\n") == 1 + 4
