"""The attention layer: its steps, the Python functions and the command."""

import json
import re
from dataclasses import replace

import pytest

from attnsim import attention_share, layer, load_gpu, load_model
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.implementations.frameworks.layer import Step, dense_mlp_steps, head_step, mlp_steps, steps
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
    assert [part.name for part in found.parts] == [
        "QKV projection", "rotary", "attention", "O projection", "gate and up", "activation", "down",
    ]  # fmt: skip
    assert found.time_s == pytest.approx(sum(part.time_s or 0 for part in found.parts))
    assert found.attention_time_s == found.attention[0].time_s
    assert found.attention_share == pytest.approx((found.attention_time_s or 0) / (found.time_s or 1))
    assert (
        found.trust.level == "extrapolated"
        and "error of GEMMs on GPUs that were held out of the fit is 7 %" in found.trust.reason
    )
    assert found.trust.low < 1 < found.trust.high
    assert found.flops_useful == sum(part.flops_useful for part in found.parts)
    both = layer("gpt2-small", "a100-sxm4-80gb", batch=4, seq=512, passes="fwd+bwd")
    assert [part.name for part in both.parts] == [
        "QKV projection", "attention", "O projection", "up", "activation", "down", "down, backward",
        "activation, backward", "up, backward", "O projection, backward", "attention, backward",
        "QKV projection, backward",
    ]  # fmt: skip
    assert both.workload.passes == "fwd+bwd" and len(both.attention) == 2


def test_the_mlp_has_the_weights_that_the_model_is_said_to_have() -> None:
    """8.03e9, 70.6e9 and 671e9 parameters with an embedding as large as the head; norms and routers are not counted."""
    for name, billions, tied in (("llama-3-8b", 8.03, 2), ("llama-3-70b", 70.55, 2), ("deepseek-v3", 671.0, 2)):
        model = load_model(name)
        w = model.workload(batch=1, seq=1 << 20)
        mlp, head = mlp_steps(model, w), head_step(model, w)
        around = steps(model, w)
        attention = weights((*around.before, *around.after))
        assert model.mlp is not None and head is not None
        dense = model.mlp.experts.dense_layers if model.mlp.experts else 0
        every = model.layers * attention + (model.layers - dense) * weights(mlp) + tied * weights((head,))
        every += dense * weights(dense_mlp_steps(model, w))
        assert every / 1e9 == pytest.approx(billions, rel=0.005)


def weights(found: tuple[Step, ...]) -> int:
    return sum(one.batch * one.shape[1] * one.shape[2] for step in found for one in step.products)


def test_few_tokens_reach_few_experts() -> None:
    model = load_model("qwen3-235b-a22b")
    for batch, touched, rows in ((1, 8, 1), (16, 82, 2), (4096, 128, 256)):
        routed = mlp_steps(model, model.workload(batch=batch, seq=100, passes="decode"))[0].products[0]
        assert (routed.batch, routed.shape) == (touched, (rows, 2 * 1536, 4096))


def test_a_share_of_a_layer_has_its_share_of_the_work() -> None:
    whole, part = (layer("llama-3-70b", GPU, seq=4096, tp=tp) for tp in (1, 8))
    assert part.flops_useful * 8 == pytest.approx(whole.flops_useful, rel=1e-3)
    assert (part.workload.heads_q, part.workload.heads_kv) == (8, 1) and part.gpus == 8
    assert 0.1 < (part.model_time_s or 0) / (whole.model_time_s or 1) < 0.16
    copied = layer("llama-3-70b", GPU, seq=512, tp=16)
    assert (copied.workload.heads_q, copied.workload.heads_kv) == (4, 1)
    for model, gpus, told in (
        ("llama-3-70b", 6, "must divide 64 query heads: one of 1, 2, 4"),
        ("qwen2.5-7b", 7, "4 key/value heads divide among one of 1, 2, 4, or are copied to a multiple of 4"),
        ("gpt2-xl", 5, None),
    ):
        if told:
            with pytest.raises(InputError, match=told):
                layer(model, GPU, seq=512, tp=gpus)
        else:
            assert layer(model, GPU, seq=512, tp=gpus).time_s


def test_a_layer_on_another_gpu_has_a_speedup_with_a_range() -> None:
    gpu = load_gpu(GPU)
    base, fast = (layer("llama-3-70b", one, batch=16, seq=8192, passes="decode", tp=8)
                  for one in (gpu, gpu.replace("hbm.bandwidth", "2x")))  # fmt: skip
    found, parts = fast.speedup_over(base), fast.speedups_over(base)
    assert found is not None and found.value == pytest.approx((base.time_s or 0) / (fast.time_s or 1))
    assert found.low < found.value < found.high < 1.3 * found.value
    assert min(one.value for one in parts if one) < found.value < max(one.value for one in parts if one)
    all_of_it = fast.model_speedup_over(base)
    assert all_of_it is not None and all_of_it.value > found.value  # the head is bound by its weights alone
    same = base.speedup_over(base)
    assert same is not None and same.value == 1 and same.high < 1.01


