"""docs/regimes.md: its tables are those of docs/regimes.csv, which is what is predicted, and a winner has earned it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from attnsim.api.comparing.ratios import Ratio
from benchmarks import regimes
from benchmarks.regimes import GROUPS, NAMES, PASSES, TOKENS, Row

ROWS = regimes.read()


def test_page_shows_the_table() -> None:
    text = regimes.PAGE.read_text(encoding="utf-8")
    assert regimes.page(text, ROWS) == text, "python benchmarks/regimes.py --page"


@pytest.mark.parametrize("gpu", regimes.GPUS)
def test_table_is_what_is_predicted(gpu: str) -> None:
    lengths = (4096, 16384)
    found = list(regimes.played((gpu,), lengths))
    there = [row for row in ROWS if row.gpu == gpu and row.tokens in lengths]
    assert [(one.name, one.implementation) for one in found] == [(one.name, one.implementation) for one in there]
    for one, other in zip(found, there, strict=True):
        assert one.time_s == pytest.approx(other.time_s, rel=1e-6), "python benchmarks/regimes.py"
        for group in GROUPS:
            ratio, known = getattr(one, f"over_{group}"), getattr(other, f"over_{group}")
            assert (ratio is None) == (known is None)
            assert ratio is None or ratio.low == pytest.approx(known.low, rel=1e-6)


def test_every_cell_is_there_or_left_out_with_a_reason() -> None:
    there = {(row.gpu, row.passes, row.tokens, row.name) for row in ROWS}
    for gpu in regimes.GPUS:
        for passes in PASSES:
            for tokens in TOKENS:
                missing = {name for name in NAMES if (gpu, passes, tokens, name) not in there}
                assert missing == ({"NSA"} if gpu.startswith("b200") else set())


def _rows(*ratios: Ratio | None) -> Sequence[Row]:
    return [replace(ROWS[0], name=name, over_all=ratio) for name, ratio in zip(GROUPS["all"], ratios, strict=False)]


def test_a_winner_is_named_only_above_every_range() -> None:
    first, clear, near = Ratio(1, 1, 1), Ratio(2, 1.5, 2.7), Ratio(1.3, 0.9, 1.9)
    assert regimes.verdict(_rows(clear, first)) == "**window**"
    assert regimes.verdict(_rows(clear, first, near)) == "cannot tell: window, NSA"
    assert regimes.verdict(_rows(first, None)) == "only full"
    assert regimes.verdict(_rows(None, None)) == "-"
