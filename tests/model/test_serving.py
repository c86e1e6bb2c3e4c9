"""What vLLM and SGLang launch, and what that costs: facts of their source that the tables of serving times show."""

from dataclasses import replace

import numpy as np
import pytest

from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.fused.splits import fa3_combine
from attnsim.models.implementations.serving import GROUP_CLKS
from attnsim.models.implementations.trtllm import masked_tile, runs_xqa, xqa_splits, xqa_tile
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.row_tiles import row_tiles
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import replay

A100, H100, L40S = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb"), load_gpu("l40s")
B200 = load_gpu("b200-sxm-180gb")
CARRIED = ("a100-sxm4-80gb", "a100-pcie-80gb", "rtx-3090", "rtx-4090")
DECODE = Workload(4, 16, 1, 128, heads_kv=2, seq_kv=4096, passes="decode")


def build(name: str, w: Workload, gpu: Gpu) -> Schedule:
    return IMPLEMENTATIONS[name].build(w, gpu, None)


def names(schedule: Schedule) -> list[str]:
    return [kernel.name for kernel in schedule.kernels]


def main_kernel(schedule: Schedule) -> Kernel:
    return next(kernel for kernel in schedule.kernels if kernel.name.startswith("flash_fwd"))


def windowed(w: Workload, keys: int) -> Workload:
    return replace(w, mask=Mask.sliding_window(keys))


def test_flash_2_neither_packs_nor_splits_under_a_window_even_one_that_covers_the_cache() -> None:
    packed = build("vllm.flash-attn-2", DECODE, L40S)
    covered = build("vllm.flash-attn-2", windowed(DECODE, 8192), L40S)
    assert "GQA packed" in packed.tile_text and "combine" in names(packed) and "Q transpose" in names(packed)
    assert "GQA packed" not in covered.tile_text and names(covered) == ["cache_write", "flash_fwd_splitkv"]
    assert main_kernel(covered).blocks == DECODE.batch * DECODE.heads_q


@pytest.mark.parametrize("name", ["vllm.flash-attn-2", "vllm.flash-attn-3", "sglang.fa3"])
def test_of_a_window_only_the_keys_that_it_visits_are_touched(name: str) -> None:
    gpu = L40S if name == "vllm.flash-attn-2" else H100
    uses = {use.tensor: use for use in main_kernel(build(name, windowed(DECODE, 256), gpu)).uses}
    cache = DECODE.batch * DECODE.heads_kv * DECODE.seq_kv * DECODE.head_dim * 2
    assert cache * 256 / 4096 <= uses["K"].unique_bytes <= cache * 512 / 4096


def test_flash_3_bounds_its_splits_by_the_keys_that_a_window_loads() -> None:
    long = replace(DECODE, batch=1, heads_q=8, heads_kv=1, head_dim=64, head_dim_v=64, seq_kv=131072)
    assert main_kernel(build("sglang.fa3", long, H100)).blocks > 50
    assert main_kernel(build("sglang.fa3", windowed(long, 128), H100)).blocks == 1


def test_vllm_s_graphs_bound_the_splits() -> None:
    long = replace(DECODE, batch=1, heads_q=8, heads_kv=1, seq_kv=131072)
    assert main_kernel(build("vllm.flash-attn-3", long, H100)).blocks == 32


def test_flash_3_cuts_up_what_each_row_tile_sees() -> None:
    w = Workload(1, 1, 1024, 128, mask=Mask.causal())
    whole = row_tiles(w, 128, 128)
    halves = [row_tiles(w, 128, 128, split=s, splits=2, of_seen=True) for s in range(2)]
    equal_ranges = [row_tiles(w, 128, 128, split=s, splits=2) for s in range(2)]
    assert np.array_equal(sum(part.steps for part in halves), whole.steps)
    assert halves[1].steps[1:].min() > 0 and equal_ranges[1].steps[1] == 0


def test_key_tiles_of_a_window_may_begin_at_its_first_key() -> None:
    w = windowed(replace(DECODE, seq_kv=4000), 128)
    assert row_tiles(w, 64, 128).steps.tolist() == [2]
    assert row_tiles(w, 64, 128, from_first_key=True).steps.tolist() == [1]


