"""Sensitivity of a time to GPU figures: local elasticities by replay, Sobol indices over ranges in closed form.

An elasticity is ``d log time / d log figure``: -1 if the figure alone determines the time (twice the bandwidth, half
the time), 0 if it does not matter. Elasticities of all rates and bandwidths (latencies in clocks follow the clock) sum
to about -1: a machine twice as fast in everything takes half the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from attnsim.api.asking import Given, Question, ask, read_conditions
from attnsim.api.playing import play
from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.hardware.units import UNITS
from attnsim.models.question.workload import Workload
from attnsim.studies.closed_answers import closed_forms
from attnsim.studies.points import RATES, changed
from attnsim.studies.study import WORKLOAD_FIELDS, Axis, Column, Points

STEP = 0.05
"""Relative step of the central differences. Smaller steps are dominated by the replay's scheduling anomalies of up
to 2 % (docs/design/what-if.md); larger steps smooth the kinks at which another unit becomes the bound."""
KINK = 0.25
"""Smallest difference between downward and upward elasticity that is reported as a kink."""
SPREAD = 2.0
"""Factor by which Sobol indices vary each figure up and down."""

FIGURES = (
    "sm.count",
    "clock.sustained",
    "clock.free",
    "power.limit",
    "tensor.mma_sync_fraction",
    *(unit.figure for unit in UNITS.values()),
    "l2.capacity",
    "l2.latency",
    "hbm.latency",
    "launch.{launch}",
)
"""Figures that a replay on shipped tiles depends on, including every unit's rate. Left out are the limits of a block
(shared memory, registers, threads), which change nothing until a tile no longer fits, and `clock.tensor`, which the
other clocks follow."""


@dataclass(frozen=True, slots=True)
class Elasticity:
    """Elasticity of a time with respect to one figure.

    Parameters
    ----------
    value : float
        SI units.
    elasticity : float
        ``d log time / d log figure``, central difference.
    down, up : float or None
        One-sided elasticities, below and above; None if the step leaves the allowed range.
    step : float
        The figure was divided and multiplied by ``1 + step``.
    timing : float
        Half-width of `elasticity` due to the timing sensitivity of its replays: resident blocks may fall into step or
        not (:attr:`attnsim.simulator.replay.Replay.spread`). 0 if they are not sensitive.
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
        """The elasticity for an increase of the figure: `up` if known, else the central one."""
        return self.elasticity if self.up is None else self.up

    @property
    def kink(self) -> bool:
        """True if the two sides differ by more than timing explains: the bound or the number of waves changes here."""
        return self.down is not None and self.up is not None and abs(self.up - self.down) > max(KINK, 4 * self.timing)


@dataclass(frozen=True, slots=True)
class Index:
    """Share of a figure in the variance of log time.

    Parameters
    ----------
    first : float
        Share of the figure alone.
    total : float
        Share with all its interactions.
    """

    figure: str
    first: float
    total: float


def _figures(question: Question) -> list[str]:
    """Return the figures of `FIGURES` that this GPU and launch have."""
    names = [name.format(dtype=question.w.dtype, launch=question.conditions.launch) for name in FIGURES]
    return [name for name in names if name in FIELDS and question.gpu.get(name) > 0]


def sensitivity(
    workload: Workload,
    gpu: Gpu | str,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    step: float = STEP,
    **given: Unpack[Given],
) -> list[Elasticity]:
    """Return the elasticity of a question's time for each GPU figure, the largest effect first.

    Parameters
    ----------
    workload, gpu, algorithm, implementation
        As in :func:`attnsim.predict`.
    step : float
        Each figure is multiplied and divided by ``1 + step``.
    given
        Conditions as for :func:`attnsim.predict`, without a calibration, which corrects a time and not its slope.

    Examples
    --------
    >>> question = Workload(batch=8, heads_q=32, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")
    >>> sensitivity(question, "h100-sxm5-80gb")[0].figure
    'hbm.bandwidth'
    """
    conditions = read_conditions(of="elasticities", without=("calibration",), **given)
    return elasticities(ask(workload, gpu, algorithm, implementation, conditions), step)


def elasticities(question: Question, step: float = STEP) -> list[Elasticity]:
    """Return elasticities of the replayed time, sorted by the effect of an increase.

    Next to a kink, the central difference is not a slope; it is large if a decrease adds a wave.

    Parameters
    ----------
    step : float
        Each figure is multiplied and divided by ``1 + step``; counts are rounded to the nearest.

    Raises
    ------
    InputError
        If the question cannot be answered, or the step is not between 0.001 and 1.
    """
    if not 0.001 <= step <= 1:
        raise InputError(f"step is {step:g}; allowed: 0.001 to 1, such as {STEP}")
    base = play(question).replay
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
                there = play(replace(question, gpu=moved)).replay
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
    """Compute Sobol indices of log time in closed form.

    Each figure is log-uniform between its value divided by and multiplied by `spread`.

    First-order and total indices by Saltelli et al. (Comput. Phys. Commun. 181(2), 2010), as in
    `scipy.stats.sobol_indices`; ``samples (d + 2)`` closed forms for d figures.

    Parameters
    ----------
    samples : int
        A power of two.

    Raises
    ------
    InputError
        If the question has no closed form, or `samples` is not a power of two.
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
    """Return closed-form times on GPUs whose figures are multiplied by factors of shape [figures, points].

    Raises
    ------
    InputError
        If a point has no closed form.
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
        "gpu": question.gpu,
        "algorithm": question.mechanism.name,
        "implementation": question.record.name,
        "tile": str(shape or "shipped"),
        **{name: getattr(question.w, name) for name in WORKLOAD_FIELDS},
    }
    still = np.zeros(count, dtype=np.int64)
    columns |= {name: Column(Axis(name, "choice", (value,)), (value,), still) for name, value in held.items()}
    closed = closed_forms(Points(0, count, columns), question.conditions.cache, question.conditions.launch)
    if len(closed.rows) < count:
        raise InputError(next(filter(None, closed.error)))
    return closed.estimate.time_s
