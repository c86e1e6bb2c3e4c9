"""The axes of a study: the keys that vary and their values, checked when the file is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import TIMES
from attnsim.models.hardware.sections import changeable
from attnsim.models.mask.mask import Mask
from attnsim.models.question import words
from attnsim.models.question.lengths import read_lengths
from attnsim.models.question.operations import Operations
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import DTYPE_BYTES, LARGEST, PASSES, Latent

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
