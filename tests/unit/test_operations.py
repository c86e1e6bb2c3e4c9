"""Operations as a person writes them: in Python, on the command line, in case tables and studies."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from attnsim import InputError, Operations, Workload, compare, predict, predict_table
from attnsim.cli import main
from attnsim.models.question.operations import ORDER
from attnsim.studies.study import workload_axis
from tests.unit.answering import refusal

A100 = "a100-sxm4-80gb"
W = Workload(8, 12, 64, 64, dtype="fp16")
QUESTION = ["predict", "--gpu", A100, "--batch", "8", "--heads", "12", "--seq", "64", "--head-dim", "64"]


def test_text_and_back() -> None:
    assert str(Operations.parse("Scale,softmax ,  dropout .1")) == "scale, softmax, dropout 0.1"
    assert Operations.parse("copies+softmax  fp32") == Operations(("copies", "softmax fp32"))
    assert Operations.parse("softmax, dropout 0") == Operations.parse("softmax"), "PyTorch returns its input"
    every = Operations(tuple(names[-1] for names in ORDER), 0.5)
    assert Operations.parse(str(every)) == every
    assert every.without("dropout").dropout == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sofmax", "'sofmax' is not known; nearest: softmax"),
        ("softmax, scale", "'softmax, scale'; each runs once, in the order expand, copies or copies fp32"),
        ("softmax, softmax fp32", "each runs once"),
        ("softmax, dropout", "'dropout' has no rate"),
        ("softmax, dropout 1", "'dropout 1' has no rate from 0 on and below 1"),
        ("softmax, dropout -0.1", "has no rate"),
        ("", "are ''; write 'scale, softmax, dropout 0.1'"),
        ("softmax,,scale", "write 'scale, softmax"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Operations.parse(text)


@pytest.mark.parametrize(
    ("name", "text", "passes", "said"),
    [
        ("flash-attn.2", "scale, softmax", "fwd", "takes no operations but copies and accumulate around it"),
        ("attnsim.naive", "softmax", "fwd", "attnsim.naive takes no operations, they are 'softmax'; take --impl"),
        ("torch.eager", "scale", "fwd", "of torch.eager are 'scale', without a softmax"),
        ("torch.eager", "softmax, accumulate", "fwd", "'accumulate' follows a backward pass, the pass is fwd"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(name: str, text: str, passes: str, said: str) -> None:
    algorithm = "flash" if name == "flash-attn.2" else "naive"
    with pytest.raises(InputError, match=said):
        predict(replace(W, passes=passes, operations=Operations.parse(text)), A100, algorithm, implementation=name)


def test_dropout_is_on_where_it_is_an_operation_and_a_contradiction_is_refused() -> None:
    assert replace(W, operations=Operations.parse("softmax, dropout 0.1")).dropout
    with pytest.raises(InputError, match="dropout is on and the operations are 'softmax'; add"):
        replace(W, dropout=True, operations=Operations.parse("softmax"))


def test_beside_others_operations_stay_with_those_that_run_them() -> None:
    naive, flash = compare(replace(W, operations=Operations.parse("copies, scale, softmax, dropout 0.1")), A100)
    assert "copy Q" in [name for name, _ in naive.kernels] and naive.speedup_vs_naive != 1.0
    assert [name for name, _ in flash.kernels] == ["flash_fwd"] and flash.workload.dropout
    with pytest.raises(InputError, match="no implementation of flash runs; add naive"):
        compare(replace(W, operations=Operations.parse("softmax")), A100, ["flash"])
    (around,) = compare(replace(W, operations=Operations.parse("copies")), A100, ["flash"])
    assert [name for name, _ in around.kernels] == ["copy Q", "copy K", "copy V", "flash_fwd"]


@pytest.mark.parametrize("how", [{"tile": "128x64"}, {"tiles": "retuned"}])
def test_another_tile_has_the_same_operations_around_it(how: dict[str, str]) -> None:
    w = replace(W, seq_q=512, seq_kv=512, passes="fwd+bwd", operations=Operations.parse("copies, accumulate"))
    shipped, other = (
        predict(w, A100, implementation="flash-attn.2", launch="host", baseline=False, **given)  # type: ignore[arg-type]
        for given in ({}, how)
    )
    assert sorted(name for name, _ in shipped.kernels) == sorted(name for name, _ in other.kernels)


def test_the_trust_says_that_the_host_bounds_a_short_call() -> None:
    short, graph = (
        predict(W, A100, "flash", implementation="flash-attn.2", launch=launch) for launch in ("host", "graph")
    )
    assert "the host's launches bound the time" in short.trust.reason and short.trust.high > 2
    assert "host" not in graph.trust.reason
    assert short.time_s and graph.time_s and short.time_s > 2 * graph.time_s


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*QUESTION, "--algorithm", "naive", "--operations", "scale, softmax, dropout 0.1", "--json"]
    assert main(flags) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [name for name, _ in found["kernels"]] == ["S = Q K^T", "scale", "softmax", "dropout", "O = P V"]
    refusal(capsys, *QUESTION, "--operations", "sofmax")
    layer = ["predict", "--gpu", A100, "--model", "llama-3-8b", "--seq", "512", "--layer", "--operations", "softmax"]
    assert "--operations does not go with --layer" in refusal(capsys, *layer)


def test_in_a_case_table() -> None:
    row = {"gpu": A100, "implementation": "torch.eager", "batch": 8, "heads_q": 12, "seq_q": 1024, "head_dim": 64}
    options = ("", "operations=copies+scale+softmax", "operations=softmax;dropout=0.1", "operations=scale")
    result = predict_table(pd.DataFrame([row | {"dtype": "fp16", "options": text} for text in options]))
    assert result["predicted_s"][1] > result["predicted_s"][0]
    assert "add 'dropout 0.1'" in result["error"][2] and "without a softmax" in result["error"][3]


def test_in_a_study() -> None:
    (one, other) = workload_axis("operations", ["softmax", "scale, softmax"]).values
    assert one == Operations.parse("softmax") and other == Operations.parse("scale, softmax")
    with pytest.raises(InputError, match=r"workload\.operations: operation 'sum' is not known"):
        workload_axis("operations", ["sum"])
