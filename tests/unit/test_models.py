"""Models: presets, KV caches against published figures, files, Hugging Face's configurations, the command."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attnsim import builtin_model_ids, load_model
from attnsim.cli import main
from attnsim.errors import InputError, Taken
from attnsim.models.llm.asked import asked_layers
from attnsim.models.llm.config import architectures
from attnsim.models.llm.files import model_to_yaml
from attnsim.models.llm.huggingface import import_config
from attnsim.models.llm.model import Model
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Latent
from tests.unit.answering import refusal

PRESETS = builtin_model_ids()
WANTED = {
    "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base", "bert-large", "llama-2-7b", "llama-2-70b",
    "llama-3-8b", "llama-3-70b", "mistral-7b", "gemma-2b", "gemma-7b", "falcon-180b", "qwen2.5-7b", "qwen3-235b-a22b",
    "deepseek-v3", "longformer-base", "bigbird-base", "palm-8b", "palm-62b", "palm-540b", "transformer-base",
    "transformer-big",
}  # fmt: skip

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "attention_bias": False,
    "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "max_position_embeddings": 512, "intermediate_size": 3072, "vocab_size": 30522,
}  # fmt: skip
CONFIGS: dict[str, dict[str, object]] = {
    "llama-3-8b": LLAMA,
    "mistral-7b": LLAMA
    | {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768, "vocab_size": 32000},
    "qwen2.5-7b": LLAMA
    | {
        "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "max_position_embeddings": 131072, "sliding_window": 131072,
        "use_sliding_window": False, "intermediate_size": 18944, "vocab_size": 152064,
    },
    "qwen3-235b-a22b": LLAMA
    | {
        "model_type": "qwen3_moe", "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "max_position_embeddings": 40960, "intermediate_size": 12288, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "gemma-2b": {
        "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 8192,
        "intermediate_size": 16384, "vocab_size": 256000,
    },
    "gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "n_inner": None,
                "vocab_size": 50257},
    "bert-base": BERT,
    "falcon-180b": {
        "model_type": "falcon", "hidden_size": 14848, "num_hidden_layers": 80, "num_attention_heads": 232,
        "num_kv_heads": 8, "new_decoder_architecture": True, "multi_query": True, "bias": False, "alibi": False,
        "vocab_size": 65024,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840, "attention_bias": False,
        "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "longformer-base": BERT
    | {"model_type": "longformer", "attention_window": [512] * 12, "max_position_embeddings": 4098},
    "bigbird-base": BERT
    | {
        "model_type": "big_bird", "attention_type": "block_sparse", "block_size": 64, "num_random_blocks": 3,
        "max_position_embeddings": 4096, "vocab_size": 50358,
    },
}  # fmt: skip
"""The keys of the repositories' config.json that attention asks for."""


def written(folder: Path, content: object, name: str = "config.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def test_the_presets_are_those_that_were_asked_for() -> None:
    assert set(PRESETS) == WANTED


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_a_source_and_survives_being_written(name: str, tmp_path: Path) -> None:
    model = load_model(name)
    assert model.id == name and model.name and model.max_length
    assert re.search(r"arXiv \d{4}\.\d{5}|20\d\d", model.source)
    assert "Hugging Face" in model.source or name.startswith(("palm-", "transformer-"))
    copy = tmp_path / "copy.yaml"
    copy.write_text(model_to_yaml(model), encoding="utf-8")
    assert load_model(str(copy)) == replace(model, id="copy")


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-2-7b", 512 << 10),  # 2 * 32 layers * 32 heads * 128 * 2 bytes
        ("llama-2-70b", 320 << 10),
        ("llama-3-8b", 128 << 10),
        ("llama-3-70b", 320 << 10),
        ("mistral-7b", 128 << 10),
        ("gemma-2b", 18 << 10),
        ("gemma-7b", 448 << 10),
        ("falcon-180b", 160 << 10),
        ("deepseek-v3", 70_272),  # DeepSeek-AI, arXiv 2505.09343, table 1: 70.272 KB in bf16
        ("qwen2.5-7b", 56 << 10),
        ("gpt2-xl", 300 << 10),
    ],
)
def test_kv_caches_are_the_published_ones(name: str, published: int) -> None:
    assert load_model(name).kv_bytes_per_token("fp16") == published


