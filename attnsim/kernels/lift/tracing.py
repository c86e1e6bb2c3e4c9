"""Any kernel to a kernel file: prepared as for a run in the interpreter, then lifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.kernels.lift.assembler import assembled, target_of
from attnsim.kernels.lift.lifting import PtxLaunch, bytes_of, lift
from attnsim.kernels.lift.origins import ZEROS, lifted_of
from attnsim.models.schedule.lifted import LiftedCall
from attnsim.ptx.faults import Fault
from attnsim.ptx.foreign.compilers import compile_kernel
from attnsim.ptx.foreign.launching import Ready
from attnsim.ptx.foreign.run import block_of, check_grid, find_entry, fitted
from attnsim.ptx.run import sizes

LIKE = {"wgmma": "flash-attn.3", "mma_sync": "flash-attn.2", "simt": ""}
"""Whose fitted latencies a kernel of each instruction path takes, where nobody says: an open kernel's."""


def trace_kernel(
    ready: Ready, source: str, inputs: str, registers: int | None, like: str | None, *, counted: bool = True
) -> LiftedCall:
    """The file of one launch.

    Parameters
    ----------
    ready : Ready
    source : str
        Where the kernel comes from, in words.
    inputs : str
        What its arrays hold.
    registers : int or None
        Of a thread; None to ask the assembler.
    like : str or None
        Whose fitted numbers to take; None for those of its instruction path.
    counted : bool
        Whether work is charged by its own counted instructions; else by FlashAttention's of its path.

    Raises
    ------
    InputError
        When entry, grid, block or arguments do not fit the PTX, or the kernel does what no schedule stands for.
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
    """The schedule of any kernel of PTX at one launch.

    Parameters
    ----------
    ptx, entry, grid, block, arguments, shared_memory_bytes
        As for :func:`attnsim.ptx.foreign.run.run_ptx`; arrays of zeros do, and take no memory.
    registers : int, optional
        Of a thread; default: what ptxas reports.
    like : str, optional
        Whose fitted latencies to take; default: FlashAttention's of the instruction path.
    counted : bool
        Whether work is charged by its own counted instructions; else by FlashAttention's of its path.
    source : str
        Where the PTX comes from, for the file.

    Raises
    ------
    InputError
    """
    blocks = (block,) if isinstance(block, int) else block
    ready = Ready(ptx, entry, (grid,) if isinstance(grid, int) else grid, blocks, arguments, shared_memory_bytes)
    return trace_kernel(ready, source, ZEROS, registers, like, counted=counted)


def trace_cuda(path: Path | str, *, arch: str = "80", options: Sequence[str] = (), **launch: Any) -> LiftedCall:
    """The schedule of a kernel in a CUDA file, compiled by NVRTC; no GPU is needed.

    Parameters
    ----------
    path : Path or str
    arch : str
        What is compiled for: "80" runs on every newer GPU.
    options : sequence of str
        Further ones of NVRTC.
    **launch
        Keywords of :func:`trace_ptx`.

    Raises
    ------
    InputError
    """
    ptx, entry = compile_kernel(Path(path), arch, options, launch.pop("entry", None) or "")
    return trace_ptx(ptx, entry or None, source=Path(path).name, **launch)
