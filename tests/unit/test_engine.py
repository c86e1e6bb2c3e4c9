"""The replay engine on kernels small enough to time on paper, in whole picoseconds.

One byte costs 3 ps on its SM's port, 1 ps on the L2 and 2 ps on HBM; a load's latency is 1,000 ps from the L2 and
5,000 ps from HBM; a tensor FLOP, an exponential and an FP32 instruction cost 1 ps each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, renamed
from attnsim.simulator.engine import play
from attnsim.simulator.grid import grid_time
from attnsim.simulator.program import Played, compile_kernel
from attnsim.simulator.unit_costs import UnitCosts

PAPER = UnitCosts(
    clk=1000.0,
    tensor=1.0,
    pipes={"smem_bytes": 1.0},
    exp=1.0,
    fp32=1.0,
    issue=1.0,
    int32=1.0,
    load_store=1.0,
    l2=1.0,
    l2_write=1.0,
    hbm=2.0,
    port_byte=3.0,
    l2_latency=1000.0,
    hbm_latency=5000.0,
    stall=0.0,
    own_path=False,
    step=150.0,
    block=500.0,
    write=70.0,
)
LOAD, WAIT = TileOp("load", "K", bytes=100), TileOp("wait", "K")
MMA = TileOp("mma", "S", flops=1000)
SOFTMAX = TileOp("vector", "P", exps=400)
HITS = {(False, "K"): 0.0, (True, "O"): 0.0}
MISSES = {(False, "K"): 1.0, (True, "O"): 1.0}


def kernel(*ops: TileOp, repeats: int = 1, blocks: int = 1, warpgroups: int = 1) -> Kernel:
    """A kernel of one segment, run `repeats` times by each of `blocks` blocks."""
    return Kernel(
        name="paper",
        threads=128,
        registers_per_thread=32,
        segments=(Segment("turn", ops),),
        repeats=np.full((1, 1, 1), repeats, dtype=np.int64),
        launches=(Launch(np.zeros(1, np.int64), blocks),),
        uses=(),
        warpgroups=warpgroups,
    )


def played(
    work: Kernel,
    *,
    sms: int = 1,
    resident: int = 1,
    misses: Mapping[tuple[bool, str], float] = HITS,
    costs: UnitCosts = PAPER,
    sharers: float = 1.0,
) -> Played:
    program = compile_kernel(work, costs, misses).shared_by(sharers)
    return play(program, sms, resident, iter([program.block(work.runs(0))] * work.blocks))


@pytest.mark.parametrize(
    ("miss", "landing"), [(0.0, 300 + 1000), (0.5, 300 + 3000), (1.0, 300 + 5000)], ids=["L2", "half", "HBM"]
)
def test_a_load_takes_its_port_then_its_latency(miss: float, landing: int) -> None:
    seen = played(kernel(LOAD, WAIT), misses={(False, "K"): miss})
    assert seen.time == seen.waited == landing
    assert seen.loaded == (100,)


def test_two_loads_in_flight_share_the_latency() -> None:
    assert played(kernel(LOAD, LOAD, WAIT, WAIT)).time == 600 + 1000
    assert played(kernel(LOAD, WAIT, repeats=2)).time == 2 * (300 + 1000)


def test_a_load_through_registers_waits_again_for_each_part_in_flight() -> None:
    few = replace(kernel(LOAD, WAIT), in_flight_bytes=25)  # four times a look-up in the L2 and HBM's latency
    assert played(few, misses=MISSES).time == 300 + 4 * (1000 + 5000)
    assert played(replace(few, in_flight_bytes=200)).time == 300 + 1000 + 1000


def test_work_between_load_and_wait_hides_the_latency() -> None:
    assert played(kernel(LOAD, MMA._replace(flops=1200), WAIT)).waited == 100
    assert played(kernel(LOAD, MMA._replace(flops=1300), WAIT)).waited == 0
    assert played(kernel(LOAD, MMA._replace(flops=1300), WAIT)).time == 1300


def test_the_slowest_level_holds_up_a_transfer() -> None:
    slow_l2 = replace(PAPER, l2=7.0)
    slow_hbm = replace(PAPER, hbm=11.0)
    assert played(kernel(LOAD, WAIT), costs=slow_l2).time == 700 + 1000
    assert played(kernel(LOAD, WAIT), costs=slow_hbm, misses=MISSES).time == 1100 + 5000


def test_sms_queue_for_the_l2_and_not_for_their_own_ports() -> None:
    assert played(kernel(LOAD, WAIT, blocks=2), sms=2).time == 300 + 1000
    slow = replace(PAPER, l2=5.0)
    assert played(kernel(LOAD, WAIT, blocks=2), sms=2, costs=slow).time == 2 * 500 + 1000


def test_one_sm_that_stands_for_two_is_the_last_served_of_the_first_burst() -> None:
    slow = replace(PAPER, l2=5.0)
    pair = played(kernel(LOAD, WAIT, blocks=2), sms=2, costs=slow)
    stand_in = played(kernel(LOAD, WAIT), costs=slow, sharers=2.0)
    assert stand_in.time == pair.time == 2000


def test_two_blocks_of_an_sm_share_its_tensor_unit() -> None:
    assert played(kernel(MMA)).time == 1000
    assert played(kernel(MMA, blocks=2), resident=2).time == 2000
    assert played(kernel(MMA, blocks=2), sms=2).time == 1000


def test_softmax_of_one_block_runs_under_the_gemm_of_the_other() -> None:
    assert played(kernel(MMA, SOFTMAX)).time == 1400
    # first block: MMA 0 to 1000, softmax to 1400; second: MMA 1000 to 2000, softmax to 2400
    two = played(kernel(MMA, SOFTMAX, blocks=2), resident=2)
    assert two.ends.tolist() == [1400, 2400]


def test_a_stall_takes_the_other_unit_away() -> None:
    half = replace(PAPER, stall=0.5)
    # the second block books its MMA at 0, for 1000 to 2000, and with it 500 ps of vector time from then on; the first
    # softmax, at 1000, finds that time long gone; the second softmax follows its own MMA
    assert played(kernel(MMA, SOFTMAX, blocks=2), resident=2, costs=half).ends.tolist() == [1400, 2400]


def test_an_asynchronous_mma_overlaps_vector_work() -> None:
    issue, done = TileOp("mma_async", "S", flops=1000), TileOp("mma_wait", "S")
    longer = SOFTMAX._replace(exps=700)
    assert played(kernel(issue, longer, done)).time == 1000
    assert played(kernel(issue, SOFTMAX._replace(exps=1700), done)).time == 1700
    assert played(kernel(MMA, longer)).time == 1700
    # where a product stalls vector work for half of it the vector unit starts 500 ps late
    assert played(kernel(issue, longer, done), costs=replace(PAPER, stall=0.5)).time == 1200


def test_a_warpgroups_own_path_goes_on_while_another_warpgroup_has_the_unit() -> None:
    """400 ps of exponentials and 300 of FP32 hold the unit for 400, as counted; the warpgroup goes on at 700."""
    counted, beside = TileOp("vector", "P", exps=400, fp32=300, issues=1), replace(PAPER, own_path=True)
    assert played(kernel(counted)).time == 400
    assert played(kernel(counted), costs=beside).time == 700
    assert played(kernel(counted, blocks=2), resident=2, costs=beside).ends.tolist() == [700, 400 + 700]
    # An MMA is issued once the softmax is done, and the next softmax of the other block runs under it.
    two = played(kernel(counted, MMA, blocks=2), resident=2, costs=beside)
    assert two.ends.tolist() == [1700, 2700]
    assert played(kernel(counted, repeats=3), costs=beside).time == 3 * 700


def test_asynchronous_mmas_end_in_the_order_of_their_issue() -> None:
    issue, done = TileOp("mma_async", "S", flops=1000), TileOp("mma_wait", "S")
    assert played(kernel(issue, issue, done, SOFTMAX, done)).time == 2000
    assert played(kernel(issue, issue, done, done, SOFTMAX)).time == 2400


def test_the_last_of_two_warpgroups_issues_a_load_for_both() -> None:
    ops = (TileOp("vector", "P", exps=1000), LOAD, WAIT)
    assert played(kernel(*ops)).time == 1000 + 300 + 1000
    both = played(kernel(*ops, warpgroups=2))
    # vector work 0 to 1000 and 1000 to 2000; the buffer is free at 2000
    assert both.time == 2000 + 300 + 1000
    assert both.loaded == (0, 100)
    assert both.waited == (3300 - 1000) + (3300 - 2000)


def test_two_warpgroups_store_once() -> None:
    store = TileOp("store", "O", bytes=50)
    seen = played(kernel(store, warpgroups=2))
    assert (seen.loaded, seen.stored) == ((0,), (50,))
    assert seen.time == 150


def test_a_kernel_ends_when_its_last_byte_is_stored() -> None:
    seen = played(kernel(SOFTMAX, TileOp("store", "O", bytes=1000)))
    assert seen.ends.tolist() == [400]
    assert seen.time == 400 + 3000
    slow = replace(PAPER, hbm=9.0)
    missed = played(kernel(SOFTMAX, TileOp("store", "O", bytes=1000)), misses=MISSES, costs=slow)
    assert missed.time == 400 + 9000


def test_stores_delay_the_loads_behind_them() -> None:
    ops = (TileOp("store", "O", bytes=1000), LOAD, WAIT)
    assert played(kernel(*ops)).time == 3000 + 300 + 1000


def test_a_persistent_block_prefetches_its_successor() -> None:
    work, ahead = MMA._replace(flops=2000), TileOp("prefetch")
    one_by_one = played(kernel(LOAD, WAIT, work, blocks=2))
    assert one_by_one.ends.tolist() == [3300, 6600]
    # the second block's load is issued at 1300 and lands at 2600, under the MMA that ends at 3300
    prefetched = played(kernel(LOAD, WAIT, ahead, work, blocks=2))
    assert prefetched.ends.tolist() == [3300, 5300]
    assert prefetched.loaded == (200, 0, 0)


def test_delays_say_which_fitted_latency_they_wait_for() -> None:
    assert played(kernel(TileOp("delay", waits="step"))).time == 150
    assert played(kernel(TileOp("delay", waits="block"))).time == 250  # half at the block's start, half at its end
    assert played(kernel(TileOp("delay", waits="write"))).time == 70
    assert played(kernel(TileOp("delay", clks=3))).time == 3000
    assert played(kernel(TileOp("delay", "step", clks=3, waits="write"))).time == 3070


def test_an_mma_costs_its_flops_or_its_operand_reads() -> None:
    reads = MMA._replace(smem_bytes=600)
    assert played(kernel(reads)).time == 1000
    assert played(kernel(reads), costs=replace(PAPER, pipes={"smem_bytes": 2.0})).time == 1200


def test_softmax_costs_exponentials_and_instructions() -> None:
    """One after another where nobody counted them; a score has none beside those that are named."""
    assert played(kernel(TileOp("vector", "P", scores=100, exps=110, fp32=30, int32=7))).time == 147


def test_blocks_are_handed_out_breadth_first() -> None:
    assert played(kernel(MMA, blocks=3), sms=2, resident=2).ends.tolist() == [1000, 1000, 2000]
    assert played(kernel(MMA, blocks=3), sms=3, resident=2).time == 1000


@pytest.mark.parametrize(("blocks", "waves"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_grid_runs_in_waves(blocks: int, waves: int) -> None:
    work = kernel(MMA, blocks=blocks)
    grid = grid_time(work, compile_kernel(work, PAPER, HITS), 4, 1)
    assert grid.time_ps == 1000 * waves
    assert grid.waves == blocks / 4


def test_longer_blocks_first_leave_no_tail() -> None:
    def time(order: Sequence[int]) -> int:
        work = replace(
            kernel(MMA),
            repeats=np.array([[[1]], [[3]]], dtype=np.int64),
            launches=(Launch(np.array(order, dtype=np.int64)),),
        )
        return int(grid_time(work, compile_kernel(work, PAPER, HITS), 2, 1).time_ps)

    assert time([1, 0, 0, 0]) == 3000
    assert time([0, 0, 0, 1]) == 4000


def test_the_same_play_twice_is_the_same() -> None:
    work = kernel(LOAD, WAIT, MMA, SOFTMAX, TileOp("store", "O", bytes=64), repeats=5, blocks=13, warpgroups=2)
    one, other = (played(work, sms=3, resident=2) for _ in range(2))
    assert (one.time, one.waited, one.loaded, one.stored) == (other.time, other.waited, other.loaded, other.stored)
    assert (one.ends.tolist(), one.order.tolist()) == (other.ends.tolist(), other.order.tolist())


def test_a_block_that_waits_for_a_load_never_started_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="never starts"):
        played(kernel(TileOp("wait", "K")))


def test_a_load_of_nothing_is_renamed_as_its_wait_is() -> None:
    """Else a block would wait for ever: some recurrences load no gate."""
    work = renamed(kernel(TileOp("load", "K"), TileOp("wait", "K"), MMA._replace(tensor="K")), {"K": "K own"})
    assert [op.tensor for op in work.segments[0].ops] == ["K own", "K own", "K"]


def test_loads_that_began_before_their_block_are_not_issued_again() -> None:
    """Both loads of the second block: four of 100 bytes in all."""
    ahead = kernel(LOAD, LOAD, WAIT, WAIT, TileOp("prefetch"), blocks=2)
    assert sum(played(ahead).loaded) == 400


def test_a_kernel_that_does_nothing_takes_a_picosecond() -> None:
    assert played(kernel(TileOp("delay"))).time == 1
