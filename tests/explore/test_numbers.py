"""Every number of the page is the command line's and Python's."""

import ast
import json
import random
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import attnsim
from attnsim.api.answer import played
from attnsim.api.answering import answer
from attnsim.cli import main
from attnsim.explore.pictures import PICTURES, shown_as
from attnsim.explore.saying import said
from attnsim.explore.server import answered, plain
from attnsim.explore.state import FIGURES, read_state
from tests.explore.asking import Server

GPUS = ("h100-sxm5-80gb", "a100-sxm4-80gb", "b200-sxm-180gb", "l40s", "rtx-4090", "v100-sxm2-32gb", "h20")
PASSES = {"prefill": "fwd", "decode": "decode", "training": "fwd+bwd", "bwd": "bwd"}
SHAPES = ((1, 1, 64, 256), (2, 4, 64, 512), (1, 8, 128, 1024), (3, 2, 128, 384), (4, 16, 64, 777), (1, 2, 96, 2048))
STATES = 1_000
ASKED = {"hbm": "hbm.bandwidth", "l2": "l2.bandwidth", "smem": "sm.shared_memory_bandwidth", "sms": "sm.count",
         "clock": "clock.boost", "exp": "sm.exp_rate", "power": "power.limit", "l2_size": "l2.capacity",
         "smem_size": "sm.shared_memory"}  # fmt: skip
"""What each key is to turn, said here once more: that of the tensor cores goes by the number format."""


