"""A step of a model in a ragged batch: what runs and how often, what it must equal, and what is refused."""

import json
from pathlib import Path

import pytest

import attnsim
from attnsim.api.layer_prediction import Group
from attnsim.api.step import StepPrediction, step
from attnsim.api.step_predictor import StepPredictor, rounded
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.collectives.collective import collective_time
from attnsim.models.implementations.collectives.known import COLLECTIVES
from attnsim.models.question.lengths import Length

MIXED = "1:4096 x 63, 512:2560"
TOKENS, SEQUENCES = 575, 64
H100 = "h100-sxm5-80gb"


@pytest.fixture(scope="module")
def llama() -> StepPrediction:
    return step("llama-3-70b", H100, MIXED, tp=4)


def times(found: StepPrediction) -> dict[str, int]:
    return {part.name: number for number, part in found.parts}


def test_everything_runs_as_often_as_the_model_has_it(llama: StepPrediction) -> None:
    layer = (
        "QKV projection",
        "rotary",
        "cache write",
        "attention",
        "O projection",
        "gate and up",
        "activation",
        "down",
    )
    expected = dict.fromkeys(layer, 80) | {"norm and residual": 161, "all-reduce": 161}
    assert times(llama) == expected | dict.fromkeys(("embedding", "LM head", "all-gather"), 1)
    assert llama.time_s == pytest.approx(sum(number * (part.time_s or 0) for number, part in llama.parts))
    assert llama.time_low_s < llama.time_s < llama.time_high_s
    groups: tuple[Group, ...] = ("projections", "attention", "mlp", "head", "communication", "passes")
    assert sum(map(llama.share, groups)) == pytest.approx(1)


def test_products_have_a_row_for_every_new_token_and_the_head_one_for_every_sequence(llama: StepPrediction) -> None:
    flops = {part.name: part.flops_useful for _, part in llama.parts}
    assert flops["QKV projection"] == 2 * TOKENS * 8192 * (64 + 2 * 8) * 128 // 4
    assert flops["O projection"] == 2 * TOKENS * 8192 * 8192 // 4
    assert flops["gate and up"] == 2 * flops["down"] == 2 * TOKENS * 8192 * 2 * 28672 // 4
    assert flops["LM head"] == 2 * SEQUENCES * 8192 * 128256 // 4
    assert (llama.new_tokens, llama.sequences) == (TOKENS, SEQUENCES)


def test_an_all_reduce_is_of_the_hidden_state_of_every_token(llama: StepPrediction) -> None:
    said = next(part for _, part in llama.parts if part.name == "all-reduce")
    found = collective_time(COLLECTIVES["all_reduce"], TOKENS * 8192 * 2, load_gpu(H100), 4, library="vllm")
    assert (said.time_s, said.tile) == (found.time_s, found.algorithm)


def test_memory_is_weights_and_the_cache_of_every_sequence(llama: StepPrediction) -> None:
    token = 2 * 8 * 128 * 2 * 80 // 4
    assert llama.memory.token_bytes == token and llama.memory.cache_bytes == (63 * 4096 + 2560) * token
    assert llama.memory.weights_bytes == pytest.approx(70.55e9 * 2 / 4, rel=0.01)
    assert llama.memory.room_tokens == int((0.9 * 80e9 - (llama.memory.weights_bytes or 0)) / token)


def test_a_batch_of_equal_sequences_is_the_layer_of_before_with_what_lay_around_it() -> None:
    found = step("llama-3-8b", H100, "1:4096 x 16", launch="stream")
    layer = attnsim.layer("llama-3-8b", H100, batch=16, seq=4096, passes="decode")
    before = {part.name: part.time_s for part in layer.parts}
    after = {part.name: part.time_s for _, part in found.parts}
    assert {name: after[name] for name in before} == pytest.approx(before, rel=1e-6)
    assert after.keys() - before.keys() == {"norm and residual", "cache write", "embedding", "LM head"} & after.keys()
    assert found.time_s > (layer.model_time_s or 0)


def test_what_several_gpus_share_is_shorter_and_what_they_say_longer(llama: StepPrediction) -> None:
    eight = step("llama-3-70b", H100, MIXED, tp=8)
    assert eight.time_s < llama.time_s and eight.share("communication") > llama.share("communication")
    faster = step("llama-3-70b", load_gpu(H100).replace("link.bandwidth", "2x"), MIXED, tp=4)
    same = [part for _, part in faster.parts if part.group != "communication"]
    assert same == [part for _, part in llama.parts if part.group != "communication"]
    assert faster.share("communication") < llama.share("communication")


