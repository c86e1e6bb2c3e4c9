"""What work costs, worked by hand: each line of `unit_costs` on a GPU of round figures, and what stands on them.

A clock is 1,000 ps. A clock of an SM is 1,000 tensor FLOPs in fp16, 950 of them by wgmma and tcgen05 and half by
mma.sync, 20 exponentials, 100 FP32 instructions (200 FLOPs), 4 warp instructions, 50 integer instructions, 25 accesses,
125 bytes of shared memory and 250 of tensor memory. The L2 gives a byte a picosecond, HBM 0.8 of it.
"""

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnsim import Workload, load_gpu
from attnsim.api.comparing import ratios
from attnsim.api.playing import compute_time, step_waits
from attnsim.models.calibrations.components import Widths
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS, ImplementationNumbers, Numbers
from attnsim.models.hardware.clock_law import clock_law, clock_share, limit_felt, settled
from attnsim.models.implementations.registry import IMPLEMENTATIONS
from attnsim.models.schedule.instructions import StepCounts, nearest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule, TensorUse
from attnsim.simulator.memory import kept, traffic
from attnsim.simulator.program import HBM, L2, LATENCY, PORT, compile_kernel, compile_op
from attnsim.simulator.unit_costs import unit_costs

ROUND = load_gpu("h100-sxm5-80gb").with_values(
    {
        "clock.free": 1e9, "tensor.fp16": 1000, "tensor.mma_sync_fraction": 0.5, "sm.exp_rate": 20,
        "sm.fp32_rate": 200, "sm.issue_rate": 4, "sm.int32_rate": 50, "sm.load_store_rate": 25,
        "sm.shared_memory_bandwidth": 125, "tensor.memory_bandwidth": 250, "l2.bandwidth": 1e12, "l2.latency": 200,
        "hbm.bandwidth": 1e12, "hbm.achievable_fraction": 0.8, "hbm.latency": 500,
        "l2.capacity": 1000, "l2.partitions": 1,
    }
)  # fmt: skip
NUMBERS = Numbers(ImplementationNumbers(step_clks=150, block_clks=2000, write_clks=700, call_s=1e-3))
FIVE = replace(NUMBERS, implementation=replace(NUMBERS.implementation, back_clks=400))


def kernel(*ops: TileOp, blocks: int = 1, repeats: int = 1, **given: Any) -> Kernel:
    return Kernel(
        "paper", 128, 32, (Segment("turn", ops),), np.full((1, 1, 1), repeats, np.int64), (Launch.alike(blocks),),
        given.pop("uses", ()), **({"dtype": "fp16", "path": "wgmma"} | given),
    )  # fmt: skip


GEMM = TileOp("mma", "S", flops=1900)
READS = GEMM._replace(smem_bytes=250)
COUNTED = TileOp("vector", "P", issues=8, exps=20, fp32=100, int32=50, load_stores=25)


