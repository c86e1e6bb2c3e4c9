"""The question: attention of a shape, in a number format and a direction.

Cache and draft of a serving call: pages, a shared prefix, a tree of speculated tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Literal

from attnsim.errors import InputError, shown
from attnsim.models.mask.mask import Mask
from attnsim.models.question.lengths import Length, blind, check_seen, checked_lengths, lengths_of, lengths_summary
from attnsim.models.question.operations import Operations
from attnsim.models.question.selection import Selection
from attnsim.models.question.words import KERNEL_OPTIONS, understanding

MOST_DRAFTED = 128
"""Most tokens of a draft."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Draft tokens of a sequence as a tree; a query sees its ancestors.

    Parameters
    ----------
    parents : tuple of int
        Index of each token's predecessor; -1 for the last token of the cache.

    Raises
    ------
    InputError
        If the parents do not form a tree.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parents) <= MOST_DRAFTED:
            raise InputError(f"the tree has {len(self.parents)} tokens; allowed: 1 to {MOST_DRAFTED}")
        for token, parent in enumerate(self.parents):
            if not -1 <= parent < token:
                raise InputError(
                    f"the tree is no tree: token {token} comes after token {parent}; a parent is -1 (the cache) or an "
                    "earlier token, numbered from 0"
                )

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Read ``-1 0 0 1``: the parent of each token."""
        words = text.replace(",", " ").split()
        try:
            parents = tuple(int(word) for word in words)
        except ValueError:
            raise InputError(f"tree is {shown(text)}; write the parent of each token, such as '-1 0 0 1'") from None
        return cls(parents)

    @property
    def tokens(self) -> int:
        """Draft tokens, which are the queries of a sequence."""
        return len(self.parents)

    @property
    def pairs(self) -> int:
        """Visible (query, draft token) pairs: each token sees its ancestors and itself."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return sum(depths)

    def __str__(self) -> str:
        return " ".join(map(str, self.parents))


def check_cache(
    parts: tuple[tuple[int, int, int], ...], page_size: int, prefix: int, tree: Tree | None, mask_is_causal: bool
) -> None:
    """Refuse pages, prefixes and trees that do not fit the sequences; `parts` are queries, keys and count."""
    longest, shortest = max(keys for _, keys, _ in parts), min(keys - queries for queries, keys, _ in parts)
    if not 0 <= page_size <= longest:
        raise InputError(f"page_size is {page_size}, the longest cache holds {longest} keys; allowed: 1 to {longest}")
    if not 0 <= prefix <= max(0, shortest):
        raise InputError(
            f"prefix is {prefix}, the shortest cache holds {max(0, shortest)} keys before its queries; "
            f"allowed: at most {max(0, shortest)} shared keys"
        )
    if tree is None:
        return
    if not mask_is_causal:
        raise InputError("a tree is given and the mask is not causal; a draft sees what comes before it: add causal")
    odd = next((queries for queries, _, _ in parts if queries != tree.tokens), None)
    if odd is not None:
        raise InputError(f"the tree has {tree.tokens} tokens and a sequence {odd} queries; give each {tree.tokens}")


DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element; fp8 is e4m3 with 16-bit output, as FlashAttention-3 writes it."""

PASSES = ("fwd", "bwd", "fwd+bwd", "decode")
LARGEST_LATENT = 512
"""Largest rank, and largest width of the rotary key: their sum is the head_dim of the absorbed form."""
LARGEST = {"batch": 1 << 20, "heads_q": 1 << 16, "seq_q": 1 << 27, "seq_kv": 1 << 27, "head_dim": 1024}


@dataclass(frozen=True, slots=True)
class Latent:
    """Latent that multi-head latent attention caches in place of K and V (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Parameters
    ----------
    rank : int
        Width of the latent from which every head's K and V are made.
    rope : int
        Width of the rotary key that all heads share; it is part of `head_dim`.

    Raises
    ------
    InputError
        If a width is out of range.
    """

    rank: int
    rope: int

    def __post_init__(self) -> None:
        for name, value in (("rank", self.rank), ("rope", self.rope)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_LATENT:
                raise InputError(f"latent {name} is {value!r}; allowed: a whole number from 1 to {LARGEST_LATENT}")

    @classmethod
    def parse(cls, text: str) -> Latent:
        """Read the text form, ``512x64``: rank x width of the rotary key."""
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


TEXTS: dict[str, type[Latent | Operations | Selection | Tree]] = {
    "latent": Latent,
    "operations": Operations,
    "selection": Selection,
    "tree": Tree,
}
"""Fields of a question that may be given as text, with their types."""


@understanding
@dataclass(frozen=True, slots=True)
class Workload:
    """An attention call on tensors ``[batch, heads, seq, head_dim]``.

    The words of the command line are understood too (:mod:`attnsim.models.question.words`): ``heads=32``,
    ``kv_heads=8``, ``seq="64k"`` (with pass decode the keys in the cache), ``causal=True``, ``window=4096``,
    ``mask="causal, global 16"``, ``pass_="prefill"``, ``dtype="bfloat16"``. `latent`, `operations`, `selection` and
    `tree` may be given as their text: ``tree="-1 0 0 1"``; so may `KERNEL_OPTIONS`: ``softcap="50"``.

    Parameters
    ----------
    batch : int, optional
        Number of sequences; 1 by default.
    heads_q, seq_q, head_dim : int
        Shape of Q, which every question needs.
    heads_kv, seq_kv, head_dim_v : int, optional
        Heads and length of K and V and the width of V; they default to those of Q.
    dtype : {"fp16", "bf16", "fp32", "fp8"}
        Element type of the inputs; accumulation is fp32.
    passes : {"fwd", "bwd", "fwd+bwd", "decode"}
        Direction. "decode" is a forward pass of few queries against a cache.
    mask : Mask
        Keys that a query sees.
    dropout : bool
        Whether training dropout is applied to the probabilities (the naive path then writes its mask).
    latent : Latent, optional
        Latent of multi-head latent attention, whose heads and widths are those of the decompressed form.
    operations : Operations, optional
        Operations that unfused attention runs between and around its GEMMs, instead of its implementation's. For a
        fused kernel: the copies and the accumulation of gradients around it.
    lengths : tuple of Length, or an input of :func:`attnsim.models.question.lengths.lengths_of`
        Queries and keys of each sequence, in batch order, if they differ; `batch`, `seq_q` and `seq_kv` are then
        their number and the longest. Sequences of one length are a batch of that length, and this is empty.
    selection : Selection, optional
        Selection by content among the keys that the mask shows.
    page_size : int
        Keys of a page of the cache; 0: K and V are contiguous, or the page size is not stated.
    prefix : int
        Keys that all sequences share, at the beginning of each.
    tree : Tree, optional
        Branching draft tokens of speculative decoding: the last queries and keys of each sequence.
    kv_dtype : str
        Element type of K and V if it differs from Q's, to which they are converted; "" if it is the same.
    sinks : bool
        Whether each head has an additional term in the sums of its softmax, without a value (gpt-oss, arXiv
        2508.10925).
    softcap : float
        Bound of the scores, ``softcap * tanh(score / softcap)`` (Gemma 2, arXiv 2408.00118, section 2); 0: none.

    Raises
    ------
    InputError
        If a figure is out of range or heads do not divide.
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
    lengths: tuple[Length, ...] = ()
    selection: Selection | None = None
    page_size: int = 0
    prefix: int = 0
    tree: Tree | None = None
    kv_dtype: str = ""
    sinks: bool = False
    softcap: float = 0.0

    def __post_init__(self) -> None:
        self._parse()
        if self.lengths:
            self._derive()
        for name, other in (("heads_kv", "heads_q"), ("seq_kv", "seq_q"), ("head_dim_v", "head_dim")):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, getattr(self, other))
        self._check_sizes()
        if self.heads_q % self.heads_kv:
            divisors = ", ".join(str(g) for g in range(1, self.heads_q + 1) if self.heads_q % g == 0)
            raise InputError(f"heads_kv is {self.heads_kv}; it must divide heads_q = {self.heads_q}: one of {divisors}")
        if self.latent is not None:
            self._check_latent(self.latent)
        if self.dtype not in DTYPE_BYTES:
            raise InputError(f"dtype is {self.dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
        if self.passes not in PASSES:
            raise InputError(f"pass is {self.passes!r}; allowed: fwd (prefill), bwd, fwd+bwd (training), decode")
        if self.operations is not None:
            self._check_dropout(self.operations)
        if self.page_size or self.prefix or self.tree:
            check_cache(self.parts, self.page_size, self.prefix, self.tree, self.mask == Mask.causal())
        self._check_options()

    def _parse(self) -> None:
        """Parse the fields that are given as text."""
        for name, kind in TEXTS.items():
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, kind.parse(value))
            elif value is not None and not isinstance(value, kind):
                raise InputError(f"{name} is {value!r}; give {kind.__name__}, or its text as --{name} has it")
        for name, read in KERNEL_OPTIONS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, read(str(value)))
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
        if not isinstance(self.mask, Mask):
            raise InputError(
                f"mask is {shown(self.mask)}; give an attnsim.Mask, or its text, such as 'causal, window 512'"
            )

    def _check_options(self) -> None:
        """Check the options of the kernel; `kv_dtype` is cleared if it is the format of Q."""
        if self.kv_dtype not in ("", self.dtype, "fp8"):
            allowed = f"{self.dtype}, as Q, or fp8"
            raise InputError(f"kv_dtype is {self.kv_dtype!r} beside {self.dtype} queries; allowed: {allowed}")
        if self.kv_dtype == self.dtype:
            object.__setattr__(self, "kv_dtype", "")
        if self.kv_dtype and "bwd" in self.directions:
            raise InputError(f"kv_dtype is {self.kv_dtype} and the pass {self.passes}; a cache has no gradients")
        if not 0 <= self.softcap < float("inf"):
            raise InputError(f"softcap is {self.softcap:g}; allowed: a bound above 0, such as 50, or 0 for none")
        if self.softcap and self.dropout:
            raise InputError(f"softcap is {self.softcap:g} with dropout, which no kernel has; leave one of them out")

    def _check_sizes(self) -> None:
        """Check that sizes are whole numbers within bounds."""
        for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v"):
            value = getattr(self, name)
            if type(value) is not int and isinstance(value, Integral) and not isinstance(value, bool):
                value = int(value)  # NumPy's, pandas'
                object.__setattr__(self, name, value)
            limit = LARGEST[name.replace("_kv", "_q") if name.startswith("heads") else name.removesuffix("_v")]
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise InputError(f"{name} is {value!r}; allowed: a whole number from 1 to {limit}")

    def _check_latent(self, latent: Latent) -> None:
        """Check that every query head has its own K and V, and that the rotary key is a part of the width."""
        if self.heads_kv != self.heads_q:
            raise InputError(
                f"heads_kv is {self.heads_kv} with a latent, from which every query head makes its own keys; "
                f"leave it at heads_q = {self.heads_q}"
            )
        if latent.rope >= self.head_dim:
            raise InputError(
                f"latent rope is {latent.rope}; it is a part of head_dim = {self.head_dim} and must be smaller"
            )

    def _check_dropout(self, operations: Operations) -> None:
        """Accept dropout by either of its names."""
        if self.dropout and operations.has_softmax and "dropout" not in operations:
            raise InputError(
                f"dropout is on and the operations are '{operations}'; add 'dropout 0.1', or leave dropout out"
            )
        object.__setattr__(self, "dropout", self.dropout or "dropout" in operations)

    def _derive(self) -> None:
        """Set batch and longest sequences from the lengths."""
        given = lengths_of(self.lengths, decode=self.passes == "decode")
        lengths = checked_lengths(given)
        check_seen(lengths, self.mask.right)
        longest = tuple(max(one[axis] for one in lengths) for axis in (0, 1))
        derived = {"batch": sum(one.times for one in lengths), "seq_q": longest[0], "seq_kv": longest[1]}
        for name, value in derived.items():
            given = getattr(self, name)
            if given not in (Workload.__dataclass_fields__[name].default, value):
                raise InputError(f"{name} is {given} and the lengths say {value}; leave {name} out")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "lengths", lengths if len(lengths) > 1 else ())

    @property
    def parts(self) -> tuple[Length, ...]:
        """Queries, keys and number of equal sequences, in batch order."""
        return self.lengths or (Length(self.seq_q, self.seq_kv, self.batch),)

    @property
    def queries(self) -> int:
        """Query tokens of all sequences."""
        return sum(one.queries * one.times for one in self.lengths) if self.lengths else self.batch * self.seq_q

    @property
    def keys(self) -> int:
        """Key tokens of all sequences."""
        return sum(one.keys * one.times for one in self.lengths) if self.lengths else self.batch * self.seq_kv

    @property
    def new_tokens(self) -> int:
        """Tokens whose keys a call adds to the cache: those of its queries, at most the keys."""
        return sum(min(one.queries, one.keys) * one.times for one in self.parts)

    def having(self, lengths: Iterable[Length]) -> Workload:
        """Return this attention with other sequences."""
        return replace(self, lengths=tuple(lengths), batch=1, seq_q=0, seq_kv=0)

    def of(self, one: Length) -> Workload:
        """Return this attention with sequences of one length."""
        return replace(self, lengths=(), batch=one.times, seq_q=one.queries, seq_kv=one.keys)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of Q, K and V."""
        return DTYPE_BYTES[self.dtype]

    @property
    def cache_bytes(self) -> int:
        """Bytes of one element of K and V."""
        return DTYPE_BYTES[self.kv_dtype or self.dtype]

    @property
    def output_bytes(self) -> int:
        """Bytes of one element of O: as the inputs, but 16-bit for fp8."""
        return max(2, self.element_bytes)

    @property
    def options(self) -> tuple[str, ...]:
        """The `KERNEL_OPTIONS` that the call requests."""
        return tuple(name for name in KERNEL_OPTIONS if getattr(self, name))

    @property
    def group(self) -> int:
        """Query heads that share one key/value head (1 is MHA, heads_q is MQA)."""
        return self.heads_q // self.heads_kv

    @property
    def kv_cache_bytes(self) -> int:
        """Cached bytes for the keys of all sequences: K and V of every head, or the latent and its rotary key."""
        if self.latent is not None:
            return self.keys * self.latent.width * self.cache_bytes
        return self.keys * self.heads_kv * (self.head_dim + self.head_dim_v) * self.cache_bytes

    @property
    def directions(self) -> tuple[Literal["fwd", "bwd"], ...]:
        """The kernels' directions in launch order: "fwd", "bwd" or both."""
        if self.passes == "fwd+bwd":
            return ("fwd", "bwd")
        return ("bwd",) if self.passes == "bwd" else ("fwd",)

    @property
    def visible_pairs(self) -> int:
        """Visible (query, key) pairs of one head, summed over all sequences."""
        if self.tree is not None:
            cached = sum((one.keys - one.queries) * one.times for one in self.parts)
            return cached * self.tree.tokens + self.batch * self.tree.pairs
        return sum(self.mask.visible_pairs(one.queries, one.keys) * one.times for one in self.parts)

    @property
    def unusual(self) -> tuple[str, ...]:
        """Inconsistencies of mask and lengths, one line each; the call runs nevertheless."""
        unseeing = blind(self.parts, self.mask.right)
        text = (
            f"{unseeing:,} of {self.queries:,} queries see no key: sequences have more queries than keys, and the mask"
        )
        aligned = (f"{text} aligns the last of both",) if unseeing else ()
        return (*aligned, *self.mask.beyond(self.seq_kv))

    @property
    def all_pairs(self) -> int:
        """(query, key) pairs of one head, summed over all sequences."""
        return sum(one.queries * one.keys * one.times for one in self.parts)

    def matrix_flops(self, pairs: int) -> int:
        """FLOPs of the products over `pairs` pairs of a head: 2 H pairs (d + dv) forward, 2.5 times that backward."""
        forward = 2 * self.heads_q * pairs * (self.head_dim + self.head_dim_v)
        return sum({"fwd": 2, "bwd": 5}[direction] * forward // 2 for direction in self.directions)

    def bounded(self) -> Workload:
        """Return this attention without limits of its mask that its lengths never reach."""
        mask = self.mask
        if any(mask.within(one.queries, one.keys) == mask for one in self.lengths):
            return self
        mask = mask.within(self.seq_q, self.seq_kv)
        return self if mask == self.mask else replace(self, mask=mask)

    def without_window(self) -> Workload:
        """Return this attention without window and patterns; a window closed on both sides becomes full."""
        if self.mask.is_band and not self.mask.is_windowed:
            return self
        return replace(self, mask=Mask(right=0 if self.mask.right == 0 else None))

    def with_passes(self, passes: str) -> Workload:
        """Return this attention in another direction."""
        return replace(self, passes=passes)

    def __str__(self) -> str:
        heads = f"{self.heads_q}" if self.group == 1 else f"{self.heads_q}/{self.heads_kv}"
        seq = f"{self.seq_q}" if self.seq_q == self.seq_kv else f"{self.seq_q} x {self.seq_kv}"
        seq = lengths_summary(self.lengths) if self.lengths else seq
        width = f"{self.head_dim}" if self.head_dim == self.head_dim_v else f"{self.head_dim}/{self.head_dim_v}"
        latent = "" if self.latent is None else f", latent {self.latent}"
        operations = "" if self.operations is None else f"; {self.operations}"
        selection = "" if self.selection is None else f"; {self.selection}"
        parts = ("page", self.page_size), ("prefix", self.prefix), ("tree", self.tree)
        parts += tuple((name.replace("_", " "), getattr(self, name)) for name in KERNEL_OPTIONS)
        texts = (
            (name, "" if value is True else f" {value:g}" if isinstance(value, float) else f" {value}")
            for name, value in parts
            if value
        )
        operations = "".join(f", {name}{value}" for name, value in texts) + operations
        return (
            f"batch {self.batch}, heads {heads}, seq {seq}, head_dim {width}{latent}, {self.dtype}, {self.passes}, "
            f"{self.mask}{selection}{operations}"
        )
