"""Which pipe of an SM an instruction of PTX goes to, as far as PTX tells.

Pipes are those of Nsight Compute (Kernel Profiling Guide, "Pipelines"). The assembler joins, splits and drops
instructions: a product and a sum become one, moves vanish, addresses are computed once. Counts by pipe are those of
the PTX, not of the machine code.
"""

from __future__ import annotations

from collections import Counter

from attnsim.ptx.counters import Counters
from attnsim.ptx.syntax import Function, Instruction

_MATRIX = ("mma", "wgmma", "tcgen05")
_SPECIAL = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div")
_MULTIPLY = ("add", "sub", "mul", "mad", "fma")
_CONTROL = ("bra", "brx", "ret", "exit", "call", "trap", "bar", "barrier", "fence", "membar", "elect", "setmaxnreg")
_MEMORY = (
    *("ld", "ldu", "st", "cp", "atom", "red", "ldmatrix", "stmatrix", "movmatrix", "mbarrier", "shfl", "prefetch"),
    *("prefetchu", "discard", "applypriority", "redux", "match", "vote", "activemask"),
)
_MOVES = ("mov", "cvta", "selp")

PIPES = {
    "tensor": "matrix products",
    "XU": "exponentials, reciprocals, roots, conversions of integers and floats",
    "FMA": "sums and products of floats, products of integers",
    "FP64": "float64",
    "ALU": "integers, logic, comparisons, conversions between floats",
    "LSU": "loads, stores, copies, atomics, shuffles",
    "control": "branches, barriers, fences",
    "moves": "moves, selections, address conversions, parameters; most vanish in machine code",
}
"""Names of the pipes and what goes to them."""


def pipe_of(instruction: Instruction) -> str:
    """The pipe, one of :data:`PIPES`."""
    name, kinds = instruction.name, instruction.modifiers
    typed = kinds[-1] if kinds else ""
    if name == "wgmma" and "mma_async" not in kinds:
        return "control"
    if name == "ld" and "param" in kinds:
        return "moves"
    for pipe, names in (("tensor", _MATRIX), ("LSU", _MEMORY), ("control", _CONTROL), ("moves", _MOVES)):
        if name in names:
            return pipe
    if typed == "f64":
        return "FP64"
    if name in _SPECIAL or (name == "cvt" and _between_integers_and_floats(kinds)):
        return "XU"
    multiplies = name in ("mul", "mad", "fma", "dp4a", "dp2a") or (name in _MULTIPLY and _is_float(typed))
    return "FMA" if multiplies else "ALU"


def _is_float(kind: str) -> bool:
    return kind.startswith(("f", "bf", "tf"))


def _between_integers_and_floats(kinds: tuple[str, ...]) -> bool:
    return len(kinds) > 1 and _is_float(kinds[-1]) != _is_float(kinds[-2])


def issued_by_pipe(function: Function, counters: Counters) -> dict[str, int]:
    """Warp instructions of a run by pipe, those under a predicate included."""
    pipes = [pipe_of(instruction) for instruction in function.instructions]
    found: Counter[str] = Counter()
    for (start, stop), warps in counters.issued.items():
        for pipe, count in Counter(pipes[start:stop]).items():
            found[pipe] += count * warps
    return {pipe: found[pipe] for pipe in PIPES if found[pipe]}
