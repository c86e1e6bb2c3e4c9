"""What a dense call may ask for: mask and dropout passes, splits, the backward with and without atomics, FP8."""

import math
import random
from dataclasses import replace

import pytest

from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.fused.backward import MemoryDqTile, memory_dq_backward
from attnsim.models.implementations.fused.splits import MAX_SPLITS, split_count
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.memory import traffic
from attnsim.simulator.replay import replay

A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
CAUSAL = Workload(2, 8, 1024, 64, dtype="fp16", mask=Mask.causal())
PAIRS = 2 * 8 * 1024 * 1024
BACKWARD = Workload(1, 16, 4096, 128, mask=Mask.causal(), passes="bwd")


def schedule(name: str, w: Workload, gpu: Gpu = A100) -> Schedule:
    return IMPLEMENTATIONS[name].build(w, gpu, None)


def kernel_bytes(of: Schedule, kernel: str) -> int:
    return sum(n for (name, _, _), n in of.requested().items() if name == kernel)


def time_s(of: Schedule, gpu: Gpu) -> float:
    return replay(of, gpu, Numbers(), cache="cold", launch="kernel").time_s


def hbm_bytes(of: Schedule, gpu: str) -> float:
    """Of all kernels but those that sum dK and dV of a group, with a block on each SM."""
    kernels, on = of.kernels, load_gpu(gpu)
    moved = traffic(kernels, (on.sm.count,) * len(kernels), on, warm=False)
    return sum(
        row.hbm_bytes
        for kernel, rows in zip(kernels, moved, strict=True)
        for row in rows
        if not kernel.name.startswith("sum d")
    )


# Passes of the unfused form


def test_each_form_makes_its_own_passes() -> None:
    passes = {
        name: [kernel.name for kernel in schedule(name, CAUSAL).kernels]
        for name in ("ideal.unfused", "torch.eager", "torch.baddbmm", "transformers.eager", "torch.sdpa-math")
    }
    assert passes["ideal.unfused"] == ["S = Q K^T", "softmax", "O = P V"]
    assert passes["torch.eager"] == ["S = Q K^T", "mask", "softmax", "O = P V"]
    assert passes["torch.baddbmm"][:3] == ["copy Q", "copy K", "copy V"]
    assert {"scale", "mask", "cast P"} <= set(passes["transformers.eager"])
    assert {"where", "cast P"} <= set(passes["torch.sdpa-math"])
    without = [kernel.name for kernel in schedule("torch.eager", replace(CAUSAL, mask=Mask.full())).kernels]
    assert without == ["S = Q K^T", "softmax", "O = P V"]


def test_a_mask_pass_reads_and_writes_every_score() -> None:
    assert kernel_bytes(schedule("torch.eager", CAUSAL), "mask") == pytest.approx(2 * 2 * PAIRS, rel=0.05)
    window = schedule("torch.eager", replace(CAUSAL, mask=Mask.sliding_window(64)))
    assert kernel_bytes(window, "mask") == kernel_bytes(schedule("torch.eager", CAUSAL), "mask")


def test_dropout_writes_p_again_and_a_byte_an_element() -> None:
    dropped = schedule("torch.eager", replace(CAUSAL, dropout=True))
    assert kernel_bytes(dropped, "dropout") == (2 + 2 + 1) * PAIRS
    assert kernel_bytes(schedule("torch.eager", CAUSAL), "dropout") == 0
    back = schedule("torch.eager", replace(CAUSAL, dropout=True, passes="bwd"))
    assert kernel_bytes(back, "dropout bwd") == (2 + 2 + 1) * PAIRS
    assert dropped.peak_memory_bytes - schedule("torch.eager", CAUSAL).peak_memory_bytes == (2 + 1) * PAIRS


def test_a_fused_kernel_makes_dropout_s_random_numbers_in_registers() -> None:
    plain, dropped = (schedule("flash-attn.1", replace(CAUSAL, dropout=on)) for on in (False, True))
    more = {unit: (dropped.total(unit) - plain.total(unit)) / dropped.total("scores") for unit in ("fp32", "int32")}
    assert more == {"fp32": 16 / 128 * 7 * 2 * 2, "int32": 16 / 128 * 7 * 4 + 3}
    assert plain.requested() == dropped.requested()


