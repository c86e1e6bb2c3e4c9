"""A study: axes, the combination of their values to points, and the method that answers points.

Axes are the keys that vary and their values, checked when the file is read.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnsim.api.adapting.own import OwnTimings
from attnsim.arrays import Floats, Ints
from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import TIMES
from attnsim.models.hardware.sections import changeable
from attnsim.models.mask.mask import Mask
from attnsim.models.question import words
from attnsim.models.question.lengths import read_lengths
from attnsim.models.question.operations import Operations
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import DTYPE_BYTES, LARGEST, PASSES, Latent
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.models.schedule.kernel_file import digest_of

LONGEST_LIST = 10_000
MOST_STEPS = 1_000_000
RANGE = "{from: 1024, to: 131072, steps: 8, scale: log}"

COUNTS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v")
WORKLOAD_FIELDS = (*COUNTS, "dtype", "passes", "mask", "dropout", "latent", "operations", "selection", "lengths")
COLUMNS = {name: "pass" if name == "passes" else name for name in WORKLOAD_FIELDS}
"""Fields of a workload and their names in files and results, in the order in which their axes vary."""

TEXTS: dict[str, tuple[Callable[[str], Any], str]] = {
    "mask": (Mask.parse, "full, causal, or patterns such as 'causal, window 512'"),
    "operations": (Operations.parse, "operations such as 'scale, softmax, dropout 0.1'"),
    "selection": (Selection.parse, "a selection such as 'top 16x64, window 512'"),
    "lengths": (read_lengths, "'1:4096 x 63, 512:2560', a .csv file, or a distribution"),
}
"""Fields that are given as text: parser and allowed form. Lengths are parsed again for the pass of a point."""

T = TypeVar("T")
Values = Sequence[Any] | NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """A continuous range of values.

    Parameters
    ----------
    start, stop : float
        Both ends.
    scale : {"linear", "log"}
    integer : bool
        Round values to whole numbers.
    """

    start: float
    stop: float
    scale: Literal["linear", "log"]
    integer: bool

    def at(self, part: NDArray[np.float64]) -> NDArray[np.float64] | NDArray[np.int64]:
        """Return the values at relative positions, 0 to 1."""
        if self.scale == "log":
            found = self.start * (self.stop / self.start) ** part
        else:
            found = self.start + (self.stop - self.start) * part
        low, high = sorted((self.start, self.stop))
        found = np.clip(found, low, high)  # rounding must not leave the range
        return np.round(found).astype(np.int64) if self.integer else found


@dataclass(frozen=True, slots=True)
class Axis:
    """One key of a study and its values.

    Parameters
    ----------
    name : str
        ``gpu``, ``hbm.bandwidth``, ``algorithm``, ``seq_q``, ...
    kind : {"gpu", "change", "choice", "shape", "workload"}
    values : tuple
        The listed values, or the steps of a range: GPUs, SI numbers or multiples, names, shapes as mappings, counts.
    span : Span, optional
        The range that a Sobol sample is drawn from.
    multiple : bool
        For a change: values are multiples of the GPU's own figure ("2x").
    labels : tuple of str
        Names of the GPUs or shapes.
    stepped : bool
        False for a range without steps, whose values are its two ends. Only a Sobol sample can use it.
    """

    name: str
    kind: Literal["gpu", "change", "choice", "shape", "workload"]
    values: tuple[Any, ...]
    span: Span | None = None
    multiple: bool = False
    labels: tuple[str, ...] = ()
    stepped: bool = True

    @property
    def varies(self) -> bool:
        """True if the axis has more than one value."""
        return len(self.values) > 1

    @property
    def column(self) -> str:
        """Column in the results; `passes` is written ``pass``, as in case tables."""
        return COLUMNS.get(self.name, self.name)

    @property
    def path(self) -> str:
        """Key of the axis in the study file."""
        return {"change": "change.", "workload": "workload.", "shape": "workload."}.get(self.kind, "") + self.column


def change_axis(key: str, given: object) -> Axis:
    """Read the axis of a GPU figure: ``[3.35 TB/s, 6 TB/s]``, ``[1x, 2x]`` or a range of either."""
    where = f"change.{key}"
    field = read_at(f"{where}:", changeable, key)

    def read(value: object) -> tuple[float, bool]:
        if isinstance(value, str) and (found := TIMES.fullmatch(value)):
            if field.unit == "bool" or not (factor := float(found[1])) > 0 or not math.isfinite(factor):
                raise InputError(f"{where} is {shown(value)}; allowed: multiples above 0, or {field.allowed()}")
            return factor, True
        return read_at(where, field.parse, value), False

    entry = _entry(where, given)
    numbers, multiples = zip(*map(read, _listed(entry)), strict=True)
    multiple = multiples[0]
    if len(set(multiples)) > 1:
        raise InputError(f"{where} mixes multiples with values; write all of them as 1x, 2x or all with their unit")
    if key.startswith("tensor.") and 0 in numbers:
        raise InputError(f"{where} is 0; allowed: rates above 0")
    axis = Axis(key, "change", numbers, multiple=multiple)
    if isinstance(entry, list):
        return _distinct(where, axis, lambda value: f"{value:g}x" if multiple else field.show(value))
    if field.unit == "bool":
        raise InputError(f"{where} is a range; write a list of true and false")
    return _ranged(where, axis, entry, field.integer and not multiple)


def workload_axis(name: str, given: object) -> Axis:
    """Read the axis of a field of the workload."""
    where = f"workload.{COLUMNS[name]}"
    entry = [given] if name == "latent" else _entry(where, given)
    if isinstance(entry, dict) and name not in COUNTS:
        raise InputError(f"{where} is a range; write a list of values")
    axis = Axis(name, "workload", tuple(field_value(where, name, value) for value in _listed(entry)))
    return _distinct(where, axis, str) if isinstance(entry, list) else _ranged(where, axis, entry, integer=True)


def shape_axis(given: object) -> Axis:
    """Read the axis of named shapes, each with several fields of the workload."""
    where = "workload.shape"
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{where} is {shown(given)}; write ids of models, or {{small: {{heads_q: 12, head_dim: 64}}}}")
    shapes = []
    for label, fields in given.items():
        at = f"{where}.{label}"
        if not isinstance(label, str) or not isinstance(fields, Mapping) or not fields:
            raise InputError(f"{at} is {shown(fields)}; write fields: {{heads_q: 12, head_dim: 64}}")
        check_keys(at, fields, tuple(COLUMNS.values()))
        known = {name: fields[column] for name, column in COLUMNS.items() if column in fields}
        shapes.append({name: field_value(f"{at}.{name}", name, value) for name, value in known.items()})
    if len({frozenset(shape) for shape in shapes}) > 1:
        raise InputError(
            f"{where}: {' and '.join(map(str, list(given)[:2]))} have other fields; give all shapes the same"
        )
    return Axis("shape", "shape", tuple(shapes), labels=tuple(given))


def read_at(where: str, read: Callable[[Any], T], given: Any) -> T:
    """Apply `read` to a value; an InputError gets the place of the value in front."""
    try:
        return read(given)
    except InputError as error:
        raise InputError(f"{where} {error}") from None


def check_keys(where: str, given: Iterable[object], allowed: Sequence[str]) -> None:
    """Raise InputError for a key that is not allowed; names the nearest allowed key."""
    for key in given:
        if key not in allowed:
            raise InputError(f"unknown key {shown(f'{where}.{key}')}; {nearest(str(key), allowed)}")


def field_value(where: str, name: str, given: object) -> Any:
    """Check one value of a workload's field."""
    if name in COUNTS:
        limit = LARGEST[name.replace("_kv", "_q") if name.startswith("heads") else name.removesuffix("_v")]
        count = words.whole(given) if isinstance(given, str) else given
        count = int(count) if isinstance(count, float) and count.is_integer() else count
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= limit:
            raise InputError(f"{where} is {shown(given)}; allowed: whole numbers from 1 to {limit}")
        return count
    if name == "dropout":
        if not isinstance(given, bool):
            raise InputError(f"{where} is {shown(given)}; allowed: true, false")
        return given
    if name == "latent":
        if not isinstance(given, Mapping) or set(given) != {"rank", "rope"}:
            raise InputError(f"{where} is {shown(given)}; write {{rank: 512, rope: 64}}")
        return Latent(**given)
    if name in TEXTS:
        read_text, example = TEXTS[name]
        if not isinstance(given, str):
            raise InputError(f"{where} is {shown(given)}; write {example}")
        found = read_at(f"{where}:", read_text, given)
        return given if name == "lengths" else found
    allowed, read = (tuple(DTYPE_BYTES), words.read_dtype) if name == "dtype" else (PASSES, words.read_pass)
    value = read(given) if isinstance(given, str) else given
    if value not in allowed:
        raise InputError(f"{where} is {shown(given)}; allowed: {', '.join(allowed)}")
    return value


