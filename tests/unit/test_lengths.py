"""Lengths of each sequence: their text, files and distributions, and what no call can have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.question.case_row import parse_row, workload_of
from attnsim.models.question.lengths import Length, lengths_text, parse_lengths, read_lengths
from attnsim.models.question.workload import Workload


def of(lengths: object, **given: object) -> Workload:
    return Workload(heads_q=8, heads_kv=2, head_dim=64, lengths=lengths, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6:85 70:15489 80:657", [(6, 85, 1), (70, 15489, 1), (80, 657, 1)]),
        ("1:4096 x 63, 512:2560", [(1, 4096, 63), (512, 2560, 1)]),
        ("1:4k×63,512:2560", [(1, 4096, 63), (512, 2560, 1)]),
        ("1:4096 x63", [(1, 4096, 63)]),
        ("100, 200 x 2", [(100, 100, 1), (200, 200, 2)]),
    ],
)
def test_text_is_read_and_written_back(text: str, expected: list[tuple[int, int, int]]) -> None:
    found = parse_lengths(text)
    assert [tuple(one) for one in found] == expected
    assert parse_lengths(lengths_text(found)) == found


def test_a_number_alone_is_the_keys_of_one_query_in_decoding() -> None:
    assert of("100 200", passes="decode").lengths == (Length(1, 100), Length(1, 200))


def test_batch_and_longest_are_derived() -> None:
    w = of("1:4096 x 63, 512:2560")
    assert (w.batch, w.seq_q, w.seq_kv, w.queries, w.keys) == (64, 512, 4096, 575, 63 * 4096 + 2560)
    assert w.visible_pairs == w.all_pairs == 63 * 4096 + 512 * 2560
    causal = of("1:4096 x 63, 512:2560", mask=Mask.causal())
    assert causal.visible_pairs == 63 * 4096 + Mask.causal().visible_pairs(512, 2560)
    assert replace(w, heads_q=16).lengths == w.lengths


def test_sequences_of_one_length_are_a_batch_of_it() -> None:
    assert of([(100, 300), (100, 300)]) == of("100:300 x 2") == Workload(2, 8, 100, 64, 2, 300)


@pytest.mark.parametrize(
    ("lengths", "given", "told"),
    [
        ("0:5 6:7", {}, "with 0 queries"),
        ([(5, 0)], {}, "with 0 keys"),
        ("7:5 6", {}, "numbers with and without a colon"),
        ("1:65,536", {}, "with and without a colon"),
        ("1:a", {}, "write queries:keys of each sequence"),
        ("", {"seq_q": 0}, "seq_q is 0"),
        ("1:4 2:4", {"batch": 3}, "batch is 3 and the lengths say 2"),
        ("1:4 2:4", {"seq": 7}, "leave seq out"),
        ([(1, 2, 3, 4)], {}, "sequence 1 of lengths is (1, 2, 3, 4)"),
        ([1.5], {}, "lengths"),
    ],
)
def test_what_no_call_can_have_is_refused_in_a_line(lengths: object, given: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=r".") as caught:
        of(lengths, **given)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_distributions_draw_the_same_for_the_same_text() -> None:
    text = "lognormal 64 median 2048 sigma 1"
    drawn = read_lengths(text)
    assert drawn == read_lengths(text) != read_lengths(f"{text} seed 1") and len(drawn) == 64
    assert all(one.queries == one.keys for one in drawn)
    assert 1000 < sorted(one.keys for one in drawn)[32] < 4000
    decode = read_lengths("zipf 500 most 32768 exponent 1.2 least 16", decode=True)
    assert {one.queries for one in decode} == {1} and all(16 <= one.keys <= 32768 for one in decode)


NO_DISTRIBUTIONS = (
    "lognormal", "lognormal 8", "lognormal 8 median x sigma 1", "zipf 8 most 0 exponent 1",
    "lognormal 8 median 5 sigma 1 shape 2", "zipf 8 most 5 exponent 1 least 9",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_DISTRIBUTIONS)
def test_a_distribution_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_lengths(text)


def test_a_file_has_a_line_a_sequence_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "batch.csv"
    path.write_text("queries,keys,count,arrival\n512,2560,,0.5\n1,4096,63,0.1\n")
    assert read_lengths(str(path)) == (Length(1, 4096, 63), Length(512, 2560))
    path.write_text("queries,values\n1,2\n")
    with pytest.raises(InputError, match="column 'values'"):
        read_lengths(str(path))
    with pytest.raises(InputError, match="does not exist"):
        read_lengths(str(tmp_path / "none.csv"))


def test_a_row_of_a_table_may_say_lengths_instead() -> None:
    row = {"gpu": "h100", "heads_q": "8", "head_dim": "64", "lengths": "1:4096 x 63, 512:2560", "causal": "1"}
    case = parse_row(row)
    assert (case.batch, case.seq_q, case.seq_kv) == (64, 512, 4096)
    assert workload_of(case).lengths == (Length(1, 4096, 63), Length(512, 2560))
    with pytest.raises(InputError, match="batch is '3'; allowed: 64, as lengths say, or empty"):
        parse_row(row | {"batch": "3"})


def test_queries_that_see_nothing_are_told_and_refused_in_lengths() -> None:
    given: dict[str, Any] = {"lengths": (), "seq_q": 4096, "seq_kv": 100, "batch": 2}
    (told,) = of(mask=Mask.causal(), **given).unusual
    assert told.startswith("7,992 of 8,192") and "more queries than keys" in told
    assert not of(**given).unusual
    with pytest.raises(
        InputError, match=r"^lengths has a sequence 90:85 with more queries than keys, of which the mask"
    ):
        of("6:7, 90:85", mask=Mask.causal())
    assert of("6:7, 90:85").queries == 96
