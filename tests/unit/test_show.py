"""Tables for people: whole at every width, in parts where the terminal is narrow."""

from pathlib import Path

import pytest
from rich.console import Console

import attnsim
from attnsim.api.comparing.baselines import ratios_over_unchanged
from attnsim.cli import main
from attnsim.cli.show import console, print_blocks, print_remarks, print_table
from attnsim.plots.document import Document, Section, html_text, markdown_text
from attnsim.reports.predictions import predicted
from attnsim.tables import REMARKS, Remarks, Table, Unfolded, texts
from attnsim.wording import NOTHING

WINDOWED = attnsim.Workload(1, 32, 8192, 128, heads_kv=8, mask=attnsim.Mask.sliding_window(1024))
ROWS = [
    {"gpu": f"gpu-of-a-long-name-{number}", "what it is": "many short words " * 4, "time": 1.5 * number, "none": None}
    for number in range(3)
]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_predictions_fit_the_terminal_and_no_cell_is_cut(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = attnsim.compare(WINDOWED, "h100-sxm5-80gb", ["naive", "flash", "sliding-window"])
    over = [ratios_over_unchanged(found, found)]
    print_table(Console(width=width, highlight=False), predicted("a title", found, over, verbose=True))
    lines = printed(capsys)
    assert max(map(len, lines)) <= width
    words = [word for line in lines for word in line.split()]
    assert {"TFLOP/s", "90", "range", "waves", "trust", "validated", "extrapolated", "1.00x"} <= set(words)
    parts = sum(line.startswith("algorithm") for line in lines)
    assert parts == (1 if width >= 100 else 2)
    assert words.count("sliding-window") == parts, "every part says whose line it is"


@pytest.mark.parametrize("width", [48, 60, 80])
def test_long_texts_are_folded_between_words(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Console(width=width, highlight=False), Table("", ROWS))
    lines = printed(capsys)
    assert max(map(len, lines)) <= width
    words = [word for line in lines for word in line.split()]
    assert words.count("many") == words.count("short") == 12
    assert {"gpu-of-a-long-name-2", "1.5", NOTHING} <= set(words)


def test_rows_that_differ_in_their_second_column_keep_it_in_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"gpu": "a", "pass": one, **{f"column {n}": "x" * 20 for n in range(4)}} for one in ("fwd", "bwd")]
    print_table(Console(width=60, highlight=False), Table("", rows))
    lines = printed(capsys)
    assert sum(line.startswith("a  bwd") or line.startswith("a    bwd") for line in lines) == 2


def test_a_table_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{f"column {n}": "x" * 20 for n in range(8)}]
    print_table(console(), Table("", rows))
    heads, rule, cells, _ = printed(capsys)
    assert heads.split("  ")[0] == "column 0" and "column 7" in heads and cells.count("x" * 20) == 8
    assert len(rule) == len(cells) > 160


def test_a_cell_wider_than_the_terminal_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = f"flash_forward({'Bfloat16,' * 9})"
    print_table(Console(width=60, highlight=False), Table("", [{"kernel": kernel, "time": "3 us"}], whole=["kernel"]))
    assert kernel in "\n".join(printed(capsys))


def test_remarks_stand_below_their_table_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("times", [{"a": 1}], remarks=["a is < 2.", "b is not asked."])
    print_blocks(console(), ["above\n", table, Remarks("in short", ["at length"]), Unfolded("x " * 60)], verbose=True)
    lines = printed(capsys)
    assert [line.strip() for line in lines if line.strip("─ ")] == [
        *("above", "times", "a", "1", "a is < 2.", "b is not asked.", "at length", ("x " * 60).strip()),
    ]
    assert table.html.endswith("</table><p>a is &lt; 2.</p><p>b is not asked.</p>")
    document = Document("title", (), (Section("one", "One", (table,)),))
    assert "</table></div><p>a is &lt; 2.</p><p>b is not asked.</p>" in html_text(document)
    assert "| 1 |\n\na is \\< 2.\n\nb is not asked." in markdown_text(document, "files")