def _entry(where: str, given: object) -> list[Any] | dict[str, Any]:
    """Return a list of scalars, or a range with its four keys."""
    if isinstance(given, Mapping):
        check_keys(where, given, ("from", "to", "steps", "scale"))
        for key in ("from", "to"):
            if key not in given:
                raise InputError(f"{where}.{key} is missing; write {RANGE}")
        return {"steps": None, "scale": "linear", **given}
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if not listed:
        raise InputError(f"{where} is an empty list; give a value or several")
    if len(listed) > LONGEST_LIST:
        raise InputError(f"{where} lists {len(listed)} values; allowed: {LONGEST_LIST}; write a range: {RANGE}")
    if any(isinstance(value, (Mapping, list)) or value is None for value in listed):
        raise InputError(f"{where} is {shown(given)}; write a value, a list of values, or {RANGE}")
    return listed


def _listed(entry: list[Any] | dict[str, Any]) -> list[Any]:
    return entry if isinstance(entry, list) else [entry["from"], entry["to"]]


def _ranged(where: str, ends: Axis, entry: Mapping[str, Any], integer: bool) -> Axis:
    """Return an axis from its two ends, with the steps between them."""
    start, stop = ends.values
    scale, steps = entry["scale"], entry["steps"]
    if scale not in ("linear", "log"):
        raise InputError(f"{where}.scale is {shown(scale)}; allowed: linear, log")
    if start == stop:
        raise InputError(f"{where} runs from {start:g} to {stop:g}; give two ends that differ, or one value")
    if scale == "log" and min(start, stop) <= 0:
        raise InputError(f"{where} runs from {start:g} to {stop:g} on a log scale; allowed: ends above 0")
    span = Span(float(start), float(stop), scale, integer)
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or not 2 <= steps <= MOST_STEPS):
        raise InputError(f"{where}.steps is {shown(steps)}; allowed: whole numbers from 2 to {MOST_STEPS}")
    values = span.at(np.linspace(0.0, 1.0, steps or 2))
    different = len(np.unique(values))
    if steps is not None and different < steps:
        raise InputError(
            f"{where}.steps is {steps}, but the range holds {different} different values; give at most so many"
        )
    return replace(ends, values=tuple(values.tolist()), span=span, stepped=steps is not None)


