"""What PTX says of a kernel before its body: which entries there are, and how many threads one is made for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnsim.errors import InputError
from attnsim.ptx.lanes import LARGEST_BLOCK, LARGEST_GRID
from attnsim.ptx.parse import parse
from attnsim.ptx.syntax import Function

Three = tuple[int, int, int]


def find_entry(ptx: str, entry: str | None) -> Function:
    """The kernel of that name, or the only one.

    Raises
    ------
    InputError
        Names those that there are.
    """
    found = parse(ptx)
    names = ", ".join(found)
    if not found:
        raise InputError("no entry point; give the text of a PTX file with a .visible .entry")
    if entry is None and len(found) > 1:
        raise InputError(f"the PTX has {len(found)} entry points; choose one: {names}")
    function = next(iter(found.values())) if entry is None else found.get(entry)
    if function is None:
        raise InputError(f"{entry}: no such entry point; the PTX has {names}")
    for instruction in function.instructions:
        if instruction.name == "call":
            raise InputError(
                f"{function.name}, {instruction.place}: a call; the interpreter runs kernels with everything inlined, "
                "without recursion, printf or function pointers"
            )
    return function


def sizes(given: Sequence[int] | int, what: str) -> Three:
    """Sizes of a grid or a block in x, y and z.

    Raises
    ------
    InputError
    """
    shape = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise InputError(f"{what} is {' x '.join(map(str, shape)) or 'empty'}; give one to three sizes of 1 or more")
    x, y, z = (*shape, 1, 1)[:3]
    return int(x), int(y), int(z)


def check_grid(grid: Three) -> None:
    """Refuse a grid that no GPU launches.

    Raises
    ------
    InputError
    """
    if any(blocks > most for blocks, most in zip(grid, LARGEST_GRID, strict=True)):
        raise InputError(
            f"grid is {' x '.join(map(str, grid))}; allowed: 1 x 1 x 1 to {' x '.join(map(str, LARGEST_GRID))}"
        )


def block_of(ptx: str, entry: str, given: Sequence[int] | int | None) -> Three:
    """Threads of a block: those given, within what the kernel was compiled for, or exactly those that it asks for.

    Raises
    ------
    InputError
        When none are given and the kernel does not say, or when it was not compiled for so many.
    """
    required, most = _directive(ptx, entry, ".reqntid"), _directive(ptx, entry, ".maxntid")
    if given is None:
        if required is None:
            raise InputError(f"{entry} does not say how many threads a block has; give the block")
        return required
    block = sizes(given, "block")
    told = " x ".join(map(str, block))
    if any(threads > most for threads, most in zip(block, LARGEST_BLOCK, strict=True)):
        raise InputError(f"block is {told}; allowed: 1 x 1 x 1 to {' x '.join(map(str, LARGEST_BLOCK))}, 1024 in all")
    if required not in (None, block):
        raise InputError(f"block is {told}; {entry} was compiled for {' x '.join(map(str, required or ()))} (.reqntid)")
    if most and math.prod(block) > math.prod(most):
        raise InputError(f"block is {told}, {math.prod(block)} threads; {entry} takes {math.prod(most)} (.maxntid)")
    return block


def _directive(ptx: str, entry: str, name: str) -> Three | None:
    """Numbers of a performance-tuning directive of an entry (PTX ISA 9.0, chapter 11)."""
    for part in ptx.split(".entry")[1:]:
        head = part.partition("{")[0]
        words = head.replace("(", " ").replace(",", " ").split()
        if words and words[0] == entry and name in words:
            after = words[words.index(name) + 1 :][:3]
            numbers = [int(word) for word in after if word.isdecimal()]
            return sizes(numbers, name)
    return None
