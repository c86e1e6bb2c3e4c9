"""Traces kernels to kernel files: any kernel as for a run in the interpreter, and those that our operations launch."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.arrays import kind_of
from attnsim.kernels.catalog import Operation
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.device import Grid, check_launch
from attnsim.kernels.lift.lifting import Nest, PtxLaunch, Resources, bytes_of, lift
from attnsim.kernels.variant import Variant, compile_variant
from attnsim.models.digest import version
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import Lifted, LiftedCall, Origin
from attnsim.models.schedule.schedule import Kernel
from attnsim.ptx.counters import encode
from attnsim.ptx.faults import Fault
from attnsim.ptx.foreign.compilers import compile_kernel
from attnsim.ptx.foreign.launching import Ready
from attnsim.ptx.foreign.run import block_of, check_grid, find_entry, fitted
from attnsim.ptx.machine_code import Code, kernels_in
from attnsim.ptx.nvrtc import Compiled, assemble
from attnsim.ptx.outcome import fill
from attnsim.ptx.parse import parse
from attnsim.ptx.run import sizes


def target_of(ptx: str) -> str:
    """Return the architecture of the PTX's .target line: "80", "90a"."""
    for line in ptx.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == ".target":
            return rest.split(",")[0].strip().removeprefix("sm_")
    raise InputError("the PTX has no .target line, so nobody can say for which architecture it is")


def assembled(ptx: str, entry: str, dynamic_bytes: int, registers: int | None) -> tuple[Resources, Code | None]:
    """Return a block's resources and the kernel's machine code, from ``ptxas``.

    With `registers` given, ``ptxas`` is not run, and the code is None.

    Parameters
    ----------
    dynamic_bytes : int
        Dynamic shared memory.
    registers : int or None
        Registers of a thread; None to take the assembler's.

    Raises
    ------
    InputError
        If neither an assembler nor a number is there, or the assembler rejects the PTX (with its first message).
    """
    if registers is not None:
        if not 1 <= registers <= 255:
            raise InputError(f"--registers {registers}: a thread has 1 to 255")
        return Resources(registers, dynamic_bytes, "given"), None
    arch = target_of(ptx)
    try:
        report, cubin = assemble(ptx, arch)
    except InputError as error:
        raise InputError(f"registers of a thread are not known: {error}; or say --registers N") from None
    used = Compiled("", b"", report).resources(entry)
    taken = Resources(used.registers, dynamic_bytes + used.static_shared_bytes, f"ptxas, sm_{arch}")
    return taken, kernels_in(cubin).get(entry)


ZEROS = "zeros"
"""Default contents of arrays: all scores are then equal, so no branch on values is taken."""


def lifted_of(
    kernel: Kernel, nest: Nest, launch: PtxLaunch, ptx: str, arch: str, source: str, inputs: str, resources: str
) -> Lifted:
    """Return a kernel with the origin for its file."""
    origin = Origin(
        entry=kernel.name,
        source=source,
        ptx_sha256=hashlib.sha256(ptx.encode()).hexdigest(),
        arch=arch,
        grid=launch.grid,
        block=launch.block,
        arguments={name: described(value) for name, value in launch.arguments.items()},
        inputs=inputs,
        resources=resources,
        attnsim=version(),
    )
    return Lifted(kernel, origin, nest.instructions, round(nest.per_score, 3))


def described(value: Any) -> str:
    """Describe an argument: ``float16[2,8,500,64]``, or a number."""
    array = getattr(value, "array", value)
    if isinstance(array, np.ndarray):
        return f"{array.dtype}[{','.join(map(str, array.shape))}]"
    return str(value)


LIKE = {"wgmma": "flash-attn.3", "mma_sync": "flash-attn.2", "simt": ""}
"""Default source of fitted latencies for each instruction path: an open-source kernel."""


def trace_kernel(
    ready: Ready, source: str, inputs: str, registers: int | None, like: str | None, *, counted: bool = True
) -> LiftedCall:
    """Lift one launch to a kernel file.

    Parameters
    ----------
    source : str
        Origin of the kernel, for the file.
    inputs : str
        Contents of its arrays.
    registers : int or None
        Registers of a thread; None to take the assembler's.
    like : str or None
        Implementation whose fitted numbers are borrowed; None for the default of its instruction path.
    counted : bool
        Charge work by its own counted instructions; else by FlashAttention's of the same path.

    Raises
    ------
    InputError
        If entry, grid, block or arguments do not fit the PTX, or no schedule can represent the kernel.
    """
    function = find_entry(ready.ptx, ready.entry)
    grid = sizes(ready.grid, "grid")
    check_grid(grid)
    block = block_of(ready.ptx, function.name, ready.block)
    launch = PtxLaunch(function, grid, block, fitted(function, ready.arguments), ready.shared_memory_bytes)
    resources, code = assembled(ready.ptx, function.name, ready.shared_memory_bytes, registers)
    try:
        kernel, nest = lift(launch, resources, counted=counted, code=code, foreign=True)
    except Fault as fault:
        raise InputError(str(fault)) from None
    if not kernel.turns.any():
        raise InputError(f"{function.name} does nothing at this launch: every block ends at once")
    arch = target_of(ready.ptx)
    one = lifted_of(kernel, nest, launch, ready.ptx, arch, source, inputs, resources.source)
    memory = sum(bytes_of(value) for value in launch.arguments.values())
    return LiftedCall((one,), LIKE[kernel.path] if like is None else like, memory)


def trace_ptx(
    ptx: str,
    entry: str | None = None,
    *,
    grid: Sequence[int] | int,
    block: Sequence[int] | int | None = None,
    arguments: Mapping[str, Any],
    shared_memory_bytes: int = 0,
    registers: int | None = None,
    like: str | None = None,
    counted: bool = True,
    source: str = "PTX",
) -> LiftedCall:
    """Derive the schedule of any PTX kernel at one launch.

    Parameters
    ----------
    ptx, entry, grid, block, arguments, shared_memory_bytes
        As in :func:`attnsim.ptx.foreign.run.run_ptx`; arrays of zeros suffice, and take no memory.
    registers : int, optional
        Registers of a thread; default: the report of ptxas.
    like : str, optional
        Implementation whose fitted latencies are borrowed; default: FlashAttention of the same instruction path.
    counted : bool
        Charge work by its own counted instructions; else by FlashAttention's of the same path.
    source : str
        Origin of the PTX, for the file.
    """
    blocks = (block,) if isinstance(block, int) else block
    ready = Ready(ptx, entry, (grid,) if isinstance(grid, int) else grid, blocks, arguments, shared_memory_bytes)
    return trace_kernel(ready, source, ZEROS, registers, like, counted=counted)


def trace_cuda(path: Path | str, *, arch: str = "80", options: Sequence[str] = (), **launch: Any) -> LiftedCall:
    """Derive the schedule of a kernel in a CUDA file, compiled by NVRTC; needs no GPU.

    Parameters
    ----------
    arch : str
        Target architecture: "80" runs on every newer GPU.
    options : sequence of str
        Further options of NVRTC.
    **launch
        Keywords of :func:`trace_ptx`.
    """
    ptx, entry = compile_kernel(Path(path), arch, options, launch.pop("entry", None) or "")
    return trace_ptx(ptx, entry or None, source=Path(path).name, **launch)


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
        arch = self.architecture(variant)
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
