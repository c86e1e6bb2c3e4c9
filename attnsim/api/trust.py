"""How far to trust a prediction: how near the question is to measurements that the fit did not see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from attnsim.by_hand import by_hand
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.choose import Chosen
from attnsim.models.calibrations.components import COMPONENTS, HOST, NORMAL_90, PRIORS, TIMING, widths
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.options import HOST_WIDTH, SUPPORTS
from attnsim.models.question.workload import Workload
from attnsim.wording import beyond_text, spread_text

Kind = Literal[
    "hypothetical", "borrowed", "tile", "shape", "measured", "closed source", "assumed", "memory", "projections",
    "attention", "timing", "host", "components", "own",
]  # fmt: skip
Level = Literal["validated", "interpolated", "extrapolated"]
LEVELS: tuple[Level, ...] = ("validated", "interpolated", "extrapolated")


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a level of trust; as text, the sentence that says it.

    Parameters
    ----------
    kind : str
        "hypothetical" GPU, "borrowed" numbers, "tile" that was not shipped, "shape" beside the measured ones,
        "measured" errors, "closed source", "timing" that the time is sensitive to, the "host" that bounds
        it, "components" of the range, "assumed" by the question, "memory" too small, and of an attention layer its
        "projections" and its "attention"; "own" timings that corrected the answer, or did not.
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
    components : mapping of str to float
        Standard deviations of log time that make the range, by what each is; their squares sum up.
    """

    level: Level
    low: float
    high: float
    error: float | None
    reasons: tuple[Reason, ...]
    components: Mapping[str, float] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The reasons in one line."""
        return "; ".join(map(str, self.reasons))

    @property
    def summary(self) -> str:
        """Level, range in words and weightiest reason: "interpolated, about ±6 %: twice the largest seq_q ..."."""
        return f"{self.level}, about {spread_text(self.low, self.high)}: {self.reasons[0]}"

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        found = {name: getattr(self, name) for name in ("level", "low", "high", "error", "reason")}
        return found | {"reasons": [str(one) for one in self.reasons], "components": dict(self.components)}


def assess(
    w: Workload,
    gpu: Gpu,
    chosen: Chosen,
    record: Implementation,
    *,
    tiles: str = "shipped",
    assumed: Iterable[str] = (),
    spread: float = 0.0,
    host_bound: bool = False,
    version: str = "",
    operations: bool = False,
) -> Trust:
    """Trust in the time of `record` for `w` on `gpu`, predicted with the `chosen` numbers.

    *Validated*: the implementation's own calibration on this architecture, and GPU, pass, head_dim,
    lengths, rows and mask inside the domain it was checked on; the error is that calibration's on held-
    out measurements, the interval its own. *Interpolated*: its own calibration, but another GPU of the
    architecture, a head_dim between known ones, lengths or rows near the known range
    (`unmeasured`), causal where only full was measured or the reverse, a calibration that left no
    group of rows out, forward and backward together where each was measured alone, or another number format than 16
    bits. *Extrapolated*: everything else: a borrowed calibration or none, a hypothetical GPU, another
    architecture, tiles that were not shipped, shapes far from those measured.

    The range is made of components, each a standard deviation of log time: the calibration's own held-out errors, those
    that separate the question from what was measured (`unmeasured`), and the time's own spread where it is the
    mean of jittered plays. The half-width of the interval is a factor times the root of the sum of their squares. All
    are measured, see `attnsim.validation.checking.components`.

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
    host_bound : bool
        Whether the time is that of the host's launches, of one machine and version.
    version : str
        Of the software that is asked about; "" where the question does not say.
    operations : bool
        Whether the question names the operations of unfused attention.
    """
    far: list[Reason] = []
    if gpu.changes:
        far.append(Reason("hypothetical", f"hypothetical GPU: {', '.join(change.setting for change in gpu.changes)}"))
    if not chosen.own:
        far.append(Reason("borrowed", chosen.reason))
    if tiles != "shipped":
        far.append(Reason("tile", f"{tiles} tile, which nobody has timed"))
    near: list[Reason] = []
    if record.launches and not record.changed:
        speed = f", {chosen.numbers.speed:.3g} as fast" if chosen.numbers.speed != 1.0 else ""
        near.append(Reason("borrowed", f"the kernels of {record.launches} in a build of their own{speed}"))
    if chosen.calibration is not None and chosen.own:
        for is_far, text in (*_outside(w, gpu, chosen.calibration), *_options(w, chosen.calibration)):
            (far if is_far else near).append(Reason("shape", text))
        near += _wide(w, chosen.calibration)
    if in_unmeasured_format(w, record):
        far.append(Reason("shape", f"number format fp8, of which {record.name} has no measured row"))
    level = _level(far, near)
    measured = chosen.calibration.versions if chosen.calibration and not record.launches else ()
    known = same_version(version, measured)
    names = unmeasured(w, gpu, record, chosen.calibration, tiles=tiles, version=not known, operations=operations)
    made = widths().parts(spread_of(w, chosen.calibration), names)
    made |= {TIMING: math.log1p(spread) / NORMAL_90} if spread else {}
    made |= {HOST: HOST_WIDTH / NORMAL_90} if host_bound else {}
    half = widths().half_width(made.values())
    said = [*far, *near]
    if host_bound:
        text = "the host's launches bound the time: PyTorch 2.1 on one machine; others take half or twice as long"
        said.insert(0, Reason("host", text))
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
    said.append(Reason("components", components_text(made)))
    said += [Reason("assumed", text) for text in assumed]
    error = chosen.calibration.held_out.mean if level == "validated" and chosen.calibration else None
    return Trust(level, math.exp(-half), math.exp(half), error, tuple(said), made)


def _wide(w: Workload, calibration: Calibration) -> list[Reason]:
    """That a calibration's own errors are wider than what having nothing fitted adds: such numbers validate nothing."""
    mean, most = spread_of(w, calibration), widths().sd[PRIORS] / widths().within
    if mean <= most:
        return []
    text = f"mean error {100 * mean:.0f} % on held-out rows like this, wider than with nothing fitted"
    return [Reason("measured", f"{text} (beyond {100 * most:.0f} %)")]


