"""The bound of a call: the figure of the GPU whose doubling gains most, found by playing the call with each doubled.

How long a unit is busy does not say it: it may be busy in a kernel that takes little of the call, or while the call
waits for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from attnsim.api.playing import Played, replayed
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import UNITS, bound_text, unit_text
from attnsim.simulator import players
from attnsim.simulator.replay import Replay
from attnsim.wording import times_text

LEAST = by_hand(1.02, "speedup by a figure twice as good below which that figure is not said to bound: the call waits")
WAITS, LAUNCH = "waits", "launch"
PLAYS = by_hand(16, "plays of a call for its bound: each of some eight figures doubled, at the full clock and below it")


def expect_bounds() -> None:
    """Say that this process asks for the bound of each answer: then long calls are played by compiled code at once."""
    players.expect(PLAYS)


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of a call or a kernel; as text: "L2, 1.10x if doubled".

    Parameters
    ----------
    unit : str
        Unit of the replay whose figure gains most; "launch", whose time is halved; "waits" where none gains `LEAST`.
    figure : str
        Key of that figure; empty where it waits.
    gain : float
        Speedup with the figure twice as good; 1 where it waits.
    """

    unit: str
    figure: str
    gain: float

    def __str__(self) -> str:
        return self._with_gain(bound_text(self.unit))

    @property
    def words(self) -> str:
        """In a sentence: "the L2, 1.10x if doubled"."""
        return self._with_gain(unit_text(self.unit))

    def _with_gain(self, unit: str) -> str:
        if not self.figure:
            return f"{unit} (latency)"
        return f"{unit}, {times_text(self.gain)} if {'halved' if self.unit == LAUNCH else 'doubled'}"


def bounds(
    played: Replay, gpu: Gpu, dtype: str, launch: str, play: Callable[[Gpu], Replay]
) -> tuple[Bound, tuple[Bound, ...]]:
    """The bound of a call and of each of its kernels; a unit that is hardly busy in any kernel is not tried."""
    found = [(unit, figure, play(better)) for unit, figure, better in _doubled(played, gpu, dtype, launch)]

    def most(gains: list[float]) -> Bound:
        gain, place = max(((gain, -place) for place, gain in enumerate(gains)), default=(0.0, 0))
        return Bound(*found[-place][:2], gain) if gain >= LEAST else Bound(WAITS, "", 1.0)

    call = most([played.time_s / then.time_s for _, _, then in found])
    kernels = (
        most([one.time_s / then.kernels[at].time_s for _, _, then in found]) for at, one in enumerate(played.kernels)
    )
    return call, tuple(kernels)


def _doubled(played: Replay, gpu: Gpu, dtype: str, launch: str) -> Iterator[tuple[str, str, Gpu]]:
    """Units that may bound a kernel, their figures, and the GPU with each twice as good."""
    least = 2 * (1 - 1 / LEAST)  # a unit twice as fast saves half of its time at most
    for unit, one in UNITS.items():
        figure = one.figure_for(dtype)
        if any(kernel.units_s.get(unit, 0.0) > least * kernel.time_s for kernel in played.kernels) and gpu.get(figure):
            yield unit, figure, gpu.replace(figure, 2 * gpu.get(figure))
    figure = "launch.graph" if launch == "graph" else "launch.stream"
    if launch != "kernel" and played.launch_s > least * played.time_s:
        yield LAUNCH, figure, gpu.replace(figure, gpu.get(figure) / 2)


@lru_cache(maxsize=64)
def bounds_of(run: Played[Any]) -> tuple[Bound, tuple[Bound, ...]]:
    """The bound of a call that was played and of each of its kernels, on its tile and in fast mode."""
    schedule, asked, numbers = run.schedule, run.question, run.chosen.numbers
    fast = replace(asked.conditions, mode="fast", progress=None)
    base = run.replay if asked.conditions.mode == "fast" else replayed(schedule, asked.gpu, numbers, fast)
    return bounds(base, asked.gpu, asked.dtype, fast.launch, lambda gpu: replayed(schedule, gpu, numbers, fast))
