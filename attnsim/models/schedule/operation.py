"""One operation on a tile with the amount of work for each unit of an SM, and segments of such operations.

Builders' notation for a loop nest: segments in program order, each with its repeat count per block class.

A builder writes a loop once, as its CUDA source does: `turn(load_next, masked)` yields the operations of one iteration,
and each flag holds until some iteration. :func:`loop` peels the iterations that differ and derives how often each runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Ints

Kind = Literal["load", "wait", "store", "mma", "mma_async", "mma_wait", "vector", "delay", "prefetch"]
Waits = Literal["", "step", "block", "write"]


class TileOp(NamedTuple):
    """One operation on a tile, with the amount of work for each unit of the SM.

    Parameters
    ----------
    kind : str
        - ``load`` starts an asynchronous copy from global memory; ``wait`` blocks until the oldest such copy of the
          same tensor has landed.
        - ``store`` writes global memory and does not wait.
        - ``mma`` multiplies and waits; ``mma_async`` issues, and ``mma_wait`` waits for the oldest one issued.
        - ``vector`` is work on registers (softmax, rescaling, masks).
        - ``delay`` is a fixed latency.
        - ``prefetch`` lets a persistent block start the leading loads of its next tile.
    tensor : str
        The tensor moved or waited for; the output's name for an MMA.
    bytes : int
        Bytes requested from or sent to global memory.
    flops : int
        Tensor-core FLOPs executed, padding included.
    smem_bytes : int
        Shared-memory traffic of the operands.
    tmem_bytes : int
        Bytes between tensor memory and registers.
    scores : int
        Elements of S or P that pass through the softmax.
    exps : int
        Exponentials.
    fp32 : int
        FP32-lane instructions: all of a counted operation, otherwise those apart from the per-score ones.
    int32 : int
        Instructions on the integer lanes: all of a counted operation (integers, comparisons, maxima, selections,
        conversions), otherwise those that its source names.
    load_stores : int
        Threads' accesses through the load/store units: shared memory, shuffles, matrix loads.
    issues : int
        Warp instructions that the schedulers issue, on any pipe. An operation with any is *counted*: it takes as long
        as its busiest pipe. An operation with none takes as long as its pipes one after another.
    fp64 : int
        Instructions on the FP64 lanes.
    clks : int
        Latency of a ``delay``, in clocks.
    share : float
        Part of the latency named by a ``delay``: an epilogue stores valid rows only.
    waits : str
        Latency of the implementation that a ``delay`` adds to its `clks`: "step", "block" or "write".
    """

    kind: Kind
    tensor: str = ""
    bytes: int = 0
    flops: int = 0
    smem_bytes: int = 0
    tmem_bytes: int = 0
    scores: int = 0
    exps: int = 0
    fp32: int = 0
    int32: int = 0
    load_stores: int = 0
    issues: int = 0
    fp64: int = 0
    clks: int = 0
    share: float = 1.0
    waits: Waits = ""

    def __str__(self) -> str:
        """One line for a reader: the kind, the tensor and the amounts that are not zero."""
        amounts = [
            f"{name} {amount:{',' * (name != 'waits')}}"
            for name, amount in self._asdict().items()
            if name not in ("kind", "tensor") and amount != self._field_defaults[name]
        ]
        return " ".join(part for part in (self.kind, self.tensor, *amounts) if part)


BLOCK, STEP = TileOp("delay", waits="block"), TileOp("delay", waits="step")
"""Latencies that are numbers of the implementation: at the beginning or end of a block, and at a step's barriers."""
AMOUNTS = tuple(name for name in TileOp._fields if name not in ("kind", "tensor", "share", "waits"))
"""Fields of an operation that can be summed."""
amounts = attrgetter(*AMOUNTS)
"""The amounts of an operation, in that order."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the loop nest that is always run as a whole.

    Copies from and to global memory are issued once per block, by the last warpgroup to arrive. Every other operation
    is run by each warpgroup on its own rows.
    """

    name: str
    ops: tuple[TileOp, ...]


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
