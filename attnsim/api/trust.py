"""How far to trust a prediction: how near the question is to measurements that the fit did not see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnsim.models.by_hand import by_hand
from attnsim.models.calibrations.calibration import Calibration, widths
from attnsim.models.calibrations.choose import Chosen
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import Workload

Kind = Literal[
    "hypothetical", "borrowed", "tile", "shape", "measured", "closed source", "assumed", "memory", "projections",
    "attention", "timing",
]  # fmt: skip
Level = Literal["validated", "interpolated", "extrapolated"]
LEVELS: tuple[Level, ...] = ("validated", "interpolated", "extrapolated")

ELSEWHERE = "own numbers of another architecture"
BORROWED = "another implementation's numbers"
PRIORS = "priors"
"""Where the numbers of a kernel come from when it has no calibration of its own on the architecture."""

WINDOWS = "a sliding window, never measured"
"""What a calibration is used for without having seen any."""

NEAR = by_hand(2.0, "factor beyond a calibration's ranges of lengths and rows that still counts as near")


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a level of trust; as text, the sentence that says it.

    Parameters
    ----------
    kind : str
        "hypothetical" GPU, "borrowed" numbers, "tile" that was not shipped, "shape" beside the measured ones,
        "measured" errors, "closed source", "timing" that the time is sensitive to, "assumed" by the question, "memory"
        too small, and of an attention layer its "projections" and its "attention".
    text : str
    """

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Trust:
    """How far to trust a predicted time.

    Parameters
    ----------
    level : {"validated", "interpolated", "extrapolated"}
    low, high : float
        Factors on the time between which the truth is expected in nine cases of ten.
    error : float or None
        Mean error of the calibration on measurements it was not fitted on; None unless validated.
    reasons : tuple of Reason
        Why, the weightiest first; never empty.
    """

    level: Level
    low: float
    high: float
    error: float | None
    reasons: tuple[Reason, ...]

    @property
    def reason(self) -> str:
        """The reasons in one line."""
        return "; ".join(map(str, self.reasons))

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return {
            "level": self.level,
            "low": self.low,
            "high": self.high,
            "error": self.error,
            "reason": self.reason,
            "reasons": [str(one) for one in self.reasons],
        }


def assess(
    w: Workload,
    gpu: Gpu,
    chosen: Chosen,
    record: Implementation,
    *,
    tiles: str = "shipped",
    assumed: Iterable[str] = (),
    spread: float = 0.0,
) -> Trust:
    """Trust in the time of `record` for `w` on `gpu`, predicted with the `chosen` numbers.

    *Validated*: the implementation's own calibration on this architecture, and GPU, pass, head_dim,
    lengths, rows and mask inside the domain it was checked on; the error is that calibration's on held-
    out measurements, the interval its own. *Interpolated*: its own calibration, but another GPU of the
    architecture, a head_dim between known ones, lengths or rows within a factor of `NEAR` of the known
    range, causal where only full was measured or the reverse, a calibration that left no group of rows
    out, forward and backward together where each was measured alone, or another number format than 16
    bits. *Extrapolated*: everything else: a borrowed calibration or none, a hypothetical GPU, another
    architecture, tiles that were not shipped, shapes far from those measured.

    The half-width of the interval, in log time, is a multiple of the calibration's spread: the mean size of its
    errors on held-out groups (of head_dims, if this question's was not measured; of bands of lengths otherwise).
    Three lower limits hold beside it: the half-width of borrowed numbers for numbers from elsewhere; that of
    another architecture for hypothetical GPUs, tiles that were not shipped and passes that were never measured;
    and that of windows for a window. All of these half-widths are measured, see
    `attnsim.validation.checking.coverage`. A time that is the mean of jittered plays is off by their spread too,
    whatever the calibration is off by: the half-width is the root of the sum of both squares.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
    chosen : Chosen
        From `attnsim.models.calibrations.choose.choose`.
    record : Implementation
    tiles : {"shipped", "retuned", "given"}
    assumed : iterable of str
        What the question left open and how it was filled in.
    spread : float
        Relative half-width of the time by its sensitivity to timing, `attnsim.simulator.replay.Replay.spread`.
    """
    far: list[Reason] = []
    if gpu.changes:
        far.append(Reason("hypothetical", f"hypothetical GPU: {', '.join(change.setting for change in gpu.changes)}"))
    if not chosen.own:
        far.append(Reason("borrowed", chosen.reason))
    if tiles != "shipped":
        far.append(Reason("tile", f"{tiles} tile, which nobody has timed"))
    near: list[Reason] = []
    if chosen.calibration is not None and chosen.own:
        outside = _outside(w, gpu, chosen.calibration)
        near += [Reason("shape", text) for text in outside.near]
        far += [Reason("shape", text) for text in outside.far]
    level = _level(far, near)
    half = widened(_half_width(level, w, chosen, record, unlike=bool(gpu.changes) or tiles != "shipped"), spread)
    said = [*far, *near]
    if level == "validated" and chosen.calibration is not None:
        summary = chosen.calibration.held_out
        errors = f"mean error {100 * summary.mean:.1f} % over {summary.rows} held-out measurements"
        said.append(Reason("measured", f"{record.name} on {gpu.architecture}: {errors}"))
    if record.closed:
        text = f"{record.name} is closed source: tiles are those of the nearest public kernel"
        said.append(Reason("closed source", text))
    if spread:
        text = f"sensitive to timing: {100 * spread:.1f} % either way as resident blocks fall into step or not"
        said.append(Reason("timing", f"{text}; the time is the mean of jittered plays"))
    said += [Reason("assumed", text) for text in assumed]
    error = chosen.calibration.held_out.mean if level == "validated" and chosen.calibration else None
    return Trust(level, math.exp(-half), math.exp(half), error, tuple(said))


