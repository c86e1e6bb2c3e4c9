"""The cuBLAS yardstick without a GPU: what it asks of cuBLAS, carried out on the same addresses by NumPy."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.exercising import exercise_attention
from attnsim.kernels.naive_cublas import CUDA_R_16BF, CUDA_R_16F, naive_cublas
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE


class FakeCupyArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array with what the operation asks of CuPy's."""

    __cuda_array_interface__ = property(lambda self: self.__array_interface__)
    device = property(lambda self: nullcontext())

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class FakeCudaDevice(CpuDevice):
    """The interpreter, its arrays dressed up as CuPy's."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return super().empty(shape, dtype).view(FakeCupyArray)

    def upload(self, array: Any) -> NDArray[Any]:
        return super().upload(array).view(FakeCupyArray)

    def launch(self, variant: Any, grid: Any, arguments: Any) -> None:
        plain = {name: np.asarray(value) if np.ndim(value) else value for name, value in arguments.items()}
        super().launch(variant, grid, plain)


def matrices(address: int, kind: int, shape: tuple[int, int], leading: int, stride: int, batch: int) -> NDArray[Any]:
    """A batch of column-major matrices: [batch, rows, columns], as a view of memory."""
    dtype = {CUDA_R_16F: np.dtype(np.float16), CUDA_R_16BF: np.dtype(np.uint16)}[kind]
    rows, columns = shape
    assert rows <= leading and address % 16 == 0 and leading % 8 == 0, "tensor cores want 16-byte rows"
    last = (batch - 1) * stride + (columns - 1) * leading + rows
    flat = np.ctypeslib.as_array((ctypes.c_uint16 * last).from_address(address)).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), (2 * stride, 2, 2 * leading))


def gemm_strided_batched(
    handle: int, a_turned: int, b_turned: int, m: int, n: int, k: int, alpha: int,
    a: int, a_kind: int, lda: int, a_stride: int, b: int, b_kind: int, ldb: int, b_stride: int,
    beta: int, c: int, c_kind: int, ldc: int, c_stride: int, batch: int, compute: int, algorithm: int,
) -> None:  # fmt: skip
    """``cublasGemmStridedBatchedEx`` as its reference describes it: C = alpha op(A) op(B), by columns, beta 0."""
    assert (handle, compute, algorithm) == (7, 68, -1)
    factor, nothing = (ctypes.c_float.from_address(address).value for address in (alpha, beta))
    assert nothing == 0
    left = matrices(a, a_kind, (k, m) if a_turned else (m, k), lda, a_stride, batch)
    right = matrices(b, b_kind, (n, k) if b_turned else (k, n), ldb, b_stride, batch)
    left, right = (decode(x) for x in (left, right))
    product = factor * ((left.swapaxes(1, 2) if a_turned else left) @ (right.swapaxes(1, 2) if b_turned else right))
    matrices(c, c_kind, (m, n), ldc, c_stride, batch)[:] = encode(product, "fp16" if c_kind == CUDA_R_16F else "bf16")


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, libs = ModuleType("cupy.cuda"), ModuleType("cupy_backends.cuda.libs")
    cuda.device = SimpleNamespace(get_cublas_handle=lambda: 7)  # type: ignore[attr-defined]
    libs.cublas = SimpleNamespace(gemmStridedBatchedEx=gemm_strided_batched)  # type: ignore[attr-defined]
    for name in ("cupy", "cupy_backends", "cupy_backends.cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libs)


@pytest.mark.usefixtures("fake_cupy")
@pytest.mark.parametrize(
    "w",
    [
        Workload(2, 6, 33, 64, 2, 61, dtype="fp16", mask=Mask.causal()),
        Workload(2, 2, 70, 128, 1, 9, dtype="bf16", mask=Mask(left=20, right=2)),
        Workload(1, 1, 1, 256, dtype="bf16"),
    ],
    ids=str,
)
def test_operands_are_where_cublas_is_told(w: Workload) -> None:
    device = FakeCudaDevice()
    assert exercise_attention(naive_cublas, device, w).largest_error() <= TOLERANCE[w.dtype]
    assert [one.variant.entry for one in device.launches] == ["naive_softmax"]


def test_numpy_arrays_are_refused(cpu_device: CpuDevice) -> None:
    q = np.zeros((1, 1, 8, 64), np.float16)
    with pytest.raises(InputError, match="Q is an array of numpy; cuBLAS takes CuPy's, on a GPU"):
        naive_cublas(cpu_device, q, q, q)
