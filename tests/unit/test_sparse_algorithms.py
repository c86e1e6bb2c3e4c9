"""Sparse algorithms as they are asked for: default masks, several implementations at once, lines for bad input."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from attnsim.api import compare, predict, predict_table
from attnsim.cli.app import app
from attnsim.errors import InputError
from attnsim.models.mask import block_patterns
from attnsim.models.mask.block_patterns import Random
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.softmax import SPARSE
from attnsim.models.question.workload import Workload

A100, V100 = "a100-sxm4-80gb", "v100-sxm2-32gb"
QUESTION = Workload(batch=1, heads_q=12, seq_q=4096, head_dim=64)
NAMED = [item for item in SPARSE if item.mask]
FLAGS = ["--gpu", A100, "--heads", "12", "--seq", "4096", "--head-dim", "64"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["predict", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("item", NAMED, ids=lambda item: item.name)
def test_a_named_pattern_runs_its_own_mask_inside_the_band(item) -> None:  # type: ignore[no-untyped-def]
    pattern = Mask.parse(item.mask)
    assert str(pattern) == item.mask
    full = predict(QUESTION, A100, item.name, baseline=False)
    assert full.workload.mask == pattern and item.mask in full.trust.reason
    causal = predict(replace(QUESTION, mask=Mask.causal()), A100, item.name, baseline=False)
    assert causal.workload.mask == pattern & Mask.causal()
    given = predict(replace(QUESTION, mask=Mask.parse("window 64, global 3")), A100, item.name, baseline=False)
    assert given.workload.mask == Mask.parse("window 64, global 3") and "the default" not in given.trust.reason


def test_compare_predicts_an_algorithm_once_for_each_implementation_of_it() -> None:
    answers = compare(QUESTION, A100, ["flash", "longformer", "bigbird"], implementation=["gather", "attnsim.sparse"])
    assert [(item.algorithm, item.implementation) for item in answers] == [
        ("flash", "flash-attn.2"),
        ("longformer", "transformers.gather"),
        ("longformer", "attnsim.sparse"),
        ("bigbird", "transformers.gather"),
        ("bigbird", "attnsim.sparse"),
    ]
    assert answers[0].workload.mask == Mask.full()
    gathered, fused = answers[1:3]
    assert gathered.workload == fused.workload
    assert gathered.hbm_bytes and fused.hbm_bytes and gathered.hbm_bytes > 10 * fused.hbm_bytes
    assert gathered.time_s and fused.time_s and gathered.time_s > 3 * fused.time_s
    assert gathered.peak_memory_bytes > 5 * fused.peak_memory_bytes


def test_a_mask_goes_to_the_named_pattern_and_not_to_flash() -> None:
    mask = Mask.parse("window 128, global 8")
    flash, longformer = compare(replace(QUESTION, mask=mask), A100, ["flash", "longformer"])
    assert (flash.workload.mask, longformer.workload.mask) == (Mask.full(), mask)


def test_a_window_stays_with_those_that_have_one() -> None:
    windowed = replace(QUESTION, mask=Mask.sliding_window(256))
    sliding, longformer = compare(windowed, A100, ["sliding-window", "longformer"])
    assert sliding.workload.mask == windowed.mask
    assert longformer.workload.mask == Mask.longformer() & Mask.causal()


def test_useful_executed_and_dense_flops_are_three_numbers() -> None:
    record = json.loads(run(*FLAGS, "--algorithm", "longformer", "--json"))[0]
    useful, executed, dense = (record[f"flops_{name}"] for name in ("useful", "executed", "dense"))
    assert useful == 4 * 12 * 64 * Mask.longformer().visible_pairs(4096, 4096)
    assert dense == 4 * 12 * 64 * 4096**2
    assert useful < executed < dense


def test_the_command_line_takes_several_implementations() -> None:
    shown = run(*FLAGS, "--algorithm", "longformer", "--implementation", "gather,attnsim.sparse", "-v")
    lines = [line.split()[0] for line in shown.splitlines() if line.startswith("longformer/")]
    assert lines[:2] == ["longformer/transformers.gather", "longformer/attnsim.sparse"]
    assert "3 blocks of 256 keys gathered for each of 16 blocks of queries" in shown
    assert "mask window 257, global 16: the default of longformer" in shown


def test_an_implementation_brings_an_algorithm_that_it_runs() -> None:
    answers = json.loads(run(*FLAGS, "--implementation", "gather", "--json"))
    assert [item["algorithm"] for item in answers] == ["naive", "flash", "sparse"]


def test_an_old_gpu_gathers_and_a_width_that_no_kernel_has_walks_a_block_mask() -> None:
    old = replace(QUESTION, dtype="fp16")
    assert predict(old, V100, "bigbird", baseline=False).implementation == "transformers.gather"
    wide = replace(QUESTION, head_dim=80, head_dim_v=80)
    assert predict(wide, A100, "bigbird", baseline=False).implementation == "torch.flex-mask"


def test_what_gather_cannot_hold_does_not_fit() -> None:
    long = Workload(batch=1, heads_q=12, seq_q=1 << 17, head_dim=64)
    answer = predict(long, A100, "strided", implementation="transformers.gather", baseline=False)
    assert not answer.fits and answer.time_s is None and answer.peak_memory_bytes > 1e12


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        ("block-list", {}, "needs a list: --mask 'blocks 64 0:0 1:0 1:1'"),
        ("longformer", {"implementation": "flash-attn.2"}, "flash-attn.2 does not run algorithm longformer"),
        (
            "bigbird",
            {"implementation": "transformers.gather", "tile": "128x64"},
            "as many queries as keys, such as 64x64",
        ),
        ("longformr", {}, "nearest: longformer"),
    ],
)
def test_bad_questions_get_one_line(algorithm: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=r"\A[^\n]*\Z") as caught:
        predict(QUESTION, A100, algorithm, **options)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_a_case_table_names_the_pattern_and_who_runs_it() -> None:
    row = {"gpu": A100, "algorithm": "longformer", "batch": 1, "heads_q": 12, "seq_q": 4096, "head_dim": 64}
    frame = pd.DataFrame([row | {"implementation": name} for name in ("gather", "attnsim.sparse", "")])
    gathered, fused, default = predict_table(frame, progress=False)["predicted_s"]
    assert gathered > 3 * fused and fused == default


def test_gather_takes_the_block_given() -> None:
    small, large = (
        predict(QUESTION, A100, "longformer", implementation="transformers.gather", tile=tile, baseline=False)
        for tile in ("128x128", "256x256")
    )
    assert (small.tile, large.tile) == ("blocks of 128", "blocks of 256")
    assert "5 blocks of 128 keys gathered for each of 32 blocks" in small.notes[0]
    assert "3 blocks of 256 keys gathered for each of 16 blocks" in large.notes[0]
    assert (small.flops_executed or 0) < (large.flops_executed or 0)  # smaller blocks fit the window better


def test_many_draws_are_looked_up_as_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    many, tokens = Random(block_patterns.COMPARED_DRAWS + 9, 16, 3), 16 * 60
    rows, keys = np.arange(0, tokens, 7)[:, None], np.arange(0, tokens, 5)
    drawn, seen = many.draws(np.arange(60), tokens), many.seen(rows, keys, tokens)
    monkeypatch.setattr(block_patterns, "COMPARED_DRAWS", 60)
    assert (many.draws(np.arange(60), tokens) == drawn).all()
    assert (many.seen(rows, keys, tokens) == seen).all()
    assert all(len(set(row)) == many.count and max(row) < 60 for row in drawn.tolist())
