"""How kernels are handed to CuPy, against a stand-in for it: what it is given, in which order, and what goes wrong.

That real kernels run on a real GPU is for tests/gpu to say.
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.kernels.gpu import cuda_device as gpu_module
from attnsim.kernels.gpu.cuda_device import CudaDevice, CudaError
from attnsim.kernels.variant import Variant

ATTRIBUTES = {"MultiProcessorCount": 132, "MaxThreadsPerMultiProcessor": 2048, "L2CacheSize": 52428800}
KERNEL = Variant("k.cu", "k", (("ELEMENT", "Half"), ("HEAD_DIM", 64)), threads=128, shared_memory_bytes=65536)


class CudaRuntimeError(RuntimeError):
    pass


class CudaDriverError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class FakeArray(np.ndarray[Any, Any]):
    """An array as CuPy's would look, on device 0."""

    on = 0

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.on)


class FakeCupy:
    """The few names of CuPy that a device uses, and a record of what was asked of them."""

    ndarray = FakeArray

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.launch_error: Exception | None = None
        self.sticky = False
        self.most_threads = 1024
        self.count = 1
        stream = SimpleNamespace(synchronize=lambda: self.log.append("synchronize"))
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                CUDARuntimeError=CudaRuntimeError,
                getDevice=lambda: 0,
                getDeviceCount=lambda: self.count,
                getDeviceProperties=lambda number: {"name": b"NVIDIA H100 80GB HBM3"},
                memGetInfo=lambda: (79 * 2**30, 79 * 2**30),
                deviceSynchronize=self.device_synchronize,
            ),
            driver=SimpleNamespace(CUDADriverError=CudaDriverError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=FakeDevice,
            get_current_stream=lambda: stream,
        )

    def device_synchronize(self) -> None:
        if self.sticky:
            raise CudaRuntimeError("cudaErrorIllegalAddress")

    def empty(self, shape: tuple[int, ...], dtype: str) -> FakeArray:
        if np.prod(shape) > 1e9:
            raise OutOfMemoryError("Out of memory allocating 4,000,000,000 bytes")
        return np.zeros(shape, dtype).view(FakeArray)

    zeros = empty

    def array(self, values: Any, order: str) -> FakeArray:
        return np.array(values, order="C").view(FakeArray)

    def asnumpy(self, values: FakeArray) -> Any:
        return np.asarray(values)

    def RawModule(self, path: str) -> Any:
        def get_function(entry: str) -> FakeKernel:
            self.log.append(("load", entry, Path(path).read_bytes()[:4]))
            self.path = Path(path)
            return FakeKernel(self)

        return SimpleNamespace(get_function=get_function)


class FakeDevice:
    compute_capability = "90"
    attributes = ATTRIBUTES

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class FakeKernel:
    num_regs = 200
    shared_size_bytes = 0
    max_dynamic_shared_size_bytes = 49152

    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy
        self.max_threads_per_block = cupy.most_threads

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
        if self.cupy.launch_error:
            raise self.cupy.launch_error
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        self.cupy.log.append(("launch", grid, block, len(arguments), shared_mem))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    compiled = SimpleNamespace(cubin=b"\x7fELF", ptx="//")
    monkeypatch.setattr(gpu_module, "compile_variant", lambda *_, **__: compiled)
    gpu_module._gpu_of.cache_clear()
    yield fake
    gpu_module._gpu_of.cache_clear()


def arguments(device: CudaDevice) -> dict[str, Any]:
    return {"Q": device.zeros((2, 3), "float16"), "seq": np.int32(3)}


def test_a_kernel_is_loaded_once_opted_in_to_its_shared_memory_and_launched(cupy: FakeCupy) -> None:
    device = CudaDevice()
    assert device.gpu.id == "h100-sxm5-80gb"
    for _ in range(2):
        device.launch(KERNEL, (4, 2, 1), arguments(device))
    launch = ("launch", (4, 2, 1), (128, 1, 1), 2, 65536)
    assert cupy.log == [("load", "k", b"\x7fELF"), launch, launch]
    assert device.kernel(KERNEL).max_dynamic_shared_size_bytes == 65536
    assert not cupy.path.exists() and not cupy.path.parent.exists()


