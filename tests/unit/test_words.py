"""The words in which people put a question mean the same in flags, Python, tables and studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import attnsim
from attnsim.api.libraries import LIBRARIES, library_defaults
from attnsim.cli import main
from attnsim.cli.app import app
from attnsim.cli.help import commands
from attnsim.cli.plot_flags import numbers_of
from attnsim.errors import InputError
from attnsim.models.implementations.choose import match
from attnsim.models.implementations.registry import IMPLEMENTATIONS
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.words import whole
from attnsim.studies.study_file import study_of
from tests.unit.answering import refusal

PLAIN = attnsim.Workload(batch=1, heads_q=32, heads_kv=8, seq_q=65536, head_dim=128, mask=attnsim.Mask.causal())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("65536", 65536), ("65,536", 65536), ("65_536", 65536), ("64k", 65536), ("64K", 65536), ("1M", 1 << 20),
        ("1,048,576", 1 << 20), ("65,53", None), ("6.5k", None), ("k", None), ("", None), ("-4", None), ("٣", None),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text: str, number: int | None) -> None:
    assert whole(text) == number


@pytest.mark.parametrize(
    "words",
    [
        {"heads": 32, "kv_heads": 8, "seq": 65536, "causal": True},
        {"heads": "32", "kv_heads": 8, "seq": "64k", "mask": "causal", "dtype": "bfloat16", "pass_": "prefill"},
        {
            "heads_q": 32,
            "heads_kv": 8,
            "seq_q": "65,536",
            "causal": True,
            "passes": "forward",
            "dtype": "torch.bfloat16",
        },
    ],
)
def test_a_workload_understands_the_words_of_the_command_line(words: dict[str, Any]) -> None:
    assert attnsim.Workload(head_dim=128, **words) == PLAIN


def test_a_length_in_decode_is_that_of_the_cache() -> None:
    words: dict[str, Any] = {"heads": 8, "seq": "4k", "head_dim": 128, "pass_": "decode"}
    found = attnsim.Workload(**words)
    assert (found.batch, found.seq_q, found.seq_kv) == (1, 1, 4096)
    model = attnsim.load_model("llama-3-8b").workload(batch=1, seq=4096, passes="decode")
    assert (model.seq_q, model.seq_kv) == (1, 4096)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"heads": 8, "heads_q": 8}, "heads and heads_q are the same|heads_q and heads_q"),
        ({"heads": 8, "seq": 64, "head_dim": 64, "window_size": 3}, "has no 'window_size'; nearest: window"),
        ({"heads": 8, "head_dim": 64}, "seq_q is missing; give seq_q=N, or seq"),
        ({"heads": 8, "seq": 64, "head_dim": 64, "mask": "causal", "causal": True}, "says all of the mask"),
        ({"heads": 8, "seq": "64q", "head_dim": 64}, "seq_q is '64q'; allowed"),
    ],
)
def test_what_is_not_understood_is_told_in_a_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        attnsim.Workload(**words)
    assert "\n" not in str(caught.value)


def test_tables_read_the_same_words() -> None:
    row = {"gpu": "h100-sxm5-80gb", "batch": "1", "heads_q": "32", "seq_q": "64k", "head_dim": "128"}
    case = parse_row(row | {"pass": "prefill", "dtype": "bfloat16"})
    assert (case.seq_q, case.passes, case.dtype) == (65536, "fwd", "bf16")


def test_studies_read_the_same_words() -> None:
    shape = {"heads": 32, "kv_heads": 8, "seq_q": "64k", "head_dim": 128}
    words = study_of({"gpu": "l4", "workload": shape | {"pass": "prefill", "dtype": "bfloat16"}})
    plain = {"heads_q": 32, "heads_kv": 8, "seq_q": 65536, "head_dim": 128, "pass": "fwd", "dtype": "bf16"}
    assert words == study_of({"gpu": "l4", "workload": plain})
    with pytest.raises(InputError, match="are the same; keep one"):
        study_of({"gpu": "l4", "workload": shape | {"heads_q": 32}})


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1k:8k", [1024, 2048, 4096, 8192]), ("512,1024", [512, 1024]), ("131,072", [131072]), ("128,256", [128, 256]),
        ("4k,16k", [4096, 16384]), ("65, 536", [65, 536]), ("4096", [4096]), ("1,2,2,3", [1, 2, 3]),
        ("3:13", [3, 6, 12]), ("256:1024:256,5000", [256, 512, 768, 1024, 5000]),
    ],
)  # fmt: skip
def test_lists_of_numbers(text: str, numbers: list[int]) -> None:
    assert numbers_of(text, "--seq") == numbers


@pytest.mark.parametrize("text", ["", "0", "x", "1:2:3:4", "8:4", "1:4:0", "1:1000:1", "1::4", "1,", "9" * 16])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--seq: "):
        numbers_of(text, "--seq")


def test_a_list_that_may_be_one_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"65,536 may be one number or several; write 65536, or '65, 536'"):
        numbers_of("65,536", "--seq")


H100, A100 = attnsim.load_gpu("h100-sxm5-80gb"), attnsim.load_gpu("a100-sxm4-80gb")


@pytest.mark.parametrize(
    ("said", "hopper", "ampere"),
    [
        ("FlashAttention-2", "flash-attn.2", "flash-attn.2"), ("fa2", "flash-attn.2", "flash-attn.2"),
        ("FlashAttention-3", "flash-attn.3", "flash-attn.3"), ("fa3", "flash-attn.3", "flash-attn.3"),
        ("flash-attn", "flash-attn.2", "flash-attn.2"), ("sdpa", "torch.sdpa-cudnn", "torch.sdpa-flash"),
        ("vllm", "vllm.flash-attn-3", "vllm.flash-attn-2"), ("sglang", "sglang.fa3", "sglang.flashinfer"),
        ("tensorrt-llm", "tensorrt-llm.attention", "tensorrt-llm.attention"),
        ("flashinfer", "flashinfer.fa2", "flashinfer.fa2"), ("FlexAttention", "torch.flex", "torch.flex"),
        ("cudnn", "nvidia.cudnn", "nvidia.cudnn"),
    ],
)  # fmt: skip
def test_what_people_call_an_implementation(said: str, hopper: str, ampere: str) -> None:
    w = attnsim.Workload(batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=4096, head_dim=128, passes="decode")
    assert match(said, gpu=H100, w=w).record.name == hopper
    assert match(said, gpu=A100, w=w).record.name == ampere


def test_the_name_of_a_record_is_that_record() -> None:
    for name in IMPLEMENTATIONS:
        assert match(name).record.name == name


QUESTION = [
    "--heads",
    "8",
    "--kv-heads",
    "2",
    "--seq",
    "1k",
    "--head-dim",
    "64",
    "--dtype",
    "half",
    "--pass",
    "forward",
]


def test_a_note_says_which_gpu_was_taken_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--gpu", "h100", *QUESTION, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == "note: h100 taken as h100-sxm5-80gb; others: h100-pcie-80gb\n"
    assert {one["gpu"] for one in json.loads(said.out)} == {"h100-sxm5-80gb"}


def test_a_flag_of_other_commands_is_refused_with_those(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "gpus", "show", "h100-sxm5-80gb", "--mask", "causal")
    assert said.startswith("error: attnsim gpus show has no --mask; commands that have it: predict, explain, ")
    assert refusal(capsys, "sweep", "--widnow", "3").startswith("error: attnsim sweep has no --widnow; ")
    assert (
        refusal(capsys, "predict", "--trace", "requests.csv")
        == "error: attnsim predict has no --trace; a command takes it: serving TRACE\n"
    )


PICTURES = ("plot scaling", "plot units", "plot traffic", "plot waves", "plot tornado")
ASKING = ("predict", "explain", "roofline", "trace", "sensitivity", "search tile", "search hardware", *PICTURES)
EVERYWHERE = [
    "--model",
    "--batch",
    "--heads",
    "--kv-heads",
    "--seq",
    "--seq-kv",
    "--head-dim",
    "--head-dim-v",
    "--latent",
    "--dtype",
    "--causal",
    "--window",
    "--mask",
    "--pass",
    "--operations",
    "--gpu",
    "--set",
    "--implementation",
    "--cache",
    "--launch",
    "--json",
]
DRAWING = ("roofline", "trace", "breakeven", "search hardware", *PICTURES)


def _commands() -> dict[str, Any]:
    from typer.main import get_command

    return dict(commands(get_command(app)))


def test_every_question_command_has_every_question_flag_with_one_default() -> None:
    found = _commands()
    flags = {name: {flag: one for one in found[name].params for flag in one.opts} for name in found}
    for name in ASKING:
        assert not set(EVERYWHERE) - flags[name].keys(), name
        for flag, default in (("--dtype", "bf16"), ("--pass", "fwd"), ("--cache", None), ("--launch", "stream")):
            assert flags[name][flag].default == default, (name, flag)
    assert {"--model", "--dtype", "--cache", "--launch", "--set"} <= flags["breakeven"].keys()
    for name in DRAWING:
        assert {"--style", "--width"} <= flags[name].keys(), name


def test_every_command_has_a_group_and_an_example_of_itself() -> None:
    for name, command in _commands().items():
        example = command.epilog
        assert example and example.startswith(f"attnsim {name}"), name
        words = example.split()[1 + len(name.split()) :]
        known = {flag for one in command.params for flag in one.opts}
        assert {word for word in words if word.startswith("--")} <= known, name


def test_help_fits_80_columns_and_no_summary_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", *_commands()):
        assert main([*name.split(), "--help"]) == 0
        text = capsys.readouterr().out
        body = text.partition("Example:")[0]
        assert max(map(len, body.splitlines())) <= 80, name
        assert "..." not in body.replace("...=2x", "").replace("ARGS]...", "").replace("]...", ""), name
    assert main(["--help"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads == ["Options:", "Ask:", "Draw:", "Study:", "Check:", "Maintain:"]


def test_libraries_have_their_kernel_by_gpu_and_pass(capsys: pytest.CaptureFixture[str]) -> None:
    found = {(one.library, one.passes, one.gpu): one for one in library_defaults(["a100-sxm4-80gb", "h100-sxm5-80gb"])}
    assert {name for name, _, _ in found} == set(LIBRARIES)
    sdpa = found["PyTorch SDPA", "fwd", "h100-sxm5-80gb"]
    assert (sdpa.implementation, sdpa.calibrated) == ("torch.sdpa-cudnn", True)
    assert found["vLLM", "fwd+bwd", "h100-sxm5-80gb"].implementation == ""
    assert found["FlashAttention-3", "fwd", "a100-sxm4-80gb"].implementation == ""
    assert main(["implementations", "--libraries", "--gpu", "h100-sxm5-80gb", "--pass", "prefill"]) == 0
    text = capsys.readouterr().out
    assert "vllm.flash-attn-3 *" in text and "decode:" not in text and max(map(len, text.splitlines())) <= 80


def test_algorithms_are_those_of_a_gpu_and_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "--gpu", "a100-sxm4-80gb", "--pass", "decode", "--json"]) == 0
    found = {one["algorithm"]: one for one in json.loads(capsys.readouterr().out)}
    assert "flash-3" not in found and "split-kv" in found
    names = {kernel["implementation"] for one in found.values() for kernel in one["implementations"]}
    assert "vllm.flash-attn-2" in names and "flash-attn.3" not in names
    assert main(["algorithms", "-v"]) == 0
    assert "Dao-AILab/flash-attention" in capsys.readouterr().out


SMALL = ["--gpu", "a100-sxm4-80gb", "--heads", "8", "--seq", "1k", "--head-dim", "64"]


def test_flags_that_commands_gained_change_their_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str) -> list[dict[str, Any]]:
        assert main([*words, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    two = ["--implementation", "fa2,xformers"]
    traced = asked("trace", *SMALL, *two, "--picture", str(tmp_path / "trace.png"), "--style", "dark")
    assert {one["implementation"] for one in traced} == {"flash-attn.2", "xformers.cutlass"}
    out = ["--algorithm", "flash", "--out", str(tmp_path / "roofline.png")]
    warm, cold = (asked("roofline", *SMALL, *two, *out, "--cache", one) for one in ("warm", "cold"))
    assert [one["implementation"] for one in warm] == ["flash-attn.2", "xformers.cutlass"]
    assert cold[0]["time_s"] > warm[0]["time_s"]
    model = ["--gpu", "a100-sxm4-80gb", "--model", "gpt2-small"]
    figures = asked("sensitivity", *model, "--seq", "1k")
    assert {one["kind"] for one in figures} == {"prediction", "elasticity"}
    (even,) = asked("breakeven", *model, "--seq", "1k")
    assert even["seq"] == 1024 and "causal" in even["mask"]
