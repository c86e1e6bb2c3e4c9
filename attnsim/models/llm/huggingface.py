"""Models from Hugging Face's ``config.json``: what each family calls its heads, widths and windows.

Key names and defaults are those of the `configuration_*.py` files of Hugging Face transformers 4.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from attnsim.errors import InputError, Taken, nearest, shown
from attnsim.files import read_bytes
from attnsim.models.llm.mlp import Experts, Mlp
from attnsim.models.llm.model import Model
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Latent

MAX_FILE_BYTES = 1 << 20
_LARGEST = 1 << 27
_PADDED_POSITIONS = 2
"""RoBERTa's positions begin after the padding token's: 514 and 4,098 stand for 512 and 4,096."""
_GLOBAL_TOKENS = 1
"""Longformer's global tokens are the task's; one, the first, as for classification (arXiv 2004.05150, section 3.1)."""
_OF_ATTENTION = ("sliding_window", "attention_chunk_size", "attn_logit_softcapping")
"""Keys that change which keys are seen, or what is done with scores, where a family's reader reads them."""
_BIGBIRD_BLOCKS = 2
"""Global blocks of Hugging Face's BigBird: the first and the last."""


class _Config:
    """A configuration whose values are checked as they are read."""

    def __init__(self, content: Mapping[str, object]) -> None:
        self.content = content
        self.read: set[str] = set()
        self.left_out: list[str] = []

    def whole(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is there, a whole number from 1; null counts as absent."""
        for key in keys:
            self.read.add(key)
            value = self.content.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
                raise InputError(f"{key} is {shown(value)}; allowed: a whole number from 1 to {_LARGEST}")
            return value
        if default is None:
            raise InputError(f"{keys[0]} is missing; add it")
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value; null counts as absent."""
        value = self.content.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{key} is {shown(value)}; allowed: true or false")
        return value

    def word(self, key: str) -> str:
        """A text, "" where there is none."""
        value = self.content.get(key)
        return value if isinstance(value, str) else ""

    def mlp(self, *keys: str, gated: bool, default: int = 0, experts: Experts | None = None) -> Mlp | None:
        """The MLP whose width the first of `keys` states; None where nothing does."""
        width = self.whole(*keys, default=default)
        return Mlp(width, gated, experts) if width else None

    def head_dim(self, hidden: int, heads: int) -> int:
        """Width of a head: stated, or the hidden size shared out."""
        if self.content.get("head_dim") is None and hidden % heads:
            raise InputError(f"hidden_size is {hidden}, not a multiple of {heads} heads; add head_dim")
        return self.whole("head_dim", default=hidden // heads)


_WIDER = 4
"""Widths of the model that the MLPs of GPT-2 and Falcon have, where `n_inner` or `ffn_hidden_size` is not set."""

_unnamed = partial(Model, "", "")
"""A model whose id and name the file will give."""


def _decoder(c: _Config, *, qkv_bias: bool | None = None, window: int = 0, experts: Experts | None = None) -> Model:
    """Llama and its relatives: causal, rotary over whole heads, `attention_bias` on all projections, a gated MLP."""
    hidden, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    width = c.head_dim(hidden, heads)
    bias = c.flag("attention_bias")
    return _unnamed(
        layers=c.whole("num_hidden_layers"),
        hidden=hidden,
        heads_q=heads,
        heads_kv=c.whole("num_key_value_heads", default=heads),
        head_dim=width,
        head_dim_v=width,
        mask=Mask.sliding_window(window) if window else Mask.causal(),
        max_length=c.whole("max_position_embeddings", default=0),
        rotary=width,
        qkv_bias=bias if qkv_bias is None else qkv_bias,
        out_bias=bias,
        mlp=c.mlp("intermediate_size", gated=True, experts=experts),
        vocabulary=c.whole("vocab_size", default=0),
    )


def _mistral(c: _Config) -> Model:
    """Mixtral's experts are as wide as `intermediate_size`."""
    number, width = c.whole("num_local_experts", default=0), c.whole("intermediate_size", default=0)
    experts = Experts(number, c.whole("num_experts_per_tok"), width) if number and width else None
    return _decoder(c, window=c.whole("sliding_window", default=0), experts=experts)


def _qwen_experts(c: _Config) -> Experts | None:
    """The experts of a Qwen model, the shared one in widths of the routed; some layers may have none."""
    number = c.whole("num_experts", default=0)
    if not number:
        return None
    width, layers = c.whole("moe_intermediate_size"), c.whole("num_hidden_layers")
    shared, wide = divmod(c.whole("shared_expert_intermediate_size", default=width), width)
    if wide:
        raise InputError(f"shared_expert_intermediate_size is no multiple of moe_intermediate_size = {width}")
    given = c.content.get("mlp_only_layers")
    dense = len(given) if isinstance(given, list) else 0
    dense += layers - layers // c.whole("decoder_sparse_step", default=1)
    shared = shared if "shared_expert_intermediate_size" in c.content else 0
    return Experts(number, c.whole("num_experts_per_tok"), width, shared, dense)


def _qwen(c: _Config, qkv_bias: bool | None = None) -> Model:
    """A window, where it is used, belongs to the layers from `max_window_layers` on."""
    experts = _qwen_experts(c)
    window, layers = c.whole("sliding_window", default=0), c.whole("num_hidden_layers")
    if not c.flag("use_sliding_window") or not window:
        return _decoder(c, qkv_bias=qkv_bias, experts=experts)
    first = c.content.get("max_window_layers", layers)
    if first == 0:
        return _decoder(c, qkv_bias=qkv_bias, window=window, experts=experts)
    if first != layers:
        c.left_out.append(f"a window of {window} from layer {shown(first)} on is left out")
    return _decoder(c, qkv_bias=qkv_bias, experts=experts)


def _gpt2(c: _Config) -> Model:
    names = ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"), ("n_layer", "num_hidden_layers")
    return _learnt_positions(c, Mask.causal(), (*names, ("n_positions",)), wider=_WIDER)


def _bert(c: _Config, padded: int = 0) -> Model:
    return _learnt_positions(c, Mask.causal() if c.flag("is_decoder") else Mask.full(), padded=padded)


def _longformer(c: _Config) -> Model:
    windows = c.content.get("attention_window")
    found = windows if isinstance(windows, list) else [windows]
    if not found or any(size != found[0] for size in found):
        raise InputError(f"attention_window is {shown(windows)}; one window for all layers is read")
    window = _Config({"attention_window": found[0]}).whole("attention_window")
    return _learnt_positions(c, Mask.longformer(window, _GLOBAL_TOKENS), padded=_PADDED_POSITIONS)


def _big_bird(c: _Config) -> Model:
    if c.word("attention_type") == "original_full":
        return _learnt_positions(c, Mask.full())
    block, random = c.whole("block_size", default=64), c.whole("num_random_blocks", default=3)
    return _learnt_positions(c, Mask.bigbird(block, 3, _BIGBIRD_BLOCKS, random))


_BERT_NAMES = ("hidden_size",), ("num_attention_heads",), ("num_hidden_layers",), ("max_position_embeddings",)


def _learnt_positions(
    c: _Config, mask: Mask, names: tuple[tuple[str, ...], ...] = _BERT_NAMES, *, padded: int = 0, wider: int = 0
) -> Model:
    """BERT's and GPT-2's kind: a key/value head each, positions learnt, a bias on every projection."""
    hidden, heads, layers = (c.whole(*keys) for keys in names[:3])
    width = c.head_dim(hidden, heads)
    return _unnamed(
        layers=layers,
        hidden=hidden,
        heads_q=heads,
        heads_kv=heads,
        head_dim=width,
        head_dim_v=width,
        mask=mask,
        max_length=max(0, c.whole(*names[3], default=0) - padded),
        qkv_bias=True,
        out_bias=True,
        mlp=c.mlp("intermediate_size", "n_inner", gated=False, default=wider * hidden),
        vocabulary=c.whole("vocab_size", default=0) if mask.is_causal else 0,
    )


def _falcon(c: _Config) -> Model:
    """`multi_query` stands for one key head, unless `new_decoder_architecture` gives their number."""
    hidden = c.whole("hidden_size")
    heads = c.whole("num_attention_heads", "n_head")
    width = c.head_dim(hidden, heads)
    grouped = c.flag("new_decoder_architecture") or not c.flag("multi_query", default=True)
    bias = c.flag("bias")
    return _unnamed(
        layers=c.whole("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads_q=heads,
        heads_kv=c.whole("num_kv_heads", "n_head_kv", default=heads) if grouped else 1,
        head_dim=width,
        head_dim_v=width,
        max_length=c.whole("max_position_embeddings", default=2048),
        rotary=0 if c.flag("alibi") else width,
        qkv_bias=bias,
        out_bias=bias,
        mlp=c.mlp("ffn_hidden_size", gated=False, default=_WIDER * hidden),
        vocabulary=c.whole("vocab_size", default=0),
    )


def _deepseek(c: _Config) -> Model:
    heads = c.whole("num_attention_heads")
    rope = c.whole("qk_rope_head_dim")
    bias = c.flag("attention_bias")
    number = c.whole("n_routed_experts", default=0)
    experts = (
        Experts(
            number, c.whole("num_experts_per_tok"), c.whole("moe_intermediate_size"),
            c.whole("n_shared_experts", default=0), c.whole("first_k_dense_replace", default=0),
        )
        if number
        else None
    )  # fmt: skip
    return _unnamed(
        layers=c.whole("num_hidden_layers"),
        hidden=c.whole("hidden_size"),
        heads_q=heads,
        heads_kv=heads,
        head_dim=c.whole("qk_nope_head_dim") + rope,
        head_dim_v=c.whole("v_head_dim"),
        max_length=c.whole("max_position_embeddings", default=0),
        rotary=rope,
        qkv_bias=bias,
        out_bias=bias,
        latent=Latent(c.whole("kv_lora_rank"), rope),
        query_rank=c.whole("q_lora_rank", default=0),
        mlp=c.mlp("intermediate_size", gated=True, experts=experts),
        vocabulary=c.whole("vocab_size", default=0),
    )


FAMILIES: dict[str, Callable[[_Config], Model]] = {
    "llama": _decoder,
    "mistral": _mistral,
    "mixtral": _mistral,
    "qwen2": partial(_qwen, qkv_bias=True),
    "qwen2_moe": partial(_qwen, qkv_bias=True),
    "qwen3": _qwen,
    "qwen3_moe": _qwen,
    "gemma": _decoder,
    "gpt2": _gpt2,
    "bert": _bert,
    "roberta": partial(_bert, padded=_PADDED_POSITIONS),
    "falcon": _falcon,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "longformer": _longformer,
    "big_bird": _big_bird,
}
"""Readers by `model_type`."""


def import_config(path: Path) -> Model:
    """The model that a Hugging Face ``config.json`` describes.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputError
        One line: what is wrong with the file, or which family is not known.

    Warns
    -----
    Taken
        What of its attention is left out.
    """
    raw = read_bytes(path, MAX_FILE_BYTES, "a Hugging Face config.json", "a config.json holds some KiB")
    try:
        model, left_out = _imported(raw, path.stem.lower())
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    for told in left_out:
        warnings.warn(f"{path.name}: {told}; every layer has the mask {model.mask}", Taken, stacklevel=2)
    return model


def _imported(raw: bytes, stem: str) -> tuple[Model, list[str]]:
    """The model, and what of its attention is left out."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:  # broken JSON, another encoding, numbers of thousands of digits
        told = "nested too deep" if isinstance(error, RecursionError) else shown(str(error))
        raise InputError(f"is not JSON ({told}); give a Hugging Face config.json") from None
    if not isinstance(content, dict):
        raise InputError(f"holds a {type(content).__name__}; a Hugging Face config.json holds keys such as model_type")
    family = content.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        close = nearest(family, FAMILIES) if isinstance(family, str) else "add it"
        raise InputError(f"model_type is {shown(family)}, not known; {close}; known: {', '.join(FAMILIES)}")
    config = _Config(content)
    model = FAMILIES[family](config)
    given = str(content.get("_name_or_path") or "")
    is_named = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,150}", given) is not None
    name = given if is_named else stem
    ident = re.sub(r"[^a-z0-9._-]", "-", name.rsplit("/", maxsplit=1)[-1].lower()).lstrip("._-")[:64] or "imported"
    source = f"imported from a Hugging Face config.json, model_type {family}"
    if is_named:
        source += f", {name}"
    unread = [f"{key} is left out" for key in _OF_ATTENTION if content.get(key) and key not in config.read]
    left_out = [*unread, *config.left_out]
    return replace(model, id=ident, name=name, source="; ".join([source, *left_out])), left_out
