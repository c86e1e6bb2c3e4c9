"""The bound of a call, and its floor.

The bound is the figure of the GPU whose doubling gains most, found by playing the call with each doubled. How long a
unit is busy does not say it: it may be busy in a kernel that takes little of the call, or while the call waits for
something else.

The floor is the time that no schedule of the call undercuts. ``fastest.csv`` has how near to it anybody has come, and
is written from the published measurements by ``benchmarks/fastest.py``. A share of the floor is a record, not a limit:
no answer and no range ends at it, but an answer well beyond it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnsim.api.asking import Conditions
from attnsim.api.playing import Played, replayed
from attnsim.by_hand import by_hand
from attnsim.models.closed_forms.useful import Useful
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import UNITS, bound_text, unit_text
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator import players
from attnsim.simulator.replay import Replay
from attnsim.tables import read_csv
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


def floor_s(schedule: Schedule, useful: Useful, gpu: Gpu, conditions: Conditions) -> float:
    """Seconds that a call takes at least: the longest of `limits_s`, and one launch."""
    return max(limits_s(schedule, useful, gpu, conditions.cache).values()) + gpu.launch.each_s(conditions.launch)


def limits_s(schedule: Schedule, useful: Useful, gpu: Gpu, cache: str) -> dict[str, float]:
    """Seconds that each limit of a GPU holds a call for at least.

    Its useful FLOPs at the rated "peak" and boost clock, its "rate of exponentials", and at the "bandwidth" the bytes
    of HBM that come from outside or stay, each once, less what a warm L2 holds and what the L2 keeps of the results
    (Williams, Waterman and Patterson, CACM 52(4), 2009, with a ceiling for exponentials).

    Parameters
    ----------
    schedule : Schedule
        Whose tensors and formats they are. Of forms that do less than the convention counts (no recomputation, fewer
        exponentials) it says how much.
    useful : Useful
    gpu : Gpu
    cache : str
        As for `predict`.
    """
    clks = gpu.sm.count * max(gpu.clock.boost_hz, gpu.clock.full_hz)
    flops_per_clk = max(gpu.tensor_flops_per_clk(kernel.dtype) for kernel in schedule.kernels)
    read = {use.tensor for kernel in schedule.kernels for use in kernel.uses if not use.written}
    moved = {"load": 0, "store": 0}
    for (_, kind, tensor), size in schedule.compulsory().items():
        stays = kind == "load" or tensor not in read  # what only goes from kernel to kernel may not stay
        moved[kind] += size * stays
    kept = {"load": gpu.l2.capacity_bytes * (cache != "cold"), "store": gpu.l2.capacity_bytes}
    left = sum(max(0, size - kept[kind]) for kind, size in moved.items())
    return {
        "peak": min(useful.flops, schedule.total("flops")) / (flops_per_clk * clks),
        "rate of exponentials": min(useful.exponentials, schedule.total("exps")) / (gpu.sm.exp_per_clk * clks),
        "bandwidth": left / gpu.hbm.bandwidth_bytes_per_s,
    }


TABLE = Path(__file__).with_name("fastest.csv")
LEAST_ROWS = by_hand(20, "measured calls of a pass on a chip from which the nearest to its floor counts as a record")
BEYOND = by_hand(1.1, "times the best measured share of a floor beyond which an answer says that nobody was as fast")
COLUMNS = ("gpu", "pass", "share", "rows", "implementation", "source", "question")


@dataclass(frozen=True, slots=True)
class Fastest:
    """The measured call of a pass that has come nearest to its floor on a chip.

    Parameters
    ----------
    share : float
        Its floor over its time.
    rows : int
        Measured calls among which it is the nearest.
    implementation, source, question : str
        Whose kernel, the key of its source, and what was asked.
    """

    share: float
    rows: int
    implementation: str
    source: str
    question: str

    def remark(self, share: float) -> str:
        """The remark on an answer that reaches this share of its floor; "" where it is not beyond the record."""
        return f"{share:.2f} of its floor; nobody has been this fast: {self}" if share > BEYOND * self.share else ""

    def __str__(self) -> str:
        return f"the nearest of {self.rows} measured calls came to {self.share:.2f} ({self.implementation})"


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str], Fastest]:
    return {
        (row["gpu"], row["pass"]): Fastest(
            float(row["share"]), int(row["rows"]), row["implementation"], row["source"], row["question"]
        )
        for row in read_csv(TABLE)
    }


def fastest(gpu: Gpu, passes: str) -> Fastest | None:
    """The nearest of a pass on a chip; None on a changed GPU, and where too few were measured to be a record."""
    found = None if gpu.changes else _table().get((gpu.base_id, passes))
    return found if found and found.rows >= LEAST_ROWS else None
