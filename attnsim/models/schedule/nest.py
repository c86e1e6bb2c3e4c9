"""A loop nest as builders write it down: segments in program order, each with how often every block class runs it.

A builder says a loop once, as its CUDA does: `turn(load_next, masked)` yields the operations of one turn, and each flag
holds up to a turn of its own. :func:`loop` peels the turns that differ and derives how often each runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Ints
from attnsim.models.schedule.operation import Segment, TileOp

Nest = list[tuple[Segment, ArrayLike]]
"""Segments and their counts: one number for all block classes, ``[classes]``, or ``[classes, turns]`` where the outer
loop has several turns."""
Operations = Iterable[TileOp]


def once(name: str, ops: Operations, when: ArrayLike = 1) -> Nest:
    """A stretch that a block runs once, or `when` times."""
    return [(Segment(name, tuple(ops)), when)]


def by_size(name: str, missing: Ints, ops: Callable[[int], Operations], when: ArrayLike = True) -> Nest:
    """A stretch that a block runs once and that depends on its tile's size: `ops(n)` of a tile that lacks `n` elements.

    Parameters
    ----------
    missing : ndarray of int, shape [classes] or [classes, turns]
        By how many elements each class's tile is shorter than a whole one.
    when : ndarray of bool, optional
        The classes that run it.
    """
    return [
        (Segment(f"{name}{f' ({n} short)' * (n > 0)}", tuple(ops(n))), ((missing == n) & when) * 1)
        for n in sorted(set(missing.ravel().tolist()))
    ]


def loop(
    name: str, steps: ArrayLike, turn: Callable[..., Operations], shorter: Ints | None = None, **until: ArrayLike
) -> Nest:
    """A loop of `steps` turns, of which those that differ are peeled.

    Parameters
    ----------
    steps : ndarray of int
        Turns of each class.
    turn : callable
        The operations of one turn, ``turn(**flags)``; with `shorter`, ``turn(missing, **flags)``.
    shorter : ndarray of int, optional
        By how many elements the first turn's tile is shorter.
    **until : ndarray of int
        A flag holds in the turns before this one. Flags end one after the other, so that turns are in at most
        ``2 ** len(until)`` states; each state runs from the last end of a flag that is off to the first of one that is
        on.
    """
    if shorter is None:
        return _peeled(name, 0, steps, turn, until)
    nest: Nest = []
    for n in sorted(set(shorter[shorter > 0].tolist())):
        nest += _peeled(f"{name} ({n} short)", 0, np.minimum(steps, 1) * (shorter == n), partial(turn, n), until)
    return nest + _peeled(name, (shorter > 0) * 1, steps, partial(turn, 0), until)


def _peeled(name: str, begin: Any, end: Any, turn: Callable[..., Operations], until: dict[str, Any]) -> Nest:
    """Turns `begin` to `end` of a loop, a segment for each state of the flags that any class is in."""
    nest: Nest = []
    alike = all(isinstance(number, int) for number in (begin, end, *until.values()))
    least, most = (min, max) if alike else (np.minimum, np.maximum)
    for state in _states(len(until)):
        flags = dict(zip(until, state, strict=True))
        first, last = begin, end
        for flag, on in flags.items():
            first, last = (first, least(last, until[flag])) if on else (most(first, until[flag]), last)
        turns = most(last - first, 0)
        if turns if alike else turns.any():
            on_flags = ", ".join(flag.replace("_", " ") for flag, on in flags.items() if on)
            nest.append((Segment(f"{name}{f' ({on_flags})' * bool(on_flags)}", tuple(turn(**flags))), turns))
    return nest


def apart(nests: Sequence[Nest]) -> Nest:
    """Blocks of as many classes, each of which runs a nest of its own."""
    each = np.eye(len(nests), dtype=np.int64)
    return [
        (segment, here * np.asarray(count)) for nest, here in zip(nests, each, strict=True) for segment, count in nest
    ]


@cache
def _states(flags: int) -> list[tuple[bool, ...]]:
    """What so many flags may be, those with most of them on first."""
    return sorted(product((True, False), repeat=flags), key=lambda state: state.count(False))


def loop_nest(nest: Sequence[tuple[Segment, ArrayLike]]) -> tuple[tuple[Segment, ...], Ints]:
    """`segments` and `repeats` of a :class:`~attnsim.models.schedule.schedule.Kernel`.

    Segments that no block runs are left out.

    Returns
    -------
    (tuple of Segment, ndarray of int, shape [classes, turns, segments])
    """
    each = [np.asarray(count) for _, count in nest]
    used = [bool(count.any()) for count in each]
    kept = [count for count, keep in zip(each, used, strict=True) if keep]
    shape = np.broadcast_shapes(*{count.shape for count in each})
    counts = np.empty((len(kept), *shape), dtype=np.int64)
    for number, count in enumerate(kept):
        counts[number] = count
    classes, turns = (*shape, 1, 1)[:2]
    repeats = np.ascontiguousarray(counts.reshape(-1, classes * turns).T).reshape(classes, turns, -1)
    return tuple(segment for (segment, _), keep in zip(nest, used, strict=True) if keep), repeats
