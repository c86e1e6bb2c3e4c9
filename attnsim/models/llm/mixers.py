"""Layers without attention: their numbers of parameters, by the sizes that a configuration gives.

Norms, biases and scalars a head are left out; all else is in the modules of transformers 5 that are named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnsim.models.llm.config import Config


def _gated_delta_net(c: Config, hidden: int) -> int:
    """Q, K, V, their gate and two scalars a head, one product back (models/qwen3_next, `Qwen3NextGatedDeltaNet`)."""
    keys = c.whole("linear_num_key_heads") * c.whole("linear_key_head_dim")
    heads = c.whole("linear_num_value_heads")
    values = heads * c.whole("linear_value_head_dim")
    return hidden * (2 * keys + 3 * values + 2 * heads) + (2 * keys + values) * c.whole("convolution", 4)


def _kimi_delta(c: Config, hidden: int) -> int:
    """Q, K, V and O, two gates through a rank of one head, a scalar a head (models/kimi_linear)."""
    heads, width = c.whole("linear_num_heads"), c.whole("linear_head_dim")
    return hidden * (4 * heads * width + heads) + 2 * width * (hidden + heads * width)


def _lightning(c: Config, hidden: int) -> int:
    """Q, K, V, the gate of the output and O (models/minimax, `MiniMaxLightningAttention`)."""
    heads = c.whole("heads")
    return 5 * hidden * heads * c.whole("head_dim", hidden // heads)


def _mamba2(c: Config, hidden: int) -> int:
    """One product in, a convolution, one product back (models/mamba2, `Mamba2Mixer`)."""
    heads = c.whole("state_heads")
    inner = _inner(c, hidden)
    states = 2 * c.whole("state_groups", 1) * c.whole("state", 128)
    return hidden * (3 * inner + states + heads) + (inner + states) * c.whole("convolution", 4)


def _inner(c: Config, hidden: int) -> int:
    heads = c.whole("state_heads")
    return c.whole("state_inner", heads * c.whole("state_head_dim", c.whole("expand", 2) * hidden // heads))


def _mamba(c: Config, hidden: int) -> int:
    """Two products in, B, C and the step of each channel, one product back (models/jamba, `JambaMambaMixer`)."""
    inner, state = c.whole("expand", 2) * hidden, c.whole("state", 16)
    rank = c.whole("mamba_dt_rank", -(-hidden // 16))
    return 3 * hidden * inner + inner * (2 * rank + 3 * state + c.whole("convolution", 4))


def _short_convolution(c: Config, hidden: int) -> int:
    """Three products in, a convolution of a few tokens, one product back (models/lfm2, `Lfm2ShortConv`)."""
    return 4 * hidden * hidden + hidden * c.whole("convolution", 3)


def _recurrent(c: Config, hidden: int) -> int:
    """Two products in, two gates block by block, one product back (models/recurrent_gemma)."""
    width = c.whole("lru_width", hidden)
    return 3 * hidden * width + 2 * width * width // c.whole("heads") + width * c.whole("convolution", 4)


MIXERS: dict[str, Callable[[Config, int], int]] = {
    "gated delta net": _gated_delta_net,
    "kimi delta attention": _kimi_delta,
    "lightning attention": _lightning,
    "mamba-2": _mamba2,
    "mamba": _mamba,
    "short convolution": _short_convolution,
    "recurrent": _recurrent,
}
"""Parameters of one layer's, by kind: of a configuration and the model's width."""


def heads_of(kind: str, c: Config, hidden: int) -> tuple[int, int, int, int]:
    """Heads of values and of keys and their widths, keys' first; nothing of a kind whose kernels are not known."""
    if kind == "gated delta net":
        values, keys = c.whole("linear_num_value_heads"), c.whole("linear_num_key_heads")
        return values, keys, c.whole("linear_key_head_dim"), c.whole("linear_value_head_dim")
    if kind == "kimi delta attention":
        heads, width = c.whole("linear_num_heads"), c.whole("linear_head_dim")
        return heads, heads, width, width
    if kind == "mamba-2":
        heads = c.whole("state_heads")
        return heads, c.whole("state_groups", 1), c.whole("state", 128), _inner(c, hidden) // heads
    return 0, 0, 0, 0
