"""Points of a study: one as a question, or all as columns of figures and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api.asking import Calibrated, Question, ask, read_conditions
from attnsim.arrays import Bools, Floats, Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import IN_PROPORTION, LIMITS, SLOWEST_HZ, Gpu
from attnsim.models.hardware.sections import FIELDS, changeable_alone
from attnsim.models.question.lengths import read_lengths
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.studies.study import COUNTS, Column, Points, Values

RATES = tuple(key for key, field in FIELDS.items() if field.read == "rate")
"""Figures that closed forms read."""

TILE_FREE = tuple(key for key, field in FIELDS.items() if field.read != "limit")
"""Figures that no tile depends on. Points that differ in other figures form separate groups, and each group's
tile is determined once."""

Changes = tuple[tuple[str, float, bool], ...]
"""Tuples (key, value in SI units or factor, True for a factor), in the order of the study."""


@lru_cache(maxsize=4096)
def changed(gpu: Gpu, changes: Changes) -> Gpu:
    """Return a GPU with these changes applied in order.

    Raises
    ------
    InputError
        If a figure leaves its range or contradicts another.
    """
    for key, value, multiple in changes:
        if multiple and not gpu.get(key):
            raise InputError(f"{key} is {value:g}x, but the present value is 0; give a value: {FIELDS[key].allowed()}")
        changeable_alone(key)
        new = value * gpu.get(key) if multiple else value
        gpu = gpu.replace(key, float(round(new)) if multiple and FIELDS[key].integer else new)
    return gpu


@dataclass(frozen=True, slots=True)
class Point:
    """The question of one point, with its GPU.

    Parameters
    ----------
    base : Gpu
        The unchanged GPU.
    changes : tuple
        Changed figures, see `changed`.
    fields : dict
        Fields of the workload that the study sets.
    tile : str
        "shipped", "retuned" or rows x keys.
    kernel : LiftedCall, optional
        A kernel file, which takes the place of algorithm and workload.
    """

    base: Gpu
    changes: Changes
    fields: dict[str, Any]
    algorithm: str = ""
    implementation: str | None = None
    tile: str = "shipped"
    kernel: LiftedCall | None = None

    def gpu(self) -> Gpu:
        """Return the GPU with its changes."""
        return changed(self.base, self.changes)

    def workload(self) -> Workload:
        """Return the workload; the default of `seq_q` is 1 for decode, else `seq_kv`."""
        fields = self.fields
        if fields.get("lengths"):
            lengths = read_lengths(fields["lengths"], fields.get("passes") == "decode")
            return Workload(**{**fields, "lengths": lengths})
        if not fields.get("seq_q"):
            fields = {**fields, "seq_q": 1 if fields.get("passes") == "decode" else fields["seq_kv"]}
        return Workload(**fields)

    def tiles(self) -> dict[str, Any]:
        """Return the tile as the arguments `tiles` and `tile` of :func:`attnsim.api.predict`."""
        named = self.tile in ("shipped", "retuned")
        return {"tiles": self.tile} if named else {"tile": self.tile}

    def ask(self, cache: str, launch: str, calibration: Calibrated = None) -> Question:
        """Return the question under these conditions."""
        conditions = read_conditions(**self.tiles(), cache=cache, launch=launch, calibration=calibration)
        return ask(self.workload(), self.gpu(), self.algorithm, self.implementation, conditions)


def point(points: Points, row: int) -> Point:
    """Return one of the points."""
    found: dict[str, Any] = {}
    changes = []
    for column in points.columns.values():
        value, axis = column.values[int(column.codes[row])], column.axis
        if axis.kind == "change":
            changes.append((axis.name, float(value), axis.multiple))
        elif axis.kind == "shape":
            found |= value
        else:
            found[axis.name] = int(value) if axis.name in COUNTS else value
    named = {name: found.pop(name) for name in ("algorithm", "implementation", "tile", "kernel") if name in found}
    return Point(found.pop("gpu"), tuple(changes), found, **named)


def field_values(points: Points, name: str, default: Any) -> tuple[Values, Ints]:
    """Return the values of a workload's field and the code of each point, from an axis or from the shapes."""
    if name in points.columns:
        return points.columns[name].values, points.columns[name].codes
    shape = points.columns.get("shape")
    if shape is not None and name in shape.values[0]:
        return [fields[name] for fields in shape.values], shape.codes
    return [default], np.zeros(points.count, dtype=np.int64)


