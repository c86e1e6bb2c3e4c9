"""Which tensor-core instructions an implementation runs on a GPU, and that none is played on others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnsim import Workload, load_gpu
from attnsim.api.asking import Conditions
from attnsim.api.playing import scheduled
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import builtin_gpu_ids
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.flash_attention_4 import choose_backward
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.lengths import lengths_of
from attnsim.models.question.workload import Tree
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import replay

ALL = ("S", "dP", "dV", "dK", "dQ")
B200, GB200, H100 = (load_gpu(name) for name in ("b200-sxm-180gb", "gb200", "h100-sxm5-80gb"))
SHIPS_MMA_SYNC = {
    "flash-attn.1", "flash-attn.2", "flash-attn.2-unsplit", "flash-attn.2-one-split",
    "vllm.flash-attn-2", "xformers.cutlass",
    "flashinfer.fa2", "flashinfer.pod", "flashinfer.pod-streams", "flashinfer.pod-serial", "flashinfer.tree",
    "flashinfer.cascade", "sglang.flashinfer", "vllm.flashinfer", "torch.sdpa-flash-1", "vllm.triton",
    "nsa-triton.selected", "nsa-triton.compressed", "nsa-triton.compressed-scores", "nsa-triton.decode",
    "flash-nsa.nsa", "moba.efficient", "xformers.triton-splitk",
    "triton.ops",
}  # fmt: skip
"""Libraries whose Ampere kernels are what runs on newer GPUs, or whose tiles of 16 rows are too small for newer
instructions; our own CUDA kernels are compiled for them too."""
QUESTION = Workload(batch=1, heads_q=16, seq_q=512, head_dim=128, dtype="fp16")


def schedule(name: str, gpu_id: str, w: Workload = QUESTION) -> Schedule:
    return scheduled(IMPLEMENTATIONS[name], w, load_gpu(gpu_id), Conditions())


OTHER = {
    "pod": Workload(heads_q=16, heads_kv=4, head_dim=128, dtype="fp16", lengths=lengths_of([(512, 512), (1, 4096)])),
    "cascade": replace(QUESTION, batch=2, seq_kv=1024, prefix=256),
    "flash-mask": replace(QUESTION, mask=Mask.parse("causal, document 256 256")),
    "tree": replace(QUESTION, seq_q=4, seq_kv=1024, mask=Mask.causal(), tree=Tree((-1, 0, 0, 1))),
}
"""Questions of kernels that do not play the usual one."""


def question_of(record: Implementation) -> Workload:
    example = MECHANISMS[record.runs].example
    name = record.name.partition(".")[2]
    if name in OTHER:
        return OTHER[name]
    if record.selects or (record.patterns and not example.mask.is_band):
        return replace(example, dtype="fp16")
    return OTHER.get(name.partition("-")[0], QUESTION)


def paths(plan: Schedule) -> set[str]:
    return {kernel.path for kernel in plan.kernels if kernel.total("flops")}


@pytest.mark.parametrize("gpu_id", builtin_gpu_ids())
def test_a_kernel_of_older_tensor_cores_is_played_only_where_it_is_shipped(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    newest = "wgmma" if gpu.features.wgmma else "tcgen05" if gpu.features.tcgen05 else "mma_sync"
    for name, record in IMPLEMENTATIONS.items():
        small = MECHANISMS[record.runs].group == "linear"  # parts of a chunk are too small for newer ones
        ours = small or record.library == "attnsim" or {name, record.launches} & SHIPS_MMA_SYNC
        if ours or record.picks or record.runs == "mla" or "fp16" not in record.dtypes or not runs_on(record, gpu):
            continue
        for passes in set(record.passes) & {"fwd", "bwd"}:
            try:
                found = paths(schedule(name, gpu_id, replace(question_of(record), passes=passes)))
            except InputError as error:
                assert "no other tile is compiled" in str(error)  # its one tile needs more shared memory
                continue
            assert found <= {newest, "simt"}, f"{name}, {passes}"


@pytest.mark.parametrize(
    ("name", "gpu", "said"),
    [
        ("triton.tutorial", B200, r"runs tcgen05 instructions on b200-sxm-180gb \(sm_100\), .* nearest: flash-attn.4"),
        ("triton.tutorial-bwd", GB200, "runs tcgen05 instructions on gb200 "),
        ("tensorrt-llm.mla-fmha-v2", H100, "runs wgmma instructions on h100-sxm5-80gb "),
    ],
)
def test_instructions_that_no_schedule_has_are_refused(name: str, gpu: object, said: str) -> None:
    passes = "bwd" if name.endswith("bwd") else "fwd"
    with pytest.raises(InputError, match=f"no schedule: {name} {said}") as error:
        check_runs(IMPLEMENTATIONS[name], replace(QUESTION, passes=passes), gpu)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_binaries_for_data_centre_blackwell_do_not_run_elsewhere() -> None:
    assert paths(schedule("tensorrt-llm.attention", "rtx-pro-6000-server")) == {"mma_sync"}
    assert paths(schedule("tensorrt-llm.attention", "b200-sxm-180gb")) == {"tcgen05"}
    thor = replace(B200, id="thor", compute_capability="11.0")
    with pytest.raises(
        InputError, match=r"no schedule: what tensorrt-llm.attention runs on thor \(sm_110\) is not known"
    ):
        IMPLEMENTATIONS["tensorrt-llm.attention"].build(QUESTION, thor, None)


def test_a_step_of_the_backward_moves_what_its_operands_need_through_shared_memory() -> None:
    """13 tiles of 128 x 128 x 16 bit alone (K Q, V dO, dO, Q, dS K; dS once; dQ in fp32 twice); 10 of a pair."""
    one = 128 * 128 * 2
    for mask, tiles in ((Mask.sliding_window(128), 13), (Mask(), 10)):
        tile = choose_backward(replace(QUESTION, mask=mask), B200)
        moved = sum(2 * tile.product_bytes(product, ALL, 128, 128, 2) for product in ALL)
        assert moved == pytest.approx(tiles * one, rel=1e-3)


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_cudnn_on_blackwell_lies_within_its_tensor_roofline(passes: str) -> None:
    w = Workload(batch=1, heads_q=64, heads_kv=8, seq_q=8192, head_dim=128, dtype="bf16", passes=passes)
    products = 2 if passes == "fwd" else 5
    flops = products * 2 * 64 * 8192**2 * 128
    peak = GB200.tensor_flops_per_clk("bf16") * GB200.sm.count * GB200.clock.full_hz
    plan = schedule("nvidia.cudnn", "gb200", w)
    assert paths(plan) == {"tcgen05"}
    assert plan.total("flops") == flops
    time_s = replay(plan, GB200, Numbers(), cache="cold", launch="kernel").time_s
    assert flops / peak < time_s < 2.5 * flops / peak


@pytest.mark.parametrize(
    ("batch", "heads", "seq_q", "seq_kv", "packed", "splits"),
    [
        (1, 64, 1, 2048, True, 8), (8, 64, 1, 2048, True, 2), (32, 64, 1, 2048, True, 1), (1, 64, 1, 32768, True, 16),
        (1, 64, 8, 2048, True, 8), (8, 64, 8, 131072, True, 2), (1, 64, 256, 8192, True, 2),
        (1, 32, 256, 8192, True, 4), (1, 64, 512, 8192, False, 1), (1, 32, 512, 8192, False, 2),
        (1, 64, 2048, 2048, False, 1),
    ],
)  # fmt: skip
def test_open_cudnn_on_blackwell_packs_and_splits_as_the_plans_of_its_benchmark(
    batch: int, heads: int, seq_q: int, seq_kv: int, packed: bool, splits: int
) -> None:
    """``PACK_GQA`` and ``SPLIT_KV`` in NVIDIA/cudnn-frontend ``benchmark/attention_inference/results``, GB200."""
    w = Workload(
        batch=batch, heads_q=heads, heads_kv=heads // 8, seq_q=seq_q, seq_kv=seq_kv, head_dim=128, mask=Mask.causal()
    )
    plan = schedule("nvidia.cudnn-frontend-sm100", "gb200", w)
    assert isinstance(plan.tile, FusedTiles) and plan.tile.forward
    assert (plan.tile.forward.pack_gqa, plan.splits.count) == (packed, splits)
    assert plan.kernels[0].multicast == (1 if seq_q * 8 <= 128 else 2)


@pytest.mark.parametrize(("seq_q", "packed"), [(1, True), (8, False), (256, False)])
def test_closed_cudnn_on_blackwell_packs_and_splits_a_single_query_alone(seq_q: int, packed: bool) -> None:
    w = Workload(batch=1, heads_q=64, heads_kv=8, seq_q=seq_q, seq_kv=8192, head_dim=128, mask=Mask.causal())
    closed, opened = (schedule(name, "gb200", w) for name in ("nvidia.cudnn", "nvidia.cudnn-frontend-sm100"))
    assert isinstance(closed.tile, FusedTiles) and closed.tile.forward
    assert (closed.tile.forward.pack_gqa, closed.splits.partial) == (packed, packed)
    assert opened.splits.partial
    assert (closed.total("flops") == opened.total("flops")) == packed


def test_cudnn_on_hopper_takes_row_tiles_in_ascending_order() -> None:
    w = replace(QUESTION, seq_q=4096, seq_kv=4096, mask=Mask.causal())
    theirs, fa3 = (schedule(name, "h100-sxm5-80gb", w).kernels[0] for name in ("nvidia.cudnn", "flash-attn.3"))
    first, longest = (int(one.turns[one.launches[0].classes[0]].sum()) for one in (theirs, fa3))
    assert first < longest and theirs.total("flops") == fa3.total("flops")