def test_a_model_that_does_not_say_its_mlp_is_refused() -> None:
    with pytest.raises(InputError, match="llama-3-8b does not say what follows its attention; add intermediate"):
        layer(replace(load_model("llama-3-8b"), mlp=None), GPU, seq=512)


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
    short = capsys.readouterr().out
    assert "Left out" not in short and " ".join(short.splitlines()[-2:]).endswith("-v says why, and what is left out.")
    ask = [ask[0], "-v", *ask[1:]]
    assert main([*ask, "2048"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split("  ")[0] for line in text.splitlines()]
    assert [row for row in rows if row in PARTS] == PARTS
    assert "without norms, residual additions and communication; a step of the model" in " ".join(short.split())
    assert f"{GPU}; launched in a stream" in short
    assert "Left out: normalisation" in text and "attention: flash, flash-attn.3" in text
    assert "SM clock of attention within the layer: 1863 MHz (under load)" in text
    assert main([*ask, "2048", "--set", "l2.bandwidth=2x", "--tp", "2"]) == 0
    text = capsys.readouterr().out
    assert "one of 2 GPUs (all-reduces left out)" in text and "32 layers + LM head" in text
    layers = [line for line in text.splitlines() if line.startswith("layer ")]
    assert len(layers) == 2 and "x (" not in layers[0] and "x (" in layers[1]
    assert main([*ask, "16384", "--set", "power.limit=500W"]) == 0  # the power of the GEMMs beside it slows attention
    clocks = " ".join(capsys.readouterr().out.split("within the layer: ")[1].split("attention:")[0].split())
    assert re.fullmatch(r"1\d{3} MHz \(what the power limit allows\), 1\d{3} MHz \(what the power .*", clocks)
    assert main([*ask, "512,4096"]) == 0
    text = capsys.readouterr().out
    shares = [line.split() for line in text.splitlines() if line.endswith(" %")]
    assert [line[0] for line in shares] == ["512", "4096"]
    assert float(shares[0][-2]) < float(shares[1][-2])
    assert "layer  90 % range" in text and "-" in shares[0][-3] and "-" in shares[1][-3]
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


PARTS = ["QKV projection", "rotary", "attention", "O projection", "gate and up", "activation", "down", "layer"]


def test_latent_attention_brings_its_own_products() -> None:
    for passes in ("fwd", "decode"):
        found = layer("deepseek-v3", GPU, batch=2, seq=1024, passes=passes)
        assert found.attention[0].algorithm == "mla"
        assert [part.name for part in found.parts] == [
            "down projections", "Q up projection", "rotary", "attention", "O projection",
            "shared expert gate and up", "shared expert activation", "shared expert down",
            "experts' gate and up", "experts' activation", "experts' down",
        ]  # fmt: skip
    backward = layer("deepseek-v3", GPU, batch=1, seq=1024, passes="bwd")
    assert backward.attention[0].algorithm == "flash"
    assert "KV up projection, backward" in [part.name for part in backward.parts]


def test_products_take_a_smaller_tile_where_theirs_no_longer_fits() -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    whole, less = (layer("llama-3-8b", one, seq=2048) for one in (gpu, gpu.replace("sm.shared_memory", "0.75x")))
    tiles = [[part.tile for part in one.parts if part.name == "down"] for one in (whole, less)]
    assert tiles == [["128 x 256 x 64"], ["64 x 256 x 64"]]
    assert [one.name for one, other in zip(whole.parts, less.parts, strict=True) if one.time_s == other.time_s] == [
        "rotary", "attention", "activation"
    ]  # fmt: skip
    with pytest.raises(InputError, match="needs 32 KiB"):
        layer("llama-3-8b", gpu.replace("sm.shared_memory", "20 KiB"), seq=2048, algorithm="naive")


def test_power_is_felt_over_the_whole_layer() -> None:
    """No part of it is long enough alone, all of them together are."""
    gpu = load_gpu("h100-sxm5-80gb")
    limits = (gpu.replace("power.limit", limit) for limit in ("1.4 kW", "450 W"))
    hungry, frugal = (layer("llama-3-8b", one, seq=16384) for one in limits)
    assert all(0 < (part.time_s or 0) < 8e-3 for part in hungry.parts)
    for fast, slow in zip(hungry.parts, frugal.parts, strict=True):
        assert (slow.time_s or 0) >= (fast.time_s or 0) * 0.99, slow.name
    assert hungry.attention[0].clock_by == "load" and frugal.attention[0].clock_by == "power"
    projection = [next(part.time_s or 0 for part in one.parts if "QKV" in part.name) for one in (hungry, frugal)]
    assert projection[1] > 1.2 * projection[0]
