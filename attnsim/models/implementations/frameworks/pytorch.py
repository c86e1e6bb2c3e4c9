"""Unfused attention as PyTorch runs it: which passes over the scores each way of calling it makes."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import FLASH_ATTENTION
from attnsim.models.implementations.frameworks.eager import check_no_tile, gemm_path
from attnsim.models.implementations.frameworks.naive import FORMS, naive, peak_memory_bytes
from attnsim.models.implementations.implementation import (
    ANY_WIDTH,
    BROADCAST,
    EVERY_GPU,
    FORMATS,
    SDPA,
    Implementation,
    TileRequest,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def unfused(name: str, form: str, source: str, **rest: Any) -> Implementation:
    """The record of one of :data:`~attnsim.models.implementations.frameworks.naive.FORMS`; `rest` as of any record."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_no_tile(name, shape)
        return naive(w, gpu, name, FORMS[form], gemm_path(gpu))

    return Implementation(
        name, "naive", build, EVERY_GPU, source, form=form, unfused=True, tunable=False, largest_head_dim=ANY_WIDTH,
        peak_bytes=partial(peak_memory_bytes, form=FORMS[form]), **{"dtypes": FORMATS, **rest},
    )  # fmt: skip


RECORDS = (
    unfused(
        "torch.baddbmm", "benchmark", f"{FLASH_ATTENTION} benchmarks/benchmark_flash_attention.py", extra=BROADCAST,
        calls=("torch.baddbmm, torch.softmax, torch.bmm (attention_pytorch of flash-attention's benchmarks)",),
        aliases=("pytorch", "standard"),
    ),
    unfused(
        "torch.eager", "eager", "PyTorch matmul, softmax, dropout, matmul on [batch, heads, seq, head_dim]",
        like="torch.baddbmm", extra=BROADCAST, aliases=("pytorch_eager",),
        calls=("torch.matmul, torch.softmax, torch.nn.functional.dropout, torch.matmul",),
    ),
    unfused(
        "torch.sdpa-math", "sdpa_math", "PyTorch 2.5 scaled_dot_product_attention, math backend", like="torch.baddbmm",
        calls=(f"{SDPA}.MATH",), versions=("2.5",), aliases=("pytorch_sdpa_math",),
    ),
    unfused(
        "ideal.unfused", "fused_epilogue", "the fewest passes that an unfused form can make", like="torch.eager",
        dtypes=(*FORMATS, "fp8"), aliases=("naive_fused_epilogue",),
    ),
)  # fmt: skip
