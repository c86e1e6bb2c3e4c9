"""Models from Hugging Face's ``config.json``: one reading by keys, and a table of what differs between architectures.

`keys.yaml` says what a figure may be called, `architectures.csv` what an architecture reads, what it takes where a key
is not there, which layers follow each other, and what only its weights tell (a gated MLP, biases). Its lines are the
configuration classes and modules of transformers 5.24. The architecture's own name decides before `model_type`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnsim.errors import InputError, Taken, nearest, shown
from attnsim.files import read_bytes
from attnsim.models.llm.config import Architecture, Config, architectures, plain, spelt, vocabulary
from attnsim.models.llm.mixers import MIXERS, heads_of
from attnsim.models.llm.mlp import Experts, Mlp
from attnsim.models.llm.model import ATTENTION, LayerKind, Model
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Latent

MAX_FILE_BYTES = 1 << 20
_PADDED_POSITIONS = 2
"""RoBERTa's positions begin after the padding token's: 514 and 4,098 stand for 512 and 4,096."""
_GLOBAL_TOKENS = 1
"""Longformer's global tokens are the task's; one, the first, as for classification (arXiv 2004.05150, section 3.1)."""
_BIGBIRD_BLOCKS = 2
"""Global blocks of Hugging Face's BigBird: the first and the last."""
_WIDER = 4
"""Widths of the model that an MLP has where nothing says (GPT-2, Falcon, Bloom)."""
_NESTED = ("text_config", "llm_config", "language_config", "text_model_config")
"""Keys under which multimodal models keep the configuration of their language model."""
_TASK = re.compile(r"(For[A-Z]\w*|((With)?LMHead|DoubleHeads|Encoder|Decoder)?Model)$")
_LOOKS_LIKE_ATTENTION = re.compile(
    r"attn|attention|window|sparse|mamba|ssm|recur|conv|local|global|chunk|layer_type|pattern|block|head|kv_|mask|causal"
    r"|sink|cap$|capping|linear|lora_rank|_rank|state|expand|memory|stride|dilat|index"
)
_NONE = "no layer of it attends; ask for its kernels by --algorithm (attnsim mechanisms lists them)"
_LETTERS = {"M": "linear", "*": "full", "-": "mlp", "E": "moe", "L": "window", "G": "full"}
"""NVIDIA's hybrid_override_pattern, and EXAONE's sliding_window_pattern."""


def _words(c: Config, layers: int) -> list[str]:
    """Keys that state the kind of each layer; the first that is present counts."""
    rule = _by_list(c, layers) or _by_rule(c)
    if isinstance(rule, list):
        if len(rule) != layers:
            raise InputError(f"the list of layers names {len(rule)} of {layers}; give as many as num_hidden_layers")
        words = rule
    else:
        words = [rule(layer) for layer in range(layers)]
    known: dict[str, str] = vocabulary()["words"]
    own = {"full", "window", "chunk", "cross", "mlp", "moe"}
    unknown = [one for one in words if not isinstance(one, str) or known.get(one, one) not in {*own, *known.values()}]
    if unknown:
        raise InputError(f"a layer is {shown(unknown[0])}, which is not modelled; known: {', '.join(known)}")
    return [known.get(one, one) for one in words]


def _by_list(c: Config, layers: int) -> list[str]:
    """The layers where something names each of them."""
    if found := c.listed("layer_types", "layers_block_type", "attention_layers"):
        return found
    if found := c.listed("attention_types"):
        pairs = [one for one in found if isinstance(one, list) and len(one) == 2 and isinstance(one[0], list)]
        return [word for words, times in pairs if isinstance(times, int) for word in words * min(times, layers)]
    for key in ("hybrid_override_pattern", "sliding_window_pattern"):
        if isinstance(text := c.content.get(key), str) and text and set(text) <= _LETTERS.keys():
            return [_LETTERS[text[layer % len(text)]] for layer in range(max(layers, len(text)))][:layers]
    for key, words in (("attn_type_list", ("linear", "full")), ("hybrid_layer_pattern", ("full", "window"))):
        if found := c.listed(key):
            return [words[1 if one == 1 else 0] for one in found]
    return []


Rule = Callable[[int], str]
_PERIODS = {
    "full_attention_interval": ("linear", "full", 1),
    "sliding_window_pattern": ("window", "full", 1),
    "_sliding_window_pattern": ("window", "full", 1),
    "global_attn_every_n_layers": ("window", "full", 0),
}
"""Keys that hold a period: what most layers are, what one in so many is, and where the count begins."""


