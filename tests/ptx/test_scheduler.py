"""A scheduler's warps on machine code whose clocks can be added up by hand."""

from __future__ import annotations

import pytest

from attnsim.kernels.lift.machine import clocks
from attnsim.models.hardware.files import load_gpu
from attnsim.ptx.machine_code import Instruction, pipe_of
from attnsim.ptx.scheduler import FIXED, LATENCIES, READ, Iteration, simulated_iteration

A100, H100 = clocks(80), clocks(90)


def one(
    name: str, stall: int = 1, *, sets: int | None = None, reads: int | None = None, waits: tuple[int, ...] = ()
) -> Instruction:
    return Instruction(0, name, pipe_of(name), False, False, None, stall, sets, reads, waits)


def total(iteration: Iteration) -> float:
    return iteration.products + iteration.others


def test_pipes_are_those_of_the_gpus() -> None:
    """A quarter of an SM's for each scheduler."""
    for costs, name in ((A100, "a100-sxm4-80gb"), (H100, "h100-sxm5-80gb")):
        gpu = load_gpu(name)
        assert costs["exp"] == 4 * 32 / gpu.sm.exp_per_clk
        assert costs["fp32"] == 4 * 32 / (gpu.sm.fp32_flops_per_clk / 2)
        assert costs["integer"] == 4 * 32 / gpu.sm.int32_per_clk
        assert costs["matrix_load"] == 4 * 512 / gpu.sm.shared_memory_bytes_per_clk
        assert costs["mma latency"] == gpu.tensor.mma_latency_clk
        rate = gpu.tensor_flops_per_clk("fp16")
        reached = rate if costs is A100 else rate * gpu.tensor.mma_sync_fraction
        assert costs["tensor"] == pytest.approx(4 * 4096 / reached, rel=1e-3)


def test_products_that_wait_for_nothing_hold_their_pipe() -> None:
    for warps in (1, 2, 3):
        iteration = simulated_iteration([one("HMMA", 8)] * 16, warps, A100)
        assert iteration.held == 16 * 8 * warps and iteration.others == iteration.held_by_others == 0
        assert iteration.products == pytest.approx(iteration.held, rel=0.02)  # one warp is ahead where the others begin


def test_one_warp_waits_for_its_fragments_and_two_wait_less() -> None:
    """The scoreboard of an ldmatrix is free when the last of its bytes are there."""
    step = [one("LDSM", 6, sets=0), one("HMMA", 8, waits=(0,))]
    fragments = A100["matrix_load"] + A100["shared memory latency"] - 1
    alone = simulated_iteration(step, 1, A100)
    assert total(alone) == alone.products == fragments + 8
    assert alone.held == A100["matrix_load"] and alone.products_wait == fragments + 8 - A100["matrix_load"]
    pair = simulated_iteration(step, 2, A100)
    assert 2 * A100["matrix_load"] <= total(pair) < 1.6 * total(alone)


@pytest.mark.parametrize("name", ["MUFU", "SHFL", "LDL"])
def test_results_are_there_after_a_latency(name: str) -> None:
    """And read operands before."""
    held = A100[pipe_of(name)]
    iteration = simulated_iteration([one(name, sets=1), one("FADD", waits=(1,))], 1, A100)
    assert total(iteration) == held + LATENCIES[name] - 1 + 1
    iteration = simulated_iteration([one(name, reads=1), one("FADD", waits=(1,))], 1, A100)
    assert total(iteration) == max(READ + 1, held)
    iteration = simulated_iteration([one("IMAD", 1, sets=1), one("FADD", waits=(1,))], 1, A100)
    assert total(iteration) == A100["fp32"] + FIXED - 1 + A100["fp32"]


def test_stall_counts_are_waited_for_and_other_warps_issue_meanwhile() -> None:
    step = [one("IADD3", 6)] * 10
    assert total(simulated_iteration(step, 1, H100)) == 60
    assert total(simulated_iteration(step, 3, H100)) == 60
    assert total(simulated_iteration(step, 4, H100)) == pytest.approx(80, abs=2)
    assert simulated_iteration(step, 1, H100).others_wait == 40


def test_what_a_schedule_has_apart_takes_no_time() -> None:
    """Copies, and products of wgmma, which are no products here."""
    for name in ("LDG", "LDGSTS", "HGMMA"):
        assert simulated_iteration([one(name, sets=2), one("FADD", waits=(2,))], 1, H100) == Iteration(
            0.0, 2.0, 0.0, 2.0
        )


def test_warps_meet_at_barriers() -> None:
    """While one works the others wait: neither hides what both do at once."""
    work = [one("MUFU", 1, sets=0), one("FADD", waits=(0,))] * 4
    apart, together = (simulated_iteration([one(name), *work, one("NOP", 15)], 2, A100) for name in ("NOP", "BAR"))
    assert total(together) >= total(apart)
    for name in ("NOP", "BAR"):
        assert total(simulated_iteration([one(name), *work], 1, A100)) == total(
            simulated_iteration([one("NOP"), *work], 1, A100)
        )
