"""GEMMs in closed form: waves by hand, tiles that sources state, and what a product cannot do."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.gemms.gemm import GemmTimes, _missed, gemm_times
from attnsim.models.implementations.gemms.kernels import KERNELS, Waits, fit_of, fits, kernel_of
from attnsim.validation.measured.aiconfigurator_files import installed_folder
from benchmarks import gemms

H100, B200, A100, L40S, RTX = (
    load_gpu(name) for name in ("h100-sxm5-80gb", "b200-sxm-180gb", "a100-sxm4-80gb", "l40s", "rtx-pro-6000-server")
)
NONE = Waits(**dict.fromkeys(asdict(Waits()), 0.0) | {"kept": 1.0, "busy_calls": 1.0})
BY_HAND = H100.replace({"clock.sustained": "1 GHz", "hbm.bandwidth": "5 PB/s"})
"""A clock is a nanosecond, and HBM takes no time."""


def run(gpu: Gpu, kernel: str, m: Any, n: Any, k: Any, **how: Any) -> GemmTimes:
    waits = how.pop("waits", None) or fit_of(kernel, gpu).waits
    return gemm_times(gpu, kernel, m, n, k, waits, **how)


@pytest.mark.parametrize(("n", "waves"), [(33 * 128, 8), (33 * 128 + 1, 9), (66 * 128, 16)])
def test_whole_waves_of_tiles_take_their_steps_one_after_the_other(n: int, waves: int) -> None:
    """32 rows of tiles of 128 x 128 x 128 on 132 SMs. A step is 2 x 128^3 FLOP at 8,192 a clock: 512 clocks, more than
    shared memory's 384 (A once, B by both warpgroups) and the L2's 334. The first operands take a latency."""
    waits = replace(NONE, step_clks=10.0, block_clks=100.0)
    found = gemm_times(BY_HAND, "vllm-fp8", 4096, n, 4096, waits, launch_s=0.0)
    clks = waves * (32 * (512 + 10) + 100) + H100.hbm.latency_clk
    converted = 4096 * 4096 * 3 / H100.l2.bandwidth_bytes_per_s
    assert found.time_s[0] == pytest.approx(clks * 1e-9 + converted, rel=2e-3)
    assert found.cuts == ("128 x 128 x 128",)


def test_converting_takes_a_launch_and_a_block_for_each_row() -> None:
    """1,000 rows are four waves of two blocks on 132 SMs; two turns of 8,192 elements each."""
    waits = replace(NONE, row_clks=1000.0, turn_clks=300.0, convert_launches=2.0)
    with_it, without = (
        gemm_times(BY_HAND, "vllm-fp8", 1000, 4096, 16384, one, launch_s=1e-6).time_s[0] for one in (waits, NONE)
    )
    moved = 1000 * 16384 * 3 / H100.l2.bandwidth_bytes_per_s
    assert with_it - without == pytest.approx(2e-6 + 4 * 1600e-9 - moved, rel=1e-3)


@pytest.mark.parametrize(
    ("gpu", "kernel", "shape", "tile"),
    [
        # vLLM's scaled_mm_sm90_fp8_dispatch.cuh: up to 16, 64 and 128 rows, and more.
        (H100, "vllm-fp8", (16, 4096, 4096), "16 x 64 x 256"),
        (H100, "vllm-fp8", (64, 4096, 4096), "64 x 64 x 256"),
        (H100, "vllm-fp8", (64, 1280, 4096), "16 x 64 x 256"),
        (H100, "vllm-fp8", (128, 4096, 4096), "64 x 128 x 128"),
        (H100, "vllm-fp8", (129, 4096, 4096), "128 x 128 x 128"),
        # scaled_mm_sm100_fp8_dispatch.cuh: 2SM tiles of 256 x 128 are 128 x 128 of an SM.
        (B200, "vllm-fp8", (257, 4096, 4096), "128 x 128 x 128"),
        # scaled_mm_c2x_sm89_fp8_dispatch.cuh and scaled_mm_sm120_fp8_dispatch.cuh.
        (L40S, "vllm-fp8", (16, 16384, 4096), "16 x 128 x 64"),
        (RTX, "vllm-fp8", (256, 4096, 4096), "64 x 64 x 128"),
        # SGLang's fp8_gemm_kernel.cu.
        (H100, "sglang-fp8", (256, 4096, 4096), "64 x 64 x 128"),
        (RTX, "sglang-fp8", (129, 4096, 4096), "256 x 128 x 64"),
        # Traces: nvjet_tst_128x256_64x4, nvjet_sm100_tst_256x256_64x4, ampere_bf16_s16816gemm_bf16_128x256 (TILES).
        (H100, "cublas-bf16", (16384, 16384, 16384), "128 x 256 x 64"),
        (B200, "cublas-bf16", (16384, 16384, 16384), "256 x 256 x 64"),
        (A100, "cublas-bf16", (8192, 8192, 8192), "128 x 256 x 64"),
    ],
)
def test_kernels_are_launched_with_the_tiles_that_their_sources_state(
    gpu: Gpu, kernel: str, shape: tuple[int, int, int], tile: str
) -> None:
    assert run(gpu, kernel, *shape).cuts == (tile,)


def test_only_libraries_that_do_so_split_k_and_only_where_tiles_are_few() -> None:
    """cuBLAS's kernels of a decode step say so: ``nvjet_sm100_tst_64x8_64x16_2x4_h_bz_splitK_TNT``."""
    for gpu in (H100, B200, A100, L40S):
        assert "split-K" in run(gpu, "cublas-bf16", 16, 512, 16384).cuts[0]
        assert "split-K" not in run(gpu, "cublas-bf16", 8192, 8192, 512).cuts[0]
    assert "split-K" not in run(H100, "vllm-fp8", 16, 512, 16384).cuts[0]
    assert "split-K" not in run(A100, "cublas-bf16", 16, 512, 16384, batch=8).cuts[0]