def counts(points: Points) -> dict[str, Ints]:
    """Return the sizes of every point's workload as columns, including the defaults of `Workload`."""
    found: dict[str, Ints] = {}
    for name in COUNTS:
        values, codes = field_values(points, name, 0)
        found[name] = np.asarray(values, dtype=np.int64)[codes]
    passes, codes = field_values(points, "passes", "fwd")
    lengths, which = field_values(points, "lengths", "")
    if any(lengths):
        found |= _sizes(lengths, which, np.array([one == "decode" for one in passes])[codes])
    queries = np.where(np.array([one == "decode" for one in passes])[codes], 1, found["seq_kv"])
    for name, other in (
        ("seq_q", queries),
        ("heads_kv", found["heads_q"]),
        ("seq_kv", found["seq_q"]),
        ("head_dim_v", found["head_dim"]),
    ):
        found[name] = np.where(found[name] == 0, other, found[name])
    return found


def _sizes(lengths: Values, which: Ints, decode: NDArray[np.bool_]) -> dict[str, Ints]:
    """Return batch and longest sequences of every point's lengths; drawn lengths depend on the pass."""
    table = np.array(
        [
            [
                [sum(one.times for one in batch), *(max(one[axis] for one in batch) for axis in (0, 1))]
                for batch in (read_lengths(str(text), in_decode) for in_decode in (False, True))
            ]
            for text in lengths
        ],
        dtype=np.int64,
    )
    chosen = table[which, decode.astype(np.int64)]
    return dict(zip(("batch", "seq_q", "seq_kv"), chosen.T, strict=True))


def figures(points: Points) -> dict[str, Floats]:
    """Return the figures of `RATES` and the changed figures at each point: `Gpu.replace` on arrays.

    Returns
    -------
    dict of str to ndarray, shape [points]
    """
    gpus, changes = points.columns["gpu"], _changes(points)
    keys = dict.fromkeys((*RATES, *changes))
    found = {key: np.array([gpu.get(key) for gpu in gpus.values])[gpus.codes] for key in keys}
    # A figure that was given stays, also one that a GPU's file has changed.
    own = [{change.key for change in gpu.changes} for gpu in gpus.values]
    given = {key: np.array([key in of for of in own])[gpus.codes] for key in keys}
    for key, column in changes.items():
        values = column.array().astype(np.float64)
        new = values * found[key] if column.axis.multiple else values
        if FIELDS[key].integer:
            new = np.round(new)
        moved = new != found[key]
        for other, follows in _followers(key, moved, given):
            found[other] = np.where(follows, np.round(found[other] * new / found[key]), found[other])
        found[key], given[key] = new, given[key] | moved
    return found


def _followers(key: str, moved: Bools, given: Mapping[str, Bools]) -> Iterator[tuple[str, Bools]]:
    """Yield the figures that keep their ratio to `key`, and the points where they follow it."""
    for other in IN_PROPORTION.get(key, ()):
        follows = moved & ~given[other]
        yield other, follows
        yield from _followers(other, follows, given)


def out_of_range(points: Points, found: Mapping[str, Floats]) -> NDArray[np.bool_]:
    """Return the points where a changed figure leaves its allowed range."""
    wrong, changes = np.zeros(points.count, dtype=bool), _changes(points)
    for key in changes.keys() & set(RATES):
        wrong |= ~((FIELDS[key].low <= found[key]) & (found[key] <= FIELDS[key].high))
        wrong |= changes[key].axis.multiple & (found[key] == 0)
    share = found["power.limit"] / found["power.tdp"]
    wrong |= ~((LIMITS[0] <= share) & (share <= LIMITS[1]))
    if "clock.sustained" in changes:
        wrong |= (found["clock.sustained"] > 0) & (found["clock.sustained"] < SLOWEST_HZ)
    return wrong


def _changes(points: Points) -> dict[str, Column]:
    return {name: column for name, column in points.columns.items() if column.axis.kind == "change"}
