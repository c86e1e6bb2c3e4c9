"""The Python API: what a prediction holds, what comparing means, tiles, trust, case tables."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import pandas as pd
import pytest

import attnsim
from attnsim import InputError, Mask, Workload, compare, load_gpu, predict, predict_table
from attnsim.api import ALGORITHMS
from attnsim.api.answer import Outcome
from attnsim.api.answering import answer
from attnsim.api.explaining import explain
from attnsim.api.layer import layer
from attnsim.api.playing import _built
from attnsim.api.trust import LEVELS, Reason, Trust, assess
from attnsim.cli import main
from attnsim.models.calibrations.calibration import Calibration, Domain, ErrorSummary
from attnsim.models.calibrations.choose import Chosen
from attnsim.models.calibrations.components import NORMAL_90, widths
from attnsim.models.calibrations.numbers import ImplementationNumbers, Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.question.columns import ADDED_COLUMNS
from attnsim.simulator import players
from attnsim.simulator.grid import BUDGET, GridTime, grid_time
from attnsim.studies.search import search_tiles

H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
CAUSAL = Workload(batch=2, heads_q=16, seq_q=2048, head_dim=128, heads_kv=4, mask=Mask.causal())
WINDOWED = replace(CAUSAL, mask=Mask.sliding_window(512))
JSON_FIELDS = {
    "algorithm",
    "implementation",
    "gpu",
    "changes",
    "tiles",
    "mode",
    "budget",
    "cache",
    "launch",
    "time_s",
    "time_low_s",
    "time_high_s",
    "spread",
    "hbm_read_bytes",
    "hbm_write_bytes",
    "l2_bytes",
    "smem_bytes",
    "flops_useful",
    "flops_executed",
    "flops_dense",
    "exponentials",
    "peak_memory_bytes",
    "fits",
    "busiest",
    "blocks_per_sm",
    "waves",
    "architecture",
    "speedup_vs_naive",
    "speedup_vs_naive_low",
    "speedup_vs_naive_high",
    "trust",
}


def time_of(answer: Outcome) -> float:
    assert answer.time_s is not None
    return answer.time_s


def test_every_public_name_is_there_and_no_other() -> None:
    for name in attnsim.__all__:
        assert getattr(attnsim, name) is not None
    assert {name for name in dir(attnsim) if name == "__version__" or not name.startswith("__")} == set(attnsim.__all__)
    with pytest.raises(AttributeError, match="predcit"):
        attnsim.predcit  # noqa: B018


def test_json_has_the_promised_fields_and_no_nan() -> None:
    record = predict(CAUSAL, H100).to_dict()
    assert set(record) >= JSON_FIELDS
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    trust = record["trust"]
    assert isinstance(trust, dict)
    assert set(trust) == {"level", "low", "high", "error", "reason", "reasons", "components"}


@pytest.mark.parametrize("passes", ["fwd", "bwd", "fwd+bwd", "decode"])
@pytest.mark.parametrize(
    "algorithm", [name for name, item in ALGORITHMS.items() if item.group == "dense" and name != "split-kv"]
)
def test_every_algorithm_and_pass_is_answered(algorithm: str, passes: str) -> None:
    question = WINDOWED if algorithm == "sliding-window" else CAUSAL
    question = replace(question, passes=passes, seq_q=1) if passes == "decode" else question.with_passes(passes)
    if algorithm == "sigmoid" and "bwd" in passes:
        with pytest.raises(InputError, match=r"attnsim\.sigmoid has no .*bwd kernels; allowed: fwd, decode"):
            predict(question, H100, algorithm)
        return
    answer = predict(question, H100, algorithm)
    assert answer.time_s and answer.time_low_s and answer.time_high_s
    assert answer.time_low_s < answer.time_s < answer.time_high_s
    assert answer.flops_executed and answer.flops_useful <= answer.flops_dense
    assert answer.hbm_bytes is not None and answer.hbm_bytes >= 0
    assert answer.units_s and answer.kernels and answer.trust.reason
    assert answer.trust.level in LEVELS


def test_split_kv_is_for_few_queries() -> None:
    decode = Workload(batch=1, heads_q=32, seq_q=1, seq_kv=65536, head_dim=128, heads_kv=8, passes="decode")
    assert "splits" in predict(decode, A100, "split-kv").tile
    with pytest.raises(InputError, match="2048"):
        predict(CAUSAL, A100, "split-kv")


def test_compare_gives_the_window_to_sliding_window_only() -> None:
    naive, flash, sliding = compare(WINDOWED, H100, ["naive", "flash", "sliding-window"])
    assert naive.workload.mask == flash.workload.mask == Mask.causal()
    assert sliding.workload.mask == WINDOWED.mask
    assert naive.speedup_vs_naive == 1.0
    assert flash.speedup_vs_naive == pytest.approx(time_of(naive) / time_of(flash))
    assert time_of(sliding) < time_of(flash) < time_of(naive)


def test_a_window_on_both_sides_becomes_full_for_the_others() -> None:
    both = replace(CAUSAL, mask=Mask.sliding_window(512, causal=False))
    assert compare(both, H100, ["flash"])[0].workload.mask == Mask.full()


@pytest.mark.parametrize("mask", [Mask.longformer(256, 16), Mask.bigbird(), Mask.sparse_transformer(512)], ids=str)
def test_patterns_are_for_sparse_alone(mask: Mask) -> None:
    question = replace(CAUSAL, seq_q=8192, seq_kv=8192, mask=mask)
    flash, sparse = compare(question, H100, ["flash", "sparse"])
    assert flash.workload.mask.is_band and sparse.workload.mask == mask
    assert time_of(sparse) < time_of(flash)
    assert sparse.flops_useful == 4 * 2 * 16 * 128 * mask.visible_pairs(8192, 8192) <= (sparse.flops_executed or 0)
    with pytest.raises(InputError, match=r"flash-attn.2 plays diagonal bands only, .*; take attnsim.sparse"):
        predict(question, H100, implementation="flash-attn.2")
    back = question.with_passes("bwd")
    assert predict(back, H100, "sparse").implementation == "torch.flex-mask"
    with pytest.raises(InputError, match=r"flash-attn.4-sparse has no bwd kernels"):
        predict(back, H100, "sparse", implementation="flash-attn.4-sparse")


def test_compare_gives_the_implementation_to_those_it_runs() -> None:
    naive, flash = compare(CAUSAL, A100, implementation="transformers.eager")
    assert (naive.implementation, flash.implementation) == ("transformers.eager", "flash-attn.2")
    with pytest.raises(InputError, match=r"transformers.eager"):
        compare(CAUSAL, A100, ["flash"], implementation="transformers.eager")


def test_what_does_not_fit_says_so_without_a_time() -> None:
    long = Workload(batch=1, heads_q=8, seq_q=500_000, head_dim=64, dtype="fp16")
    naive, flash = compare(long, A100)
    assert not naive.fits and naive.time_s is None and naive.flops_executed is None
    assert "needs 8 TB, the card has 80 GB" in naive.notes[0]
    assert "needs 8 TB" in naive.trust.reason
    assert flash.fits and flash.speedup_vs_naive is None
    json.dumps(naive.to_dict(), allow_nan=False)


def test_retuned_is_never_slower_than_shipped() -> None:
    doubled = load_gpu(H100).replace("sm.shared_memory", "2x")
    for gpu in (load_gpu(A100), load_gpu(H100), doubled):
        for passes in ("fwd", "fwd+bwd"):
            question = CAUSAL.with_passes(passes)
            shipped, retuned = predict(question, gpu), predict(question, gpu, tiles="retuned")
            assert retuned.tiles == ("shipped" if retuned.tile == shipped.tile else "retuned")
            assert time_of(retuned) <= time_of(shipped) * 1.0001


def test_a_shipped_tile_that_no_longer_fits_points_to_retuning() -> None:
    small = load_gpu(H100).replace("sm.shared_memory", "64 KiB")
    with pytest.raises(InputError, match="--tiles retuned"):
        predict(CAUSAL, small)
    assert predict(CAUSAL, small, tiles="retuned").fits


def test_a_given_tile_is_used_and_named() -> None:
    answer = predict(CAUSAL.with_passes("fwd+bwd"), A100, tile="64x64")
    assert answer.tiles == "given" and answer.tile.startswith("64 x 64")
    assert "backward" in answer.tile
    assert predict(CAUSAL, A100, tile=(64, 64)).tile.startswith("64 x 64")


def test_without_wgmma_flash_falls_back() -> None:
    gpu = load_gpu(H100).replace("features.wgmma", "false")
    assert predict(CAUSAL, gpu).implementation == "flash-attn.2"
    with pytest.raises(InputError, match="wgmma"):
        predict(CAUSAL, gpu, implementation="flash-attn.3")


def test_a_budget_is_the_user_s_and_exact_mode_is_its_end() -> None:
    w = replace(CAUSAL, seq_q=5120, seq_kv=5120, batch=2)
    usual, exact, layers = predict(w, A100), predict(w, A100, mode="exact"), []
    for budget in (BUDGET, 10**12):
        found = predict(w, A100, budget=budget)
        assert (found.mode, found.budget) == ("fast", budget)
        assert time_of(found) == time_of(usual if budget == BUDGET else exact)
        assert explain(w, A100, budget=budget).prediction.time_s == found.time_s
        assert [one.time_s for one in compare(w, A100, ["flash"], budget=budget)] == [found.time_s]
        tiles = search_tiles(w, load_gpu(A100), stages=(), budget=budget).tiles
        assert [one.time_s for one in tiles if one.shipped] == [found.time_s]
        layers.append(layer("llama-3-8b", A100, seq=5120, budget=budget))
    assert time_of(usual) != time_of(exact)
    assert (usual.budget, exact.budget) == (BUDGET, None)
    assert layers[1].time_s == layer("llama-3-8b", A100, seq=5120, mode="exact").time_s != layers[0].time_s
    assert [one.to_dict()["budget"] for one in layers] == [BUDGET, 10**12]
    rows = table({"seq_q": "16384"})
    whole = predict_table(rows, mode="exact")["predicted_s"][0]
    assert predict_table(rows)["predicted_s"][0] != predict_table(rows, budget=10**12)["predicted_s"][0] == whole


@pytest.mark.parametrize("budget", [True, 15e3, "15000", 999, 10**12 + 1])
def test_a_budget_that_is_none_is_refused(budget: int) -> None:
    with pytest.raises(InputError, match=r"^budget is .*; allowed: whole numbers from 1,000 to 1,000,000,000,000"):
        predict(CAUSAL, A100, budget=budget)


def test_a_budget_and_exact_mode_exclude_each_other() -> None:
    calls: list[Callable[..., object]] = [predict, compare, explain]
    calls = [*(partial(call, CAUSAL, A100) for call in calls), partial(predict_table, table({}))]
    for call in calls:
        with pytest.raises(InputError, match="budget is 20000 and mode is exact, which has no limit; leave one of"):
            call(mode="exact", budget=20_000)


@pytest.mark.parametrize("player", ["SimPy", "twin"])
def test_a_long_play_tells_how_far_it_is(player: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(players, "_left", 10**9 if player == "SimPy" else 0)
    monkeypatch.setattr("attnsim.simulator.twin.AT_ONCE", 2_000)
    answer.cache_clear()
    _built.cache_clear()  # plays of its kernels are remembered, whoever played them
    told: list[tuple[str, int, int]] = []
    # Played once: blocks are alike, so that no latency is varied, and no power limit slows a held clock.
    w, gpu = replace(CAUSAL, seq_q=4096, seq_kv=4096, batch=2, mask=Mask()), load_gpu(A100)
    held = gpu.replace("clock.sustained", gpu.clock.full_hz)
    found = predict(w, held, mode="exact", baseline=False, progress=lambda *so_far: told.append(so_far))
    assert found == predict(w, held, mode="exact", baseline=False)
    ended = [blocks for _, blocks, _ in told]
    assert {(name, blocks) for name, _, blocks in told} == {(found.kernels[0][0], 1024)}
    assert len(told) > 2 and ended == sorted(ended) and 0 < ended[-1] <= 1024


DOMAIN = Domain(
    gpus=(A100,),
    passes=("fwd", "bwd"),
    head_dims=(64, 128),
    seq_q=(512, 16384),
    seq_kv=(512, 16384),
    rows=(4096, 1_000_000),
    causal=(False, True),
    windowed=False,
    dropout=False,
)
CALIBRATION = Calibration(
    implementation="flash-attn.2",
    architecture="ampere",
    gpu="a100-sxm4-80gb",
    numbers=ImplementationNumbers(),
    fitted=(),
    held_out=ErrorSummary(90, 0.03, 0.02, 0.06, 0.1),
    domain=DOMAIN,
    folds={("head_dim", "head_dim 64"): Numbers()},
    ranges={},
    sources=(),
    spread={"band": 0.03, "head_dim": 0.05},
)
OWN = Chosen(Numbers(), CALIBRATION, True, "")
USERS = ("laboratory", "clock", "version")
"""What every user's question carries."""


