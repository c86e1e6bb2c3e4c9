"""What a command may take: memory and time are estimated before, and more than this is refused unless it is asked for.

`check_cost` is for what is known before; `watched` for what shows in the first part of the work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnsim.errors import InputError

MEMORY_BYTES = 2 << 30
TIME_S = 60.0
"""On one core."""

UNBOUNDED = "ATTNSIM_UNBOUNDED"
"""Environment variable that lifts both bounds, in this process and in those that it starts."""

Shown = Callable[[int, int], None]
"""Called with what has begun, and with what there is of it."""


def check_cost(what: str, *, memory_bytes: float = 0.0, time_s: float = 0.0) -> None:
    """Refuse what would take more memory or time than a command may.

    Raises
    ------
    InputError
        Saying what it would need.
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
    """Foresees when parts of equal work will be done."""

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
    """Refuse the block as soon as `reached` and `look` within it tell that it takes too long.

    Parameters
    ----------
    what : str
        For the message.
    shown : callable
        Told of the progress.
    """
    _watches.append(_Watch(what, shown))
    try:
        yield
    finally:
        _watches.pop()


def reached(begun: int, total: int) -> None:
    """So many parts of equal work have begun, of so many.

    Raises
    ------
    InputError
        Where they will take too long, and somebody is watching.
    """
    for watch in _watches[-1:]:
        watch.reached(begun, total)


def look() -> None:
    """See in the middle of a part whether it takes too long.

    Raises
    ------
    InputError
    """
    for watch in _watches[-1:]:
        watch.look()
