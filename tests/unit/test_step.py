"""A step of a model in a ragged batch: what runs and how often, what it must equal, and what is refused."""

import json
from pathlib import Path

import pytest
from matplotlib.colors import to_rgba
from matplotlib.container import ErrorbarContainer

import attnsim
from attnsim.api.layer_answer import Group
from attnsim.api.step import step
from attnsim.api.step_answer import StepAnswer
from attnsim.api.step_predictor import StepPredictor, rounded
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.collectives.collective import collective_time
from attnsim.models.implementations.collectives.known import COLLECTIVES
from attnsim.models.implementations.gemms.gemm import gemm_times
from attnsim.models.implementations.gemms.kernels import fit_of
from attnsim.models.question.lengths import Length
from attnsim.plots.step import step as picture
from attnsim.plots.styles import STYLES
from benchmarks.steps import Held, Server, ordered

MIXED = "1:4096 x 63, 512:2560"
TOKENS, SEQUENCES = 575, 64
H100 = "h100-sxm5-80gb"


@pytest.fixture(scope="module")
def llama() -> StepAnswer:
    return step("llama-3-70b", H100, MIXED, tp=4)


def times(found: StepAnswer) -> dict[str, int]:
    return {part.name: number for number, part in found.parts}


def test_everything_runs_as_often_as_the_model_has_it(llama: StepAnswer) -> None:
    layer = (
        "QKV projection",
        "rotary",
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


def test_products_have_a_row_for_every_new_token_and_the_head_one_for_every_sequence(llama: StepAnswer) -> None:
    flops = {part.name: part.flops_useful for _, part in llama.parts}
    assert flops["QKV projection"] == 2 * TOKENS * 8192 * (64 + 2 * 8) * 128 // 4
    assert flops["O projection"] == 2 * TOKENS * 8192 * 8192 // 4
    assert flops["gate and up"] == 2 * flops["down"] == 2 * TOKENS * 8192 * 2 * 28672 // 4
    assert flops["LM head"] == 2 * SEQUENCES * 8192 * 128256 // 4
    assert (llama.new_tokens, llama.sequences) == (TOKENS, SEQUENCES)


def test_an_all_reduce_is_of_the_hidden_state_of_every_token(llama: StepAnswer) -> None:
    said = next(part for _, part in llama.parts if part.name == "all-reduce")
    found = collective_time(COLLECTIVES["all_reduce"], TOKENS * 8192 * 2, load_gpu(H100), 4, library="vllm")
    assert (said.time_s, said.tile) == (found.time_s, found.algorithm)


def test_memory_is_weights_and_the_cache_of_every_sequence(llama: StepAnswer) -> None:
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


def test_what_several_gpus_share_is_shorter_and_what_they_say_longer(llama: StepAnswer) -> None:
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


def test_whole_experts_are_read_by_one_gpu_and_tokens_go_to_them_and_back() -> None:
    lengths, tokens, gpus = "1:2000 x 32", 32, 16
    found = step("deepseek-v3", "gb200", lengths, ep=gpus, dtype="fp8")
    parts = {part.name: (number, part) for number, part in found.parts}
    reached = round(256 * (1 - (1 - 8 / 256) ** (tokens * gpus)))
    rows, touched = round(tokens * gpus * 8 / reached), -(-reached // gpus)
    assert parts["experts' down"][1].flops_useful == 2 * rows * 2048 * 7168 * touched
    assert parts["shared expert down"][1].flops_useful == 2 * tokens * 2048 * 7168
    for way, size in (("to", 1), ("from", 2)):
        number, part = parts[f"all-to-all {way} experts"]
        sent = collective_time(COLLECTIVES["all_to_all"], tokens * 8 * 7168 * size, load_gpu("gb200"), gpus)
        assert number == 58 and part.time_s == pytest.approx(sent.time_s)
        assert part.time_high_s == pytest.approx(3 * sent.high_s)  # of vLLM's; SGLang's calls take as long as predicted
    assert "all-reduce" not in parts and found.tokens_per_s == pytest.approx(gpus * tokens / found.time_s)
    assert (found.memory.weights_bytes or 0) == pytest.approx(656e9 / 16 + 18e9, rel=0.05)


def test_experts_among_the_gpus_that_share_the_layers_need_no_all_to_all() -> None:
    apart, whole = (step("qwen3-235b-a22b", H100, "1:4096 x 64", tp=8, ep=ep) for ep in (0, 8))
    assert times(apart) == times(whole) and apart.memory.weights_bytes == whole.memory.weights_bytes
    groups = step("qwen3-235b-a22b", "gb200", "1:4096 x 64", tp=4, ep=8)
    counted = times(groups)
    assert counted["all-to-all to experts"] == counted["all-gather of tokens"] == 94 and counted["all-reduce"] == 95


NEXT = {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 2048, "vocab_size": 151936,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "full_attention_interval": 4, "intermediate_size": 5632, "decoder_sparse_step": 1,
}  # fmt: skip
KIMI = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 27,
    "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 32, "vocab_size": 163840,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128},
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M-M*-ME",
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip


def hybrid(folder: Path, config: dict[str, object]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("config", "algorithm", "layers", "columns", "state"),
    [
        (NEXT, "gdn", 36, 2 * 2048 + 2 * 4096 + 2 * 32, 32 * 128 * 128 * 4 + 3 * 8192 * 2),
        (KIMI, "kda", 20, 3 * 4096 + 32 + 2 * 128, 32 * 128 * 128 * 4 + 3 * 3 * 4096 * 2),
        (NEMOTRON, "mamba-2", 3, 2 * 8192 + 2 * 8 * 128 + 128, 128 * 128 * 64 * 4 + 3 * (8192 + 2048) * 2),
    ],
)
def test_layers_that_do_not_attend_are_played(
    tmp_path: Path, config: dict[str, object], algorithm: str, layers: int, columns: int, state: int
) -> None:
    model = hybrid(tmp_path, config)
    found = step(model, "h200-sxm-141gb", "1:4096 x 16, 512:2560", tp=2)
    parts = {part.name: (number, part) for number, part in found.parts}
    for name in (f"{algorithm}, decode", f"{algorithm}, prompts", "short-convolution, prompts"):
        assert parts[name][0] == layers and (parts[name][1].time_s or 0) > 0
    number, product = parts["mixer's input projection"]
    of_ranks = 128 if algorithm == "kda" else 0  # a latent of two gates, which each GPU makes whole
    assert number == layers and not found.left_out
    hidden = attnsim.load_model(model).hidden
    assert product.flops_useful == 2 * 528 * hidden * ((columns - 2 * of_ranks) // 2 + 2 * of_ranks)
    longer = step(model, "h200-sxm-141gb", "1:8192 x 16, 512:2560", tp=2)
    again = {part.name: part for _, part in longer.parts}
    assert again[f"{algorithm}, decode"] == parts[f"{algorithm}, decode"][1]
    kept = found.memory.cache_bytes - (16 * 4096 + 2560) * found.memory.token_bytes
    assert kept == pytest.approx(17 * layers * state / 2, rel=0.01)


def test_a_short_all_reduce_norms_too(llama: StepAnswer) -> None:
    """vLLM's does up to 2 MiB on four GPUs; of 575 tokens of 8,192 it is longer."""
    short = step("llama-3-70b", H100, "1:4096 x 16", tp=4)
    fused = "norm and residual in the all-reduce"
    assert (times(short)[fused], fused in times(llama)) == (161, False) and "norm and residual" not in times(short)
    by_name = {part.name: part.time_s or 0.0 for _, part in short.parts}
    alone = {
        part.name: part.time_s or 0.0
        for _, part in step("llama-3-70b", H100, "1:4096 x 16", tp=4, library="sglang").parts
    }
    assert by_name[fused] == pytest.approx(alone["norm and residual"] - load_gpu(H100).launch.graph_s, rel=0.01)


def test_in_fp8_the_kernel_before_converts_and_router_and_head_stay_wide() -> None:
    """TensorRT-LLM's norms, attention and activations write fp8; vLLM's attention does not."""
    steps = {
        library: step("llama-3-8b", H100, "1:4096 x 16", dtype="fp8", library=library)
        for library in ("vllm", "tensorrt-llm")
    }
    parts = {library: {part.name: part.time_s or 0.0 for _, part in one.parts} for library, one in steps.items()}
    wide = {part.name: part.time_s or 0.0 for _, part in step("llama-3-8b", H100, "1:4096 x 16").parts}
    assert parts["vllm"]["LM head"] == parts["tensorrt-llm"]["LM head"] == wide["LM head"]
    for library, kernel, converted in (("vllm", "vllm-fp8", 1), ("tensorrt-llm", "trtllm-fp8", 0)):
        for name, n, converts in (("QKV projection", 6144, 0), ("O projection", 4096, converted)):
            waits = fit_of(kernel, load_gpu(H100)).waits
            found = gemm_times(load_gpu(H100), kernel, 16, n, 4096, waits, converts=converts)
            assert parts[library][name] == pytest.approx(found.time_s[0])
    named = step("qwen3-235b-a22b", "b200-sxm-180gb", "1:4096", tp=4, dtype="fp8")
    assert {"router", "norms of Q and K"} <= set(times(named)) and "top-k of the router" not in times(named)


def test_a_server_attends_by_its_own_kernels() -> None:
    mixed = "1:4096 x 15, 512:2560"
    served = {
        library: [one.implementation for one in step("llama-3-8b", "b200-sxm-180gb", mixed, library=library).attention]
        for library in ("vllm", "sglang", "tensorrt-llm")
    }
    assert served == {
        "vllm": ["vllm.trtllm-gen"] * 2,
        "sglang": ["sglang.trtllm-gen"] * 2,
        "tensorrt-llm": ["tensorrt-llm.attention"] * 2,
    }
    for server, library in (("trtllm", "tensorrt-llm"), ("sglang", "sglang")):
        bare = step("llama-3-8b", H100, mixed, implementation=server)
        asked = step("llama-3-8b", H100, mixed, library=library)
        assert (bare.library, bare.time_s) == (library, asked.time_s)
    named = step("llama-3-8b", H100, mixed, library="sglang", implementation="flash-attn.3")
    assert [one.implementation for one in named.attention] == ["flash-attn.3"]


def test_a_cache_in_fp8_is_half_as_large_and_read_by_a_kernel_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["predict", "--layer", "--model", "llama-3-8b", "--gpu", "h100", "--lengths", "1:4096 x 16", "--json"]
    records = []
    for more in ([], ["--kv-dtype", "fp8"]):
        assert main([*ask, *more]) == 0
        records += json.loads(capsys.readouterr().out)
    wide, small = (record["memory"]["cache_bytes"] for record in records)
    assert small == wide / 2
    found = step("llama-3-8b", H100, "1:4096 x 16", kernel={"kv_dtype": "fp8"})
    assert [one.implementation for one in found.attention] == ["flashinfer.fa2"]


def test_the_range_is_wider_than_that_of_the_parts(llama: StepAnswer) -> None:
    low, high = (
        sum(number * (getattr(part, name) or 0.0) for number, part in llama.parts)
        for name in ("time_low_s", "time_high_s")
    )
    assert llama.time_low_s < low < llama.time_s < high < llama.time_high_s


def test_of_a_latent_sequences_that_decode_and_prompts_are_called_apart() -> None:
    found = step("deepseek-v3", "h200-sxm-141gb", "1:4096 x 16, 512:2560", tp=8, dtype="fp8")
    names = [part.name for _, part in found.parts if part.group in ("attention", "projections")]
    assert [name for name in names if name.startswith("attention")] == ["attention, decode", "attention, prompts"]
    flops = {part.name: part.flops_useful for _, part in found.parts}
    assert names.count("O projection") == 1 and flops["O projection"] == 2 * 528 * 7168 * 16 * 128
    alone = step("deepseek-v3", "h200-sxm-141gb", "1:4096 x 16", tp=8, dtype="fp8")
    times = [next(part.time_s for _, part in one.parts if part.name.startswith("attention")) for one in (found, alone)]
    assert times[0] == times[1]


@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_does_not_attend_is_asked_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{hybrid(tmp_path, NEXT)}:1"
    held = load_gpu(H100).replace("clock.sustained", "1500 MHz")  # a longer run would slow
    whole = step(model[:-2], held, "1024:1024", tp=2, launch="stream")
    layer = attnsim.layer(model, held, seq=1024, tp=2)
    same = {part.name: part.time_s for _, part in whole.parts}
    assert "gdn, prompts" in same and {part.name: same[part.name] for part in layer.parts} == {
        part.name: part.time_s for part in layer.parts
    }
    assert layer.model.layers == 36 and layer.workload.passes == "fwd"
    ask = ["--model", model, "--gpu", H100, "--seq", "1k"]
    assert main(["predict", "--layer", *ask]) == 0 and "gdn, prompts" in capsys.readouterr().out
    for flags, says in (
        (["predict", *ask], "does not attend; ask with predict --layer"),
        (["predict", "--layer", *ask, "--pass", "bwd"], "pass bwd is not known of it"),
        (["predict", "--layer", *ask, "--algorithm", "flash"], "algorithm flash is not known of it"),
    ):
        assert main(flags) == 2
        assert says in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_a_gate_of_the_output_is_made_with_the_queries(tmp_path: Path) -> None:
    found = step(hybrid(tmp_path, NEXT), "h200-sxm-141gb", "1:4096 x 16", tp=2)
    product = next(part for _, part in found.parts if part.name == "QKV projection")
    assert product.flops_useful == 2 * 16 * 2048 * (2 * 16 * 256 // 2 + 2 * 256)


@pytest.mark.filterwarnings("ignore")
def test_a_layer_may_be_an_mlp_by_itself(tmp_path: Path) -> None:
    found = step(hybrid(tmp_path, NEMOTRON), H100, "1:4096 x 16")
    assert {name: times(found)[name] for name in ("up", "experts' up", "router", "norm and residual")} == {
        "up": 2, "experts' up": 1, "router": 1, "norm and residual": 8,
    }  # fmt: skip
    assert attnsim.load_model(str(tmp_path / "config.json")).kinds[1].mlp is not None


def test_where_no_attention_has_fp8_it_and_its_cache_are_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["predict", "--layer", "--model", "llama-3-8b", "--gpu", "b200", "--lengths", "1:4096", "--dtype", "fp8"]
    found = step("llama-3-8b", "b200-sxm-180gb", "1:4096", dtype="fp8")
    assert found.attention[0].workload.dtype == "bf16" and found.memory.token_bytes == 2 * 8 * 128 * 32 * 2
    assert found.memory.weights_bytes == pytest.approx(8.03e9 + 2 * 128256 * 4096, rel=0.01)  # two of 16 bits
    assert main(ask) == 0
    shown = capsys.readouterr().out
    assert "a step of 1 new token of 1 sequence (" in shown and "cache in bf16: its kernels have no fp8" in shown
    assert step("llama-3-8b", H100, "1:4096", dtype="fp8").attention[0].workload.dtype == "fp8"


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
        ("llama-3-8b", H100, MIXED, {"ep": 2}, "ep is 2 and llama-3-8b has no experts"),
        ("qwen3-235b-a22b", H100, MIXED, {"ep": 3}, "must divide 128 experts: one of 1, 2, 4"),
        ("qwen3-235b-a22b", H100, MIXED, {"ep": 16}, "16 GPUs share experts and of h100-sxm5-80gb 8 share its links"),
        ("qwen3-235b-a22b", H100, MIXED, {"tp": 4, "ep": 2}, "whole groups of 4 share experts: give a multiple"),
        ("qwen3-235b-a22b", H100, MIXED, {"ep": -1}, "ep is -1; allowed: a whole number from 0"),
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
        (["--softcap", "30"], "--softcap does not go with"),
        (["--ep", "0"], "--ep: '0' given; allowed: whole numbers from 1 to 64"),
    ):
        assert main([*ask, *flags]) == 2
        assert says in capsys.readouterr().err
    assert (
        main([*ask[:-1], "0"]) == 2
        and "--tp: '0' given; allowed: whole numbers from 1 to 1024" in capsys.readouterr().err
    )
    assert main(["predict", "--layer", *ask[2:6], "--seq", "1k", "--ep", "2"]) == 2
    assert "--ep goes with --layer --lengths" in capsys.readouterr().err
    assert main(["predict", "--gpu", H100, "--model", "llama-3-8b", "--seq", "1k", "--set", "link.pcie=2x"]) == 2
    assert "link.pcie is read where several GPUs share a model" in capsys.readouterr().err


def test_a_call_says_that_a_step_takes_other_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["predict", "--model", "llama-3-8b", "--gpu", H100, "--algorithm", "flash", "--lengths"]
    notes = {}
    for lengths, more in (("1:4096 x 4", []), ("1:4096 x 4, 512:512", []), ("1:4096 x 4", ["--pass", "decode"])):
        assert main([*ask, lengths, *more]) == 0
        notes[lengths, bool(more)] = "a step takes the kernels of --pass decode" in capsys.readouterr().err
    assert notes == {("1:4096 x 4", False): True, ("1:4096 x 4, 512:512", False): False, ("1:4096 x 4", True): False}


def test_the_picture_has_a_bar_with_its_range_for_every_part_and_the_groups_make_the_step(
    llama: StepAnswer,
) -> None:
    found = picture([llama])
    whole, _, parts = found.figure().axes
    bars = [bar for bar in parts.patches if bar.get_facecolor() != to_rgba(STYLES["light"].middle)]
    ends = [bar.get_x() + bar.get_width() for bar in bars]  # type: ignore[attr-defined]
    names = [text.get_text().rpartition(" x ")[2] for text in parts.get_yticklabels()]
    assert names == [part.name for _, part in llama.parts] and names.index("O projection") < names.index("all-reduce")
    assert names.index("all-reduce") < names.index("gate and up") < names.index("LM head")
    spans = [one[2][0].get_segments()[0][:, 0] for one in parts.containers if isinstance(one, ErrorbarContainer)]
    for (number, part), end, span in zip(llama.parts, ends, spans, strict=True):
        assert end == pytest.approx(number * (part.time_s or 0))
        assert list(span) == pytest.approx([number * (part.time_low_s or 0), number * (part.time_high_s or 0)])
    assert sum(bar.get_width() for bar in whole.patches) == pytest.approx(llama.time_s)  # type: ignore[attr-defined]
    shares = {row["group"]: float(str(row["share"])) for row in found.rows if row["kind"] == "group"}
    launches = sum(number * (part.launch_s or 0) for number, part in llama.parts) / llama.time_s
    assert sum(shares.values()) == pytest.approx(1) and 0.01 < shares["launches"] == pytest.approx(launches)
    assert "MLP\n46 %" in [text.get_text() for text in whole.texts]


@pytest.mark.parametrize("width", ["page", "column"])
def test_every_group_of_the_bar_is_named_in_the_key_by_its_colour(llama: StepAnswer, width: str) -> None:
    """Narrow ones have no room for a name in the bar; the key stays within the picture."""
    figure = picture([llama]).figure(width=width)
    whole, below, _ = figure.axes
    legend = below.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["attention", "projections", "MLP", "collectives", "LM head", "norms, cache", "launches"]
    colours = [to_rgba(line.get_color()) for line in legend.get_lines()]
    assert colours == list(dict.fromkeys(patch.get_facecolor() for patch in whole.patches))
    figure.canvas.draw()
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    bar = whole.get_tightbbox()
    assert bar is not None and not legend.get_window_extent().overlaps(bar)


def test_launches_from_a_stream_take_more_of_the_picture_than_those_of_a_graph(llama: StepAnswer) -> None:
    streamed = step("llama-3-70b", H100, MIXED, tp=4, launch="stream")
    launches = [
        next(float(str(row["share"])) for row in picture([one]).rows if row.get("group") == "launches")
        for one in (llama, streamed)
    ]
    assert 1.5 * launches[0] < launches[1] < 1


def test_pictures_of_many_steps_have_their_groups_alone(llama: StepAnswer) -> None:
    changed = step("llama-3-70b", load_gpu(H100).replace("hbm.bandwidth", "2x"), MIXED, tp=4)
    beside = picture([llama, changed])
    assert len(beside.figure().axes) == 4 and "hbm.bandwidth = 6.7 TB/s" in beside.subtitle
    gain = f"{llama.time_s / changed.time_s:.2f}x as fast"
    assert any(gain in text.get_text() for text in beside.figure().axes[0].texts)
    many = picture([llama, changed] * 2)
    assert len(many.figure().axes) == 2 and len(many.rows) == 2 * len(beside.rows)
    with pytest.raises(InputError, match="no step to draw"):
        picture([])


def test_the_command_draws_the_step_and_no_other_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.svg"
    ask = ["predict", "--model", "llama-3-8b", "--gpu", H100]
    batch = ["--layer", "--lengths", "1:4096 x 8"]
    assert main([*ask, *batch, "--plot", str(out), "--width", "column"]) == 0
    assert capsys.readouterr().out.endswith(f"written: {out}, {out.with_suffix('.csv')}\n")
    assert out.with_suffix(".csv").read_text().startswith("name,gpu,changes,kind")
    for flags, says in (
        (["--seq", "1k", "--plot", str(out)], "--plot draws the step of --layer --lengths"),
        (["--layer", "--seq", "1k", "--plot", str(out)], "--plot draws the step of --layer --lengths"),
        ([*batch, "--style", "dark"], "--style is about the picture of --plot, which is not asked for"),
        ([*batch, "--plot", str(tmp_path / "step.doc")], "no picture ends in .doc"),
    ):
        assert main([*ask, *flags]) == 2
        assert says in capsys.readouterr().err


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


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_a_server_is_predicted_as_the_mean_of_its_steps(tmp_path: Path) -> None:
    (tmp_path / "model_configs").mkdir()
    config = tmp_path / "model_configs" / "meta-llama--Meta-Llama-3.1-8B_config.json"
    config.write_text(json.dumps(LLAMA))
    server = Server("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", "vllm", 1000, 100, 8, 1, 1, "bf16", False, False)
    decode, mixed = (step(str(config), H100, text) for text in ("1:1050 x 8", "1:1050 x 7, 1000:1000"))
    low, time, high = server.predicted(tmp_path)
    assert time == pytest.approx(0.93 * decode.time_s + 0.07 * mixed.time_s)
    assert low == pytest.approx(0.93 * decode.time_low_s + 0.07 * mixed.time_low_s) and high > time


def test_the_order_of_servers_is_of_pairs_among_which_one_chooses() -> None:
    def one(tp: int, batch: int, measured: float, predicted: float, isl: int = 1000) -> Held:
        server = Server("m", "h100_sxm", "vllm", isl, 100, batch, tp, 1, "fp8", False, False)
        return Held(server, measured, (0.9 * predicted, predicted, 1.1 * predicted))

    found = [one(1, 8, 4.0, 3.0), one(2, 8, 3.0, 2.0), one(4, 8, 2.99, 2.5), one(1, 8, 1.0, 9.0, isl=2000)]
    assert ordered(found, per_gpu=False) == (2, 2)  # the last two of three are alike, the fourth is another question
    assert ordered([one(1, 8, 4.0, 3.0), one(2, 8, 1.9, 2.0)], per_gpu=True) == (0, 1)
    assert found[0].ratio == 0.75 and not found[0].covered and one(1, 1, 1.0, 1.05).covered
