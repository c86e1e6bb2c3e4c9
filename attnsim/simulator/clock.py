"""SimPy's environment, with a short way to sleep.

Nearly all that a replay does is a process sleeping until its tile operation is done. In SimPy a process sleeps by
yielding a ``Timeout``, an event with a list of callbacks; here it yields the time, and it is the process itself that
waits in the queue. All else is SimPy's, the order in which things happen included: a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import count
from typing import Any, final

import simpy
from simpy.events import NORMAL, URGENT, EventPriority

Steps = Generator[int | simpy.Event, Any, None]
"""Steps of a process: it yields the time until which it sleeps, or an event to wait for, whose value it is sent."""


@final
class Sleeper(simpy.Process):
    """A SimPy process that may also sleep."""

    env: Clock

    def __init__(self, clock: Clock, steps: Steps) -> None:
        self.env, self.callbacks, self._generator = clock, [], steps  # type: ignore[assignment]
        clock.put(clock.now, URGENT, steps.send, self)

    def _resume(self, event: simpy.Event) -> None:
        """Continue after an event, at the point in the queue that SimPy gives it."""
        wanted: Any
        try:
            wanted = self._generator.send(event.value)
        except StopIteration:
            self.end()
            return
        if type(wanted) is int:
            self.env.put(wanted, NORMAL, self._generator.send, self)
        else:
            wanted.callbacks.append(self._resume)

    def end(self) -> None:
        """Trigger the event of the process's end, if anything waits for it."""
        if self.callbacks:
            self.succeed()


@final
class AllOf(simpy.Event):
    """Event that happens, without a value, once all of the given events have; ordered as SimPy orders it."""

    def __init__(self, clock: Clock, events: Sequence[simpy.Event]) -> None:
        self.env, self.callbacks, self.left = clock, [], len(events)
        for event in events:
            event.callbacks.append(self.happened)
        if not events:
            self.succeed()

    def happened(self, event: simpy.Event) -> None:
        """Count down when one of the events has happened."""
        self.left -= 1
        if self.left == 0:
            self.succeed()


class Clock(simpy.Environment):
    """Simulated time in whole picoseconds.

    Attributes
    ----------
    now : int
        Picoseconds since the beginning. A process may set a later time itself, instead of sleeping until then, if
        nothing is due until that time.
    due : list
        Heap of due entries, by time: an event, or a process with the function that resumes it.
    """

    now: int = 0

    def __init__(self) -> None:
        # SimPy's own also binds `timeout`, `process` and the like, which takes as long as a short replay.
        self.now, self._eid = 0, count()
        self.due: list[tuple[int, EventPriority, int, Callable[[None], Any] | None, Any]] = []

    def schedule(self, event: simpy.Event) -> None:  # type: ignore[override]
        """Put an event into the queue at the current time; SimPy calls this."""
        self.put(self.now, NORMAL, None, event)

    def put(self, at: int, priority: EventPriority, send: Callable[[None], Any] | None, event: simpy.Event) -> None:
        """Put an event into the queue, or a process that `send` resumes."""
        heappush(self.due, (at, priority, next(self._eid), send, event))

    def run(self, until: object = None) -> None:
        """Process due entries until none are left."""
        queue, number = self.due, self._eid
        while queue:
            self.now, _, _, send, event = heappop(queue)
            while send is not None:
                try:
                    wanted = send(None)
                except StopIteration:
                    event.end()
                    break
                if type(wanted) is not int:
                    wanted.callbacks.append(event._resume)
                    break
                self.now, _, _, send, event = heappushpop(queue, (wanted, NORMAL, next(number), send, event))
            else:
                callbacks, event.callbacks = event.callbacks, None
                if len(callbacks) > 1:  # no process it wakes may set the clock before all have resumed
                    self.schedule(simpy.Event(self))
                for callback in callbacks:
                    callback(event)
