"""The range of a ratio of two predicted times: errors that both share cancel, what is left is measured.

One kernel on two machines: the error of the ratio grows with what the change moves (`moved`), another card adds its own
clocks and host, another architecture its instructions and tiles, more where its numbers are borrowed. Two kernels on
one machine: each has its own errors, and only those of the machine, its laboratory's, cancel.
What the calibration itself leaves open does not cancel: its alternatives, which meet the rows nearly as well, are
played on both machines, and the range holds their ratios.
`attnsim.validation.checking.ratio_steps` measures both and checks them, `attnsim fit --record` writes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from attnsim.api.asking import KernelQuestion, Question
from attnsim.api.playing import Played as Run
from attnsim.api.playing import with_alternatives
from attnsim.api.trust import Trust
from attnsim.models.calibrations.components import HOST, TIMING, ratio_widths, widths
from attnsim.models.hardware.gpu import Change
from attnsim.wording import ratio_text, time_text

OF_A_MACHINE = ("laboratory", "clock")
"""The components that two kernels on one machine share."""

BORROWED = {"kernel", "architecture", "priors"}
"""Components of a time whose numbers are another kernel's or architecture's."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two times; as text, with its range: "1.14x (1.08-1.19)".

    Parameters
    ----------
    value : float
        Above 1 where the second is faster.
    low, high : float
        Between which the true ratio is expected nine times in ten.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, base_s: float, other_s: float, half: float, others: Sequence[float] = ()) -> Ratio:
        """The ratio of two times; `half` is the half-width of the range of its log.

        `others` are logs of other ratios over this one, of which the range holds the farthest on each side.
        """
        value = base_s / other_s
        below, above = (math.hypot(half, max(0.0, *(side * one for one in others), 0.0)) for side in (-1, 1))
        return cls(value, value * math.exp(-below), value * math.exp(above))

    def __str__(self) -> str:
        return ratio_text(self.value, self.low, self.high)

    def to_dict(self) -> dict[str, float]:
        """The fields, ready for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


class Played(Protocol):
    """A time, and how long each unit was busy in it."""

    @property
    def time_s(self) -> float | None:
        """Seconds of the call; None where it does not fit the memory."""

    @property
    def units_s(self) -> Mapping[str, float]:
        """Busy seconds of each unit."""


class Timed(Played, Protocol):
    """An answer of which a ratio is taken."""

    @property
    def time_s(self) -> float:
        """Seconds of the call."""

    @property
    def run(self) -> Run[Question] | Run[KernelQuestion]:
        """The question, and the numbers and the schedule that were played."""

    @property
    def tiles(self) -> str:
        """Whether the tile is shipped, retuned or given."""

    @property
    def trust(self) -> Trust:
        """With the components of the time's own range."""


def speedup(base: Timed, other: Timed) -> Ratio:
    """How many times faster `other` is than `base`, with its 90 % range."""
    same_call = base.run.question.call == other.run.question.call
    one, two = base.trust.components, other.trust.components
    half = math.hypot(
        ratio_widths().half_width(_of_machines(base, other)),
        widths().half_width(_of_one_call(base, other) if same_call else of_two_kernels(one, two)),
    )
    return Ratio.of(base.time_s, other.time_s, half, _by_alternatives(base, other) if same_call else ())


def _by_alternatives(base: Timed, other: Timed) -> list[float]:
    """Logs of the ratio by each alternative of the calibration that both share, over that by its own numbers."""
    known = base.run.chosen.calibration
    if known is None or known is not other.run.chosen.calibration:
        return []
    places = [(gpu.id, gpu.changes, _tile(one)) for one in (base, other) for gpu in [one.run.question.gpu]]
    if places[0] == places[1]:
        return []
    mine, theirs = (with_alternatives(one.run) for one in (base, other))
    logs = [math.log(one / two) for one, two in zip(mine, theirs, strict=True)]
    return [one - logs[0] for one in logs[1:]]


def speedup_of_tiles(base_s: float, other_s: float) -> Ratio:
    """The speedup of one kernel on another tile than the one that its code ships: nobody has timed it."""
    return Ratio.of(base_s, other_s, widths().half_width([widths().sd["pass"]]))


def moved(base: Played, other: Played) -> float:
    """How far a change moves a call: the log of its time, or of a unit's busy time by the unit's share of the call.

    The larger of the two: where another unit bounds the call the time stays, and yet the answer hangs on the unit
    that has changed, the more the longer that is busy. What changes nothing at all moves nothing.
    """
    if not base.time_s or not other.time_s:
        return 0.0
    found = abs(math.log(base.time_s / other.time_s))
    mine, theirs = base.units_s, other.units_s
    for unit in (mine.keys() & theirs.keys()) - {"idle"}:
        busy, then = mine[unit], theirs[unit]
        if busy > 0 and then > 0:
            found = max(found, max(busy / base.time_s, then / other.time_s) * abs(math.log(busy / then)))
    return found


