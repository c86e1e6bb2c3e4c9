"""The attention layer: its steps, the Python functions and the command."""

import json

import pytest

from attnsim import attention_share, layer, load_gpu, load_model
from attnsim.cli import main
from attnsim.models.errors import InputError
from attnsim.models.implementations.frameworks.layer import Step, steps
from attnsim.models.llm.model import Model

GPU = "h100-sxm5-80gb"


def shapes(found: tuple[Step, ...]) -> dict[str, list[tuple[int, int, int]]]:
    return {step.name: [product.shape for product in step.products] for step in found}


def question(name: str, **changes: object) -> tuple[Model, tuple[Step, ...], tuple[Step, ...]]:
    model = load_model(name)
    attention = changes.pop("attention", ())
    direction = changes.pop("direction", "fwd")
    w = model.workload(batch=2, seq=100, **changes)  # type: ignore[arg-type]
    around = steps(model, w, direction, attention)  # type: ignore[arg-type]
    return model, around.before, around.after


def test_q_k_and_v_are_one_product_and_rotary_follows() -> None:
    model, before, after = question("llama-3-8b")
    assert shapes(before) == {"QKV projection": [(200, 32 * 128 + 2 * 8 * 128, 4096)], "rotary": []}
    assert before[1].turned == (("Q", 200 * 32 * 128), ("K", 200 * 8 * 128))
    assert shapes(after) == {"O projection": [(200, 4096, 4096)]}
    assert sum(step.flops for step in (*before, *after)) == 2 * 200 * model.hidden * (2 * 32 + 2 * 8) * 128
    _, plain, _ = question("gpt2-xl")
    assert [step.name for step in plain] == ["QKV projection"]  # positions are learnt, nothing turns


def test_a_decode_step_multiplies_one_row_a_sequence() -> None:
    _, before, after = question("llama-3-8b", passes="decode")
    assert [step.products[0].shape[0] for step in (before[0], after[0])] == [2, 2]


def test_a_latent_has_down_and_up_projections() -> None:
    _, before, after = question("deepseek-v3")
    assert shapes(before) == {
        "down projections": [(200, 1536 + 512 + 64, 7168)],
        "Q up projection": [(200, 128 * 192, 1536)],
        "rotary": [],
        "KV up projection": [(200, 128 * (128 + 128), 512)],
    }
    assert before[2].turned == (("Q", 200 * 128 * 64), ("K", 200 * 64))
    assert shapes(after) == {"O projection": [(200, 7168, 128 * 128)]}


def test_what_the_attention_call_does_itself_is_not_counted_twice() -> None:
    _, decompressed, _ = question("deepseek-v3", attention=("decompress", "concat_k", "flash_fwd"))
    assert "KV up projection" not in shapes(decompressed)
    _, before, after = question("deepseek-v3", passes="decode", attention=("latent_attention", "combine"))
    assert shapes(before)["W_UK into Q"] == [(2, 512, 128)] and before[-1].products[0].batch == 128
    assert shapes(after)["W_UV into O"] == [(2, 128, 512)]
    _, before, after = question("deepseek-v3", passes="decode", attention=("absorb_q", "latent_attention"))
    assert "W_UK into Q" not in shapes(before) and "W_UV into O" not in shapes(after)


def test_backward_multiplies_twice() -> None:
    _, before, after = question("llama-3-8b", direction="bwd")
    assert shapes(before) == {"O projection, backward": [(200, 4096, 4096), (4096, 4096, 200)]}
    assert shapes(after) == {
        "rotary, backward": [],
        "QKV projection, backward": [(200, 4096, 6144), (4096, 6144, 200)],
    }
    _, first, last = question("llama-3-8b")
    forward = sum(step.flops for step in (*first, *last))
    assert sum(step.flops for step in (*before, *after)) == 2 * forward


def test_the_parts_add_up() -> None:
    found = layer("llama-3-8b", GPU, batch=1, seq=2048)
    assert [part.name for part in found.parts] == ["QKV projection", "rotary", "attention", "O projection"]
    assert found.time_s == pytest.approx(sum(part.time_s or 0 for part in found.parts))
    assert found.attention_time_s == found.attention[0].time_s
    assert found.attention_share == pytest.approx((found.attention_time_s or 0) / (found.time_s or 1))
    assert found.trust.level == "extrapolated" and "no calibration" in found.trust.reason
    assert found.trust.low < 1 < found.trust.high
    assert found.flops_useful == sum(part.flops_useful for part in found.parts)
    both = layer("gpt2-small", "a100-sxm4-80gb", batch=4, seq=512, pass_="fwd+bwd")
    assert [part.name for part in both.parts] == [
        "QKV projection", "attention", "O projection", "O projection, backward", "attention, backward",
        "QKV projection, backward",
    ]  # fmt: skip
    assert both.workload.passes == "fwd+bwd" and len(both.attention) == 2


