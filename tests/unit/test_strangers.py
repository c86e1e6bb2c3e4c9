"""Inputs as strangers write them are answered rightly, and the runner that says so sees what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnsim.errors import InputError
from benchmarks import strangers

KINDS = sorted(path.stem for path in strangers.FOLDER.glob("*.yaml"))
QUESTION = ["--gpu", "h100", "--heads", "8", "--seq", "1024", "--head-dim", "64"]


def judged(run: list[str], **expect: Any) -> str:
    given = {"id": "x", "source": "nowhere at all", "run": run, "expect": expect, "because": "a test says so"}
    return strangers.judge("test", strangers.Input.model_validate(given)).outcome


@pytest.mark.parametrize("kind", KINDS)
def test_no_input_is_silently_wrong_and_nearly_all_are_right(kind: str) -> None:
    outcomes = [strangers.judge(kind, one) for _, one in strangers.read([kind])]
    wrong = [one for one in outcomes if one.outcome not in (strangers.RIGHT, strangers.REFUSED)]
    assert not [one for one in wrong if one.outcome == strangers.SILENT]
    assert len(wrong) <= 0.05 * len(outcomes), strangers.table(wrong)


def test_each_outcome_is_told_from_the_others() -> None:
    ask = ["predict", *QUESTION]
    assert judged(ask, json={"1.algorithm": "flash"}, says=["flash-attn.3"]) == strangers.RIGHT
    assert judged([*ask, "--dtype", "banana"], exit=2, says=["banana"]) == strangers.REFUSED
    assert judged([*ask, "--dtype", "banana"], exit=2, says=["something else"]) == strangers.SAID
    assert judged([*ask, "--dtype", "banana"], says=["flash"]) == strangers.SAID
    assert judged(ask, json={"1.algorithm": "naive"}) == strangers.SILENT
    assert judged(ask, json={"algorithm=flash.time_s": {"near": 1.0, "within": 0.1}}) == strangers.SILENT
    assert judged(ask, same_as=[*ask, "--causal"]) == strangers.SILENT
    assert judged(ask, differs_from=[*ask, "--causal"]) == strangers.RIGHT
    assert judged(ask, differs_from=ask) == strangers.SILENT
    assert judged(ask, same_as=ask) == strangers.RIGHT


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("expect: {says: [a], exits: 2}", "Extra inputs are not permitted"),
        ("expect: {exit: 0}", "says nothing of the answer"),
        ("expect: {says: ['(']}", "is no regular expression"),
    ],
)
def test_a_file_of_inputs_is_read_strictly(given: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(f"- id: a\n  source: nowhere at all\n  run: [predict]\n  because: a test says so\n  {given}\n")
    with pytest.raises(InputError, match=told):
        strangers.read(["odd"], tmp_path)
