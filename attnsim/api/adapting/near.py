"""How timings of a kernel correct the model near them: a Gaussian process on log(measured / predicted).

Errors of a model are smooth over shapes: they have a part that all calls of a kernel share, a part that near shapes
share, a constant time, and noise. The posterior of such a process is Rasmussen and Williams, Gaussian Processes for
Machine Learning (2006), equations 2.25 and 2.26; with an inverse gamma prior on its scale it is a Student-t process
(Shah, Wilson and Ghahramani, AISTATS 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.by_hand import by_hand
from attnsim.models.question.workload import Workload

Array = NDArray[np.float64]

USUAL = by_hand(0.15, "standard deviation of log time of a usual answer, at which the scales below are as they stand")
ROBUST_FROM = by_hand(3, "timings from which one that the others contradict weighs less, and the gate is asked")
BEYOND = by_hand(0.05, "log time by which a correction may pass the largest that a timing shows")
GATED = by_hand(0.3, "share of a correction that is left where timings do not predict each other")
CONSTANT_CAP = by_hand(0.6, "largest standard deviation of log time that a constant time makes of a short call")
ROUNDS = by_hand(5, "times that the weights of timings are set anew")

COORDINATES = ("seq_q", "seq_kv", "batch x heads", "head_dim", "causal", "window", "group", "bytes")
"""Coordinates of a shape, in octaves."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Parts of the process.

    Rounded from a fit to 260 tables of 13 laboratories, in which halving or doubling any of them moved the mean error
    with five timings by at most 0.7 points. `factor` holds that fit's parts of the clock and of the memory's rate too
    (0.10 each, as far as a call feels them), which gained nothing. `benchmarks/adapting.py` has what they gain.

    Parameters
    ----------
    noise, factor, near : float
        Standard deviations of log time: of a timing, of what all calls of a kernel share, and of what near ones do.
    octaves : float
        Distance of shapes at which that falls to exp(-1/2).
    constant_s : float
        Standard deviation of a time that every call takes more, or less.
    freedom : float
        Degrees of freedom of the scale of it all before a timing is known.
    widen : float
        The half-width of the 90 % range, over that of the process.
    """

    noise: float
    factor: float
    near: float
    octaves: float
    constant_s: float
    freedom: float
    widen: float


SCALES = Scales(noise=0.05, factor=0.14, near=0.11, octaves=3.0, constant_s=2e-6, freedom=4.0, widen=1.07)


def coordinates(w: Workload) -> tuple[float, ...]:
    """Place of a question among shapes, by `COORDINATES`: twice as long is one octave, another mask two."""
    sizes = np.log2([w.seq_q, w.seq_kv, w.batch * w.heads_q, w.head_dim, w.group, w.element_bytes])
    masks = 2.0 * (w.mask.is_causal), 2.0 * (w.mask.is_windowed or not w.mask.is_band)
    return (*map(float, sizes[:3]), 2 * float(sizes[3]), *masks, float(sizes[4]), 2 * float(sizes[5]))


@dataclass(frozen=True, eq=False)
class Points:
    """Calls as the process sees them.

    Parameters
    ----------
    shape : ndarray
        ``[calls, coordinates]``, octaves.
    sd : ndarray
        ``[calls]``, standard deviation of log time of the model's own answer.
    predicted_s : ndarray
        ``[calls]``.
    """

    shape: Array
    sd: Array
    predicted_s: Array

    @classmethod
    def of(cls, calls: Sequence[tuple[Sequence[float], float, float]]) -> Points:
        """Points of calls given as shape, standard deviation and predicted time."""
        shape = np.array([one[0] for one in calls], dtype=float).reshape(len(calls), len(COORDINATES))
        return cls(shape, *(np.array([one[column] for one in calls], dtype=float) for column in (1, 2)))

    def __getitem__(self, rows: Any) -> Points:
        return Points(self.shape[rows], self.sd[rows], self.predicted_s[rows])

    def with_(self, other: Points) -> Points:
        """These calls, and others after them."""
        parts = (np.concatenate([getattr(one, item.name) for one in (self, other)]) for item in fields(self))
        return Points(*parts)

    @property
    def scale(self) -> Array:
        """How far off each may be, over a usual answer."""
        return np.sqrt(self.sd / USUAL)

    def shared(self, other: Points, scales: Scales) -> Array:
        """Covariance ``[calls, others]`` of the errors, without noise."""
        apart = ((self.shape[:, None, :] - other.shape[None, :, :]) ** 2).sum(axis=2)
        alike = scales.factor**2 + scales.near**2 * np.exp(-apart / (2 * scales.octaves**2))
        constants = (np.minimum(scales.constant_s / one.predicted_s, CONSTANT_CAP) for one in (self, other))
        found: Array = np.outer(self.scale, other.scale) * alike + np.outer(*constants)
        return found

    def noise(self, scales: Scales) -> Array:
        """Variance of a timing of each."""
        return (scales.noise * self.scale) ** 2


@dataclass(frozen=True, slots=True)
class Corrections:
    """Corrections of other calls by timings.

    Parameters
    ----------
    log : ndarray
        ``[calls]``, log of the corrected over the model's own time.
    half_width : ndarray
        ``[calls]``, of the 90 % range of the log of a time that is measured there.
    """

    log: Array
    half_width: Array


@dataclass(frozen=True, eq=False)
class Near:
    """The process of one kernel and pass, given timings of it.

    Parameters
    ----------
    points : Points
    off : ndarray
        ``[timings]``, log of the measured over the model's own time.
    scales : Scales
    """

    points: Points
    off: Array
    scales: Scales = SCALES

    @cached_property
    def _noise(self) -> Array:
        """Variance of each timing, larger where the others contradict it (weights of a Student-t distribution)."""
        plain = noise = self.points.noise(self.scales)
        for _ in range(ROUNDS if len(self.off) >= ROBUST_FROM else 0):
            inverse = np.linalg.inv(self._alike + np.diag(noise))
            z2 = (inverse @ self.off) ** 2 / np.diag(inverse)
            noise = plain * np.maximum(1.0, (self.scales.freedom + z2) / (self.scales.freedom + 1))
        return noise

    @cached_property
    def _alike(self) -> Array:
        return self.points.shared(self.points, self.scales)

    @cached_property
    def _inverse(self) -> Array:
        return np.asarray(np.linalg.inv(self._alike + np.diag(self._noise)))

    @cached_property
    def left_out(self) -> Array:
        """Predictions of each timing by the others (Rasmussen and Williams, equation 5.12)."""
        return np.asarray(self.off - (self._inverse @ self.off) / np.diag(self._inverse))

    @property
    def strangeness(self) -> Array:
        """How many standard deviations each timing is from what the others say, its own noise that of any timing."""
        own = self._noise - self.points.noise(self.scales)
        return np.asarray((self.off - self.left_out) / np.sqrt(1 / np.diag(self._inverse) - own))

    @property
    def agree(self) -> bool:
        """Whether timings predict each other better than the model alone does; too few are not asked."""
        if len(self.off) < ROBUST_FROM:
            return True
        return bool(np.abs(self.off - self.left_out).mean() <= np.abs(self.off).mean())

    def at(self, calls: Points) -> Corrections:
        """The corrections of calls, within what the timings themselves show."""
        from scipy.special import stdtrit

        across = calls.shared(self.points, self.scales)
        weights = across @ self._inverse
        least, most = min(0.0, self.off.min()) - BEYOND, max(0.0, self.off.max()) + BEYOND
        mean = np.clip(weights @ self.off, least, most) * (1.0 if self.agree else GATED)
        freedom, rows = self.scales.freedom, len(self.off)
        scale2 = (freedom + self.off @ self._inverse @ self.off) / (freedom + rows)
        own = np.array([calls[[row]].shared(calls[[row]], self.scales)[0, 0] for row in range(len(calls.sd))])
        variance = np.maximum(own - (weights * across).sum(axis=1), 0.0) + calls.noise(self.scales)
        return Corrections(mean, self.scales.widen * stdtrit(freedom + rows, 0.95) * np.sqrt(scale2 * variance))


def likelihood(points: Points, off: Array, scales: Scales = SCALES) -> float:
    """Log density of errors of calls: a multivariate Student-t distribution."""
    lower = np.linalg.cholesky(points.shared(points, scales) + np.diag(points.noise(scales)))
    white, count, freedom = np.linalg.solve(lower, off), len(off), scales.freedom
    half = (freedom + count) / 2
    scale = -count / 2 * np.log(freedom * np.pi) - np.log(np.diag(lower)).sum()
    return float(math.lgamma(half) - math.lgamma(freedom / 2) + scale - half * np.log1p(white @ white / freedom))


def most_telling(targets: Points, candidates: Points, known: Points, count: int, scales: Scales = SCALES) -> list[int]:
    """Which candidates to time next: each the one that leaves the least variance over the targets, the best first.

    Variance of a Gaussian process hangs on where it was measured and not on what was found there, so that all can be
    chosen before one is timed.

    Parameters
    ----------
    targets, candidates, known : Points
        What is to be answered, what can be timed, and what has been.
    count : int
        As many are chosen, where there are so many candidates.
    scales : Scales
    """
    both = targets.with_(candidates)
    across = both.shared(candidates, scales)
    if len(known.sd):
        seen = both.shared(known, scales)
        inverse = np.linalg.inv(known.shared(known, scales) + np.diag(known.noise(scales)))
        across = across - seen @ inverse @ seen[len(targets.sd) :].T
    noise, chosen = candidates.noise(scales), list[int]()
    for _ in range(min(count, len(candidates.sd))):
        of_candidates, of_targets = across[len(targets.sd) :], across[: len(targets.sd)]
        own = np.diag(of_candidates) + noise
        gain = (of_targets**2 / own / targets.scale[:, None] ** 2).sum(axis=0)
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        across = across - np.outer(across[:, best], of_candidates[best]) / own[best]
    return chosen
