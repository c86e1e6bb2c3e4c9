"""Requests of a serving trace, from the files that people have: CSV, JSON, JSONL or Parquet, with their own columns.

`requests.csv` says what the columns may be called, whose name it is and its unit. Arrivals are dates, Unix times, or
numbers whose unit the name or ``--time-unit`` says; what looks like arrivals and is not known is refused, not dropped.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from attnsim.errors import InputError, Taken, nearest, shown
from attnsim.models.question.case_file import read_table, records
from attnsim.models.question.columns import NOTHING_SAID, Naming
from attnsim.models.question.words import cell_number
from attnsim.tables import read_csv

LONGEST = 1 << 24
LONGEST_S = 1e7
"""Some months: latest arrival, and longest rest of a step."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SPELT = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "msec": "ms", "millis": "ms", "milliseconds": "ms"}
_SPELT |= {"microseconds": "us", "nanoseconds": "ns", "usec": "us", "nsec": "ns"} | {unit: unit for unit in UNITS}
_EPOCH = {"s": 1e9, "ms": 1e12, "us": 1e15, "ns": 1e18}
"""Unix time since 2001 in each unit; the next unit begins at 100 times as much (the year 5138)."""
_CHARACTERS_A_TOKEN = 4
"""Characters of English text, about (OpenAI, help.openai.com/en/articles/4936856: "1 token ~= 4 chars in English")."""
_TURNS = ("conversations", "conversation", "messages")
_LIKE_ARRIVALS = re.compile(
    r"time|arriv|stamp|date|when|start|submit|sent|creat|queue|clock|offset|begin|^ts?$|issued|at$"
)
_NO_ARRIVALS = re.compile(
    r"token|elapsed|latency|duration|ttft|tpot|e2e|format|input|output|end|finish|timeout|update|rate"
)


class Request(NamedTuple):
    """One request.

    Parameters
    ----------
    arrival_s : float
    prompt, output : int
        Tokens that it brings, and that it asks for.
    """

    arrival_s: float
    prompt: int
    output: int


class _Column(NamedTuple):
    """A column that is read, and the unit that its name says."""

    theirs: str
    unit: str


@functools.cache
def _names() -> list[dict[str, str]]:
    return read_csv(files("attnsim.api") / "requests.csv")


def read_requests(path: str | Path, naming: Naming = NOTHING_SAID) -> tuple[Request, ...]:
    """The requests of a trace: tokens of prompts and outputs and, where they do not come at once, arrivals.

    Parameters
    ----------
    path : str or Path
        CSV, JSON (a list of objects), JSON lines or Parquet; or ShareGPT's conversations.
    naming : Naming
        ``maps`` of arrival, prompt and output to columns, and the unit of arrivals.

    Raises
    ------
    InputError
        One line: the file, the line, what was given, what is allowed.

    Warns
    -----
    Taken
        What was read as what, what is not used, and what is assumed.
    """
    path = Path(path)
    frame = _frame(path)
    columns = {
        field: _find(path, field, [str(name) for name in frame], naming) for field in ("arrival", "prompt", "output")
    }
    lines = records(frame)
    if not lines:
        raise InputError(f"{path} has no requests; write columns prompt and output, and a line a request")
    arrival = columns["arrival"]
    if arrival is None and naming.maps.get("arrival") != "none":
        _refuse_dropping(path, frame, columns)
    times, how = _times(path, frame, arrival, naming) if arrival else ([0.0] * len(lines), "")
    found, failed = [], 0
    for number, line, time in zip(frame.index, lines, times, strict=True):
        where = f"{path}, {frame.index.name} {number}"
        prompt, output = (_tokens(line[columns[name].theirs], f"{where}: {name}") for name in ("prompt", "output"))  # type: ignore[union-attr]
        failed += output == 0
        if prompt == 0:
            raise InputError(f"{where}: prompt is 0; allowed: whole numbers from 1 to {LONGEST}")
        if output:
            found.append(Request(time, prompt, output))
    if not found:
        raise InputError(f"{path}: every output is 0; allowed: whole numbers from 1 to {LONGEST}")
    _tell(path, [str(name) for name in frame], columns, how, failed)
    return tuple(sorted(found, key=lambda one: one.arrival_s))


