"""Runs any kernel in the interpreter: finds entry and block; returns outputs and counts by argument and pipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.ptx import run as interpreter
from attnsim.ptx.counters import Counters, issued_by_pipe
from attnsim.ptx.faults import Fault, Misaligned, OutOfBounds, StepLimit, UnsupportedInstruction
from attnsim.ptx.foreign.arguments import in_format
from attnsim.ptx.foreign.names import matching, readable
from attnsim.ptx.lanes import LARGEST_BLOCK, LARGEST_GRID, Dim3
from attnsim.ptx.memory import SECTOR
from attnsim.ptx.parse import parse
from attnsim.ptx.registers import DTYPES
from attnsim.ptx.run import sizes
from attnsim.ptx.shared import TensorMap
from attnsim.ptx.syntax import Function, Parameter


def find_entry(ptx: str, entry: str | None) -> Function:
    """Return the kernel of that name (:mod:`attnsim.ptx.foreign.names`), or the only one.

    Raises
    ------
    InputError
        If there is no such kernel, or several match; the message lists the kernels of the PTX.
    """
    found = parse(ptx)
    names = ", ".join(dict.fromkeys(map(readable, found)))
    if not found:
        raise InputError("no entry point; give the text of a PTX file with a .visible .entry")
    if entry is None and len(found) > 1:
        raise InputError(f"the PTX has {len(found)} entry points; choose one: {names}")
    meant = [*found] if entry is None else matching(entry, found)
    if not meant:
        raise InputError(f"{entry}: no such entry point; the PTX has {names}")
    if len(meant) > 1:
        raise InputError(f"{entry}: {len(meant)} entry points have that name; choose one: {', '.join(meant)}")
    function = found[meant[0]]
    for variable in function.variables:
        if variable.space == "const" and not variable.given:
            raise InputError(
                f"{function.name}: the host fills {readable(variable.name)} in constant memory, and what with is not "
                "known here; write its values into the source, or give them to the kernel as an argument"
            )
    for instruction in function.instructions:
        if instruction.name == "call":
            raise InputError(
                f"{function.name}, {instruction.place}: a call; the interpreter runs kernels with everything inlined, "
                "without recursion, printf or function pointers"
            )
    return function


def check_grid(grid: Dim3) -> None:
    """Raise InputError for a grid larger than any GPU launches."""
    if any(blocks > most for blocks, most in zip(grid, LARGEST_GRID, strict=True)):
        raise InputError(
            f"grid is {' x '.join(map(str, grid))}; allowed: 1 x 1 x 1 to {' x '.join(map(str, LARGEST_GRID))}"
        )


def block_of(ptx: str, entry: str, given: Sequence[int] | int | None) -> Dim3:
    """Return the block's sizes: those given, checked against the kernel's directives, or the kernel's own requirement.

    Raises
    ------
    InputError
        If neither the caller nor the kernel gives a block, or if the kernel was compiled for another one.
    """
    required, most = _directive(ptx, entry, ".reqntid"), _directive(ptx, entry, ".maxntid")
    if given is None:
        if required is None:
            raise InputError(f"{entry} does not say how many threads a block has; give the block")
        return required
    block = sizes(given, "block")
    size = " x ".join(map(str, block))
    if any(threads > most for threads, most in zip(block, LARGEST_BLOCK, strict=True)):
        raise InputError(f"block is {size}; allowed: 1 x 1 x 1 to {' x '.join(map(str, LARGEST_BLOCK))}, 1024 in all")
    if required not in (None, block):
        raise InputError(f"block is {size}; {entry} was compiled for {' x '.join(map(str, required or ()))} (.reqntid)")
    if most and math.prod(block) > math.prod(most):
        raise InputError(f"block is {size}, {math.prod(block)} threads; {entry} takes {math.prod(most)} (.maxntid)")
    return block


def _directive(ptx: str, entry: str, name: str) -> Dim3 | None:
    """Return the numbers of a performance-tuning directive of an entry (PTX ISA 9.0, chapter 11)."""
    for part in ptx.split(".entry")[1:]:
        head = part.partition("{")[0]
        words = head.replace("(", " ").replace(",", " ").split()
        if words and words[0] == entry and name in words:
            after = words[words.index(name) + 1 :][:3]
            numbers = [int(word) for word in after if word.isdecimal()]
            return sizes(numbers, name)
    return None


NOT_RUN = (UnsupportedInstruction, OutOfBounds, Misaligned, StepLimit)
"""Faults that mean that the kernel cannot be run with these shapes, this grid, or in the interpreter at all."""


COUNTED = (
    *("tensor_flops", "flops", "exponentials", "shared_bytes_loaded", "shared_bytes_stored", "shared_wavefronts"),
    *("bank_conflicts", "local_bytes", "barriers", "shuffles", "instructions"),
)
"""Counters that are reported for a whole launch."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Global memory of one argument in one direction.

    Parameters
    ----------
    way : {"load", "store"}
        An atomic is a store.
    requested_bytes : int
        Requested by threads: the traffic into the L1.
    sectors : int
        32-byte sectors, each counted once per warp instruction: the traffic into the L2 if the L1 never hits.
    """

    argument: str
    way: str
    requested_bytes: int
    sectors: int

    @property
    def sector_bytes(self) -> int:
        """Traffic in bytes of whole sectors."""
        return SECTOR * self.sectors


@dataclass(frozen=True, slots=True)
class PtxRun:
    """One launch of a kernel in the interpreter.

    Parameters
    ----------
    shared_memory_bytes : int
        Dynamic, of a block.
    outputs : mapping of str to ndarray
        The arguments that the kernel stored to.
    pipes : mapping of str to int
        Warp instructions by pipe (:data:`attnsim.ptx.counters.PIPES`).
    counters : Counters
        Everything else.
    """

    entry: str
    grid: Dim3
    block: Dim3
    shared_memory_bytes: int
    outputs: Mapping[str, NDArray[Any]]
    pipes: Mapping[str, int]
    counters: Counters

    def traffic(self) -> list[Traffic]:
        """Return global memory traffic by argument and direction, without zeros."""
        directions = (
            ("load", self.counters.loads, self.counters.load_sectors),
            ("store", self.counters.stores, self.counters.store_sectors),
        )
        return [
            Traffic(name, way, count, sectors[name])
            for way, by_name, sectors in directions
            for name, count in by_name.items()
        ]

    def counts(self) -> dict[str, int]:
        """Return the counters of the whole launch by name."""
        return {name: getattr(self.counters, name) for name in COUNTED}


def run_ptx(
    ptx: str,
    entry: str | None = None,
    *,
    grid: Sequence[int] | int,
    block: Sequence[int] | int | None = None,
    arguments: Mapping[str, Any],
    shared_memory_bytes: int = 0,
) -> PtxRun:
    """Run any kernel of PTX in the interpreter; arrays are changed in place, as on a GPU.

    Parameters
    ----------
    ptx : str
        Text, as a compiler wrote it.
    entry : str, optional
        Name of the kernel; default: the only one.
    grid : int or 1 to 3 int
    block : int or 1 to 3 int, optional
        Default: the kernel's own requirement (``.reqntid``).
    arguments : mapping of str to ndarray, TensorMap, NumPy scalar or number
        In the order of the kernel's parameters, under any names: counts and faults go by them. A plain number takes
        the format of its parameter. uint16 holds the bits of bf16.
    shared_memory_bytes : int
        Dynamic shared memory of a block.

    Returns
    -------
    PtxRun

    Raises
    ------
    InputError
        If entry, grid, block or arguments do not fit the PTX, or if the kernel cannot be run with them: an address
        outside an array, an unknown instruction, no end.
    Fault
        If the kernel does something that a GPU leaves undefined: a race, a missing wait, a read of unwritten shared
        memory. The message has the line of the PTX. The first fault is raised; its ``others`` are the later ones, each
        kind once per line.

    Examples
    --------
    >>> import numpy as np
    >>> from attnsim.ptx.foreign.run import run_ptx
    >>> ptx = '''
    ... .visible .entry twice(.param .u64 x) {
    ...     .reg .b64 %a<3>; .reg .f32 %f<2>; .reg .b32 %t<1>;
    ...     ld.param.u64 %a0, [x];
    ...     mov.u32 %t0, %tid.x;
    ...     mul.wide.u32 %a1, %t0, 4;
    ...     add.s64 %a2, %a0, %a1;
    ...     ld.global.f32 %f0, [%a2];
    ...     add.f32 %f1, %f0, %f0;
    ...     st.global.f32 [%a2], %f1;
    ...     ret;
    ... }'''
    >>> ran = run_ptx(ptx, grid=1, block=32, arguments={"x": np.ones(32, np.float32)})
    >>> float(ran.outputs["x"].sum()), ran.counters.loads["x"], ran.pipes["FMA"]
    (64.0, 128, 2)
    """
    function = find_entry(ptx, entry)
    grid3 = sizes(grid, "grid")
    check_grid(grid3)
    block3 = block_of(ptx, function.name, block)
    if shared_memory_bytes < 0:
        raise InputError(f"shared memory is {shared_memory_bytes} bytes; allowed: 0 or more")
    given = fitted(function, arguments)
    try:
        counters = interpreter.run(ptx, function.name, grid3, block3, given, shared_memory_bytes)
    except Fault as fault:
        if all(isinstance(one, NOT_RUN) for one in (fault, *fault.others)):
            raise InputError(str(fault)) from None
        raise
    outputs = {name: given[name] for name in given if counters.stores[name]}
    return PtxRun(
        entry=function.name,
        grid=grid3,
        block=block3,
        shared_memory_bytes=shared_memory_bytes,
        outputs=outputs,
        pipes=issued_by_pipe(function, counters),
        counters=counters,
    )


def fitted(function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the arguments to the formats of their parameters.

    Raises
    ------
    InputError
        If there are too many or too few, or one has the wrong kind.
    """
    parameters = function.parameters
    if len(arguments) != len(parameters):
        missing = "; ".join(
            f"number {number} is {described(parameter)}"
            for number, parameter in enumerate(parameters[len(arguments) :], start=len(arguments) + 1)
        )
        surplus = ", ".join(list(arguments)[len(parameters) :])
        advice = f"missing: {missing}" if missing else f"too many: {surplus}"
        raise InputError(f"{function.name} takes {len(parameters)} arguments, {len(arguments)} given; {advice}")
    return {
        name: _fit(name, value, parameter)
        for (name, value), parameter in zip(arguments.items(), parameters, strict=True)
    }


