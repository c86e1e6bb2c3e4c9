"""Lengths of a batch with unequal sequences: queries and keys of each, in the call's order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from attnsim.errors import InputError, shown
from attnsim.models.question.words import whole

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