@pytest.mark.parametrize(
    ("op", "given", "busy"),
    [
        (GEMM, {}, 2000),  # 950 of 1,000 FLOPs a clock
        (GEMM, {"path": "tcgen05"}, 2000),
        (GEMM, {"path": "mma_sync"}, 3800),  # 500
        (GEMM, {"path": "simt"}, 1900),
        (GEMM, {"dtype": "fp32", "path": "simt"}, 9500),  # 200 FLOPs a clock of the FP32 lanes
        (GEMM, {"dtype": "fp32", "path": "mma_sync"}, 9500),  # no fraction of them is lost to mma.sync
        (GEMM, {"is_backward": True}, 2000),
        (READS, {}, 2000),  # 2 clocks of shared memory under 2 of FLOPs
        (READS, {"path": "mma_sync"}, 3800),
        (READS._replace(smem_bytes=1000), {}, 8000),  # 8 clocks of shared memory
        (READS._replace(issues=40), {"path": "mma_sync"}, 10_000),  # counted: 10 clocks of the schedulers
        (READS._replace(issues=2, load_stores=150), {"path": "mma_sync"}, 6000),  # 6 of the load/store units
        (TileOp("vector", "P", tmem_bytes=500), {}, 2000),
        (TileOp("vector", "P", exps=20), {}, 1000),
        (TileOp("vector", "P", fp32=100), {}, 1000),
        (TileOp("vector", "P", scores=1000), {}, 0),  # no instruction but those that are named
        (TileOp("vector", "P", exps=20, fp32=100, scores=10), {}, 2000),  # one after the other
        (TileOp("vector", "P", int32=50), {}, 1000),
        (TileOp("vector", "P", load_stores=25, int32=50), {}, 2000),
        (TileOp("vector", "P", exps=20, smem_bytes=500), {}, 4000),
        (COUNTED, {}, 2000),  # counted: the busiest pipe
        (COUNTED._replace(load_stores=75), {}, 3000),
        (COUNTED._replace(tmem_bytes=1000), {"path": "tcgen05"}, 4000),
        (TileOp("vector", "P", issues=1, scores=1000, exps=20, fp32=200), {}, 2000),
        (TileOp("delay", clks=3), {}, 3000),
        (TileOp("delay", "step", clks=3), {}, 3000),  # the name of a tensor is no wait
        (TileOp("delay", waits="step"), {}, 150_000),
        (TileOp("delay", waits="step", share=0.5), {}, 150_000),
        (TileOp("delay", waits="step"), {"is_backward": True}, 150_000),  # none of its own
        (TileOp("delay", waits="block", share=0.5), {}, 500_000),  # half of half of 2,000 clocks
        (TileOp("delay", waits="write", clks=3), {}, 703_000),
    ],
)  # fmt: skip
def test_an_operation_holds_its_unit_for_so_many_picoseconds(op: TileOp, given: dict[str, Any], busy: int) -> None:
    work = kernel(op, **given)
    assert compile_op(op, unit_costs(work, ROUND, NUMBERS), 0)[2] == busy
    # A build of twice the speed halves the work of SMs.
    faster = compile_op(op, unit_costs(work, ROUND, replace(NUMBERS, speed=2.0)), 0)[2]
    assert faster == busy // 2


def test_a_backward_step_waits_for_its_own_latency() -> None:
    for given, waits in (({}, 150_000), ({"is_backward": True}, 400_000)):
        assert unit_costs(kernel(GEMM, **given), ROUND, FIVE).step == waits
    none = replace(FIVE, implementation=replace(FIVE.implementation, back_clks=0.0))
    assert unit_costs(kernel(GEMM, is_backward=True), ROUND, none).step == 0


@pytest.mark.parametrize(
    ("op", "path", "other"),
    [
        (GEMM, "mma_sync", 1824),  # 0.48 of 3,800
        (GEMM, "wgmma", 0),
        (GEMM, "tcgen05", 0),
        (GEMM, "simt", 0),
        (TileOp("vector", "P", exps=20), "mma_sync", 480),
        (COUNTED, "mma_sync", 1920),  # of counted work the sum, 4,000
        (COUNTED, "wgmma", 0),
        (TileOp("vector", "P", exps=20, smem_bytes=500), "mma_sync", 1920),  # of what its slowest pipe takes
    ],
)
def test_products_of_mma_sync_stall_vector_work_and_the_other_way_round(op: TileOp, path: str, other: int) -> None:
    assert compile_op(op, unit_costs(kernel(op, path=path), ROUND, NUMBERS), 0)[3] == other


def test_counted_kernels_hold_the_schedulers() -> None:
    for op, path, costs in (
        (READS._replace(issues=2), "mma_sync", (3800, 1824, 500)),
        (COUNTED, "wgmma", (2000, 0, 2000)),
    ):
        assert compile_op(op, unit_costs(kernel(op, path=path), ROUND, NUMBERS), 0)[2:] == costs


@pytest.mark.parametrize(
    ("op", "path", "longer"),
    [
        (COUNTED, "wgmma", 2000),  # 4,000 of four pipes in turn, 2,000 of them under the schedulers'
        (COUNTED, "tcgen05", 2000),
        (COUNTED._replace(issues=1), "wgmma", 3000),  # the busiest pipe is one of the four
        (COUNTED._replace(load_stores=75), "wgmma", 3000),  # 6,000 and 3,000
        (COUNTED._replace(tmem_bytes=750), "tcgen05", 1000),  # 4,000 and 3,000 of tensor memory
        (COUNTED._replace(tmem_bytes=2500), "tcgen05", 0),
        (TileOp("vector", "P", issues=8, exps=20), "wgmma", 0),
        (TileOp("vector", "P", exps=20, fp32=100), "wgmma", 0),  # uncounted: it holds the unit for all of it
        (COUNTED, "mma_sync", 0),
        (COUNTED, "simt", 0),
        (READS._replace(issues=2, load_stores=150), "wgmma", 0),  # a product has none
        (TileOp("delay", waits="step"), "wgmma", 0),
    ],
)
def test_a_warps_counted_vector_work_lasts_as_long_as_its_pipes_in_turn(op: TileOp, path: str, longer: int) -> None:
    work = kernel(op, path=path)
    found = compile_kernel(work, unit_costs(work, ROUND, NUMBERS), {})
    busy = int(found.table[0, 2])
    assert found.table[0, LATENCY] == longer
    # The warpgroup waits for it, no unit is held for it, and a longer latency of loads is none of it.
    assert found.work().tolist() == [busy + longer]
    assert found.unit_times()[:, 1].tolist() == [busy if op.kind == "vector" else found.unit_times()[0, 1]]
    assert found.delayed(3.0).table[0, LATENCY] == longer
    faster = compile_kernel(work, unit_costs(work, ROUND, replace(NUMBERS, speed=2.0)), {})
    assert faster.table[0, LATENCY] == longer // 2


