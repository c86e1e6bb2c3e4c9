"""Columns of a case table, and foreign names, units and words for them.

Mapping of a foreign table's columns to those of a case table by name, ignoring case and blanks, and by unit.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest, shown
from attnsim.models.question.words import KERNEL_OPTIONS

if TYPE_CHECKING:
    import pandas as pd

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
        return self.ours in (*VERSIONS, *OPTIONS, *heading_words()["named"])


OPTIONS = ("dropout", "latent", "mask", "operations", "prefix", "selection", "tree", *KERNEL_OPTIONS)
"""Options that change a prediction: columns, or keys of the column `options`. Other keys only describe a row."""

VERSIONS = tuple(
    f"{what}_version" for what in ("torch", "vllm", "sglang", "tensorrt_llm", "flashinfer", "flash_attn", "cudnn")
)
"""Columns with the version of a package."""


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


REQUIRED_COLUMNS = ("gpu", "batch", "heads_q", "seq_q", "head_dim")
LENGTHS_SAY = ("batch", "seq_q")
"""Columns that are not needed if the table has the lengths of each sequence."""
_INSTEAD = {"seq_q": "seq"}
"""Columns that may replace another."""
_DERIVED_FROM = {"seq_q": ("seq", "seq_kv"), "head_dim": ("embed_dim",)}
"""Columns from which a row may derive a missing one."""

_ANSWERED = (*ADDED_COLUMNS, *MEASURED_COLUMNS)
_BRACKETS = re.compile(r"(.*?)[\[(]([^\])]*)[\])]\s*", re.DOTALL)
TYPICAL_S = by_hand(
    1e-3, "time of a call in seconds, to which the unit that is offered for times without one leads nearest"
)


def read_columns(frame: pd.DataFrame, naming: Naming = NOTHING_SAID) -> Columns:
    """Map a table's columns.

    Raises
    ------
    InputError
        One line: a column with two meanings, two columns with one meaning, an unknown unit, or a missing column.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"the table is {shown(frame)}; give a pandas DataFrame, such as pandas.DataFrame(rows)")
    names = [str(name) for name in frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"column {shown(repeated[0])} appears more than once; keep one")
    _check_maps(naming.maps, names)
    naming = _with_rivals(naming, names)
    claims: dict[str, list[Column]] = {ours: [_mapped(ours, theirs)] for ours, theirs in naming.maps.items()}
    for name in names:
        for one in _read(name) if name not in naming.maps.values() else ():
            claims.setdefault(one.ours, []).append(one)
    if "implementation" not in {*claims, *naming.given}:  # a time for each, where no column says whose
        claims.pop(VERSIONS[0], None)
    for ours, found in claims.items():
        claims[ours] = found[:1] if ours in naming.maps else [one for one in found if one.theirs == ours] or found
    reasons = {one.theirs: why for one, why in _set_aside(claims, naming, frame)}
    columns = [one for ours, found in claims.items() for one in found if one.theirs not in reasons]
    _check_claims(columns)
    columns = sorted((_with_unit(one, naming, frame) for one in columns), key=lambda one: names.index(one.theirs))
    _check_time_unit(columns, naming)
    used = {one.theirs for one in columns}
    left = {name: reasons.get(name) or _why_not(name, claims) for name in names if name not in used}
    _check_needed({one.ours for one in columns} | naming.given.keys(), list(left))
    return Columns(tuple(columns), left, naming.given)


def meanings(name: str) -> list[str]:
    """Columns of ours that a name can mean."""
    return [one.ours for one in _read(name)]


def given_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Cells given for all rows, by our column; keys are our names or foreign ones, with a unit if needed."""
    found: dict[str, str] = {}
    for name, cell in cells.items():
        meant = _read(name)
        if len(meant) != 1 or meant[0].ours in (*MEASURED, "unit"):
            hint = nearest(name, [ours for ours in known_columns() if ours not in MEASURED])
            raise InputError(f"--set-column {name}={cell}: {shown(name)} is no column that is set; {hint}")
        ours, factor = meant[0].ours, meant[0].factor
        if ours in found:
            raise InputError(f"--set-column gives {ours} twice; keep one")
        found[ours] = cell if factor == 1.0 else repr(_number(cell) * factor)
    return found


def _with_rivals(naming: Naming, names: Sequence[str]) -> Naming:
    """Treat a single length beside the number of queries as that of the keys: vLLM's seq_len and query_len."""
    meant = {ours: [name for name in names if ours in meanings(name)] for ours in ("seq", "seq_q", "seq_kv")}
    alone = {"seq", "seq_q", "seq_kv"}.isdisjoint(naming.maps) and not meant["seq_kv"] and len(meant["seq"]) == 1
    if not (alone and (meant["seq_q"] or "seq_q" in naming.given)):
        return naming
    return replace(naming, maps={**naming.maps, "seq_kv": meant["seq"][0]})