def test_the_mask_of_the_model_is_played() -> None:
    played = {name: layer(name, "a100-sxm4-80gb", seq=1024).attention[0].algorithm for name in WINDOWED}
    assert played == WINDOWED


WINDOWED = {"llama-2-7b": "flash", "mistral-7b": "sliding-window", "bigbird-base": "sparse"}


def test_what_does_not_fit_has_no_time() -> None:
    found = layer("llama-2-7b", "l4", batch=64, seq=16384, algorithm="naive")
    assert found.time_s is None and found.attention_share is None and found.parts[0].time_s
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="model is 3"):
        layer(3, GPU, seq=8)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no length"):
        attention_share("llama-3-8b", GPU, [])
    with pytest.raises(InputError, match="seq_q is 0"):
        layer("llama-3-8b", GPU, seq=0)
    with pytest.raises(InputError, match="no bf16"):
        layer("llama-3-8b", "v100-sxm2-32gb", seq=512)


def test_the_command_prints_parts_and_shares(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["predict", "--layer", "--model", "llama-3-8b", "--gpu", GPU, "--seq"]
    assert main([*ask, "2048"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    rows = [line.split("  ")[0] for line in text.splitlines()]
    assert [row for row in rows if row in PARTS] == PARTS
    assert "Left out: normalisation" in text and "attention: flash, flash-attn.3" in text
    assert main([*ask, "512,4096"]) == 0
    shares = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith(" %")]
    assert [line[0] for line in shares] == ["512", "4096"]
    assert float(shares[0][-2]) < float(shares[1][-2])
    assert main([*ask, "512,4096", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [answer["seq_q"] for answer in answers] == [512, 4096] and answers[0]["cache"] == "cold"
    for arguments, told in (
        ([*ask, "512", "--tile", "128x64"], "--tile does not go with --layer"),
        ([*ask, "512,x"], "--seq: 'x' given"),
        (ask[:-1], "--seq is missing"),
        (["predict", "--layer", "--gpu", GPU, "--seq", "8"], "--layer needs a model"),
        (["predict", "--model", "llama-3-8b", "--gpu", GPU, "--seq", "8,9"], "several lengths"),
    ):
        assert main(arguments) == 2, arguments
        assert told in capsys.readouterr().err


PARTS = ["QKV projection", "rotary", "attention", "O projection", "layer"]


def test_latent_attention_brings_its_own_products() -> None:
    for passes in ("fwd", "decode"):
        found = layer("deepseek-v3", GPU, batch=2, seq=1024, pass_=passes)
        assert found.attention[0].algorithm == "mla"
        assert [part.name for part in found.parts] == [
            "down projections", "Q up projection", "rotary", "attention", "O projection",
        ]  # fmt: skip
    backward = layer("deepseek-v3", GPU, batch=1, seq=1024, pass_="bwd")
    assert backward.attention[0].algorithm == "flash"
    assert "KV up projection, backward" in [part.name for part in backward.parts]


def test_power_is_felt_over_the_whole_layer() -> None:
    """No part of it is long enough alone, all of them together are."""
    gpu = load_gpu("h100-sxm5-80gb")
    limits = (gpu.replace("power.limit", limit) for limit in ("1.4 kW", "450 W"))
    hungry, frugal = (layer("llama-3-8b", one, seq=16384) for one in limits)
    assert all(0 < (part.time_s or 0) < 8e-3 for part in hungry.parts)
    for fast, slow in zip(hungry.parts, frugal.parts, strict=True):
        assert (slow.time_s or 0) >= (fast.time_s or 0) * 0.99, slow.name
    assert hungry.attention[0].clock_by == "boost" and frugal.attention[0].clock_by == "power"
    projection = [next(part.time_s or 0 for part in one.parts if "QKV" in part.name) for one in (hungry, frugal)]
    assert projection[1] > 1.2 * projection[0]