def trust(question: Workload, gpu: Gpu | None = None, chosen: Chosen = OWN, tiles: str = "shipped") -> Trust:
    return assess(question, gpu or load_gpu(A100), chosen, find_implementation("flash-attn.2"), tiles=tiles)


def test_inside_the_domain_is_validated_with_its_error() -> None:
    found = trust(CAUSAL)
    assert (found.level, found.error) == ("validated", 0.03)
    assert set(found.components) == {"within", *USERS}, "a user's machine, its clock and version are others"
    at_a_clock = trust(CAUSAL, load_gpu(A100).replace("clock.sustained", "1200 MHz"))
    assert "clock" not in at_a_clock.components, "a clock that is given is known"
    assert found.components["within"] == pytest.approx(widths().within * 0.03)
    assert math.log(found.high) == pytest.approx(widths().factor * math.hypot(*found.components.values()))
    assert found.to_dict()["components"] == found.components
    assert "range made of held-out error" in found.reason and ", laboratory " in found.reason
    assert found.low == pytest.approx(1 / found.high)
    assert "3.0 %" in found.reason


def test_errors_as_wide_as_without_a_fit_validate_nothing() -> None:
    limit = widths().sd["priors"] / widths().within
    for mean, level in ((0.99 * limit, "validated"), (1.01 * limit, "interpolated")):
        wide = replace(CALIBRATION, spread={"band": mean, "head_dim": 0.05})
        found = trust(CAUSAL, chosen=replace(OWN, calibration=wide))
        assert found.level == level and (found.error is None) == (level == "interpolated")
    assert f"mean error {100 * mean:.0f} % on held-out rows like this, wider than" in found.reason


