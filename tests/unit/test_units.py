"""Quantities: what is read, what is refused, and that writing and reading agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnsim.errors import InputError
from attnsim.units import EXAMPLES, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("3.35 TB/s", "B/s", 3.35e12),
        ("3.35TB/s", "B/s", 3.35e12),
        ("5 TiB/s", "B/s", 5 * 2**40),
        ("228 KiB", "B", 228 * 1024),
        ("80 GB", "B", 80e9),
        ("80 GiB", "B", 80 * 2**30),
        ("1410 MHz", "Hz", 1.41e9),
        ("1.5GHz", "Hz", 1.5e9),
        ("2.6 us", "s", 2.6e-6),
        ("2.6 µs", "s", 2.6e-6),
        ("1e3 ns", "s", 1e-6),
        ("2048 FLOP/clk", "FLOP/clk", 2048.0),
        ("2048", "FLOP/clk", 2048.0),
        ("16 op/clk", "op/clk", 16.0),
        ("128 B/clk", "B/clk", 128.0),
        ("291 cycles", "clk", 291.0),
        ("700 W", "W", 700.0),
        ("0.7 kW", "W", 700.0),
        ("62.9 %", "1", 0.629),
        ("160", "1", 160.0),
        # pint reads what the table does not know
        ("30 Gbit/s", "B/s", 30e9 / 8),
        ("0.5 GB/ms", "B/s", 5e11),
        ("3 kFLOP/clk", "FLOP/clk", 3000.0),
    ],
)
def test_reads(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "word"),
    [
        ("", "B/s", "3.35 TB/s"),
        ("fast", "B/s", "3.35 TB/s"),
        ("3", "B/s", "no unit"),
        ("3 GHz", "B/s", "GHz"),
        ("3 TB", "B/s", "TB"),
        ("3 TB/s", "B", "TB/s"),
        ("3 foo", "B/s", "foo"),
        ("228 KB", "B", "KiB"),
        ("989 TFLOP/s", "FLOP/clk", "FLOP/clk"),
        ("3 W/s", "W", "W/s"),
        ("nan", "1", "plain number"),
        ("inf W", "W", "700 W"),
        ("1e999 B", "B", "finite"),
        ("3 __import__('os')", "W", "no known unit"),
        ("3 " + "G" * 500, "W", "no known unit"),
        ("3 9**9**9", "W", "no known unit"),
    ],
)
def test_refuses_in_one_line(text: str, unit: str, word: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_quantity(text, unit)
    message = str(caught.value)
    assert word in message
    assert "\n" not in message
    assert len(message) < 250


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (300e9, "B/s", "300 GB/s"),
        (228 * 1024, "B", "228 KiB"),
        (126.5 * 2**20, "B", "126.5 MiB"),
        (80e9, "B", "80 GB"),
        (80 * 2**30, "B", "80 GiB"),
        (1.83e9, "Hz", "1830 MHz"),
        (2.43e-6, "s", "2.43 us"),
        (0.0, "s", "0 s"),
        (4096.0, "FLOP/clk", "4096 FLOP/clk"),
        (0.629, "1", "0.629"),
        (132.0, "1", "132"),
    ],
)
def test_writes_as_people_do(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@given(value=st.floats(1e-12, 1e18), unit=st.sampled_from(sorted(EXAMPLES)))
def test_written_values_are_read_back_exactly(value: float, unit: str) -> None:
    assert parse_quantity(format_quantity(value, unit), unit) == value