def test_sharing_divides_the_cache_by_h_over_g() -> None:
    for name in PRESETS:
        model = load_model(name)
        own, mha, mqa = (model.kv_bytes_per_token("bf16", sharing) for sharing in (None, "MHA", "MQA"))
        if not model.has_cache:
            assert own is mha is mqa is None
            continue
        assert own and mha and mqa
        assert mha == model.heads_q * mqa
        if model.sharing != "MLA":
            assert mha == own * model.heads_q // model.heads_kv
        cached = [(kind.layers, model.only(kind)) for kind in model.layer_kinds if kind.is_cached]
        assert own == sum(many * one.workload(batch=1, seq=1, dtype="bf16").kv_cache_bytes for many, one in cached)
    assert load_model("deepseek-v3").kv_bytes_per_token("fp8") == 61 * 576
    assert [load_model(n).sharing for n in ("llama-2-7b", "llama-3-8b", "gemma-2b", "deepseek-v3")] == [
        "MHA", "GQA", "MQA", "MLA",
    ]  # fmt: skip


def test_a_model_asks_its_question() -> None:
    w = load_model("mistral-7b").workload(batch=2, seq=9000, passes="decode", dtype="fp16")
    assert (w.batch, w.seq_q, w.seq_kv, w.heads_q, w.heads_kv) == (2, 1, 9000, 32, 8)
    assert w.mask == Mask.sliding_window(4096)
    assert load_model("deepseek-v3").workload(batch=1, seq=8).latent == Latent(512, 64)
    assert load_model("longformer-base").mask == Mask.longformer(512, 1)
    assert load_model("bigbird-base").mask == Mask.bigbird()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_gives_the_preset(name: str, tmp_path: Path) -> None:
    preset = load_model(name)
    model = load_model(written(tmp_path, CONFIGS[name]))
    assert replace(model, id=preset.id, name=preset.name, source=preset.source) == preset


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "('fp8'): ask with dtype fp8"),
        (
            {"quant_method": "awq", "bits": 4},
            "('awq'), which is left out: they are taken in the format of the question",
        ),
    ],
)
def test_a_configuration_of_quantized_weights_says_so(given: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.warns(Taken, match=re.escape(f"its weights are quantized {says}")):
        model = import_config(Path(written(tmp_path, LLAMA | {"quantization_config": given})))
    assert model.fp8_blocks is ("weight_block_size" in given)


def test_what_configurations_leave_open(tmp_path: Path) -> None:
    def read(**changes: object) -> Model:
        base = CONFIGS[str(changes.pop("base", "llama-3-8b"))]
        left = {key: value for key, value in (base | changes).items() if value != "absent"}
        return import_config(Path(written(tmp_path, left)))

    assert read(num_key_value_heads="absent").sharing == "MHA"
    assert read(base="mistral-7b", sliding_window=None).mask == Mask.causal()
    assert read(base="falcon-180b", new_decoder_architecture=False).heads_kv == 1
    assert read(base="falcon-180b", alibi=True).rotary == 0
    assert read(base="deepseek-v3", q_lora_rank=None).query_rank == 0
    assert read(base="bigbird-base", attention_type="original_full").mask == Mask.full()
    assert read(base="bert-base", is_decoder=True).mask == Mask.causal()
    part = read(base="qwen2.5-7b", use_sliding_window=True, sliding_window=4096, max_window_layers=21)
    with pytest.warns(Taken, match="sliding_window is left out"):
        assert read(base="llama-3-8b", sliding_window=4096).mask == Mask.causal()
    assert part.mask == Mask.causal()
    assert [(one.layers, one.mask) for one in part.kinds] == [(21, Mask.causal()), (7, Mask.sliding_window(4096))]
    every = read(base="qwen2.5-7b", use_sliding_window=True, sliding_window=4096, max_window_layers=0)
    assert every.mask == Mask.sliding_window(4096)
    named = read(_name_or_path="meta-llama/Meta-Llama-3-8B")
    assert named.id == "meta-llama-3-8b" and "meta-llama/Meta-Llama-3-8B" in named.source


BROKEN: list[tuple[object, str]] = [
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "is not JSON"),
    ("[1]", "holds a list"),
    ("null", "holds a NoneType"),
    (" " * 2_000_000, "larger than 1024 KiB"),
    ({}, "model_type is None"),
    ({"model_type": "lama"}, "nearest: llama"),
    ({"model_type": "gemma3"}, "num_hidden_layers is missing"),
    ({"model_type": "zamba2"}, "architecture zamba2 is not read here: its attention layers share weights"),
    ({"model_type": ["llama"]}, "model_type is ['llama']"),
    ({"model_type": "llama", "num_hidden_layers": 2}, "hidden_size is missing"),
    (LLAMA | {"num_attention_heads": 0}, "num_attention_heads is 0; allowed: a whole number from 1"),
    (LLAMA | {"num_attention_heads": True}, "num_attention_heads is True"),
    (LLAMA | {"num_attention_heads": "32"}, "num_attention_heads is '32'"),
    (LLAMA | {"hidden_size": 4095}, "not a multiple of 32 heads"),
    (LLAMA | {"num_key_value_heads": 5}, "heads_kv is 5; it must divide"),
    (LLAMA | {"attention_bias": 1}, "attention_bias is 1; allowed: true or false"),
    (LLAMA | {"num_hidden_layers": 5000}, "layers is 5000; allowed"),
    (CONFIGS["longformer-base"] | {"attention_window": [512, 256]}, "one window for all layers"),
    (CONFIGS["longformer-base"] | {"attention_window": []}, "one window for all layers"),
]


