"""What a time is sensitive to: local elasticities by the replay, Sobol indices over ranges by the closed form.

An elasticity is ``d log time / d log figure``: -1 where a figure alone decides (twice the bandwidth, half the time), 0
where it does not matter. Over all rates and bandwidths, and with latencies in clocks following the clock, elasticities
add up to about -1: a machine twice as fast in everything takes half the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnsim.api.asking import Question, ask, read_conditions
from attnsim.api.playing import play
from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.hardware.units import UNITS
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import Replay
from attnsim.studies.axes import WORKLOAD_FIELDS, Axis
from attnsim.studies.closed_answers import closed_forms
from attnsim.studies.points import RATES, changed
from attnsim.studies.study import Column, Points

STEP = 0.05
"""Relative step of the central differences. Smaller ones fall among the replay's scheduling anomalies, which are of up
to 2 % (docs/design/what-if.md); larger ones smear the kinks where another unit takes over."""
KINK = 0.25
"""Difference between the elasticities downwards and upwards from which on a kink is reported."""
SPREAD = 2.0
"""Factor by which Sobol indices vary each figure, up and down."""

FIGURES = (
    "sm.count", "clock.sustained", "clock.free", "power.limit", "tensor.mma_sync_fraction",
    *(unit.figure for unit in UNITS.values()), "l2.capacity", "l2.latency", "hbm.latency", "launch.{launch}",
)  # fmt: skip
"""Figures that a replay on shipped tiles depends on, the rate of every unit among them. Left out: what a block may
hold (shared memory, registers, threads), which moves nothing until a tile no longer fits, and `clock.tensor`, which the
other clocks follow."""


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How a time answers to one figure.

    Parameters
    ----------
    figure : str
    value : float
        SI units.
    elasticity : float
        ``d log time / d log figure``, central difference.
    down, up : float or None
        One-sided, over the step below and above; None where the step leaves the allowed range.
    step : float
        The figure was divided and multiplied by ``1 + step``.
    timing : float
        Half-width of `elasticity` by the sensitivity of its replays to timing, as resident blocks fall into step or not
        (:attr:`attnsim.simulator.replay.Replay.spread`); 0 where they are not sensitive.
    """

    figure: str
    value: float
    elasticity: float
    down: float | None
    up: float | None
    step: float = STEP
    timing: float = 0.0

    @property
    def upward(self) -> float:
        """What more of the figure brings: the elasticity above, where that is known."""
        return self.elasticity if self.up is None else self.up

    @property
    def kink(self) -> bool:
        """Whether the two sides differ by more than timing may: another unit takes over here, or a wave is added."""
        return self.down is not None and self.up is not None and abs(self.up - self.down) > max(KINK, 4 * self.timing)


@dataclass(frozen=True, slots=True)
class Index:
    """Share of a figure in the variance of log time.

    Parameters
    ----------
    figure : str
    first : float
        Of the figure alone.
    total : float
        With all its interactions.
    """

    figure: str
    first: float
    total: float


def replayed(question: Question) -> Replay:
    """The replay of a question.

    Raises
    ------
    InputError
        When the question cannot be answered, or does not fit the memory.
    """
    played = play(question)
    if played.replay is None:
        raise InputError(played.too_large)
    return played.replay


def _figures(question: Question) -> list[str]:
    """The figures of `FIGURES` that this GPU and launch have."""
    names = [name.format(dtype=question.w.dtype, launch=question.conditions.launch) for name in FIGURES]
    return [name for name in names if name in FIELDS and question.gpu.get(name) > 0]


def sensitivity(
    workload: Workload,
    gpu: Gpu | str,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    tile: str | None = None,
    cache: str = "warm",
    launch: str = "stream",
    step: float = STEP,
) -> list[Elasticity]:
    """How the time of a question answers to each figure of the GPU, the largest first.

    Parameters
    ----------
    workload, gpu, algorithm, implementation, tile, cache, launch
        As for :func:`attnsim.predict`.
    step : float
        Each figure is multiplied and divided by ``1 + step``.

    Raises
    ------
    InputError

    Examples
    --------
    >>> question = Workload(batch=8, heads_q=32, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")
    >>> sensitivity(question, "h100-sxm5-80gb")[0].figure
    'hbm.bandwidth'
    """
    return elasticities(
        ask(workload, gpu, algorithm, implementation, read_conditions(tile=tile, cache=cache, launch=launch)), step
    )


