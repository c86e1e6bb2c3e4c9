"""Published measurements as frames, and predictions in which they had no part."""

import pytest

import attnsim
from attnsim import InputError, evidence
from attnsim.validation.checking.hypothetical import PAIRS, outcomes
from attnsim.validation.fitting.held_out import held_out_predictions
from attnsim.validation.measured.datasets import published_rows

BOTH = ["flash-attn.2", "torch.baddbmm"]


def test_rows_are_a_case_table_that_is_predicted_as_they_are() -> None:
    table = evidence.rows(source="fa2_fig4", implementation=BOTH)
    assert set(table["gpu"]) == {"a100-sxm4-80gb"} and set(table["implementation"]) == set(BOTH)
    told = attnsim.predict_table(table[::6], processes=1)
    assert list(told["used_implementation"]) == list(table[::6]["implementation"]) and (told["error"] == "").all()
    assert set(table["source"]) <= set(evidence.sources().index)


def test_held_out_are_the_folds_predictions_with_their_range() -> None:
    found = evidence.held_out(source="fa2_fig4", implementation="flash-attn.2")
    rows = [row for row in published_rows() if row.case.source == "fa2_fig4" and row.record.name == "flash-attn.2"]
    assert [one.predicted_s for one in held_out_predictions(rows)] == list(found["predicted_s"])
    assert set(found["left_out"]) == {"band", "head_dim"}
    inside = (found["predicted_low_s"] <= found["time_s"]) & (found["time_s"] <= found["predicted_high_s"])
    assert list(inside) == list(found["in_range"])


def test_unbuilt_is_the_newer_gpu_in_both_views() -> None:
    found = evidence.unbuilt(PAIRS[0].older, PAIRS[0].newer, source="fa2_fig7", implementation="flash-attn.2")
    assert set(found["figures_from"]) == {"datasheet", "gpu file"} and set(found["gpu"]) == {PAIRS[0].newer}
    only = [row for row in published_rows() if row.case.source == "fa2_fig7" and row.record.name == "flash-attn.2"]
    assert [one.predicted_s for one in outcomes([PAIRS[0]], only=only)] == list(found["predicted_s"])


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: evidence.rows(source="fa9"), "no published row has source 'fa9'; nearest: fa"),
        (lambda: evidence.rows(source="fa2_fig4", gpu="l40s"), "no published row has gpu 'l40s'"),
        (lambda: evidence.unbuilt("h100-sxm5-80gb", "a100-sxm4-80gb"), "is no pair of GPUs with measured steps"),
    ],
)
def test_what_is_not_there_is_said(ask, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=said):
        ask()
