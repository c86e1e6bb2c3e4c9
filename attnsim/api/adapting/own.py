"""Somebody's own timings of kernels on a GPU, as a file, and answers corrected by them.

`attnsim adapt` writes the file; `--calibration` reads it. Each timing stands beside what the model said then, so that a
file goes with the model that it was made with and with no other.

Timings of a kernel correct the model near them by a Gaussian process on log(measured / predicted). Errors of a model
are smooth over shapes: they have a part that all calls of a kernel share, a part that near shapes share, a constant
time, and noise. The posterior of such a process is Rasmussen and Williams, Gaussian Processes for Machine Learning
(2006), equations 2.25 and 2.26; with an inverse gamma prior on its scale it is a Student-t process (Shah, Wilson and
Ghahramani, AISTATS 2014).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from attnsim.api.trust import Reason, Trust, components_text, spread_of, unmeasured
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest, shown, some
from attnsim.files import read_typed
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.components import HOST, TIMING, widths
from attnsim.models.digest import code_digest
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import PASSES, Workload
from attnsim.wording import beyond_text, share_text
from attnsim.writing import write_whole

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


FORMAT = 1
OWN = "own timings"
"""The component of a range that is left where timings of one's own stand behind an answer."""

HEAD = f"""\
# Timings of one's own, each beside what attnsim said of it: written by `attnsim adapt`, read by --calibration.
# attnsim: version that wrote it; model: digest of what predicted; gpu: id; table: where the rows stand.
# A timing: rows of the table with this question;
# shape: {", ".join(COORDINATES)}, in octaves;
# time_s: geometric mean of their times, of which the longest is `spread` longer than the shortest;
# predicted_s, sd: by the model alone, and the standard deviation of its log.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """One question that was timed.

    Parameters
    ----------
    rows : tuple of int
        Lines or rows of the table.
    implementation, passes, question : str
    shape : tuple of float
        By `attnsim.api.adapting.own.COORDINATES`.
    time_s : float
        Geometric mean of the times of these rows.
    spread : float
        The longest of them over the shortest, less 1.
    predicted_s : float
        By the model alone.
    sd : float
        Of the log of that, from the components of its range.
    """

    rows: tuple[int, ...]
    implementation: str
    passes: str
    question: str
    shape: tuple[float, ...]
    time_s: float
    spread: float
    predicted_s: float
    sd: float

    @property
    def off(self) -> float:
        """Log of the measured over the predicted time."""
        return math.log(self.time_s / self.predicted_s)


@dataclass(frozen=True, slots=True)
class Prior:
    """Errors that an answer may have before anything was timed, by parts that timings of the unchanged GPU tell apart.

    Parameters
    ----------
    sd : float
        Of log time, of what timings say something about.
    left : mapping of str to float
        The others by component: a change of the GPU, a tile that nobody timed, whether blocks fall into step.
    """

    sd: float
    left: dict[str, float]


def prior_of(w: Workload, gpu: Gpu, record: Implementation, calibration: Calibration | None, trust: Trust) -> Prior:
    """Components of an answer's range, as far as timings of the kernel on the unchanged GPU narrow it."""
    parts = trust.components
    names = unmeasured(
        w, gpu.unchanged, record, calibration, version="version" in parts, operations=w.operations is not None
    )
    told = widths().parts(spread_of(w, calibration), names)
    left = {name: sd for name, sd in parts.items() if name == TIMING or name not in (*told, HOST)}
    return Prior(math.hypot(*told.values(), parts.get(HOST, 0.0)), left)


@dataclass(frozen=True, slots=True)
class Corrected:
    """A corrected answer: what its time is multiplied with, and how far to trust it."""

    factor: float
    trust: Trust