@pytest.mark.parametrize(
    ("change", "level", "word"),
    [
        ({"head_dim": 96, "head_dim_v": 96}, "interpolated", "head_dim 96"),
        ({"head_dim": 256, "head_dim_v": 256}, "extrapolated", "head_dim 256"),
        ({"seq_kv": 20000}, "interpolated", "seq_kv of 20,000 is 1.2 times the largest that was measured, 16,384"),
        ({"seq_kv": 40000}, "extrapolated", "seq_kv of 40,000 is 2.4 times the largest that was measured"),
        ({"passes": "fwd+bwd"}, "interpolated", "fwd+bwd"),
        ({"passes": "decode"}, "extrapolated", "decode"),
        ({"mask": Mask.sliding_window(64)}, "extrapolated", "sliding window"),
        ({"dropout": True}, "extrapolated", "dropout"),
        ({"head_dim_v": 64}, "extrapolated", "head_dim_v 64"),
        ({"dtype": "fp8"}, "interpolated", "fp8"),
    ],
)
def test_outside_the_domain_says_how_far_and_why(change: dict[str, object], level: str, word: str) -> None:
    found = trust(replace(CAUSAL, **change))  # type: ignore[arg-type]
    assert (found.level, found.error) == (level, None)
    assert word in found.reason
    assert found.high >= trust(CAUSAL).high
    spread = 0.05 if "head_dim" in change else 0.03
    assert found.components["within"] == pytest.approx(widths().within * spread)


