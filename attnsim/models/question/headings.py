"""Tables with a column per kernel: a heading gives kernel, pass, format and unit; each such cell becomes a row.

Output of benchmarks: lines that give a shape, lines and tables that give times, and Markdown tables.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnsim.errors import InputError, shown
from attnsim.models.question.columns import (
    EMPTY,
    MEASURED,
    Naming,
    heading_words,
    is_described,
    key,
    known_columns,
    meanings,
    offer,
)

if TYPE_CHECKING:
    import pandas as pd

IsKernel = Callable[[str], bool]
NUMBER = r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?"
UNIT = r"[a-zµμ]+(?:\s?/\s?s(?:ec)?)?"
_QUANTITY = re.compile(rf"({NUMBER})\s*({UNIT})\.?", re.IGNORECASE)
_SHAPE = re.compile(r"[^()]*\(([^()]+,[^()]+)\)\s*")
_NOTHING = EMPTY | {"-", "--", "—", "–", "x", "n.a."}


class Heading(NamedTuple):
    """Content of a heading: kernel, pass, format, and measured quantity with unit; "" if absent."""

    kernel: str = ""
    passes: str = ""
    dtype: str = ""
    measured: str = ""
    unit: str = ""
    plain: bool = True
    """Whether no word says that the column is measured."""

    def described(self, unit: str, column: str | None = None) -> str:
        """The heading in words, with `unit` or the column of units if it has none."""
        unit = self.unit or (f"the unit of {shown(column)}" if column else unit)
        ours, _ = unit_of(unit) or (self.measured or MEASURED[0], 1.0)
        unit = f" in {unit}" if unit and ours == MEASURED[0] else ""
        parts = (f"{ours}{unit}", self.kernel and f"of {self.kernel}", self.passes, self.dtype)
        return " ".join(filter(None, parts))


def unit_of(text: str) -> tuple[str, float] | None:
    """Measured column of a unit, and the factor to our unit: "TFLOPs/s" is ``tflops``, 1."""
    units = {ours: known_columns()[ours].units for ours in MEASURED}
    name = key(text)
    return next(((ours, found[name]) for ours, found in units.items() if name in found), None)


def read_heading(text: str) -> Heading | None:
    """Parse a heading into kernel name and other words; None if it is not a time, rate or pass of a kernel."""
    rest = re.sub(r"(\s*/\s*|[_ ]per[_ ])(?=s(ec)?\b)", "", text, flags=re.IGNORECASE)
    if "/" in rest or "%" in rest:
        return None
    found, tokens = Heading(), list(re.finditer(r"[^\W_]+", rest))
    for at in (0, -1):
        while tokens and (taken := _take(found, tokens[at][0], (at == -1) + rest.endswith(")"))):
            found = taken
            tokens.pop(at)
    kernel = rest[tokens[0].start() : tokens[-1].end()] if tokens else ""
    return found._replace(kernel=kernel) if kernel or found != Heading() else None


def _take(found: Heading, word: str, least: int) -> Heading | None:
    """The heading extended by one more word; None if the word is a part of a name.

    A unit is at the end (`least` 1); one of one letter in brackets (2).
    """
    name = key(word)
    passes, dtype = (word_of(column, name) for column in ("pass", "dtype"))
    if passes:
        return found._replace(passes="fwd+bwd" if {found.passes, passes} == {"fwd", "bwd"} else passes)
    if dtype:
        return found._replace(dtype=dtype)
    if least and len(name) + least > 2 and (unit := unit_of(name)):
        return found._replace(measured=unit[0], unit=name, plain=False)
    if name in heading_words()["measures"]:
        return found._replace(measured=found.measured or MEASURED[0], plain=False)
    return None


def word_of(column: str, word: str) -> str:
    """Meaning of a word in a column; "" if it has none."""
    meant = known_columns()[column].words
    return meant.get(word, word if word in meant.values() else "")


def long_form(
    frame: pd.DataFrame, naming: Naming, is_kernel: IsKernel
) -> tuple[pd.DataFrame, Naming, list[tuple[str, str]]]:
    """Convert a table to one row per call, and update the statements about its columns.

    Parameters
    ----------
    is_kernel : callable
        Whether a name is that of an implementation or a library.

    Returns
    -------
    frame : pandas.DataFrame
        Times in seconds in ``time_s``, rates in ``tflops`` or ``gbs``, if cells were gathered or had their own unit.
    naming : Naming
        Without cells of all rows that the table now has.
    gathered : list of (str, str)
        Each heading that was gathered, with its meaning.

    Raises
    ------
    InputError
        For columns without a unit, and for given values that are also in the table.
    """
    frame, gathered = _apart(frame), []
    names = {key(str(name)): str(name) for name in frame.columns}
    programs = (one["unit"] for one in heading_words()["programs"] if names.keys() >= {*map(key, one["columns"])})
    if naming.time_unit is None and naming.maps.keys().isdisjoint(MEASURED):
        naming = replace(naming, time_unit=next(programs, None))
    unit = next((names[name] for name in names.keys() & known_columns()["unit"].names), None)
    chosen = _chosen(frame, naming, is_kernel, bool(unit))
    if chosen:
        kept = [name for name in frame.columns if name not in {*chosen, unit}]
        rows = [
            (line, {one: row[one] for one in kept} | _said(heading, cell, str(row[unit]) if unit else "", naming, row))
            for line, row in zip(frame.index, frame.to_dict("records"), strict=True)
            for name, heading in chosen.items()
            if (cell := str(row[name]).strip()).casefold() not in _NOTHING
        ]
        gathered = [(name, heading.described(naming.time_unit or "", unit)) for name, heading in chosen.items()]
        gathered += [(unit, "unit")] if unit else []
        frame = frame_of_lines(rows, frame.index.name)
        naming = replace(naming, time_unit=None)
    return *_with_cells(frame, naming), gathered


def frame_of(rows: Sequence[object], index: list[Any] | None = None, **settings: Any) -> pd.DataFrame:
    """Rows as a table, a column for each name."""
    import pandas as pd

    return pd.DataFrame(rows, index, **settings)


def frame_of_lines(rows: Sequence[tuple[Any, Mapping[str, object]]], name: Any) -> pd.DataFrame:
    """Rows with the line or number of each as a table; a cell that a row lacks is empty."""
    return frame_of([row for _, row in rows], [line for line, _ in rows], dtype=object).rename_axis(name).fillna("")


def _apart(frame: pd.DataFrame) -> pd.DataFrame:
    """Split columns of shapes, "(Batch, Heads, SeqLen)", into a column for each part."""
    for name in [str(one) for one in frame.columns]:
        match = _SHAPE.fullmatch(name)
        parts = [part.strip() for part in match[1].split(",")] if match else []
        if parts and all(any(key(part) in known.names for known in known_columns().values()) for part in parts):
            cells = [re.sub(r"[()\[\]]", "", str(cell)).split(",") for cell in frame[name]]
            frame = frame.drop(columns=name)
            for at, part in enumerate(parts):
                frame[part] = [row[at].strip() if len(row) == len(parts) else "" for row in cells]
    return frame


def _chosen(frame: pd.DataFrame, naming: Naming, is_kernel: IsKernel, has_units: bool) -> dict[str, Heading]:
    """Columns whose cells become rows: for each kernel and pass the time, or otherwise the rate."""
    if not naming.maps.keys().isdisjoint(MEASURED):
        return {}
    known = {name for ours, one in known_columns().items() if ours not in MEASURED for name in one.names}
    found: dict[str, Heading] = {}
    for name in map(str, frame.columns):
        means = name in naming.maps.values() or name.casefold() in known_columns() or key(name) in known
        heading = None if means else read_heading(name)
        if heading and (is_kernel(heading.kernel) or not is_described(name)):
            found[name] = heading._replace(kernel="") if meanings(name) else heading
    timed = {name for name, one in found.items() if not one.kernel and one.measured == MEASURED[0] and not one.passes}
    kernels = {name for name, one in found.items() if is_kernel(one.kernel) and not (timed and one.plain)}
    alike = {found[name][3:] for name in kernels if not found[name].plain}
    own_unit = {name for name in found if any(_QUANTITY.fullmatch(str(cell).strip()) for cell in frame[name])}
    gathered = kernels | {name for name, one in found.items() if one.kernel and (one[3:] in alike or name in own_unit)}
    gathered = gathered or {name for name, one in found.items() if not one.kernel and one.passes}
    gathered = gathered or {name for name, one in found.items() if not (one.plain or timed) and one.kernel}
    gathered = gathered or (timed if has_units or timed & own_unit else set())
    best: dict[tuple[str, ...], str] = {}
    for name in sorted(gathered, key=lambda one: MEASURED.index(found[one].measured or MEASURED[0])):
        best.setdefault(found[name][:3], name)
    chosen = {name: one for name, one in found.items() if name in best.values()}
    several = {one.kernel for one in chosen.values()}
    if naming.implementation and len(several) > 1:
        reason = f"columns {', '.join(map(shown, chosen))} are of several kernels"
        raise InputError(f"--implementation {naming.implementation} names all rows, and {reason}; leave it out")
    bare = [name for name, one in chosen.items() if not (one.unit or has_units or naming.time_unit or name in own_unit)]
    if bare:
        cells = [cell for name in bare for cell in frame[name]]
        raise InputError(f"columns {', '.join(map(shown, bare))} have no unit{offer(cells)}")
    return chosen


def _said(heading: Heading, cell: str, unit: str, naming: Naming, row: Mapping[Any, object]) -> dict[str, object]:
    """Cells of our columns from a heading and its cell; a cell that is not a number of a known unit is kept."""
    match = _QUANTITY.fullmatch(cell) or re.fullmatch(rf"({NUMBER})()", cell, re.IGNORECASE)
    unit = match[2] if match and match[2] else heading.unit or unit.strip() or naming.time_unit or ""
    ours, factor = unit_of(unit) or ("", 0.0)
    cells: dict[str, object] = {ours or MEASURED[0]: f"{cell} {unit}".strip()}
    if match and ours and heading.measured in ("", ours):
        cells[ours] = repr(float(match[1].replace(",", "")) * factor)
    for name, value in (("implementation", heading.kernel), ("pass", heading.passes), ("dtype", heading.dtype)):
        cells |= {name: value} if value else {name: row[name]} if name in row else {}
    return cells


def _with_cells(frame: pd.DataFrame, naming: Naming) -> tuple[pd.DataFrame, Naming]:
    """Fill given cells into a table's empty ones; also return the naming with given cells of missing columns."""
    left = {}
    for ours, cell in naming.cells.items():
        theirs = next((name for name in map(str, frame.columns) if ours in meanings(name)), None)
        theirs = naming.maps.get(ours, theirs)
        if theirs is None:
            left[ours] = cell
            continue
        empty = [str(one).strip().casefold() in EMPTY for one in frame[theirs]]
        if not any(empty):
            raise InputError(f"--set-column {ours}={cell}: every row says it in column {shown(theirs)}; leave it out")
        cells = [cell if bare else one for bare, one in zip(empty, frame[theirs], strict=True)]
        frame = frame.assign(**{theirs: cells})
    return frame, replace(naming, cells=left)


