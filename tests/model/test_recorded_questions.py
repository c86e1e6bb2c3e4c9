"""The recorded questions have the answers that were written down with them."""

import math
from typing import Any

import pytest

from benchmarks.recorded_questions import answer, read

QUESTIONS = read()


def near(one: Any, other: Any) -> bool:
    """Equal but for the last bits of a float, which another machine's mathematics may round differently."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("part", range(4))
def test_answers_are_those_recorded(part: int) -> None:
    """`python benchmarks/recorded_questions.py` lists what moved; `--write` records it where it was meant to."""
    for row in QUESTIONS[part::4]:
        assert near(row["answer"], answer(row["question"])), row["question"]
