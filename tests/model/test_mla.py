"""Latent attention in the model: ratios that its papers state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnsim.api import predict
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.latent.records import RECORDS as MLA
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Latent, Workload
from attnsim.simulator.replay import replay
from tests.model.bounds import roofline_time, useful

GPUS = tuple(load_gpu(name) for name in ("a100-sxm4-80gb", "l40s", "h100-sxm5-80gb", "b200-sxm-180gb"))
A100, _, H100, B200 = GPUS
DEEPSEEK = Workload(16, 128, 1, 192, 128, 8192, 128, passes="decode", latent=Latent(512, 64))


def test_the_cache_against_multi_head_attention() -> None:
    """(r + dr) over H (d + dv): 1.4 % of it with 128 heads (arXiv 2405.04434, table 1 compares elements a token)."""
    decompressed = replace(DEEPSEEK, latent=None)
    assert DEEPSEEK.kv_cache_bytes / decompressed.kv_cache_bytes == 576 / (128 * 320)


@pytest.mark.parametrize("name", ["flashmla.dense", "cutlass.mla"])
def test_the_absorbed_form_executes_3_4_times_the_flops(name: str) -> None:
    """(2 r + dr) over (d + dv), where tiles are full; the products with W_UK and W_UV come on top."""
    gpu = H100 if name == "flashmla.dense" else B200
    schedule = IMPLEMENTATIONS[name].build(DEEPSEEK, gpu, None)
    main = next(kernel for kernel in schedule.kernels if kernel.name == "latent_attention")
    flops = useful(DEEPSEEK, name).flops
    assert flops == 2 * 16 * 128 * 8192 * (192 + 128)
    assert main.total("flops") / flops == pytest.approx(3.4)


def test_decompressing_makes_every_key_once() -> None:
    w = Workload(1, 128, 4096, 192, head_dim_v=128, mask=Mask.causal(), latent=Latent(512, 64))
    record = IMPLEMENTATIONS["vllm.mla-flash-attn-3"]
    schedule = record.build(w, H100, None)
    assert schedule.kernels[0].total("flops") == 2 * 4096 * 512 * 128 * (128 + 128)
    assert schedule.total("flops") - schedule.kernels[0].total("flops") < 1.05 * useful(w, record.name).flops


@pytest.mark.parametrize("record", MLA, ids=lambda record: record.name)
@pytest.mark.parametrize("batch", [1, 32])
def test_a_cold_decode_takes_as_long_as_the_cache_takes_to_be_read(record: Implementation, batch: int) -> None:
    gpu = next(gpu for gpu in GPUS if runs_on(record, gpu))
    w = replace(DEEPSEEK, batch=batch, heads_q=16, heads_kv=16)
    answer = predict(w, gpu, "mla", implementation=record.name, cache="cold", launch="kernel", baseline=False)
    assert answer.time_s is not None and answer.hbm_read_bytes is not None
    assert answer.hbm_read_bytes >= w.kv_cache_bytes
    assert answer.time_s >= w.kv_cache_bytes / gpu.hbm.bandwidth_bytes_per_s
    assert answer.time_s >= roofline_time(record.build(w, gpu, None), w, gpu)


@pytest.mark.parametrize("record", [r for r in MLA if r.form != "decompressed"], ids=lambda record: record.name)
def test_fast_mode_agrees_with_exact(record: Implementation) -> None:
    gpu = next(gpu for gpu in GPUS if runs_on(record, gpu)).replace("sm.count", 16)
    w = replace(DEEPSEEK, batch=8, seq_kv=2000, heads_q=32, heads_kv=32)
    schedule = IMPLEMENTATIONS[record.name].build(w, gpu, None)
    fast, exact = (replay(schedule, gpu, Numbers(), mode=mode).time_s for mode in ("fast", "exact"))
    assert fast == pytest.approx(exact, rel=0.06)


def test_memory_has_no_decompressed_cache_in_the_absorbed_form() -> None:
    long = replace(DEEPSEEK, batch=64, seq_kv=32768)
    absorbed = predict(long, H100, "mla", baseline=False)
    assert absorbed.fits and absorbed.peak_memory_bytes < 2 * long.kv_cache_bytes
    assert not predict(long, H100, "mla", implementation="vllm.mla-flash-attn-3", baseline=False).fits


def test_latents_of_another_width_run_where_kernels_are_not_compiled_for_one() -> None:
    w = replace(DEEPSEEK, latent=Latent(256, 32), batch=1, seq_kv=512)
    assert predict(w, A100, "mla", baseline=False).implementation == "sglang.triton-mla-absorbed"
    with pytest.raises(InputError, match="512x64"):
        predict(w, H100, "mla", implementation="flashmla.dense", baseline=False)
    assert predict(w, H100, "mla", baseline=False).implementation == "sglang.triton-mla-absorbed"