@pytest.mark.parametrize(("content", "told"), BROKEN, ids=[told for _, told in BROKEN])
def test_broken_configurations_are_refused_in_one_line(content: object, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        load_model(written(tmp_path, content))
    assert told in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


LETTERS = 'aZ09 ./-_\n\t"{}[]\u2028\u00e9\ud800\U0001f600'
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(LETTERS, max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=8), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted({key for config in CONFIGS.values() for key in config} - {"model_type"})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.sampled_from([*sorted(architectures()), "unheard of"]),
    st.dictionaries(st.sampled_from([*KEYS, "sliding_window", "_name_or_path"]), JSON_VALUES, max_size=3),
    st.binary(max_size=3),
)
@example("bert-base", "afmoe", {"vocab_size": None}, b"")  # no parameter outside the layers is not "unknown"
def test_whatever_a_configuration_holds_is_a_model_or_one_line(
    tmp_path: Path, base: str, family: str, changes: dict[str, object], rubbish: bytes
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(json.dumps(CONFIGS[base] | changes | {"model_type": family}).encode() + rubbish)
    try:
        model = import_config(path)
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
    else:
        copy = tmp_path / "copy.yaml"
        copy.write_text(model_to_yaml(model), encoding="utf-8")
        assert load_model(str(copy)) == replace(model, id="copy")


FILE = """\
name: Mine
layers: 4
hidden: 512
heads: 8
kv_heads: 2
head_dim: 64
mask: causal
source: invented
"""
WRONG_FILES: list[tuple[str, str]] = [
    (FILE.replace("layers: 4", "layers: four"), "layers is 'four'"),
    (FILE.replace("layers: 4\n", ""), "layers is missing"),
    (FILE.replace("heads: 8", "heads: 7"), "heads_kv is 2; it must divide"),
    (FILE + "wheels: 4\n", "unknown key 'wheels'; nearest"),
    (FILE.replace("causal", "casual"), "'casual' is not understood"),
    (FILE + "latent: {rank: 16}\n", "latent.rope is missing"),
    (FILE + "latent: {rank: 16, rope: 8}\n", "heads_kv is 2 with a latent"),
    (FILE + "rotary: 128\n", "rotary is 128; it is a part of head_dim = 64"),
    (FILE + "layers: 5\n", "layers is given twice"),
    ("- a\n", "holds no keys"),
    ("name: !!python/object/apply:os.system [ls]\n", "correct the YAML"),
]


@pytest.mark.parametrize(("text", "told"), WRONG_FILES, ids=[told for _, told in WRONG_FILES])
def test_wrong_model_files_are_refused_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        load_model(written(tmp_path, text, "mine.yaml"))
    assert told in str(refusal.value) and "\n" not in str(refusal.value)


GPT_OSS = {
    "model_type": "some_fork", "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 4, "hidden_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
    "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201088,
}  # fmt: skip
"""openai/gpt-oss-120b, config.json, of 4 layers."""


def test_layers_that_differ_have_a_mask_each(tmp_path: Path) -> None:
    model = load_model(written(tmp_path, GPT_OSS))
    assert [(one.at, str(one.mask)) for one in model.kinds] == [((0, 2), "causal window 128"), ((1, 3), "causal")]
    assert model.sinks and model.workload(batch=1, seq=64).sinks and not model.left_out
    list_of_masks = FILE.replace("mask: causal", "mask: [causal window 128, causal]")
    mine = load_model(written(tmp_path, list_of_masks, "mine.yaml"))
    assert [one.at for one in mine.kinds] == [(0, 2), (1, 3)] and mine.mask == Mask.causal()
    numbered = load_model(written(tmp_path, list_of_masks, "mine.yaml") + ":1")
    assert numbered.mask == Mask.sliding_window(128) and numbered.layers == 2 and not numbered.kinds
    with pytest.raises(
        InputError, match=r"mine:3 is no kind of layer that is modelled; allowed: 1 \(2 layers: causal window"
    ):
        load_model(str(tmp_path / "mine.yaml") + ":3")
    assert mine.cache_bytes(4096) == 2 * 2 * 2 * 128 * (4096 + 128)
    with pytest.warns(
        Taken, match="a call is of 2 of 4 layers, causal, heads 8/2 of 64; others: 2 layers causal window"
    ):
        assert asked_layers(mine).layers == 2


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-2-7b", 6.738e9),  # 6,738,415,616 with its norms
        ("gemma-2b", 2.506e9),
        ("gpt2-xl", 1.558e9),
        ("bert-base", 109.5e6),
        ("qwen3-235b-a22b", 235.1e9),
        ("deepseek-v3", 671.0e9),  # arXiv 2412.19437
        ("palm-540b", 540.35e9),  # arXiv 2204.02311, table 1
        ("palm-8b", 8.63e9),
        ("transformer-big", 213e6),  # arXiv 1706.03762, table 3
    ],
)
def test_parameters_are_the_published_ones(name: str, published: float) -> None:
    assert load_model(name).parameters() == pytest.approx(published, rel=0.007)