def test_a_calibration_that_was_never_held_out_is_not_validation() -> None:
    found = trust(CAUSAL, chosen=replace(OWN, calibration=replace(CALIBRATION, folds={})))
    assert (found.level, found.error) == ("interpolated", None)


def test_another_machine_is_trusted_less() -> None:
    other, changed = load_gpu("a100-pcie-80gb"), load_gpu(A100).replace("hbm.bandwidth", "6 TB/s")
    assert trust(CAUSAL, other).level == "interpolated"
    found = trust(CAUSAL, changed)
    assert found.level == "extrapolated"
    assert found.reasons[0] == Reason("hypothetical", "hypothetical GPU: hbm.bandwidth = 6 TB/s")
    assert found.to_dict()["reasons"] == [one.text for one in found.reasons]
    assert added(found) == {"architecture"} and added(trust(CAUSAL, other)) == {"chip"}
    assert added(trust(CAUSAL, tiles="retuned")) == {"pass"}


def added(found: Trust) -> set[str]:
    """The components beyond those that every user's question carries."""
    return {*found.components} - {"within", *USERS}


def test_what_separates_a_question_from_the_measurements_is_named() -> None:
    for change in ({"passes": "decode"}, {"dropout": True}, {"head_dim_v": 64}):
        assert added(trust(replace(CAUSAL, **change))) == {"pass"}
    window = replace(CAUSAL, mask=CAUSAL.mask & Mask.sliding_window(64, True))
    assert added(trust(window)) == {"window"}
    summed = replace(CALIBRATION, domain=replace(DOMAIN, passes=("fwd+bwd",)))
    assert added(trust(CAUSAL, chosen=replace(OWN, calibration=summed))) == {"pass"}, "never measured alone"
    assert added(trust(replace(CAUSAL, seq_kv=40000))) == {"shape"}
    apart = replace(CALIBRATION, domain=replace(DOMAIN, passes=("bwd", "fwd")))
    assert not added(trust(replace(CAUSAL, passes="fwd+bwd"), chosen=replace(OWN, calibration=apart)))


