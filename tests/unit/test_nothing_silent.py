"""Nothing that is asked is passed over: two values of any column or flag give two questions, or one is refused."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pandas as pd
import pytest

import attnsim
from attnsim.api.asking import Question
from attnsim.api.tables import question_of
from attnsim.cli import main
from attnsim.cli.question_flags import QuestionFlags
from attnsim.errors import InputError
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.columns import known_columns

ROW: dict[str, str] = {
    "gpu": "a100-sxm4-80gb", "implementation": "flash-attn.2", "batch": "2", "heads_q": "8", "seq_q": "512",
    "head_dim": "64",
}  # fmt: skip
NSA = {
    "implementation": "nsa-triton.selected", "causal": "1", "heads_kv": "1", "heads_q": "16", "head_dim": "128",
    "seq_q": "4096",
}  # fmt: skip
DECODE = {"pass": "decode", "seq_q": "1", "seq_kv": "4096", "heads_kv": "8"}
MLA = {
    **DECODE, "gpu": "h100-sxm5-80gb", "implementation": "flashmla.dense", "head_dim": "192", "head_dim_v": "128",
}  # fmt: skip
PATTERN = ("--causal", "--kv-heads", "1", "--heads", "16", "--head-dim", "128", "--algorithm", "nsa-selected")
LATENT = ("--pass", "decode", "--head-dim", "192", "--head-dim-v", "128", "--algorithm", "mla")
CASCADE = ("--pass", "decode", "--implementation", "flashinfer.cascade", "--batch", "4")
TREE = ("--pass", "decode", "--seq", "3", "--seq-kv", "512", "--causal", "--implementation", "flashinfer.tree")

COLUMNS: dict[str, tuple[str, str, Mapping[str, str]]] = {
    "gpu": ("a100-sxm4-80gb", "h100-sxm5-80gb", {}),
    "implementation": ("flash-attn.2", "torch.flex", {}),
    "algorithm": ("naive", "flash", {"implementation": ""}),
    "framework": ("vllm", "sglang", {"implementation": "flash_attn"}),
    "version": ("2.0.0", "2.7.0", {"implementation": "flash_attn_v2"}),
    "torch_version": ("2.0", "2.13", {"implementation": "sdpa"}),
    "vllm_version": ("0.8", "0.24", {"implementation": "vllm"}),
    "sglang_version": ("0.3", "0.5", {"implementation": "sglang.flashinfer"}),
    "tensorrt_llm_version": ("0.20", "1.2", {"implementation": "tensorrt-llm.attention"}),
    "flashinfer_version": ("0.1", "0.6", {"implementation": "flashinfer.fa2"}),
    "flash_attn_version": ("2.0.0", "2.7.0", {"implementation": "flash_attn"}),
    "cudnn_version": ("9.1", "9.20", {"implementation": "cudnn", "gpu": "h100-sxm5-80gb"}),
    "pass": ("fwd", "bwd", {}),
    "dtype": ("fp16", "bf16", {}),
    "batch": ("2", "3", {}),
    "heads_q": ("8", "16", {}),
    "heads_kv": ("8", "4", {}),
    "seq": ("512", "1024", {"seq_q": ""}),
    "seq_q": ("512", "256", {"seq_kv": "1024"}),
    "seq_kv": ("512", "1024", {}),
    "lengths": ("512:512 512:1024", "256:512 512:1024", {"seq_q": "", "batch": ""}),
    "head_dim": ("64", "128", {}),
    "head_dim_v": ("64", "32", {}),
    "embed_dim": ("512", "1024", {"head_dim": ""}),
    "causal": ("1", "0", {}),
    "window": ("128", "256", {"causal": "1"}),
    "cache": ("cold", "warm", {}),
    "clock_mhz": ("1000", "1400", {}),
    "page_size": ("16", "64", {**DECODE, "implementation": "flashinfer.fa2"}),
    "mask": ("causal", "causal, window 64", {}),
    "latent": ("512x64", "256x64", MLA),
    "operations": ("scale, softmax", "softmax", {"implementation": "torch.eager"}),
    "selection": ("top 16x64", "top 8x64", NSA),
    "dropout": ("0", "1", {}),
    "prefix": ("0", "1024", {**DECODE, "implementation": "flashinfer.cascade", "page_size": "16"}),
    "tree": ("-1 0 0", "-1 0 1", {**DECODE, "seq_q": "3", "implementation": "flashinfer.tree", "causal": "1"}),
    "launch": ("graph", "stream", {}),
    "kv_dtype": ("fp8", "", {**DECODE, "implementation": "flashinfer.fa2"}),
    "sinks": ("1", "0", {**DECODE, "gpu": "h100-sxm5-80gb", "implementation": "vllm.flash-attn-3"}),
    "softcap": ("50", "30", {"implementation": "flash-attn.2", "version": "2.7"}),
    "options": ("dropout=0", "dropout=1", {}),
}  # fmt: skip
"""Two values of each column that name different things, and what else a row says for both to be possible."""

NOT_ASKED = {
    "time_s": "what was measured",
    "tflops": "what was measured, by FLOPs",
    "gbs": "what was measured, by bytes",
    "unit": "of what was measured",
    "source": "who measured",
    "notes": "words",
}
"""Columns that ask nothing, and why."""

MEAN_THE_SAME = dict.fromkeys(
    ("vllm_version", "sglang_version", "tensorrt_llm_version", "flashinfer_version"),
    "its kernels here are those of one version, which the trust says where the numbers are of another",
) | {
    "page_size": "the address of each key is worked out whatever the page; numbers of fewer pages are read",
}
"""Columns of two values that may be answered alike though they name different things, and why."""

FLAGS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "--batch": ("1", "2", ()),
    "--heads": ("8", "16", ()),
    "--kv-heads": ("8", "4", ()),
    "--seq": ("512", "1024", ()),
    "--seq-kv": ("512", "1024", ()),
    "--lengths": ("64:512 8:512", "64:512 8:1024", ("--algorithm", "flash")),
    "--page-size": ("16", "64", ("--pass", "decode", "--implementation", "flashinfer.fa2")),
    "--kv-dtype": ("bf16", "fp8", ("--pass", "decode", "--implementation", "flashinfer.fa2")),
    "--softcap": ("0", "50", ("--algorithm", "flash")),
    "--prefix": ("256", "128", CASCADE),
    "--tree": ("-1 0 0", "-1 0 1", TREE),
    "--head-dim": ("64", "128", ()),
    "--head-dim-v": ("64", "32", ("--algorithm", "naive")),
    "--latent": ("512x64", "256x64", LATENT),
    "--dtype": ("fp16", "fp32", ("--algorithm", "naive")),
    "--window": ("64", "128", ("--causal", "--algorithm", "sliding-window")),
    "--mask": ("causal, window 64", "causal, window 128", ("--algorithm", "sparse")),
    "--pass": ("fwd", "bwd", ()),
    "--operations": ("scale, softmax", "softmax", ("--algorithm", "naive")),
    "--selection": ("top 4x64", "top 2x64", PATTERN),
    "--model": ("llama-3-8b", "llama-2-7b", ()),
    "--tp": ("1", "2", ("--model", "llama-3-8b")),
    "--gpu": ("h100", "a100", ()),
    "--algorithm": ("naive", "flash", ()),
    "--implementation": ("flash-attn.2", "flash-attn.3", ()),
    "--set": ("hbm.bandwidth=2x", "hbm.bandwidth=3x", ()),
    "--tile": ("128x64", "64x64", ("--algorithm", "flash")),
    "--tiles": ("shipped", "retuned", ("--algorithm", "flash")),
    "--mode": ("fast", "exact", ("--algorithm", "flash")),
    "--budget": ("20k", "40k", ("--algorithm", "flash")),
    "--cache": ("cold", "warm", ("--algorithm", "flash")),
    "--launch": ("graph", "stream", ("--algorithm", "flash")),
}  # fmt: skip
"""The same of the flags of a question."""

SWITCHES = {"--causal": (), "--sinks": ("--implementation", "vllm.flash-attn-3")}

SAME_FLAGS = {"--page-size": MEAN_THE_SAME["page_size"]}


def asked(cells: Mapping[str, str]) -> Question | str:
    """The question of a row, or why it is refused."""
    try:
        found = question_of(parse_row(cells))
    except InputError as error:
        return str(error)
    return replace(found, assumed=())


@pytest.mark.parametrize("name", [name for name in known_columns() if name not in NOT_ASKED])
def test_two_values_of_a_column_are_two_questions(name: str) -> None:
    if unmodelled := known_columns()[name].unmodelled:
        plain, said = asked({**ROW, name: "0"}), asked({**ROW, name: "17"})
        assert isinstance(plain, Question) and isinstance(said, str)
        assert f"{name} is '17'" in said and unmodelled in said
        return
    first, second, rest = COLUMNS[name]
    questions = [asked({**ROW, **rest, name: value}) for value in (first, second)]
    assert any(isinstance(one, Question) for one in questions), questions
    assert questions[0] != questions[1] or name in MEAN_THE_SAME


def test_every_column_and_flag_is_asked_or_has_its_reason() -> None:
    modelled = {name for name, known in known_columns().items() if not known.unmodelled}
    assert modelled == {name for name in COLUMNS if not known_columns()[name].unmodelled} | NOT_ASKED.keys()
    assert not COLUMNS.keys() & NOT_ASKED.keys()
    flags = {f"--{one.name.replace('_', '-')}".replace("--passes", "--pass") for one in fields(QuestionFlags)}
    assert flags - {*SWITCHES} <= FLAGS.keys()


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_another_answer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for switch in ((), (name,)):
        question = ["--gpu", "h100", "--heads", "8", "--seq", "512", "--head-dim", "64", "--algorithm", "flash"]
        assert main(["predict", *question, "--json", *SWITCHES[name], *switch]) == 0
        found.append([_answer(one) for one in json.loads(capsys.readouterr().out)])
    assert found[0] != found[1]


@pytest.mark.parametrize("name", FLAGS)
def test_two_values_of_a_flag_are_two_answers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, rest = FLAGS[name]
    usual = {"--gpu": "h100", "--heads": "8", "--seq": "512", "--head-dim": "64"}
    if "--model" in (name, *rest):
        del usual["--heads"], usual["--head-dim"]
    if name == "--lengths":
        del usual["--seq"]
    words = [word for flag, value in usual.items() if flag not in (name, *rest) for word in (flag, value)]
    found = []
    for value in (first, second):
        code = main(["predict", *words, *rest, f"{name}={value}", "--json"])
        said = capsys.readouterr()
        found.append((code, [_answer(one) for one in json.loads(said.out)] if code == 0 else said.err))
    assert any(code == 0 for code, _ in found), found
    assert found[0] != found[1] or name in SAME_FLAGS


def _answer(one: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key not in ("trust", "ratios")}


def test_a_row_with_a_column_that_nobody_knows_is_named_and_never_validated() -> None:
    shape = {"batch": "4", "heads_q": "16", "seq_q": "4096", "head_dim": "128", "causal": "1", "dtype": "fp16"}
    row = {**shape, "gpu": "h100-sxm5-80gb", "implementation": "flash-attn.3", "ms": "0.5"}
    plain = attnsim.check(pd.DataFrame([row]), progress=False)
    odd = attnsim.check(pd.DataFrame([{**row, "zigzag": "3"}]), progress=False)
    empty = attnsim.check(pd.DataFrame([{**row, "zigzag": ""}]), progress=False)
    assert (plain.answered[0].level, odd.answered[0].level, empty.answered[0].level) == (
        "validated", "interpolated", "validated",
    )  # fmt: skip
    assert "'zigzag' not understood" in str(odd.answered[0].answer["trust"])
    assert {"column": "zigzag", "read_as": "not used: not known", "unit": ""} in odd.mapping.to_dict("records")