def quantities(segments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Numbers with a unit in parts of a line: text before, number, unit."""
    for segment in segments:
        for match in _QUANTITY.finditer(segment):
            if unit_of(match[2]):
                yield segment[: match.start()], match[1], match[2]
                break


Row = dict[str, str]

_BORDER = re.compile(r"[\s|+:=-]*")
_SPLITS = (re.compile(r"\t+|\s{2,}"), re.compile(r"\s+"))
_PAIR = re.compile(
    r"([A-Za-z_]\w*)\s*[=:]\s*('[^']*'|\"[^\"]*\"|\([^)]*\)|\[[^\]]*\]|[^\s,;()\[\]{}'\"=:]+(?!\w*\s*=))"
)
_GLUED = re.compile(r"(?<![A-Za-z0-9])([A-Za-z_]+?)(\d+)(?![A-Za-z0-9.])")
_UNITS = re.compile(r"\((?:time )?(?:in )?([^\s()/]+(?:/s)?)(?:\s*/\s*[^()]*)?\)", re.IGNORECASE)
_SHORT = 4
"""Most words of a line that may only be the name of a pass: "--- Mode: decode ---", "FWD (ms / TFLOPS)"."""


def read_printed(text: str) -> list[tuple[int, Row]]:
    """Measurements of a text, each with its line number and the information of the lines before it.

    Headings of tables are kept. For other lines the columns are ``implementation``, ``pass``, ``dtype``, ``launch``,
    ``time_s``, ``tflops``, ``gbs`` and the names before an equals sign or a colon. A time or rate of 0 is printed if
    nothing ran. The list is empty if the text holds no measurement.
    """
    found: list[tuple[int, Row]] = []
    past: Row = {}
    head: list[str] = []
    slashed = False
    lines = text.splitlines()
    for at, line in enumerate(lines, 1):
        if not line.strip():
            head = []
        elif _BORDER.fullmatch(line):
            continue
        elif head and (cells := _cells(line, len(head))):
            parts = [cell.partition("/")[0].strip() if slashed else cell for cell in cells]
            row = dict(zip(head, parts, strict=True))
            row |= {
                name: cell
                for part in parts
                if "=" in part
                for name, cell in _pairs(part.split(", "), part, titled=False).items()
            }
            meant = {ours for name in row for ours in _meanings(name)}
            found.append((at, {name: cell for name, cell in past.items() if meant.isdisjoint(_meanings(name))} | row))
        elif heads := _head(line, lines[at:]):
            head = heads
        else:
            segments = [part for part in re.split(r"[;,](?=\s|$)", line) if part.strip()]
            rows = list(_measured(segments))
            new = _pairs(segments, line, titled=not rows)
            slashed = "/" in line if "unit" in new else slashed
            past = {name: cell for name, cell in past.items() if key(name) not in {*map(key, new)}} | new
            found += [(at, past | row) for row in rows]
    return found


def _cells(line: str, count: int) -> list[str]:
    """Cells of a table line with `count` columns; empty if it is not one. pandas puts an index before them."""
    for cells in _parted(line):
        if len(cells) in (count, count + 1) and any(re.search(r"\d", cell) for cell in cells):
            return cells[-count:]
    return []


def _parted(line: str) -> Iterator[list[str]]:
    if "|" in line:
        yield [cell.strip() for cell in re.sub(r"^\||\|$", "", line.strip()).split("|")]
    else:
        yield from (split.split(line.strip()) for split in _SPLITS)


def _head(line: str, after: Sequence[str]) -> list[str]:
    """Headings in a line, if a line of cells follows and one heading names a column."""
    labelled = "=" in line or re.search(r":(\s|$)", line)
    row = "" if labelled else next(itertools.filterfalse(_BORDER.fullmatch, after), "")
    for cells in _parted(line):
        shape = any("," in cell and all(map(_meanings, cell.strip("()").split(","))) for cell in cells)
        known = "=" in row or shape or any(map(_meanings, cells))
        named = len(cells) > 1 and not any(re.fullmatch(NUMBER, cell) for cell in cells)
        if known and named and _cells(row, len(cells)):
            return cells
    return []


def _meanings(name: str) -> set[str]:
    """Columns of ours that a name means, except measured ones."""
    return {ours for ours, known in known_columns().items() if ours not in MEASURED and key(name) in known.names}


def _measured(segments: Sequence[str]) -> Iterator[Row]:
    """One row per kernel and pass in a line, with its time or otherwise its rate."""
    rows: dict[tuple[str, str, str], Row] = {}
    heading: Heading | None = Heading()
    for before, number, unit in quantities(segments):
        label = re.sub(r"^.*(\]|\)|=\s*\S+\s{2,})", "", before.rstrip(" :="))
        new = read_heading(label) if label.strip() else heading
        if new is None or is_described(label):
            heading = None if not rows else heading  # what follows a label that is no time is none either
            continue
        heading = new._replace(kernel=new.kernel or (heading.kernel if heading else ""))
        ours, factor = unit_of(unit) or (MEASURED[0], 1.0)
        value = float(number.replace(",", "")) * factor
        if value > 0:
            launch = {"launch": "graph"} if "cuda graph" in label.casefold() else {}
            rows.setdefault(heading[:3], launch)[ours] = repr(value)
    for (kernel, passes, dtype), row in rows.items():
        best = next(ours for ours in MEASURED if ours in row)
        cells = {"implementation": kernel, "pass": passes, "dtype": dtype, "launch": row.get("launch", "")}
        yield {name: cell for name, cell in cells.items() if cell} | {best: row[best]}


def _pairs(segments: Sequence[str], line: str, *, titled: bool) -> Row:
    """Shape information in a line: names with values; in a title also numbers attached to names, and a pass."""
    bare = "; ".join(one for one in segments if "=" in one or not list(quantities([one])))
    pairs = [(match[1], match[2].strip("'\"")) for match in _PAIR.finditer(bare)]
    found = {name: value for name, value in pairs if not unit_of(value.lstrip("0123456789."))}
    if pairs and (masks := [meant for one in segments if (meant := word_of("causal", key(one)))]):
        found.setdefault("causal", masks[0])
    if titled:
        words = re.findall(r"[A-Za-z]+", line.partition("(")[0])
        passes = [meant for word in words if (meant := word_of("pass", key(word)))]
        unit = _UNITS.search(line)
        if "-" in line:
            found |= {match[1]: match[2] for match in _GLUED.finditer(line) if _meanings(match[1])}
        if passes and ("-" in line or len(words) <= _SHORT) and "pass" not in found:
            found["pass"] = passes[0]
        if unit and unit_of(unit[1]):
            found["unit"] = unit[1]
    return found