@pytest.mark.parametrize("gpu", [A100, H100, B200, L40S], ids=lambda gpu: gpu.id)
def test_no_product_is_faster_than_a_smaller_one(gpu: Gpu) -> None:
    """By 3 % at most, at one clock: tiles are chosen for another, and a longer k may be split."""
    gpu = gpu.replace("clock.sustained", "1.4 GHz")
    sizes = np.unique(np.round(np.geomspace(16, 20000, 60)))
    for fixed in ((512, 1024), (4096, 4096), (8192, 14336)):
        first, second = fixed
        for shape in ((sizes, first, second), (first, sizes, second), (first, second, sizes)):
            times = run(gpu, "cublas-bf16", *shape).time_s
            assert (times[1:] > 0.97 * times[:-1]).all()


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name.endswith(("bf16", "fp8"))])
def test_no_product_beats_its_weights_from_hbm_nor_the_tensor_cores(kernel: str) -> None:
    for gpu in (H100, B200, L40S):
        m, n, k = (one.ravel() for one in np.meshgrid([1, 64, 1000, 16384], [1024, 8192], [1024, 28672]))
        e = 2 if kernel.endswith("bf16") else 1
        found = run(gpu, kernel, m, n, k)
        read_s = n * k * e / gpu.hbm.bandwidth_bytes_per_s
        peak = gpu.tensor_flops_per_clk("bf16" if e > 1 else "fp8") * gpu.sm.count * gpu.clock.full_hz
        assert (found.time_s > np.maximum(read_s, 2 * m * n * k / peak)).all()
        assert (found.flops >= 2 * m * n * k).all() and (found.hbm_bytes >= n * k * e).all()


def test_weights_that_stay_in_the_l2_are_not_read_again() -> None:
    """Of a cache that drops lines at random: h = exp(-(1 - h) 2) has its lower root at 0.203."""
    assert _missed(np.array([0.5, 2.0, 50.0])) == pytest.approx([0.0, 0.797, 1.0], abs=1e-3)
    waits = replace(fit_of("cublas-bf16", H100).waits, kept=1.0)
    cold, warm = (run(H100, "cublas-bf16", 16, 2048, 2048, waits=waits, weights=one) for one in (math.inf, 1.0))
    assert cold.hbm_bytes[0] == pytest.approx(2 * 2048 * 2048) and warm.hbm_bytes[0] == 0
    assert warm.time_s[0] < cold.time_s[0]


def test_long_products_run_at_what_power_allows_unless_the_clock_is_held() -> None:
    shape = (16384, 8192, 8192)
    free, plain, held = (
        run(H100, "cublas-bf16", *shape),
        run(H100, "cublas-bf16", *shape, power=0.3),
        run(H100.replace("clock.sustained", "1863 MHz"), "cublas-bf16", *shape),
    )
    assert free.clock[0] < 0.9 < plain.clock[0] and held.clock[0] == 1
    assert held.time_s[0] < free.time_s[0]


