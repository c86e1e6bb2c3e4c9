"""The question: which attention, of what shape, in which number format, in which direction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from attnsim.models.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.question.operations import Operations
from attnsim.models.question.words import understanding

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element; fp8 is e4m3 with 16-bit output, as FlashAttention-3 writes it."""

PASSES = ("fwd", "bwd", "fwd+bwd", "decode")
LARGEST_LATENT = 512
"""Largest rank, and largest width of the rotary key: their sum is a head_dim of the absorbed form."""
LARGEST = {"batch": 1 << 20, "heads_q": 1 << 16, "seq_q": 1 << 27, "seq_kv": 1 << 27, "head_dim": 1024}


@dataclass(frozen=True, slots=True)
class Latent:
    """What multi-head latent attention caches in place of K and V (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Parameters
    ----------
    rank : int
        Width of the latent from which every head's K and V are made.
    rope : int
        Width of the rotary key that all heads share; it is part of `head_dim`.

    Raises
    ------
    InputError
    """

    rank: int
    rope: int

    def __post_init__(self) -> None:
        for name, value in (("rank", self.rank), ("rope", self.rope)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_LATENT:
                raise InputError(f"latent {name} is {value!r}; allowed: a whole number from 1 to {LARGEST_LATENT}")

    @classmethod
    def parse(cls, text: str) -> Latent:
        """Read the text form, ``512x64``: rank x width of the rotary key.

        Raises
        ------
        InputError
        """
        parts = text.strip().lower().split("x")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
            raise InputError(f"latent is {text!r}; write rank x width of the rotary key, such as 512x64")
        return cls(int(parts[0]), int(parts[1]))

    @property
    def width(self) -> int:
        """Elements cached a token: the latent and the rotary key."""
        return self.rank + self.rope

    def __str__(self) -> str:
        return f"{self.rank}x{self.rope}"


@understanding
@dataclass(frozen=True, slots=True)
class Workload:
    """An attention call on tensors ``[batch, heads, seq, head_dim]``.

    The words of the command line are understood too (:mod:`attnsim.models.question.words`): ``heads=32``,
    ``kv_heads=8``, ``seq="64k"`` (with pass decode the keys in the cache), ``causal=True``, ``window=4096``,
    ``mask="causal, global 16"``, ``pass_="prefill"``, ``dtype="bfloat16"``.

    Parameters
    ----------
    batch : int, optional
        Sequences, 1 where it is not given.
    heads_q, seq_q, head_dim : int
        Shape of Q, which every question needs.
    heads_kv, seq_kv, head_dim_v : int, optional
        Heads and length of K and V and the width of V; they default to those of Q.
    dtype : {"fp16", "bf16", "fp32", "fp8"}
        Element type of the inputs; accumulation is fp32.
    passes : {"fwd", "bwd", "fwd+bwd", "decode"}
        Direction. "decode" is a forward pass of few queries against a cache.
    mask : Mask
        Which keys a query sees.
    dropout : bool
        Whether training dropout is applied to the probabilities (the naive path then writes its mask).
    latent : Latent, optional
        Of multi-head latent attention, whose heads and widths are those of the decompressed form.
    operations : Operations, optional
        What unfused attention runs between and around its GEMMs, in place of what its implementation does; around a
        fused kernel its copies and the accumulation of gradients.

    Raises
    ------
    InputError
        When a figure is out of range or heads do not divide.
    """

    batch: int = 1
    heads_q: int = 0
    seq_q: int = 0
    head_dim: int = 0
    heads_kv: int = 0
    seq_kv: int = 0
    head_dim_v: int = 0
    dtype: str = "bf16"
    passes: str = "fwd"
    mask: Mask = field(default_factory=Mask)
    dropout: bool = False
    latent: Latent | None = None
    operations: Operations | None = None

    def __post_init__(self) -> None:
        for name, other in (("heads_kv", "heads_q"), ("seq_kv", "seq_q"), ("head_dim_v", "head_dim")):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, getattr(self, other))
        for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v"):
            value = getattr(self, name)
            limit = LARGEST[name.replace("_kv", "_q") if name.startswith("heads") else name.removesuffix("_v")]
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise InputError(f"{name} is {value!r}; allowed: a whole number from 1 to {limit}")
        if self.heads_q % self.heads_kv:
            divisors = ", ".join(str(g) for g in range(1, self.heads_q + 1) if self.heads_q % g == 0)
            raise InputError(f"heads_kv is {self.heads_kv}; it must divide heads_q = {self.heads_q}: one of {divisors}")
        if self.latent is not None and self.heads_kv != self.heads_q:
            raise InputError(
                f"heads_kv is {self.heads_kv} with a latent, from which every query head makes its own keys; "
                f"leave it at heads_q = {self.heads_q}"
            )
        if self.latent is not None and self.latent.rope >= self.head_dim:
            raise InputError(
                f"latent rope is {self.latent.rope}; it is a part of head_dim = {self.head_dim} and must be smaller"
            )
        if self.dtype not in DTYPE_BYTES:
            raise InputError(f"dtype is {self.dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
        if self.passes not in PASSES:
            raise InputError(f"pass is {self.passes!r}; allowed: {', '.join(PASSES)}")
        if self.operations is not None:
            if self.dropout and self.operations.has_softmax and "dropout" not in self.operations:
                raise InputError(
                    f"dropout is on and the operations are '{self.operations}'; add 'dropout 0.1', or leave dropout out"
                )
            object.__setattr__(self, "dropout", self.dropout or "dropout" in self.operations)
        if self.dtype == "fp8" and self.passes in ("bwd", "fwd+bwd"):
            raise InputError("fp8 has no backward pass in any published kernel; use dtype bf16 for training")

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of Q, K and V."""
        return DTYPE_BYTES[self.dtype]

    @property
    def output_bytes(self) -> int:
        """Bytes of one element of O: as the inputs, but 16-bit for fp8."""
        return max(2, self.element_bytes)

    @property
    def group(self) -> int:
        """Query heads that share one key/value head (1 is MHA, heads_q is MQA)."""
        return self.heads_q // self.heads_kv

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes cached for the keys of all sequences: K and V of every head, or the latent and its rotary key."""
        if self.latent is not None:
            return self.batch * self.seq_kv * self.latent.width * self.element_bytes
        return self.batch * self.seq_kv * self.heads_kv * (self.head_dim + self.head_dim_v) * self.element_bytes

    @property
    def directions(self) -> tuple[str, ...]:
        """The kernels' directions in launch order: "fwd", "bwd" or both."""
        return {"fwd": ("fwd",), "decode": ("fwd",), "bwd": ("bwd",), "fwd+bwd": ("fwd", "bwd")}[self.passes]

    @property
    def visible_pairs(self) -> int:
        """(query, key) pairs of one head that survive the mask."""
        return self.mask.visible_pairs(self.seq_q, self.seq_kv)

    def matrix_flops(self, pairs: int) -> int:
        """FLOPs of the products over so many pairs of a head: 2 B H pairs (d + dv) forward, 2.5 times that backward."""
        forward = 2 * self.batch * self.heads_q * pairs * (self.head_dim + self.head_dim_v)
        return sum({"fwd": 2, "bwd": 5}[direction] * forward // 2 for direction in self.directions)

    def bounded(self) -> Workload:
        """Return the same attention without limits of its mask that its lengths never reach."""
        mask = self.mask.within(self.seq_q, self.seq_kv)
        return self if mask == self.mask else replace(self, mask=mask)

    def without_window(self) -> Workload:
        """Return the same attention without window and patterns; a window closed on both sides becomes full."""
        if self.mask.is_band and not self.mask.is_windowed:
            return self
        return replace(self, mask=Mask(right=0 if self.mask.right == 0 else None))

    def with_passes(self, passes: str) -> Workload:
        """Return the same attention in another direction."""
        return replace(self, passes=passes)

    def __str__(self) -> str:
        heads = f"{self.heads_q}" if self.group == 1 else f"{self.heads_q}/{self.heads_kv}"
        seq = f"{self.seq_q}" if self.seq_q == self.seq_kv else f"{self.seq_q} x {self.seq_kv}"
        width = f"{self.head_dim}" if self.head_dim == self.head_dim_v else f"{self.head_dim}/{self.head_dim_v}"
        latent = "" if self.latent is None else f", latent {self.latent}"
        operations = "" if self.operations is None else f"; {self.operations}"
        return (
            f"batch {self.batch}, heads {heads}, seq {seq}, head_dim {width}{latent}, {self.dtype}, {self.passes}, "
            f"{self.mask}{operations}"
        )