def of_two_kernels(one: Mapping[str, float], two: Mapping[str, float]) -> list[float]:
    """Standard deviations of the log of two kernels' ratio on one machine, from the components of both."""
    shared = OF_A_MACHINE if all("laboratory" in made for made in (one, two)) else ()  # one timed there itself has none
    return [sd for made in (one, two) for name, sd in made.items() if name not in shared]


def together(parts: Sequence[tuple[float, Ratio | None]]) -> Ratio | None:
    """The speedup of several calls together, a layer's parts or a mix of workloads.

    ``sum of base times / sum of (base time / speedup)``; the ends of the range take each part at that end of its own,
    as if all were off in the same direction.

    Parameters
    ----------
    parts : sequence of (float, Ratio or None)
        Base time, or share of it, and speedup.

    Returns
    -------
    Ratio or None
        None where one part has none.
    """
    known = [(share, ratio) for share, ratio in parts if ratio is not None]
    if not known or len(known) < len(parts):
        return None
    whole = sum(share for share, _ in known)
    ends = ([share / getattr(ratio, end) for share, ratio in known] for end in ("value", "low", "high"))
    return Ratio(*(whole / sum(one) for one in ends))


def _of_machines(base: Timed, other: Timed) -> Iterator[float]:
    """Standard deviations of the machines, where they differ."""
    sd, one, two = ratio_widths().sd, base.run.question.gpu, other.run.question.gpu
    if one.id != two.id:
        yield sd["machines"]
    if one.architecture != two.architecture:
        yield sd["architectures"]
        if any(not made or BORROWED & made.keys() for made in (base.trust.components, other.trust.components)):
            yield sd["borrowed"]
    if one.changes != two.changes or (one.id != two.id and one.architecture == two.architecture):
        yield sd["change"] * moved(base, other)


def _of_one_call(base: Timed, other: Timed) -> Iterator[float]:
    """Standard deviations of one call on two machines or tiles, beyond the machines' own."""
    one, two = base.trust.components, other.trust.components
    if _tile(base) != _tile(other):
        yield from (widths().sd["pass"] for found in (base, other) if found.tiles != "shipped")
    if moved(base, other):
        yield from (made.get(TIMING, 0.0) for made in (one, two))
        yield abs(one.get(HOST, 0.0) ** 2 - two.get(HOST, 0.0) ** 2) ** 0.5


def _tile(one: Timed) -> str:
    return one.run.schedule.tile_text


class Comparable(Protocol):
    """An answer that can be held against another: a call's, a layer's or a mix's."""

    @property
    def time_s(self) -> float | None:
        """Seconds; None where it does not fit the memory."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that make the GPU hypothetical."""

    def speedup_over(self, other: Self, /) -> Ratio | None:
        """How many times faster than another answer of the same question."""

    def to_dict(self) -> dict[str, object]:
        """Plain types."""


T = TypeVar("T", bound=Comparable)


@dataclass(frozen=True, slots=True)
class LikeForLike(Generic[T]):
    """A question on the unchanged GPU on shipped and on retuned tiles, and on the changed GPU on retuned tiles.

    A tile that the unchanged GPU can have as well is no gain of the chip: retuned is held against retuned.

    Parameters
    ----------
    shipped, retuned : Answer, TooLarge or LayerAnswer
        On the unchanged GPU.
    changed : Answer, TooLarge or LayerAnswer
        On the changed one, on the best tiles that fit it.
    """

    shipped: T
    retuned: T
    changed: T

    @property
    def tile(self) -> Ratio | None:
        """The gain of the best tile on the unchanged GPU; None where one of them does not fit."""
        return self.retuned.speedup_over(self.shipped)

    @property
    def chip(self) -> Ratio | None:
        """The gain of the change, on the best tiles of both GPUs."""
        return self.changed.speedup_over(self.retuned)

    @property
    def both(self) -> Ratio | None:
        """Both together: today's kernel on today's GPU against the best tile on the changed one."""
        return self.changed.speedup_over(self.shipped)

    @property
    def sentence(self) -> str:
        """The three times, and the gain of the tile and of the chip."""
        times = [time_text(one.time_s) for one in (self.shipped, self.retuned, self.changed)]
        return (
            f"unchanged {times[0]}, retuned {times[1]}, changed and retuned {times[2]}. "
            f"The tile brings {self.tile or 'no ratio'}, the chip {self.chip or 'no ratio'}"
        )

    def to_dict(self) -> dict[str, object]:
        """Times and ratios, ready for JSON."""
        ratios = {name: getattr(self, name) for name in ("tile", "chip", "both")}
        return {
            "unchanged_time_s": self.shipped.time_s,
            "unchanged_retuned_time_s": self.retuned.time_s,
            **{name: one and one.to_dict() for name, one in ratios.items()},
        }
