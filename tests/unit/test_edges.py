"""What stands on one line alone: refusals at a limit, defaults, and small programs counted by hand."""

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from attnsim import InputError, Mask, Workload, load_gpu, predict, predict_table
from attnsim.api import tables
from attnsim.api.roofline import Roofline
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import gpu_to_yaml
from attnsim.models.hardware.units import TENSOR
from attnsim.models.implementations.fused.tile import FlashTile, check_tile
from attnsim.models.implementations.own.resources import STEP_CLKS, least_clks
from attnsim.models.implementations.registry import IMPLEMENTATIONS, check_lengths
from attnsim.models.question.case_row import parse_row
from attnsim.models.schedule.instructions import StepCounts
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.simulator.program import compile_kernel
from attnsim.simulator.reduced_grid import Chip, _shortened, reduce_grid
from attnsim.simulator.replay import replay
from attnsim.simulator.trace import trace
from attnsim.simulator.unit_costs import unit_costs
from attnsim.validation.fitting.problem import Problem

H100 = load_gpu("h100-sxm5-80gb")
OPS = (
    TileOp("load", "K", bytes=100),
    TileOp("wait", "K"),
    TileOp("mma", "S", flops=4_096_000),
    TileOp("store", "O", bytes=100),
)


def kernel(blocks: int = 1, outer: int = 1, **given: Any) -> Kernel:
    repeats = np.ones((1, outer, 1), np.int64)
    segments = (Segment("turn", OPS),)
    return Kernel("paper", 128, 32, segments, repeats, (Launch.alike(blocks),), (), path="wgmma", **given)


def test_a_call_is_its_launches_its_fixed_time_and_its_kernels() -> None:
    numbers = Numbers()
    found = replay(Schedule("flash", "paper", (kernel(), kernel()), "tile", 0), H100, numbers, launch="host")
    assert found.launch_s == pytest.approx(numbers.implementation.call_s + 2 * H100.launch.stream_s)
    assert found.host_wait_s == 0 and found.time_s == pytest.approx(found.launch_s + 2 * found.main.time_s)
    # 4,096,000 FLOPs of one SM at 0.95 of 4,096 a clock, shared out over all SMs; nothing is counted.
    assert set(found.main.units_s) == {"tensor", "exp", "fp32", "shared_memory", "l2", "hbm"}
    clocks = 1000 / 0.95 / H100.sm.count
    assert found.main.units_s["tensor"] == pytest.approx(clocks / H100.clock.full_hz)


def test_a_trace_has_a_slice_for_every_operation() -> None:
    (traced,) = trace(Schedule("flash", "paper", (kernel(),), "tile", 0), H100, Numbers()).kernels
    assert sorted(one.unit for one in traced.slices) == ["block", "copy", "store", "tensor"]


def test_a_smaller_grid_has_more_sms_the_longer_the_memory_is_busy() -> None:
    """Twelve times the root of a quarter; of a loop of loops the first and the last turns too, at least four."""
    whole = kernel(blocks=100_000)
    program = compile_kernel(whole, unit_costs(whole, H100, Numbers()), {})
    assert reduce_grid(whole, program, Chip(100, 1), 200, 0.25).chip.sms == 6
    loops = kernel(blocks=100_000, outer=100)
    loops = replace(loops, repeats=np.concatenate([loops.repeats, 2 * loops.repeats]))
    loops = replace(loops, launches=(Launch(np.array([0, 1]), 50_000),))
    assert reduce_grid(loops, program, Chip(100, 1), 2000, 0.25).kernel.repeats.shape[1] >= 4


def test_a_tile_of_one_stage_is_refused_without_a_word_of_stages() -> None:
    with pytest.raises(InputError, match="the tile 128 x 512 at head_dim 128 needs"):
        check_tile(FlashTile(128, 512), Workload(1, 8, 1024, 128), H100)
    with pytest.raises(InputError, match="head_dim 128 with 3 stages needs"):
        check_tile(FlashTile(128, 512, stages=3), Workload(1, 8, 1024, 128), H100)