def test_a_version_that_was_measured_is_one_component_less() -> None:
    known = replace(OWN, calibration=replace(CALIBRATION, versions=("flash-attn 2.8.3",)))
    for version, inside in (("2.8.3", True), ("2.8", True), ("2.7", False), ("", False), ("2", False)):
        found = assess(CAUSAL, load_gpu(A100), known, find_implementation("flash-attn.2"), version=version)
        assert ("version" not in found.components) == inside, version


def test_unfused_attention_of_unknown_operations_says_so() -> None:
    eager, gpu = find_implementation("torch.eager"), load_gpu(A100)
    own = replace(OWN, calibration=replace(CALIBRATION, implementation="torch.eager"))
    assert added(assess(CAUSAL, gpu, own, eager)) == {"operations"}
    assert not added(assess(CAUSAL, gpu, own, eager, operations=True))


def test_a_borrowed_calibration_or_none_is_extrapolated() -> None:
    borrowed = Chosen(Numbers(), CALIBRATION, False, "no calibration of x on hopper; nearest: y on ampere")
    assert trust(CAUSAL, chosen=borrowed).level == "extrapolated"
    assert "nearest: y on ampere" in trust(CAUSAL, chosen=borrowed).reason
    nothing = trust(CAUSAL, chosen=Chosen(Numbers(), None, False, "priors used"))
    assert added(nothing) == {"priors"} and nothing.components["within"] == 0
    far = replace(CALIBRATION, architecture="hopper")
    assert added(trust(CAUSAL, chosen=replace(borrowed, calibration=far))) == {"architecture"}
    foreign = replace(CALIBRATION, implementation="nvidia.cudnn")
    assert added(trust(CAUSAL, chosen=replace(borrowed, calibration=foreign))) == {"kernel"}
    assert trust(CAUSAL, tiles="retuned").level == "extrapolated"


