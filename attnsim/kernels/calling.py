"""Operations as functions of arrays: the arrays determine the device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from attnsim.errors import InputError
from attnsim.kernels.catalog import Operation
from attnsim.kernels.device import Device
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.models.mask.mask import Mask


def device_of(*arrays: Any) -> Device:
    """Return the device of arrays: the interpreter for NumPy arrays, their GPU for CuPy arrays.

    Raises
    ------
    InputError
        For other arrays, or a mixture of both.
    """
    kinds = {type(array).__module__.partition(".")[0] for array in arrays}
    if kinds == {"cupy"}:
        return _gpu(arrays[0].device.id)
    if all(isinstance(array, np.ndarray) for array in arrays):
        from attnsim.kernels.cpu_device import CpuDevice

        return CpuDevice()
    given = ", ".join(type(array).__name__ for array in arrays)
    raise InputError(
        f"arrays of {given}; give all of NumPy (run in the interpreter) or all of CuPy (run on the GPU; from PyTorch: "
        "cupy.from_dlpack(tensor), for bf16 of tensor.view(torch.uint16))"
    )


@functools.cache
def _gpu(number: int) -> Device:
    import cupy

    with cupy.cuda.Device(number):
        return CudaDevice()


def on_arrays(operation: Operation) -> Callable[..., Any]:
    """Wrap an operation to take arrays only, without a device; ``causal=True`` is short for a causal mask."""
    call = operation.call()
    signature = inspect.signature(call)
    takes_mask = "mask" in signature.parameters
    count = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in signature.parameters.values()) - 1

    def called(*arrays: Any, **options: Any) -> Any:
        if len(arrays) != count:
            names = ", ".join(list(signature.parameters)[1 : count + 1])
            raise InputError(f"{operation.function} takes {count} arrays: {names}; {len(arrays)} given")
        if takes_mask and "causal" in options:
            causal, mask = options.pop("causal"), options.pop("mask", None)
            options["mask"] = (mask or Mask()) & Mask.causal() if causal else mask
        unknown = options.keys() - signature.parameters.keys()
        if unknown:
            allowed = ", ".join([*list(signature.parameters)[count + 1 :], *(["causal"] if takes_mask else [])])
            raise InputError(f"{operation.function} does not take {', '.join(sorted(unknown))}; allowed: {allowed}")
        return call(device_of(*arrays), *arrays, **options)

    called.__name__ = called.__qualname__ = operation.function
    called.__doc__ = inspect.getdoc(call)
    return called
