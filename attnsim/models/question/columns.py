"""Columns of a case table, and foreign names, units and words for them."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from attnsim.models.question.words import KERNEL_OPTIONS

EMPTY = frozenset({"", "nan", "na", "n/a", "none", "null", "<na>", "nat"})
"""Cells without a value, in small letters."""

MEASURED = ("time_s", "tflops", "gbs")
"""Columns with the time of a call, directly or as a rate; the first is used if a table has several."""

SAID = frozenset((*MEASURED, "implementation", "pass", "dtype"))
"""Columns that headings of several cells a row say, once each cell is a row."""

ADDED_COLUMNS = (
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "hbm_read_bytes",
    "hbm_write_bytes",
    "busiest",
    "used_implementation",
    "trust",
    "error",
)
"""Columns that a prediction appends, in order."""

MEASURED_COLUMNS = ("measured_s", "error_percent", "in_range")
"""Columns appended after these if a table has a time: that time in seconds, the prediction's relative error, and
whether the time lies in the prediction's 90 % range."""


NOT_KNOWN = "not known"
"""Reason for not using an unknown column."""


class Known(NamedTuple):
    """Entry of a column in a data file; names, units and words are normalised by :func:`key`."""

    names: frozenset[str]
    units: Mapping[str, float]
    words: Mapping[str, str]
    unmodelled: str = ""
    """The feature that it requests and that is not modelled, with advice for the user."""

    @property
    def needs_unit(self) -> bool:
        """Whether its numbers need a unit."""
        return any(factor != 1.0 for factor in self.units.values())


def key(name: str) -> str:
    """A name normalised for comparison: small letters and digits."""
    return "".join(sign for sign in spelt(name) if sign.isascii() and sign.isalnum())


def spelt(name: str) -> str:
    """A name in small letters, with micro as u."""
    return name.casefold().replace("µ", "u").replace("μ", "u")


@functools.cache
def heading_words() -> dict[str, Any]:
    """Words of headings that are not names, and programs that print tables, ``headings.toml``."""
    return tomllib.loads(Path(__file__).with_name("headings.toml").read_text("utf-8"))


def is_described(heading: str) -> bool:
    """Return whether a heading only describes a row or a run."""
    words = "".join(sign if sign.isalnum() else " " for sign in spelt(heading)).split()
    return not {*words, spelt(heading)}.isdisjoint(heading_words()["described"])


@functools.cache
def known_columns() -> dict[str, Known]:
    """Columns of a case table and foreign names for them, ``columns.toml``.

    Columns only in ``unmodelled.toml`` are known and refused.
    """
    here = Path(__file__)
    files = (here.with_name("unmodelled.toml"), here.with_suffix(".toml"))
    both = [tomllib.loads(file.read_text("utf-8")) for file in files]
    found = {}
    for ours, entry in (both[0] | both[1]).items():
        words = {key(word): meant for meant, others in entry.get("words", {}).items() for word in others}
        units = entry.get("units", {})
        own = [] if ours.rpartition("_")[2] in units else [ours]  # "times" says no seconds
        found[ours] = Known(frozenset(map(key, [*own, *entry["names"]])), units, words, entry.get("do", ""))
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a foreign table.

    Parameters
    ----------
    unit : str
        Unit from its name, or the given one; "" if it needs none.
    factor : float
        Factor that converts its numbers to our unit.
    """

    theirs: str
    ours: str
    unit: str = ""
    factor: float = 1.0

    @property
    def is_name(self) -> bool:
        """Whether its cells are words, not numbers."""
        return self.ours in _WORDS


OPTIONS = ("dropout", "latent", "mask", "operations", "prefix", "selection", "tree", *KERNEL_OPTIONS)
"""Options that change a prediction: columns, or keys of the column `options`. Other keys only describe a row."""

VERSIONS = tuple(
    f"{what}_version" for what in ("torch", "vllm", "sglang", "tensorrt_llm", "flashinfer", "flash_attn", "cudnn")
)
"""Columns with the version of a package."""

_WORDS = (
    *VERSIONS,
    *(
        "framework",
        "gpu",
        "implementation",
        "algorithm",
        "version",
        "pass",
        "dtype",
        "causal",
        "cache",
        "launch",
        "options",
    ),
    *OPTIONS,
)


@dataclass(frozen=True, slots=True)
class Naming:
    """The user's statements about a table's columns.

    Parameters
    ----------
    maps : mapping of str to str
        Foreign column by ours; has priority over the names.
    time_unit : str, optional
        Unit of a column of times whose name has none.
    gpu, implementation : str, optional
        Values for all rows; have priority over the table.
    cells : mapping of str to str
        Values for all rows of columns that the table lacks or leaves empty.
    """

    maps: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    gpu: str | None = None
    implementation: str | None = None
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, str]:
        """Cells given for all rows, by our column."""
        pairs = (("gpu", self.gpu), ("implementation", self.implementation))
        return {**self.cells, **{ours: cell for ours, cell in pairs if cell}}


NOTHING_SAID = Naming()


@dataclass(frozen=True, slots=True)
class Columns:
    """Mapping used to read a table.

    Parameters
    ----------
    columns : tuple of Column
        Columns that are used, in the table's order.
    unused : mapping of str to str
        The others, with the reason.
    given : mapping of str to str
        Cells that are the same in all rows, by our column.
    gathered : tuple of (str, str)
        Headings of the original table whose cells became rows, with their meaning.
    made : frozenset of str
        Columns of `SAID` that the original table lacks.
    """

    columns: tuple[Column, ...] = ()
    unused: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    gathered: tuple[tuple[str, str], ...] = ()
    made: frozenset[str] = frozenset()

    def find(self, ours: str) -> Column | None:
        """The foreign column for ours; None if the table has none."""
        return next((one for one in self.columns if one.ours == ours), None)

    def name_of(self, ours: str) -> str:
        """Name of our column in the table; our own name if the table lacks it."""
        found = self.find(ours)
        return found.theirs if found else ours

    def not_understood(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """Unknown columns that a row fills."""
        unknown = (name for name, why in self.unused.items() if why == NOT_KNOWN)
        return tuple(name for name in unknown if str(row.get(name, "")).strip().casefold() not in EMPTY)

    def cell(self, row: Mapping[str, object], ours: str) -> object:
        """Value of our column in a row; "" if there is none."""
        name = self.name_of(ours)
        return self.given.get(ours) or ("" if name in self.unused else row.get(name, ""))

    @property
    def foreign(self) -> bool:
        """Whether a column has a different name than ours, or is not used."""
        return bool(self.unused or self.gathered) or any(one.theirs != one.ours for one in self.columns)

    @property
    def time(self) -> Column | None:
        """The column with the time of a call."""
        return next(filter(None, map(self.find, MEASURED)), None)

    def table(self) -> list[dict[str, object]]:
        """The mapping as rows, one per column of the table and per given cell: ``column, read_as, unit``."""
        own = [one for one in self.columns if one.theirs not in self.made]
        lines = [{"column": one.theirs, "read_as": one.ours, "unit": one.unit} for one in own]
        lines += [{"column": name, "read_as": what, "unit": ""} for name, what in self.gathered]
        lines += [{"column": name, "read_as": f"not used: {why}", "unit": ""} for name, why in self.unused.items()]
        lines += [{"column": f"(given: {cell})", "read_as": ours, "unit": ""} for ours, cell in self.given.items()]
        return [dict(line) for line in lines]


OWN = Columns()
"""Mapping of a table whose columns have our names."""
