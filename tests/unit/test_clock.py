"""The engine's clock against plain SimPy: the same things happen at the same time and in the same order."""

from collections.abc import Callable, Generator
from typing import Any

import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.simulator.clock import Clock, Sleeper

Script = list[tuple[str, int]]
STEP = st.tuples(st.sampled_from(["sleep", "wait", "wake", "fork"]), st.integers(0, 3))
SCRIPTS = st.lists(st.lists(STEP, max_size=6), min_size=1, max_size=5)


def log_of(clock: simpy.Environment, sleep: Callable[[int], Any], begin: Any, scripts: list[Script]) -> list[str]:
    """What processes that sleep, wait for each other and fork say, and when."""
    said: list[str] = []
    events = [clock.event() for _ in range(4)]

    def play(name: str, script: Script, depth: int) -> Generator[Any, Any, None]:
        for turn, (what, number) in enumerate(script):
            said.append(f"{clock.now} {name}.{turn} {what} {number}")
            if what == "sleep":
                yield sleep(number)
            elif what == "wait" and not events[number].triggered:
                yield events[number]
            elif what == "wake" and not events[number].triggered:
                events[number].succeed()
            elif what == "fork" and depth < 2:
                rest = script[turn + 1 :]
                yield clock.all_of([begin(clock, play(f"{name}.{turn}.{i}", rest, depth + 1)) for i in range(number)])
        said.append(f"{clock.now} {name} ends")

    for number, script in enumerate(scripts):
        begin(clock, play(str(number), script, 0))
    clock.run()
    return said


@settings(max_examples=300, deadline=None)
@given(scripts=SCRIPTS)
def test_the_order_is_that_of_simpy(scripts: list[Script]) -> None:
    plain = simpy.Environment()
    assert log_of(Clock(), lambda delay: delay, Sleeper, scripts) == log_of(
        plain, plain.timeout, simpy.Process, scripts
    )


def test_a_sleeper_is_told_the_time_and_the_value_of_an_event() -> None:
    clock, heard = Clock(), []
    event = clock.event()

    def sleeps() -> Generator[Any, Any, None]:
        heard.append((yield 7))
        heard.append((yield 5))
        event.succeed("done")

    def waits() -> Generator[Any, Any, None]:
        heard.append((yield event))

    Sleeper(clock, sleeps())
    Sleeper(clock, waits())
    clock.run()
    assert heard == [7, 12, "done"]
    assert clock.now == 12
