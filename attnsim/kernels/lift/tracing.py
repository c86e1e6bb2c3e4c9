"""Traces any kernel to a kernel file: prepares it as for a run in the interpreter, then lifts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.kernels.lift.assembler import assembled, target_of
from attnsim.kernels.lift.lifting import PtxLaunch, bytes_of, lift
from attnsim.kernels.lift.origins import ZEROS, lifted_of
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.ptx.faults import Fault
from attnsim.ptx.foreign.compilers import compile_kernel
from attnsim.ptx.foreign.launching import Ready
from attnsim.ptx.foreign.run import block_of, check_grid, find_entry, fitted
from attnsim.ptx.run import sizes

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
