"""Output of benchmarks: lines that give a shape, lines and tables that give times, and Markdown tables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from attnsim.models.question.columns import MEASURED, is_described, key, known_columns
from attnsim.models.question.headings import NUMBER, Heading, quantities, read_heading, unit_of, word_of

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