def test_a_visit_takes_the_vector_pipes_its_share_of_the_tensor_unit() -> None:
    """Of 64 x 64 scores: (2 x 4 x 64 + 64) rows of 128 bytes at 128 a clock are 576, 4,096 exponentials 256 clocks."""
    gpu = load_gpu("a100-sxm4-80gb").with_values({"tensor.mma_sync_fraction": 1.0, "l2.bandwidth": 1e18})
    w, tile, none = Workload(1, 1, 64, 64, dtype="fp16"), FlashTile(64, 64), StepCounts(1024, 0, 0, 0, 0, 0)
    waited = STEP_CLKS + gpu.l2.latency_clk
    assert least_clks(w, gpu, tile, none, 1, np.array([1000]), 1) == 1000 * (576 + 256 + waited)
    ring = replace(tile, stages=2)
    assert least_clks(w, gpu, ring, none, 1, np.array([1000]), 1) == 1000 * (576 + 256 + STEP_CLKS)
    crowded = least_clks(w, gpu, tile, none, 1000, np.ones(108_000, np.int64), 1)
    assert crowded == pytest.approx(1000 * (576 + 0.48 * 256))


def test_figures_of_a_gpu_are_refused_at_their_limits() -> None:
    assert not H100.replace("features.wgmma", "false").features.wgmma
    with pytest.raises(InputError, match="allowed: true or false"):
        H100.replace("features.wgmma", "maybe")
    with pytest.raises(InputError, match="1023"):
        H100.replace("sm.registers", "=1023")
    assert H100.replace("sm.registers", "=1024").sm.registers == 1024
    with pytest.raises(InputError, match="multiples of 32, such as 992"):
        H100.replace("sm.max_threads", "1000")
    assert (TENSOR.figure_for("fp32"), TENSOR.figure_for("fp16")) == ("sm.fp32_rate", "tensor.fp16")
    assert "value: false" in gpu_to_yaml(H100.replace("features.wgmma", "false")).split("features:")[1]


def test_a_name_that_only_one_gpu_has_is_taken_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_gpu("RTX 4090").id == "rtx-4090"


def test_a_roofline_needs_flops_for_an_exponential() -> None:
    with pytest.raises(InputError, match="flops_per_exp is 0; allowed: above 0"):
        Roofline(H100, "fp16", 0.0)


def test_a_shared_prefix_is_for_those_who_know_one() -> None:
    shared = Workload(4, 8, 1, 128, seq_kv=4096, passes="decode", prefix=1024)
    check_lengths(IMPLEMENTATIONS["flashinfer.cascade"], shared)
    with pytest.raises(InputError, match="knows no prefix, it is 1024"):
        check_lengths(IMPLEMENTATIONS["flash-attn.2"], shared)


def test_only_a_validated_time_has_an_error() -> None:
    w = Workload(4, 32, 4096, 128, mask=Mask.causal(), dtype="fp16")
    known, far = (
        predict(one, H100, "flash", baseline=False).trust for one in (w, replace(w, head_dim=72, head_dim_v=72))
    )
    assert known.level == "validated" and known.error is not None and 0 < known.error < 0.2
    assert far.level != "validated" and far.error is None


def test_rows_name_an_implementation_under_algorithm_where_it_is_none() -> None:
    row = {"gpu": "h100-sxm5-80gb", "batch": "1", "heads_q": "8", "seq_q": "1024", "head_dim": "128"}
    found = [tables.implementation_of(parse_row(row | {"algorithm": name})) for name in ("flash", "FA3", "nothing")]
    assert found == [None, "fa3", None]


def test_rows_shared_out_over_workers_are_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"gpu": "h100-sxm5-80gb", "algorithm": "linear", "batch": 1, "heads_q": 4, "head_dim": 64}
    frame = pd.DataFrame([shape | {"seq_q": 64 * number} for number in range(1, 31)])
    alone = predict_table(frame, processes=1, progress=False)
    monkeypatch.setattr(tables, "IN_ONE_PROCESS", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with joblib.parallel_config(backend="threading"):
        shared = predict_table(frame, processes=2, progress=False)
    assert alone["predicted_s"].notna().all() and shared.equals(alone)


def test_a_difference_is_taken_forward_up_to_the_bound_and_backward_beyond() -> None:
    """Of a square at 0.75: forward to 1 it is 1.75; at 1, backward to 0.75, too."""
    problem: Any = SimpleNamespace(rows=[0], keys=[("", "")], doubts=lambda: np.ones(1))
    problem.residuals = lambda units, owner="": units**2
    found = [Problem.jacobian(problem, np.array([unit]), 0.25)[0, 0] for unit in (0.75, 1.0)]
    assert found == [1.75, 1.75]


def test_the_outer_loop_keeps_the_turns_that_the_class_cut_least_has() -> None:
    """One class keeps all of its work and so every outer turn; a quarter of the other's is cut within its turns."""
    repeats = np.array([[[1, 8]] * 6] * 2)
    cut = _shortened(repeats, np.array([False, True]), np.array([0.25, 1.0]))
    assert cut.tolist() == [[[1, 2]] * 6, [[1, 8]] * 6]