def jittered(monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    """Let every grid be one whose time has this spread."""

    def one(*arguments: object) -> GridTime:
        return replace(grid_time(*arguments), spread=spread)  # type: ignore[arg-type]

    monkeypatch.setattr("attnsim.simulator.replay.grid_time", one)
    monkeypatch.setattr("attnsim.simulator.replay._played", WeakKeyDictionary())  # plays of a kernel are remembered
    answer.cache_clear()


def test_a_spread_widens_the_interval_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, layers = predict(CAUSAL, A100, "naive"), layer("llama-3-8b", A100, seq=1024)
    assert usual.spread == 0.0 and not [one for one in usual.trust.reasons if one.kind == "timing"]
    jittered(monkeypatch, 0.03)
    found = predict(CAUSAL, A100, "naive")
    assert found.time_s == usual.time_s and found.trust.level == usual.trust.level
    kernels = sum(time for _, time in found.kernels)
    spread = found.spread or 0.0
    assert spread == pytest.approx(0.03 * kernels / time_of(found)) and 0 < spread < 0.03
    timing = widths().factor * math.log1p(spread) / NORMAL_90
    half = math.hypot(math.log(usual.trust.high), timing)
    assert math.log(found.trust.high) == pytest.approx(half) == -math.log(found.trust.low)
    assert (found.time_low_s, found.time_high_s) == pytest.approx(
        (time_of(found) * math.exp(-half), time_of(found) * math.exp(half))
    )
    (said,) = [one.text for one in found.trust.reasons if one.kind == "timing"]
    assert f"{100 * spread:.1f} % either way" in said and "mean of jittered plays" in said
    assert found.to_dict()["spread"] == found.spread
    wider = layer("llama-3-8b", A100, seq=1024)
    replayed = [one.name for one in wider.parts if one.spread or one.group == "attention"]
    assert replayed == ["rotary", "attention", "activation"]  # products have a closed form, which nothing jitters
    for before, after in zip(layers.parts, wider.parts, strict=True):
        assert (after.time_high_s != before.time_high_s) == (after.name in replayed)
        assert (after.time_high_s or 0.0) >= (before.time_high_s or 1.0)
    assert said.split(":")[0] in wider.trust.reason


def table(*rows: dict[str, str]) -> pd.DataFrame:
    base = {"gpu": A100, "batch": "1", "heads_q": "8", "seq_q": "1024", "head_dim": "64", "causal": "1"}
    return pd.DataFrame([{**base, **row} for row in rows]).fillna("").astype(str)


def test_a_table_keeps_every_row_in_order() -> None:
    frame = table(
        {"note": "a", "seq_q": "2048"},
        {"note": "b", "gpu": "a9999"},
        {"note": "c", "heads_q": "eight"},
        {"note": "d", "seq_q": "2048"},
        {"note": "e", "implementation": "torch.baddbmm", "seq_q": "500000"},
        {"note": "f", "causal": ""},
        {"note": "g", "options": "pattern=longformer"},
        {"note": "h", "algorithm": "quadratic"},
    )
    result = predict_table(frame)
    assert list(result["note"]) == list("abcdefgh")
    assert list(result.columns) == [*frame.columns, *ADDED_COLUMNS]
    pd.testing.assert_frame_equal(result[frame.columns], frame)
    assert [not math.isnan(value) for value in result["predicted_s"]] == [1, 0, 0, 1, 0, 1, 0, 0]
    assert result["predicted_s"][0] == result["predicted_s"][3]
    reasons = dict(zip(result["note"], result["error"], strict=True))
    assert "a9999" in reasons["b"] and "eight" in reasons["c"] and "needs 8 TB" in reasons["e"]
    assert "pattern" in reasons["g"] and "quadratic" in reasons["h"]
    assert reasons["a"] == reasons["d"] == reasons["f"] == ""
    assert "causal empty, taken as 0" in result["trust"][5]
    assert not any("internal error" in reason for reason in reasons.values())


def test_a_row_is_predicted_as_its_columns_say() -> None:
    result = predict_table(
        table(
            {},
            {"clock_mhz": "700"},
            {"launch": "kernel"},
            {"options": "dropout=0.1", "implementation": "torch.baddbmm"},
            {"implementation": "torch.baddbmm"},
            {"window": "128"},
            {"algorithm": "", "implementation": "xformers"},
            {"algorithm": "naive"},
        )
    )
    times = list(result["predicted_s"])
    assert times[1] > times[0] > times[2]
    assert times[3] > times[4]
    assert list(result["used_implementation"][4:]) == [
        "torch.baddbmm",
        "flash-attn.2",
        "xformers.cutlass",
        "torch.baddbmm",
    ]
    assert "hypothetical" not in result["trust"][1]


def test_an_empty_table_stays_empty() -> None:
    result = predict_table(table({})[:0])
    assert len(result) == 0 and set(ADDED_COLUMNS) <= set(result.columns)


def test_many_rows_in_two_processes_agree_with_one() -> None:
    frame = table(*({"seq_q": str(128 + 8 * n), "heads_q": "1"} for n in range(210)))
    one, two = predict_table(frame, processes=1), predict_table(frame, processes=2)
    pd.testing.assert_frame_equal(one, two)


def test_a_surprise_in_a_row_is_told_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no\nluck")

    monkeypatch.setattr("attnsim.api.tables.ask", fails)
    result = predict_table(table({}))
    assert result["error"][0] == "internal error: ZeroDivisionError: no luck"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: predict(CAUSAL, H100, ["flash"]), r"algorithm is \['flash'\]; give one name"),  # type: ignore[arg-type]
        (lambda: compare(CAUSAL, None), "gpu is None; give an id"),  # type: ignore[arg-type]
        (lambda: load_gpu(5), "gpu is 5; give an id"),  # type: ignore[arg-type]
        (lambda: predict_table([{"gpu": "l4"}]), "give a pandas DataFrame"),  # type: ignore[arg-type]
        (lambda: attnsim.check({"time_s": [1.0]}), "give a pandas DataFrame"),  # type: ignore[arg-type]
        (lambda: attnsim.plot.units(predict(CAUSAL, H100)), "a list of predictions is drawn"),
        (lambda: attnsim.trace(CAUSAL, H100, budget=5000, mode="fast"), "^budget, mode is not for a trace; leave it"),
        (lambda: attnsim.sensitivity(CAUSAL, H100, calibration="mine.yaml"), "calibration is not for elasticities"),
        (lambda: attnsim.search_tiles(CAUSAL, load_gpu(H100), tile="64x64"), "tile is not for a search of tiles"),
        (lambda: attnsim.whatif(CAUSAL, H100, [{"sm.count": "2x"}], tile="64x64"), "tile is not for cases"),
    ],
)
def test_what_is_of_another_kind_is_refused_in_a_line(call: Callable[[], object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        call()


def test_a_gpu_file_is_a_path_as_well(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert main(["gpus", "new", str(path), "--from", "l4", "--set", "sm.count=2x"]) == 0
    assert load_gpu(path) == load_gpu(str(path))
    assert compare(CAUSAL, path, ["flash"])[0].time_s == predict(CAUSAL, path).time_s  # type: ignore[arg-type]


@pytest.mark.parametrize("passes", ["bwd", "fwd+bwd"])
def test_an_answer_says_where_another_library_answers_the_forward_pass_alone(passes: str) -> None:
    """Then fwd and bwd do not add up to fwd+bwd; nothing is said where one library is named or answers both."""

    def said(gpu: str, implementation: str | None = None) -> list[str]:
        w = Workload(1, 8, 1024, 64, passes=passes)
        reasons = predict(w, gpu, implementation=implementation, baseline=False).trust.reasons
        return [one.text for one in reasons if one.kind == "assumed" and "fwd alone" in one.text]

    forward = predict(Workload(1, 8, 1024, 64), "l4", baseline=False).implementation
    told = f"fwd alone is answered as {forward}: fwd and bwd by themselves do not add up to fwd+bwd"
    assert said("l4") == [told] and said("l4", implementation="flash-attn.2") == said("h100-sxm5-80gb") == []
