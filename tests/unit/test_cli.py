"""The command line: what people and programs read from it."""

import csv
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from attnsim.cli import main
from attnsim.cli.app import app
from attnsim.cli.help import commands
from tests.unit.answering import refusal


def asked(gpu: str = "h100-sxm5-80gb", seq: int = 2048) -> list[str]:
    return ["--gpu", gpu, "--heads", "8", "--seq", str(seq), "--head-dim", "128", "--causal"]


QUESTION = asked()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out
    return captured.out


def test_a_question_is_answered_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "predict", *QUESTION, "--window", "256")
    rows = [words[0] for words in map(str.split, text.splitlines()) if words[2:3] in (["us"], ["ms"])]
    assert rows == ["naive", "flash", "sliding-window"]
    assert "flash (flash-attn.3) -" in " ".join(text.split()) and "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_patterns_are_written_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    question = [word for word in QUESTION if word != "--causal"]
    text = run(capsys, "predict", *question, "--mask", "causal, window 256, global 16", "-v")
    rows = [words[0] for words in map(str.split, text.splitlines()) if words[2:3] in (["us"], ["ms"])]
    assert rows == ["naive", "flash", "sparse"]
    assert "causal; sparse: causal, window 256, global 16" in " ".join(text.split()) and "tiles visited" in text
    assert "Only sparse has the patterns" in " ".join(text.split())
    for wrong, told in (
        (["--mask", "windw 3"], "'windw 3' is not understood; write causal, left N"),
        (["--mask", "causal", "--causal"], "leave the flags out"),
        (["--mask", "global 3", "--algorithm", "flash"], "is for sparse, not for --algorithm flash; add sparse"),
    ):
        assert told in refusal(capsys, "predict", *question, *wrong)


