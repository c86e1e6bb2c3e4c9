"""A GPU from its figures by key, what they lack filled in by rule: the same for files and for an attached GPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attnsim.models.errors import InputError
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.changes import Change
from attnsim.models.hardware.figure import Figure, fields_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.rules import Known, fill
from attnsim.models.hardware.sections import FIELDS, SECTIONS


def with_rules(capability: int, memory: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures, and those that rules give for the keys they lack.

    Parameters
    ----------
    capability : int
        90 for compute capability 9.0.
    memory : str
        Kind of memory, of :data:`attnsim.models.hardware.rules.MEMORY_KINDS`.
    figures : mapping of str to Figure
        By key, ``hbm.bandwidth``.

    Raises
    ------
    InputError
        When a rule's value is out of range.
    """
    found = dict(figures)
    known = Known(capability, memory, {key: figure.value for key, figure in figures.items()})
    for key, (value, rule) in fill(known).items():
        field = FIELDS[key]
        try:
            field.check(value, field.show(value))
        except InputError as error:
            raise InputError(f"{key} is not given and by {rule} {error}") from None
        found[key] = Figure(value, field.unit, "assumed", rule)
    return found


def gpu_of_figures(
    gpu_id: str,
    name: str,
    compute_capability: str,
    figures: Mapping[str, Figure],
    *,
    changes: tuple[Change, ...] = (),
    base_id: str = "",
) -> Gpu:
    """The record of a GPU whose every figure is given."""
    return Gpu(
        id=gpu_id,
        name=name,
        architecture=architecture_of(int(compute_capability.replace(".", ""))).name,
        compute_capability=compute_capability,
        changes=changes,
        base_id=base_id,
        provenance=MappingProxyType({key: figures[key] for key in FIELDS}),
        **{section: _section(section, kind, figures) for section, kind in SECTIONS.items()},
    )


def _section(name: str, kind: type, figures: Mapping[str, Figure]) -> Any:
    return kind(**{one.attribute: one.stored(figures[f"{name}.{one.name}"].value) for one in fields_of(kind).values()})
