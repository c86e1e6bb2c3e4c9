"""Committed calibrations: fitted numbers, the measurements they were fitted on, and their errors.

The files are written by `attnsim fit` and never by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from attnsim.files import read_written
from attnsim.models.calibrations.numbers import ImplementationNumbers, Numbers
from attnsim.models.implementations.choose import find_implementation

Fold = tuple[str, str]
"""Group left out of a fit: the split ("band", "head_dim") and the group in it."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors ``|predicted / measured - 1|`` over rows that the numbers were not fitted on."""

    rows: int
    mean: float
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True)
class Domain:
    """Shapes that a calibration was checked on: closed ranges of lengths and rows, sets for other fields."""

    gpus: tuple[str, ...]
    passes: tuple[str, ...]
    head_dims: tuple[int, ...]
    seq_q: tuple[int, int]
    seq_kv: tuple[int, int]
    rows: tuple[int, int]
    causal: tuple[bool, ...]
    windowed: bool
    dropout: bool


@dataclass(frozen=True, slots=True)
class Alternative:
    """Other numbers that predict the rows of a fit nearly as well.

    Parameters
    ----------
    loss : float
        Loss of the fit, over that of the calibration's own numbers.
    implementation, rates : mapping of str to float
        The numbers that differ. Rates are shares of a GPU's figures, and also apply to other cards.
    """

    loss: float
    implementation: Mapping[str, float]
    rates: Mapping[str, float]

    def of(self, numbers: Numbers) -> Numbers:
        """Replace the numbers that differ."""
        moved: dict[str, Any] = {**self.rates}
        return replace(numbers, implementation=replace(numbers.implementation, **self.implementation), **moved)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted numbers of an implementation on an architecture, with their measurements and errors.

    Parameters
    ----------
    gpu : str
        GPU of most of the rows.
    fitted : tuple of str
        Numbers that the rows determine; the others are at their priors or those of another calibration.
    folds : mapping of (str, str) to Numbers
        Numbers fitted without one group of rows, by split and group: they give the held-out errors.
    ranges : mapping of str to (float, float)
        95 % confidence interval of each fitted number.
    sources : tuple of str
        Keys of the measurements.
    spread : mapping of str to float
        Mean size of log(measured / predicted) by the split left out ("band", "head_dim"), and also by pass if there are
        several: "band, decode".
    versions : tuple of str
        Versions that ran, "vllm 0.24.0", as far as the measurements' sources state them.
    undetermined : tuple of str
        Numbers that were free but not determined by the rows: they are at their priors.
    alternatives : tuple of Alternative
        Numbers with a loss at most a tenth above the best, the farthest from it and from each other.
    """

    implementation: str
    architecture: str
    gpu: str
    numbers: ImplementationNumbers
    fitted: tuple[str, ...]
    held_out: ErrorSummary
    domain: Domain
    folds: Mapping[Fold, Numbers]
    ranges: Mapping[str, tuple[float, float]]
    sources: tuple[str, ...]
    spread: Mapping[str, float] = field(default_factory=dict)
    versions: tuple[str, ...] = ()
    undetermined: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    @property
    def counted(self) -> Numbers:
        """Its numbers, with the instruction counts that belong to them."""
        return Numbers(self.numbers, counts=find_implementation(self.implementation).counts)


class _OnDemand(Mapping[tuple[str, str], Calibration]):
    """Calibrations by (implementation, architecture), as their files are named; each file is read on first access.

    There are many, and a question needs few.
    """

    def __init__(self, files: Mapping[str, Traversable]) -> None:
        self._files = {_key(name): file for name, file in files.items()}
        self._read: dict[tuple[str, str], Calibration] = {}

    def __getitem__(self, key: tuple[str, str]) -> Calibration:
        if key not in self._read:
            self._read[key] = _read_calibration(read_written(self._files[key]))
        return self._read[key]

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@lru_cache(maxsize=1)
def calibrations() -> Mapping[tuple[str, str], Calibration]:
    """The committed calibrations by (implementation, architecture)."""
    return _OnDemand(_files("implementations"))


def _files(folder: str) -> dict[str, Traversable]:
    """The files of a folder by name, without their ending."""
    where = resources.files("attnsim.models").joinpath("calibrations", folder)
    found = where.iterdir() if where.is_dir() else iter(())
    named = {entry.name.removesuffix(".yaml"): entry for entry in found if entry.name.endswith(".yaml")}
    return dict(sorted(named.items()))


def _key(name: str) -> tuple[str, str]:
    """Implementation and architecture of a file by its name, ``flash-attn.2.hopper``."""
    implementation, _, architecture = name.rpartition(".")
    return implementation, architecture


def _read_calibration(data: dict[str, Any]) -> Calibration:
    domain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data["domain"].items()
    }
    numbers = data["numbers"]
    record = find_implementation(data["implementation"])
    return Calibration(
        implementation=record.name,
        architecture=data["architecture"],
        gpu=data["gpu"],
        numbers=ImplementationNumbers(**{k: v["value"] for k, v in numbers.items()}),
        fitted=tuple(k for k, v in numbers.items() if v["fitted"]),
        held_out=ErrorSummary(**data["held_out"]),
        domain=Domain(**domain),
        folds={
            (split, group): Numbers(ImplementationNumbers(**fold), counts=record.counts)
            for split, folds in data["folds"].items()
            for group, fold in folds.items()
        },
        ranges={k: (v["low"], v["high"]) for k, v in numbers.items() if "low" in v},
        sources=tuple(data["sources"]),
        spread={split: found["spread"] for split, found in data["residuals"].items()}
        | {
            f"{split}, {passes}": spread
            for split, found in data["residuals"].items()
            for passes, spread in found.get("passes", {}).items()
        },
        versions=tuple(data.get("versions", ())),
        undetermined=tuple(k for k, v in numbers.items() if v.get("open")),
        alternatives=tuple(Alternative(**found) for found in data.get("alternatives", ())),
    )