def random_state(draw: random.Random) -> dict[str, str]:
    batch, heads, head_dim, seq = draw.choice(SHAPES)
    kv_heads = draw.choice([one for one in (1, heads // 2, heads) if one])
    state = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "seq": seq}
    words = {name: str(value) for name, value in state.items()}
    words |= {"gpu": draw.choice(GPUS), "pass": draw.choice(list(PASSES)), "dtype": draw.choice(("bf16", "fp16"))}
    words |= {"causal": "true"} if draw.random() < 0.5 else {}
    turned = draw.sample(list(FIGURES), draw.choice((0, 1, 1, 2, 3)))
    return words | {key: f"{draw.choice((0.5, 0.77, 1.25, 1.5, 2, 3))}x" for key in turned}


def by_hand(state: dict[str, str]) -> tuple[attnsim.Workload, attnsim.Gpu, attnsim.Gpu]:
    """The question and the GPUs by the public names alone."""
    words: dict[str, Any] = {name: int(state[name]) for name in ("batch", "heads", "kv_heads", "head_dim", "seq")}
    words["causal"] = state.get("causal") == "true"
    question = attnsim.Workload(**words, dtype=state["dtype"], passes=PASSES[state["pass"]])
    gpu = base = attnsim.load_gpu(state["gpu"])
    paths = ASKED | {"tensor": f"tensor.{state['dtype']}"}
    for key in FIGURES:
        gpu = gpu.replace(paths[key], state[key]) if key in state else gpu
    return question, base, gpu


def test_a_thousand_states_have_pythons_numbers(server: Server) -> None:
    draw, refused = random.Random(21), 0
    for number in range(STATES):
        state = random_state(draw)
        found = server.api("headline", state, n=number)
        try:
            question, base, gpu = by_hand(state)
            before, one = (attnsim.predict(question, machine, baseline=False) for machine in (base, gpu))
        except attnsim.InputError as error:
            wrong = str(error)
            assert not found["ok"] and found["error"].endswith(wrong), (state, found, wrong)
            refused += 1
            continue
        assert found["ok"], (state, found)
        assert found["time_s"] == {"value": one.time_s, "low": one.time_low_s, "high": one.time_high_s}, state
        assert found["base"] == {"value": before.time_s, "low": before.time_low_s, "high": before.time_high_s}
        ratio = one.speedup_over(before) if one.changes else None
        assert found["ratio"] == (ratio and ratio.to_dict())
        assert (found["kernel"], found["tile"], found["level"]) == (one.implementation, one.tile, one.trust.level)
        assert found["unit"] in (one.busiest, "")
        if number % 10 == 0:
            check_tables(server, state, question, base, gpu)
    assert refused < STATES / 4


def check_tables(
    server: Server, state: dict[str, str], question: attnsim.Workload, base: attnsim.Gpu, gpu: attnsim.Gpu
) -> None:
    machines = [base, gpu] if gpu.changes else [base]
    calls = attnsim.compare(question, machines, ["flash"])
    wanted = {
        "units": attnsim.plot.rows("units", calls),
        "roofline": attnsim.plot.rows("roofline", calls, machines, levels=["hbm", "l2", "smem"]),
    }
    for name, rows in wanted.items():
        found = server.api("picture", state, name=name)
        assert [*found["base"], *found["rows"]] == [
            *(row for row in plain(rows) if not row["changes"] and gpu.changes),
            *(row for row in plain(rows) if row["changes"] or not gpu.changes),
        ]


def test_the_command_gives_the_same_numbers(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(22)
    for _ in range(30):
        state = random_state(draw)
        found, command = server.api("headline", state), server.api("said", state, name="headline")
        if not found["ok"]:
            assert not command["ok"] or main(shlex.split(command["command"])[1:]) == 2
            assert not command["ok"] or f"error: {found['error']}" in capsys.readouterr().err
            continue
        rows = printed(command["command"], capsys)
        assert found["base"]["value"] == rows[0]["time_s"]
        for end, name in (("value", "time_s"), ("low", "time_low_s"), ("high", "time_high_s")):
            assert found["time_s"][end] == rows[-1][name]
        assert (found["ratio"] or None) == (rows[-1]["ratios"].get("base") if found["ghost"] else None)
        assert found["trust"][1:] == rows[-1]["trust"]["reasons"][1:]


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main([*shlex.split(command)[1:], "--json"]) == 0, command
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


def test_a_question_is_answered_alike_wherever_it_is_asked_and_twice(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Command line, Python, case table and page, to the last digit; nothing is remembered from the first time."""
    draw = random.Random(46)
    states = [{key: value for key, value in random_state(draw).items() if key not in FIGURES} for _ in range(20)]
    asked = [(by_hand(state)[0], state["gpu"]) for state in states]
    names = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "dtype", "mask")
    rows = [{name: getattr(w, name) for name in names} | {"pass": w.passes, "gpu": gpu} for w, gpu in asked]
    pd.DataFrame(rows).assign(algorithm="flash").to_csv(tmp_path / "asked.csv", index=False)
    answers = []
    for _ in range(2):
        answer.cache_clear()
        assert main(["predict", "--cases", str(tmp_path / "asked.csv"), "--json"]) in (0, 1)  # 1: some are refused
        rows = json.loads(capsys.readouterr().out)
        for state, (question, gpu), row in zip(states, asked, rows, strict=True):
            found = server.api("headline", state)
            if not found["ok"]:
                assert row["error"] and row["predicted_s"] is None
                continue
            (printed_row,) = printed(server.api("said", state, name="headline")["command"], capsys)
            one = attnsim.predict(question, gpu, baseline=False)
            times = (one.time_s, one.time_low_s, one.time_high_s)
            assert tuple(found["time_s"].values()) == times, state
            assert tuple(printed_row[name] for name in ("time_s", "time_low_s", "time_high_s")) == times, state
            assert tuple(row[name] for name in ("predicted_s", "predicted_low_s", "predicted_high_s")) == times, state
            answers.append((state, times))
    assert answers[: len(answers) // 2] == answers[len(answers) // 2 :] and len(answers) >= 30


ARCHITECT = {
    "l2": "2x", "exp": "1.5x", "hbm": "6TB/s", "model": "llama-3-8b", "tp": "1", "seq": "1024", "space": "l2,hbm",
}  # fmt: skip
DRAWN = ("roofline", "units", "split", "curve", "timeline", "budget")


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("passes", ["prefill", "decode"])
def test_an_export_is_the_commands_file(
    name: str, passes: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ARCHITECT | {"pass": passes}
    command = server.api("said", state, name=name)["command"]
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:]]) == 0
    for form in ("svg", "csv"):
        body = json.dumps({"state": state, "name": name, "format": form}).encode()
        status, headers, data = server.ask("/api/export", body)
        assert status == 200 and data == (tmp_path / f"{name}.{form}").read_bytes(), form
        assert headers["content-disposition"] == f'attachment; filename="{name}.{form}"'


@pytest.mark.parametrize("name", ["levers", "compare", "why", "layer"])
def test_an_export_of_what_is_printed_is_the_commands_output(
    name: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ARCHITECT | {"kernels": "torch.sdpa,flash-attn.2"}
    assert main([*shlex.split(server.api("said", state, name=name)["command"])[1:], "--json"]) == 0
    body = json.dumps({"state": state, "name": name, "format": "json"}).encode()
    assert server.ask("/api/export", body)[2].decode() == capsys.readouterr().out
    rows = server.ask("/api/export", body.replace(b'"json"', b'"csv"'))[2].decode().splitlines()
    found = server.api("picture", state, name=name)
    assert len(rows) == 1 + len(found["rows"]) + len(found["base"]) and rows[0].split(",") == found["columns"]
    assert "allowed: json, csv" in server.api("export", state, name=name, format="svg")["error"]


LAYERS = (
    {"tp": "2", "pass": "decode", "batch": "16"},
    {"seq": "", "lengths": "1:4096 x 8, 128:1024", "tp": "4", "model": "llama-3-70b"},
)


@pytest.mark.parametrize("given", LAYERS, ids=("layer", "step"))
def test_the_whole_layer_is_the_commands_and_pythons(
    given: dict[str, str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {key: value for key, value in (ARCHITECT | given).items() if value}
    found, told = server.api("picture", state, name="layer"), server.api("said", state, name="layer")
    before, after = printed(told["command"], capsys)
    for side, rows in ((after, found["rows"]), (before, found["base"])):
        assert [row["part"] for row in rows] == [part["name"] for part in side["parts"]]
        for row, part in zip(rows, side["parts"], strict=True):
            number = part.get("times", 1)
            assert row["times"] == number and row["time_s"] == number * part["time_s"]
            assert row["time_high_s"] == number * part["time_high_s"]
    exec(told["python"], {})
    (one,) = ast_of(capsys.readouterr().out)
    assert [part["time_s"] for part in one["parts"]] == [part["time_s"] for part in after["parts"]]
    assert "as fast as unchanged; attention is" in found["alt"]


def ast_of(text: str) -> list[dict[str, Any]]:
    """Dictionaries that Python printed, a line each."""
    return [ast.literal_eval(line) for line in text.splitlines() if line.startswith("{")]


def test_a_layer_is_of_a_model_as_it_is(server: Server) -> None:
    own = server.api("picture", {"heads": "16", "head_dim": "64", "seq": "1024"}, name="layer")
    assert own["error"] == "a layer is of a model, and this is a shape of one's own; choose a model"
    masked = server.api("picture", ARCHITECT | {"mask": "full"}, name="layer")
    assert masked["error"] == "mask does not go with a layer; leave it out"


def test_why_begins_with_what_bounds_the_call(server: Server) -> None:
    why, levers = (server.api("picture", ARCHITECT, name=name) for name in ("why", "levers"))
    question = read_state(ARCHITECT)
    now, before = (played(attnsim.predict(question.question, gpu)) for gpu in (question.gpu, question.base))
    assert why["alt"].startswith(f"Bound by {now.bound.words}. ") and now.bound.words in " ".join(levers["sentences"])
    assert why["alt"].endswith(f" Unchanged, it is bound by {before.bound.words}.")


MIX = {"case": "pass=prefill: 0.5; pass=decode, batch=16: 0.25", "space": "l2,hbm", "limit": "area<=1.1x"}


def test_a_budget_of_a_mix_is_the_commands(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ARCHITECT | MIX
    told = server.api("said", state, name="budget")
    monkeypatch.chdir(tmp_path)
    assert told["command"].count("--case") == 2 and main(shlex.split(told["command"])[1:]) == 0
    body = json.dumps({"state": state, "name": "budget", "format": "csv"}).encode()
    assert server.ask("/api/export", body)[2] == Path("budget.csv").read_bytes()
    found = server.api("picture", state, name="budget")
    base = {key: value for key, value in state.items() if key not in FIGURES}
    for name, own in (("pass=prefill", {}), ("pass=decode, batch=16", {"pass": "decode", "batch": "16"})):
        assert found["base"][0][f"time_s of {name}"] == server.api("headline", base | own)["time_s"]["value"]
    names: dict[str, Any] = {}
    exec(told["python"], names)
    front = [one.figures for one in names["found"].front]
    shown = [{key: row[key] for key in front[0]} for row in [*found["base"], *found["rows"]] if row["front"]]
    assert sorted(map(str, front)) == sorted(map(str, shown))


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("pass=decode", "has no weight"),
        ("decode: 1", "is not KEY=VALUE"),
        ("speed=2: 1", "'speed' is not a flag of a question"),
        ("pass=decode: 0", "allowed: a number above 0"),
        ("pass=decode: 1; pass=decode: 2", "is given twice"),
        ("/etc/decode.yaml: 1", "a file; the page reads none"),
        ("lengths=/etc/lengths.csv: 1", "a file; the page reads none"),
        ("seq=x: 1", "allowed: whole numbers from 1"),
    ],
)
def test_a_mix_that_is_none_is_one_line(case: str, told: str, server: Server) -> None:
    assert told in server.api("picture", ARCHITECT | {"case": case}, name="budget")["error"]


def test_tables_in_the_terminal_have_the_same_numbers(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    why, levers = (server.api("picture", ARCHITECT, name=name) for name in ("why", "levers"))
    (explained,) = printed(server.api("said", ARCHITECT, name="why")["command"], capsys)
    assert why["loop_nest"] == explained["loop_nest"]
    assert (why["kernels"], why["tensors"]) == (explained["kernels"], explained["tensors"])
    assert levers["rows"] == [*explained["levers"], *explained["kernel_levers"]]
    state = ARCHITECT | {"kernels": "torch.sdpa,flash-attn.2,xformers.cutlass"}
    rows = printed(server.api("said", state, name="compare")["command"], capsys)
    found = server.api("picture", state, name="compare")
    assert [one["time_s"] for one in (*found["base"], *found["rows"])] == [one["time_s"] for one in rows]
    assert [one["implementation"] for one in found["rows"]] == [one["implementation"] for one in rows[3:]]


def test_a_machine_of_the_budget_can_be_loaded(server: Server) -> None:
    state = ARCHITECT | {"space": "l2,hbm,sms"}
    found = server.api("picture", state, name="budget")
    question = {key: value for key, value in state.items() if key not in FIGURES}
    assert len(found["rows"]) == 125
    for row in found["rows"][::7]:
        loaded = server.api("headline", question | row["figures"])
        assert loaded["time_s"]["value"] == row["time_s"], row["figures"]


def test_a_curve_over_density_is_the_commands(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"vary": "density", "seq": "1024", "l2": "2x"}
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(server.api("said", state, name="curve")["command"])[1:]) == 0
    body = json.dumps({"state": state, "name": "curve", "format": "csv"}).encode()
    assert server.ask("/api/export", body)[2] == (tmp_path / "curve.csv").read_bytes()
    told = server.api("picture", state | {"pass": "decode"}, name="curve")
    assert "pass fwd" in told["error"]


@pytest.mark.parametrize("name", ["headline", *PICTURES])
def test_the_python_that_is_said_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = read_state(ARCHITECT | {"kernels": "flash-attn.2,torch.sdpa"})
    names: dict[str, Any] = {}
    exec(str(said(name, state)["python"]), names)
    assert names["gpu"] == state.gpu and names["question"] == state.question


ODD = (
    {"model": "deepseek-v3", "pass": "decode"},
    {"operations": "scale, softmax, dropout 0.1", "algorithm": "naive", "seq": "1024"},
    {"selection": "top 16x64, compress 32 step 16, window 512"},
    {"lengths": "1:4096 x 3, 512:2560"},
    {"tree": "-1 0 0 1", "pass": "decode", "seq": "4", "seq_kv": "4096", "kernel": "flashinfer.tree"},
    {"prefix": "512", "pass": "decode", "batch": "4", "page_size": "16", "kernel": "flashinfer.cascade"},
    {"density": "0.1", "seq": "1024"},
    {"model": "mistral-7b"},
    {"heads": "16", "head_dim": "128", "window": "512", "causal": "true"},
    {"kernel": "torch.sdpa", "tp": "4"},
)


@pytest.mark.parametrize("given", ODD, ids=lambda one: next(iter(one)))
def test_every_question_of_the_command_line_can_be_asked(
    given: dict[str, str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    found = server.api("headline", given)
    told = server.api("said", given, name="headline")
    assert found["ok"] and told["ok"], (found, told)
    assert [one["time_s"] for one in printed(told["command"], capsys)] == [found["time_s"]["value"]]
    names: dict[str, Any] = {}
    exec(told["python"], names)
    assert names["question"] == read_state(given).question


WRONG = (
    "--l2 zz", "--mask zzz", "--dtype fp99", "--pass zz", "--tp 3", "--gpu h1000", "--model llama-9", "--sms 1e99x",
    "--exp 0x", "--hbm -1x", "--kernel nobody", "--kernel flash-attn.4", "--window 0", "--batch x", "--seq 1.5",
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told_as_the_command_tells_it(
    wrong: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    key, value = wrong.removeprefix("--").split()
    given = {"gpu": "h100-sxm5-80gb", "model": "llama-3-70b", "tp": "8", "seq": "8192"} | {key: value}
    paths = {key: path for key, (_, path, _) in FIGURES.items()}
    flags = ["--algorithm=flash"] * (key == "kernel")
    for name, text in given.items():
        flag = {"kernel": "implementation"}.get(name, name)
        flags += [f"--set={paths[name]}={text}"] if name in paths else [f"--{flag}={text}"]
    assert main(["predict", *flags]) == 2
    told = capsys.readouterr().err.splitlines()[-1].removeprefix("error: ")
    told = told.partition("; several with")[0]
    assert server.api("headline", given)["error"] == told


def test_a_fault_of_ours_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnsim.explore.answers.headline", lambda state: 1 / 0)
    status, found = answered("headline", {"state": {}})
    assert status == 422 and isinstance(found, dict) and "ZeroDivisionError" in found["error"]
    assert "Traceback" in capsys.readouterr().err


def test_a_picture_is_drawn_once() -> None:
    state = read_state({"seq": "512"})
    assert shown_as("units", state) is shown_as("units", read_state({"seq": "512"}))