def test_active_parameters_leave_out_experts_that_a_token_passes_by() -> None:
    assert load_model("deepseek-v3").parameters(active=True) == pytest.approx(37e9, rel=0.02)
    dense = load_model("llama-3-8b")
    assert dense.parameters(active=True) == (dense.parameters() or 0) - dense.vocabulary * dense.hidden


def test_whether_a_model_fits_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "llama-3-70b", "--gpu", "h100-sxm5-80gb", "--seq", "8192"]) == 0
    assert "does not fit h100-sxm5-80gb of 80 GB" in " ".join(capsys.readouterr().out.split())
    assert main(["models", "show", "llama-3-8b", "--gpu", "h100-sxm5-80gb", "--seq", "8192", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)[0]
    assert record["fits"] and record["cache_bytes"] == 8192 * 131072
    assert record["weight_bytes"] == pytest.approx(2 * 8.03e9, rel=0.001)


def test_names_that_are_not_known_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest: llama-3-8b"):
        load_model("llama-3-8")
    with pytest.raises(InputError, match="cannot be read"):
        load_model("gone.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_model("gone.json")


def test_the_command_lists_shows_and_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in PRESETS) and max(map(len, text.splitlines())) <= 80
    row = next(line.split() for line in text.splitlines() if line.startswith("llama-3-8b"))
    assert row[-4:] == ["524,288", "131,072*", "16,384", "-"]
    assert main(["models", "--json"]) == 0
    records = {record["id"]: record for record in json.loads(capsys.readouterr().out)}
    assert records["deepseek-v3"]["kv_bytes_per_token"] == 70_272
    assert records["bert-base"]["kv_bytes_per_token"] is None
    assert main(["models", "show", "deepseek-v3"]) == 0
    assert "70,272 bytes (its own)" in capsys.readouterr().out
    config = written(tmp_path, LLAMA)
    assert main(["models", "import", config, "--out", "mine.yaml"]) == 0
    assert "use it with --model mine.yaml" in capsys.readouterr().out
    assert load_model("mine.yaml").heads_kv == 8
    for arguments, told in (
        (["import", config, "--out", "mine.yaml"], "exists; give another name, or --force"),
        (["import", config, "--out", "mine.json"], "end the name with .yaml"),
        (["import", config, "--out", "llama-3-8b.yaml"], "is a built-in model"),
        (["import", config, "--out", "nowhere/mine.yaml"], "is not a folder"),
        (["import", "mine.yaml", "--out", "other.yaml"], "is not JSON"),
        (["show", "nothing"], "unknown model 'nothing'"),
        (["--dtype", "fp12"], "--dtype is 'fp12'"),
        (["--json", "show", "llama-3-8b"], "--json comes after"),
    ):
        assert main(["models", *arguments]) == 2, arguments
        assert told in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "mine.yaml"]


