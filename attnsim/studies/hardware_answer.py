"""What one machine of a search over hardware answers: times, energy, area and cost of a mix of workloads.

The weight of a workload is its share of the time on the unchanged machine. A mix is counted per second of that: each
workload runs so often that the unchanged machine spends its share of a second on it, and the time of another machine is
that of the same calls. A single workload is counted by the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from attnsim.api.energy import energy
from attnsim.api.ratios import Ratio, together
from attnsim.errors import InputError
from attnsim.models.hardware.area import area_mm2, without_area
from attnsim.models.hardware.cost import cost_usd
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.interval import Interval
from attnsim.studies.hardware_case import Answered, Case, speedup_of
from attnsim.studies.prices import Prices


@dataclass(frozen=True, slots=True)
class Mix:
    """Workloads and how often each runs.

    Parameters
    ----------
    cases : tuple of Case
    calls : tuple of float
        Of each: 1 of a single workload, else so many as the unchanged machine does in its share of a second.
    base : tuple of Prediction or LayerPrediction
        Of each on the unchanged machine.
    """

    cases: tuple[Case, ...]
    calls: tuple[float, ...]
    base: tuple[Answered, ...]

    @classmethod
    def of(cls, cases: Sequence[Case], base: Sequence[Answered]) -> Mix:
        """The mix whose weights are shares of the unchanged machine's time.

        Raises
        ------
        InputError
            When one of several workloads has no time there.
        """
        if len(cases) == 1:
            return cls(tuple(cases), (1.0,), tuple(base))
        whole = sum(case.weight for case in cases)
        calls = []
        for case, one in zip(cases, base, strict=True):
            if not one.time_s:
                raise InputError(f"{case.name}: {one.notes[0]}; a weight is a share of the unchanged machine's time")
            calls.append(case.weight / whole / one.time_s)
        return cls(tuple(cases), tuple(calls), tuple(base))


@dataclass(frozen=True, slots=True)
class MachineAnswer:
    """What a machine answers.

    Parameters
    ----------
    predictions : tuple of Prediction or LayerPrediction
        Of each workload.
    time_s, joules, watts : Interval
        Of a call, or of a second of the mix on the unchanged machine.
    area, cost : Interval or None
        mm2, and US dollars or the user's prices; None where they are not known.
    speedup : Ratio or None
        Over the unchanged machine.
    assumed : tuple of str
        Units whose energy is assumed for the architecture.
    free : tuple of str
        Changed figures whose area is not known.
    """

    predictions: tuple[Answered, ...]
    time_s: Interval
    joules: Interval
    watts: Interval
    area: Interval | None
    cost: Interval | None
    speedup: Ratio | None
    assumed: tuple[str, ...]
    free: tuple[str, ...]

    @property
    def results(self) -> dict[str, Interval | None]:
        """By the names of `attnsim.models.hardware.merits.RESULTS`."""
        return {"time": self.time_s, "energy": self.joules, "power": self.watts, "area": self.area, "cost": self.cost}

    def values(self) -> dict[str, float]:
        """The typical results, where they are known."""
        return {name: one.typical for name, one in self.results.items() if one is not None}


def answered(gpu: Gpu, mix: Mix, predictions: Sequence[Answered], prices: Prices | None) -> MachineAnswer:
    """What a machine answers, of the predictions of its workloads.

    Raises
    ------
    InputError
        When one does not fit the memory.
    """
    used = [energy(one, gpu) for one in predictions]
    calls = mix.calls
    low, time_s, high = (
        sum(number * (getattr(one, end) or 0.0) for number, one in zip(calls, predictions, strict=True))
        for end in ("time_low_s", "time_s", "time_high_s")
    )
    joules = _sum((number, one.joules) for number, one in zip(calls, used, strict=True))
    return MachineAnswer(
        predictions=tuple(predictions),
        time_s=Interval(low, time_s, high),
        joules=joules,
        watts=joules.over(time_s),
        area=known(area_mm2, gpu),
        cost=prices.cost(gpu) if prices else known(cost_usd, gpu),
        speedup=compared(mix.base, predictions, mix),
        assumed=tuple(dict.fromkeys(name for one in used for name in one.assumed)),
        free=without_area(gpu),
    )


def compared(base: Sequence[Answered], other: Sequence[Answered], mix: Mix) -> Ratio | None:
    """How many times faster the mix is by `other` predictions than by those of `base`."""
    ratios = map(speedup_of, base, other)
    shares = [number * (one.time_s or 0.0) for number, one in zip(mix.calls, base, strict=True)]
    return together(list(zip(shares, ratios, strict=True)))


def _sum(parts: Iterable[tuple[float, Interval]]) -> Interval:
    """Energies of several calls, whose constants are the same ones: all off in the same direction."""
    items = list(parts)
    return Interval(*(math.fsum(n * getattr(one, end) for n, one in items) for end in ("low", "typical", "high")))


def known(figure: Callable[[Gpu], Interval], gpu: Gpu) -> Interval | None:
    """A figure of a GPU, None where it is not known."""
    try:
        return figure(gpu)
    except InputError:
        return None
