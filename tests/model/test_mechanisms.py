"""Each mechanism moves the answer when its parameter moves (design, "What the simulator must model", points 1 to 7)."""

from dataclasses import replace

import pytest

from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import ImplementationNumbers, Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import EXP, FP32, INT32, ISSUE, LOAD_STORE, MMA_SYNC_STALL
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import combine
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import Occupancy, occupancy
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import Splits
from attnsim.simulator import program as preparing
from attnsim.simulator import unit_costs as unit_costing
from attnsim.simulator.program import Cache, prepare
from attnsim.simulator.replay import LaunchMode, Mode, Replay, replay
from attnsim.simulator.unit_costs import unit_costs
from tests.model.bounds import compulsory, requested

A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
CAUSAL = Mask.causal()
FA2 = FlashTile(128, 64)
COMPUTE = Workload(2, 16, 4096, 128)
DECODE = Workload(8, 16, 1, 128, seq_kv=2048, passes="decode")
PRIOR = Numbers()
LANES = EXP, FP32, INT32, LOAD_STORE


def numbers(**changed: float) -> Numbers:
    return Numbers(ImplementationNumbers(**changed))


def alone(kernel: Kernel, *more: Kernel) -> Schedule:
    return Schedule("flash", "flash-attn.2", (kernel, *more), "", 0)


def play(
    schedule: Schedule | Kernel,
    gpu: Gpu,
    fitted: Numbers = PRIOR,
    *,
    mode: Mode = "exact",
    cache: Cache = "warm",
    launch: LaunchMode = "kernel",
) -> Replay:
    whole = schedule if isinstance(schedule, Schedule) else alone(schedule)
    return replay(whole, gpu, fitted, mode=mode, cache=cache, launch=launch)


def time(
    schedule: Schedule | Kernel, gpu: Gpu, fitted: Numbers = PRIOR, *, mode: Mode = "exact", cache: Cache = "warm"
) -> float:
    return play(schedule, gpu, fitted, mode=mode, cache=cache).time_s


def one_wave(gpu: Gpu, tile: FlashTile, per_sm: int, seq_kv: int = 2048, head_dim: int = 128) -> Kernel:
    """A grid that fills every SM `per_sm` deep: one tile of query rows a head."""
    w = Workload(gpu.sm.count * per_sm, 1, tile.rows, head_dim, seq_kv=seq_kv)
    return flash_forward(w, gpu, tile)


def compute_only(gpu: Gpu) -> Gpu:
    """The GPU with memory so fast that only its SMs count."""
    for key in ("hbm.bandwidth", "l2.bandwidth"):
        gpu = gpu.replace(key, "1000x")
    return gpu


# 1. Units of the SM


def test_twice_the_exponential_rate_speeds_up_what_exponentials_bound() -> None:
    kernel = one_wave(A100, FA2, 2, head_dim=32)
    light = numbers(step_clks=0.0)
    slow = play(kernel, A100.replace("sm.exp_rate", 4), light)
    fast = play(kernel, A100.replace("sm.exp_rate", 8), light)
    assert slow.busiest == "exp"
    assert 1.6 < slow.time_s / fast.time_s <= 2.0
    wide = one_wave(A100, FA2, 2, head_dim=256)
    assert time(wide, A100, light) / time(wide, A100.replace("sm.exp_rate", 32), light) < 1.15


def test_warp_level_mma_reaches_63_percent_of_hopper_and_nearly_all_of_ampere() -> None:
    tile = FlashTile(128, 128, warps=8, path="wgmma")
    costs = {
        path: unit_costs(one_wave(H100, replace(tile, path=path), 1), H100, PRIOR).tensor
        for path in ("mma_sync", "wgmma")
    }
    assert costs["wgmma"] / costs["mma_sync"] == pytest.approx(0.63 / 0.95, abs=0.01)  # wgmma reaches 0.95
    assert A100.tensor.mma_sync_fraction >= 0.95