def widened(half: float, spread: float) -> float:
    """Half-width of an interval of log time with that of the time's own spread, a relative one, independent of it."""
    return math.hypot(half, math.log1p(spread))


def level_of(w: Workload, gpu: Gpu, calibration: Calibration) -> Level:
    """The level of an own calibration for a question."""
    found = _outside(w, gpu, calibration)
    return _level(found.far, found.near)


def _level(far: Sequence[object], near: Sequence[object]) -> Level:
    return "extrapolated" if far else "interpolated" if near else "validated"


def _half_width(level: Level, w: Workload, chosen: Chosen, record: Implementation, *, unlike: bool) -> float:
    """Half-width of the 90 % interval of log time; `unlike`: no such GPU exists, or nobody ships the tile."""
    known, calibration = widths(), chosen.calibration
    if calibration is None:
        return known.at_least[PRIORS]
    domain = calibration.domain
    split = "band" if w.head_dim in domain.head_dims else "head_dim"
    spread = calibration.spread.get(split) or max(calibration.spread.values())
    times = max(known.times_spread[nearer] for nearer in LEVELS[: LEVELS.index(level) + 1])
    found = [times * spread]
    # No group that was held out stands for these: as far away as a chip that is predicted before it exists.
    passes = set(_DIRECTIONS[w.passes]) <= {direction for one in domain.passes for direction in _DIRECTIONS[one]}
    unlike = unlike or not passes or w.head_dim_v != w.head_dim or not w.mask.is_band
    if unlike or (w.dropout and not domain.dropout):
        found.append(known.at_least[ELSEWHERE])
    if w.mask.is_windowed and not domain.windowed:
        found.append(known.at_least[WINDOWS])
    if not chosen.own:
        found.append(known.at_least[ELSEWHERE if calibration.implementation == record.name else BORROWED])
    return max(found)


_DIRECTIONS = {"fwd": ("fwd",), "bwd": ("bwd",), "fwd+bwd": ("fwd", "bwd"), "decode": ("decode",)}
"""What a measured pass says something about."""


class _Outside(NamedTuple):
    """What of a question lies outside a calibration's domain, in words: near it, and far from it."""

    near: list[str]
    far: list[str]


def _outside(w: Workload, gpu: Gpu, calibration: Calibration) -> _Outside:
    near, far = found = _Outside([], [])
    domain = calibration.domain
    if not calibration.folds:
        near.append("its calibration was checked only on the rows it was fitted on")
    if gpu.base_id not in domain.gpus:
        near.append(f"measured on {', '.join(domain.gpus)}, not on {gpu.id}")
    if w.passes not in domain.passes:
        together = all(direction in domain.passes for direction in w.directions) and w.passes == "fwd+bwd"
        (near if together else far).append(f"pass {w.passes}, measured: {', '.join(domain.passes)}")
    dims = sorted(domain.head_dims)
    if w.head_dim not in dims:
        between = dims[0] < w.head_dim < dims[-1]
        (near if between else far).append(f"head_dim {w.head_dim}, measured: {', '.join(map(str, dims))}")
    if w.head_dim_v != w.head_dim:
        far.append(f"head_dim_v {w.head_dim_v} differs from head_dim {w.head_dim}")
    rows = w.batch * w.heads_q * w.seq_q
    for name, value, (low, high) in (
        ("seq_q", w.seq_q, domain.seq_q),
        ("seq_kv", w.seq_kv, domain.seq_kv),
        ("batch x heads x seq_q", rows, domain.rows),
    ):
        if not low <= value <= high:
            close = low / NEAR <= value <= high * NEAR
            (near if close else far).append(f"{name} {value}, measured: {low} to {high}")
    if w.mask.is_causal not in domain.causal:
        near.append(f"{'causal' if w.mask.is_causal else 'not causal'}, which was not measured")
    if w.mask.is_windowed and not domain.windowed:
        far.append("sliding window, which was not measured")
    if not w.mask.is_band:
        far.append("a mask with patterns, none of which was measured")
    if w.dropout and not domain.dropout:
        far.append("dropout, which was not measured")
    if w.element_bytes != 2:
        near.append(f"number format {w.dtype}; calibrations are of 16-bit formats")
    return found
