"""Decode of a model reads a cold L2 unless told otherwise, in every command and on the page, and a warm one says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnsim import compare, load_model
from attnsim.api.requests import Request
from attnsim.api.serving_steps import serve, timed_attention
from attnsim.cli import main
from attnsim.explore.answers import headline
from attnsim.explore.saying import said
from attnsim.explore.state import read_state
from attnsim.models.question.workload import Workload
from attnsim.studies.study_file import study_of
from tests.unit.answering import answer, refused

GPU = "h100-sxm5-80gb"
ASKED = ("--gpu", GPU, "--algorithm", "flash", "--model", "llama-3-8b", "--seq", "4096", "--pass", "decode")
DECODE = load_model("llama-3-8b").workload(batch=1, seq=4096, passes="decode")
TIMES = {cache: compare(DECODE, GPU, ["flash"], cache=cache)[0].time_s for cache in ("cold", "warm")}


def test_the_two_differ() -> None:
    assert (TIMES["cold"] or 0) > 1.05 * (TIMES["warm"] or 0)


@pytest.mark.parametrize(
    ("more", "cache"),
    [
        ((), "cold"),
        (("--cache", "warm"), "warm"),
        (("--pass", "fwd"), "warm"),
        (("--pass", "fwd", "--cache", "cold"), "cold"),
    ],
)
def test_predict_has_it(more: tuple[str, ...], cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ASKED[:-2] if "--pass" in more else ASKED
    [found] = json.loads(answer(capsys, "predict", *asked, *more, "--json")[0])
    assert found["cache"] == cache
    if "--pass" not in more:
        assert found["time_s"] == TIMES[cache]


def test_a_question_without_a_model_keeps_a_warm_one(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--causal", "--seq", "4096", "--pass", "decode")
    out, _ = answer(capsys, "predict", "--gpu", GPU, "--algorithm", "flash", *own, "--json")
    assert json.loads(out)[0]["cache"] == "warm" and json.loads(out)[0]["time_s"] == TIMES["warm"]
    assert "L2:" not in answer(capsys, "predict", "--gpu", GPU, "--algorithm", "flash", *own)[0]


@pytest.mark.parametrize(
    "command",
    [
        ("predict", *ASKED),
        ("explain", "flash", *ASKED[:2], *ASKED[4:]),
        ("trace", *ASKED, "--picture", "trace.svg"),
        ("roofline", *ASKED, "--out", "roofline.svg"),
        ("plot", "units", *ASKED, "--out", "units.svg"),
        ("sensitivity", *ASKED),
        ("search", "hardware", *ASKED, "--vary", "sm.count=132:140:8"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_every_command_says_which_it_is(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert " ".join(answer(capsys, *command)[0].split()).count("llama-3-8b, cold L2: ") >= 1
    told = " ".join(answer(capsys, *command, "--cache", "warm")[0].split())
    assert "llama-3-8b, warm L2, as if no other layer had run since: " in told


def test_a_batch_in_which_some_decode_is_cold(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("predict", *ASKED[:6], "--json", "--lengths")
    assert json.loads(answer(capsys, *asked, "1:4096 x 3, 512:2560")[0])[0]["cache"] == "cold"
    assert json.loads(answer(capsys, *asked, "512:2560 x 2")[0])[0]["cache"] == "warm"


def test_each_case_of_a_search_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    search = ("search", "hardware", "--gpu", GPU, "--model", "llama-3-8b", "--vary", "sm.count=132:140:8")
    cases = ("--case", "seq=4096: 0.5", "--case", "pass=decode, seq=4096: 0.5")
    own, warm = (json.loads(answer(capsys, *search, *cases, *more, "--json")[0]) for more in ((), ("--cache", "warm")))
    assert own[0]["time_s of seq=4096"] == warm[0]["time_s of seq=4096"]
    assert own[0]["time_s of pass=decode, seq=4096"] == TIMES["cold"]
    assert warm[0]["time_s of pass=decode, seq=4096"] == TIMES["warm"]


def test_serving_is_cold_where_sequences_decode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heads = Workload(heads_q=32, heads_kv=8, seq_q=1, head_dim=128, causal=True)  # type: ignore[call-arg]
    requests = (Request(0.0, 4096, 9),)
    own, cold, warm = (
        serve(requests, timed_attention(heads, GPU, prompt=4096, cache=cache), GPU) for cache in (None, "cold", "warm")
    )
    for mine, colder, warmer in zip(own.steps, cold.steps, warm.steps, strict=True):
        assert mine.time_s == (colder if mine.decodes else warmer).time_s
    assert own.attention_s > warm.attention_s
    trace = tmp_path / "trace.csv"
    trace.write_text("prompt,output\n512,4\n", encoding="utf-8")
    asked = ("serving", str(trace), "--gpu", GPU, "--model", "llama-3-8b", "-v")
    assert "L2 before each layer: cold, since the other" in " ".join(answer(capsys, *asked)[0].split())
    heads_asked = ("serving", str(trace), "--gpu", GPU, "--heads", "32", "--head-dim", "128", "-v")
    assert "L2 before each layer: cold where sequences decode" in " ".join(answer(capsys, *heads_asked)[0].split())
    assert "L2 before each layer: warm." in " ".join(answer(capsys, *asked, "--cache", "warm")[0].split())


def test_a_study_of_models_is_cold_where_it_has_decode() -> None:
    asked = {
        "gpu": "l4",
        "algorithm": "flash",
        "workload": {"shape": "llama-3-8b", "pass": ["fwd", "decode"], "seq_kv": 512},
    }
    own_shape = asked | {"workload": {"heads_q": 8, "head_dim": 64, "pass": "decode", "seq_kv": 512}}
    assert study_of(asked).cache == "cold"
    assert study_of(asked | {"cache": "warm"}).cache == "warm"
    assert study_of(own_shape).cache == "warm"


def test_the_page_has_a_switch_and_says_what_gives_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    decode = {"model": "llama-3-8b", "tp": "1", "pass": "decode", "seq": "4096"}
    for given, cache in (({}, "cold"), ({"cache": "warm"}, "warm"), ({"cache": "cold"}, "cold")):
        state = read_state(decode | given)
        assert state.cache == cache and f"{cache} L2" in state.title
        assert headline(state)["time_s"]["value"] == TIMES[cache]  # type: ignore[index]
        told = said("headline", state)
        assert (f"--cache {cache}" in str(told["command"])) == bool(given)
        assert ("cache='cold'" in str(told["python"])) == (cache == "cold")
    assert read_state({"pass": "prefill"}).cache == "warm" and "L2" not in read_state({}).title
    assert "allowed: cold, warm" in refused(headline, read_state(decode | {"cache": "tepid"}))


def test_a_word_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *ASKED, "--cache", "tepid"]) == 2
    assert "cache is 'tepid'; allowed: cold, warm" in capsys.readouterr().err
