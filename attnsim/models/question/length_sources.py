"""Sources of a batch's lengths: text, a file with one line per sequence, or a distribution to draw from.

``lognormal 512 median 2048 sigma 1`` and ``zipf 512 most 32768 exponent 1.2`` draw 512 sequences; ``queries N``,
``least N``, ``most N`` and ``seed N`` may follow. A file has columns ``queries`` and ``keys``, and optionally ``count``
for equal sequences; lines are in batch order, or by ``arrival`` if there is such a column.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path

from attnsim.errors import InputError, nearest, shown
from attnsim.models.question.lengths import LARGEST_LENGTH, Length, parse_lengths
from attnsim.models.question.words import cell_number

COLUMNS = ("queries", "keys", "count", "arrival")
_NAMES = {"q": "queries", "seq_q": "queries", "kv": "keys", "seq_kv": "keys"}
LARGEST_DRAW = 1 << 16
EXAMPLES = {
    "lognormal": "lognormal 512 median 2048 sigma 1",
    "zipf": "zipf 512 most 32768 exponent 1.2",
}
"""Text form of each distribution."""
_WORDS = {"lognormal": ("median", "sigma"), "zipf": ("most", "exponent")}
_MORE = ("queries", "least", "most", "seed")


def read_lengths(text: str, decode: bool = False) -> tuple[Length, ...]:
    """Read lengths from text: sequences, the name of a ``.csv`` file of them, or a distribution."""
    name, *words = text.split() or [""]
    if name.lower() in EXAMPLES:
        return _drawn(name.lower(), words, text, decode)
    return read_file(text.strip(), decode) if text.strip().lower().endswith(".csv") else parse_lengths(text, decode)


def read_file(path: str | Path, decode: bool = False) -> tuple[Length, ...]:
    """Read the sequences of a file, one per line.

    Raises
    ------
    InputError
        If the file is missing, not CSV, or has no sequences.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.DictReader(file))
    except FileNotFoundError:
        raise InputError(f"lengths file {path} does not exist; give a CSV file with columns queries and keys") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"lengths file {path} cannot be read as CSV: {error}") from None
    if not lines:
        raise InputError(f"lengths file {path} has no sequences; write columns queries and keys, and a line a sequence")
    found: list[tuple[float, Length]] = []
    for number, line in enumerate(lines, 2):
        cells = {_column(path, name): (cell or "").strip() for name, cell in line.items()}
        where = f"lengths file {path}, line {number}:"
        keys = _whole(cells, "keys", where)
        queries = _whole(cells, "queries", where) if "queries" in cells else 1 if decode else keys
        count = _whole(cells, "count", where) if cells.get("count") else 1
        arrival = cell_number(cells["arrival"], f"{where} arrival") if cells.get("arrival") else float(number)
        found.append((arrival, Length(queries, keys, count)))
    return tuple(one for _, one in sorted(found, key=lambda entry: entry[0]))


def _column(path: str | Path, name: str | None) -> str:
    key = (name or "").strip().lower()
    ours = _NAMES.get(key, key)
    if ours not in COLUMNS:
        raise InputError(f"lengths file {path} has a column {shown(name)}; {nearest(ours, COLUMNS)}")
    return ours


def _whole(cells: Mapping[str, str], name: str, where: str) -> int:
    value = cell_number(cells.get(name, ""), f"{where} {name}")
    if value != int(value):
        raise InputError(f"{where} {name} is {cells[name]!r}; allowed: whole numbers from 1")
    return int(value)


def _drawn(name: str, words: list[str], text: str, decode: bool) -> tuple[Length, ...]:
    """Sequences drawn from a distribution, always the same for the same text."""
    example = f"write it as '{EXAMPLES[name]}', with {', '.join(_MORE)} behind it where wanted"
    if len(words) % 2 == 0:
        raise InputError(f"lengths {shown(text)} lacks a number; {example}")
    count = cell_number(words[0], f"lengths {shown(text)}: the number of sequences")
    given = dict(zip((word.lower() for word in words[1::2]), words[2::2], strict=True))
    if unknown := [word for word in given if word not in (*_WORDS[name], *_MORE)]:
        raise InputError(f"lengths {shown(text)} has {unknown[0]!r}; {example}")
    if missing := [word for word in _WORDS[name] if word not in given]:
        raise InputError(f"lengths {shown(text)} lacks {missing[0]}; {example}")
    if not 1 <= count <= LARGEST_DRAW or count != int(count):
        raise InputError(f"lengths {shown(text)} draws {count:g} sequences; allowed: 1 to {LARGEST_DRAW}")
    values = {word: cell_number(value, f"lengths {shown(text)}: {word}") for word, value in given.items()}
    if bad := [word for word, value in values.items() if value <= 0 and word != "seed"]:
        raise InputError(f"lengths {shown(text)} has {bad[0]} {given[bad[0]]}; allowed: numbers above 0")
    rng = random.Random(int(values.get("seed", 0)))
    least, most = int(values.get("least", 1)), int(values.get("most", LARGEST_LENGTH))
    if not 1 <= least <= most <= LARGEST_LENGTH:
        raise InputError(
            f"lengths {shown(text)} has least {least} and most {most}; allowed: 1 <= least <= most <= 2^27"
        )
    draw = _lognormal(values, rng) if name == "lognormal" else _zipf(values, least, most, rng)
    queries = int(values["queries"]) if "queries" in values else 1 if decode else 0
    keys = [min(most, max(least, queries, draw())) for _ in range(int(count))]
    return tuple(Length(queries or one, one) for one in keys)


def _lognormal(values: Mapping[str, float], rng: random.Random) -> Callable[[], int]:
    location = math.log(values["median"])
    return lambda: round(math.exp(min(40.0, rng.gauss(location, values["sigma"]))))


def _zipf(values: Mapping[str, float], least: int, most: int, rng: random.Random) -> Callable[[], int]:
    """Sampler of lengths whose frequency is a power law."""
    steps = (
        range(least, most + 1)
        if most - least < LARGEST_DRAW
        else range(least, most + 1, (most - least) // LARGEST_DRAW)
    )
    sums = list(accumulate(length ** -values["exponent"] for length in steps))
    return lambda: rng.choices(steps, cum_weights=sums)[0]