@pytest.mark.parametrize("name", ["flash-attn.1", "flash-attn.2"])
@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_dropout_takes_time_in_a_fused_kernel(name: str, passes: str) -> None:
    w = replace(CAUSAL, seq_q=2048, seq_kv=2048, batch=16, passes=passes)
    plain, dropped = (time_s(schedule(name, replace(w, dropout=on)), A100) for on in (False, True))
    assert 1.05 * plain < dropped < 2 * plain


# Number of splits


def published_rule(tiles: int, slots: int, key_tiles: int, eligible_only: bool) -> int:
    """`num_splits_heuristic` of Dao-AILab/flash-attention, loop by loop."""
    if tiles >= 0.8 * slots:
        return 1
    efficiencies = {}
    for count in range(1, min(MAX_SPLITS, slots, key_tiles) + 1):
        same = count > 1 and math.ceil(key_tiles / count) == math.ceil(key_tiles / (count - 1))
        if not (same and eligible_only):
            waves = tiles * count / slots
            efficiencies[count] = waves / math.ceil(waves)
    best = max(efficiencies.values())
    return next(count for count, efficiency in efficiencies.items() if efficiency >= 0.85 * best)


def test_the_number_of_splits_is_that_of_the_published_rule() -> None:
    draw = random.Random(0)
    for _ in range(500):
        tiles, slots, keys = draw.randint(1, 300), draw.choice([108, 132, 216, 264]), draw.randint(1, 700)
        for eligible_only in (True, False):
            found = split_count(tiles, slots, keys, eligible_only=eligible_only)
            assert found == published_rule(tiles, slots, keys, eligible_only), (tiles, slots, keys)


# Backward: atomics or a second pass


def test_a_second_pass_recomputes_two_products_and_needs_no_accumulator() -> None:
    atomic, twice = schedule("flash-attn.2", BACKWARD), schedule("triton.tutorial-bwd", BACKWARD)
    assert twice.total("flops") / atomic.total("flops") == pytest.approx(7 / 5, rel=0.01)
    tensors = {tensor for _, _, tensor in twice.requested()}
    assert "dQ accum" not in tensors
    assert "dQ accum" in {tensor for _, _, tensor in atomic.requested()}
    dq = twice.requested()["flash_bwd_dq", "store", "dQ"]
    assert dq == 16 * 4096 * 128 * 2, "each element of dQ is written once, in 16 bits"
    tile_rows = atomic.requested()["flash_bwd", "store", "dQ accum"] // (16 * 4096 * 128 * 4)
    assert tile_rows > 10, "and added to by every tile of keys with atomics"


def test_atomics_win_where_gemms_bound_and_the_second_pass_where_hbm_does() -> None:
    slow = A100.replace("hbm.bandwidth", "0.02x")
    atomic, twice = schedule("flash-attn.2", BACKWARD), schedule("triton.tutorial-bwd", BACKWARD)
    # At the priors, of which the atomic kernel's softmax needs none: its instructions are counted.
    assert 1.2 < time_s(twice, A100) / time_s(atomic, A100) < 1.8
    moved = [hbm_bytes(one, "a100-sxm4-80gb") for one in (twice, atomic)]
    assert moved[0] < 0.9 * moved[1], "the accumulator is cleared, added to and converted"
    assert time_s(twice, slow) < 0.9 * time_s(atomic, slow)
    l2 = [sum(one.requested().values()) for one in (twice, atomic)]
    assert l2[0] > 1.2 * l2[1], "K and V once more for every tile of rows, for dQ in fp32 for every tile of keys"


def test_both_forms_sum_over_the_heads_of_a_group() -> None:
    w = replace(BACKWARD, heads_kv=4)
    for name in ("flash-attn.2", "triton.tutorial-bwd"):
        kernels = [kernel.name for kernel in schedule(name, w).kernels]
        assert kernels[-2:] == ["sum dK", "sum dV"], name