@pytest.mark.parametrize(
    ("given", "numbers", "costs"),
    [
        # 640 bytes: 10 clocks of the port; 1 ps a byte of the L2; 1.25 ps of HBM at 0.8 of it.
        ({}, NUMBERS, (10_000, 640, 800, 500_000)),
        ({"multicast": 2}, NUMBERS, (10_000, 320, 800, 500_000)),
        ({"in_flight_bytes": 320}, NUMBERS, (10_000, 640, 800, 1_400_000)),  # twice 200 and 500 clocks
        ({}, replace(NUMBERS, speed=2.0), (10_000, 640, 800, 500_000)),
        ({"is_backward": True}, FIVE, (10_000, 640, 800, 500_000)),
    ],
)
def test_a_copy_takes_its_port_the_l2_and_hbm(given: dict[str, Any], numbers: Numbers, costs: tuple[int, ...]) -> None:
    work = kernel(TileOp("load", "K", bytes=640), **given)
    row = compile_kernel(work, unit_costs(work, ROUND, numbers), {(False, "K"): 1.0}).table[0]
    assert tuple(row[[PORT, L2, HBM, LATENCY]]) == costs
    hit = compile_kernel(work, unit_costs(work, ROUND, numbers), {(False, "K"): 0.0}).table[0]
    assert (hit[HBM], hit[LATENCY]) == (0, 200_000 * (4 if given.get("in_flight_bytes") else 1))


@pytest.mark.parametrize(("share", "busy"), [(1.0, 640), (0.5, 1280)])
def test_a_write_holds_the_l2_for_longer_by_what_writes_reach_of_its_bandwidth(share: float, busy: int) -> None:
    load, store = TileOp("load", "K", bytes=640), TileOp("store", "O", bytes=640)
    work = kernel(load, store, multicast=2)
    found = compile_kernel(work, unit_costs(work, ROUND.with_values({"l2.write_share": share}), NUMBERS), {})
    assert found.table[:, [PORT, L2]].tolist() == [[10_000, 320], [10_000, busy]]  # no cluster shares a write


@pytest.mark.parametrize(
    ("share", "costs"), [("l2_share", ("l2", "l2_write")), ("hbm_share", ("hbm",)), ("tensor_share", ("tensor",))]
)
def test_a_share_of_a_rate_lengthens_what_the_rate_serves_and_nothing_else(share: str, costs: tuple[str, ...]) -> None:
    whole = unit_costs(kernel(GEMM), ROUND, NUMBERS)
    half = unit_costs(kernel(GEMM), ROUND, replace(NUMBERS, **{share: 0.5}))  # type: ignore[arg-type]
    assert half == replace(whole, **{cost: 2 * getattr(whole, cost) for cost in costs})


def test_numbers_are_at_most_five_and_all_of_them_times() -> None:
    assert 0 < len(IMPLEMENTATION_NUMBERS) <= 5
    assert {number.unit for number in IMPLEMENTATION_NUMBERS.values()} <= {"clk", "s"}
    assert all(
        name.endswith(f"_{number.unit}{'s' * (number.unit == 'clk')}")
        for name, number in IMPLEMENTATION_NUMBERS.items()
    )
    assert {one.name for one in fields(ImplementationNumbers)} == {*IMPLEMENTATION_NUMBERS}
    # No wait is an advantage: from none on.
    assert all(number.low == 0 < number.prior < number.high for number in IMPLEMENTATION_NUMBERS.values())


