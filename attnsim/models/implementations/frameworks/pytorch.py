"""Unfused attention as PyTorch runs it: which passes over the scores each way of calling it makes."""

from __future__ import annotations

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import FLASH_ATTENTION
from attnsim.models.implementations.frameworks.eager import check_no_tile, gemm_path
from attnsim.models.implementations.frameworks.naive import FORMS, naive
from attnsim.models.implementations.implementation import (
    ANY_WIDTH,
    BROADCAST,
    EVERY_GPU,
    FORMATS,
    SDPA,
    Builder,
    Implementation,
    TileRequest,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def unfused(name: str, form: str) -> Builder:
    """A builder of one of :data:`~attnsim.models.implementations.frameworks.naive.FORMS`."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_no_tile(name, shape)
        return naive(w, gpu, name, FORMS[form], gemm_path(gpu))

    return build


RECORDS = (
    Implementation(
        "torch.baddbmm", "naive", unfused("torch.baddbmm", "benchmark"), EVERY_GPU,
        f"{FLASH_ATTENTION} benchmarks/benchmark_flash_attention.py", dtypes=FORMATS, extra=BROADCAST,
        largest_head_dim=ANY_WIDTH, form="benchmark",
        calls=("torch.baddbmm, torch.softmax, torch.bmm (attention_pytorch of flash-attention's benchmarks)",),
        aliases=("pytorch", "standard"),
    ),
    Implementation(
        "torch.eager", "naive", unfused("torch.eager", "eager"), EVERY_GPU,
        "PyTorch matmul, softmax, dropout, matmul on [batch, heads, seq, head_dim]", like="torch.baddbmm",
        dtypes=FORMATS, extra=BROADCAST, largest_head_dim=ANY_WIDTH, form="eager",
        calls=("torch.matmul, torch.softmax, torch.nn.functional.dropout, torch.matmul",), aliases=("pytorch_eager",),
    ),
    Implementation(
        "torch.sdpa-math", "naive", unfused("torch.sdpa-math", "sdpa_math"), EVERY_GPU,
        "PyTorch 2.5 scaled_dot_product_attention, math backend", like="torch.baddbmm", dtypes=FORMATS,
        largest_head_dim=ANY_WIDTH, form="sdpa_math", calls=(f"{SDPA}.MATH",), versions=("2.5",),
        aliases=("pytorch_sdpa_math",),
    ),
    Implementation(
        "ideal.unfused", "naive", unfused("ideal.unfused", "fused_epilogue"), EVERY_GPU,
        "the fewest passes that an unfused form can make", like="torch.eager", dtypes=(*FORMATS, "fp8"),
        largest_head_dim=ANY_WIDTH, form="fused_epilogue", aliases=("naive_fused_epilogue",),
    ),
)  # fmt: skip
