"""Default mode == exact mode: 60 small cases over every algorithm, 12 large ones (see benchmarks/fast_exact.py)."""

import pytest

from attnsim.models.hardware.files import load_gpu
from benchmarks.fast_exact import (
    DISPATCHED,
    FAMILIES,
    LARGE,
    SMALL,
    TARGETS,
    Case,
    Outcome,
    compare,
    large_cases,
    small_cases,
    summary,
)

CASES = [*small_cases(), *large_cases()]
IDS = [f"{number:02} {case.family}" for number, case in enumerate(CASES)]
_outcomes: dict[int, Outcome] = {}


def outcome(number: int) -> Outcome:
    """Both modes of a case, played once a session whichever test asks first."""
    if number not in _outcomes:
        _outcomes[number] = compare(CASES[number])
    return _outcomes[number]


def test_the_cases_cover_every_algorithm_and_the_extension() -> None:
    assert len(CASES) == SMALL + LARGE == 72
    small, large = CASES[:SMALL], CASES[SMALL:]
    assert {case.family for case in small} == set(FAMILIES)
    names = [{kernel.name for kernel in case.schedule().kernels} for case in CASES]
    played = set().union(*names)
    assert {"combine", "cache_write", "flash1_fwd", "flash1_bwd", "flash_bwd", "softmax", "softmax bwd"} <= played
    for case in large:
        main = max(case.schedule().kernels, key=lambda kernel: kernel.total("flops"))
        slowest = max(case.schedule().kernels, key=lambda kernel: kernel.blocks)
        assert max(main.blocks, slowest.blocks) > DISPATCHED, str(case)
    masks = {str(case.workload.mask) for case in large}
    assert {"full", "causal", "causal window 1024"} <= masks
    assert any(case.workload.seq_q == 1 << 20 and case.workload.heads_q == 1 for case in large)


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_default_mode_is_within_three_percent_of_exact_mode(number: int) -> None:
    found = outcome(number)
    assert abs(found.difference) <= TARGETS["worst"], f"{found}\n{found.details()}"


def test_the_median_difference_is_within_one_percent() -> None:
    median, _ = summary([outcome(number) for number in range(SMALL + LARGE)])
    assert median <= TARGETS["median"]


@pytest.mark.parametrize("implementation", ["flash-attn.2", "flash-attn.3"])
def test_both_modes_count_the_same_traffic_and_work(implementation: str) -> None:
    gpu = "a100-sxm4-80gb" if implementation == "flash-attn.2" else "h100-sxm5-80gb"
    case = next(case for case in CASES if case.implementation == implementation and case.gpu == gpu)
    assert load_gpu(case.gpu).id == gpu
    for exact, fast in compare(Case("", implementation, gpu, case.workload)).kernels:
        assert exact.traffic == fast.traffic
        assert exact.units_s == fast.units_s
        assert (exact.blocks, exact.blocks_per_sm) == (fast.blocks, fast.blocks_per_sm)
        assert exact.waves == pytest.approx(fast.waves)