def test_the_instruction_path_decides_a_tensor_bound_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its rate; and by the stall of mma.sync, which is a test of its own."""
    monkeypatch.setattr(unit_costing, "MMA_SYNC_STALL", 0.0)
    light = numbers(step_clks=0.0, block_clks=0.0)
    tile, gpu = FlashTile(64, 128, warps=4, registers=168), compute_only(H100)
    by_path = [time(one_wave(H100, replace(tile, path=path), 2, 4096), gpu, light) for path in ("wgmma", "mma_sync")]
    assert 0.63 < by_path[0] / by_path[1] < 0.80


def test_half_the_shared_memory_bandwidth_slows_operand_reads() -> None:
    kernel = one_wave(A100, FA2, 2)
    waits = numbers(step_clks=0.0)
    slow, half = (play(kernel, A100.replace("sm.shared_memory_bandwidth", f"{rate} B/clk"), waits) for rate in (16, 32))
    assert slow.busiest == half.busiest == "shared_memory"
    assert 1.8 < slow.time_s / half.time_s < 2.0
    # Twice as much as there is shows nothing where products take longer: reads run under them.
    double = A100.replace("sm.shared_memory_bandwidth", "256 B/clk")
    assert time(kernel, double, waits) == time(kernel, A100, waits)


def test_fp32_lanes_bound_a_softmax_of_many_instructions() -> None:
    kernel = one_wave(A100, FA2, 2, head_dim=64)
    waits, gpu = numbers(step_clks=0.0), compute_only(A100).replace("sm.fp32_rate", "0.0625x")
    slow, fast = play(kernel, gpu, waits), play(kernel, gpu.replace("sm.fp32_rate", "2x"), waits)
    assert slow.busiest == "fp32"
    assert 1.3 < slow.time_s / fast.time_s < 2.0


def test_a_stall_takes_away_the_overlap_of_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products of mma.sync; those of wgmma run beside the registers."""
    narrow = FlashTile(64, 128, warps=4, registers=168, path="wgmma")
    for gpu, tile in ((A100, FA2), (H100, narrow)):
        times = []
        for share in (0.0, 0.25, MMA_SYNC_STALL, 1.0):
            with monkeypatch.context() as patch:
                patch.setattr(unit_costing, "MMA_SYNC_STALL", share)
                times.append(time(one_wave(gpu, tile, 2), compute_only(gpu), numbers(step_clks=0.0)))
        assert times == sorted(times)
        assert times[-1] / times[0] > 1.2 if gpu is A100 else times[-1] == times[0]


