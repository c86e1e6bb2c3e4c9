"""The figures of a report's GPUs, with their kinds and sources: those that differ, and the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.reports.answers import labels
from attnsim.studies.points import RATES


@dataclass(frozen=True, slots=True)
class FigureLine:
    """A figure as some of the GPUs have it.

    Parameters
    ----------
    figure : str
        Its key.
    gpus : tuple of str
    value, kind, source : str
    """

    figure: str
    gpus: tuple[str, ...]
    value: str
    kind: str
    source: str


def figure_lines(gpus: Sequence[Gpu]) -> tuple[list[FigureLine], list[FigureLine]]:
    """The figures worth a look, and the others.

    Those that differ between the GPUs; of one GPU alone those that its times are computed from.

    Parameters
    ----------
    gpus : sequence of Gpu
        Unchanged ones and those made of them.
    """
    first: list[FigureLine] = []
    rest: list[FigureLine] = []
    names = labels(gpus)
    for key in FIELDS:
        values = {gpu.get(key) for gpu in gpus}
        differs = len(values) > 1 if len(gpus) > 1 else key in RATES
        (first if differs else rest).extend(_lines(key, names))
    return first, rest


def _lines(key: str, names: Mapping[Gpu, str]) -> list[FigureLine]:
    """One line for all GPUs that agree in value, kind and source; a changed one goes with the unchanged one."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for gpu, name in names.items():
        figure = gpu.provenance.get(key)
        kind, source = (figure.kind, figure.source) if figure else ("assumed", "not given")
        value = FIELDS[key].show(gpu.get(key))
        owners = found.setdefault((value, kind, source), [])
        if not (gpu.changes and gpu.id in owners):
            owners.append(name)
    return [FigureLine(key, tuple(owners), *about) for about, owners in found.items()]
