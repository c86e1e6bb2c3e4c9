"""Descriptors of the tensor copy engine, made by the driver (``cuTensorMapEncodeTiled``, CUDA Driver API)."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.device import Array, Grid, check_launch, check_supported
from attnsim.kernels.variant import Variant, compile_variant
from attnsim.models.hardware.attached import Attached, gpu_of_attached
from attnsim.models.hardware.gpu import Gpu
from attnsim.ptx.counters import POISON
from attnsim.ptx.nvrtc import find_nvrtc

DATA_TYPE = {"float16": 6, "uint16": 9}
"""CU_TENSOR_MAP_DATA_TYPE_FLOAT16 and _BFLOAT16."""
SWIZZLE_128B = 3
PROMOTE_L2_256B = 3
COLUMNS = 64
"""Width of a box: 128 bytes, the span of the swizzle."""
MAP_BYTES, MAP_ALIGNMENT = 128, 64


def tensor_map(array: Any, rows: int) -> NDArray[Any]:
    """Return the tensor map of ``[batch, heads, seq, head_dim]`` for boxes of `rows` x 64 elements of one head.

    Rows past the end of a head arrive as zeros.

    Parameters
    ----------
    array : cupy.ndarray
        16-bit, C-contiguous.
    rows : int
        At most 256.

    Returns
    -------
    ndarray of 128 bytes, shape ``[1]``
        Passed by value as a kernel argument.

    Raises
    ------
    InputError
        If the driver has no such call, or rejects the shape.
    """
    batch, heads, seq, width = array.shape
    storage = np.zeros(MAP_BYTES + MAP_ALIGNMENT, np.uint8)
    offset = -storage.ctypes.data % MAP_ALIGNMENT
    encoded = storage[offset : offset + MAP_BYTES].view(np.dtype((np.void, MAP_BYTES)))
    dims = (ctypes.c_uint64 * 3)(width, seq, batch * heads)
    strides = (ctypes.c_uint64 * 2)(width * 2, seq * width * 2)
    box = (ctypes.c_uint32 * 3)(COLUMNS, rows, 1)
    steps = (ctypes.c_uint32 * 3)(1, 1, 1)
    status = _encoder()(
        ctypes.c_void_p(encoded.ctypes.data),
        DATA_TYPE[str(array.dtype)],
        3,
        ctypes.c_void_p(int(array.data.ptr)),
        dims,
        strides,
        box,
        steps,
        0,  # not interleaved
        SWIZZLE_128B,
        PROMOTE_L2_256B,
        0,  # out of bounds: zeros
    )
    if status != 0:
        raise InputError(f"the driver refuses a tensor map of shape {list(array.shape)}, {rows} rows a box: {status}")
    return encoded


def _encoder() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        raise InputError(
            "the driver has no tensor maps; flash_hopper needs CUDA 12 or newer and a Hopper GPU"
        ) from None


OPT_IN_BYTES = 48 * 1024
"""Shared memory of a block without opt-in (CUDA Programming Guide, "Compute Capability 7.x: Shared Memory")."""


LASTING = "the device stays in error for this process"
"""Part of the message of an error that leaves the process unable to run kernels."""


class CudaError(RuntimeError):
    """A kernel was rejected by the GPU, or failed while it ran."""


class CudaDevice:
    """Runs kernels on the current CUDA device.

    Parameters
    ----------
    poison : bool
        Fill fresh memory with NaN, so that unwritten outputs are noticed.
    synchronous : bool
        Wait after every launch, so that a failure names the kernel that failed.

    Attributes
    ----------
    gpu : Gpu
        The built-in record of this GPU, or one made from the driver's attributes.

    Raises
    ------
    InputError
        If there is no CuPy, driver or GPU, or the GPU is too old; the message says what is missing.
    """

    persistent = True

    def __init__(self, *, poison: bool = False, synchronous: bool = False) -> None:
        self._cupy = import_cupy()
        self._id = int(self._cupy.cuda.runtime.getDevice())
        self.gpu: Gpu = _gpu_of(self._id)
        check_supported(self.gpu)
        self.poison = poison
        self.synchronous = synchronous
        self._kernels: dict[Variant, Any] = {}

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate an array of unspecified content, or of poison."""
        with self._on_device(f"allocate {dtype} {list(shape)}"):
            array = self._cupy.empty(shape, dtype)
            if self.poison and array.nbytes:
                array.reshape(-1).view("uint8").fill(POISON)
        return array

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate an array of zeros."""
        with self._on_device(f"allocate {dtype} {list(shape)}"):
            return self._cupy.zeros(shape, dtype)

    def upload(self, array: Any) -> Array:
        """Copy a NumPy array to this device, contiguous."""
        with self._on_device("upload"):
            return self._cupy.array(array, order="C")

    def download(self, array: Array) -> NDArray[Any]:
        """Copy an array of this device to NumPy, after everything launched before."""
        with self._on_device("download"):
            found: NDArray[Any] = self._cupy.asnumpy(array)
            return found

    def tensor_map(self, array: Array, rows: int) -> NDArray[Any]:
        """Return the driver's tensor map for boxes of `rows` x 64 elements of one head."""
        with self._on_device(f"describe boxes of {rows} rows"):
            return tensor_map(array, rows)

    def synchronize(self) -> None:
        """Wait until all launches have completed.

        Raises
        ------
        CudaError
            If a launch failed.
        """
        with self._on_device("synchronize"):
            self._cupy.cuda.get_current_stream().synchronize()

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Array]) -> None:
        """Launch a kernel on the current stream.

        Raises
        ------
        InputError
            If the GPU cannot run it: architecture, threads, shared memory, registers, grid, arguments.
        CudaError
            If the driver rejects it nevertheless, or reports that an earlier kernel failed.
        """
        check_launch(variant, grid, arguments, self.gpu)
        for name, value in arguments.items():
            self._check_argument(variant, name, value)
        kernel = self.kernel(variant)
        with self._on_device(f"launch {described(variant, grid)}"):
            kernel(grid, (variant.threads, 1, 1), tuple(arguments.values()), shared_mem=variant.shared_memory_bytes)
            if self.synchronous:
                self._cupy.cuda.get_current_stream().synchronize()

    def kernel(self, variant: Variant) -> Any:
        """Return the loaded kernel, a ``cupy.RawKernel`` with its shared memory opted in to.

        Raises
        ------
        InputError
            If it does not compile, or needs more registers than a block of its size can have.
        """
        if variant in self._kernels:
            return self._kernels[variant]
        with self._on_device(f"load {variant.label}"):
            kernel = self._load(variant)
            most = int(kernel.max_threads_per_block)
            if most < variant.threads:
                raise InputError(
                    f"Registers: {variant.label} takes {kernel.num_regs} a thread, so that a block may have {most} "
                    f"threads on {self.gpu.id}, not {variant.threads}; choose a smaller tile"
                )
            if variant.shared_memory_bytes + int(kernel.shared_size_bytes) >= OPT_IN_BYTES:
                kernel.max_dynamic_shared_size_bytes = variant.shared_memory_bytes
        self._kernels[variant] = kernel
        return kernel

    def _load(self, variant: Variant) -> Any:
        """Compile for exactly this GPU and hand the file to the driver; CuPy reads it before this returns."""
        number = self.gpu.compute_capability_number
        known = find_nvrtc().architectures
        if number in known or variant.arch_suffix:
            suffix, content = "cubin", compile_variant(variant, f"{number}{variant.arch_suffix}").cubin
        else:  # a GPU newer than the compiler: the driver assembles the PTX of the newest it knows
            newest = max(arch for arch in known if arch <= number)
            suffix, content = "ptx", compile_variant(variant, str(newest), cubin=False).ptx.encode() + b"\0"
        with tempfile.TemporaryDirectory(prefix="attnsim-") as folder:
            path = Path(folder) / f"{variant.entry}.{suffix}"
            path.write_bytes(content)
            return self._cupy.RawModule(path=str(path)).get_function(variant.entry)

    def _check_argument(self, variant: Variant, name: str, value: Any) -> None:
        if not isinstance(value, self._cupy.ndarray):
            by_value = getattr(value, "size", 0) == 1  # a scalar, or one structure of bytes such as a tensor map
            if not by_value:
                raise InputError(f"{variant.label}: {name} is a {type(value).__name__}; pass arrays of CuPy")
            return
        if value.device.id != self._id:
            raise InputError(
                f"{variant.label}: {name} is on CUDA device {value.device.id}, the kernel runs on {self._id}; copy it, "
                f"or work inside 'with cupy.cuda.Device({value.device.id})'"
            )
        if not value.flags.c_contiguous:  # a kernel gets the bare address and would read it as if it were
            raise InputError(f"{variant.label}: {name} is not contiguous; pass it through ascontiguousarray first")

    @contextmanager
    def _on_device(self, action: str) -> Iterator[None]:
        """Run a block of code on this device, and turn driver errors into one line with the failed action."""
        cuda = self._cupy.cuda
        try:
            with cuda.Device(self._id):
                yield
        except cuda.memory.OutOfMemoryError as error:
            free, total = cuda.runtime.memGetInfo()
            raise InputError(
                f"cannot {action} on {self.gpu.id}: {error}; {free / 1e9:.1f} of {total / 1e9:.1f} GB are free, "
                "take a smaller workload"
            ) from None
        except (cuda.driver.CUDADriverError, cuda.runtime.CUDARuntimeError) as error:
            raise CudaError(f"cannot {action} on {self.gpu.id}: {error}{self._lasting()}") from error

    def _lasting(self) -> str:
        """Return the end of an error message: whether the device is still usable."""
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except RuntimeError:
            hint = "" if self.synchronous else " with CudaDevice(synchronous=True), which names the kernel that fails"
            return f"; {LASTING}, start a new one{hint}"
        return "; the device is usable"


