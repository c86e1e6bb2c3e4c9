"""The implementations of this project: the schedules of the CUDA kernels in :mod:`attnsim.kernels`."""

from __future__ import annotations

from attnsim.models.closed_forms import linear as linear_cost
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.own import backward as own_backward
from attnsim.models.implementations.own import backward_tiles as own_backward_tiles
from attnsim.models.implementations.own import decode as own_decode
from attnsim.models.implementations.own import decode_tiles as own_decode_tiles
from attnsim.models.implementations.own import flash as own_flash
from attnsim.models.implementations.own import hopper as own_hopper
from attnsim.models.implementations.own import linear, linear_tiles, sparse, sparse_tiles
from attnsim.models.implementations.own import naive as own_naive

OWN_KERNELS: tuple[Implementation, ...] = (
    *(
        Implementation(
            own_naive.NAMES[passes], "naive", own_naive.builder(passes), (80, 129),
            f"this package, kernels/cuda/naive_*.cu, scale and mask {where}", like="pytorch_eager",
            dtypes=("fp16", "bf16"), passes=("fwd", "decode"), closed_form=own_naive.closed_form,
        )
        for passes, where in (("fused", "fused"), ("separate", "as passes of their own"))
    ),
    Implementation(
        own_decode_tiles.NAME, "flash-2", own_decode.build, (80, 129), "this package, kernels/cuda/decode.cu",
        like="flash_attn_v2", dtypes=("fp16", "bf16"), passes=("decode", "fwd"), closed_form=own_decode.closed_form,
    ),
    Implementation(
        sparse_tiles.NAME, "sparse", sparse.build, (80, 129), "this package, kernels/cuda/sparse_forward.cu",
        ("fused",), like="flash_attn_v2", dtypes=("fp16", "bf16"), passes=("fwd", "decode"),
        closed_form=sparse.closed_form, patterns=True,
    ),
    Implementation(
        own_flash.NAME, "flash-2", own_flash.build, (80, 129), "this package, kernels/cuda/flash_forward.cu",
        like="flash_attn_v2", dtypes=("fp16", "bf16"), passes=("fwd", "decode"), closed_form=own_flash.closed_form,
    ),
    Implementation(
        own_hopper.NAME, "flash-3", own_hopper.build, (90, 90), "this package, kernels/cuda/flash_hopper.cu",
        like="flash_attn_v3", dtypes=("fp16", "bf16"), passes=("fwd",), largest_head_dim=128,
        closed_form=own_hopper.closed_form,
    ),
    Implementation(
        own_backward_tiles.NAME, "flash-2", own_backward.build, (80, 129),
        "this package, kernels/cuda/flash_backward.cu", like="flash_attn_v2", dtypes=("fp16", "bf16"), passes=("bwd",),
        closed_form=own_backward.closed_form,
    ),
    Implementation(
        linear_tiles.NAME, "linear", linear.build, (80, 129), "this package, kernels/cuda/linear_*.cu",
        like="flash_attn_v2", dtypes=("fp16", "bf16"), passes=("fwd", "decode"), largest_head_dim=128,
        closed_form=linear_cost.closed_form, needed=linear.needed, peak_bytes=linear.peak_memory_bytes,
    ),
)  # fmt: skip