def _distinct(where: str, axis: Axis, show: Callable[[Any], str]) -> Axis:
    seen = set()
    for value in axis.values:
        if value in seen:
            raise InputError(f"{where} lists {show(value)} twice; keep one")
        seen.add(value)
    return axis


Combine = Literal["cartesian", "list", "sobol"]
Method = Literal["closed-form", "replay", "auto"]

MOST_POINTS = 10**9
CLOSED_CHUNK, REPLAYED_CHUNK = 1 << 16, 1 << 7
"""Points of a chunk, about one second of closed forms or replays: the loss if a run is interrupted."""
MOST_DIMENSIONS = 21_201
"""Largest dimension of SciPy's Sobol sequence (Joe and Kuo's direction numbers)."""
NEEDED = ("batch", "heads_q", "head_dim")


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one axis at some points: ``values[codes]``."""

    axis: Axis
    values: Values
    codes: Ints

    def array(self) -> NDArray[Any]:
        """Return one number per point."""
        return np.asarray(self.values)[self.codes]


@dataclass(frozen=True, slots=True)
class Points:
    """Some points of a study, as columns.

    Parameters
    ----------
    first : int
        Number of the first point in the study.
    """

    first: int
    count: int
    columns: dict[str, Column]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The unit of work of one process.

    Parameters
    ----------
    first, stop : int
        Its range of points, `stop` excluded.
    replays : int or None
        Largest number of replays.
    """

    number: int
    first: int
    stop: int
    replays: int | None

    @property
    def count(self) -> int:
        """Number of its points."""
        return self.stop - self.first