def test_variable_lengths_go_sequence_by_sequence_longest_first() -> None:
    w = Workload(3, 16, 1024, 128, mask=Mask.causal())
    kernel = main_kernel(build("sglang.fa3", w, H100))
    (launch,) = kernel.launches
    steps = kernel.repeats.sum(axis=(1, 2))[launch.classes]
    assert launch.times == w.batch and len(steps) == 8 * w.heads_q
    assert np.all(np.diff(steps) <= 0) and steps[0] > steps[-1]


def test_the_scheduler_looks_among_31_sequences_at_a_time() -> None:
    def fetch(batch: int, heads: int) -> int:
        w = replace(DECODE, batch=batch, heads_q=heads, heads_kv=heads, seq_kv=64)
        prologue = main_kernel(build("sglang.fa3", w, H100)).segments[0]
        return sum(op.clks for op in prologue.ops if op.tensor == "fetch")

    assert fetch(512, 1) == round(GROUP_CLKS * 132 / 31)
    assert fetch(512, 8) == round(GROUP_CLKS * 132 / 31 / 8)
    assert fetch(2048, 1) == 0


def test_an_early_launch_is_not_waited_for() -> None:
    shown = replay(build("sglang.fa3", replace(DECODE, seq_kv=8192), H100), H100, Numbers(), launch="graph")
    waited = {kernel.name: kernel.launch_s > 0 for kernel in shown.kernels}
    assert waited == {"store_cache": True, "prepare": True, "flash_fwd": False, "combine (staged)": False}


def test_a_decode_tile_pays_for_the_rows_that_it_stores() -> None:
    def epilogue(heads: int) -> float:
        w = replace(DECODE, heads_q=heads, heads_kv=1)
        segments = main_kernel(build("vllm.flash-attn-3", w, H100)).segments
        return next(op.share for op in segments[-1].ops if op.kind == "delay")

    assert epilogue(8) == pytest.approx(8 / 64) and epilogue(64) == 1


def test_flash_3_s_combine_does_not_wait_for_one_split_after_the_other() -> None:
    def body_s(splits: int) -> float:
        schedule = Schedule("flash", "sglang.fa3", (fa3_combine(DECODE, splits),), "", 0)
        return replay(schedule, H100, Numbers(), launch="kernel").time_s

    latency = H100.hbm.latency_clk / H100.clock.full_hz
    assert body_s(64) - body_s(16) < 48 * latency / 2


def test_sglang_writes_k_and_v_of_different_width_one_after_the_other() -> None:
    wide = replace(DECODE, head_dim=192, head_dim_v=128)
    assert names(build("sglang.fa3", wide, H100))[:4] == ["slots K", "index K", "slots V", "index V"]
    assert names(build("sglang.fa3", DECODE, H100))[0] == "store_cache"


@pytest.mark.parametrize("gpu", [H100, B200])
def test_tensorrt_llm_s_last_blocks_read_each_partial_result_once(gpu: Gpu) -> None:
    schedule = build("tensorrt-llm.attention", DECODE, gpu)
    main = schedule.kernels[-1]
    partial = DECODE.batch * DECODE.heads_q * schedule.splits.count * DECODE.head_dim * 4
    assert schedule.splits.count > 1 and "combine" not in names(schedule)
    assert main.requested()["load", "O partial"] == main.requested()["store", "O partial"] == partial
    last = [segment.name for segment in main.segments].index("store O")
    assert main.executions[last] == DECODE.batch * DECODE.heads_kv


def test_partial_results_are_read_back_from_the_l2() -> None:
    shown = replay(build("tensorrt-llm.attention", DECODE, H100), H100, Numbers(), cache="cold")
    read = {row.tensor: row.hbm_bytes for row in shown.main.traffic if not row.written}
    assert read["O partial"] == 0 and read["K"] > 0


def test_xqa_counts_the_step_s_own_token_and_has_three_widths() -> None:
    edge = replace(DECODE, batch=17, heads_kv=1, heads_q=8, seq_kv=256)  # 4 x 17 x 2 blocks, but with 255 keys 4 x 17
    assert runs_xqa(edge, H100) and not runs_xqa(replace(edge, seq_kv=255), H100)
    assert xqa_splits(edge, H100) == 2
    assert xqa_tile(replace(edge, head_dim=192, head_dim_v=192), H100).widths == (256, 256)


def masked(blocks: int, keys: int) -> Workload:
    return replace(DECODE, batch=blocks, heads_q=1, heads_kv=1, seq_kv=keys)