def test_a_what_if_shows_the_unchanged_gpu_and_both_ways_of_tiling(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = run(capsys, "predict", *QUESTION, "--set", "sm.shared_memory=2x", "--window", "256")
    assert "unchanged" in text and "shipped tiles" in text and "retuned tiles" in text and "vs base" in text
    assert max(map(len, text.splitlines())) <= 80
    one = run(capsys, "predict", *QUESTION, "--set", "sm.shared_memory=2x", "--tiles", "shipped")
    assert "retuned" not in one


def test_shipped_tiles_that_do_not_fit_leave_the_retuned(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "predict", *QUESTION, "--set", "sm.shared_memory=64KiB", "-v")
    assert "Shared memory: flash_fwd needs" in text and "retuned tiles" in text
    assert "naive: torch.baddbmm, tile GEMM 64 x 64 x 64" in text, "cuBLAS has others, with fewer stages"


def test_json_is_a_list_of_objects_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    few = asked(seq=512)  # where another tile is faster than the shipped one
    answers = json.loads(run(capsys, "predict", *few, "--set", "hbm.bandwidth=6TB/s", "--json"))
    assert [(a["algorithm"], a["tiles"], bool(a["changes"])) for a in answers] == [
        ("naive", "shipped", False),
        ("flash", "shipped", False),
        ("naive", "shipped", True),
        ("flash", "shipped", True),
        ("naive", "shipped", True),
        ("flash", "retuned", True),
    ]
    for command in (["gpus"], ["gpus", "show", "l4"], ["algorithms"]):
        found = json.loads(run(capsys, *command, "--json"))
        assert isinstance(found, list) and all(isinstance(item, dict) for item in found)


def test_every_command_has_json() -> None:
    every = commands(typer.main.get_command(app))
    assert [path for path, one in every if "--json" not in itertools.chain(*(flag.opts for flag in one.params))] == []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_play_shows_a_bar_on_a_terminal_alone(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnsim.simulator.players._left", 0)
    monkeypatch.setattr("attnsim.simulator.twin.AT_ONCE", 10_000)
    for command in (["predict", "--algorithm", "flash"], ["explain", "flash"]):
        long = [*command, *asked("a100-sxm4-80gb", 4096), "--mode", "exact", "--json"]
        with monkeypatch.context() as patch:
            if terminal:
                patch.setenv("FORCE_COLOR", "1")
            assert main(long) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)
        assert ("flash_fwd" in captured.err and "/256" in captured.err) if terminal else captured.err == ""


def test_decode_has_one_query_a_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "seq 1 x 2048" in run(capsys, "predict", *QUESTION, "--pass", "decode")
    assert "seq 4 x 9000" in run(capsys, "predict", *asked(seq=4)[:-1], "--seq-kv", "9000", "--pass", "decode")


def test_a_table_is_answered_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, out = tmp_path / "in.csv", tmp_path / "out.csv"
    cases.write_text("mine,gpu,batch,heads_q,seq_q,head_dim\nx,l4,1,8,512,64\ny,nosuch,1,8,512,64\nz,l4,1,8,512,64\n")
    assert main(["predict", "--cases", str(cases), "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "1 of them not" in captured.err and "column mine: not used" in captured.err
    rows = list(csv.DictReader(out.open()))
    assert [row["mine"] for row in rows] == ["x", "y", "z"]
    assert rows[1]["predicted_s"] == "" and "nosuch" in rows[1]["error"]
    assert rows[0]["predicted_s"] == rows[2]["predicted_s"] != ""
    assert main(["predict", "--cases", str(cases)]) == 1
    assert capsys.readouterr().out == out.read_text()
    assert main(["predict", "--cases", str(cases), "--json"]) == 1
    records = json.loads(capsys.readouterr().out)
    assert records[1]["predicted_s"] is None and records[0]["hbm_read_bytes"] >= 0


def test_a_new_gpu_is_a_file_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fast.yaml"
    run(capsys, "gpus", "new", str(path), "--from", "l4", "--set", "hbm.bandwidth=2x")
    assert list(tmp_path.iterdir()) == [path]
    assert "600 GB/s" in run(capsys, "gpus", "show", str(path))
    assert "--force" in refusal(capsys, "gpus", "new", str(path), "--from", "l4")
    assert "600 GB/s" in path.read_text()
    run(capsys, "gpus", "new", str(path), "--from", "l4", "--set", "hbm.bandwidth=3x", "--force")
    assert "900 GB/s" in path.read_text()
    text = run(capsys, "predict", "--gpu", str(path), "--heads", "8", "--seq", "512", "--head-dim", "64", "-v")
    assert "hypothetical GPU" in text


def test_roofline_and_demo_write_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("attnsim.plots.roofline")
    picture = tmp_path / "one.png"
    assert str(picture) in run(capsys, "roofline", "--gpu", "l4", "--out", str(picture), "--seq", "1024")
    text = run(capsys, "demo", "--out", str(tmp_path / "demo"))
    assert len(text.splitlines()) <= 45, "one screen"
    told = " ".join(text.split())
    assert re.search(r" hbm.bandwidth=6TB/s helps, 1\.\d\dx \S+: on the GPU as it is, HBM worked [89]\d % ", told)
    assert re.search(
        r" tensor.bf16=2x does not help, 1\.0\dx \S+: on the GPU as it is, the tensor cores worked [12]\d", told
    )
    for path in (picture, tmp_path / "demo" / "roofline.png"):
        assert path.read_bytes().startswith(b"\x89PNG") and path.with_suffix(".csv").is_file()


def test_bare_command_shows_help_and_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "predict" in run(capsys)
    assert run(capsys, "--version").startswith("attnsim ")


def test_an_interruption_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnsim.models.llm.asked.workload", interrupted)
    assert main(["predict", *QUESTION]) == 130


def test_a_reader_that_goes_away_is_no_crash() -> None:
    script = "import sys; from attnsim.cli import main; sys.exit(main())"
    command = f'{sys.executable} -c "{script}" gpus --json | head -1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "[\n" and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_details_come_when_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    short = run(capsys, "predict", *QUESTION, "--set", "hbm.bandwidth=6TB/s")
    assert "waves" not in short and "range made of" not in short and "vs naive" not in short
    assert "SM clock" not in short and "trust:" not in short and "vs base: speedup over" not in short
    assert re.fullmatch(r"extrapolated: \d answers? within -\d+ to \+\d+ %. -v says why.", short.splitlines()[-1])
    long = run(capsys, "predict", *QUESTION, "--set", "hbm.bandwidth=6TB/s", "-v")
    assert (
        {"waves", "naive"} <= set(long.split())
        and "range made of" in long
        and "12 % of the smallest that was measured" in " ".join(long.split())
    )
    assert "SM clock" in long and "vs base: speedup over" in long and "-v says" not in long
    for text in (short, long):
        tables = [line for line in text.splitlines() if "   " in line or line.startswith("─")]
        assert max(len(line) for line in text.splitlines() if line not in tables) <= 80
        assert text == "".join(f"{line.rstrip()}\n" for line in text.splitlines()), "no blanks at the ends of lines"


def test_tiles_that_a_retuning_leaves_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = ["--gpu", "a100-sxm4-80gb", "--heads", "8", "--seq", "2048", "--head-dim", "64", "--algorithm", "naive"]
    text = run(capsys, "predict", *gpu, "--set", "hbm.bandwidth=2x")
    assert text.count("HBM\n") and "the same changes: no other tiles are faster" in text
    assert "nobody has timed" not in text
    assert main(["predict", *gpu, "--set", "hbm.bandwidth=2x", "--json"]) == 0
    out, told = capsys.readouterr()
    assert [bool(one["changes"]) for one in json.loads(out)] == [False, True]
    assert told == "the same changes: no other tiles are faster\n"


def test_a_gpu_file_that_holds_changes_is_the_unchanged_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    run(capsys, "gpus", "new", str(path), "--from", "h100-sxm5-80gb", "--set", "sm.count=160")
    capsys.readouterr()
    text = run(capsys, "predict", *asked(str(path), 65536), "--algorithm", "flash", "--set", "sm.count=132", "-v")
    assert "\nmine, unchanged\n" in text and "\nmine with sm.count = 132 (was 160; l2.bandwidth follows" in text
    slower = re.search(r"^flash .*?([\d.]+)x \(", text[text.index("mine with") :], re.MULTILINE)
    assert slower and 0.7 < float(slower[1]) < 1
    clocks = " ".join(text[text.index("SM clock") :].split())
    assert re.search(r"flash unchanged \d+ MHz \([\w ]+\), flash changed \d+ MHz", clocks), clocks


def test_a_power_limit_that_a_call_is_too_short_to_feel_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    felt = "power.limit is felt by calls of more than 1 ms, wholly from 10 ms on"
    short = run(capsys, "predict", *QUESTION, "--algorithm", "flash", "--set", "power.limit=200W")
    assert felt in " ".join(short.split())
    assert felt not in run(capsys, "predict", *asked(seq=65536), "--algorithm", "flash", "--set", "power.limit=200W")
    assert felt not in run(capsys, "predict", *QUESTION, "--algorithm", "flash", "--set", "hbm.bandwidth=2x")


def test_a_number_format_that_only_the_changed_gpu_has(capsys: pytest.CaptureFixture[str]) -> None:
    a100 = ["--gpu", "a100-sxm4-80gb", "--heads", "8", "--seq", "2048", "--head-dim", "64", "--dtype", "fp8"]
    text = run(capsys, "predict", *a100, "--algorithm", "naive", "--set", "tensor.fp8=4096 FLOP/clk")
    before, after = text.split("a100-sxm4-80gb with tensor.fp8 = 4096 FLOP/clk (was 0 FLOP/clk)")
    assert "a100-sxm4-80gb, unchanged\na100-sxm4-80gb (sm_80) has no fp8 tensor cores" in before
    assert "naive" in after and "90 % range" in after
    assert "has no fp8 tensor cores" in refusal(capsys, "predict", *a100, "--set", "sm.count=2x")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["predit"], "attnsim has no command 'predit'; nearest: predict; attnsim --help lists all"),
        (["plot"], "attnsim plot needs a command: scaling, units, traffic"),
        (["plot", "untis"], "attnsim plot has no command 'untis'; nearest: units"),
        (["gpus", "new"], "Missing argument 'FILE'; such as: attnsim gpus new my-gpu.yaml"),
        (["roofline"], "--gpu is missing; such as: attnsim roofline --gpu h100"),
        (["predict"], "--gpu, --heads, --seq and --head-dim are missing; such as: attnsim predict --gpu h100"),
        (["predict", "--gpu", "h100"], "--heads, --seq and --head-dim are missing; such as: attnsim predict"),
        (["predict", "--gpu", "h100", "--model", "gpt2-medium"], "--seq is missing; such as:"),
        (["predict", "h100"], "attnsim predict takes flags only, not 'h100'; write --gpu h100"),
        (["serving", "--gpu", "h100"], "TRACE, --heads and --head-dim are missing; such as: attnsim serving"),
        (["explain", "flash", "--gpu", "l4", "--heads", "8"], "--seq and --head-dim are missing; give --seq N"),
    ],
)
def test_what_is_missing_or_unknown_is_told_with_what_to_do(
    given: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, *given).startswith(f"error: {told}")
