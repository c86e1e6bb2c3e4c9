"""The axes of a study: what varies, over which values, checked one by one when the file is read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnsim.models.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import changeable
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import DTYPE_BYTES, LARGEST, PASSES, Latent

LONGEST_LIST = 10_000
MOST_STEPS = 1_000_000
RANGE = "{from: 1024, to: 131072, steps: 8, scale: log}"

COUNTS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v")
WORKLOAD_FIELDS = (*COUNTS, "dtype", "passes", "mask", "dropout", "latent")
COLUMNS = {name: "pass" if name == "passes" else name for name in WORKLOAD_FIELDS}
"""Fields of a workload and their names in files and results; the order is that in which their axes vary."""

_TIMES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*[x×]\s*")

Values = Sequence[Any] | NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """All values between two ends.

    Parameters
    ----------
    start, stop : float
    scale : {"linear", "log"}
    integer : bool
        Whether values are rounded to whole numbers.
    """

    start: float
    stop: float
    scale: Literal["linear", "log"]
    integer: bool

    def at(self, part: NDArray[np.float64]) -> NDArray[np.float64] | NDArray[np.int64]:
        """Values at these parts, 0 to 1, of the way."""
        if self.scale == "log":
            found = self.start * (self.stop / self.start) ** part
        else:
            found = self.start + (self.stop - self.start) * part
        low, high = sorted((self.start, self.stop))
        found = np.clip(found, low, high)  # rounding must not leave the range
        return np.round(found).astype(np.int64) if self.integer else found


@dataclass(frozen=True, slots=True)
class Axis:
    """One key of a study and the values it takes.

    Parameters
    ----------
    name : str
        ``gpu``, ``hbm.bandwidth``, ``algorithm``, ``seq_q``, ...
    kind : {"gpu", "change", "choice", "shape", "workload"}
    values : tuple
        Those listed, or the steps of a range. GPUs, SI numbers or multiples, names, shapes as mappings, counts.
    span : Span, optional
        The range that a Sobol sample is drawn from.
    multiple : bool
        Of a change: whether values are multiples of the GPU's own figure ("2x").
    labels : tuple of str
        Names of the GPUs or shapes.
    stepped : bool
        False for a range without steps, whose values are its ends: only a sample can be drawn from it.
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
        """Whether the axis has more than one value."""
        return len(self.values) > 1

    @property
    def column(self) -> str:
        """Column of the results: `passes` is written ``pass``, as in case tables."""
        return COLUMNS.get(self.name, self.name)


def change_axis(key: str, given: object) -> Axis:
    """The axis of a GPU's figure: ``[3.35 TB/s, 6 TB/s]``, ``[1x, 2x]`` or a range of either.

    Raises
    ------
    InputError
    """
    where = f"change.{key}"
    try:
        field = changeable(key)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None

    def read(value: object) -> tuple[float, bool]:
        if isinstance(value, str) and (found := _TIMES.fullmatch(value)):
            if field.unit == "bool" or not (factor := float(found[1])) > 0 or not math.isfinite(factor):
                raise InputError(f"{where} is {shown(value)}; allowed: multiples above 0, or {field.allowed()}")
            return factor, True
        try:
            return field.parse(value), False
        except InputError as error:
            raise InputError(f"{where} {error}") from None

    entry = _entry(where, given)
    listed = [entry["from"], entry["to"]] if isinstance(entry, dict) else entry
    values = [read(value) for value in listed]
    if len({multiple for _, multiple in values}) > 1:
        raise InputError(f"{where} mixes multiples with values; write all of them as 1x, 2x or all with their unit")
    if key.startswith("tensor.") and any(value == 0 for value, _ in values):
        raise InputError(f"{where} is 0; allowed: rates above 0")
    multiple = values[0][1]
    numbers = [value for value, _ in values]
    if isinstance(entry, dict):
        if field.unit == "bool":
            raise InputError(f"{where} is a range; write a list of true and false")
        return _ranged(where, key, "change", numbers, entry, field.integer and not multiple, multiple)
    _distinct(where, numbers, lambda value: f"{value:g}x" if multiple else field.show(value))
    return Axis(key, "change", tuple(numbers), multiple=multiple)


def workload_axis(name: str, given: object) -> Axis:
    """The axis of a field of the workload.

    Raises
    ------
    InputError
    """
    where = f"workload.{COLUMNS[name]}"
    if name == "latent":
        return Axis(name, "workload", (field_value(where, name, given),))
    entry = _entry(where, given)
    if isinstance(entry, dict):
        if name not in COUNTS:
            raise InputError(f"{where} is a range; write a list of values")
        numbers = [field_value(where, name, entry[end]) for end in ("from", "to")]
        return _ranged(where, name, "workload", numbers, entry, integer=True)
    values = [field_value(where, name, value) for value in entry]
    _distinct(where, values, str)
    return Axis(name, "workload", tuple(values))


