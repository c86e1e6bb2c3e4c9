"""Tensor parallelism: which heads a GPU has, what is refused, and that every question says what it leaves out."""

from __future__ import annotations

import pytest

from attnsim import load_model
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.llm.parallel import share_of_heads, share_of_model
from tests.unit.answering import refusal

GPU = ["--gpu", "h100-sxm5-80gb"]


@pytest.mark.parametrize(
    ("heads", "gpus", "share"),
    [((64, 8), 1, (64, 8)), ((64, 8), 8, (8, 1)), ((64, 8), 16, (4, 1)), ((64, 8), 4, (16, 2)), ((32, 32), 2, (16, 16)),
     ((8, 1), 4, (2, 1))],
)  # fmt: skip
def test_heads_are_divided_and_few_key_heads_copied(heads: tuple[int, int], gpus: int, share: tuple[int, int]) -> None:
    assert share_of_heads(*heads, gpus) == share


@pytest.mark.parametrize(
    ("heads", "gpus", "told"),
    [((64, 8), 3, "must divide 64 query heads: one of 1, 2, 4"), ((48, 4), 6, "4 key/value heads divide among"),
     ((64, 8), 128, "must divide 64 query heads"), ((64, 8), 0, "tp is 0")],
)  # fmt: skip
def test_heads_that_do_not_divide_are_refused(heads: tuple[int, int], gpus: int, told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        share_of_heads(*heads, gpus)
    assert "\n" not in str(refused.value)


def test_the_rest_of_a_model_is_divided_too() -> None:
    whole, part = load_model("deepseek-v3"), share_of_model(load_model("deepseek-v3"), 16)
    assert part.mlp is not None and part.mlp.experts is not None and whole.mlp is not None
    assert (part.mlp.width, part.mlp.experts.width, part.vocabulary) == (18432 // 16, 128, 129280 // 16)
    assert part.latent == whole.latent and part.hidden == whole.hidden and part.heads_kv == part.heads_q == 8
    assert share_of_model(whole, 1) is whole
    with pytest.raises(InputError, match="must divide the MLP's width of 18944"):
        share_of_model(load_model("qwen2.5-7b"), 28)


def test_every_question_says_that_it_is_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--heads", "64", "--kv-heads", "8", "--seq", "1024", "--head-dim", "128", "--causal", "--tp", "8"]
    for command in (["predict"], ["explain", "flash"], ["sensitivity"], ["search", "tile"]):
        assert main([*command, *GPU, *shape]) == 0
        text = capsys.readouterr().out
        assert text.startswith("one of 8 GPUs (all-reduces left out): batch 1, heads 8/1, seq 1024"), command
        assert "tp is 7; it must divide 64 query heads" in refusal(capsys, *command, *GPU, *shape[:-1], "7")
    assert main(["predict", *GPU, "--model", "llama-3-70b", "--seq", "1024", "--tp", "8"]) == 0
    assert capsys.readouterr().out.startswith("llama-3-70b, one of 8 GPUs (all-reduces left out): batch 1, heads 8/1")
