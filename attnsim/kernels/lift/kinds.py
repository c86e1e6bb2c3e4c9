"""Classifies the instructions of a kernel by their part in a schedule, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnsim.models.implementations.fused.forward import MASK_INSTRUCTIONS
from attnsim.ptx.counters import cost, pipe_of
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.flow import space_name
from attnsim.ptx.machine import read, written
from attnsim.ptx.syntax import Function, Instruction, Vector

Kind = Literal[
    "load", "copy", "commit", "wait", "bulk copy", "bulk store", "store", "fragment", "mma", "wgmma", "wgmma commit",
    "wgmma wait", "barrier", "mbarrier", "exp", "work",
]  # fmt: skip
"""Kinds of instructions. `load` goes to registers, `copy` is cp.async, `bulk copy` the tensor copy engine. `fragment`
is a read of shared memory by warps for a product. `work` is everything else."""


SPECIAL = ("lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div")
"""Instructions of the special function unit other than ``ex2``; each is about one operation of the unit."""


@dataclass(frozen=True, slots=True)
class Known:
    """One instruction and its costs.

    Parameters
    ----------
    writes, reads : frozenset of str
        Registers.
    tensor_flops, exponentials : int
        Operations of one lane.
    special : bool
        True if it runs on the special function unit but is no exponential.
    fp32 : int
        Instructions that it is equivalent to on the FP32 lanes.
    pipe : str
        One of :data:`attnsim.ptx.counters.PIPES`.
    pending : int
        For waits on groups of copies or products: groups that may remain in flight.
    operand_bytes : int
        Bytes of shared memory that the tensor unit reads for one warpgroup's ``wgmma``.
    """

    kind: Kind
    writes: frozenset[str]
    reads: frozenset[str]
    tensor_flops: int
    exponentials: int
    special: bool
    fp32: int
    pipe: str
    pending: int
    operand_bytes: int


def kinds_of(function: Function) -> tuple[Known, ...]:
    """Classify every instruction of a kernel, in order.

    Raises
    ------
    UnsupportedInstruction
        For an instruction that no operation of a schedule represents, with its line.
    """
    return tuple(_known(one) for one in function.instructions)


def _known(one: Instruction) -> Known:
    kind = _kind(one)
    _, flops, exponentials, _ = cost(one)
    return Known(
        kind=kind,
        writes=written(one),
        reads=read(one),
        tensor_flops=flops,
        exponentials=exponentials,
        special=one.name in SPECIAL,
        fp32=_on_fp32_lanes(one),
        pipe=pipe_of(one),
        pending=_pending(one) if kind in ("wait", "wgmma wait") else 0,
        operand_bytes=_operand_bytes(one) if kind == "wgmma" else 0,
    )


def _on_fp32_lanes(one: Instruction) -> int:
    """Return the FP32-lane instructions of one instruction.

    Counted are sums, products and fused multiply-adds of floats of up to 32 bits, minima and maxima. A select between
    floats counts as a mask: a comparison and a selection.
    """
    if one.name == "selp":
        return MASK_INSTRUCTIONS if "f32" in one.modifiers else 0
    floats = any(m.startswith(("f16", "f32", "bf16")) for m in one.modifiers)
    return int(floats and (pipe_of(one) == "FMA" or one.name in ("min", "max")))


_KINDS: dict[str, Kind] = {
    "mma": "mma",
    "ldmatrix": "fragment",
    "bar": "barrier",
    "barrier": "barrier",
    "mbarrier": "mbarrier",
    "ex2": "exp",
}
"""Kinds that follow from the instruction's name."""

_WGMMA: dict[str, Kind] = {"mma_async": "wgmma", "commit_group": "wgmma commit", "wait_group": "wgmma wait"}


def _kind(one: Instruction) -> Kind:
    name, modifiers = one.name, one.modifiers
    if name == "tcgen05":
        raise UnsupportedInstruction(f"{one.place}: no operation of a schedule stands for it yet; it can only be run")
    if name == "wgmma":
        return _WGMMA.get(modifiers[0], "work")
    if name == "cp":
        return _copy(modifiers)
    if name in ("ld", "ldu", "st", "red", "atom"):
        return _access(one)
    return "work" if "warp" in modifiers else _KINDS.get(name, "work")


def _copy(modifiers: tuple[str, ...]) -> Kind:
    if "bulk" in modifiers:
        if "commit_group" in modifiers or "wait_group" in modifiers:
            return "work"
        return "bulk store" if "bulk_group" in modifiers else "bulk copy"
    if "commit_group" in modifiers:
        return "commit"
    return "wait" if "wait_group" in modifiers or "wait_all" in modifiers else "copy"


def _access(one: Instruction) -> Kind:
    space = space_name(one)
    if space in ("param", "const", "shared", "local"):
        return "work"
    return "load" if one.name in ("ld", "ldu") else "store"


def _pending(one: Instruction) -> int:
    """Return the groups that may remain in flight; -1 for ``wait_all``, which also closes the open group."""
    return -1 if "wait_all" in one.modifiers else int(one.operands[0].text, 0)  # type: ignore[union-attr]


def _operand_bytes(one: Instruction) -> int:
    """Return the bytes of 16-bit A (0 if in registers) and B of a product of 64 x n x k."""
    shape = next(m for m in one.modifiers if m.startswith("m64n"))
    columns, depth = map(int, shape.removeprefix("m64n").split("k"))
    return 2 * depth * (columns + (0 if isinstance(one.operands[1], Vector) else 64))