@dataclass(frozen=True)
class Study:
    """Axes over GPUs, figures, algorithms and workloads (or kernel files), and the method that answers their points.

    Parameters
    ----------
    axes : tuple of Axis
        The slowest-varying axis first.
    combine : {"cartesian", "list", "sobol"}
        Every combination; the first values, then the second values, ... (axes of equal length); or a scrambled Sobol
        sample (Owen, J. Complexity 14(4), 1998, as in SciPy).
    sample : int or None
        Points of the sample, a power of two.
    seed : int
        Of the sample.
    method : {"closed-form", "replay", "auto"}
        Closed forms only, replays only, or replays for points whose closed form is uncertain
        (:mod:`attnsim.studies.closed_answers`).
    replays : int or None
        For "auto": largest number of replays; the most uncertain points of each chunk come first.
    cache, launch : str
        Conditions, as in `attnsim.api.predict`.
    own : OwnTimings or None
        Timings of one's own that correct answers; points that they correct are replayed.

    Raises
    ------
    InputError
        If the axes cannot be combined so.
    """

    axes: tuple[Axis, ...]
    combine: Combine = "cartesian"
    sample: int | None = None
    seed: int = 0
    method: Method = "auto"
    replays: int | None = None
    cache: str = "warm"
    launch: str = "stream"
    title: str = ""
    own: OwnTimings | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.kernels:
            self._check_fields()
        elif self.method != "replay":
            raise InputError(f"method is {self.method}, but a kernel file has no closed form; write method: replay")
        if (self.combine == "sobol") != (self.sample is not None):
            raise InputError(
                "points is missing; give the size of the Sobol sample, a power of two"
                if self.sample is None
                else f"points is {self.sample}, but combine is {self.combine}; leave it out, or write combine: sobol"
            )
        if self.sample is not None and self.sample & (self.sample - 1):
            below = 1 << (self.sample.bit_length() - 1)
            raise InputError(
                f"points is {self.sample}; a Sobol sample is balanced at powers of two: give {below} or {2 * below}"
            )
        if self.replays is not None and self.method != "auto":
            raise InputError(
                f"replays is {self.replays}, but method is {self.method}; leave it out, or write method: auto"
            )
        if self.own is not None and (self.kernels or self.method == "closed-form"):
            what = "a kernel file" if self.kernels else "method: closed-form"
            raise InputError(
                f"calibration corrects replays of known implementations, not {what}; leave one of them out"
            )
        self._check_lengths()

    def _check_fields(self) -> None:
        inside = {name for axis in self.axes if axis.kind == "shape" for name in axis.values[0]}
        given = {axis.name for axis in self.axes if axis.kind == "workload"}
        known = inside | given
        if both := sorted(inside & given):
            raise InputError(f"workload.{both[0]} is given and is a field of workload.shape too; keep one")
        if "lengths" in known:
            known |= {"batch", "seq_q", "seq_kv"}
            if self.method != "replay":
                raise InputError("workload.lengths takes replays; write method: replay")
        for name in NEEDED:
            if name not in known:
                raise InputError(f"workload.{name} is missing; give it, or put it into workload.shape")
        if not {"seq_q", "seq_kv"} & known:
            raise InputError("workload.seq_q is missing; give the number of queries (with pass decode, seq_kv)")
        if self._takes("passes", "decode") and "seq_kv" not in known:
            raise InputError("workload.seq_kv is missing; a decode call needs the keys in its cache")
        if self.method == "closed-form" and self._takes("tile", "retuned"):
            raise InputError("tile retuned takes replays, but method is closed-form; write method: auto or replay")

    def _takes(self, name: str, value: str) -> bool:
        """True if an axis, or a field of a shape, has a value."""
        own = [item for axis in self.axes if axis.name == name for item in axis.values]
        return value in own or any(
            shape.get(name) == value for axis in self.axes if axis.kind == "shape" for shape in axis.values
        )

    def _check_lengths(self) -> None:
        if self.combine != "sobol" and (open_ended := [axis for axis in self.varying if not axis.stepped]):
            raise InputError(f"{open_ended[0].path} is a range without steps; give steps, or write combine: sobol")
        if self.combine == "list":
            lengths = {len(axis.values): axis.path for axis in self.varying}
            if len(lengths) > 1:
                (one, first), (two, second), *_ = lengths.items()
                raise InputError(
                    f"combine is list, but {first} has {one} values and {second} {two}; give all axes equally many"
                )
        if self.combine == "sobol" and len(self.varying) > MOST_DIMENSIONS:
            raise InputError(f"{len(self.varying)} axes vary; a Sobol sample has at most {MOST_DIMENSIONS} dimensions")
        if len(self) > MOST_POINTS:
            raise InputError(f"the axes make {len(self):.3g} points; allowed: {MOST_POINTS:.0e}; take fewer steps")

    @property
    def kernels(self) -> dict[str, LiftedCall]:
        """Kernel files by name, which replace algorithms and workloads; empty if the study has none."""
        return {
            name: value
            for one in self.axes
            if one.name == "kernel"
            for name, value in zip(one.labels, one.values, strict=True)
        }

    @property
    def varying(self) -> tuple[Axis, ...]:
        """Axes with more than one value."""
        return tuple(axis for axis in self.axes if axis.varies)

    def __len__(self) -> int:
        """Number of points."""
        if self.sample is not None:
            return self.sample
        lengths = [len(axis.values) for axis in self.varying]
        if self.combine == "list":
            return lengths[0] if lengths else 1
        return math.prod(lengths)

    def columns(self, first: int, stop: int) -> Points:
        """Return the points from `first` to `stop` (excluded) as columns; other points are not generated."""
        index = np.arange(first, stop, dtype=np.int64)
        sampled = {} if self.sample is None else self._sampled(first, stop)
        made, stride = {}, 1
        for axis in reversed(self.axes):
            values: Values = axis.values
            if axis.name not in sampled:
                codes = index % len(values) if self.combine == "list" else index // stride % len(values)
                stride *= len(values)
            elif axis.span is not None:
                values, codes = axis.span.at(sampled[axis.name]), index - first
            else:
                codes = np.minimum((sampled[axis.name] * len(values)).astype(np.int64), len(values) - 1)
            made[axis.name] = Column(axis, values, codes)
        return Points(first, stop - first, {axis.name: made[axis.name] for axis in self.axes})

    def _sampled(self, first: int, stop: int) -> dict[str, Floats]:
        """Return the relative position, 0 to 1, of each sample point on each varying axis."""
        from scipy.stats import qmc

        names = [axis.name for axis in self.varying]
        if not names:
            return {}
        sequence = qmc.Sobol(len(names), scramble=True, rng=np.random.default_rng(self.seed))
        if first:
            sequence.fast_forward(first)
        return dict(zip(names, sequence.random(stop - first).T, strict=True))

    @property
    def chunk_points(self) -> int:
        """Points of a chunk, a power of two: about `REPLAYED_CHUNK` replays, and at most `CLOSED_CHUNK` points."""
        if self.method == "closed-form" or self.replays == 0:
            return CLOSED_CHUNK
        if self.replays is None or self.replays >= len(self):
            return REPLAYED_CHUNK
        wanted = min(CLOSED_CHUNK, max(REPLAYED_CHUNK, REPLAYED_CHUNK * len(self) // self.replays))
        return 1 << (wanted.bit_length() - 1)

    def chunks(self) -> int:
        """Return the number of chunks."""
        return -(-len(self) // self.chunk_points)

    def chunk(self, number: int) -> Chunk:
        """Return a chunk, with its share of `replays` by points."""
        size, every = self.chunk_points, len(self)
        first, stop = number * size, min(every, (number + 1) * size)
        shared = None if self.replays is None else self.replays * stop // every - self.replays * first // every
        return Chunk(number, first, stop, shared)

    def digest(self) -> str:
        """Return the SHA-256 of everything that decides the points and their answers, without the title."""
        gpus = [gpu.content() for gpu in self.axes[0].values]
        kernels = {name: digest_of(kernel) for name, kernel in self.kernels.items()}  # repr shortens long arrays
        decides = (replace(self, title=""), self.chunk_points, gpus, kernels, *filter(None, [self.own]))
        return hashlib.sha256(repr(decides).encode()).hexdigest()
