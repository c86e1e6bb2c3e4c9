"""Somebody's own timings of kernels on a GPU, as a file, and answers corrected by them.

`attnsim adapt` writes the file; `--calibration` reads it. Each timing stands beside what the model said then, so that a
file goes with the model that it was made with and with no other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import yaml

from attnsim.api.adapting.near import COORDINATES, Near, Points, coordinates
from attnsim.api.trust import Reason, Trust, components_text, spread_of, unmeasured
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
        By `attnsim.api.adapting.near.COORDINATES`.
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
