"""SimPy's environment, with a short way to sleep.

Nearly all that a replay does is a process sleeping until its tile operation is done. In SimPy a process sleeps by
yielding a ``Timeout``, an event with a list of callbacks; here it yields the picoseconds, and it is the process itself
that waits in SimPy's queue. All else is SimPy's, the order in which things happen included: a test holds the two
together.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush, heappushpop
from itertools import count
from typing import Any, final

import simpy
from simpy.events import NORMAL, PENDING, URGENT, EventPriority

Steps = Generator[int | simpy.Event, int, None]
"""What a process does: it yields picoseconds to sleep and is sent the time when it wakes, or it yields an event to wait
for and is sent the event's value."""


@final
class Sleeper(simpy.Process):
    """A SimPy process that may also sleep."""

    env: Clock

    def __init__(self, clock: Clock, steps: Steps) -> None:
        self.env, self.callbacks, self._generator = clock, [], steps  # type: ignore[assignment]
        clock.put(0, URGENT, self)

    def _resume(self, event: simpy.Event) -> None:
        """Go on after an event, in the turn that SimPy gives it."""
        wanted: Any
        try:
            wanted = self._generator.send(event.value)
        except StopIteration:
            self.end()
            return
        if type(wanted) is int:
            self.env.put(wanted, NORMAL, self)
        else:
            wanted.callbacks.append(self._resume)

    def end(self) -> None:
        """Tell those who wait for the end, if anybody does."""
        if self.callbacks:
            self.succeed()


class Clock(simpy.Environment):
    """Simulated time in whole picoseconds."""

    _now: int
    _queue: list[Any]  # events as in SimPy, processes that sleep, and urgent ones, which begin

    def __init__(self) -> None:
        # SimPy's own also binds `timeout`, `process` and the like, which takes as long as a short replay.
        self._now, self._queue, self._eid, self._active_proc = 0, [], count(), None

    @property
    def now(self) -> int:
        """Picoseconds since the beginning."""
        return self._now

    def put(self, delay: int, priority: EventPriority, due: Any) -> None:
        """Put something into the queue."""
        heappush(self._queue, (self._now + delay, priority, next(self._eid), due))

    def run(self, until: object = None) -> None:
        """Let everything happen that is due, until nothing is."""
        queue, number = self._queue, self._eid
        while queue:
            self._now, priority, _, due = heappop(queue)
            while type(due) is Sleeper and due._value is PENDING:
                try:
                    wanted: Any = due._generator.send(self._now if priority else None)
                except StopIteration:
                    due.end()
                    break
                if type(wanted) is not int:
                    wanted.callbacks.append(due._resume)
                    break
                wake = self._now + wanted
                if queue and queue[0][0] <= wake:
                    self._now, priority, _, due = heappushpop(queue, (wake, NORMAL, next(number), due))
                else:  # nobody else is up before
                    self._now, priority = wake, NORMAL
            else:
                callbacks, due.callbacks = due.callbacks, None
                for callback in callbacks:
                    callback(due)