def test_masked_attention_has_blocks_of_as_many_threads_as_its_launch_code_chooses() -> None:
    threads = {n: masked_tile(masked(n, 64), H100).threads for n in (1, 132, 175, 176, 264, 527, 528, 4096)}
    assert threads == {1: 1024, 132: 1024, 175: 1024, 176: 512, 264: 512, 527: 512, 528: 256, 4096: 256}
    assert {n: masked_tile(masked(n, 2048), H100).splits for n in (1, 16, 44, 66, 131, 132)} == {
        1: 4, 16: 4, 44: 3, 66: 2, 131: 2, 132: 1,
    }  # fmt: skip
    room = (227 * 1024 - 2048) // 6  # keys whose logits fit a block
    assert [masked_tile(masked(4096, keys), H100).splits for keys in (room, room + 1, 4 * room)] == [1, 2, 4]


def test_masked_attention_s_ranges_hold_as_many_keys_each() -> None:
    tile = masked_tile(masked(8, 65536), H100)
    schedule = build("tensorrt-llm.attention", masked(8, 65536), H100)
    turns = schedule.kernels[-1].turns.sum(axis=1)
    assert tile.splits == 17 and schedule.kernels[-1].blocks == 8 * 17
    assert 17 * 16 * tile.keys == pytest.approx(65536, rel=0.001) and turns.min() > 0


def test_only_vllm_s_encoder_splits_keys() -> None:
    few = Workload(1, 1, 6400, 64)
    assert "combine (staged)" in names(build("vllm.vit-flash-attn-3", few, H100))
    assert names(build("sglang.vit-fa3", few, H100)) == ["prepare", "flash_fwd"]


def test_an_l2_of_one_partition_keeps_all_that_fits() -> None:
    w = replace(DECODE, batch=16, heads_q=32, heads_kv=8, seq_kv=640)  # 42 MB of K and V
    schedule = build("vllm.flash-attn-2", w, L40S)
    one = replay(schedule, L40S, Numbers()).hbm_read_bytes
    two = replay(schedule, L40S.replace("l2.partitions", 2), Numbers()).hbm_read_bytes
    assert one < 1e6 < two


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000-server"])
def test_ga10x_ada_and_gb20x_are_no_cards_of_ampere_and_blackwell(gpu: str) -> None:
    """Whatever was fitted on A100 and B200 is another architecture's there."""
    machine = load_gpu(gpu)
    found = {name: choose(record, machine) for name, record in IMPLEMENTATIONS.items()}
    own = {name for name, architecture in calibrations() if architecture == machine.architecture}
    assert {name for name, chosen in found.items() if chosen.own} == own
    assert found["flash-attn.2"].whose == "flash-attn.2, ampere"
    assert found["tensorrt-llm.attention"].whose == "tensorrt-llm.attention, hopper"
    said = "no calibration of flash-attn.2 on {}; nearest: flash-attn.2 on ampere"
    assert found["flash-attn.2"].reason == said.format(machine.architecture)


def test_waits_are_carried_as_they_are() -> None:
    """In clocks and seconds: to another GPU, kernel or instruction path, and to a GPU with a figure changed."""
    known = {key: one.numbers for key, one in calibrations().items()}
    doubled = load_gpu("a100-sxm4-80gb").replace("tensor.fp16", 4096)
    for gpu in (*map(load_gpu, CARRIED), doubled):
        assert choose(IMPLEMENTATIONS["triton.ops"], gpu).numbers.implementation == known["triton.ops", "ampere"]
    for name, there, of in (
        ("sglang.triton-mla", "l40s", "flash-attn.1"),
        ("xformers.cutlass", "h100-sxm5-80gb", "xformers.cutlass"),
    ):
        chosen = choose(IMPLEMENTATIONS[name], load_gpu(there))
        assert chosen.numbers.implementation == known[of, "ampere"] and not chosen.own


def test_the_ranges_of_split_keys_share_q_and_not_k() -> None:
    schedule = build("vllm.flash-attn-2", replace(DECODE, batch=1), A100)
    uses = {use.tensor: use for use in main_kernel(schedule).uses}
    assert schedule.splits.count > 1
    assert (uses["Q"].fetched(1), uses["K"].fetched(1)) == (schedule.splits.count, 1)
