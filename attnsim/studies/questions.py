"""From a point of a study to the question it asks: a workload, a GPU, an algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.models.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.studies.axes import COUNTS
from attnsim.studies.figures import Changes, changed
from attnsim.studies.study import Points


@dataclass(frozen=True, slots=True)
class Question:
    """What one point asks.

    Parameters
    ----------
    gpu : Gpu
        The base, unchanged.
    changes : tuple
        Figures changed, see `attnsim.studies.figures.changed`.
    algorithm : str
    implementation : str or None
    tile : str
        "shipped", "retuned" or rows x keys.
    fields : dict
        Fields of the workload that the study gives.
    """

    gpu: Gpu
    changes: Changes
    algorithm: str
    implementation: str | None
    tile: str
    fields: dict[str, Any]

    def machine(self) -> Gpu:
        """The GPU with its changes.

        Raises
        ------
        InputError
        """
        return changed(self.gpu, self.changes)

    def workload(self) -> Workload:
        """The workload.

        Raises
        ------
        InputError
        """
        return Workload(**with_queries(self.fields))


def with_queries(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with `seq_q` where it may be left out: one query a sequence of a decode call, else as many as keys."""
    if fields.get("seq_q"):
        return fields
    return {**fields, "seq_q": 1 if fields.get("passes") == "decode" else fields["seq_kv"]}


def question(points: Points, row: int) -> Question:
    """The question of one point."""
    found: dict[str, Any] = {}
    changes = []
    for column in points.columns.values():
        value = column.values[int(column.codes[row])]
        axis = column.axis
        if axis.kind == "change":
            changes.append((axis.name, float(value), axis.multiple))
        elif axis.kind == "shape":
            found |= value
        elif axis.kind == "workload":
            found[axis.name] = int(value) if axis.name in COUNTS else value
        else:
            found[axis.name] = value
    gpu, algorithm = found.pop("gpu"), found.pop("algorithm")
    implementation, tile = found.pop("implementation", None), found.pop("tile")
    return Question(gpu, tuple(changes), algorithm, implementation, tile, found)


def counts(points: Points) -> dict[str, Ints]:
    """The sizes of every point's workload, a column each, with what `Workload` fills in."""
    shape = points.columns.get("shape")
    found: dict[str, Ints] = {}
    for name in COUNTS:
        if name in points.columns:
            found[name] = points.columns[name].array().astype(np.int64)
        elif shape is not None and name in shape.values[0]:
            found[name] = np.array([fields[name] for fields in shape.values], dtype=np.int64)[shape.codes]
        else:
            found[name] = np.zeros(points.count, dtype=np.int64)
    decodes = _equal_to(points, "passes", "decode")
    missing = found["seq_q"] == 0
    found["seq_q"] = np.where(missing, np.where(decodes, 1, found["seq_kv"]), found["seq_q"])
    for name, other in (("heads_kv", "heads_q"), ("seq_kv", "seq_q"), ("head_dim_v", "head_dim")):
        found[name] = np.where(found[name] == 0, found[other], found[name])
    return found


def field_values(points: Points, name: str, default: Any) -> tuple[list[Any], NDArray[np.int64]]:
    """Values of a field of the workload and the code of each point, whether an axis or the shapes give it."""
    if name in points.columns:
        column = points.columns[name]
        return list(column.values), column.codes
    shape = points.columns.get("shape")
    if shape is not None and name in shape.values[0]:
        return [fields[name] for fields in shape.values], shape.codes
    return [default], np.zeros(points.count, dtype=np.int64)


def _equal_to(points: Points, name: str, value: object) -> NDArray[np.bool_]:
    values, codes = field_values(points, name, None)
    return np.array([item == value for item in values])[codes]