def _by_rule(c: Config) -> Rule:
    """The layers by a list of some, by a period, or as the architecture has them."""
    return _by_some(c) or _by_period(c) or _by_architecture(c)


def _by_some(c: Config) -> Rule | None:
    """The layers where something names some of them."""
    if full := c.listed("full_attn_idxs", "attn_layer_indices"):
        return lambda layer: "full" if layer in full else "linear"
    linear = c.content.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(ours := linear.get("full_attn_layers"), list):  # counted from 1
        c.content |= {"linear_num_heads": linear.get("num_heads"), "linear_head_dim": linear.get("head_dim")}
        return lambda layer: "full" if layer + 1 in ours else "linear"
    if cross := c.numbers("cross_attention_layers"):
        return lambda layer: "cross" if layer in cross else "full"
    if (rope := c.listed("no_rope_layers")) and c.reads("chunk"):
        return lambda layer: "chunk" if rope[layer % len(rope)] else "full"
    return None


def _by_period(c: Config) -> Rule | None:
    if c.value("attn_layer_period") is not None:
        period, offset = c.whole("attn_layer_period"), c.whole("attn_layer_offset", 0)
        return lambda layer: "full" if layer % period == offset else "linear"
    if key := next((key for key in _PERIODS if c.content.get(key) is not None), None):
        most, one, start = _PERIODS[key]
        every = c.whole(key)
        return lambda layer: most if (layer + start) % every else one
    if c.value("max_window_layers") is not None and c.flag("use_sliding_window"):
        first = c.whole("max_window_layers", 0)
        if c.has("window_below"):  # models/qwen2_moe
            return lambda layer: "window" if layer < first and layer % 2 == 0 else "full"
        return lambda layer: "window" if layer >= first else "full"
    return None


def _by_architecture(c: Config) -> Rule:
    if blocks := c.listed("block_types"):  # models/recurrent_gemma, whose attention is local
        return lambda layer: "window" if blocks[layer % len(blocks)] == "attention" else "linear"
    own = c.known.layers if c.known else ()
    if own == ("irregular",):
        raise InputError("layer_types is missing, and the layers of this architecture follow no rule; add it")
    return lambda layer: own[layer % len(own)] if own else "window" if c.reads("window") else "full"


