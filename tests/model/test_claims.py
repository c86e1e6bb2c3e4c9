"""What papers state, as the replay and the schedules give it: every claim with its setting and its error."""

from typing import Any

import pytest

from attnsim.validation.checking.claims import SPEEDUPS, counts, gpt2_medium, speedups


@pytest.fixture(scope="module")
def stated() -> list[dict[str, Any]]:
    return speedups()


def rows(stated: list[dict[str, Any]], gpu: str, high: float) -> list[dict[str, Any]]:
    found = [row for row in stated if row["gpu"] == gpu and row["high"] == high]
    assert found
    return found


def test_clocks_scores_and_flops_are_as_stated() -> None:
    """Exponentials against tensor cores on H100 and B200, S at 8,192 tokens, five GEMMs over two."""
    found = {row["claim"]: row for row in counts()}
    assert len(found) == 7
    for claim, row in found.items():
        assert row["ours"] == row["stated"], claim
        assert row["error"] == 0.0


def test_b200_doubles_the_tensor_rate_and_not_the_exponentials() -> None:
    found = {row["claim"]: row["ours"] for row in counts()}
    ratios = [
        next(value for claim, value in found.items() if claim.startswith(f"{gpu}, head_dim {d}:"))
        for gpu, d in (("h100-sxm5-80gb", 64), ("b200-sxm-180gb", 64), ("h100-sxm5-80gb", 128), ("b200-sxm-180gb", 128))
    ]
    assert ratios == [1.0, 0.5, 2.0, 1.0]


def test_gpt2_medium_s_traffic_by_reading() -> None:
    """40.3 GB by the reading taken within 10 %, 4.4 GB between the causal and the full reading."""
    by_reading = {(row["implementation"], row["mask"]): row["hbm_bytes"] for row in gpt2_medium()}
    assert by_reading["ideal.unfused", "causal"] == pytest.approx(40.3e9, rel=0.10)
    assert by_reading["flash-attn.1", "causal"] < 4.4e9 < by_reading["flash-attn.1", "full"]
    assert by_reading["flash-attn.1", "causal"] == pytest.approx(4.0e9, rel=0.05)
    assert by_reading["flash-attn.1", "full"] == pytest.approx(6.2e9, rel=0.05)


def test_every_claim_has_its_setting_and_both_readings(stated: list[dict[str, Any]]) -> None:
    assert len(stated) == sum(len(item.lengths) for item in SPEEDUPS)
    for row in stated:
        assert row["setting"] and "arXiv 2205.14135" in row["source"]
        assert 0 < row["low"] <= row["high"]
        assert row["full"] > 1 and row["causal"] > 1
        for reading in ("full", "causal"):
            inside = row["low"] <= row[reading] <= row["high"]
            assert (row[f"{reading}_error"] == 0) == inside


def test_two_to_four_times_on_an_a100(stated: list[dict[str, Any]]) -> None:
    """Without mask and dropout from 512 tokens on; below, the host's time of the launches decides."""
    for row in rows(stated, "a100-sxm4-40gb", 4.0):
        assert row["causal"] > row["full"], "more speedup with masking and dropout"
        assert row["full_error"] == 0 or row["seq"] < 512, row["seq"]
    at = {row["seq"]: row["causal"] for row in rows(stated, "a100-sxm4-40gb", 4.0)}
    assert at[512] < 4.0 < at[1024], "up to 4x with dropout and masking is stated: a known gap, see DEVIATIONS.md"


def test_cards_with_slower_memory(stated: list[dict[str, Any]]) -> None:
    for row in rows(stated, "rtx-3090", 4.5):
        assert row["full"] < row["low"], "known gaps, DEVIATIONS.md"
        assert row["low"] < row["causal"] and row["causal_error"] < 0.06
    for row in rows(stated, "t4", 4.5):
        assert row["full"] < row["low"] < row["causal"]


def test_gpt2_s_speedups_lie_between_the_readings(stated: list[dict[str, Any]]) -> None:
    (row,) = rows(stated, "a100-sxm4-40gb", 5.7)
    assert row["full"] < 5.7 < row["causal"] and row["causal_error"] < 0.02
    (row,) = rows(stated, "a100-sxm4-40gb", 7.6)
    assert row["full"] < 7.6 < row["causal"], "a known gap, which has its size: DEVIATIONS.md"
