"""`attnsim accuracy`: ten lines and a sentence first, rows chosen by name, and the long list in a file."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from attnsim.cli import main
from attnsim.validation.checking.accuracy import NAMED, every_row, overview, select, sentence
from attnsim.validation.fitting.held_out import NEVER, held_out_predictions
from tests.unit.answering import refusal

ABLATION = ("accuracy", "--source", "fa3_table2,fa3_fig6", "--implementation", "flash-attn.3")


def test_accuracy_begins_with_ten_lines_and_a_sentence_to_cite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "errors.csv"
    assert main([*ABLATION, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines() if "%" in line][:4]
    assert [row[0] for row in rows] == ["all", "forward", "training", "hopper"]
    (total,) = re.findall(r"^all +(\d+)  ([\d.]+ %)", text, re.MULTILINE)
    told = " ".join(text.split())
    assert re.search(r"To cite: attnsim \S+ \(calibration [0-9a-f]{12}\): on", told)
    assert f"on {total[0]} measurements" in told and f"| is {total[1]}, the median" in told
    assert "(GPU: h100-sxm5-80gb, implementation: flash-attn.3, tables: 2)" in told
    assert len(text.splitlines()) < 20 and "step_clks" not in text
    table = pd.read_csv(out)
    assert {"summary", "error", "constant"} <= set(table["kind"]) and "step_clks" in set(table["number"])
    errors = table[table["kind"] == "error"]
    assert set(errors["source"]) == {"fa3_table2", "fa3_fig6"} and set(errors["implementation"]) == {"flash-attn.3"}
    assert int(errors[(errors["band"] == "all") & (errors["split"] != "head_dim")]["rows"].sum()) == int(total[0])
    assert main([*ABLATION, "-v"]) == 0
    assert "step_clks" in capsys.readouterr().out


def test_rows_are_chosen_by_a_name_or_how_it_begins() -> None:
    every = every_row()
    assert len(every) == len(select(every, {})) > len(select(every, {"gpu": ["h100"]})) > 0
    for kind, name in NAMED.items():
        word = name(every[0])
        found = select(every, {kind: [word, "no such"]})
        assert found and all(name(row).startswith(word) for row in found)
    both = {"gpu": ["a100"], "source": ["fa2"]}
    assert {row.case.gpu for row in select(every, both)} == {"a100-sxm4-80gb"}


def test_the_first_table_counts_each_row_once() -> None:
    rows = select(every_row(), {"source": ["fa2_fig4"], "implementation": ["flash-attn.2"]})
    held = held_out_predictions(rows)
    assert len(held) > len(rows), "a row is predicted with its band left out, and with its head_dim left out"
    assert {line["rows"] for line in overview(held)} == {len(rows)}


def test_the_sentence_to_cite_says_what_the_fit_used_of_the_tables() -> None:
    """The rows never fitted, and their mean, which the mean of all hides; names of few GPUs, the number of many."""
    rows = select(every_row(), {"gpu": ["h100"], "implementation": ["flash-attn.3"]})
    once = list({id(one.row): one for one in held_out_predictions(rows)}.values())
    never = [one.error for one in once if one.split == NEVER]
    text = sentence(once)
    assert 0 < len(never) < len(once)
    assert f"{len(once) - len(never)} are of tables whose other lengths" in text
    assert f"{len(never)} are of tables that the fit of their implementation did not use" in text
    assert text.endswith(f"mean {100 * sum(never) / len(never):.1f} %")
    row = rows[0]
    gpus = [replace(row.gpu, id=name, base_id=name) for name in ("a", "b", "c", "d")]
    four = [replace(once[0], row=replace(row, gpu=gpu)) for gpu in gpus]
    assert "(GPUs: a, b, c, implementation:" in sentence(four[:3]) and "(GPUs: 4, implementation:" in sentence(four)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--gpu", "h010"), "--gpu 'h010' is of no measured row; nearest:"),
        (("--gpu", "l40"), "--gpu 'l40' is of no measured row; nearest: l40s"),
        (("--source", "fa1", "--gpu", "b200"), "no measured row is of --gpu b200 --source fa1 at once; leave one out"),
        (("--claims", "--gpu", "h100"), "--gpu is about the errors of all measurements, which are not asked for"),
        (("--out", "errors.txt"), "end the name with .csv or .parquet"),
    ],
)
def test_what_chooses_no_row_is_refused(given: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refusal(capsys, "accuracy", *given)
