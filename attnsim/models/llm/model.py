"""A model as a GPU sees it: heads, widths, mask, projections and MLP of one layer, and how many layers there are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from attnsim.errors import InputError
from attnsim.models.llm.mlp import Mlp
from attnsim.models.mask.mask import Mask
from attnsim.models.question.words import read_pass
from attnsim.models.question.workload import DTYPE_BYTES, Latent, Workload

Sharing = Literal["MHA", "GQA", "MQA", "MLA"]
SHARINGS: tuple[Sharing, ...] = ("MHA", "GQA", "MQA", "MLA")

LARGEST_COUNT = {"layers": 4096, "hidden": 1 << 20, "max_length": 1 << 27, "rotary": 1024, "query_rank": 1 << 16}
LARGEST_COUNT |= {"vocabulary": 1 << 24}


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of a model that have the same in the place of attention.

    Parameters
    ----------
    kind : str
        "attention"; "encoder", "decoder" or "cross-attention"; or what is no attention, such as "mamba-2".
    at : tuple of int
        Which layers, from 0.
    heads_q, heads_kv, head_dim, head_dim_v : int
        As in :class:`Model`; of a recurrence heads of values and of keys and their widths; 0 of all else.
    mask : Mask, optional
        None of what is no attention.
    weights : int
        Parameters in one layer of what is no attention.
    shared : int
        How many of the layers take keys and values of an earlier one.
    mlp : Mlp, optional
        Of layers that are an MLP by themselves.
    """

    kind: str
    at: tuple[int, ...]
    heads_q: int = 0
    heads_kv: int = 0
    head_dim: int = 0
    head_dim_v: int = 0
    mask: Mask | None = None
    weights: int = 0
    shared: int = 0
    mlp: Mlp | None = None

    @property
    def layers(self) -> int:
        """How many layers."""
        return len(self.at)

    @property
    def is_cached(self) -> bool:
        """Whether each token adds to what these layers keep."""
        return self.mask is not None and self.mask.is_causal

    def __str__(self) -> str:
        if self.mask is None:
            return self.kind
        heads = str(self.heads_q) if self.heads_q == self.heads_kv else f"{self.heads_q}/{self.heads_kv}"
        named = "" if self.kind == ATTENTION else f"{self.kind}, "
        return f"{named}{self.mask}, heads {heads} of {self.head_dim}"


ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Model:
    """The layers of a model.

    Parameters
    ----------
    id, name : str
        What `--model` takes, and what people call it.
    layers, hidden : int
        Number of layers, and the width of what goes into and comes out of one.
    heads_q, heads_kv, head_dim, head_dim_v : int
        As in :class:`attnsim.models.question.workload.Workload`; with `latent` those of the decompressed form.
    mask : Mask
        What a query sees in training and prefill.
    max_length : int
        Longest sequence it was made for, 0 where that is not known.
    rotary : int
        Width of the part of a head that rotary embedding turns, 0 for none.
    qkv_bias, out_bias : bool
        Whether the projections of Q, K and V, and that of O, add a bias.
    latent : Latent, optional
        Of multi-head latent attention.
    query_rank : int
        Width of the latent that queries are made from (`q_lora_rank` in DeepSeek's configurations), 0 for none.
    mlp : Mlp, optional
        What follows the attention; None where it is not known.
    vocabulary : int
        Tokens that the LM head tells apart, 0 where that is not known or there is none.
    source : str
        Paper, or repository and file, that state the figures.
    kinds : tuple of LayerKind
        Where layers differ, or are not all attention; heads, widths and mask above are then those of one kind.
    outside : int, optional
        Parameters outside the layers: embeddings, positions, the LM head. None where they are not known.
    gate : bool
        Whether a gate as wide as the queries multiplies the output (Qwen3-Next).
    sinks : bool
        Whether each head's softmax has a learnt term more in its sum (gpt-oss).
    softcap : float, optional
        Bound of a tanh on every score (Gemma 2).
    qk_norm : bool
        Whether queries and keys are normed before they are turned (Qwen3, Gemma 3).
    fp8_blocks : bool
        Whether its weights in fp8 have a scale for each block of 128 x 128, not one in all (DeepSeek-V3).
    left_out : tuple of str
        What else the model has that changes its attention and is not modelled.

    Raises
    ------
    InputError
        When a figure is out of range or heads do not divide.
    """

    id: str
    name: str
    layers: int
    hidden: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    mask: Mask = field(default_factory=Mask.causal)
    max_length: int = 0
    rotary: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    latent: Latent | None = None
    query_rank: int = 0
    mlp: Mlp | None = None
    vocabulary: int = 0
    source: str = ""
    kinds: tuple[LayerKind, ...] = ()
    outside: int | None = None
    gate: bool = False
    sinks: bool = False
    softcap: float | None = None
    qk_norm: bool = False
    fp8_blocks: bool = False
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, largest in LARGEST_COUNT.items():
            value, least = getattr(self, name), 1 if name in ("layers", "hidden") else 0
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
                raise InputError(f"{name} is {value!r}; allowed: a whole number from {least} to {largest}")
        for model in (self, *(self.only(kind) for kind in self.kinds if kind.mask)):
            model.workload(batch=1, seq=1)  # which checks heads, widths and the latent
        if self.rotary > self.head_dim:
            raise InputError(f"rotary is {self.rotary}; it is a part of head_dim = {self.head_dim}")
        if self.query_rank and self.latent is None:
            raise InputError(f"query_rank is {self.query_rank} without a latent; add latent, or leave it out")

    @property
    def sharing(self) -> Sharing:
        """The sharing of keys and values: by nobody, a group, all heads, or all heads through a latent."""
        if self.latent is not None:
            return "MLA"
        return "MHA" if self.heads_kv == self.heads_q else "MQA" if self.heads_kv == 1 else "GQA"

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kinds of the layers, in the order of their first layer."""
        shape = (self.heads_q, self.heads_kv, self.head_dim, self.head_dim_v, self.mask)
        return self.kinds or (LayerKind(ATTENTION, tuple(range(self.layers)), *shape),)

    @property
    def own_kind(self) -> LayerKind:
        """The kind of layers that the model's own heads, widths and mask are of."""
        shape = (self.heads_q, self.heads_kv, self.head_dim, self.head_dim_v, self.mask)
        kinds = self.layer_kinds
        return next(
            one for one in kinds if shape == (one.heads_q, one.heads_kv, one.head_dim, one.head_dim_v, one.mask)
        )

    def only(self, kind: LayerKind) -> Model:
        """A model of these layers alone; those that do not attend stay its one kind."""
        if kind.mask is None:
            return replace(self, layers=kind.layers, kinds=(kind,), outside=None)
        heads = {name: getattr(kind, name) for name in ("heads_q", "heads_kv", "head_dim", "head_dim_v", "mask")}
        rotary = min(self.rotary, kind.head_dim)
        return replace(self, layers=kind.layers, **heads, rotary=rotary, kinds=(), outside=None)

    @property
    def has_cache(self) -> bool:
        """Whether tokens are generated one by one, so that keys and values are kept: not in an encoder."""
        return any(kind.is_cached for kind in self.layer_kinds)

    def kv_bytes_per_token(self, dtype: str = "fp16", sharing: Sharing | None = None) -> int | None:
        """Bytes that one token adds to the KV cache, over all layers.

        ``2 G d e`` a layer (``G (d + dv) e`` where widths differ); of a latent ``(rank + rope) e``.

        Parameters
        ----------
        dtype : str
            Element type of the cache.
        sharing : {"MHA", "GQA", "MQA", "MLA"}, optional
            As if the heads shared in this way: G = H for MHA, G = 1 for MQA. GQA and MLA have a size of their own
            (G, rank), so that they are known only of a model that has it.

        Returns
        -------
        int or None
            None in an encoder, and for a GQA or an MLA that the model is not.
        """
        sharing = sharing or self.sharing
        if not self.has_cache or (sharing in ("GQA", "MLA") and sharing != self.sharing):
            return None
        cached = [kind for kind in self.layer_kinds if kind.is_cached]
        return (
            sum((kind.layers - kind.shared) * self._cached_width(kind, sharing) for kind in cached)
            * (DTYPE_BYTES[dtype])
        )

    def _cached_width(self, kind: LayerKind, sharing: Sharing) -> int:
        if sharing == "MLA":
            assert self.latent is not None
            return self.latent.width
        heads = {"MHA": kind.heads_q, "GQA": kind.heads_kv, "MQA": 1}[sharing]
        return heads * (kind.head_dim + kind.head_dim_v)

    def cache_bytes(self, seq: int, dtype: str = "bf16") -> int:
        """Bytes of the keys and values of a sequence; a layer with a window keeps no more than it sees."""
        cached = [kind for kind in self.layer_kinds if kind.is_cached and kind.mask]
        return DTYPE_BYTES[dtype] * sum(
            (kind.layers - kind.shared) * self._cached_width(kind, self.sharing) * _kept(kind.mask, seq)
            for kind in cached
            if kind.mask
        )

    def parameters(self, active: bool = False) -> int | None:
        """Parameters of the model, without norms; `active`: those that a token goes through, embeddings left out.

        None where what is outside the layers, or the MLP of a model that should have one, is not known.
        """
        if self.outside is None:
            return None
        total = sum(kind.layers * (self._attention_weights(kind) if kind.mask else kind.weights) for kind in self.kinds)
        if not self.kinds:
            total = self.layers * self._attention_weights(self.layer_kinds[0])
        total += self.mlp.parameters(self.hidden, self.layers, active) if self.mlp else 0
        return total + (self.vocabulary * self.hidden if active else self.outside)

    def _attention_weights(self, kind: LayerKind) -> int:
        queries, keys = kind.heads_q * kind.head_dim, kind.heads_kv * kind.head_dim
        values, out = kind.heads_kv * kind.head_dim_v, kind.heads_q * kind.head_dim_v
        into = self.hidden * (queries * (1 + self.gate) + keys + values)
        if self.latent is not None:
            rank, rope, nope = self.latent.rank, self.latent.rope, kind.head_dim - self.latent.rope
            turned = self.query_rank * (self.hidden + queries) if self.query_rank else self.hidden * queries
            into = turned + self.hidden * (rank + rope) + rank * kind.heads_q * (nope + kind.head_dim_v)
        return into + out * self.hidden + self.qkv_bias * (queries + keys + values) + self.out_bias * self.hidden

    def workload(
        self, *, batch: int, seq: int, seq_kv: int | None = None, passes: str = "fwd", dtype: str = "bf16"
    ) -> Workload:
        """The attention call of one layer.

        Parameters
        ----------
        batch : int
        seq : int
            Sequence length; with ``passes="decode"`` and no `seq_kv` the keys in the cache, for one query a sequence.
        seq_kv : int, optional
            Keys, where not as many as queries.
        passes, dtype : str
        """
        passes = read_pass(passes)
        queries = 1 if passes == "decode" and seq_kv is None else seq
        return Workload(
            batch=batch,
            heads_q=self.heads_q,
            seq_q=queries,
            head_dim=self.head_dim,
            heads_kv=self.heads_kv,
            seq_kv=seq_kv or seq,
            head_dim_v=self.head_dim_v,
            dtype=dtype,
            passes=passes,
            mask=self.mask,
            latent=self.latent,
            sinks=self.sinks,
            softcap=self.softcap or 0.0,
        )


def _kept(mask: Mask, seq: int) -> int:
    """Keys that a layer keeps of so many."""
    first, past = mask.columns(seq - 1, seq - 1, seq, seq)
    return past - first
