"""The engine's clock against plain SimPy: the same things happen at the same time and in the same order."""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import simpy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnsim.simulator.engine import AllOf, Clock, Sleeper

Script = list[tuple[str, int]]
STEP = st.tuples(st.sampled_from(["sleep", "wait", "wake", "fork"]), st.integers(0, 3))
SCRIPTS = st.lists(st.lists(STEP, max_size=6), min_size=1, max_size=5)


def log_of(
    clock: simpy.Environment, sleep: Callable[[int], Any], begin: Any, all_of: Any, scripts: list[Script]
) -> list[str]:
    """What processes that sleep, wait for each other and fork say, and when."""
    said: list[str] = []
    events = [clock.event() for _ in range(4)]

    def play(name: str, script: Script, depth: int) -> Generator[Any, Any, None]:
        for turn, (what, number) in enumerate(script):
            said.append(f"{clock.now} {name}.{turn} {what} {number}")
            if what == "sleep":
                yield from sleep(number)
            elif what == "wait" and not events[number].triggered:
                yield events[number]
            elif what == "wake" and not events[number].triggered:
                events[number].succeed()
            elif what == "fork" and depth < 2:
                rest = script[turn + 1 :]
                yield all_of([begin(clock, play(f"{name}.{turn}.{i}", rest, depth + 1)) for i in range(number)])
        said.append(f"{clock.now} {name} ends")

    for number, script in enumerate(scripts):
        begin(clock, play(str(number), script, 0))
    clock.run()
    return said


@settings(max_examples=300, deadline=None)
@given(scripts=SCRIPTS)
@example(scripts=[[("wait", 0), ("sleep", 2)], [("wait", 0), ("sleep", 1)], [("wake", 0)]])  # one event wakes two
def test_the_order_is_that_of_simpy(scripts: list[Script]) -> None:
    plain, sleeping, setting = simpy.Environment(), Clock(), Clock()

    def wait_for_timeout(delay: int) -> Generator[Any, Any, None]:
        yield plain.timeout(delay)

    def sleep(delay: int) -> Generator[Any, Any, None]:
        yield sleeping.now + delay

    def set_the_clock(delay: int) -> Generator[Any, Any, None]:
        at = setting.now + delay
        if setting.due and setting.due[0][0] <= at:
            yield at
        else:
            setting.now = at

    expected = log_of(plain, wait_for_timeout, simpy.Process, plain.all_of, scripts)
    assert log_of(sleeping, sleep, Sleeper, partial(AllOf, sleeping), scripts) == expected
    assert log_of(setting, set_the_clock, Sleeper, partial(AllOf, setting), scripts) == expected


def test_a_sleeper_wakes_at_its_time_and_is_told_the_value_of_an_event() -> None:
    clock, heard = Clock(), []
    event = clock.event()

    def sleeps() -> Generator[Any, Any, None]:
        yield 7
        heard.append(clock.now)
        yield 12
        heard.append(clock.now)
        event.succeed("done")

    def waits() -> Generator[Any, Any, None]:
        heard.append((yield event))

    Sleeper(clock, sleeps())
    Sleeper(clock, waits())
    clock.run()
    assert heard == [7, 12, "done"]
    assert clock.now == 12