def test_a_warpgroup_alone_waits_for_its_own_path_and_holds_no_unit_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what its softmax takes on all pipes in turn, over that on the busiest."""
    waits, gpu, steps = numbers(step_clks=0.0, block_clks=0.0), compute_only(H100), 2048 // 128
    tile = FlashTile(64, 128, warps=4, loop="staged", stages=2, registers=168, path="wgmma")
    kernel = one_wave(gpu, tile, 1)
    (item,) = prepare(alone(kernel), gpu, waits, "warm")
    with_path = play(kernel, gpu, waits)
    monkeypatch.setattr(preparing, "unit_costs", lambda *of: replace(unit_costs(*of), own_path=False))
    without = play(kernel, gpu, waits)
    softmax = next(op for segment in item.kernel.segments for op in segment.ops if op.kind == "vector")
    *lanes, issue = (getattr(softmax, unit.amount) * getattr(item.costs, unit.name) for unit in (*LANES, ISSUE))
    more = steps * (sum(lanes) - max(*lanes, issue)) / 1e12
    assert issue > 0 and with_path.time_s - without.time_s == pytest.approx(more, rel=0.01)
    assert with_path.units_s() | {"idle": 0.0} == without.units_s() | {"idle": 0.0}


def test_softmax_overlaps_the_gemm_of_another_warpgroup_only_where_the_loop_lets_it() -> None:
    apart = FlashTile(128, 128, warps=8, loop="fa3", stages=2, warpgroups=2, registers=168, path="wgmma")
    free, gpu = numbers(step_clks=0.0), compute_only(H100)
    overlapped = play(one_wave(H100, apart, 1), gpu, free)
    in_turn = play(one_wave(H100, replace(apart, loop="staged", warpgroups=1), 1), gpu, free)
    units = overlapped.units_s()
    vector = units["exp"] + units["fp32"]
    assert in_turn.time_s > units["tensor"] + vector
    assert overlapped.time_s < 1.15 * max(units["tensor"], vector)


def test_the_step_latency_is_paid_by_every_step() -> None:
    kernel = one_wave(A100, FA2, 1)
    steps = 2048 // 64
    clk = 1 / A100.clock.full_hz
    more = time(kernel, A100, numbers(step_clks=400)) - time(kernel, A100, numbers(step_clks=100))
    assert more == pytest.approx(steps * 300 * clk, rel=0.05)


# 2. Occupancy


def resident(tile: FlashTile, gpu: Gpu, head_dim: int) -> Occupancy:
    return occupancy(flash_forward(Workload(8, 16, 1024, head_dim), gpu, tile), gpu)


@pytest.mark.parametrize(
    ("tile", "gpu", "head_dim", "blocks", "limit"),
    [
        (FlashTile(128, 64), A100, 128, 2, "registers"),  # 64 KiB + 1 KiB of 164, 255 registers x 128 threads
        (FlashTile(128, 64, registers=128), A100, 128, 2, "shared memory"),
        (FlashTile(128, 128), A100, 64, 2, "registers"),
        (FlashTile(64, 64, registers=128), A100, 64, 4, "registers"),
        (FlashTile(64, 64, registers=96), A100, 64, 5, "registers"),
        (FlashTile(64, 64, registers=64), A100, 64, 6, "shared memory"),  # 24 KiB + 1 KiB: six, not seven
        (FlashTile(128, 64, warps=8, registers=64), A100, 32, 4, "registers"),
        (FlashTile(128, 64, warps=8, registers=32), A100, 32, 8, "threads"),
        (FlashTile(128, 64), load_gpu("rtx-4090"), 128, 1, "shared memory"),
        (FlashTile(128, 128, warps=8, extra_threads=128, registers=168, stages=2), H100, 128, 1, "registers"),
    ],
    ids=str,
)
def test_resident_blocks_of_known_kernels(tile: FlashTile, gpu: Gpu, head_dim: int, blocks: int, limit: str) -> None:
    found = resident(tile, gpu, head_dim)
    assert (found.blocks_per_sm, found.limited_by) == (blocks, limit)


def with_resources(threads: int = 128, registers: int = 32, shared: int = 0, bound: int | None = None) -> Kernel:
    return replace(
        one_wave(A100, FA2, 1),
        threads=threads,
        registers_per_thread=registers,
        buffers=(("all", shared),),
        max_blocks_per_sm=bound,
    )


def test_every_resident_block_takes_a_reserve_of_shared_memory() -> None:
    kib = 1024
    assert occupancy(with_resources(shared=40 * kib), A100) == Occupancy(4, "shared memory")  # 4 x 41 = 164
    assert occupancy(with_resources(shared=41 * kib), A100) == Occupancy(3, "shared memory")
    free = A100.replace("sm.shared_memory_reserved", 0)
    assert occupancy(with_resources(shared=41 * kib), free) == Occupancy(4, "shared memory")


def test_registers_are_allocated_in_units_of_256_a_warp() -> None:
    # 33 registers x 32 lanes = 1056, rounded up to 1280: as many as 40 registers take
    assert occupancy(with_resources(256, 33), A100) == occupancy(with_resources(256, 40), A100)
    assert occupancy(with_resources(256, 33), A100) == Occupancy(6, "registers")
    assert occupancy(with_resources(256, 32), A100) == Occupancy(8, "threads")


def test_threads_block_slots_and_launch_bounds_limit_blocks() -> None:
    assert occupancy(with_resources(1024, 16), A100) == Occupancy(2, "threads")
    assert occupancy(with_resources(32, 16), A100) == Occupancy(32, "block slots")
    assert occupancy(with_resources(32, 16), A100.replace("sm.max_blocks", 16)) == Occupancy(16, "block slots")
    assert occupancy(with_resources(bound=1), A100) == Occupancy(1, "launch bounds")


def test_a_block_beyond_the_register_file_is_refused() -> None:
    with pytest.raises(InputError, match="too many registers"):
        occupancy(with_resources(1024, 128), A100)


def test_a_tile_that_does_not_fit_is_refused_with_its_buffers_and_one_that_fits() -> None:
    w = Workload(4, 16, 1024, 256)
    with pytest.raises(InputError) as refusal:
        IMPLEMENTATIONS["flash-attn.2"].build(w, A100, TileRequest(128, 128))
    message = str(refusal.value)
    assert "192 KiB (Q 64, K 64, V 64)" in message
    assert "163 KiB per block" in message
    advice = message.rsplit(";", maxsplit=1)[-1]
    rows, keys = (int(word) for word in advice.split() if word.isdigit())
    assert "fits" in advice
    assert IMPLEMENTATIONS["flash-attn.2"].build(w, A100, TileRequest(rows, keys)).kernels


def test_a_second_resident_block_hides_latency() -> None:
    kernel = one_wave(A100, FA2, 2)
    single = replace(kernel, max_blocks_per_sm=1)
    assert time(single, A100) / time(kernel, A100) > 1.15


# 3. Memory


def heads_of_long_rows() -> Schedule:
    """Two heads of 65,536 keys: 32 MiB of K and V a head, walked by 512 blocks, of which 216 run at a time."""
    return alone(flash_forward(Workload(1, 2, 65_536, 128), A100, FA2))


def test_the_capacity_of_the_l2_decides_whether_re_reads_of_k_and_v_hit() -> None:
    schedule = heads_of_long_rows()
    least, most = compulsory(schedule), requested(schedule)

    def moved(capacity: str) -> float:
        seen = play(schedule, A100.replace("l2.capacity", capacity), mode="fast", cache="cold")
        return seen.hbm_read_bytes + seen.hbm_write_bytes

    assert moved("1 GiB") == pytest.approx(least)
    assert moved("1 GiB") < moved("16 MiB") < most
    sweep = [moved(f"{mib} MiB") for mib in range(32, 256, 16)]
    assert any(moved("1 GiB") < between < moved("16 MiB") for between in sweep)
    # Blocks of a wave walk the same keys together, so what is lost are the re-reads of the 512 / 216 - 1 later waves.
    keys_and_values = 2 * 2 * 65_536 * 128 * 2
    lost = moved("16 MiB") - least
    assert lost == pytest.approx((512 / 216 - 1) * keys_and_values)
    assert moved("64 KiB") == moved("16 MiB")


def test_smaller_caches_never_move_fewer_bytes() -> None:
    schedule = heads_of_long_rows()
    sizes = [f"{mib} MiB" for mib in (1, 4, 8, 16, 24, 32, 48, 64, 128)]
    moved = [
        play(schedule, A100.replace("l2.capacity", size), mode="fast", cache="cold").hbm_read_bytes for size in sizes
    ]
    assert moved == sorted(moved, reverse=True)


def test_all_sms_share_the_hbm() -> None:
    """Decode reads its cache, 128 MiB, once and at the achievable bandwidth."""
    w = DECODE
    schedule = IMPLEMENTATIONS["flash-attn.2"].build(w, A100, None)
    times = [time(schedule, A100.replace("hbm.bandwidth", f"{factor}x"), cache="cold") for factor in (0.25, 0.5, 1)]
    assert times[0] / times[1] == pytest.approx(2, abs=0.25)
    bytes_per_s = compulsory(schedule) / times[0]
    assert 0.95 < bytes_per_s / (A100.hbm.achievable_fraction * A100.hbm.bandwidth_bytes_per_s / 4) <= 1.0
    few = flash_forward(Workload(1, 8, 1, 128, seq_kv=2048, passes="decode"), A100, FlashTile(64, 128))
    slow = A100.replace("hbm.bandwidth", "0.5x")
    assert time(few, slow, cache="cold") / time(few, A100, cache="cold") < 1.3  # eight SMs cannot draw it all


def test_latency_of_the_hbm_and_of_the_l2_are_told_apart() -> None:
    kernel = one_wave(A100, FA2, 1, 4096)
    far, near = A100.replace("hbm.latency", "5520 clk"), A100.replace("l2.latency", "2055 clk")
    assert time(kernel, far, cache="cold") > 1.5 * time(kernel, A100, cache="cold")
    small = flash_forward(Workload(1, 4, 2048, 128), A100, FA2)  # 4 MiB: everything stays in the cache
    assert time(small, far, cache="warm") == pytest.approx(time(small, A100, cache="warm"))
    assert time(small, near, cache="warm") > 1.1 * time(small, A100, cache="warm")


# 4. Asynchrony


def staged(stages: int) -> Kernel:
    return one_wave(A100, FlashTile(64, 32, loop="staged", stages=stages, registers=168), 1, 4096, 64)


def test_each_further_stage_hides_more_of_the_latency() -> None:
    far = A100.replace("hbm.latency", "2000 clk")
    shallow, double, triple = (play(staged(n), far, cache="cold") for n in (1, 2, 3))
    assert shallow.time_s > 1.2 * double.time_s > 1.2 * 1.05 * triple.time_s
    assert shallow.exposed_s > double.exposed_s > triple.exposed_s


def test_a_shallow_pipeline_suffers_more_from_a_longer_latency() -> None:
    far = A100.replace("hbm.latency", "1500 clk")
    suffered = [time(staged(n), far, cache="cold") / time(staged(n), A100, cache="cold") for n in (1, 2, 3)]
    assert suffered == sorted(suffered, reverse=True)
    assert suffered[0] > 1.3
    assert suffered[2] < 1.1


# 5. Kernels and grid


def test_every_kernel_of_a_call_pays_its_launch() -> None:
    w = Workload(1, 16, 1024, 64)
    for name in ("flash-attn.2", "torch.eager"):
        schedule = IMPLEMENTATIONS[name].build(w, A100, None)
        count = len(schedule.kernels)
        stream, graph, kernel = (
            play(schedule, A100, mode="fast", launch=launch).time_s for launch in ("stream", "graph", "kernel")
        )
        call = PRIOR.implementation.call_s
        assert stream - kernel == pytest.approx(call + count * A100.launch.stream_s)
        assert graph - kernel == pytest.approx(call + count * A100.launch.graph_s)
        assert graph < stream
    flash, naive = (IMPLEMENTATIONS[name].build(w, A100, None) for name in ("flash-attn.2", "torch.eager"))
    assert len(flash.kernels) == 1
    assert len(naive.kernels) >= 3


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_one_block_more_than_fits_costs_another_wave(mode: Mode) -> None:
    sms = A100.sm.count

    def grid(blocks: int) -> float:
        kernel = flash_forward(Workload(blocks, 1, 128, 128, seq_kv=2048), A100, replace(FA2, max_blocks_per_sm=1))
        return time(kernel, A100, numbers(block_clks=0.0), mode=mode)

    assert grid(sms - 1) == pytest.approx(grid(sms), rel=0.05)
    assert grid(sms + 1) / grid(sms) == pytest.approx(2, abs=0.12)
    assert grid(2 * sms) / grid(sms) == pytest.approx(2, abs=0.12)


def test_longest_first_beats_ascending_for_causal_rows() -> None:
    w = Workload(1, 16, 4096, 128, mask=CAUSAL)
    one = replace(FA2, max_blocks_per_sm=1)
    ascending, longest = (
        time(flash_forward(w, A100, replace(one, order=order)), A100) for order in ("ascending", "longest_first")
    )
    assert longest < 0.95 * ascending
    full = replace(w, mask=Mask.full())
    same = [
        time(flash_forward(full, A100, replace(one, order=order)), A100) for order in ("ascending", "longest_first")
    ]
    assert same[0] == pytest.approx(same[1], rel=0.01)


def test_splitting_the_keys_beats_one_block_a_head_for_one_long_decode() -> None:
    w = Workload(1, 8, 1, 128, seq_kv=65_536, passes="decode")
    tile = FlashTile(64, 128)
    whole = time(flash_forward(w, A100, tile), A100, cache="cold")
    splits = 16
    parts = alone(flash_forward(w, A100, tile, "flash_fwd_splitkv", Splits(splits)), combine(w, splits, 4, 128))
    seen = play(parts, A100, cache="cold")
    assert whole / seen.time_s > 5
    assert 0 < seen.kernels[1].time_s < 0.3 * seen.time_s


def test_a_persistent_kernel_starts_the_loads_of_its_next_tile_early() -> None:
    w = Workload(4, 33, 1024, 128)
    tile = FlashTile(
        128, 128, warps=8, loop="fa3", stages=2, warpgroups=2, registers=168, path="wgmma", max_blocks_per_sm=1
    )
    far = H100.replace("hbm.latency", "3000 clk")
    persistent, plain = (
        play(flash_forward(w, H100, replace(tile, persistent=kept)), far, cache="cold") for kept in (True, False)
    )
    assert persistent.time_s < plain.time_s
    assert persistent.exposed_s < plain.exposed_s
    assert persistent.kernels[0].requested == plain.kernels[0].requested


def test_the_prologue_and_epilogue_are_paid_once_a_wave() -> None:
    kernel = one_wave(A100, replace(FA2, max_blocks_per_sm=1), 3)
    clk, gpu = 1 / A100.clock.full_hz, compute_only(A100)
    more = time(kernel, gpu, numbers(block_clks=3000)) - time(kernel, gpu, numbers(block_clks=1000))
    assert more == pytest.approx(3 * 2000 * clk, rel=0.1)


# 6. Clock


def test_a_compute_bound_time_scales_with_the_sustained_clock() -> None:
    schedule = IMPLEMENTATIONS["flash-attn.2"].build(COMPUTE, A100, None)
    slow = A100.replace("clock.free", "0.5x")
    assert time(schedule, slow, mode="fast") / time(schedule, A100, mode="fast") == pytest.approx(2, abs=0.06)
    decode = IMPLEMENTATIONS["flash-attn.2"].build(DECODE, A100, None)
    narrow = [time(decode, gpu.replace("hbm.bandwidth", "0.25x"), cache="cold") for gpu in (slow, A100)]
    assert narrow[0] / narrow[1] < 1.1


def test_a_held_clock_is_the_one_that_is_played_and_nothing_else() -> None:
    schedule = IMPLEMENTATIONS["flash-attn.3"].build(COMPUTE, H100, None)
    capped = H100.replace("clock.sustained", "1400 MHz")
    ratio = time(schedule, capped, mode="fast") / time(schedule, H100, mode="fast")
    assert ratio == pytest.approx(H100.clock.full_hz / 1.4e9, rel=0.03)
    assert capped.peak_tensor_flops_per_s("bf16") == H100.peak_tensor_flops_per_s("bf16")


def test_the_datasheet_rate_of_an_h100_holds_at_its_tensor_clock() -> None:
    assert H100.clock.tensor_hz == pytest.approx(1830e6)
    assert H100.peak_tensor_flops_per_s("bf16") == pytest.approx(989.4e12, rel=0.002)


# 7. Cold and warm L2


def test_a_warm_cache_spares_the_reads_of_what_fits() -> None:
    small = Workload(1, 4, 2048, 128)  # 8 MiB with its output
    schedule = alone(flash_forward(small, A100, FA2))
    cold, warm = (play(schedule, A100, cache=cache) for cache in ("cold", "warm"))
    assert cold.hbm_read_bytes == 3 * 4 * 2048 * 128 * 2
    assert warm.hbm_read_bytes == 0
    assert warm.time_s < cold.time_s
    assert warm.l2_bytes == cold.l2_bytes


def test_a_warm_cache_is_no_help_to_what_does_not_fit() -> None:
    large = Workload(8, 32, 4096, 128)
    schedule = IMPLEMENTATIONS["flash-attn.2"].build(large, A100, None)
    cold, warm = (play(schedule, A100, cache=cache, mode="fast") for cache in ("cold", "warm"))
    assert warm.hbm_read_bytes == pytest.approx(cold.hbm_read_bytes)
    assert warm.time_s == pytest.approx(cold.time_s)


# What holds for all of them


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("bandwidth", ["0.1x", "0.25x", "1x"])
def test_no_unit_is_busy_for_longer_than_the_kernel_takes(mode: Mode, bandwidth: str) -> None:
    gpu = A100.replace("hbm.bandwidth", bandwidth)
    for w in (DECODE, Workload(1, 16, 2048, 128, mask=CAUSAL), Workload(2, 8, 1000, 64)):
        schedule = IMPLEMENTATIONS["flash-attn.2"].build(w, gpu, None)
        for kernel in play(schedule, gpu, mode=mode, cache="cold").kernels:
            for unit, busy in kernel.units_s.items():
                # every transfer is rounded to whole picoseconds, here by up to 1 in 100,000
                assert busy <= kernel.time_s * (1 + 1e-5), f"{kernel.name}, {unit}, {w}"
