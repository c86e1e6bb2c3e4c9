"""Limits on the memory and time of a command: both are estimated first, and excess is refused unless it is requested.

`check_cost` is for costs known in advance; `watched` for costs that the first part of the work reveals.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnsim.errors import InputError

MEMORY_BYTES = 2 << 30
TIME_S = 60.0
"""Seconds on one core."""

UNBOUNDED = "ATTNSIM_UNBOUNDED"
"""Environment variable that lifts both limits, in this process and in its children."""

Shown = Callable[[int, int], None]
"""Progress callback: parts begun, and all parts."""


def check_cost(what: str, *, memory_bytes: float = 0.0, time_s: float = 0.0) -> None:
    """Refuse work that would take more memory or time than a command may.

    Raises
    ------
    InputError
        With the estimate.
    """
    if os.environ.get(UNBOUNDED) or (memory_bytes <= MEMORY_BYTES and time_s <= TIME_S):
        return
    over = memory_bytes > MEMORY_BYTES
    need = f"{memory_bytes / 2**30:,.1f} GiB of memory" if over else f"{time_s:,.0f} s"
    most = f"{MEMORY_BYTES >> 30} GiB" if over else f"{TIME_S:.0f} s"
    raise InputError(
        f"{what} would take about {need}; allowed: {most}; make it smaller, or go on with attnsim --unbounded "
        f"({UNBOUNDED}=1 in Python)"
    )


class _Watch:
    """Estimates when parts of equal work will be done."""

    def __init__(self, what: str, shown: Shown) -> None:
        self.what, self.shown = what, shown
        self.started = self.phase = time.process_time()
        self.begun, self.total = 0, 1

    def reached(self, begun: int, total: int) -> None:
        if begun <= self.begun or total != self.total:
            self.phase = time.process_time()
        self.begun, self.total = begun, total
        self.shown(begun, total)
        self.look()

    def look(self) -> None:
        now = time.process_time()
        to_come = (now - self.phase) * (self.total / max(1, self.begun) - 1)
        check_cost(self.what, time_s=now - self.started + to_come)


_watches: list[_Watch] = []


@contextmanager
def watched(what: str, shown: Shown = lambda begun, total: None) -> Iterator[None]:
    """Refuse the block as soon as `reached` and `look` within it show that it takes too long.

    Parameters
    ----------
    what : str
        Description of the work for the message.
    shown : callable
        Progress callback.
    """
    _watches.append(_Watch(what, shown))
    try:
        yield
    finally:
        _watches.pop()


def reached(begun: int, total: int) -> None:
    """Report that `begun` of `total` parts of equal work have begun.

    Raises
    ------
    InputError
        If they will take too long, within :func:`watched`.
    """
    for watch in _watches[-1:]:
        watch.reached(begun, total)


def look() -> None:
    """Check, in the middle of a part, whether it takes too long."""
    for watch in _watches[-1:]:
        watch.look()
