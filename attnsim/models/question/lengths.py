"""Lengths of a batch with unequal sequences: queries and keys of each, in the call's order.

Sources of a batch's lengths: text, a file with one line per sequence, or a distribution to draw from.

``lognormal 512 median 2048 sigma 1`` and ``zipf 512 most 32768 exponent 1.2`` draw 512 sequences; ``queries N``,
``least N``, ``most N`` and ``seed N`` may follow. A file has columns ``queries`` and ``keys``, and optionally ``count``
for equal sequences; lines are in batch order, or by ``arrival`` if there is such a column.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from attnsim.errors import InputError, nearest, shown
from attnsim.models.question.words import cell_number, whole

LARGEST_LENGTH = 1 << 27
LARGEST_BATCH = 1 << 20
MOST_LISTED = 4
"""Most sequences, or runs of equal ones, that a text for people lists; for more it gives the range."""


class Length(NamedTuple):
    """`times` successive sequences of a batch with equal queries and keys.

    Parameters
    ----------
    queries, keys : int
        New tokens, and all tokens that they may attend: the cached and the new ones.
    """

    queries: int
    keys: int
    times: int = 1

    def __str__(self) -> str:
        return f"{self.queries}:{self.keys}{f' x {self.times}' if self.times > 1 else ''}"


def parse_lengths(text: str, decode: bool = False) -> tuple[Length, ...]:
    """Read ``6:85 70:15489`` or ``1:4096 x 63, 512:2560``: queries:keys of each sequence, `x N` for N of them.

    A number alone is the length of queries and keys; in decoding, that of the keys of one query. vLLM's
    ``8q1s16k_2q2k`` is 8 requests of 1 query on 16384 keys and 2 of 2048 of both (vllm-project/vllm,
    benchmarks/attention_benchmarks/README.md).
    """
    requests = [
        (one.partition("q")[0], one.partition("q")[2].partition("s")) for one in text.strip().lower().split("_")
    ]
    if all(whole(count or "1") and whole(queries) for count, (queries, _, _) in requests):
        text = ", ".join(f"{new}:{keys or new} x {count or 1}" for count, (new, _, keys) in requests)
    words = text.replace("×", "x").replace(",", " ").lower().split()
    found: list[Length] = []
    colons: set[str] = set()
    position = 0
    while position < len(words):
        word, position = words[position], position + 1
        head, times, count = word.partition("x")
        if times and not head and found:  # "x 63" or "x63" after its sequence
            if not count and position < len(words):
                count, position = words[position], position + 1
            found[-1] = found[-1]._replace(times=_number(count, word, text))
            continue
        queries, colon, keys = head.partition(":")
        colons.add(colon)
        first = _number(queries, word, text)
        second = _number(keys, word, text) if colon else first
        times_of = _number(count, word, text) if count else 1
        found.append(Length(1 if decode and not colon else first, second, times_of))
    if not found:
        raise InputError("lengths is empty; write queries:keys of each sequence, such as '1:4096 x 63, 512:2560'")
    if len(colons) > 1:
        raise InputError(
            f"lengths {shown(text)} has numbers with and without a colon; write queries:keys of every sequence, and no "
            "commas within a number"
        )
    return tuple(found)


def lengths_of(given: object, decode: bool = False) -> tuple[Length, ...]:
    """Read lengths from text, or from a list with ``(queries, keys)``, ``(queries, keys, count)`` or N per sequence."""
    if isinstance(given, str):
        return parse_lengths(given, decode)
    if not isinstance(given, Iterable):
        raise InputError(
            f"lengths is {shown(given)}; give (queries, keys) of each sequence, or text such as '1:4096 x 63'"
        )
    found = []
    for number, entry in enumerate(given, 1):
        values = (1 if decode else entry, entry) if isinstance(entry, int) else _fields(entry)
        if len(values) not in (2, 3) or not all(isinstance(n, int) and not isinstance(n, bool) for n in values):
            raise InputError(
                f"sequence {number} of lengths is {shown(entry)}; give (queries, keys) or (queries, keys, count)"
            )
        found.append(Length(*values))
    return tuple(found)


def _fields(entry: Any) -> tuple[Any, ...]:
    return tuple(entry) if isinstance(entry, Iterable) and not isinstance(entry, str) else ()


def blind(lengths: Iterable[Length], right: int | None) -> int:
    """Number of queries that see no key if a mask shows `right` keys after the diagonal.

    The last query is aligned with the last key. If there are more queries than keys, the first queries lie before the
    first key.
    """
    return sum(max(0, one.queries - one.keys - right) * one.times for one in lengths) if right is not None else 0


def checked_lengths(lengths: Iterable[Length]) -> tuple[Length, ...]:
    """Merge equal neighbours.

    Raises
    ------
    InputError
        Naming the first sequence that no call can have.
    """
    found: list[Length] = []
    for one in lengths:
        limits = (LARGEST_LENGTH, LARGEST_LENGTH, LARGEST_BATCH)
        for what, value, most in zip(Length._fields, one, limits, strict=True):
            if not 1 <= value <= most:
                raise InputError(
                    f"lengths has a sequence {one} with {value} {what}; allowed: a whole number from 1 to {most}"
                )
        if found and found[-1][:2] == one[:2]:
            found[-1] = found[-1]._replace(times=found[-1].times + one.times)
        else:
            found.append(one)
    if not found:
        raise InputError("lengths is empty; give (queries, keys) of each sequence")
    return tuple(found)


def check_seen(lengths: Iterable[Length], right: int | None) -> None:
    """Refuse a sequence of more queries than keys if a mask shows `right` keys after the diagonal.

    Raises
    ------
    InputError
        Naming the first of them.
    """
    for one in lengths:
        if unseeing := blind((one._replace(times=1),), right):
            raise InputError(
                f"lengths has a sequence {one} with more queries than keys, of which the mask shows {unseeing} none; "
                f"keys count the cached tokens and the new ones: give {one.queries} or more"
            )


def lengths_text(lengths: Iterable[Length]) -> str:
    """Text form of lengths, which :func:`parse_lengths` reads."""
    return ", ".join(map(str, lengths))


def lengths_summary(lengths: tuple[Length, ...]) -> str:
    """Lengths in one line for people: each if they are few, otherwise their number and range."""
    if len(lengths) <= MOST_LISTED:
        return lengths_text(lengths)

    def span(values: list[int]) -> str:
        low, high = min(values), max(values)
        return f"{low}" if low == high else f"{low} to {high}"

    queries, keys = span([one.queries for one in lengths]), span([one.keys for one in lengths])
    return f"{sum(one.times for one in lengths)} of {queries} queries and {keys} keys"


def _number(text: str, word: str, whole_text: str) -> int:
    value = None if len(text) > 1 and text.startswith("0") else whole(text)
    if value is None:
        raise InputError(
            f"lengths {shown(whole_text)} has {word!r}; write queries:keys of each sequence, "
            "such as '1:4096 x 63, 512:2560'"
        )
    return value


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