def components_text(made: Mapping[str, float]) -> str:
    """The components of a range in words, but for those of zero: where nothing is fitted, nothing was held out."""
    each = (f"{'held-out error' if name == 'within' else name} {100 * sd:.1f} %" for name, sd in made.items() if sd)
    return f"range made of {', '.join(each)} (standard deviations, added in squares)"


def _level(far: Sequence[object], near: Sequence[object]) -> Level:
    return "extrapolated" if far else "interpolated" if near else "validated"


def _furthest(size: tuple[str, int, tuple[int, int], bool]) -> float:
    """A key that sorts the size that lies furthest outside its range first."""
    _, value, (low, high), _ = size
    return -max(value / high, low / value)


def _outside(w: Workload, gpu: Gpu, calibration: Calibration) -> Iterator[tuple[bool, str]]:
    """Properties of a question outside a calibration's domain, in words, and whether they lie far from it."""
    domain = calibration.domain
    if not calibration.folds:
        yield False, "its calibration was checked only on the rows it was fitted on"
    if gpu.base_id not in domain.gpus:
        yield False, f"measured on {', '.join(domain.gpus)}, not on {gpu.id}"
    if w.passes not in domain.passes:
        together = all(direction in domain.passes for direction in w.directions) and w.passes == "fwd+bwd"
        yield not together, f"pass {w.passes}, measured: {', '.join(domain.passes)}"
    dims = sorted(domain.head_dims)
    if w.head_dim not in dims:
        between = dims[0] < w.head_dim < dims[-1]
        yield not between, f"head_dim {w.head_dim}, measured: {', '.join(map(str, dims))}"
    if w.lengths:
        yield False, "sequences of different lengths, measured: of one length"
    if w.head_dim_v != w.head_dim:
        yield True, f"head_dim_v {w.head_dim_v} differs from head_dim {w.head_dim}"
    for name, value, (low, high), is_far in sorted(beyond(w, calibration), key=_furthest):
        yield is_far, beyond_text(name, value, low, high)
    if w.mask.is_causal not in domain.causal:
        yield False, f"{'causal' if w.mask.is_causal else 'not causal'}, which was not measured"
    if w.mask.is_windowed and not domain.windowed:
        yield True, "sliding window, which was not measured"
    if not w.mask.is_band:
        yield True, "a mask with patterns, none of which was measured"
    if w.dropout and not domain.dropout:
        yield True, "dropout, which was not measured"
    if w.element_bytes != 2:
        yield False, f"number format {w.dtype}; calibrations are of 16-bit formats"


def _options(w: Workload, calibration: Calibration) -> Iterator[tuple[bool, str]]:
    """Options of a question that nobody measured, as `_outside`; a sink is but one term of a row's sum."""
    names = {"kv_dtype": f"K and V in {w.kv_dtype}", "softcap": "soft-capping", "sinks": "attention sinks"}
    for option in w.options:
        yield option != "sinks", f"{names[option]}, which was not measured"
    if w.page_size and ("page_size", calibration.implementation) in SUPPORTS:
        yield False, "pages of the cache, measured: K and V in one piece"


NEAR = by_hand(2.0, "factor beyond a calibration's ranges of lengths and rows that still counts as near")

