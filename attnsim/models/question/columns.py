"""The columns of a case table, and the names, units and words that other people have for them."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from attnsim.models.question.words import KERNEL_OPTIONS

EMPTY = frozenset({"", "nan", "na", "n/a", "none", "null", "<na>", "nat"})
"""What a cell without a value says, in small letters."""

MEASURED = ("time_s", "tflops", "gbs")
"""Columns that say how long a call took; the first counts where a table has both."""

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
"""Columns appended after these where a table has a time: that in seconds, how far the prediction is above it, and
whether it lies in the prediction's 90 % range."""


NOT_KNOWN = "not known"
"""Why a column is not used that nobody knows."""


class Known(NamedTuple):
    """What a data file says of a column; names, units and words as :func:`key` gives them."""

    names: frozenset[str]
    units: Mapping[str, float]
    words: Mapping[str, str]
    unmodelled: str = ""
    """What it asks for that is not modelled, and what a person can do."""

    @property
    def needs_unit(self) -> bool:
        """Whether its numbers mean nothing without one."""
        return any(factor != 1.0 for factor in self.units.values())


def key(name: str) -> str:
    """A name as it is compared: small letters and digits."""
    return "".join(sign for sign in spelt(name) if sign.isascii() and sign.isalnum())


def spelt(name: str) -> str:
    """A name in small letters, micro as u."""
    return name.casefold().replace("µ", "u").replace("μ", "u")


@functools.cache
def heading_words() -> dict[str, Any]:
    """Words of headings that are no names, and programs that print tables, ``headings.toml``."""
    return tomllib.loads(Path(__file__).with_name("headings.toml").read_text("utf-8"))


def is_described(heading: str) -> bool:
    """Whether a heading only describes a row or a run."""
    words = "".join(sign if sign.isalnum() else " " for sign in spelt(heading)).split()
    return not {*words, spelt(heading)}.isdisjoint(heading_words()["described"])


@functools.cache
def known_columns() -> dict[str, Known]:
    """The columns of a case table and the names that others have for them, ``columns.toml``.

    What it lacks of ``unmodelled.toml`` is known and refused.
    """
    here = Path(__file__)
    files = (here.with_name("unmodelled.toml"), here.with_suffix(".toml"))
    both = [tomllib.loads(file.read_text("utf-8")) for file in files]
    found = {}
    for ours, said in (both[0] | both[1]).items():
        words = {key(word): meant for meant, others in said.get("words", {}).items() for word in others}
        units = said.get("units", {})
        own = [] if ours.rpartition("_")[2] in units else [ours]  # "times" says no seconds
        found[ours] = Known(frozenset(map(key, [*own, *said["names"]])), units, words, said.get("do", ""))
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """A column of somebody's table.

    Parameters
    ----------
    unit : str
        As its name says it, or as it was given; "" where it needs none.
    factor : float
        What its numbers are multiplied with to be in our unit.
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
"""What changes a prediction and is a column of its own or a key of `options`, whose other keys only describe a row."""

VERSIONS = tuple(
    f"{what}_version" for what in ("torch", "vllm", "sglang", "tensorrt_llm", "flashinfer", "flash_attn", "cudnn")
)
"""Versions with what they are of."""

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
    """What a person says of a table's columns.

    Parameters
    ----------
    maps : mapping of str to str
        Their column by ours, over what the names tell.
    time_unit : str, optional
        Of a column of times whose name has none.
    gpu, implementation : str, optional
        Of all rows, whatever the table says.
    cells : mapping of str to str
        What all rows say of our columns that the table leaves empty or does not have.
    """

    maps: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    gpu: str | None = None
    implementation: str | None = None
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, str]:
        """Cells of all rows, by our column."""
        pairs = (("gpu", self.gpu), ("implementation", self.implementation))
        return {**self.cells, **{ours: cell for ours, cell in pairs if cell}}


NOTHING_SAID = Naming()


@dataclass(frozen=True, slots=True)
class Columns:
    """How a table is read.

    Parameters
    ----------
    columns : tuple of Column
        Those that count, in the table's order.
    unused : mapping of str to str
        The others, and why.
    given : mapping of str to str
        Cells that are the same in all rows, by our column.
    gathered : tuple of (str, str)
        Headings of the table as it was given whose cells are rows of their own, and what each is.
    """

    columns: tuple[Column, ...] = ()
    unused: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    gathered: tuple[tuple[str, str], ...] = ()

    def find(self, ours: str) -> Column | None:
        """Their column for ours; None where the table has none."""
        return next((one for one in self.columns if one.ours == ours), None)

    def name_of(self, ours: str) -> str:
        """What they call our column; our name where they have none."""
        found = self.find(ours)
        return found.theirs if found else ours

    def not_understood(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """Columns of which nobody knows what they ask, and which a row fills."""
        unknown = (name for name, why in self.unused.items() if why == NOT_KNOWN)
        return tuple(name for name in unknown if str(row.get(name, "")).strip().casefold() not in EMPTY)

    def cell(self, row: Mapping[str, object], ours: str) -> object:
        """What a row says of our column; "" where it says nothing."""
        name = self.name_of(ours)
        return self.given.get(ours) or ("" if name in self.unused else row.get(name, ""))

    @property
    def foreign(self) -> bool:
        """Whether a column has another name than ours, or is not used."""
        return bool(self.unused or self.gathered) or any(one.theirs != one.ours for one in self.columns)

    @property
    def time(self) -> Column | None:
        """The column that says how long a call took."""
        return next(filter(None, map(self.find, MEASURED)), None)

    def table(self) -> list[dict[str, object]]:
        """The mapping, a line for each column of the table and each thing given: ``column, read_as, unit``."""
        lines = [{"column": one.theirs, "read_as": one.ours, "unit": one.unit} for one in self.columns]
        lines += [{"column": name, "read_as": what, "unit": ""} for name, what in self.gathered]
        lines += [{"column": name, "read_as": f"not used: {why}", "unit": ""} for name, why in self.unused.items()]
        lines += [{"column": f"(given: {cell})", "read_as": ours, "unit": ""} for ours, cell in self.given.items()]
        return [dict(line) for line in lines]


OWN = Columns()
"""Of a table whose columns have our names."""
