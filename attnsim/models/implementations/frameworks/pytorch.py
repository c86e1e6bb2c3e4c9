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
    Builder,
    Implementation,
    Shape,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def unfused(name: str, form: str) -> Builder:
    """A builder of one of :data:`~attnsim.models.implementations.frameworks.naive.FORMS`."""

    def build(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
        check_no_tile(name, shape)
        return naive(w, gpu, name, FORMS[form], gemm_path(gpu))

    return build


RECORDS = (
    Implementation(
        "pytorch", "naive", unfused("pytorch", "benchmark"), EVERY_GPU,
        f"{FLASH_ATTENTION} benchmarks/benchmark_flash_attention.py", ("standard",), dtypes=FORMATS, extra=BROADCAST,
        largest_head_dim=ANY_WIDTH, form="benchmark",
    ),
    Implementation(
        "pytorch_eager", "naive", unfused("pytorch_eager", "eager"), EVERY_GPU,
        "PyTorch matmul, softmax, dropout, matmul on [batch, heads, seq, head_dim]", like="pytorch", dtypes=FORMATS,
        extra=BROADCAST, largest_head_dim=ANY_WIDTH, form="eager",
    ),
    Implementation(
        "pytorch_sdpa_math", "naive", unfused("pytorch_sdpa_math", "sdpa_math"), EVERY_GPU,
        "PyTorch 2.5 scaled_dot_product_attention, math backend", like="pytorch", dtypes=FORMATS,
        largest_head_dim=ANY_WIDTH, form="sdpa_math",
    ),
    Implementation(
        "naive_fused_epilogue", "naive", unfused("naive_fused_epilogue", "fused_epilogue"), EVERY_GPU,
        "the fewest passes that an unfused form can make", like="pytorch_eager", dtypes=(*FORMATS, "fp8"),
        largest_head_dim=ANY_WIDTH, form="fused_epilogue",
    ),
)  # fmt: skip
