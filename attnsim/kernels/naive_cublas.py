"""Unfused attention with cuBLAS GEMMs and our softmax kernel, as a baseline on a GPU.

CuPy has no bf16 arrays, so cuBLAS is called through CuPy's binding of ``cublasGemmStridedBatchedEx`` on raw addresses
(cupy/cupy, ``cupy_backends/cuda/libs/cublas.pxd``) rather than through ``cupy.matmul``; the scale is the GEMM's alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim.errors import InputError
from attnsim.kernels.arrays import attention_workload, factor_of
from attnsim.kernels.device import Array, Device
from attnsim.kernels.naive import check_memory, empty_scores, softmax
from attnsim.models.implementations.own import naive as own_naive
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

CUDA_R_16F, CUDA_R_16BF = 2, 14
"""``cudaDataType_t`` (CUDA's library_types.h)."""
CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_COMPUTE_32F = 68
CUBLAS_GEMM_DEFAULT = -1


def naive_cublas(
    device: Device, q: Array, k: Array, v: Array, *, mask: Mask | None = None, scale: float | None = None
) -> tuple[Array, Array]:
    """Compute O and the log-sum-exp in three kernels, as :func:`attnsim.kernels.naive.naive_forward`.

    S and P have 16 bits. In fp16, a score above 65,504 becomes infinite and its row NaN, as in frameworks. Query heads
    that share a key/value head are stacked into one matrix, so that grouped heads also form one batch.

    Parameters
    ----------
    device : Device
        A GPU.
    q : CuPy array ``[batch, heads_q, seq_q, head_dim]``
    k, v : CuPy array ``[batch, heads_kv, seq_kv, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64, 128 or 256.
    mask : Mask, optional
        A diagonal band; default none.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.

    Returns
    -------
    o : CuPy array ``[batch, heads_q, seq_q, head_dim]``
    lse : CuPy array ``[batch, heads_q, seq_q]``, float32

    Raises
    ------
    InputError
        If the arrays are not on a GPU, the kernels do not support them, or S and P do not fit the GPU's memory.
    """
    w = attention_workload(q, k, v, mask, head_dims=own_naive.HEAD_DIMS)
    for name, array in (("Q", q), ("K", k), ("V", v)):
        if not hasattr(array, "__cuda_array_interface__"):
            given = type(array).__module__.split(".")[0]
            raise InputError(
                f"{name} is an array of {given}; cuBLAS takes CuPy's, on a GPU; elsewhere take naive_forward"
            )
    factor = factor_of(w, scale)
    check_memory(device, w)
    rows, stride, d = w.group * w.seq_q, own_naive.score_stride(w.seq_kv), w.head_dim
    s, o = empty_scores(device, w), device.empty(q.shape, str(q.dtype))
    # cuBLAS counts by columns, so it gets the transposes: S^T = K Q^T and O^T = V^T P^T.
    keys, queries = _Operand(k, d, w.seq_kv * d, transposed=True), _Operand(q, d, rows * d)
    _multiply(w, (w.seq_kv, rows, d), keys, queries, _Operand(s, stride, rows * stride), factor)
    p, lse = softmax(device, w, s, w.mask)
    values, weights = _Operand(v, d, w.seq_kv * d), _Operand(p, stride, rows * stride)
    _multiply(w, (d, rows, w.seq_kv), values, weights, _Operand(o, d, rows * d), 1.0)
    return o, lse


@dataclass(frozen=True, slots=True)
class _Operand:
    """A batch of matrices, with the strides between rows and between matrices in elements."""

    array: Any
    row: int
    matrix: int
    transposed: bool = False


def _multiply(w: Workload, shape: tuple[int, int, int], a: _Operand, b: _Operand, c: _Operand, factor: float) -> None:
    """Compute C = factor A B for each key/value head, column-major, accumulated in fp32."""
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    alpha, beta = np.array(factor, np.float32), np.array(0.0, np.float32)
    kind = CUDA_R_16F if w.dtype == "fp16" else CUDA_R_16BF
    orders = (CUBLAS_OP_T if operand.transposed else CUBLAS_OP_N for operand in (a, b))

    def arguments_of(operand: _Operand) -> tuple[int, int, int, int]:
        return operand.array.data.ptr, kind, operand.row, operand.matrix

    with c.array.device:
        cublas.gemmStridedBatchedEx(
            device.get_cublas_handle(),
            *orders,
            *shape,
            alpha.ctypes.data,
            *arguments_of(a),
            *arguments_of(b),
            beta.ctypes.data,
            *arguments_of(c),
            w.batch * w.heads_kv,
            CUBLAS_COMPUTE_32F,
            CUBLAS_GEMM_DEFAULT,
        )