@dataclass(frozen=True, slots=True)
class OwnTimings:
    """Timings of kernels on one GPU, by which answers about these kernels are corrected.

    Parameters
    ----------
    format : int
    attnsim, model : str
        Version that wrote it, and digest of the model that predicted.
    gpu : str
        Id.
    table : str
        Name of the table that the rows stand in.
    timings : tuple of Timing
    """

    format: int
    attnsim: str
    model: str
    gpu: str
    table: str
    timings: tuple[Timing, ...]

    def of(self, implementation: str, passes: str, gpu: Gpu | None = None) -> tuple[Timing, ...]:
        """The timings of a kernel and pass, on a GPU, changed or not; those of another pass say nothing of it."""
        here = gpu is None or gpu.base_id == self.gpu
        asked = implementation, passes
        return tuple(one for one in self.timings if here and (one.implementation, one.passes) == asked)

    @property
    def kernels(self) -> str:
        """Which kernels and passes were timed, in words."""
        found = dict.fromkeys(f"{one.implementation}, {one.passes}" for one in self.timings)
        return f"{'; '.join(found)} on {self.gpu}"

    def corrected(
        self,
        w: Workload,
        gpu: Gpu,
        record: Implementation,
        calibration: Calibration | None,
        trust: Trust,
        time_s: float,
    ) -> Corrected:
        """An answer of the model, corrected by the timings of its kernel and pass on its GPU, changed or not.

        Parameters
        ----------
        w, gpu, record, calibration
            The question, and whose numbers it was answered with.
        trust : Trust
            In the model's own answer.
        time_s : float
            That answer.
        """
        mine = self.of(record.name, w.passes, gpu)
        if not mine:
            missing = f"no timing of {record.name}, {w.passes} on {gpu.base_id}"
            return Corrected(1.0, _said(trust, f"not corrected: {missing}; {self.table} has {self.kernels}"))
        prior, shape = prior_of(w, gpu, record, calibration, trust), coordinates(w)
        found = near_of(mine).at(Points.of([(shape, prior.sd, time_s)]))
        log, own = float(found.log[0]), float(found.half_width[0])
        half = math.hypot(own, widths().half_width(prior.left.values()))
        rows = some(map(str, sorted(row for one in mine for row in one.rows)), f"all of {record.name}, {w.passes}")
        by = f"{len(mine)} timing{'s' * (len(mine) > 1)} of it: {self.table}, rows {rows}"
        said = [f"corrected by {share_text(math.expm1(log), signed=True)} by {by}"]
        said += [f"beyond the timings: {text}" for text in _beyond(shape, mine)]
        made = {OWN: own / widths().factor} | prior.left
        kept = [one for one in trust.reasons if one.kind != "components"]
        reasons = (*kept, Reason("components", components_text(made)))
        narrowed = replace(trust, low=math.exp(-half), high=math.exp(half), components=made, reasons=reasons)
        return Corrected(math.exp(log), _said(narrowed, *said))

    def write(self, path: str | Path) -> None:
        """Write the file that `--calibration` takes.

        Raises
        ------
        InputError
            When it cannot be written.
        """
        document = asdict(self)
        for one in document["timings"]:
            one |= {"rows": list(one["rows"]), "shape": [round(value, 4) for value in one["shape"]]}
            one |= {name: float(f"{one[name]:.6g}") for name in ("time_s", "spread", "predicted_s", "sd")}
        document["timings"] = list(document["timings"])
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
        write_whole(Path(path), HEAD + text)


def read_own(path: str | Path) -> OwnTimings:
    """Read what `attnsim adapt` wrote.

    Raises
    ------
    InputError
        In one line: a key that is missing or unknown, a value that cannot be, or another model than today's.
    """
    path = Path(path)
    found = read_typed(path, "calibration", OwnTimings)
    again = f"make it again: attnsim adapt {found.table} --out {path.name}"
    if found.format != FORMAT:
        raise InputError(f"{path.name}: format is {found.format}; allowed: {FORMAT}; {again}")
    if not found.timings:
        raise InputError(f"{path.name}: holds no timing; {again}")
    for number, one in enumerate(found.timings):
        for name, value in (("time_s", one.time_s), ("predicted_s", one.predicted_s), ("sd", one.sd)):
            if not 0 < value < math.inf:
                raise InputError(f"{path.name}: timings.{number}.{name} is {value}; allowed: numbers above 0; {again}")
        if len(one.shape) != len(COORDINATES) or not all(map(math.isfinite, one.shape)):
            raise InputError(f"{path.name}: timings.{number}.shape: {len(COORDINATES)} numbers are needed; {again}")
        if one.implementation.partition("@")[0] not in IMPLEMENTATIONS:
            told = f"{shown(one.implementation)} is not known; {nearest(one.implementation, IMPLEMENTATIONS)}"
            raise InputError(f"{path.name}: timings.{number}.implementation {told}")
        if one.passes not in PASSES:
            told = f"is {shown(one.passes)}; allowed: {', '.join(PASSES)}"
            raise InputError(f"{path.name}: timings.{number}.passes {told}")
    if found.model != model_digest():
        raise InputError(f"{path.name}: was made by attnsim {found.attnsim} with another model than this one; {again}")
    return found


@lru_cache(maxsize=1)
def model_digest() -> str:
    """Digest of the code and the fitted numbers that predict: with others, timings have to be held against anew."""
    root = Path(str(resources.files("attnsim.models"))) / "calibrations"
    numbers = b"".join(path.read_bytes() for path in sorted(root.rglob("*.yaml")))
    return hashlib.sha256(code_digest("models", "simulator").encode() + numbers).hexdigest()[:16]


@lru_cache(maxsize=64)
def near_of(timings: tuple[Timing, ...]) -> Near:
    """The process of a kernel and pass, given these timings of it."""
    points = Points.of([(one.shape, one.sd, one.predicted_s) for one in timings])
    return Near(points, np.array([one.off for one in timings]))


def _said(trust: Trust, *texts: str) -> Trust:
    return replace(trust, reasons=(*(Reason("own", text) for text in texts), *trust.reasons))


def _beyond(shape: Sequence[float], timings: Sequence[Timing]) -> Iterator[str]:
    """How a question lies outside the shapes that were timed."""
    for name, value, *timed in zip(COORDINATES, shape, *(one.shape for one in timings), strict=True):
        if min(timed) - 0.01 <= value <= max(timed) + 0.01:
            continue
        if name in _MASKS:
            yield f"{'' if value else 'not '}{_MASKS[name]}, and none of the timings is"
            continue
        octaves = 2.0 if name in ("head_dim", "bytes") else 1.0
        number, low, high = (round(2 ** (one / octaves)) for one in (value, min(timed), max(timed)))
        yield beyond_text(name, number, low, high)


_MASKS = {"causal": "causal", "window": "windowed"}