def test_a_changed_gpu_keeps_its_tiles_where_they_fit() -> None:
    shape = (1024, 2048, 4096)
    tile = run(H100, "cublas-bf16", *shape).cuts
    assert run(H100.replace("sm.count", "2x"), "cublas-bf16", *shape).cuts == tile
    with pytest.raises(InputError, match="smallest tile of a GEMM needs 64 KiB"):
        run(H100.replace("sm.shared_memory", "48 KiB"), "cublas-bf16", *shape)


def test_every_kernel_has_waits_that_were_held_out() -> None:
    assert set(fits()) == set(KERNELS)
    for name, of in fits().items():
        for path, fit in of.items():
            assert len(fit.gpus) > 1 and 0.05 < fit.held_out < 0.35 and fit.held_out < fit.half_width, (name, path)
            assert fit.source.startswith("aiconfigurator-core") and fit.rows > 100
    assert fits()["cublas-bf16"]["wgmma"].held_out < 0.08
    assert fits()["cublas-bf16"]["tcgen05"].held_out < 0.09
    assert fits()["cublas-bf16"]["mma_sync"].held_out < 0.12
    assert max(one.held_out for one in fits()["trtllm-grouped-bf16"].values()) < 0.14


def test_the_page_has_what_was_held_out() -> None:
    page = (Path(gemms.__file__).parents[1] / "docs" / "design" / "gemms.md").read_text(encoding="utf-8")
    for name, of in fits().items():
        for path, fit in of.items():
            off, far = f"{100 * fit.held_out:.1f}", f"{math.exp(fit.half_width):.2f}x"
            assert f"| {name} | {path} | {len(fit.gpus)} | {off} | {far} |" in page


def test_a_format_says_whose_kernel_runs() -> None:
    assert [kernel_of(dtype, "vllm") for dtype in ("bf16", "fp16", "fp8")] == ["cublas-bf16"] * 2 + ["vllm-fp8"]
    assert kernel_of("fp8", "sglang") == "sglang-fp8" and kernel_of("fp8", "nccl") == "vllm-fp8"
    assert kernel_of("bf16", "vllm", H100) == "triton-grouped-bf16"
    assert kernel_of("bf16", "vllm", B200) == "flashinfer-grouped-bf16"
    assert kernel_of("bf16", "trtllm", B200) == "trtllm-grouped-bf16"
    assert [kernel_of("fp8-block", name) for name in ("trtllm", "vllm")] == ["trtllm-fp8-block", "sglang-fp8-block"]
    assert kernel_of("fp8-block", "sglang", H100) == "triton-grouped-fp8-block"
    assert kernel_of("fp8", "vllm", B200) == "trtllm-grouped-fp8"


def test_what_the_kernel_before_has_converted_costs_no_kernel() -> None:
    waits = replace(NONE, row_clks=1000.0, convert_launches=3.0)
    own, given = (gemm_times(H100, "vllm-fp8", 16, 4096, 4096, waits, converts=one).time_s[0] for one in (1, 0))
    assert own - given == pytest.approx(3 * H100.launch.graph_s + 1500 / H100.clock.full_hz, rel=0.2)


def test_experts_read_the_weights_of_all_that_tokens_reach_and_gather_their_rows() -> None:
    """64 experts of 16 tokens each: the weights of one product of 64 times the columns, and rows are moved first."""
    waits = replace(NONE, row_clks=1000.0, convert_launches=3.0)
    grouped, one = (
        gemm_times(H100, kernel, 16, n, 2048, waits, batch=batch)
        for kernel, n, batch in (("triton-grouped-bf16", 1024, 64), ("cublas-bf16", 64 * 1024, 1))
    )
    weights = 2 * 64 * 1024 * 2048
    assert grouped.hbm_bytes[0] >= weights and one.hbm_bytes[0] >= weights
    gathered = 3 * H100.launch.graph_s + 4 * 1000 / H100.clock.full_hz  # 1,024 rows, 264 at a time
    assert grouped.time_s[0] == pytest.approx(one.time_s[0] + gathered, rel=0.05)


@pytest.mark.skipif(installed_folder() is None, reason="needs the datasets extra")
def test_committed_waits_are_as_far_off_as_recorded() -> None:
    rows = gemms.table_rows()
    one = rows[(rows.kernel == "cublas-bf16") & (rows.path == "wgmma")]
    fit = fits()["cublas-bf16"]["wgmma"]
    off = np.abs(np.log(gemms.times(one, fit.waits, 0.87) / one.time_s))
    assert off.mean() < fit.held_out + 0.01
    assert 0.88 < (off < fit.half_width).mean() < 0.93