def elasticities(question: Question, step: float = STEP) -> list[Elasticity]:
    """Elasticities of the replayed time, those first of whose figures more moves it most.

    Beside a kink the central difference is no slope, and large where less of a figure costs another wave.

    Parameters
    ----------
    question : Question
    step : float
        Each figure is multiplied and divided by ``1 + step``, whole numbers to the nearest.

    Raises
    ------
    InputError
        When the question cannot be answered, or the step is not between 0.001 and 1.
    """
    if not 0.001 <= step <= 1:
        raise InputError(f"step is {step:g}; allowed: 0.001 to 1, such as {STEP}")
    base = replayed(question)
    here = math.log(base.time_s)
    found = []
    for figure in _figures(question):
        value = question.gpu.get(figure)
        sides = []
        for factor in (1 / (1 + step), 1 + step):
            new = value * factor
            if FIELDS[figure].integer:
                new = float(max(1, round(new)))
            try:
                moved = changed(question.gpu, ((figure, new, False),))
            except InputError:
                continue  # an upper or lower end of what is allowed: the other side has to do
            if new != value:
                there = replayed(replace(question, gpu=moved))
                sides.append((math.log(new / value), math.log(there.time_s) - here, math.log1p(there.spread)))
        if not sides:
            continue
        down = next((time / move for move, time, _ in sides if move < 0), None)
        up = next((time / move for move, time, _ in sides if move > 0), None)
        if len(sides) == 1:
            sides.append((0.0, 0.0, math.log1p(base.spread)))
        (first, before, low), (last, after, high) = sides
        wide = abs(last - first)
        found.append(Elasticity(figure, value, (after - before) / (last - first), down, up, step, (low + high) / wide))
    return sorted(found, key=lambda item: (-abs(item.upward), -abs(item.elasticity)))


def sobol(question: Question, samples: int, seed: int = 0, spread: float = SPREAD) -> list[Index]:
    """Sobol indices of log time, in closed form, each figure log-uniform between its value over and times `spread`.

    First-order and total indices by Saltelli et al. (Comput. Phys. Commun. 181(2), 2010), as in
    `scipy.stats.sobol_indices`; ``samples (d + 2)`` closed forms for d figures.

    Parameters
    ----------
    question : Question
    samples : int
        A power of two.
    seed : int
    spread : float

    Raises
    ------
    InputError
        When the question has no closed form, or `samples` is not a power of two.
    """
    from scipy import stats

    if samples < 2 or samples & (samples - 1) or samples > 1 << 22:
        raise InputError(f"sobol is {samples}; allowed: powers of two from 2 to {1 << 22}, such as 1024")
    if not 1 < spread <= 1000:
        raise InputError(f"spread is {spread:g}; allowed: above 1 and up to 1000")
    figures = [name for name in _figures(question) if name in RATES]
    width = math.log(spread)

    def log_times(parts: Floats) -> Floats:
        return np.log(times(question, figures, np.exp(parts)))

    times(question, figures, np.ones((len(figures), 1)))  # refuses the question before SciPy hides why
    dists: list[Any] = [stats.uniform(loc=-width, scale=2 * width) for _ in figures]
    result = stats.sobol_indices(func=log_times, n=samples, dists=dists, rng=np.random.default_rng(seed))
    pairs = zip(figures, result.first_order, result.total_order, strict=True)
    return sorted((Index(name, float(one), float(every)) for name, one, every in pairs), key=lambda item: -item.total)


def times(question: Question, figures: Sequence[str], factors: Floats) -> Floats:
    """Closed-form times on GPUs whose figures are multiplied by factors of shape [figures, points].

    Raises
    ------
    InputError
        When a point has none.
    """
    w = question.w
    if w.lengths or w.page_size or w.prefix or w.tree or w.options:
        raise InputError("closed forms know sequences of one length, each whole in memory; leave Sobol indices out")
    count, shape = factors.shape[1], question.conditions.tile
    columns = {}
    for name, row in zip(figures, factors, strict=True):
        field = FIELDS[name]
        values = np.clip(row * question.gpu.get(name), field.low, field.high)
        values = np.round(values) if field.integer else values
        columns[name] = Column(Axis(name, "change", ()), values, np.arange(count, dtype=np.int64))
    held = {
        "gpu": question.gpu, "algorithm": question.mechanism.name, "implementation": question.record.name,
        "tile": str(shape or "shipped"), **{name: getattr(question.w, name) for name in WORKLOAD_FIELDS},
    }  # fmt: skip
    still = np.zeros(count, dtype=np.int64)
    columns |= {name: Column(Axis(name, "choice", (value,)), (value,), still) for name, value in held.items()}
    closed = closed_forms(Points(0, count, columns), question.conditions.cache, question.conditions.launch)
    if len(closed.rows) < count:
        raise InputError(next(text for text in closed.error.values if text))
    return closed.estimate.time_s
