"""The known gaps: their recorded sizes and their present sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.files import read_typed, read_yaml
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.validation.checking.accuracy import family_rows, numbers_without, targets_table
from attnsim.validation.checking.batches import skewed
from attnsim.validation.checking.claims import speedups
from attnsim.validation.checking.hypothetical import Outcome, errors
from attnsim.validation.fitting.held_out import HeldOut
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import errors_of, grouped
from attnsim.validation.measured.groups import usable

BAND = by_hand(0.2, "share by which the size of a known gap may move where its entry does not say otherwise")

SAMPLE = 40
"""Rows of the large tables to measure a size."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A known gap.

    Parameters
    ----------
    id : str
        Short and unique, for references.
    check : mapping
        The table and line that its size comes from.
    wanted, size : float
        Wanted and recorded mean error. For trust: width of the intervals over the needed width. For a number at its
        bound: its prior and its value.
    cause : str
        Cause as far as known, in at most 15 words.
    band : float
        Relative tolerance of the size.
    """

    id: str
    name: str
    check: Mapping[str, Any]
    wanted: float
    size: float
    cause: str
    band: float = BAND

    @property
    def needs_datasets(self) -> bool:
        """True if the gap can only be measured with the extra `datasets`."""
        return bool(self.check["table"] == "serving")

    def verdict(self, now: float) -> str:
        """Return the complaint about the list if the gap is now `now`; "" if there is none."""
        if now > self.size * (1 + self.band):
            return f"{self.name}: grown from {self.size:.3f} to {now:.3f}"
        if now < self.size * (1 - self.band):
            return f"{self.name}: closed from {self.size:.3f} to {now:.3f}; write the new size, or take it out"
        return ""


@lru_cache(maxsize=1)
def deviations() -> tuple[Deviation, ...]:
    """Return the known gaps, in order."""
    return read_typed(Path(__file__).with_name("deviations.yaml"), "known gap", tuple[Deviation, ...])


def sizes(held: Sequence[HeldOut], transfers: Sequence[Outcome]) -> dict[str, float]:
    """Return the present size of every gap that can be measured here, by name.

    Parameters
    ----------
    held : sequence of HeldOut
        From `held_out_predictions`.
    transfers : sequence of Outcome
        From `hypothetical.outcomes`, at least for the published tables.
    """
    targets = {(row["what"], row["split"]): row["mean"] for row in targets_table(held)}
    moved = {
        (row["implementation"], row["pass"], row["view"]): row["mean"]
        for row in errors(transfers)
        if row["newer"] == "h100-sxm5-80gb"
    }
    by_source = grouped(held, lambda pair: (pair.row.case.source, pair.row.record.name))
    table_of: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "error": lambda check: targets[check["what"], check["split"]],
        "hypothetical": lambda check: moved[check["implementation"], check["pass"], check["view"]],
        "source": lambda check: np.mean([one.error for one in by_source[check["source"], check["implementation"]]]),
        "family": _family,
        "batches": lambda check: next(row["mean"] for row in skewed() if row["what"] == check["what"]),
        "bound": _at_bound,
        "trust": _width_over_needed,
        "claim": _claim,
        "serving": _serving,
    }
    known = [one for one in deviations() if aiconfigurator.available() or not one.needs_datasets]
    return {one.name: float(table_of[one.check["table"]](one.check)) for one in known}


def _at_bound(check: Mapping[str, Any]) -> float:
    numbers = calibrations()[check["implementation"], check["architecture"]].numbers
    return float(getattr(numbers, check["number"]))


def _width_over_needed(check: Mapping[str, Any]) -> float:
    where = resources.files("attnsim.models").joinpath("calibrations", "trust.yaml")
    data: Any = read_yaml(Path(str(where)), "trust")
    return float(data["components"][check["component"]]["ratio"])


def _claim(check: Mapping[str, Any]) -> float:
    """Return the relative distance of a speedup from its paper's range."""
    (row,) = (row for row in speedups() if (row["gpu"], row["high"], row["seq"]) == tuple(check["row"]))
    return abs(float(row[f"{check['reading']}_error"]))


def _family(check: Mapping[str, Any]) -> float:
    """Return the mean error of a chapter's kernel over all passes, with something left out of the fit."""
    rows = [row for row in family_rows(check["group"]) if row.record.name == check["implementation"]]
    tasks = [(row, numbers) for row in rows for split, numbers in numbers_without(row) if split == check["left_out"]]
    return float(np.mean(errors_of(tasks)))


def _serving(check: Mapping[str, Any]) -> float:
    which = {name: check[name] for name in ("gpu", "implementation", "passes", "windowed")}
    rows = aiconfigurator.rows(**which, dtype="bf16", sample=SAMPLE)
    return float(np.mean(errors_of([(row, choose(row.record, row.gpu).numbers) for row in rows if usable(row)])))


def markdown() -> str:
    """Return the list as the table of DEVIATIONS.md."""
    lines = ["| id | gap | now | wanted | cause |", "|---|---|---:|---:|---|"]
    for one in deviations():
        size, wanted = (f"{100 * value:.1f} %" for value in (one.size, one.wanted))
        if one.check["table"] == "trust":
            size, wanted = f"{one.size:.2f}", f"{one.wanted:.2f}"
        if one.check["table"] == "bound":
            size, wanted = f"{one.size:g}", "inside"
        star = " *" if one.needs_datasets else ""
        lines.append(f"| {one.id}{star} | {one.name} | {size} | {wanted} | {one.cause} |")
    return "\n".join(lines) + "\n"
