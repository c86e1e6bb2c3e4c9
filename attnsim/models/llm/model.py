"""A model as a GPU sees it: heads, widths, mask, projections and MLP of one layer, and how many layers there are."""

from __future__ import annotations

from dataclasses import dataclass, field
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

    def __post_init__(self) -> None:
        for name, largest in LARGEST_COUNT.items():
            value, least = getattr(self, name), 1 if name in ("layers", "hidden") else 0
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
                raise InputError(f"{name} is {value!r}; allowed: a whole number from {least} to {largest}")
        self.workload(batch=1, seq=1)  # which checks heads, widths and the latent
        if self.rotary > self.head_dim:
            raise InputError(f"rotary is {self.rotary}; it is a part of head_dim = {self.head_dim}")
        if self.query_rank and self.latent is None:
            raise InputError(f"query_rank is {self.query_rank} without a latent; add latent, or leave it out")

    @property
    def sharing(self) -> Sharing:
        """Who shares keys and values: nobody, a group, all heads, or all heads through a latent."""
        if self.latent is not None:
            return "MLA"
        return "MHA" if self.heads_kv == self.heads_q else "MQA" if self.heads_kv == 1 else "GQA"

    @property
    def has_cache(self) -> bool:
        """Whether tokens are generated one by one, so that keys and values are kept: not in an encoder."""
        return self.mask.is_causal

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
        if sharing == "MLA":
            assert self.latent is not None
            width = self.latent.width
        else:
            heads = {"MHA": self.heads_q, "GQA": self.heads_kv, "MQA": 1}[sharing]
            width = heads * (self.head_dim + self.head_dim_v)
        return self.layers * width * DTYPE_BYTES[dtype]

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

        Raises
        ------
        InputError
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
        )
