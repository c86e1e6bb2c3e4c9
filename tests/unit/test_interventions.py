"""Measured steps in which one thing changes: which pairs there are, what predicts them, and what is told of them."""

import json
from collections import Counter

import pytest

from attnsim.api.comparing.ratios import Ratio
from attnsim.cli import main
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.flash_attention import ABLATIONS
from attnsim.models.question.workload import Workload
from attnsim.validation.checking import interventions as steps
from attnsim.validation.checking.claims import shares_table
from attnsim.validation.checking.interventions import Stepped, interventions, steps_table
from attnsim.validation.measured.datasets import published_cases
from attnsim.validation.measured.sources import ROLES

SOURCES = {"fa3_table2", "fa3_fig5", "fa_issue1310", "fa_pr2605"}


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward rows of 2,048 tokens, the ablations, and no serving table."""
    cases = [
        case
        for case in published_cases(*ROLES)
        if case.source in SOURCES and case.algorithm == "flash" and case.seq_q in (2048, 8448)
    ]
    monkeypatch.setattr(steps, "published_cases", lambda *roles: iter(cases))
    monkeypatch.setattr(steps, "serving_pairs", lambda sample: [])


@pytest.mark.usefixtures("some")
def test_a_pair_differs_in_one_thing() -> None:
    kinds = Counter(pair.kind for pair in steps._pairs(24))
    assert set(kinds) == {"ablation", "GPU", "head_dim at one width", "causal"} and kinds["ablation"] == 2
    for pair in steps._pairs(24):
        one, two = pair.one.workload, pair.two.workload
        same = {"gpu": pair.one.gpu.base_id == pair.two.gpu.base_id, "mask": str(one.mask) == str(two.mask)}
        same |= {"head_dim": one.head_dim == two.head_dim, "kernel": pair.one.record.build is pair.two.record.build}
        changed = {"ablation": "kernel", "GPU": "gpu", "causal": "mask", "head_dim at one width": "head_dim"}[pair.kind]
        assert [name for name, alike in same.items() if not alike] == [changed], pair
        assert one.heads_q * one.head_dim == two.heads_q * two.head_dim
        assert pair.one.gpu.architecture == pair.two.gpu.architecture


@pytest.mark.usefixtures("some")
def test_runs_of_one_question_are_their_median_and_use_says_what_the_numbers_saw() -> None:
    found = interventions()
    (pipelining,) = [one for one in found if one.what == "GEMM-softmax pipelining"]
    assert pipelining.measured == pytest.approx(1.14, abs=0.005), "the paper's table 2"
    b300 = [
        one for one in found if one.what == "b200-sxm-180gb > b300-sxm" and one.whose == "flash-attn.4, head_dim 64"
    ]
    # Two runs on B200 at 2,048 tokens, 0.728 and 0.806 ms, and one on B300, 0.556; the other full one is a stated step.
    most = max(one.measured for one in b300)
    assert most == pytest.approx((0.728153e-3 + 0.806094e-3) / 2 / 0.55587e-3)
    by_use = {(one.kind, one.whose.partition(",")[0], one.use) for one in found}
    assert ("GPU", "nvidia.cudnn", "held out") in by_use and ("causal", "flash-attn.3", "left out") in by_use
    assert all(one.use == "held out" for one in found if one.kind in ("GPU", "ablation")), "half of it nobody fits"


def test_a_line_has_the_error_the_direction_and_what_the_range_holds() -> None:
    def step(measured: float, predicted: float) -> Stepped:
        return Stepped("GPU", "a > b", "dense", "x", "held out", measured, Ratio.of(predicted, 1.0, 0.1))

    total, chapter, line = steps_table([step(2.0, 2.1), step(1.5, 1.0), step(1.02, 0.99), step(0.8, 1.1)])
    assert (
        total | {"kind": "GPU", "step": "a > b", "implementation": "x"} == line and chapter["implementation"] == "dense"
    )
    assert line["pairs"] == 4 and line["held"] == 0.5 and line["error"] == pytest.approx(0.2007, abs=1e-3)
    assert line["direction"] == pytest.approx(1 / 3, abs=1e-3), "1.02 is noise, 1.00 no way at all"


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_does_the_same_work(name: str) -> None:
    w, gpu = Workload(4, 16, 8448, 128, dtype="fp16"), load_gpu("h100-sxm5-80gb")
    whole, lacking = IMPLEMENTATIONS["flash-attn.3"].build(w, gpu, None), ABLATIONS[name](w, gpu, None)
    assert lacking.main.segments != whole.main.segments
    assert lacking.requested() == whole.requested()
    assert [lacking.total(of) for of in ("flops", "exps")] == [whole.total(of) for of in ("flops", "exps")]


def test_shares_of_pipes_stand_beside_what_profilers_read() -> None:
    table = shares_table()
    assert [row["measured"] for row in table] == [0.577, 0.295, 0.052, 0.754, 0.205, 0.131, 0.758, 0.174]
    assert all(
        0 < row["predicted"] <= 1 and row["off"] == pytest.approx(row["predicted"] - row["measured"]) for row in table
    )
    ampere = [row for row in table if row["implementation"] == "flash-attn.2"]
    assert all(abs(row["off"]) < 0.05 for row in ampere), "its instructions are counted"


@pytest.mark.usefixtures("some")
def test_the_command_prints_steps_and_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--steps", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["table"] for row in found} == {"step", "share"}
    assert main(["accuracy", "--steps"]) == 0
    out = capsys.readouterr().out
    assert "ablation, GEMM-softmax pipelining, held out" in out and "GPU, h100-sxm5-80gb > h20, held out" in out
    assert main(["accuracy", "--steps", "--claims"]) == 2
