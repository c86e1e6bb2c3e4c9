"""Which instructions of a kernel decide where its blocks go and what they ask for: those that are not arithmetic.

A register is needed that a branch, a predicate or an address comes from. Where it comes out of shared memory, what is
stored there is needed too, unless that is a value that the kernel computed by products or exponentials.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from attnsim.ptx.dataflow import read, written
from attnsim.ptx.spaces import space_name
from attnsim.ptx.syntax import Address, Function, Instruction, TensorAddress, register_names

BRANCHES = ("bra", "brx", "ret", "exit", "trap")
LOADS = ("ld", "ldu")
_ASKS = (*LOADS, "st", "red", "atom", "cp")
_VALUES = ("mma", "wgmma", "ldmatrix", "stmatrix", "movmatrix", "ex2", "lg2", "atom", "tcgen05")
"""Instructions whose results are values, not places."""
_BARRIERS = ("bar", "barrier")


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a kernel.

    Parameters
    ----------
    kept : frozenset of int
        Its instructions.
    needed : frozenset of str
        Registers that have their true values.
    guessed : tuple of int
        Branches that depend on values which are not computed.
    unknown : tuple of int
        Accesses to global memory that do.
    """

    kept: frozenset[int]
    needed: frozenset[str]
    guessed: tuple[int, ...]
    unknown: tuple[int, ...]


def slice_of(function: Function) -> Slice:
    """The part that decides where blocks go and what they ask for."""
    kept = {place for place, one in enumerate(function.instructions) if one.name in BRANCHES or asks_global(one)}
    needed = {name for place in kept for name in places_of(function.instructions[place])}
    computed = _closure(function, {n for one in function.instructions if one.name in _VALUES for n in written(one)})
    while True:
        before = len(needed), len(kept)
        staged = any(
            one.name in LOADS and space_name(one) == "shared" and needed & written(one) for one in function.instructions
        )
        for place, one in enumerate(function.instructions):
            sets = staged and (_stages(one, computed) or one.name in _BARRIERS)
            if sets or ((_computes(one) or place in kept) and needed & written(one)):
                kept.add(place)
                needed |= read(one)
        if (len(needed), len(kept)) == before:
            break
    dropped = {
        name
        for place, one in enumerate(function.instructions)
        if place not in kept or one.name == "atom"
        for name in written(one) & needed
    }
    values = _closure(function, dropped, kept)
    uncertain = [place for place in sorted(kept) if not values.isdisjoint(places_of(function.instructions[place]))]
    return Slice(
        frozenset(kept),
        frozenset(needed),
        tuple(place for place in uncertain if function.instructions[place].name in BRANCHES),
        tuple(place for place in uncertain if asks_global(function.instructions[place])),
    )


def asks_global(one: Instruction) -> bool:
    """Whether an instruction may ask global memory for something."""
    if one.name == "cp":
        return not {"commit_group", "wait_group", "wait_all"} & set(one.modifiers)
    return one.name in _ASKS and space_name(one) in ("global", "")


def places_of(one: Instruction) -> set[str]:
    """Registers that decide whether and where an instruction goes or asks."""
    guard = [one.guard] if one.guard else []
    if not asks_global(one):
        return register_names([*guard, *one.operands]) if one.name in BRANCHES else set()
    addresses = [operand for operand in one.operands if isinstance(operand, Address | TensorAddress)]
    sizes = one.operands[2:4] if one.name == "cp" and "bulk" not in one.modifiers else ()
    return register_names([*guard, *addresses, *sizes])


def _closure(function: Function, names: Collection[str], kept: Collection[int] | None = None) -> set[str]:
    """Registers that come from others, by instructions that are kept; all where none are named."""
    found = set(names)
    chosen = function.instructions if kept is None else [function.instructions[place] for place in sorted(kept)]
    while True:
        before = len(found)
        for one in chosen:
            if one.name != "mbarrier" and found & read(one):
                found |= written(one)
        if len(found) == before:
            return found


def _stages(one: Instruction, computed: set[str]) -> bool:
    """Whether an instruction stores something to shared memory that is no result of products or exponentials."""
    return one.name == "st" and space_name(one) == "shared" and not computed & read(one)


def _computes(one: Instruction) -> bool:
    """Whether an instruction is run where somebody needs its result."""
    if one.name in _VALUES or (one.name in _BARRIERS and "red" not in one.modifiers):
        return False
    if one.name == "mbarrier":
        return "wait" in one.modifiers[0]
    return not (one.name in LOADS and space_name(one) == "local")