@pytest.mark.parametrize("path", ["mma_sync", "wgmma", "tcgen05", "simt"])
@pytest.mark.parametrize("is_backward", [False, True])
def test_no_number_multiplies_a_rate(path: str, is_backward: bool) -> None:
    """Whatever the waits, all other costs are the chip's, and a product takes its FLOPs over the rate of its path."""
    bounds = {}
    for end in ("low", "high"):
        every = {name: getattr(number, end) for name, number in IMPLEMENTATION_NUMBERS.items()}
        work = kernel(GEMM, path=path, is_backward=is_backward)
        bounds[end] = unit_costs(work, ROUND, Numbers(ImplementationNumbers(**every)))
        rate = 1000 * {"mma_sync": 0.5, "simt": 1.0}.get(path, 0.95)
        assert compile_op(GEMM, bounds[end], 0)[2] == 1000 * GEMM.flops / rate
    assert replace(bounds["high"], step=0.0, block=0.0, write=0.0) == bounds["low"]
    assert min(bounds["high"].step, bounds["high"].block, bounds["high"].write) > 0


@pytest.mark.parametrize(
    ("footprint", "share"), [(500, 1.0), (600, 1.0), (800, 0.75), (1000, 0.5), (1200, 0.25), (1400, 0.0)]
)
def test_the_l2_keeps_all_up_to_three_fifths_and_nothing_from_seven_fifths_of_its_capacity(
    footprint: float, share: float
) -> None:
    assert kept(footprint, 1000) == pytest.approx(share)


@pytest.mark.parametrize(
    ("gpu", "hbm"),
    [
        # 8 blocks read 1,000 bytes, 2 at a time: once, and three times more where the L2 lost half.
        (ROUND, 1000 + 3 * 500),
        (ROUND.with_values({"l2.partitions": 2}), 4000),  # 0.6 of the L2 keeps nothing
        (ROUND.with_values({"l2.capacity": 2000, "l2.partitions": 2}), 1000 + 3 * (1000 / 1.2 - 600) / 0.8),
        (ROUND.with_values({"l2.capacity": 2000}), 1000),
    ],
)
def test_what_several_waves_read_is_fetched_again_where_the_l2_lost_it(gpu: Any, hbm: float) -> None:
    shared = TensorUse("K", 1000, (1, 8))
    ((row,),) = traffic((kernel(TileOp("load", "K", bytes=1000), blocks=8, uses=(shared,)),), (2,), gpu, False)
    assert row.l2_bytes == 8000 and row.hbm_bytes == pytest.approx(hbm)


def test_the_clock_is_that_at_which_work_draws_what_the_limit_leaves() -> None:
    # At half the clock: 400 J x 0.5 in 2 s are 100 W; with 100 J of memory and a second that no clock changes,
    # 300 J in 3 s.
    assert clock_share(1.0, 0.0, 400.0, 0.0, 100.0) == pytest.approx(0.5)
    assert clock_share(1.0, 1.0, 400.0, 100.0, 100.0) == pytest.approx(0.5)
    assert clock_share(1.0, 0.0, 90.0, 0.0, 100.0) == 1.0
    # Between 1 and 10 ms a limit is felt by the logarithm: half of it at the root of ten.
    assert limit_felt(np.array([1e-3, 10**-2.5, 1e-2]), 1e-3, 1e-2) == pytest.approx([0.0, 0.5, 1.0])
    # 1,600 J of a second allow a quarter of the clock; half felt, its root. 0.22 of 700 W are static.
    share = settled((1.0, 0.0), lambda at: (1 / at, 0.0 * at), 1600.0, 0.0, 100.0, 0.5, 0.1)
    assert share == pytest.approx(0.5) and clock_law(load_gpu("h100-sxm5-80gb")).static_w == pytest.approx(154)


def test_widths_of_machines_and_of_kernels_add_as_a_right_angle(monkeypatch: pytest.MonkeyPatch) -> None:
    sds = Widths(1.0, 0.0, {"machines": 0.3, "change": 0.0, "pass": 0.4})
    monkeypatch.setattr(ratios, "ratio_widths", lambda: sds)
    monkeypatch.setattr(ratios, "widths", lambda: sds)
    trust = SimpleNamespace(components={"within": 0.1})

    def timed(time_s: float, gpu: str, tile: str, tiles: str) -> Any:
        machine = SimpleNamespace(id=gpu, architecture="z", changes=())
        question = SimpleNamespace(call=1, gpu=machine)
        chosen, schedule = SimpleNamespace(calibration=None), SimpleNamespace(tile_text=tile)
        run = SimpleNamespace(question=question, chosen=chosen, schedule=schedule)
        return SimpleNamespace(time_s=time_s, units_s={}, tiles=tiles, trust=trust, run=run)

    base, other = timed(3.0, "x", "1", "shipped"), timed(1.5, "y", "2", "retuned")
    found = ratios.speedup(base, other)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 * math.exp(-0.5), 2 * math.exp(0.5)))


