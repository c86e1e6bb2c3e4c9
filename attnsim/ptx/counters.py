"""Counts of a launch, as a profiler would report them: totals, the cost of each instruction, and its pipe.

Pipes are those of Nsight Compute (Kernel Profiling Guide, "Pipelines"). The assembler joins, splits and drops
instructions: a multiplication and an addition become one, moves vanish, addresses are computed once. Counts by pipe
here are counts of PTX instructions, not of machine code.

Element formats in NumPy: bf16 and packed pairs, which NumPy lacks, are held as raw bits.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from operator import sub
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnsim.ptx.lanes import WARP, WARPGROUP, Mask, Values
from attnsim.ptx.syntax import Function, Instruction


@dataclass(slots=True)
class Counters:
    """Counts of one launch, or the sum of several (``a + b``).

    Parameters
    ----------
    loads, stores : Counter of str
        Requested bytes of global memory by tensor (the argument's name). An atomic is a store.
    load_sectors, store_sectors : Counter of str
        32-byte sectors by tensor that the warp instructions touched, each counted once per instruction.
    shared_bytes_loaded, shared_bytes_stored : int
        Requested bytes of shared memory; copies by cp.async are stores.
    shared_wavefronts : int
        Passes through the 32 banks of 4 bytes.
    bank_conflicts : int
        Passes more than an access without conflicts takes.
    local_bytes : int
        Local memory (spills, indexed arrays) loaded and stored.
    flops : int
        Additions and multiplications of floats outside the tensor cores; a fused multiply-add is two.
    tensor_flops : int
        FLOPs of ``mma`` and ``wmma``: 2 m n k each.
    exponentials : int
        ``ex2``, by thread.
    shuffles : int
        ``shfl``, by thread.
    barriers : int
        Block-wide barriers passed, by block.
    issued : Counter of (int, int)
        Warps that were issued instructions ``start`` to ``stop - 1`` of the kernel, by (start, stop).
    """

    loads: Counter[str] = field(default_factory=Counter)
    stores: Counter[str] = field(default_factory=Counter)
    load_sectors: Counter[str] = field(default_factory=Counter)
    store_sectors: Counter[str] = field(default_factory=Counter)
    shared_bytes_loaded: int = 0
    shared_bytes_stored: int = 0
    shared_wavefronts: int = 0
    bank_conflicts: int = 0
    local_bytes: int = 0
    flops: int = 0
    tensor_flops: int = 0
    exponentials: int = 0
    shuffles: int = 0
    barriers: int = 0
    issued: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def sectors_loaded(self) -> int:
        """Sectors loaded of all tensors."""
        return self.load_sectors.total()

    @property
    def sectors_stored(self) -> int:
        """Sectors stored of all tensors."""
        return self.store_sectors.total()

    @property
    def instructions(self) -> int:
        """Warp instructions issued."""
        return sum((stop - start) * warps for (start, stop), warps in self.issued.items())

    def requested(self) -> dict[tuple[str, str], int]:
        """Return requested bytes of global memory by ("load" or "store", tensor), without zeros."""
        directions = (("load", self.loads), ("store", self.stores))
        return {(way, tensor): count for way, by_tensor in directions for tensor, count in by_tensor.items() if count}

    def __add__(self, other: Counters) -> Counters:
        """Sum, field by field."""
        return Counters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


_FLOPS = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "mad": 2}
_FLOAT_TYPES = {"f16": 1, "bf16": 1, "f32": 1, "f64": 1, "f16x2": 2, "bf16x2": 2, "f32x2": 2}


Cost = tuple[int, int, int, int]
"""FLOPs outside and inside the tensor cores, exponentials and shuffles of one lane."""


def cost(instruction: Instruction) -> Cost:
    """Return the operations of one lane; for ``mma`` and ``wgmma`` the lane's share of 2 m n k."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    width = _FLOAT_TYPES.get(kind, 0)
    if instruction.name == "mma":
        shape = next(m for m in instruction.modifiers if m.startswith("m16n8k"))
        return 0, 2 * 16 * 8 * int(shape.removeprefix("m16n8k")) // WARP, 0, 0
    if instruction.name == "wmma":
        shape = next(m for m in instruction.modifiers if m[0] == "m" and "n" in m and "k" in m)
        sizes = [int(size) for size in shape[1:].replace("n", "k").split("k")]
        return 0, 2 * prod(sizes) // WARP * (instruction.modifiers[0] == "mma"), 0, 0
    if instruction.name == "wgmma" and instruction.modifiers[0] == "mma_async":
        shape = next(m for m in instruction.modifiers if m.startswith("m64n"))
        columns, depth = shape.removeprefix("m64n").split("k")
        return 0, 2 * 64 * int(columns) * int(depth) // WARPGROUP, 0, 0
    exponentials = width if instruction.name == "ex2" else 0
    return _FLOPS.get(instruction.name, 0) * width, 0, exponentials, int(instruction.name == "shfl")


def charge(counters: Counters, each: Iterable[int], lanes: int) -> None:
    """Add the cost of an instruction to the counters, for so many lanes."""
    flops, tensor_flops, exponentials, shuffles = each
    counters.flops += flops * lanes
    counters.tensor_flops += tensor_flops * lanes
    counters.exponentials += exponentials * lanes
    counters.shuffles += shuffles * lanes


class Costs:
    """Prefix sums of instruction costs, so that a run of instructions is counted at once.

    Predicated instructions are counted when they run; here they count only as issued.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        nothing = (0, 0, 0, 0)
        rows = [nothing if i.guard else cost(i) for i in instructions]
        self._end = len(instructions)
        self._sums: list[list[int]] = np.cumsum([nothing, *rows, nothing], axis=0).tolist()
        self._prices: dict[tuple[int, int], Cost | None] = {}

    def charge(self, counters: Counters, start: int, stop: int, mask: Mask) -> None:
        """Count instructions ``start`` to ``stop - 1``."""
        key = start, min(stop, self._end)
        counters.issued[key] += mask.warp_count
        if key not in self._prices:
            flops, tensor_flops, exponentials, shuffles = map(sub, self._sums[stop], self._sums[start])
            price = flops, tensor_flops, exponentials, shuffles
            self._prices[key] = price if any(price) else None
        if found := self._prices[key]:
            charge(counters, found, mask.count)


_MATRIX = ("mma", "wgmma", "wmma", "tcgen05")
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
"""The pipes, and what runs on each."""


def pipe_of(instruction: Instruction) -> str:
    """The pipe, one of :data:`PIPES`."""
    name, kinds = instruction.name, instruction.modifiers
    typed = kinds[-1] if kinds else ""
    if name == "wgmma" and "mma_async" not in kinds:
        return "control"
    if name == "ld" and "param" in kinds:
        return "moves"
    if name == "wmma" and kinds[0] != "mma":
        name = "ld"
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


FORMATS = {
    "fp16": "float16",
    "bf16": "uint16",
    "fp32": "float32",
    "fp64": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
}
"""Formats of elements and how NumPy holds them; ``uint16`` holds the bits of bf16."""

POISON = 0xFF
"""Byte that fills fresh memory, so that unwritten elements are noticed: a NaN in each floating-point format."""


def bf16_to_float(bits: Values) -> Values:
    """Convert bf16 to float32, exactly: bf16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@functools.cache
def floats(kind: str) -> Values:
    """Return a table of all f16 or bf16 values as float32, indexed by their bits."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    return bf16_to_float(bits) if kind == "bf16" else bits.view(np.float16).astype(np.float32)


def float_to_bf16(values: Values, toward_zero: bool = False) -> Values:
    """Bits of the nearest bf16, ties to even (or the next towards zero); NaN becomes 0x7fff as on a GPU."""
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    up = np.uint32(0) if toward_zero else np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + up) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def float_to_half(values: Values, toward_zero: bool = False) -> Values:
    """The nearest fp16, ties to even (or the next towards zero)."""
    half = values.astype(np.float16)
    if toward_zero:
        over = np.abs(half.astype(values.dtype)) > np.abs(values)
        half = np.where(over, (half.view(np.uint16) - over).view(np.float16), half)
    return half


def halves(packed: Values, bf16: bool) -> Values:
    """Unpack the two values of each register, ``[lanes, 2]``, low half first: float16, or float32 for bf16."""
    bits = np.ascontiguousarray(packed).view(np.uint16).reshape(-1, 2)
    return bf16_to_float(bits) if bf16 else bits.view(np.float16)


def pack(values: Values, bf16: bool) -> Values:
    """Pack values ``[lanes, 2]`` into registers, rounded to nearest."""
    bits = float_to_bf16(values) if bf16 else values.astype(np.float16).view(np.uint16)
    return np.ascontiguousarray(bits).view(np.uint32).reshape(-1)


def encode(values: ArrayLike, dtype: str) -> NDArray[Any]:
    """Round to nearest even into a 16-bit format.

    Parameters
    ----------
    dtype : {"fp16", "bf16"}

    Returns
    -------
    ndarray of float16, or of uint16 with the bits of bf16
    """
    if dtype == "fp16":
        return np.asarray(values, dtype=np.float16)
    single = np.ascontiguousarray(values, dtype=np.float32)
    return np.where(np.isnan(single), np.uint16(0x7FC0), float_to_bf16(single))


def decode(values: NDArray[Any]) -> NDArray[np.float64]:
    """Decode a float16, bf16 (uint16) or float32 array to float64."""
    if values.dtype == np.uint16:
        return bf16_to_float(values).astype(np.float64)
    return values.astype(np.float64)
