"""From a question to its answer played: a schedule on the tiles that the conditions ask for, and its replay."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.api.asking import Conditions, Question
from attnsim.api.building import peak_bytes, scheduled
from attnsim.api.retuning import replayed, retuned
from attnsim.models.calibrations.choose import Chosen, built, choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Replay


@dataclass(frozen=True, slots=True)
class Played:
    """A question and how it runs.

    Parameters
    ----------
    question : Question
    chosen : Chosen
        The fitted numbers, and whose they are.
    peak_bytes : int
        Inputs, outputs and scratch alive together; without the schedule where that is known not to fit.
    schedule : Schedule or None
    replay : Replay or None
        None where the call does not fit the GPU's memory.
    """

    question: Question
    chosen: Chosen
    peak_bytes: int
    schedule: Schedule | None
    replay: Replay | None

    @property
    def too_large(self) -> str:
        """What is said of a call that does not fit the GPU's memory."""
        return too_large(self.peak_bytes, self.question.gpu.hbm.capacity_bytes)


def play(question: Question) -> Played:
    """Play a question, where it fits the GPU's memory.

    Raises
    ------
    InputError
        When a tile does not fit the GPU.
    """
    record, w, gpu = question.record, question.w, question.gpu
    chosen, peak = built(choose(record, gpu), record, w, gpu), peak_bytes(record, w)
    if peak <= gpu.hbm.capacity_bytes:
        schedule, played = play_schedule(record, w, gpu, chosen.numbers, question.conditions)
        peak = schedule.peak_memory_bytes
        if peak <= gpu.hbm.capacity_bytes:
            return Played(question, chosen, peak, schedule, played)
    return Played(question, chosen, peak, None, None)


def too_large(peak: float, capacity: float) -> str:
    """What is said of a call that needs more memory than the card has, both in bytes."""
    return f"does not fit: needs {_bytes_text(peak)}, the card has {_bytes_text(capacity)}"


def _bytes_text(size: float) -> str:
    for unit, scale in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}" if size < 1e21 else f"{size / scale:.2e} {unit}"
    return f"{size / 1e3:.3g} kB"


def play_schedule(
    record: Implementation, w: Workload, gpu: Gpu, numbers: Numbers, conditions: Conditions
) -> tuple[Schedule, Replay]:
    """Build the schedule that the conditions ask for and replay it.

    Raises
    ------
    InputError
        When a tile does not fit the GPU.
    """
    if conditions.tiles == "retuned" and record.tunable and "fwd" in w.directions:
        return retuned(record, w, gpu, numbers, conditions)
    schedule = scheduled(record, w, gpu, conditions)
    return schedule, replayed(schedule, gpu, numbers, conditions)