@pytest.mark.parametrize("name", ["flash-attn.2", "triton.tutorial-bwd", "flash-attn.1"])
@pytest.mark.parametrize(("gpu", "batch", "heads", "seq"), [("rtx-4090", 1, 128, 8930), ("l4", 16, 2, 8192)])
def test_the_backward_of_grouped_heads_moves_no_more_than_that_of_as_many_alone(
    name: str, gpu: str, batch: int, heads: int, seq: int
) -> None:
    """A block holds one tile of keys, whichever heads share it: no more keys are live at a time than without groups."""
    alone, grouped = (
        hbm_bytes(schedule(name, Workload(batch, heads, seq, 128, heads_kv=kv, passes="bwd"), load_gpu(gpu)), gpu)
        for kv in (heads, heads // 2)
    )
    assert grouped <= alone


def test_dq_in_memory_is_read_and_written_at_each_visit_or_has_a_part_for_each_tile_of_keys() -> None:
    w = replace(BACKWARD, mask=Mask.full())
    size, visits = w.heads_q * w.seq_q * w.head_dim, w.seq_kv // 128
    turns, parts = (
        memory_dq_backward(w, A100, MemoryDqTile(128, 128, parallel=parallel)) for parallel in (False, True)
    )
    in_turns, in_parts = turns[2].requested(), parts[2].requested()
    assert in_turns["load", "dQ accum"] == in_turns["store", "dQ accum"] == visits * size * 4
    assert in_parts["store", "dQ parts"] == visits * size * 2 and ("load", "dQ parts") not in in_parts
    assert turns[2].blocks == w.heads_q and parts[2].blocks == visits * w.heads_q
    assert parts[3].requested()["load", "dQ parts"] == parts[0].requested()["store", "dQ parts"] == visits * size * 2


def test_few_heads_get_a_block_for_each_tile_of_keys() -> None:
    """The faster of the two is taken, as FlashAttention-2's benchmark takes it."""
    for batch, parallel in ((64, False), (1, True)):
        w = Workload(batch, 16, 1024, 64, passes="bwd")
        assert f"{'a dQ' if parallel else 'a block'} for each" in str(schedule("triton.ops", w).tile)


@pytest.mark.parametrize(
    "w",
    [
        Workload(1, 16, 1024, 64, seq_kv=2048), Workload(1, 16, 1024, 64, 4), Workload(1, 16, 1024, 96),
        Workload(1, 16, 1000, 64),
    ],
    ids=["more keys", "grouped heads", "head_dim 96", "no whole tile"],
)  # fmt: skip
def test_triton_ops_takes_whole_tiles_of_one_shape(w: Workload) -> None:
    with pytest.raises(InputError, match=r"triton.ops takes Q, K and V of one shape, .* take triton.tutorial"):
        schedule("triton.ops", w)


# FP8


def eight_and_sixteen(head_dim: int) -> tuple[Schedule, Schedule]:
    w = Workload(2, 16, 4096, head_dim)
    return schedule("flash-attn.3", replace(w, dtype="fp8"), H100), schedule("flash-attn.3", w, H100)


def test_fp8_halves_the_inputs_and_not_the_output() -> None:
    eight, sixteen = (one.requested() for one in eight_and_sixteen(128))
    assert eight["flash_fwd", "load", "Q"] * 2 == sixteen["flash_fwd", "load", "Q"]
    assert eight["flash_fwd", "store", "O"] == sixteen["flash_fwd", "store", "O"]
    assert eight["flash_fwd", "load", "K"] < 0.6 * sixteen["flash_fwd", "load", "K"]


def test_fp8_doubles_the_tensor_rate_and_leaves_the_exponentials() -> None:
    for head_dim in (64, 128):
        busy = [replay(one, H100, Numbers(), launch="kernel").units_s() for one in eight_and_sixteen(head_dim)]
        assert busy[0]["tensor"] / busy[1]["tensor"] == pytest.approx(0.5, rel=0.05)
        assert busy[0]["exp"] / busy[1]["exp"] == pytest.approx(1.0, rel=0.05)


def test_fp8_gains_more_where_the_tensor_cores_bound() -> None:
    gains = []
    for head_dim in (64, 128, 256):
        eight, sixteen = eight_and_sixteen(head_dim)
        gains.append(time_s(sixteen, H100) / time_s(eight, H100))
    assert 1.0 < gains[0] < gains[1] < gains[2] < 2.0


# Polynomials in place of exponentials


def test_flash_attention_4_computes_polynomials_where_exponentials_are_slow() -> None:
    w = Workload(1, 2, 1024, 64)
    scores = {gpu: schedule("flash-attn.4", w, load_gpu(gpu)).total("scores") for gpu in ("b200-sxm-180gb", "b300-sxm")}
    exps = {gpu: schedule("flash-attn.4", w, load_gpu(gpu)).total("exps") for gpu in scores}
    assert exps["b300-sxm"] == scores["b300-sxm"]
    assert exps["b200-sxm-180gb"] == scores["b200-sxm-180gb"] * 13 // 16
