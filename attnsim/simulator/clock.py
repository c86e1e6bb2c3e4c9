"""SimPy's environment, with a short way to sleep.

Nearly all that a replay does is a process sleeping until its tile operation is done. In SimPy a process sleeps by
yielding a ``Timeout``, an event with a list of callbacks; here it yields the picoseconds, and it is the process itself
that waits in SimPy's queue. All else is SimPy's, the order in which things happen included: a test holds the two
together.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush, heappushpop
from typing import Any, final

import simpy
from simpy.events import NORMAL, PENDING

Steps = Generator[int | simpy.Event, int, None]
"""What a process does: it yields picoseconds to sleep and is sent the time when it wakes, or it yields an event to wait
for and is sent the event's value."""


@final
class Sleeper(simpy.Process):
    """A SimPy process that may also sleep."""

    _generator: Any  # which to SimPy yields events alone

    def __init__(self, clock: Clock, steps: Steps) -> None:
        super().__init__(clock, steps)  # type: ignore[arg-type]

    def _resume(self, event: simpy.Event) -> None:
        """Begin, or go on after an event, in the turn that SimPy gives it."""
        try:
            wanted = self._generator.send(event.value)
        except StopIteration:
            self.end()
            return
        if type(wanted) is int:
            clock = self.env
            heappush(clock._queue, (clock._now + wanted, NORMAL, next(clock._eid), self))
        else:
            wanted.callbacks.append(self._resume)

    def end(self) -> None:
        """Tell those who wait for the end, if anybody does."""
        if self.callbacks:
            self.succeed()


class Clock(simpy.Environment):
    """Simulated time in whole picoseconds."""

    @property
    def now(self) -> int:
        """Picoseconds since the beginning."""
        return int(self._now)

    def run(self, until: object = None) -> None:
        """Let everything happen that is due, until nothing is."""
        queue, number = self._queue, self._eid
        while queue:
            self._now, _, _, due = heappop(queue)
            while type(due) is Sleeper and due._value is PENDING:
                try:
                    wanted = due._generator.send(self._now)
                except StopIteration:
                    due.end()
                    break
                if type(wanted) is not int:
                    wanted.callbacks.append(due._resume)
                    break
                wake = self._now + wanted
                if queue and queue[0][0] <= wake:
                    self._now, _, _, due = heappushpop(queue, (wake, NORMAL, next(number), due))
                else:  # nobody else is up before
                    self._now = wake
            else:
                callbacks: Any
                callbacks, due.callbacks = due.callbacks, None  # type: ignore[assignment]
                for callback in callbacks:
                    callback(due)
