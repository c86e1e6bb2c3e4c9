"""What each figure of the best machine of a search brings: alone, as the last one, and on average over orders."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.api.asking import read_conditions
from attnsim.api.ratios import Ratio
from attnsim.api.splitting import MOST, Split, differing, shared_out
from attnsim.errors import InputError
from attnsim.models.hardware.changes import Change
from attnsim.models.hardware.gpu import Gpu
from attnsim.studies.hardware_answer import Mix, compared
from attnsim.studies.hardware_case import Answered
from attnsim.studies.hardware_search import HardwareSearch
from attnsim.studies.hardware_space import with_figures


@dataclass(frozen=True, slots=True)
class MixAnswer:
    """A machine's answers to all workloads of a mix, as one that can be split."""

    mix: Mix
    answers: tuple[Answered, ...]

    @property
    def time_s(self) -> float | None:
        """Seconds of the mix's calls; None where one does not fit the memory."""
        times = [one.time_s for one in self.answers]
        pairs = zip(self.mix.calls, times, strict=True)
        return None if None in times else sum(number * (time or 0.0) for number, time in pairs)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What makes the machine hypothetical."""
        return self.answers[0].changes

    def speedup_over(self, other: MixAnswer) -> Ratio | None:
        """How many times faster than another machine."""
        return compared(other.answers, self.answers, self.mix)

    def to_dict(self) -> dict[str, object]:
        """Plain types."""
        return {"time_s": self.time_s, "changes": list(map(str, self.changes))}


def split_best(
    found: HardwareSearch, algorithm: str | None = None, *, implementation: str | None = None, cache: str = "warm",
    launch: str = "stream",
) -> Split[MixAnswer] | None:  # fmt: skip
    """Split the speedup of the best machine within the limits among its figures (:func:`attnsim.split`).

    Parameters
    ----------
    found : HardwareSearch
    algorithm, implementation, cache, launch
        As the search had them. Tiles are the shipped ones.

    Returns
    -------
    Split or None
        None where no machine keeps the limits, or the best one has fewer than two changed figures.

    Raises
    ------
    InputError
        When it differs in more than `MOST`, or its figures cannot stand without one another.
    """
    if not found.feasible:
        return None
    machine = with_figures(found.space.gpu, found.feasible[0].figures)
    number = len(differing(found.space.gpu, machine))
    if number < 2:
        return None
    if number > MOST:
        raise InputError(
            f"the best machine has {number} changed figures, of which every subset is replayed; most: {MOST}"
        )
    conditions = read_conditions(cache=cache, launch=launch)

    def answered(gpu: Gpu) -> MixAnswer:
        cases = found.mix.cases
        return MixAnswer(found.mix, tuple(one.answered(gpu, algorithm, implementation, conditions) for one in cases))

    return shared_out(found.space.gpu, machine, answered)