def _tell(path: Path, names: Sequence[str], columns: Mapping[str, _Column | None], how: str, failed: int) -> None:
    used = {field: one.theirs for field, one in columns.items() if one}
    said = [
        f"{field} is {shown(theirs)}{how * (field == 'arrival')}" for field, theirs in used.items() if field != theirs
    ]
    said += [] if "arrival" in used else ["no arrivals: all come at once"]
    if unused := [name for name in names if name not in used.values()]:
        said.append(f"not used: {', '.join(map(shown, unused))}")
    if failed:
        said.append(f"{failed} request{'s' * (failed > 1)} of no output left out, as failed")
    if said:
        warnings.warn(f"{path}: {'; '.join(said)}", Taken, stacklevel=3)


def _tokens(cell: object, where: str) -> int:
    value = cell_number(str(cell).strip(), where)
    if not 0 <= value <= LONGEST or value != int(value):
        raise InputError(f"{where} is {cell}; allowed: whole numbers from 1 to {LONGEST}")
    return int(value)


def _frame(path: Path) -> pd.DataFrame:
    """The file as a table, objects of JSON flattened."""
    if path.is_file() and not path.stat().st_size:
        raise InputError(f"{path} is empty; write columns prompt and output, and a line a request")
    if path.suffix.lower() not in (".json", ".jsonl", ".ndjson"):
        return read_table(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = json.loads(text) if path.suffix.lower() == ".json" else [json.loads(s) for s in text.splitlines() if s]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a CSV, JSON, JSONL or Parquet file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {shown(str(error))}; JSONL has an object a line") from None
    if isinstance(found, dict):
        found = next((value for value in found.values() if isinstance(value, list)), [found])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InputError(f"{path} holds no list of objects; write one a request, with prompt and output tokens")
    if found and all(any(key in one for key in _TURNS) for one in found):
        found = _spoken(path, found)
    frame = pd.json_normalize(found).astype(object)
    return frame.set_index(pd.RangeIndex(1, len(frame) + 1, name="request"))


def _spoken(path: Path, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Conversations as ShareGPT has them: the first turn asks, the second answers (vLLM's ShareGPTDataset)."""
    rows = []
    for one in found:
        turns = next(one[key] for key in _TURNS if key in one)
        said = [turn.get("value", turn.get("content")) for turn in turns if isinstance(turn, dict)][:2]
        words = [text for text in said if isinstance(text, str) and text]
        if len(words) == 2:
            prompt, output = (max(1, round(len(text) / _CHARACTERS_A_TOKEN)) for text in words)
            rows.append({"prompt": prompt, "output": output})
    assumed = (
        f"tokens are assumed to be {_CHARACTERS_A_TOKEN} characters each, the first two turns of a conversation count"
    )
    short = len(found) - len(rows)
    warnings.warn(f"{path}: {assumed}{f', {short} shorter ones are left out' if short else ''}", Taken, stacklevel=4)
    return rows


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _parted(name: str) -> tuple[str, str]:
    """A name without the unit at its end, and the unit: arrival_time_ms, Arrival (s)."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition(".")[2]).lower())
    unit = _SPELT.get(words[-1], "") if len(words) > 1 else ""
    return "".join(words[:-1] if unit else words), unit


def _find(path: Path, field: str, have: Sequence[str], naming: Naming) -> _Column | None:
    """The column of a field: the one that a person names, else the first name of the table that is there."""
    mapped = naming.maps.get(field)
    if mapped == "none" and field == "arrival":
        return None
    if mapped is not None:
        if mapped not in have:
            raise InputError(f"--map {field}={mapped}: {path} has no column {shown(mapped)}; {nearest(mapped, have)}")
        return _Column(mapped, _parted(mapped)[1])
    taken = set(naming.maps.values())
    plain = {_plain(name.rpartition(".")[2]): name for name in have if name not in taken}
    parted = {base: (name, unit) for name in have if name not in taken for base, unit in [_parted(name)] if unit}
    for one in _names():
        if one["field"] != field or (one["beside"] and one["beside"] not in plain):
            continue
        if one["name"] in plain:
            return _Column(plain[one["name"]], one["unit"])
        if field == "arrival" and one["name"] in parted:
            return _Column(*parted[one["name"]])
    if field == "arrival":
        return None
    allowed = ", ".join(dict.fromkeys(one["name"] for one in _names() if one["field"] == field))
    raise InputError(
        f"{path} has no column {field}; {nearest(field, have)}; write --map {field}=COLUMN; known: {allowed}"
    )


def _refuse_dropping(path: Path, frame: pd.DataFrame, columns: Mapping[str, _Column | None]) -> None:
    """Refuse a trace one of whose columns looks like arrivals and is not known."""
    used = {one.theirs for one in columns.values() if one}
    for name in (str(name) for name in frame if name not in used):
        said = _LIKE_ARRIVALS.search(name.lower()) and not _NO_ARRIVALS.search(name.lower())
        if said or _grows(frame[name]):
            raise InputError(
                f"{path}: column {shown(name)} looks like arrivals and its name is not known; write --map "
                f"arrival={name} (and --time-unit s or ms), or --map arrival=none where all come at once"
            )


def _grows(cells: pd.Series[Any]) -> bool:
    """Whether cells are dates, or three or more numbers with fractions that never fall."""
    numbers = pd.to_numeric(cells, errors="coerce")
    if numbers.notna().all():
        return len(numbers) > 2 and bool(numbers.is_monotonic_increasing) and bool((numbers % 1 > 0).any())
    if not all(isinstance(cell, str) and re.match(r"\s*\d{4}-\d\d-\d\d", cell) for cell in cells):
        return False
    return bool(pd.to_datetime(cells, errors="coerce", utc=True, format="mixed").notna().all())


def _times(path: Path, frame: pd.DataFrame, arrival: _Column, naming: Naming) -> tuple[list[float], str]:
    """Arrivals in seconds, and how they were read."""
    cells, theirs = frame[arrival.theirs], arrival.theirs
    numbers = pd.to_numeric(cells, errors="coerce")
    if numbers.isna().all() or "datetime" in str(cells.dtype):
        dates = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed")
        if not dates.isna().any():
            return list((dates - dates.min()).dt.total_seconds()), " (dates, from the first on)"
    for number, cell in zip(frame.index, cells, strict=True):
        cell_number(str(cell).strip(), f"{path}, {frame.index.name} {number}: arrival")
    given = naming.time_unit and _SPELT.get(naming.time_unit.lower())
    if naming.time_unit and not given:
        raise InputError(f"--time-unit {shown(naming.time_unit)} is not known; allowed: {', '.join(UNITS)}")
    if given and arrival.unit and given != arrival.unit:
        raise InputError(f"--time-unit {given} is given, and column {shown(theirs)} is in {arrival.unit}; leave it out")
    largest = float(numbers.max())
    epoch = next((unit for unit, least in _EPOCH.items() if least <= largest < 100 * least), "")
    unit = given or arrival.unit or epoch
    if not unit:
        raise InputError(
            f"{path}: column {shown(theirs)} has no unit in its name, from {numbers.min():g} to {largest:g}; give "
            "--time-unit s or ms"
        )
    if epoch and epoch != unit:
        raise InputError(
            f"{path}: column {shown(theirs)} reaches {largest:g}, which is Unix time in {epoch}, not in {unit}; give "
            f"--time-unit {epoch}, or name the column so"
        )
    late = LONGEST_S < largest * UNITS[unit] < _EPOCH["s"]  # BurstGPT counts from its first file on
    first = float(numbers.min()) if epoch or late else 0.0
    for number, cell, value in zip(frame.index, cells, numbers, strict=True):
        if not 0 <= (value - first) * UNITS[unit] <= LONGEST_S:
            raise InputError(
                f"{path}, {frame.index.name} {number}: arrival is {cell}; allowed: seconds from 0 to {LONGEST_S:g}"
            )
    since = ", from the first on" if first else ""
    return [(float(value) - first) * UNITS[unit] for value in numbers], f" in {unit}{since}"
