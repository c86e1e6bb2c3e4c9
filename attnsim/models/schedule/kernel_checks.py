"""Checks of kernel files: numbers within bounds, fields that belong to their operation, no wait that never ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from attnsim.errors import InputError
from attnsim.models.schedule.operation import AMOUNTS, Kind, TileOp, Waits
from attnsim.models.schedule.schedule import Kernel, TensorUse

MOST = 10**15
"""Largest number: more bytes than any GPU has; the sum of some thousand such numbers still fits 64 bits."""
MOST_BLOCKS = 2**31 - 1
"""Largest grid in x that CUDA allows."""

_WORK = frozenset(AMOUNTS) - {"bytes", "flops", "clks"}
_USES: Mapping[str, frozenset[str]] = {
    "load": frozenset(("bytes",)),
    "store": frozenset(("bytes",)),
    "mma": _WORK | {"flops"},
    "mma_async": _WORK | {"flops"},
    "vector": _WORK,
    "delay": frozenset(("clks", "share", "waits")),
}
"""Amounts that each kind of operation uses; other kinds use none."""


def check_number(what: str, value: float, least: float = 0, most: float = MOST) -> None:
    """Refuse a number that is out of its bounds, or NaN."""
    if not least <= value <= most:  # nor NaN
        bounds = f"{least:g} or more" if most == MOST and value < least else f"{least:g} to {most:g}"
        raise InputError(f"{what} is {value}; allowed: {bounds}")


def read_op(given: Mapping[str, Any], segment: str) -> TileOp:
    """Read an operation of a file.

    Raises
    ------
    InputError
        If the kind is unknown, or a field is unknown, missing or of the wrong type.
    """
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in get_args(Kind):
        raise InputError(f"segment {segment}: kind {kind!r}; allowed: {', '.join(get_args(Kind))}")
    allowed = ("kind", "tensor", *(name for name in TileOp._fields if name in _USES.get(kind, ())))
    for name, value in given.items():
        if name not in allowed:
            raise InputError(f"segment {segment}: {name!r} of {kind}; allowed: {', '.join(allowed)}")
        if name in ("kind", "tensor", "waits"):
            if not isinstance(value, str):
                raise InputError(f"segment {segment}: {name} of {kind} is {value!r}; give a name")
            continue
        wanted = (int, float) if name == "share" else int
        whole = "a number" if name == "share" else "a whole number"
        if not isinstance(value, wanted) or isinstance(value, bool) or not 0 <= value <= MOST:
            raise InputError(f"segment {segment}: {name} of {kind} is {value!r}; give {whole} of 0 or more")
    if given.get("waits", "") not in get_args(Waits):
        known = ", ".join(get_args(Waits)[1:])
        raise InputError(f"segment {segment}: waits of {kind} is {given['waits']!r}; allowed: {known}, or none")
    return TileOp(**given)


def check_uses(kernel: Kernel) -> None:
    """Refuse a copied tensor without a use, a tensor with two uses, or one of no size."""
    known: set[tuple[bool, str]] = set()
    for use in kernel.uses:
        _check_use(use, f"{kernel.name}: {use.tensor or 'a tensor'} in uses")
        if (use.written, use.tensor) in known:
            raise InputError(f"{kernel.name}: uses: {use.tensor} is there twice; keep one")
        known.add((use.written, use.tensor))
    for op in (op for segment in kernel.segments for op in segment.ops if op.kind in ("load", "store")):
        if (op.kind == "store", op.tensor) not in known:
            raise InputError(f"{kernel.name}: {op.kind} of {op.tensor!r}, which uses do not name")


def _check_use(use: TensorUse, what: str) -> None:
    check_number(f"{what}: scattered", use.scattered)
    for name, value in (("unique_bytes", use.unique_bytes), ("passes_per_block", use.passes_per_block)):
        check_number(f"{what}: {name}", value, 1)
    for value in use.blocks:
        check_number(f"{what}: blocks", value, 1)
    if not use.blocks:
        raise InputError(f"{what}: blocks is empty; give how many have parts of their own, and how many share each")


def check_waits(kernel: Kernel, number: int) -> None:
    """Refuse a block class that waits for a copy or product that it never starts."""
    started: Counter[tuple[str, str]] = Counter()
    for segment, times in kernel.runs(number):
        lowest, change = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for what, by in _starts(kernel.segments[segment].ops):
            change[what] += by
            lowest[what] = min(lowest[what], change[what])
        for what, least in lowest.items():
            if started[what] + min(0, (times - 1) * change[what]) + least < 0:
                name = kernel.segments[segment].name
                raise InputError(f"{kernel.name}: segment {name} waits for a {' '.join(what)} that was not started")
        for what, by in change.items():
            started[what] += times * by


def _starts(ops: Sequence[TileOp]) -> Iterator[tuple[tuple[str, str], int]]:
    for op in ops:
        if op.kind in ("load", "wait"):
            yield ("load of", op.tensor), 1 if op.kind == "load" else -1
        elif op.kind in ("mma_async", "mma_wait"):
            yield ("product", ""), 1 if op.kind == "mma_async" else -1