def shape_axis(given: object) -> Axis:
    """The axis of named shapes, each some fields of the workload at once.

    Raises
    ------
    InputError
    """
    where = "workload.shape"
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{where} is {shown(given)}; write ids of models, or {{small: {{heads_q: 12, head_dim: 64}}}}")
    shapes = []
    for label, fields in given.items():
        at = f"{where}.{label}"
        if not isinstance(label, str) or not isinstance(fields, Mapping) or not fields:
            raise InputError(f"{at} is {shown(fields)}; write fields: {{heads_q: 12, head_dim: 64}}")
        known = {("passes" if key == "pass" else key): value for key, value in fields.items()}
        for key in fields:
            if key not in (*WORKLOAD_FIELDS, "pass") or key == "passes":
                names = ["pass" if name == "passes" else name for name in WORKLOAD_FIELDS]
                raise InputError(f"unknown key {shown(f'{at}.{key}')}; {nearest(str(key), names)}")
        shapes.append({key: field_value(f"{at}.{key}", key, value) for key, value in known.items()})
    if len({frozenset(shape) for shape in shapes}) > 1:
        raise InputError(
            f"{where}: {' and '.join(map(str, list(given)[:2]))} have other fields; give all shapes the same"
        )
    return Axis("shape", "shape", tuple(shapes), labels=tuple(given))


def named_axis(name: str, values: Sequence[str]) -> Axis:
    """The axis of a choice between names that are already checked."""
    return Axis(name, "choice", tuple(values))


def gpu_axis(gpus: Sequence[Gpu]) -> Axis:
    """The axis of base GPUs."""
    return Axis("gpu", "gpu", tuple(gpus), labels=tuple(gpu.id for gpu in gpus))


def field_value(where: str, name: str, given: object) -> Any:
    """One value of a workload's field, checked.

    Raises
    ------
    InputError
    """
    if name in COUNTS:
        limit = LARGEST[name.replace("_kv", "_q") if name.startswith("heads") else name.removesuffix("_v")]
        whole = int(given) if isinstance(given, float) and given.is_integer() else given
        if isinstance(whole, bool) or not isinstance(whole, int) or not 1 <= whole <= limit:
            raise InputError(f"{where} is {shown(given)}; allowed: whole numbers from 1 to {limit}")
        return whole
    if name == "dropout":
        if not isinstance(given, bool):
            raise InputError(f"{where} is {shown(given)}; allowed: true, false")
        return given
    if name == "latent":
        if not isinstance(given, Mapping) or set(given) != {"rank", "rope"}:
            raise InputError(f"{where} is {shown(given)}; write {{rank: 512, rope: 64}}")
        return Latent(**given)
    if name == "mask":
        if not isinstance(given, str):
            raise InputError(f"{where} is {shown(given)}; write full, causal, or patterns such as 'causal, window 512'")
        try:
            return Mask.parse(given)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    allowed = tuple(DTYPE_BYTES) if name == "dtype" else PASSES
    if given not in allowed:
        raise InputError(f"{where} is {shown(given)}; allowed: {', '.join(allowed)}")
    return given


def _entry(where: str, given: object) -> list[Any] | dict[str, Any]:
    """A list of scalars, or a range with its four keys."""
    if isinstance(given, Mapping):
        unknown = [key for key in given if key not in ("from", "to", "steps", "scale")]
        if unknown:
            raise InputError(
                f"unknown key {shown(f'{where}.{unknown[0]}')}; "
                f"{nearest(str(unknown[0]), ('from', 'to', 'steps', 'scale'))}"
            )
        missing = [key for key in ("from", "to") if key not in given]
        if missing:
            raise InputError(f"{where}.{missing[0]} is missing; write {RANGE}")
        return {"steps": None, "scale": "linear", **given}
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if not listed:
        raise InputError(f"{where} is an empty list; give a value or several")
    if len(listed) > LONGEST_LIST:
        raise InputError(f"{where} lists {len(listed)} values; allowed: {LONGEST_LIST}; write a range: {RANGE}")
    if any(isinstance(value, (Mapping, list)) or value is None for value in listed):
        raise InputError(f"{where} is {shown(given)}; write a value, a list of values, or {RANGE}")
    return listed


def _ranged(
    where: str, name: str, kind: Any, ends: Sequence[float], entry: Mapping[str, Any], integer: bool,
    multiple: bool = False,
) -> Axis:  # fmt: skip
    start, stop = ends
    scale, steps = entry["scale"], entry["steps"]
    if scale not in ("linear", "log"):
        raise InputError(f"{where}.scale is {shown(scale)}; allowed: linear, log")
    if start == stop:
        raise InputError(f"{where} runs from {start:g} to {stop:g}; give two ends that differ, or one value")
    if scale == "log" and min(start, stop) <= 0:
        raise InputError(f"{where} runs from {start:g} to {stop:g} on a log scale; allowed: ends above 0")
    span = Span(float(start), float(stop), scale, integer)
    if steps is None:
        return Axis(name, kind, tuple(span.at(np.array([0.0, 1.0])).tolist()), span, multiple, stepped=False)
    if isinstance(steps, bool) or not isinstance(steps, int) or not 2 <= steps <= MOST_STEPS:
        raise InputError(f"{where}.steps is {shown(steps)}; allowed: whole numbers from 2 to {MOST_STEPS}")
    values = span.at(np.linspace(0.0, 1.0, steps))
    different = len(np.unique(values))
    if different < steps:
        raise InputError(
            f"{where}.steps is {steps}, but the range holds {different} different values; give at most so many"
        )
    return Axis(name, kind, tuple(values.tolist()), span, multiple)


def _distinct(where: str, values: Sequence[Any], show: Any) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise InputError(f"{where} lists {show(value)} twice; keep one")
        seen.add(value)