DIRECTIONS = {"fwd": ("fwd",), "bwd": ("bwd",), "fwd+bwd": ("fwd", "bwd"), "decode": ("decode",)}
"""The directions that a measured pass says something about."""


def unmeasured(
    w: Workload,
    gpu: Gpu,
    record: Implementation,
    calibration: Calibration | None,
    *,
    tiles: str = "shipped",
    laboratory: bool = True,
    version: bool = True,
    operations: bool = False,
) -> tuple[str, ...]:
    """The components of a range that separate a question from the measurements behind its numbers, in their order.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
    record : Implementation
        What is asked about.
    calibration : Calibration or None
        Whose numbers are used; None for priors.
    tiles : {"shipped", "retuned", "given"}
    laboratory : bool
        Whether the question is about another laboratory's machine than the measurements are of: a user's always is.
        Where no clock is given, its clock is another unknown.
    version : bool
        Whether the version or build is unknown, or another than the measured one.
    operations : bool
        Whether the operations of unfused attention are known.
    """
    found = {"laboratory": laboratory, "clock": laboratory and not gpu.clock.held_hz, "version": version}
    found["operations"] = record.unfused and laboratory and not operations
    if calibration is None:
        return _named(found | {"priors": True})
    domain = calibration.domain
    elsewhere = calibration.architecture != gpu.architecture or bool(gpu.changes)
    directions = {direction for one in domain.passes for direction in DIRECTIONS[one]}
    summed = w.passes not in domain.passes and not (
        w.passes == "fwd+bwd" and set(DIRECTIONS[w.passes]) <= {*domain.passes}
    )
    other_format = in_unmeasured_format(w, record)
    unlike = other_format or w.head_dim_v != w.head_dim or not w.mask.is_band or (w.dropout and not domain.dropout)
    return _named(
        found
        | {
            "shape": far_shape(w, calibration) or bool(w.lengths),
            "chip": not elsewhere and gpu.base_id not in domain.gpus,
            "pass": summed or not set(DIRECTIONS[w.passes]) <= directions or unlike or tiles != "shipped",
            "window": w.mask.is_windowed and not domain.windowed,
            "kernel": other_format or calibration.implementation not in record.calibrated_as,
            "architecture": elsewhere,
        }
    )


def in_unmeasured_format(w: Workload, record: Implementation) -> bool:
    """Whether the call runs kernels of a number format of which no row was measured."""
    return w.dtype == "fp8" and record.fp8_backward


def _named(found: dict[str, bool]) -> tuple[str, ...]:
    return tuple(name for name in COMPONENTS if found.get(name))


def far_shape(w: Workload, calibration: Calibration) -> bool:
    """Whether head_dim, lengths or rows lie far outside what a calibration has seen."""
    dims = calibration.domain.head_dims
    return not min(dims) <= w.head_dim <= max(dims) or any(far for _, _, _, far in beyond(w, calibration))


def beyond(w: Workload, calibration: Calibration) -> list[tuple[str, int, tuple[int, int], bool]]:
    """Lengths and rows outside a calibration's ranges: name, value, the range, and whether by more than `NEAR`."""
    domain, rows = calibration.domain, w.heads_q * w.queries
    sizes = (("seq_q", w.seq_q, domain.seq_q), ("seq_kv", w.seq_kv, domain.seq_kv))
    return [
        (name, value, (low, high), not low / NEAR <= value <= high * NEAR)
        for name, value, (low, high) in (*sizes, ("batch x heads x seq_q", rows, domain.rows))
        if not low <= value <= high
    ]


def spread_of(w: Workload, calibration: Calibration | None) -> float:
    """Mean size of a calibration's log errors on held-out rows like these; 0 without a calibration.

    Of head_dims, if this question's was not measured, of bands of lengths otherwise; of this pass, if it was measured.
    """
    if calibration is None:
        return 0.0
    split = "band" if w.head_dim in calibration.domain.head_dims else "head_dim"
    spread = calibration.spread
    return spread.get(f"{split}, {w.passes}") or spread.get(split) or max(spread.values())


def same_version(one: str, others: Iterable[str]) -> bool:
    """Whether a version is among others, as far as both are stated: "9.27" is "nvidia 9.27.0"."""
    return any(_agree(_parts(one), _parts(other)) for other in others)


def _parts(version: str) -> tuple[str, ...]:
    """The numbers of a version's last word: "1", "3" of "tensorrt-llm 1.3.0rc20"."""
    return tuple(takewhile(str.isdigit, version.rpartition(" ")[2].split(".")))


def _agree(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    common = min(len(one), len(other))
    return common > 1 and one[:common] == other[:common]
