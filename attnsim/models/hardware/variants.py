"""Cards that differ from a known GPU in a few figures, one line each of ``variants.csv``; and inherited figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.figure import Figure, Kind
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.tables import read_csv

_RATES = ("tensor.bf16", "tensor.tf32", "tensor.fp8")
"""Figures derived with ``tensor.fp16`` if that is stated: the ratios are the architecture's."""
_WITH = {"tensor.fp16": _RATES, "clock.boost": ("clock.tensor", "clock.base", "clock.free")}
"""Figures that keep their ratio to a figure stated in a line, unless the line states them too."""
_DERIVED = ("tensor.fp16", "clock.tensor")
_RECALLED = "~"


@dataclass(frozen=True, slots=True)
class Variant:
    """A card of the table.

    Parameters
    ----------
    extends : str
        Id of the file, or of the variant, that it differs from.
    capability : str
        "12.1"; "" if it is that of the GPU it extends.
    figures : mapping of str to Figure
        Figures stated in its line.
    """

    id: str
    name: str
    extends: str
    capability: str
    figures: Mapping[str, Figure]

    def of(self, base: Gpu) -> Gpu:
        """The card, made from the GPU that it extends."""
        given = {key: figure.value for key, figure in self.figures.items()}
        for key, others in _WITH.items():
            ratio = given.get(key, base.get(key)) / base.get(key)
            given = {other: round(base.get(other) * ratio, 3) for other in others if ratio != 1} | given
        stated = dict(self.figures)
        if rate := stated.get("tensor.fp16"):
            stated |= {key: dataclasses.replace(rate, value=given.get(key, base.get(key))) for key in _RATES}
        gpu = base
        for key, value in given.items():
            if value != gpu.get(key):
                gpu = gpu.with_change(key, value, keep=given)
        return dataclasses.replace(
            gpu,
            id=self.id,
            name=self.name,
            base_id=self.id,
            changes=(),
            compute_capability=self.capability or gpu.compute_capability,
            provenance=MappingProxyType({**inherited(gpu, base), **stated}),
        )


def inherited(gpu: Gpu, base: Gpu) -> dict[str, Figure]:
    """Figures of a GPU made from another one: assumed, except the limits of its compute capability."""
    limits = {one.key for one in architecture_of(base.compute_capability_number).figures if one.kind == "datasheet"}
    found = {}
    for key, figure in base.provenance.items():
        value, source = gpu.get(key), f"as on {base.id}: {figure.source}"
        if value != figure.value:
            source = f"in proportion to {base.id}'s {FIELDS[key].show(figure.value)}: {figure.source}"
        kept = key in limits and figure.kind == "datasheet"
        found[key] = figure if kept else Figure(value, figure.unit, "assumed", source)
    return found


def _variant(row: Mapping[str, str]) -> Variant:
    figures = {}
    for key, field in FIELDS.items():
        if cell := row.get(key, ""):
            kind: Kind = "assumed" if cell.startswith(_RECALLED) else "derived" if key in _DERIVED else "datasheet"
            figures[key] = Figure(field.parse(cell.removeprefix(_RECALLED)), field.unit, kind, row["source"])
    return Variant(row["id"], row["name"], row["extends"], row["capability"], figures)


VARIANTS = {row["id"]: _variant(row) for row in read_csv(Path(__file__).with_name("variants.csv"))}
"""Variants by id."""