def described(variant: Variant, grid: Grid) -> str:
    """Describe a launch: kernel, grid, block, shared memory and options."""
    constants = " ".join(f"-D{name}={value}" for name, value in variant.defines)
    return (
        f"{variant.entry} with {' x '.join(map(str, grid))} blocks of {variant.threads} threads, "
        f"{variant.shared_memory_bytes / 1024:g} KiB shared memory, {constants}"
    )


def import_cupy() -> Any:
    """Import CuPy and check that a GPU is usable.

    Raises
    ------
    InputError
        If the package, the driver or the GPU is missing; the message has the fix.
    """
    try:
        import cupy
    except ImportError as error:
        raise InputError(
            f"running kernels on a GPU needs CuPy ({error}); install it: pip install 'attnsim[gpu]', or run on the CPU"
        ) from None
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(
            f"CuPy finds no usable driver ({error}); install NVIDIA's driver for CUDA 13 (`attnsim doctor` says more), "
            "or run on the CPU"
        ) from None
    if not count:
        raise InputError("CuPy finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or run on the CPU")
    return cupy


def attached(device_id: int) -> Attached:
    """Return the driver's description of a CUDA device."""
    cupy = import_cupy()
    device = cupy.cuda.Device(device_id)
    name = cupy.cuda.runtime.getDeviceProperties(device_id)["name"]
    with device:
        _, total = cupy.cuda.runtime.memGetInfo()
    return Attached(
        name=name.decode() if isinstance(name, bytes) else str(name),
        capability=int(device.compute_capability),
        memory_bytes=int(total),
        attributes={key: int(value) for key, value in device.attributes.items()},
    )


@functools.cache
def _gpu_of(device_id: int) -> Gpu:
    found = attached(device_id)
    try:
        from attnsim.models.hardware.files import known_gpu_ids, load_gpu
    except ImportError:  # a bare GPU machine: no YAML, no pydantic
        return gpu_of_attached(found)
    return gpu_of_attached(found, map(load_gpu, known_gpu_ids()))
