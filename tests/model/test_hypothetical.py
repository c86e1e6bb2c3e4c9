"""Real GPUs as if they did not exist: nothing of them leaks in, and the errors stay what they were."""

from dataclasses import replace

import pytest

from attnsim.models.calibrations import choose as choosing
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.validation.checking.hypothetical import PAIRS, VIEWS, Outcome, as_announced, errors, numbers_for, outcomes
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.aiconfigurator_files import implementation_of
from attnsim.validation.measured.datasets import published_rows

TO_HOPPER = PAIRS[0]


@pytest.fixture
def papers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiconfigurator, "available", lambda: False)


@pytest.fixture(scope="module")
def found() -> list[Outcome]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiconfigurator, "available", lambda: False)
        return outcomes()


def test_the_pairs_are_those_of_the_question() -> None:
    assert (TO_HOPPER.older, TO_HOPPER.newer) == ("a100-sxm4-80gb", "h100-sxm5-80gb")
    for pair in PAIRS:
        assert pair.older in pair.known and pair.newer not in pair.known


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.newer)
def test_choose_sees_only_gpus_that_exist(pair: object) -> None:
    assert isinstance(pair, type(TO_HOPPER))
    for record in IMPLEMENTATIONS.values():
        chosen = choose(record, load_gpu(pair.newer), pair.known)
        if chosen.calibration is not None:
            assert {*chosen.calibration.domain.gpus, chosen.calibration.gpu} <= pair.known


def test_what_was_fitted_on_the_newer_gpu_makes_no_difference(
    papers_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(row for row in published_rows() if row.case.source == "fa2_fig7" and row.record.name == "flash-attn.2")

    def times() -> list[float]:
        older = load_gpu(TO_HOPPER.older)
        gpus = (as_announced(row.gpu, older), row.gpu)
        numbers = [numbers_for(row, gpu, TO_HOPPER)[0] for gpu in gpus]
        return [replace(row, gpu=gpu).predict_s(one) for gpu, one in zip(gpus, numbers, strict=True)]

    before = times()
    kept = {key: one for key, one in calibrations().items() if key[1] != "hopper"}
    assert choose(row.record, row.gpu).own
    monkeypatch.setattr(choosing, "calibrations", lambda: kept)
    assert not choose(row.record, row.gpu).own
    assert times() == before


def test_an_announced_gpu_has_its_datasheet_and_the_older_one_s_clocks_and_fractions() -> None:
    older, newer = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
    seen = as_announced(newer, older)
    for key in ("sm.count", "tensor.fp16", "sm.exp_rate", "l2.capacity", "hbm.bandwidth", "clock.tensor"):
        assert seen.get(key) == newer.get(key)
    for key in ("tensor.mma_sync_fraction", "l2.latency", "hbm.latency", "hbm.achievable_fraction", "launch.graph"):
        assert seen.get(key) == older.get(key)
    rate = older.l2.bandwidth_bytes_per_s / older.sm.count / older.clock.boost_hz
    assert seen.l2.bandwidth_bytes_per_s == pytest.approx(rate * newer.sm.count * newer.clock.boost_hz)


def test_rows_come_in_both_views_with_their_step(found: list[Outcome]) -> None:
    assert {one.view for one in found} == set(VIEWS)
    paired = [one for one in found if one.step is not None]
    assert {one.row.case.source for one in paired} == {
        "fa2_fig7",
        "nsa_triton_branches",
        "aic_attention_vllm_0.24.0_l40s",
        "aic_linear_sglang_0.5.16",
        "aic_linear_vllm_0.1.dev19262",
    }
    for one in paired[:5]:
        assert one.older is not None and one.step == pytest.approx(one.older / one.ratio)


# Mean errors of the time from A100 to H100 where the papers timed both, as measured, with a margin of a tenth.
# The project wants 6 % for the same kernel. The datasheet does not say that mma.sync reaches 0.63 of Hopper's peak.
LIMITS = {
    ("torch.baddbmm", "fwd+bwd", "datasheet"): 0.0523,  # 4.7 % while its rates were fitted
    ("torch.baddbmm", "fwd+bwd", "gpu file"): 0.0392,
    ("flash-attn.2", "fwd+bwd", "datasheet"): 0.155,
    ("flash-attn.2", "fwd+bwd", "gpu file"): 0.0755,
    ("flash-attn.2", "fwd", "gpu file"): 0.119,
    ("flash-attn.1", "fwd+bwd", "gpu file"): 0.0905,
    # Numbers of triton.ops, which Triton shipped in 2023: its waits stand for what its schedule lacks. DEVIATIONS.md
    ("triton.tutorial", "fwd", "datasheet"): 1.741,  # 16.9 % while rates were fitted
    ("triton.tutorial", "fwd", "gpu file"): 1.742,
    ("nvidia.cudnn", "fwd", "gpu file"): 0.2,  # its H100 rows are of 9.1, slower than the 9.27 of A100; DEVIATIONS.md
}


def test_errors_from_a100_to_h100_stay_what_they_are(found: list[Outcome]) -> None:
    newer, rows = TO_HOPPER.newer, errors(found)
    table = {(row["implementation"], row["pass"], row["view"]): row for row in rows if row["newer"] == newer}
    for key, limit in LIMITS.items():
        assert table[key]["mean"] <= limit, (key, table[key])


def test_cudnn_s_error_from_h100_to_gb200_stays_what_it_is(found: list[Outcome]) -> None:
    """53.9 %: waits of wgmma's softmax do not carry over to tcgen05, whose warps of softmax run beside its products."""
    of = {(row["newer"], row["implementation"], row["pass"], row["view"]): row for row in errors(found)}
    row = of["gb200", "nvidia.cudnn", "fwd", "gpu file"]
    assert row["mean"] <= 0.592, "22.5 % while its rates were fitted"


def test_serving_rows_have_twins_of_the_same_format_and_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    if not aiconfigurator.available():  # then there is nothing to pair, and nothing is asked for
        assert errors(outcomes([PAIRS[1]])) == []
        return
    encoders = [
        table for table in aiconfigurator.tables() if implementation_of(table.file, table.kernel) == "sglang.vit-fa3"
    ]
    monkeypatch.setattr(aiconfigurator, "tables", lambda: encoders)
    found = outcomes([PAIRS[1]], 8)
    assert found and {one.row.record.name for one in found} == {"sglang.vit-fa3"}
    assert all(one.row.workload.element_bytes == 2 and one.row.gpu.base_id == PAIRS[1].newer for one in found)
    steps = [abs(one.step - 1) for one in found if one.step is not None]
    assert len(steps) == len(found)
    assert sum(steps) / len(steps) < 0.1