def test_little_shared_memory_is_not_asked_for(cupy: FakeCupy) -> None:
    device, small = CudaDevice(), dataclasses.replace(KERNEL, shared_memory_bytes=1024)
    device.launch(small, (1, 1, 1), arguments(device))
    assert device.kernel(small).max_dynamic_shared_size_bytes == 49152


def test_a_synchronous_device_waits_after_each_launch(cupy: FakeCupy) -> None:
    device = CudaDevice(synchronous=True)
    device.launch(KERNEL, (1, 1, 1), arguments(device))
    assert cupy.log[-1] == "synchronize"


def test_poison_is_nan_in_every_format(cupy: FakeCupy) -> None:
    device = CudaDevice(poison=True)
    assert np.isnan(device.download(device.empty((2, 3), "float16"))).all()
    assert (device.download(device.empty((2,), "uint16")) == 0xFFFF).all()


def test_what_does_not_fit_is_refused_before_anything_is_launched(cupy: FakeCupy) -> None:
    device = CudaDevice()
    good = arguments(device)
    elsewhere, strided = np.zeros(3).view(FakeArray), np.zeros((2, 3)).T.view(FakeArray)
    elsewhere.on = 1
    for changed, kernel, told in (
        ({}, dataclasses.replace(KERNEL, shared_memory_bytes=228 * 1024), "has 227 KiB per block"),
        ({}, dataclasses.replace(KERNEL, compute_capability=(10, 0)), "at least 10.0 (B200 or newer)"),
        ({"Q": np.zeros((2, 3))}, KERNEL, "Q is a ndarray; pass arrays of CuPy"),
        ({"Q": elsewhere}, KERNEL, "Q is on CUDA device 1, the kernel runs on 0"),
        ({"Q": strided}, KERNEL, "Q is not contiguous"),
        ({"seq": 3}, KERNEL, "seq is 3; wrap scalars"),
    ):
        with pytest.raises(InputError) as error:
            device.launch(kernel, (1, 1, 1), {**good, **changed})
        assert told in str(error.value)
    assert cupy.log == []


def test_a_structure_of_bytes_travels_by_value(cupy: FakeCupy) -> None:
    device = CudaDevice()
    tensor_map = np.zeros(1, np.dtype((np.void, 128)))
    device.launch(KERNEL, (1, 1, 1), {"Q": tensor_map})
    assert cupy.log[-1][0] == "launch"


def test_too_many_registers_are_refused_with_what_would_fit(cupy: FakeCupy) -> None:
    cupy.most_threads = 64
    with pytest.raises(InputError, match=r"Registers: .* takes 200 a thread.*may have 64 threads.*not 128"):
        CudaDevice().launch(KERNEL, (1, 1, 1), {})


@pytest.mark.parametrize(("sticky", "told"), [(False, "the device is usable"), (True, "start a new one")])
def test_an_error_of_the_driver_names_kernel_grid_and_options(cupy: FakeCupy, sticky: bool, told: str) -> None:
    device = CudaDevice()
    cupy.launch_error, cupy.sticky = CudaDriverError("CUDA_ERROR_INVALID_VALUE"), sticky
    with pytest.raises(CudaError) as error:
        device.launch(KERNEL, (4, 1, 1), arguments(device))
    for part in ("k with 4 x 1 x 1 blocks of 128 threads", "64 KiB", "-DHEAD_DIM=64", "INVALID_VALUE", told):
        assert part in str(error.value)


def test_memory_that_runs_out_is_the_callers_to_mend(cupy: FakeCupy) -> None:
    with pytest.raises(InputError, match=r"cannot allocate float32 \[2000000000\].*84\.8 of 84\.8 GB are free"):
        CudaDevice().empty((2_000_000_000,), "float32")


def test_a_machine_without_a_gpu_says_what_is_missing(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy.count = 0
    with pytest.raises(InputError, match="no GPU; check nvidia-smi"):
        CudaDevice()

    def no_driver() -> int:
        raise CudaRuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", no_driver)
    with pytest.raises(InputError, match="no usable driver"):
        CudaDevice()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=r"needs CuPy.*pip install 'attnsim\[gpu\]'"):
        CudaDevice()
