"""split: every subset of the changes is replayed; shares multiply to the whole and do not hang on the order given."""

import json
import math
from itertools import permutations

import pytest

from attnsim import InputError, Mask, Workload, layer, load_gpu, plot, predict, split, split_layer
from attnsim.api.comparing.ratios import speedup
from attnsim.api.comparing.splitting import MOST
from attnsim.cli import main
from attnsim.models.hardware.gpu import Gpu
from tests.unit.answering import refusal

BASE = load_gpu("h100-sxm5-80gb")
QUESTION = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64, mask=Mask.causal())
SETTINGS = {"l2.bandwidth": "2x", "sm.exp_rate": "1.5x", "tensor.bf16": "1.5x"}


def changed(keys: tuple[str, ...] = tuple(SETTINGS)) -> Gpu:
    gpu = BASE
    for key in keys:
        gpu = gpu.replace(key, SETTINGS[key])
    return gpu


def time_s(gpu: Gpu) -> float:
    found = predict(QUESTION, gpu, baseline=False).time_s
    assert found is not None
    return found


def test_shares_are_the_mean_over_all_orders_and_multiply_to_the_whole() -> None:
    found = split(QUESTION, changed())
    whole = time_s(BASE) / time_s(changed())
    assert found.together.value == pytest.approx(whole) == pytest.approx(math.prod(p.mean.value for p in found.parts))
    for part in found.parts:
        steps = []
        for order in permutations(SETTINGS):
            before = order[: order.index(part.change.key)]
            steps.append(math.log(time_s(changed(before)) / time_s(changed((*before, part.change.key)))))
        assert math.log(part.mean.value) == pytest.approx(sum(steps) / len(steps), abs=1e-12)


def test_first_and_last_are_predictions_of_their_own() -> None:
    found = split(QUESTION, changed())
    for part in found.parts:
        rest = tuple(key for key in SETTINGS if key != part.change.key)
        assert part.alone.time_s == time_s(changed((part.change.key,)))
        assert part.without.time_s == time_s(changed(rest))
        assert part.first == speedup(found.unchanged, part.alone)
        assert part.last == speedup(part.without, found.changed)
        assert part.mean.low <= part.mean.value <= part.mean.high
        assert [change.key for change in part.alone.changes] == [part.change.key]


def test_a_change_that_does_nothing_has_no_share() -> None:
    (first, idle) = split(QUESTION, BASE.replace("tensor.bf16", "2x").replace("hbm.capacity", "2x")).parts
    assert idle.mean.value == 1 and first.mean.value == pytest.approx(first.first.value)