def _mask(c: Config, word: str, causal: bool) -> Mask:
    """The keys that a query of such a layer sees."""
    if word == "cross":
        return Mask.full()
    base = Mask.causal() if causal else Mask.full()
    if word == "chunk" and c.value("chunk") is not None:
        return Mask.parse(f"causal, block window 0x{c.whole('chunk')}")
    if word != "window" or c.value("use_sliding_window") is False or c.value("window") is None:
        return base
    window = c.whole("window")
    if causal:
        return Mask.sliding_window(window)
    return Mask.sliding_window(window // 2 + 1, causal=False)  # transformers' sliding_window_bidirectional_overlay


def _kinds(c: Config, layers: int, causal: bool) -> tuple[LayerKind, ...]:
    """The layers, those that are alike together, in the order in which they come first."""
    words, hidden, found = _words(c, layers), c.whole("hidden"), dict[LayerKind, list[int]]()
    overrides = c.content.get("per_layer_config")
    fewer = c.whole("num_kv_shared_layers", 0)
    for layer, word in enumerate(words):
        other = overrides.get(str(layer)) if isinstance(overrides, dict) else None
        mine = c if not isinstance(other, dict) else Config({**c.content, **other}, c.known, c.nested)
        for part in (c.linear if one == "linear" else one for one in word.split("+")):
            if part in MIXERS:
                kind = LayerKind(part, (), *heads_of(part, c, hidden), weights=MIXERS[part](c, hidden))
            elif part in ("mlp", "moe"):
                mlp = replace(_mlp(c, 0), experts=None) if part == "mlp" else _mlp(c, 0)
                kind = LayerKind(part, (), weights=mlp.parameters(hidden, 1), mlp=mlp)
            elif part not in ("full", "window", "chunk", "cross"):
                raise InputError(f"layer {layer} is {shown(word)}, which this architecture is not known to have")
            else:
                name = "cross-attention" if part == "cross" else ATTENTION
                kind = LayerKind(name, (), *_heads(mine, part, layer), _mask(mine, part, causal))
            found.setdefault(kind, []).append(layer)
    return tuple(
        replace(kind, at=tuple(at), shared=sum(one >= layers - fewer for one in at) if kind.mask else 0)
        for kind, at in found.items()
    )


def _heads(c: Config, word: str, layer: int) -> tuple[int, int, int, int]:
    """Query and key heads and their widths in a layer."""
    of = {"full": "global_", "window": "swa_"}.get(word, "")
    heads = c.whole(f"{of}num_attention_heads", _of_layer(c, "num_attention_heads_per_layer", layer, "heads", 0))
    kv_heads = heads
    one_head = c.value("attn_type") == "multiquery_attention" or c.flag("multi_query")
    if one_head and not c.flag("new_decoder_architecture"):
        kv_heads = 1
    elif c.reads("kv_heads") and c.value("multi_query_attention") is not False:
        kv_heads = _of_layer(c, "num_key_value_heads_per_layer", layer, "kv_heads", heads)
    if word == "window":
        kv_heads = c.whole("swa_num_key_value_heads", kv_heads)
    if word == "full" and c.flag("attention_k_eq_v"):
        kv_heads = c.whole("num_global_key_value_heads", kv_heads)
    if c.value("kv_lora_rank") is not None:
        width = c.whole("qk_nope_head_dim") + c.whole("qk_rope_head_dim")
        return heads, heads, width, c.whole("head_dim_v", c.whole("hidden") // heads)
    if c.value("head_dim") is None and c.whole("hidden") % heads:
        raise InputError(f"hidden_size is {c.whole('hidden')}, not a multiple of {heads} heads; add head_dim")
    width = c.whole(f"{of}head_dim", c.whole("head_dim", c.whole("hidden") // heads))
    return heads, kv_heads, width, c.whole("swa_v_head_dim" if word == "window" else "head_dim_v", width)


def _of_layer(c: Config, key: str, layer: int, field: str, default: int) -> int:
    found = c.listed(key)
    if not found:
        return c.whole(field, default or None)
    if layer >= len(found) or not isinstance(found[layer], int):
        raise InputError(f"{key} is {shown(found)}; allowed: a whole number for each layer")
    return int(found[layer])


def _mlp(c: Config, layers: int) -> Mlp:
    """The MLP, and where the layers have them its experts."""
    hidden, experts = c.whole("hidden"), c.whole("experts", 0)
    known, feed = c.known is not None, c.content.get("feed_forward_proj")
    gated = feed.startswith("gated") if isinstance(feed, str) else c.has("gated") or not known
    width = c.whole("inner", c.whole("expansion_ratio", _WIDER) * hidden)
    if c.has("half_inner"):
        width //= 2
    if c.flag("block_auto_adjust_ff_dim"):  # models/lfm2, `Lfm2MLP`
        multiple = c.whole("block_multiple_of", 256)
        width = -(-(2 * width // 3) // multiple) * multiple
    if experts <= 1 or c.value("enable_moe_block") is False:
        return Mlp(c.whole("shared_width", width) if c.value("experts") == 0 else width, gated)
    wide = c.whole("expert_width", c.whole("intermediate_size", width))
    beside = width if c.flag("enable_moe_block") else c.whole("shared_width", 0)
    shared = c.whole("shared", 0) if not beside else beside // wide
    return Mlp(width, gated, Experts(experts, c.whole("active"), wide, shared, _dense_layers(c, layers)))


def _dense_layers(c: Config, layers: int) -> int:
    """Layers that have the one MLP in place of experts."""
    if kinds := c.listed("mlp_layer_types"):
        return kinds.count("dense")
    if frequencies := c.listed("moe_layer_freq"):
        return frequencies.count(0)
    if some := c.numbers("moe_layers"):
        return layers - len(some)
    if c.value("expert_layer_period") is not None:
        period, offset = c.whole("expert_layer_period"), c.whole("expert_layer_offset", 0)
        return sum(layer % period != offset for layer in range(layers))
    every = c.whole("decoder_sparse_step", c.whole("interleave_moe_layer_step", 1))
    return min(layers, len(c.numbers("mlp_only_layers")) + layers - layers // every + c.whole("dense_first", 0))


def _outside(c: Config, layers: int, length: int, tied: bool) -> int:
    """Parameters outside the layers: embeddings, positions, patches, the head."""
    hidden, vocabulary = c.whole("hidden"), c.whole("vocabulary", 0)
    words = vocabulary * c.whole("embedding_size", hidden) * (1 if tied else 2)
    per_layer = c.whole("hidden_size_per_layer_input", 0)
    words += per_layer * layers * (c.whole("vocab_size_per_layer_input", vocabulary) + 3 * hidden)  # models/gemma3n
    patches = c.whole("patch_size", 0) ** 2 * c.whole("num_channels", 3) * hidden if not vocabulary else 0
    positions = (length + c.whole("source_length", 0)) * hidden if c.has("learnt") else 0
    pooled = (
        hidden * hidden if vocabulary and c.known and c.known.kind == "encoder" else 0
    )  # pooler, or head's transform
    return words + patches + positions + pooled + c.whole("type_vocab_size", 0) * hidden


def _read(c: Config) -> Model:
    """The model of a configuration, without its names."""
    kind = c.known.kind if c.known else "decoder"
    if c.known and kind == "other":
        raise InputError(f"architecture {c.known.name} is not read here: {c.known.linear}")
    if kind == "none":
        raise InputError(_NONE)
    both_ways = c.value("use_bidirectional_attention") in (True, "all")
    causal = (kind == "decoder" or c.flag("is_decoder")) and not both_ways
    pattern = c.content.get("hybrid_override_pattern")
    listed = pattern if isinstance(pattern, str) else c.listed("layer_types", "layers_block_type")
    layers = c.whole("layers", len(listed) or None)
    seq2seq = c.flag("is_encoder_decoder") and kind != "decoder"
    kinds = _pair(c, layers) if seq2seq else _special(c) or _kinds(c, layers, causal)
    attend = [(one, one.mask) for one in kinds if one.mask]
    if not attend:
        raise InputError(_NONE)
    layers += sum(one.layers for one in kinds if one.kind == "decoder")
    open_to_all = ((one, mask) for one, mask in attend if not mask.is_windowed and one.kind != "encoder")
    widest, mask = next(open_to_all, attend[0])
    length = c.whole("max_length", c.whole("source_length", 0))
    if c.value("image_size") is not None and not c.value("vocabulary"):
        length = (c.whole("image_size") // c.whole("patch_size")) ** 2 + 1
    latent = (
        Latent(c.whole("kv_lora_rank"), c.whole("qk_rope_head_dim")) if c.value("kv_lora_rank") is not None else None
    )
    tied, own_mlp = c.flag("tie_word_embeddings"), any(one.kind in ("mlp", "moe") for one in kinds)
    says_mlp = c.value("inner") is not None or all(c.defaults.get(key) is None for key in spelt("inner"))
    padded = _PADDED_POSITIONS if c.has("padded") else 0
    uniform = len(kinds) == 1 and kinds[0].kind == ATTENTION and not kinds[0].shared
    sinks = c.has("sinks") or c.flag("add_swa_attention_sink_bias") or c.flag("add_full_attention_sink_bias")
    alibi = c.flag("alibi", c.has("alibi"))
    if alibi:
        c.left_out.append("ALiBi, a bias on every score by distance")
    if c.flag("prefix_lm"):
        c.left_out.append("prefix_lm: a prefix sees itself both ways")
    biases = c.value("no_bias") is not True
    counted = says_mlp and not c.has("uncounted")
    return Model(
        "",
        "",
        layers=layers,
        hidden=c.whole("hidden"),
        heads_q=widest.heads_q,
        heads_kv=widest.heads_kv,
        head_dim=widest.head_dim,
        head_dim_v=widest.head_dim_v,
        mask=mask,
        max_length=max(0, length - padded),
        rotary=0 if alibi else _rotary(c, widest.head_dim),
        qkv_bias=biases and _bias(c, "qkv_bias"),
        out_bias=biases and _bias(c, "out_bias"),
        latent=latent,
        query_rank=c.whole("q_lora_rank", 0) if latent else 0,
        mlp=_mlp(c, layers) if says_mlp and not own_mlp else None,
        vocabulary=c.whole("vocabulary", 0) if causal or seq2seq else 0,
        kinds=() if uniform else kinds,
        outside=_outside(c, layers, length, tied or not (causal or seq2seq)) if counted else None,
        gate=c.has("gate"),
        sinks=sinks,
        softcap=c.share("softcap"),
        qk_norm=c.flag("use_qk_norm", c.has("qk_norm")),
        fp8_blocks=c.value("fp8_blocks") is not None,
    )


def _bias(c: Config, field: str) -> bool:
    """Whether projections add a bias: as the file says, where the architecture asks it."""
    return c.flag(field, c.has(field)) if c.reads(field) else c.has(field)


def _rotary(c: Config, width: int) -> int:
    if c.value("rotary") is not None and (c.value("kv_lora_rank") is not None or c.reads("rotary")):
        return min(width, c.whole("rotary"))
    share = c.share("rotary_part")
    turns = c.known is None or c.has("rotary")
    return round(width * (1.0 if share is None else share)) if turns else 0


def _pair(c: Config, layers: int) -> tuple[LayerKind, ...]:
    """Encoder, decoder, and the decoder's attention to the encoder."""
    after = range(layers, layers + c.whole("decoder_layers", layers))
    heads, _, width, wide = _heads(c, "", 0)
    mine = c.whole("decoder_heads", heads)
    shape = (mine, mine, width * heads // mine, wide * heads // mine)
    return (
        LayerKind("encoder", tuple(range(layers)), heads, heads, width, wide, Mask.full()),
        LayerKind("decoder", tuple(after), *shape, Mask.causal()),
        LayerKind("cross-attention", tuple(after), *shape, Mask.full()),
    )


def _special(c: Config) -> tuple[LayerKind, ...]:
    """Encoders whose mask is a pattern of their own: Longformer's window with global tokens, BigBird's blocks."""
    windows = c.value("attention_window")
    if windows is not None:
        found = windows if isinstance(windows, list) else [windows]
        if not found or any(size != found[0] for size in found):
            raise InputError(f"attention_window is {shown(windows)}; one window for all layers is read")
        mask = Mask.longformer(Config({"attention_window": found[0]}, None).whole("attention_window"), _GLOBAL_TOKENS)
    elif c.reads("num_random_blocks") and c.content.get("attention_type") != "original_full" and c.known:
        mask = Mask.bigbird(c.whole("block_size", 64), 3, _BIGBIRD_BLOCKS, c.whole("num_random_blocks", 3))
    else:
        return ()
    return (LayerKind(ATTENTION, tuple(range(c.whole("layers"))), *_heads(c, "", 0), mask),)


def import_config(path: Path) -> Model:
    """The model that a Hugging Face ``config.json`` describes.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputError
        One line: what is wrong with the file, or what of its attention is not known.

    Warns
    -----
    Taken
        What of it is left out, and whether its architecture is not known.
    """
    raw = read_bytes(path, MAX_FILE_BYTES, "a Hugging Face config.json", "a config.json holds some KiB")
    try:
        model, told = _imported(raw, path.stem.lower())
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    for text in told:
        warnings.warn(f"{path.name}: {text}", Taken, stacklevel=2)
    return model


def _content(raw: bytes) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:  # broken JSON, another encoding, numbers of thousands of digits
        told = "nested too deep" if isinstance(error, RecursionError) else shown(str(error))
        raise InputError(f"is not JSON ({told}); give a Hugging Face config.json") from None
    if not isinstance(content, dict):
        raise InputError(f"holds a {type(content).__name__}; a Hugging Face config.json holds keys such as model_type")
    return content


def _language_model(content: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The part that is the language model, and what stands beside it."""
    inner = next((content[key] for key in _NESTED if isinstance(content.get(key), dict)), None)
    others = [key for key, part in content.items() if key.endswith("_config") and isinstance(part, dict)]
    beside = [key for key in others if re.search("vision|audio|speech|thinker|talker", key)]
    told = [f"{key} is left out: this is the language model alone" for key in beside]
    if inner is None:
        return content, told
    names = ("architectures", "model_type", "tie_word_embeddings", "quantization_config")
    outer = {key: content[key] for key in names if key in content}
    whose = [] if "architectures" in inner or "model_type" in inner else [outer]
    kept = {key: outer[key] for key in names[2:] if key in outer}
    return {**kept, **{key: value for one in whose for key, value in one.items()}, **inner}, told


def _architecture(content: Mapping[str, object]) -> tuple[Architecture | None, str, list[str]]:
    """The line of the architecture, its name, and what to say where it is not known."""
    listed = content.get("architectures")
    own = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    family = content.get("model_type")
    if family is not None and not isinstance(family, str):
        raise InputError(f"model_type is {shown(family)}; allowed: a word, such as llama")
    known = architectures()
    for name in own:
        if found := known.get(plain(name)) or known.get(plain(_TASK.sub("", name))):
            return found, name, []
    if family and (found := known.get(plain(family))):
        told = [f"architecture {own[0]} is not known; read as model_type {family}"] if own else []
        return found, family, told
    unknown = own[0] if own else family
    if not unknown:
        raise InputError(f"model_type is {shown(family)} and architectures names none; add model_type")
    near = nearest(plain(family or unknown), known)
    return None, unknown, [f"architecture {shown(unknown)} is not known ({near}): read by its keys as a decoder"]


def _imported(raw: bytes, stem: str) -> tuple[Model, list[str]]:
    """The model, and what to say of it."""
    outer = _content(raw)
    content, beside = _language_model(outer)
    known, architecture, told = _architecture(content)
    config = Config(content, known, nested=content is not outer)
    strange = _strange(config)
    if known is None and strange:
        raise InputError(
            f"architecture {shown(architecture)} is not known, and {', '.join(strange)} may change its attention; "
            "write a model file of its heads and masks (docs/extending/model.md)"
        )
    try:
        model = _read(config)
    except InputError as error:
        if known is not None:
            raise
        near = nearest(plain(architecture), architectures())
        raise InputError(
            f"architecture {shown(architecture)} is not known ({near}), nor read by keys: {error}"
        ) from None
    if config.taken:
        taken = ", ".join(f"{key} {value}" for key, value in config.taken.items())
        told = [*told, f"not in the file, taken as transformers does: {taken}"]
    left_out = [*(f"{key} is left out" for key in strange), *config.left_out]
    told = [*told, *_quantized(outer.get("quantization_config") or content.get("quantization_config"))]
    given = str(outer.get("_name_or_path") or "")
    is_named = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,150}", given) is not None
    name = given if is_named else stem
    ident = re.sub(r"[^a-z0-9._-]", "-", name.rsplit("/", maxsplit=1)[-1].lower()).lstrip("._-")[:64] or "imported"
    source = f"imported from a Hugging Face config.json, {re.sub(r'[^A-Za-z0-9_.-]', '?', architecture)[:80]}"
    if is_named:
        source += f", {name}"
    return replace(model, id=ident, name=name, source=source, left_out=tuple(left_out)), [*told, *beside, *left_out]


def _quantized(given: object) -> list[str]:
    """A sentence on weights of fewer bits, which a model does not keep: the format is asked with the question."""
    if not isinstance(given, dict):
        return []
    method = shown(given.get("quant_method") or given.get("quant_algo") or "not named")
    if "fp8" in method.lower():
        return [f"its weights are quantized ({method}): ask with dtype fp8"]
    return [f"its weights are quantized ({method}), which is left out: they are taken in the format of the question"]


_SAID = {
    "use_bidirectional_attention": "image tokens see each other both ways",
    "num_kv_shared_layers": "these layers take the keys of an earlier one",
    "relative_attention_num_buckets": "a learnt bias on every score by distance",
    "index_topk": "an indexer picks the keys; every key is attended here (--algorithm dsa asks for it)",
}
"""Keys that change attention and are not read, or not wholly, and what they do."""


def _strange(c: Config) -> list[str]:
    """Keys that may change attention and are not read, as they are to be said."""
    known = vocabulary()
    read = {key for keys in known["fields"].values() for key in keys} | set(known["rules"])
    harmless = re.compile(re.sub(r"\s", "", known["harmless"]))
    set_keys = {key: value for key, value in c.content.items() if value not in (None, False, 0, [], {}, "")}
    values = ((key, c.value(key), what) for key, what in _SAID.items())
    said = [f"{key} = {shown(value)} ({what})" for key, value, what in values if value and value not in (True, "all")]
    unread = [
        key
        for key, value in set_keys.items()
        if key not in read and _LOOKS_LIKE_ATTENTION.search(key) and not harmless.search(key)
    ]
    unread += [
        key
        for field in ("window", "chunk", "softcap", "kv_heads")
        for key in known["fields"][field]
        if key in set_keys and c.known and not c.reads(field)
    ]
    return [*unread, *said]
