"""Damaged files of every kind: a reader answers or refuses in one line; `benchmarks/fuzz.py` reads 20,000 of them."""

from collections import Counter

import pytest

from benchmarks.fuzz import extremes, readers, run


def test_damaged_files_are_answered_or_refused() -> None:
    kinds: Counter[tuple[str, str]] = Counter()
    for name, number, outcome in run(600, seed=1):
        assert outcome in ("answered", "refused"), f"{name}, input {number}: {outcome}"
        kinds[name, outcome] += 1
    assert {name for name, _ in kinds} == {reader.name for reader in readers()}
    assert all(kinds[reader.name, "refused"] for reader in readers())
    assert sum(kinds[reader.name, "answered"] for reader in readers()) >= 300  # what is behind the readers is reached


@pytest.mark.parametrize("reader", readers(), ids=lambda reader: reader.name)
def test_what_is_damaged_was_whole(reader: object) -> None:
    for example in reader.examples:  # type: ignore[attr-defined]
        reader.read(example)  # type: ignore[attr-defined]


def test_extreme_questions_have_finite_answers_in_order() -> None:
    assert {what: wrong for what, wrong in extremes() if wrong} == {}
