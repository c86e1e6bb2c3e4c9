"""Default mode == exact mode: small and large calls, single kernels and whole questions (benchmarks/cases.py)."""

from itertools import islice

import numpy as np
import pytest

from attnsim.simulator.players import executions
from benchmarks.cases import FAMILIES, SMALL, kernels, large, questions, small
from benchmarks.fast_exact import Outcome, compare, misses, scattered
from benchmarks.questions import A100, H100, Question

DISPATCHED = 6000
"""Thread blocks above which a call counts as large."""
DRAWN = 500_000
"""Segment executions that a kernel or a question may have here; the command goes to 40 million."""

CASES = [
    *(("small", case) for case in small()),
    *(("large", case) for case in large()),
    *(("kernel", case) for case in kernels(48, most=DRAWN)),
    *(("question", case) for _, case in islice(questions(4, DRAWN), 48)),
]
IDS = [f"{number:03} {kind} {case.family}" for number, (kind, case) in enumerate(CASES)]
KNOWN = {
    "flash-1: flash-attn.1, a100-sxm4-80gb, warm, batch 1, heads 16, seq 8192, head_dim 64, fp16, fwd, full": -0.0788
}
"""Misses that are known, and their size.

Blocks of FlashAttention-1 begin together with no wait of their own and read their rows of O at once: bursts that the
few SMs of a smaller grid even out (12 % too fast on 8 SMs, 1 on 16, 7 on 36).
"""
_outcomes: dict[int, Outcome] = {}


def outcome(number: int) -> Outcome:
    """Both modes of a case, played once a session whichever test asks first."""
    if number not in _outcomes:
        kind, case = CASES[number]
        found = compare(case, kind)
        _outcomes[number] = scattered(found) if found.off else found
    return _outcomes[number]


def of(kind: str) -> list[Question]:
    return [case for one, case in CASES if one == kind]


def test_the_cases_cover_every_algorithm_and_sizes_beyond_what_is_played_whole() -> None:
    assert [len(of(kind)) for kind in ("small", "large", "kernel", "question")] == [SMALL, 12, 48, 48]
    assert {case.family for case in of("small")} == set(FAMILIES)
    played = {kernel.name for _, case in CASES for kernel in case.schedule().kernels}
    assert {"combine", "cache_write", "flash1_fwd", "flash1_bwd", "flash_bwd", "softmax", "softmax bwd"} <= played
    for case in of("large"):
        assert max(kernel.blocks for kernel in case.schedule().kernels) > DISPATCHED, str(case)
    assert {str(case.workload.mask) for case in of("large")} == {"full", "causal", "causal window 1024"}
    assert any(case.workload.seq_q == 1 << 20 and case.workload.heads_q == 1 for case in of("large"))


def test_kernels_are_spread_evenly_over_their_sizes_and_over_gpus() -> None:
    sizes = [executions(case.schedule().kernels[0]) for case in of("kernel")]
    places = np.log(np.array(sizes) / 4500) / np.log(DRAWN / 4500)
    np.testing.assert_allclose(np.sort(places), (np.arange(48) + 0.5) / 48, atol=0.15)
    assert len({case.gpu.id for case in of("kernel")}) == 4
    assert len({(case.family, case.implementation) for case in of("kernel")}) == 48


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_default_mode_is_within_three_percent_of_exact_mode(number: int) -> None:
    found = outcome(number)
    said = f"{found}\n{found.details()}\nthe reference scatters by {100 * found.scatter:.2f} %"
    if str(found.case) in KNOWN:
        assert found.difference == pytest.approx(KNOWN[str(found.case)], rel=0.1), said
    else:
        assert not found.missed, said


def test_times_and_waiting_times_meet_their_targets() -> None:
    """Median, mean, 90th percentile and worst, of all but the known misses; with them all but the worst."""
    found = [outcome(number) for number in range(len(CASES))]
    assert misses([one for one in found if str(one.case) not in KNOWN]) == []
    assert {line.partition(":")[0] for line in misses(found)} <= {"difference, worst"}


@pytest.mark.parametrize("implementation", ["flash-attn.2", "flash-attn.3"])
def test_both_modes_count_the_same_traffic_and_work(implementation: str) -> None:
    gpu = A100 if implementation == "flash-attn.2" else H100
    case = next(case for _, case in CASES if case.implementation == implementation and case.gpu.id == gpu)
    for exact, fast in compare(case).kernels:
        assert exact.traffic == fast.traffic
        assert exact.units_s == fast.units_s
        assert (exact.blocks, exact.blocks_per_sm) == (fast.blocks, fast.blocks_per_sm)
        assert exact.waves == pytest.approx(fast.waves)
