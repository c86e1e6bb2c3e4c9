"""Lifts our own operations: every kernel that one launches for a workload, without running its whole grid."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.kernels.arrays import kind_of
from attnsim.kernels.catalog import Operation
from attnsim.kernels.cpu_device import PTX_ARCHITECTURES, CpuDevice
from attnsim.kernels.device import Grid, check_launch
from attnsim.kernels.lift.lifting import PtxLaunch, Resources, lift
from attnsim.kernels.lift.tracing import ZEROS, lifted_of
from attnsim.kernels.variant import Variant, compile_variant
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import Lifted, LiftedCall
from attnsim.ptx.counters import encode
from attnsim.ptx.machine_code import kernels_in
from attnsim.ptx.outcome import fill
from attnsim.ptx.parse import parse


class LiftingDevice(CpuDevice):
    """A device that lifts the kernels launched on it, and leaves their outputs unchanged.

    Parameters
    ----------
    gpu : str or Gpu
        The GPU whose tiles and limits apply.
    source : str
        Description of the launching operation.
    inputs : str
        Contents of the arrays.
    counted : bool
        As in :func:`attnsim.kernels.lift.lifting.lift`.

    Attributes
    ----------
    lifted : list of Lifted
        Lifted kernels in launch order.
    """

    persistent = False  # where a block that takes several tiles ends up is in none of its classes

    def __init__(self, gpu: str | Gpu, source: str, inputs: str, *, counted: bool = True) -> None:
        super().__init__(gpu, checks=False)
        self._source, self._inputs, self._counted = source, inputs, counted
        self.lifted: list[Lifted] = []
        self._arrays: dict[int, int] = {}

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(self._arrays.values())

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return an array of zeros, which takes no memory until it is written."""
        return np.zeros(shape, dtype)

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Any]) -> None:
        """Lift a kernel.

        Raises
        ------
        InputError, Fault
        """
        check_launch(variant, grid, arguments, self.gpu)
        nearest = max(arch for arch in PTX_ARCHITECTURES if arch <= self.gpu.compute_capability_number)
        arch = f"{nearest}{variant.arch_suffix}"
        compiled = compile_variant(variant, arch)
        used = compiled.resources(variant.entry)
        shared = variant.shared_memory_bytes + used.static_shared_bytes
        launch = PtxLaunch(
            parse(compiled.ptx)[variant.entry], grid, (variant.threads, 1, 1), arguments, variant.shared_memory_bytes
        )
        taken = Resources(used.registers, shared, f"ptxas, sm_{arch}")
        code = kernels_in(compiled.cubin)[variant.entry]
        kernel, nest = lift(launch, taken, counted=self._counted, code=code)
        for value in arguments.values():
            array = getattr(value, "array", value)
            if isinstance(array, np.ndarray):
                owner = array if array.base is None else array.base
                self._arrays[id(owner)] = array.nbytes
        self.lifted.append(
            lifted_of(kernel, nest, launch, compiled.ptx, arch, self._source, self._inputs, f"ptxas, sm_{arch}")
        )


def lift_operation(
    operation: Operation, w: Workload, gpu: str | Gpu, inputs: str = ZEROS, *, counted: bool = True
) -> LiftedCall:
    """Lift the kernels that one of our operations launches for a workload.

    Parameters
    ----------
    gpu : str or Gpu
        The GPU whose tiles apply.
    inputs : str
        "zeros", or one of :data:`attnsim.ptx.outcome.INPUTS`.
    counted : bool
        As in :func:`attnsim.kernels.lift.lifting.lift`.

    Raises
    ------
    InputError, Fault
    """
    device = LiftingDevice(gpu, f"attnsim {operation.name}", inputs, counted=counted)
    call = operation.call()
    signature = inspect.signature(call).parameters
    names = [name for name, one in signature.items() if one.kind is one.POSITIONAL_OR_KEYWORD][1:]
    more: dict[str, Any] = {}
    if "mask" in signature:
        more["mask"] = w.mask
    elif "causal" in signature:
        more["causal"] = w.mask.is_causal
    keys = w.seq_q if "state" in names else w.seq_kv  # a state is given in place of the keys before
    call(device, *(_array(name, w, keys, inputs) for name in names), **more)
    return LiftedCall(tuple(device.lifted), operation.implementation, device.memory_bytes)


def _array(name: str, w: Workload, seq_kv: int, inputs: str) -> NDArray[Any]:
    """Return an operation's argument by its name: Q, K and V hold the inputs, all others zeros."""
    rows = (w.batch, w.heads_q, w.seq_q, w.head_dim)
    keys = (w.batch, w.heads_kv, seq_kv, w.head_dim)
    shapes = {
        "lse": rows[:3],
        "state": (*keys[:2], w.head_dim, w.head_dim),
        "normalizer": (*keys[:2], w.head_dim),
        "k": keys,
        "v": keys,
    }
    shape = shapes.get(name, rows)
    if name in ("lse", "state", "normalizer"):
        return np.zeros(shape, np.float32)
    if inputs == ZEROS or name not in "qkv":
        return np.zeros(shape, np.uint16 if w.dtype == "bf16" else np.float16)
    return encode(fill(shape, kind_of(name.upper(), inputs), np.random.default_rng(0)), w.dtype)