def test_what_cannot_be_split_is_refused_in_a_line() -> None:
    many = BASE
    for key in ("sm.count", "sm.exp_rate", "sm.fp32_rate", "l2.bandwidth", "l2.latency", "hbm.bandwidth",
                "hbm.latency", "tensor.bf16", "l2.capacity"):  # fmt: skip
        many = many.replace(key, "1.1x")
    together = BASE.replace("sm.shared_memory", "2x").replace("sm.shared_memory_per_block", "400 KiB")
    large = Workload(batch=64, heads_q=128, seq_q=1 << 20, head_dim=128)
    for question, gpu, words in (
        (QUESTION, BASE, "has 0 changed figures"),
        (QUESTION, BASE.replace("sm.count", "2x"), "has 1 changed figures"),
        (QUESTION, many, f"has 9 changed figures, of which every subset is replayed; allowed: 2 to {MOST}"),
        (QUESTION, together, "sm.shared_memory_per_block cannot be changed without the rest: a block's 400 KiB"),
        (large, changed(), "flash does not fit: needs"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            split(question, gpu)
        assert "\n" not in str(caught.value)


SHAPE = ("--gpu", "h100-sxm5-80gb", "--heads", "16", "--seq", "4096", "--head-dim", "64", "--causal")
TWO = ("--set", "l2.bandwidth=2x", "--set", "tensor.bf16=1.5x")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_predict_prints_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "predict", "--algorithm", "flash", *SHAPE, *TWO, "--split")
    assert code == 0 and "what each change brings" in text
    shared = text.partition("what each change brings")[2]
    lines = [line for line in shared.splitlines() if line.startswith(("l2.bandwidth", "tensor.bf16", "all together"))]
    assert [line.split()[0] for line in lines] == ["l2.bandwidth", "tensor.bf16", "all"]
    assert all("x (" in line for line in lines)


def test_json_of_predict_and_of_explain_has_the_same_split(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "predict", "--algorithm", "flash", *SHAPE, *TWO, "--split", "--json")
    (one,) = json.loads(text)
    assert code == 0 and [part["figure"] for part in one["parts"]] == ["l2.bandwidth", "tensor.bf16"]
    code, text, _ = run(capsys, "explain", "flash", *SHAPE, *TWO, "--split", "--json")
    (found,) = json.loads(text)
    assert code == 0 and found["split"]["parts"] == one["parts"]
    assert found["speedup"]["value"] == pytest.approx(one["together"]["value"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("predict", *SHAPE, "--split"), "there is none; give --set"),
        (("explain", "flash", *SHAPE, *TWO[:2], "--split"), "there is one, l2.bandwidth=2x"),
        (
            ("predict", "--gpu", BASE.id, "--layer", "--model", "llama-3-8b", "--seq", "512", "--split"),
            "there is none; give --set",
        ),
    ],
)
def test_a_split_of_too_little_is_refused(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = run(capsys, *words)
    assert code == 2 and told in error and not out


def test_a_layer_is_split_as_a_call_is() -> None:
    gpu = changed(("l2.bandwidth", "tensor.bf16"))
    found = split_layer("llama-3-8b", gpu, seq=1024)
    whole = layer("llama-3-8b", gpu, seq=1024).speedup_over(layer("llama-3-8b", BASE, seq=1024))
    assert found.together == whole
    assert found.together.value == pytest.approx(math.prod(part.mean.value for part in found.parts))
    tensor = {part.change.key: part for part in found.parts}["tensor.bf16"]
    assert tensor.first == layer("llama-3-8b", BASE.replace("tensor.bf16", "1.5x"), seq=1024).speedup_over(
        found.unchanged
    )
    assert tensor.mean.value > 1.1  # the power limit and what products wait for take the rest of it


def test_the_command_splits_a_layer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--layer", "--model", "llama-3-8b", "--gpu", BASE.id, "--seq", "512", "--split"]
    assert main([*words, "--set", "l2.bandwidth=2x", "--set", "hbm.bandwidth=2x", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [part["figure"] for part in found["parts"]] == ["l2.bandwidth", "hbm.bandwidth"]
    assert found["changed"]["model"] == "llama-3-8b"
    assert "--split shares out several changes" in refusal(capsys, *words, "--set", "l2.bandwidth=2x")


def test_a_change_that_brings_nothing_is_a_short_bar() -> None:
    """An axis of 0.998x to 1.004x once made a long bar of 0.3 %."""
    question = Workload(batch=1, heads_q=32, seq_q=8192, head_dim=128, mask=Mask.causal())  # bound by the SMs
    found = split(question, BASE.replace({"hbm.bandwidth": "2x", "hbm.capacity": "2x"}))
    axes = plot.split([found]).axes[0]
    low, high = axes.get_xlim()
    assert found.together.value < 1.01
    assert low <= 0.95 and high >= 1.05 and all(bar.get_extents().width < 0.1 * axes.bbox.width for bar in axes.patches)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("--seq", "512", "--batch", "2"), "layer with 1,024 tokens on"),
        (("--seq", "512", "--batch", "4", "--pass", "decode"), "layer with 4 tokens, 512 keys each on"),
        (("--seq", "512", "--pass", "decode"), "layer with 1 token, 512 keys each on"),
    ],
)
def test_the_split_of_a_layer_counts_the_tokens_of_its_call(
    call: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("predict", "--gpu", BASE.id, "--layer", "--model", "llama-3-8b", *call, *TWO, "--split")
    code, text, _ = run(capsys, *asked)
    assert code == 0 and told in " ".join(text.split())
