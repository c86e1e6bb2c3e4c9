"""Kernels of a layer that does not attend: products, the short convolution, the recurrence or its chunks, a gated norm.

As vLLM serves them (``model_executor/models/qwen3_next.py``, ``layers/kda.py``, ``layers/mamba/mamba_mixer2.py``): one
product in, the convolution over Q, K and V, the kernels of the family, a norm that a gate multiplies, one product back.
Sequences that decode and prompts are called apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from attnsim.models.implementations.frameworks.step import Step, product_step
from attnsim.models.llm.model import LayerKind
from attnsim.models.mask.mask import Mask
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import DTYPE_BYTES, Workload
from attnsim.models.schedule.passes import Access

CONVOLUTION = "short-convolution"
WITH_ALL_AROUND = ("vllm.kda-fused-decode",)
"""Kernels that have the convolution before them and the norm behind them in themselves."""
_STATE_BYTES, _TAPS_KEPT = 4, 3


@dataclass(frozen=True, slots=True)
class Mixer:
    """A mixer: what a kind of layers runs in place of attention.

    Parameters
    ----------
    algorithm : str
        Of its recurrence.
    into : callable
        Columns of the product in, by heads, width of all keys and of all values.
    convolved : callable
        Channels of the convolution, by the same.
    ranked : int
        Gates, each as wide as the values, that are made from a latent as wide as one head.
    """

    algorithm: str
    into: Callable[[int, int, int], int]
    convolved: Callable[[int, int, int], int]
    ranked: int = 0


MIXERS = {
    "gated delta net": Mixer("gdn", lambda h, k, v: 2 * k + 2 * v + 2 * h, lambda h, k, v: 2 * k + v),
    "kimi delta attention": Mixer("kda", lambda h, k, v: 2 * k + v + h, lambda h, k, v: 2 * k + v, ranked=2),
    "mamba-2": Mixer("mamba-2", lambda h, k, v: 2 * k + 2 * v + h, lambda h, k, v: 2 * k + v),
}
"""By kind of layers, as :mod:`attnsim.models.llm.mixers` counts their parameters."""
ALGORITHMS = frozenset({CONVOLUTION, *(one.algorithm for one in MIXERS.values())})


def _widths(kind: LayerKind) -> tuple[int, int, int]:
    return kind.heads_q, kind.heads_kv * kind.head_dim, kind.heads_q * kind.head_dim_v


def is_played(kind: LayerKind) -> bool:
    """Whether these layers do not attend and have kernels here."""
    return kind.kind in MIXERS and kind.heads_q > 0


def products_in(kind: LayerKind, hidden: int, rows: int) -> Iterator[Step]:
    """The products before the convolution."""
    mixer, values = MIXERS[kind.kind], kind.heads_q * kind.head_dim_v
    columns = mixer.into(*_widths(kind)) + mixer.ranked * kind.head_dim_v
    yield product_step("mixer's input projection", (rows, columns, hidden), ("X", "W_in", "QKV"), after="norm")
    if mixer.ranked:
        shape = (rows, values, kind.head_dim_v)
        yield product_step("gates' up projection", shape, ("C", "W_gates", "gates"), mixer.ranked)


def products_out(kind: LayerKind, hidden: int, rows: int, normed: int, element_bytes: int) -> Iterator[Step]:
    """The gated norm of so many rows, and the product back of all."""
    values = kind.heads_q * kind.head_dim_v
    if normed:
        size = normed * values * element_bytes
        yield Step("gated norm", moved=(Access("O", size), Access("gate", size), Access("normed", size, True)))
    yield product_step("mixer's output projection", (rows, hidden, values), ("normed", "W_out", "Y"))


def calls(kind: LayerKind, lengths: Sequence[Length], dtype: str) -> Iterator[tuple[str, Workload]]:
    """The recurrence of the sequences that decode and of prompts, each by its algorithm, and the convolution of both.

    Of prompts of different lengths the mean is called: they are taken in side by side.
    """
    mixer = MIXERS[kind.kind]
    channels = mixer.convolved(*_widths(kind))
    width = gcd(channels, 128)
    whole = (channels // width, channels // width, width, width)
    own = (kind.heads_q, kind.heads_kv, kind.head_dim, kind.head_dim_v)
    for decodes in (True, False):
        some = [one for one in lengths if (one.queries == 1) is decodes]
        if batch := sum(one.times for one in some):
            tokens = round(sum(one.queries * one.times for one in some) / batch)
            for algorithm, (heads, kv_heads, d, dv) in ((mixer.algorithm, own), (CONVOLUTION, whole)):
                yield algorithm, Workload(
                    batch=batch, heads_q=heads, heads_kv=kv_heads, seq_q=tokens, seq_kv=tokens, head_dim=d,
                    head_dim_v=dv, dtype=dtype, passes="decode" if decodes else "fwd", mask=Mask.causal(),
                )  # fmt: skip


def state_bytes(kind: LayerKind, dtype: str) -> int:
    """Bytes that a sequence keeps in such a layer, whatever its length: fp32 states, tokens of the convolution."""
    kept = MIXERS[kind.kind].convolved(*_widths(kind)) * _TAPS_KEPT * DTYPE_BYTES[dtype]
    return kind.heads_q * kind.head_dim * kind.head_dim_v * _STATE_BYTES + kept
