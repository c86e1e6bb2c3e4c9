"""Measured batches of unequal lengths: errors within what is promised, and below those of the usual guesses."""

from __future__ import annotations

from typing import Any

from attnsim.validation.checking.batches import mixed, skewed
from attnsim.validation.measured.datasets import batches
from attnsim.validation.measured.sources import batch_sources


def by_what(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in reversed(rows)}


def test_every_row_has_a_source_of_its_table() -> None:
    for source in batch_sources().values():
        for table in source.tables:
            assert {row.case.source for row in batches(table)} == {source.name}


def test_mixed_calls_are_held_out_within_four_percent_and_below_the_guesses() -> None:
    rows = by_what(mixed())
    for what in ("a band of chunks left out", "a band of caches left out"):
        assert rows[what]["mean"] <= 0.04 and rows[what]["p90"] <= 0.08
        guesses = [rows[guess]["mean"] for guess in ("sum of its parts", "longest of its parts")]
        assert rows[what]["mean"] < 0.2 * min(guesses)


def test_skew_is_told_better_than_by_the_mean_length() -> None:
    rows = by_what(skewed())
    assert rows["ratio to the mean length"]["mean"] <= 0.03 < rows["guess: as the mean length"]["mean"]
    assert rows["the same, above 1.1"]["mean"] <= 0.05
