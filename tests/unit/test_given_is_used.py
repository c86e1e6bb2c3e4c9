"""Flags of selections, pages, prefixes and trees from the terminal: used by what is asked, or refused in one line."""

import json
from pathlib import Path

import pytest

from attnsim.cli import main

QUESTION = ["--gpu", "h100-sxm5-80gb", "--heads", "32", "--kv-heads", "4", "--head-dim", "128"]
PROMPT = [*QUESTION, "--seq", "4096", "--causal"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["predict", *PROMPT, "--algorithm", "flash", "--selection", "top 16x64"], "take --algorithm nsa-selected"),
        (["explain", "flash", *PROMPT, "--selection", "top 16x64"], "attends to all keys of the mask"),
        (["search", "tile", *PROMPT, "--selection", "top 16x64"], "attends to all keys of the mask"),
        (["predict", *PROMPT, "--algorithm", "nsa-selected", "--selection", "top 16x64, window 99"], "has no window"),
        (["predict", *PROMPT, "--algorithm", "nsa-selected", "--pass", "decode"], "no decode kernels"),
        (
            ["predict", *QUESTION, "--seq", "4096", "--algorithm", "sparse", "--mask", "window"],
            "'window' is not understood",
        ),
        (["predict", *PROMPT, "--tree", " "], "the tree has 0 tokens"),
        (
            ["predict", *QUESTION, "--seq", "4096", "--pass", "decode", "--prefix", "1024", "--algorithm", "flash-3"],
            "take flashinfer.cascade",
        ),
        (["breakeven", *PROMPT, "--selection", "top 16x64"], "breakeven has no --selection"),
    ],
)
def test_what_nothing_uses_is_refused_in_a_line(
    given: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    said = capsys.readouterr()
    assert said.out == "" and told in said.err.splitlines()[-1]


def test_a_paged_question_is_asked_of_what_has_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *QUESTION, "--lengths", "1:4096 x 16", "--page-size", "16", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["algorithm"] == "flash" and found["implementation"] == "vllm.flash-attn-3"


def test_pictures_of_one_question_take_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "units.png"
    lengths = ["--lengths", "6:85 70:4096", "--algorithm", "flash", "--out", str(out)]
    assert main(["plot", "units", *QUESTION, *lengths]) == 0
    assert out.is_file() and "seq 6:85, 70:4096" in capsys.readouterr().out.replace("\n", " ")