def test_a_record_is_shown_by_the_format_of_its_column() -> None:
    rows: list[dict[str, object]] = [{"mean": 0.125, "rows": 3, "note": None}, {"mean": None, "rows": 4, "note": "x"}]
    assert texts(rows, {"mean": "{:.1%}".format}, without=("note",)) == [
        {"mean": "12.5%", "rows": 3},
        {"mean": "", "rows": 4},
    ]
    assert texts(rows, {}, {"note": "", "rows": "number"}) == [{"": None, "number": 3}, {"": "x", "number": 4}]


def test_an_empty_table_is_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Console(width=60, highlight=False), Table("nothing found", []))
    assert printed(capsys)[0] == "nothing found"


def test_remarks_that_differ_by_gpu_say_which(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["--heads", "16", "--seq", "2048", "--head-dim", "128"]
    assert main(["predict", "--gpu", "a100-sxm4-80gb,h100-sxm5-80gb", "--algorithm", "flash", *question, "-v"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "flash on a100-sxm4-80gb: flash-attn.2, tile",
        "flash on h100-sxm5-80gb: flash-attn.3, tile",
        "SM clock: a100-sxm4-80gb 1410 MHz (boost), h100-sxm5-80gb 1863 MHz (under load)",
    ):
        assert words in text


LEVELS = ("validated: ", "interpolated: ", "extrapolated: ")


@pytest.mark.parametrize(
    ("command", "levels"),
    [
        ("predict --gpu h100-sxm5-80gb", {"validated"}),
        ("predict --gpu h100-sxm5-80gb,a100-sxm4-80gb,l4 --set hbm.bandwidth=2x", {"validated", "extrapolated"}),
        ("predict --gpu h100-sxm5-80gb --set power.limit=200W --algorithm flash", {"validated", "extrapolated"}),
        ("roofline --gpu h100-sxm5-80gb --out {folder}/one.png", {"validated"}),
        ("sensitivity --gpu l4", set()),
    ],
)
def test_remarks_are_two_lines_without_v(
    command: str, levels: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.format(folder=tmp_path).split()
    assert main([*words, "--model", "llama-3-8b", "--seq", "4096"]) == 0
    text = capsys.readouterr().out
    *_, last = (part for part in text.split("\n\n") if part.strip())
    lines = [line for line in last.splitlines() if not line.startswith(("written:", "power.limit is felt"))]
    first = next((at for at, line in enumerate(lines) if line.startswith(LEVELS)), 0)  # findings stand above
    lines = lines[first:]
    assert len(lines) <= REMARKS and "-v says" in " ".join(lines)
    assert all(f"{level}: " in " ".join(lines) for level in levels)
    assert ("power.limit is felt" in text) == ("power" in command), "what was found of the question is always said"
    assert main([*words, "--model", "llama-3-8b", "--seq", "4096", "-v"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(text.splitlines())


@pytest.mark.parametrize(
    ("command", "only_with_v"),
    [
        ("explain flash", "as busy at: how much faster"),
        ("search tile", "tiles fit, "),
        ("predict --layer --lengths 1:512x8", "trust: "),
    ],
)
def test_what_columns_mean_and_why_is_said_with_v(
    command: str, only_with_v: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), "--gpu", "l4", "--model", "llama-3-8b"]
    words += [] if "--lengths" in words else ["--seq", "512"]
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert only_with_v not in text and "-v " in text
    assert main([*words, "-v"]) == 0
    assert only_with_v in " ".join(capsys.readouterr().out.split())


def test_a_speedup_by_another_function_says_so_without_v(capsys: pytest.CaptureFixture[str]) -> None:
    question = [
        "predict",
        "--gpu",
        "l4",
        "--heads",
        "8",
        "--seq",
        "512",
        "--head-dim",
        "64",
        "--algorithm",
        "flash,linear",
    ]
    assert main(question) == 0 and "error of O against softmax attention" in capsys.readouterr().out
    assert main([*question, "-v"]) == 0
    assert capsys.readouterr().out.count("error of O against softmax attention") == 1


def test_no_remark_is_longer_than_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_remarks(console(), Remarks("word " * 100, ["one", "two", "three", "one"]))
    assert len(capsys.readouterr().out.splitlines()) == REMARKS
    print_remarks(console(), Remarks("word " * 100, ["one", "two", "three", "one"]), verbose=True)
    assert capsys.readouterr().out.splitlines() == ["one", "two", "three"]