def _read(name: str) -> list[Column]:
    """Meanings of a name: none, one column of ours, or several."""
    own = name.strip().casefold()
    if own in known_columns():
        return [Column(name, own, *_own_unit(own))]
    whole = key(name)
    found = [Column(name, ours) for ours, known in known_columns().items() if whole and whole in known.names]
    if found:
        return found
    parted = [
        Column(name, ours, unit, known.units[unit])
        for ours, known in known_columns().items()
        for rest, unit in _parts(name, known.units)
        if rest in known.names
    ]
    return parted[:1] if len({one.ours for one in parted}) == 1 else parted or list(_bracketed(name))


def _own_unit(ours: str) -> tuple[str, float]:
    """Unit and factor in the name of one of our columns, ``time_s``."""
    units = known_columns()[ours].units
    return next(((unit, units[unit]) for unit in units if ours == unit or ours.endswith(f"_{unit}")), ("", 1.0))


def _parts(name: str, units: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Possible splits of a name into the rest and a unit: one word, two ("TFLOP/s"), or the end of one ("timeMs")."""
    words = re.findall(r"[a-z0-9]+", spelt(name))
    for many in (1, 2):
        for at in range(len(words) - many + 1):
            unit = "".join(words[at : at + many])
            if unit in units and (len(unit) > 1 or at + many == len(words)):
                yield "".join(words[:at] + words[at + many :]), unit
    for unit in units:
        if len(unit) > 1 and words and words[-1].endswith(unit) and words[-1] != unit:
            yield "".join(words).removesuffix(unit), unit


def _bracketed(name: str) -> Iterator[Column]:
    """Known names with something else in brackets: another of the column's names, or an unknown unit."""
    match = _BRACKETS.fullmatch(name)
    base, inside = (key(part) for part in match.groups()) if match else ("", "")
    for ours, known in known_columns().items():
        if base and base in known.names:
            if inside in known.names:
                yield Column(name, ours)
            elif known.units:
                raise InputError(
                    f"column {shown(name)} has the unit {shown(match[2] if match else '')}; allowed: "
                    f"{_units_text(known.units)}; rename it, or convert it"
                )


def _mapped(ours: str, theirs: str) -> Column:
    """Column that the user mapped by name."""
    known = known_columns()[ours]
    if theirs.strip().casefold() == ours:
        return Column(theirs, ours, *_own_unit(ours))
    rest, unit = next(_parts(theirs, known.units), ("", ""))
    if rest and rest not in known.names and re.search(rf"(/|\bper)\s*{unit}\W*$", spelt(theirs)):
        raise InputError(f"--map {ours}={theirs}: a number per {unit} is no {ours}; convert it, or name another column")
    return Column(theirs, ours, unit, known.units.get(unit, 1.0))


def _set_aside(
    claims: Mapping[str, Sequence[Column]], naming: Naming, frame: pd.DataFrame
) -> Iterator[tuple[Column, str]]:
    """Columns that are understood but not used, with the reasons."""
    for ours, found in claims.items():
        known, given = known_columns()[ours], naming.given.get(ours)
        rival = next((one for one in naming.maps if one != ours and _stands_for(one) == _stands_for(ours)), None)
        for one in found:
            if given:
                yield one, f"{ours} is given as {given}"
            elif rival and ours not in naming.maps:
                yield one, f"{shown(naming.maps[rival])} counts as {rival}"
            elif ours in MEASURED[1:] and (first := _filled(ours, claims, frame)):
                yield one, f"the {'time' if first.ours == MEASURED[0] else 'rate'} counts, {shown(first.theirs)}"
            elif known.needs_unit and not one.unit and ours not in (*naming.maps, MEASURED[0]):
                yield one, f"no unit in its name; for {ours} one of {_units_text(known.units)}"


def _filled(ours: str, claims: Mapping[str, Sequence[Column]], frame: pd.DataFrame) -> Column | None:
    """A measured column that precedes a rate, if it is filled in every row; otherwise None."""
    before = (one for name in MEASURED[: MEASURED.index(ours)] for one in claims.get(name, ())[:1])
    return next((one for one in before if all(str(cell).strip() for cell in frame[one.theirs])), None)


def _check_claims(columns: Sequence[Column]) -> None:
    for one in columns:
        mine = [other.ours for other in columns if other.theirs == one.theirs]
        if len(mine) > 1:
            text = f"column {shown(one.theirs)} could be {' or '.join(mine)}"
            raise InputError(f"{text}; write --map '{mine[0]}={one.theirs}' for what it is")
        same = [other.theirs for other in columns if _stands_for(other.ours) == _stands_for(one.ours)]
        if len(same) > 1:
            ours = _stands_for(one.ours)
            raise InputError(
                f"columns {' and '.join(map(shown, same))} could both be {ours}; name the one that counts, such as "
                f"--map '{one.ours}={one.theirs}'"
            )


def _stands_for(ours: str) -> str:
    return next((name for name, other in _INSTEAD.items() if other == ours), ours)


def _with_unit(one: Column, naming: Naming, frame: pd.DataFrame) -> Column:
    """The column of times with the given unit, if its name has none."""
    if one.ours != MEASURED[0] or one.unit:
        return one
    units = known_columns()[one.ours].units
    if naming.time_unit is None:
        raise InputError(f"column {shown(one.theirs)} has no unit in its name{offer(frame[one.theirs], units)}")
    unit = key(naming.time_unit)
    if unit not in units:
        raise InputError(f"--time-unit {shown(naming.time_unit)} is not known; allowed: {_units_text(units)}")
    return Column(one.theirs, one.ours, unit, units[unit])


def offer(cells: Iterable[object], units: Mapping[str, float] | None = None) -> str:
    """Suggestion of a unit for a column of times; without `units` the numbers may be rates."""
    rates = "" if units else f", one of {_units_text(known_columns()[MEASURED[0]].units)}, or tflops or gbs for a rate"
    units = units or known_columns()[MEASURED[0]].units
    numbers = [number for number in map(_number, cells) if number > 0]
    if not numbers:
        return f"; give --time-unit {_units_text(units)}"
    median = statistics.median(numbers)
    unit = min(units, key=lambda one: abs(math.log(median * units[one] / TYPICAL_S)))
    return f", median {median:.3g}: looks like {unit}; give --time-unit {unit}, or what it is{rates}"


def _units_text(units: Mapping[str, float]) -> str:
    """Units as text; the first of several spellings."""
    first: dict[float, str] = {}
    for unit, factor in units.items():
        first.setdefault(factor, unit)
    return ", ".join(first.values())


def _number(cell: object) -> float:
    """A cell as a number; 0 if it is not one."""
    try:
        found = float(str(cell))
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


def _check_time_unit(columns: Sequence[Column], naming: Naming) -> None:
    if naming.time_unit is None:
        return
    time = next((one for one in columns if one.ours == MEASURED[0]), None)
    if time is None:
        raise InputError(f"--time-unit {naming.time_unit} is given, and no column is a time; add --map time_s=COLUMN")
    if time.factor != known_columns()[time.ours].units.get(key(naming.time_unit)):
        given = f"--time-unit {naming.time_unit} is given"
        raise InputError(
            f"{given}, and column {shown(time.theirs)} says {time.unit}; leave it out, or rename the column"
        )


def _check_maps(maps: Mapping[str, str], names: Sequence[str]) -> None:
    for ours, theirs in maps.items():
        if ours not in known_columns():
            reason = f"{shown(ours)} is no column of a case table; {nearest(ours, known_columns())}"
            raise InputError(f"--map {ours}={theirs}: {reason}; write --map ours=theirs")
        if theirs not in names:
            reason = f"the table has no column {shown(theirs)}; {nearest(theirs, names)}"
            raise InputError(f"--map {ours}={theirs}: {reason}")
    twice = [theirs for theirs in maps.values() if list(maps.values()).count(theirs) > 1]
    if twice:
        raise InputError(f"--map names column {shown(twice[0])} twice; a column is one of ours")


def _check_needed(have: Collection[str], left: Sequence[str]) -> None:
    known = {*have, *(LENGTHS_SAY if "lengths" in have else ())}
    missing = [ours for ours in REQUIRED_COLUMNS if ours not in known and known.isdisjoint(_DERIVED_FROM.get(ours, ()))]
    if missing:
        hints = [f"{ours} ({nearest(ours, left)})" if left else ours for ours in missing]
        for_all = ", or --gpu ID for all rows" if "gpu" in missing else ""
        raise InputError(
            f"no column {', '.join(hints)}; a table needs {', '.join(REQUIRED_COLUMNS)} in these or others' names: "
            f"--map {missing[0]}=COLUMN says which{for_all}"
        )


def _why_not(name: str, claims: Mapping[str, Sequence[Column]]) -> str:
    """Reason why a column is not used: another is used, or its name is unknown."""
    ours = next((one.ours for one in _read(name)), None)
    if ours and ours in claims:
        return f"{shown(claims[ours][0].theirs)} counts as {ours}"
    if name in _ANSWERED:
        return "the answer has a column of this name in its place"
    return "only describes a row" if not name or is_described(name) else NOT_KNOWN