@pytest.mark.parametrize(
    ("groups", "step", "stall", "own_path", "time"),
    [
        # (800 + half of 200) over 2 SMs are 450; 2.5 waves last as 3.
        (4, 150, 0.5, 0.0, (450 + 50) * 1.2),
        (1, 150, 0.5, 0.0, (450 + 150 + 50) * 1.2),
        (4, 400, 0.5, 0.0, (450 / 4 + 400 + 50) * 1.2),
        # Beside products: 400 of S, then 200 of all pipes, once or three times; no less than the 800 of all products.
        (1, 150, 0.0, 1.0, (400 + 150 + 50) * 1.2),
        (1, 150, 0.0, 3.0, (500 + 150 + 50) * 1.2),
    ],
)
def test_an_estimate_is_the_busiest_unit_or_a_warpgroups_latency(
    groups: int, step: int, stall: float, own_path: float, time: float
) -> None:
    found = compute_time(
        800, 400, 200, interference=stall, own_path=own_path, sms=2, groups=groups, step=step, block=50, waves=2.5,
        even=False,
    )  # fmt: skip
    assert found == pytest.approx(time)


def test_steps_are_waited_for_by_every_block_in_every_turn() -> None:
    delays = *(TileOp("delay", waits=one) for one in ("step", "block", "step", "write")), TileOp("delay", "step")
    assert step_waits(kernel(*delays, blocks=4, repeats=3)) == 2 * 3 * 4


def test_a_loop_nest_shows_the_turn_in_the_middle_of_an_outer_loop() -> None:
    """Of four turns the third, where the second segment runs five times; without an outer loop there is none."""
    repeats = np.array([[[1, 2], [1, 3], [1, 5], [1, 7]]], np.int64)
    segments = Segment("keys", (GEMM,)), Segment("rows", (GEMM,))
    outer = replace(kernel(GEMM), segments=segments, repeats=repeats)
    assert outer.turns.tolist() == [[4, 17]] and outer.total("flops") == 21 * 1900
    assert replace(outer, repeats=repeats[:, 1:3]).total("flops") == 10 * 1900
    printed = str(Schedule("flash", "paper", (outer,), "tile", 0))
    assert "for outer in range(4):" in printed and "for rows in range(5):" in printed
    assert "outer" not in str(Schedule("flash", "paper", (kernel(GEMM),), "tile", 0))


def test_threads_that_multiply_by_themselves_are_charged_for_their_loads() -> None:
    """16 vectors of 8 elements a key: 3 accesses each, and of K four shuffles that sum over the 16 lanes of a key."""
    w = Workload(4, 64, 1, 128, seq_kv=1024, passes="decode", dtype="fp16")
    (masked,) = IMPLEMENTATIONS["tensorrt-llm.attention"].build(w, load_gpu("h100-sxm5-80gb"), None).kernels
    assert masked.total("load_stores") == 4 * 64 * 1024 * 16 * (3 + 4 + 3)


def test_counts_of_machine_code_are_shared_out_by_scores() -> None:
    """Of 10 scores a warp and step; a mask is 2 instructions a score where nobody counted, else 3 of every warp."""
    step = StepCounts(scores=10, rescaled=4, issued=100, fp32=20, integer=30, load_store=5)
    assert step.hiding(20, 2) == 40 and replace(step, masked=3).hiding(20, 2) == 2 * 32 * 3
    # Two warps; of the 8 elements of O that they would rescale 5 are not, each an instruction of a lane.
    assert step.softmax(20, 7, 3, 64)[6:12] == (
        20,
        7,
        2 * 32 * 20 - 5,
        2 * 32 * 30 + 64,
        2 * 32 * 5,
        200 + round(59 / 32),
    )
    assert [nearest((90, 80), capability) for capability in (75, 80, 89, 90, 120)] == [80, 80, 80, 90, 90]