def test_a_model_fills_the_flags_that_are_not_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["predict", "--gpu", "h100-sxm5-80gb", "--seq", "2048", "--algorithm"]

    def heading(*arguments: str) -> str:
        assert main([*ask, *arguments]) == 0
        return " ".join(capsys.readouterr().out.split("\n\n")[0].split())

    assert heading("flash", "--model", "llama-3-8b") == (
        "llama-3-8b: batch 1, heads 32/8, seq 2048, head_dim 128, bf16, fwd, causal"
    )
    assert heading("flash", "--model", "llama-3-8b", "--heads", "64", "--head-dim", "64") == (
        "llama-3-8b with --heads 64, --head-dim 64: batch 1, heads 64/8, seq 2048, head_dim 64, bf16, fwd, causal"
    )
    assert "heads 24, " in heading("flash", "--model", "bert-base", "--heads", "24")
    assert heading("flash", "--model", "bert-base", "--causal").endswith("fwd, causal")
    assert heading("sliding-window", "--model", "mistral-7b", "--window", "512").endswith("causal window 512")
    assert heading("flash", "--model", "mistral-7b", "--mask", "full").endswith("fwd, full")
    assert "heads 32/8" in heading("flash", "--model", written(tmp_path, LLAMA))
    for arguments, told in (
        (["flash", "--model", "mistral-7b"], "the mask of --model mistral-7b is for sliding-window"),
        (["flash", "--model", "lama"], "unknown model 'lama'"),
        (["flash", "--model", "llama-3-8b", "--kv-heads", "5"], "heads_kv is 5"),
        (["flash", "--model", "bert-base", "--mask", "full", "--causal"], "leave the flags out"),
    ):
        assert main([*ask, *arguments]) == 2, arguments
        assert told in capsys.readouterr().err
    assert "--seq is missing" in refusal(capsys, "predict", "--gpu", "l4", "--model", "llama-3-8b")
