"""trace: when each unit of an SM does what while it runs a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from attnsim.api.answering import answer, runs_of
from attnsim.api.asking import Conditions, Given, Question, ask, read_algorithm, read_conditions
from attnsim.api.playing import play
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.trace import KernelTrace, Trace
from attnsim.simulator.trace import trace as play_traced

MOST_SMS = 16
NOT_TRACED = ("mode", "budget", "progress")
"""Conditions that a trace does not depend on."""


def trace(
    workload: Workload,
    gpu: Gpu | str,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    sms: int = 2,
    **given: Unpack[Given],
) -> Trace:
    """Replay one algorithm and note what the first SMs do.

    Parameters
    ----------
    workload, gpu, algorithm, implementation
        As for :func:`attnsim.predict`.
    sms : int
        SMs to note, where the grid is small enough to be played whole.
    given
        Conditions as for :func:`attnsim.predict`: tiles, tile, cache, launch, calibration. What timings of one's own
        correct, all times of the trace follow alike.

    Returns
    -------
    Trace
        Kernels with their slices of time; a large grid is sampled, and each kernel says what is left out.

    Raises
    ------
    InputError
        Bad input, in one line; also where the call does not fit the GPU's memory.

    Examples
    --------
    >>> import attnsim
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=2048, head_dim=128, mask=attnsim.Mask.causal())
    >>> found = trace(question, "a100-sxm4-80gb")
    >>> sorted({piece.unit for piece in found.kernels[0].slices})
    ['block', 'copy', 'softmax', 'store', 'tensor']
    """
    conditions = read_conditions(of="a trace", without=NOT_TRACED, **given)
    return _traced(ask(workload, gpu, algorithm, implementation, conditions), sms)


def traces(
    workload: Workload,
    gpu: Gpu,
    algorithms: Sequence[str],
    *,
    implementation: Sequence[str] = (),
    conditions: Conditions,
    sms: int,
) -> list[tuple[str, Trace]]:
    """Several algorithms for one question, each traced with what :func:`attnsim.compare` asks of it, and its name.

    Raises
    ------
    InputError
        Bad input, in one line; also where the call does not fit the memory.
    """
    runs = runs_of([read_algorithm(name) for name in algorithms], implementation, gpu, workload)
    found = []
    for item, name in runs:
        traced = _traced(ask(workload, gpu, item, name, conditions, in_comparison=True), sms)
        several = sum(other is item for other, _ in runs) > 1
        found.append((f"{item.name}/{traced.schedule.implementation}" if several else item.name, traced))
    return found


def _traced(question: Question, sms: int) -> Trace:
    run = play(question, "take a smaller batch or length")
    found = trace_schedule(run.schedule, question.gpu, run.chosen.numbers, question.conditions, sms)
    return found if question.conditions.own is None else _longer(found, answer(question).correction)


def trace_schedule(schedule: Schedule, gpu: Gpu, numbers: Numbers, conditions: Conditions, sms: int) -> Trace:
    """A schedule traced under the conditions.

    Raises
    ------
    InputError
        When the number of SMs to note is not allowed.
    """
    if not 1 <= sms <= MOST_SMS:
        raise InputError(f"sms is {sms}; allowed: 1 to {MOST_SMS}")
    return play_traced(schedule, gpu, numbers, cache=conditions.cache, launch=conditions.launch, sms=sms)


def _longer(found: Trace, factor: float) -> Trace:
    """Every time of a trace so many times as long."""

    def kernel(one: KernelTrace) -> KernelTrace:
        slices = (replace(piece, start_s=piece.start_s * factor, end_s=piece.end_s * factor) for piece in one.slices)
        return replace(one, start_s=one.start_s * factor, time_s=one.time_s * factor, slices=tuple(slices))

    replay = replace(found.replay, time_s=found.replay.time_s * factor)
    return replace(found, replay=replay, kernels=tuple(map(kernel, found.kernels)))
