"""Serving traces step by step: every token is made once, within the budget, by whoever has come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnsim import InputError, Workload, predict
from attnsim.api.serving_steps import Request, Served, read_requests, serve
from attnsim.cli.app import app
from attnsim.errors import Taken
from attnsim.models.question.lengths import Length

HEADS = Workload(heads_q=8, heads_kv=2, seq_q=1, head_dim=128, causal=True)  # type: ignore[call-arg]
REQUESTS = (Request(0.0, 700, 5), Request(0.0, 90, 1), Request(0.0, 3000, 12), Request(5.0, 40, 3))


def served(stride: int = 1, **given: float) -> Served:
    return serve(REQUESTS, HEADS, "a100-sxm4-80gb", "vllm.flash-attn-2", tokens=512, stride=stride, **given)  # type: ignore[arg-type]


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


def test_a_cache_that_the_card_cannot_hold_is_refused() -> None:
    """Over all layers, though each call of a layer fits."""
    long, heads = [Request(0.0, 700_000, 2)], replace(HEADS, heads_q=32, heads_kv=8)
    told = "step 1: the KV cache of 32 layers does not fit: needs 91.8 GB, the card has 80 GB; run fewer sequences"
    with pytest.raises(InputError, match=told):
        serve(long, heads, "h100-sxm5-80gb", layers=32, tokens=1 << 20)


def test_a_step_has_the_range_of_the_call_that_it_is() -> None:
    found = served()
    asked = HEADS.having((Length(512, 512),)).with_passes("fwd")
    call = predict(asked, "a100-sxm4-80gb", implementation="vllm.flash-attn-2", launch="graph")
    first = found.steps[0]
    assert (first.time_s, first.time_low_s, first.time_high_s) == (call.time_s, call.time_low_s, call.time_high_s)
    assert found.range_s[0] < found.attention_s < found.range_s[1]


def test_layers_multiply_the_time() -> None:
    assert served(layers=3).attention_s == pytest.approx(3 * served().attention_s)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prompt,output\n5,0\n", "line 2: output is 0"),
        ("prompt,out\n5,1\n", "no column output"),
        ("prompt,output,arrival\n5,1,-2\n", "arrival is -2"),
        ("prompt,output,arrival\n5,1,1e300\n", "arrival is 1e300; allowed: seconds from 0 to 1e+07"),
        ("prompt,output\n5,1,7\n", "line 2 has more or fewer cells than there are columns; give 2"),
        ("prompt,output,arrival\n5,1\n", "line 2 has more or fewer cells than there are columns; give 3"),
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
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,output\n3.5,600,3,2\n")
    with pytest.warns(
        Taken, match=r"not used: 'TIMESTAMP', 'GeneratedTokens'; columns are arrival: arrival, arrival_s"
    ):
        assert read_requests(path) == (Request(0.0, 600, 2),)


def test_the_command_writes_steps_and_picture(tmp_path: Path) -> None:
    path, picture = tmp_path / "requests.csv", tmp_path / "steps.png"
    path.write_text("ContextTokens,GeneratedTokens\n600,3\n40,2\n")
    flags = ["--gpu", "a100-sxm4-80gb", "--model", "llama-3-8b", "--tokens", "512", "--plot", str(picture)]
    result = CliRunner().invoke(app, ["serving", str(path), *flags])
    assert result.exit_code == 0, result.output
    assert "32 layers" in result.output and "Left out:" in result.output and "(90 % range " in result.output
    assert picture.exists() and picture.with_suffix(".csv").read_text().count("\n") == 1 + 4