def test_an_encoder_keeps_nothing() -> None:
    found = step("bert-base", H100, "100:100 x 3, 200:200")
    assert "cache write" not in times(found) and found.memory.cache_bytes == 0 and found.memory.room_tokens is None


@pytest.mark.filterwarnings("ignore")
def test_each_kind_of_layers_attends_by_its_own_mask(tmp_path: Path) -> None:
    config = {
        "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_size": 3584, "vocab_size": 256000,
        "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "sliding_window": 1024, "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = step(str(tmp_path / "config.json"), H100, "1:8000 x 4, 512:6000", tp=2)
    attention = {part.name: (number, part.time_s or 0) for number, part in found.parts if part.group == "attention"}
    (whole, windowed) = (attention[f"attention, causal{text}"] for text in ("", " window 1024"))
    assert whole[0] == windowed[0] == 21 and windowed[1] < whole[1]
    assert sum(number for number, part in found.parts if part.name == "QKV projection") == 42


@pytest.mark.parametrize(
    ("model", "gpu", "lengths", "how", "says"),
    [
        ("llama-3-70b", H100, MIXED, {"tp": 16}, "8 share its links; allowed: 1 to 8"),
        ("llama-3-8b", "l40s", MIXED, {"tp": 16}, "8 share a server; allowed: 1 to 8"),
        ("llama-3-70b", H100, MIXED, {"tp": 3}, "must divide 64 query heads"),
        ("llama-3-70b", H100, MIXED, {"tp": 0}, "whole number from 1 to 64"),
        ("llama-3-70b", H100, MIXED, {}, "does not fit: needs 227 GB, the card has 80 GB; share it"),
        ("llama-3-70b", H100, "1:4096 x 2000", {"tp": 8}, "one of 8 GPUs does not fit"),
        ("llama-3-70b", H100, MIXED, {"tp": 4, "library": "rccl"}, "allowed: nccl"),
        ("llama-3-8b", H100, "1:0", {}, "0 keys"),
        ("transformer-base", H100, "1:64", {}, "an encoder and a decoder"),
    ],
)
def test_what_no_server_can_run_is_refused_in_a_line(
    model: str, gpu: str, lengths: str, how: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says) as error:
        step(model, gpu, lengths, **how)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_the_command_prints_the_parts_and_says_what_it_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["predict", "--layer", "--model", "llama-3-70b", "--gpu", H100, "--lengths", MIXED, "--tp", "4"]
    assert main(ask) == 0
    shown = capsys.readouterr().out
    assert "575 new tokens of 64 sequences" in shown and "161" in shown and "NVLink bandwidth" in shown
    assert main([*ask, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["new_tokens"] == TOKENS and {part["times"] for part in told["parts"]} == {1, 80, 161}
    for launch, says in (("host", "launched from Python"), ("kernel", "launches not counted")):
        assert main([*ask, "--launch", launch]) == 0
        assert f"cold L2; {says}\n" in capsys.readouterr().out
    for flags, says in (
        (["--batch", "3"], "--batch does not go with --layer --lengths"),
        (["--pass", "bwd"], "--pass bwd does not go with"),
        (["--window", "64"], "--window does not go with"),
        (["--sinks"], "--sinks does not go with"),
        (["--softcap", "30"], "--softcap does not go with"),
        (["--kv-dtype", "fp8"], "--kv-dtype does not go with"),
    ):
        assert main([*ask, *flags]) == 2
        assert says in capsys.readouterr().err
    assert main(["predict", "--gpu", H100, "--model", "llama-3-8b", "--seq", "1k", "--set", "link.pcie=2x"]) == 2
    assert "link.pcie is read where several GPUs share a model" in capsys.readouterr().err


def test_a_predictor_looks_up_what_it_has_seen_and_is_as_exact_as_its_groups() -> None:
    predictor = StepPredictor("llama-3-8b", H100)
    requests = [(512, 2048), *((1, 600 + 97 * n) for n in range(40))]
    first = predictor(requests)
    assert predictor([(new, cached + (new == 1)) for new, cached in requests]) == first and len(predictor.seen) == 1
    whole = step("llama-3-8b", H100, [(new, new + cached) for new, cached in requests])
    assert first == pytest.approx(whole.time_s, rel=0.03)
    with pytest.raises(InputError, match="0 new"):
        predictor([(0, 5)])


def test_rounding_keeps_the_number_of_sequences_and_nearly_the_keys() -> None:
    requests = [(1, 100 + 37 * n) for n in range(50)] + [(256, 0), (100, 5000)]
    shape = rounded(requests)
    assert sum(one.times for one in shape) == len(requests) and Length(256, 256) in shape
    keys = sum(new + cached for new, cached in requests)
    assert sum(one.times * one.keys for one in shape) == pytest.approx(keys, rel=0.03)