def described(parameter: Parameter) -> str:
    """Describe a parameter, for messages."""
    count = f"[{parameter.size_bytes}]" if parameter.size_bytes > 8 else ""
    return f".{parameter.type} {parameter.name}{count}"


def _fit(name: str, value: Any, parameter: Parameter) -> Any:
    wanted = described(parameter)
    if isinstance(value, TensorMap):
        return value
    if isinstance(value, np.ndarray):
        if parameter.size_bytes != 8 or parameter.type.startswith("f"):
            raise InputError(f"argument {name} is an array; the kernel has {wanted} there: give a number")
        if not value.size:
            raise InputError(f"argument {name} has shape {list(value.shape)}; give sizes of 1 or more")
        return value
    if isinstance(value, (bool, int, float)):
        if parameter.type not in DTYPES or parameter.size_bytes > 8:
            raise InputError(f"argument {name} is {value}; the kernel has {wanted} there, a structure or a tensor map")
        kind = DTYPES[parameter.type]
        if kind.kind == "u" and value < 0:  # PTX tells signs by instruction, not by parameter
            kind = np.dtype(f"i{kind.itemsize}")
        if kind.kind in "iu" and not float(value).is_integer() and kind.itemsize in (4, 8):
            raise InputError(f"argument {name} is {value}; the kernel has {wanted} there: give a whole number")
        return in_format(name, value, kind.name)
    return value
