"""Builders' notation for a loop nest: segments in program order, each with its repeat count per block class.

A builder writes a loop once, as its CUDA source does: `turn(load_next, masked)` yields the operations of one iteration,
and each flag holds until some iteration. :func:`loop` peels the iterations that differ and derives how often each runs.
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
"""Segments and their counts: one number for all block classes, ``[classes]``, or ``[classes, turns]`` if the outer loop
has several iterations.
"""
Operations = Iterable[TileOp]


def once(name: str, ops: Operations, when: ArrayLike = 1) -> Nest:
    """Segment that a block runs once, or `when` times."""
    return [(Segment(name, tuple(ops)), when)]


def by_size(name: str, missing: Ints, ops: Callable[[int], Operations], when: ArrayLike = True) -> Nest:
    """Segment that a block runs once and that depends on its tile's size: `ops(n)` for a tile that lacks `n` elements.

    Parameters
    ----------
    missing : ndarray of int, shape [classes] or [classes, turns]
        Elements missing from each class's tile.
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
    """Loop of `steps` iterations; iterations that differ are peeled.

    Parameters
    ----------
    steps : ndarray of int
        Iterations of each class.
    turn : callable
        Returns the operations of one iteration, ``turn(**flags)``; with `shorter`, ``turn(missing, **flags)``.
    shorter : ndarray of int, optional
        Elements missing from the first iteration's tile.
    **until : ndarray of int
        A flag is true in the iterations before this one. Flags end one after the other, so iterations have at most
        ``2 ** len(until)`` states. Each state runs from the last end of a false flag to the first end of a true one.
    """
    if shorter is None:
        return _peeled(name, 0, steps, turn, until)
    nest: Nest = []
    for n in sorted(set(shorter[shorter > 0].tolist())):
        nest += _peeled(f"{name} ({n} short)", 0, np.minimum(steps, 1) * (shorter == n), partial(turn, n), until)
    return nest + _peeled(name, (shorter > 0) * 1, steps, partial(turn, 0), until)


def _peeled(name: str, begin: Any, end: Any, turn: Callable[..., Operations], until: dict[str, Any]) -> Nest:
    """Iterations `begin` to `end` of a loop: one segment for each state of the flags that any class has."""
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
    """Combine nests so that blocks of class i run only nest i."""
    each = np.eye(len(nests), dtype=np.int64)
    return [
        (segment, here * np.asarray(count)) for nest, here in zip(nests, each, strict=True) for segment, count in nest
    ]


@cache
def _states(flags: int) -> list[tuple[bool, ...]]:
    """All combinations of `flags` flags, those with most true ones first."""
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
