"""What a query attends to by its content: blocks of keys or keys that score highest, beside compressed keys.

The text form has parts with commas between: ``top 16x64`` is the 16 best blocks of 64 keys for each query and each
head of K and V (``top 2048x1``, or ``top 2048``: keys); ``compress 32 step 16`` one compressed key for 32 keys, every
16; ``window 512`` a sliding window beside both; ``index 64x128`` an indexer of 64 heads of width 128 that scores
keys; ``anywhere`` blocks drawn from the whole sequence, of which a causal query walks those that are not in its
future.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError, shown

_LARGEST = 1 << 20
_FIELDS = {
    "top": ("top", "block"), "compress": ("compress",), "step": ("step",), "window": ("window",),
    "index": ("index_heads", "index_dim"),
}  # fmt: skip
EXAMPLE = "'top 16x64, compress 32 step 16, window 512'"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys a query attends to, chosen while it runs.

    Parameters
    ----------
    top : int
        Blocks for each query and head of K and V; 0 where none are selected.
    block : int
        Keys of a block; 1 selects single keys.
    compress, step : int
        Keys that make one compressed key, and how many keys further the next begins; 0 without compressed keys.
    window : int
        Keys of a sliding window beside them, the query's own included; 0 without one.
    index_heads, index_dim : int
        Heads and width of the indexer that scores keys; 0 without one.
    anywhere : bool
        Whether blocks are drawn from the whole sequence, as benchmarks draw them; those in the future of a causal query
        are skipped, so that about half of them are walked.

    Raises
    ------
    InputError
    """

    top: int = 0
    block: int = 1
    compress: int = 0
    step: int = 0
    window: int = 0
    index_heads: int = 0
    index_dim: int = 0
    anywhere: bool = False

    def __post_init__(self) -> None:
        for name in ("top", "block", "compress", "step", "window", "index_heads", "index_dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
                raise InputError(f"selection: {name} is {value!r}; allowed: a whole number up to {_LARGEST}")
        if not (self.top or self.compress):
            raise InputError(f"selection selects nothing; write {EXAMPLE}")
        if self.block < 1:
            raise InputError("selection: a block has 0 keys; allowed: 1 or more")
        if bool(self.compress) != bool(self.step) or self.step > self.compress:
            raise InputError(f"selection: compress {self.compress} step {self.step}; allowed: a step of 1 to compress")
        if bool(self.index_heads) != bool(self.index_dim):
            raise InputError(f"selection: index {self.index_heads}x{self.index_dim}; write heads x width, index 64x128")

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Read the text form.

        Raises
        ------
        InputError
        """
        found: dict[str, int] = {}
        for part in str(text).lower().split(","):
            read = {"anywhere": 1} if part.split() == ["anywhere"] else _numbers(part.split())
            if not read or read.keys() & found.keys():
                raise InputError(f"selection is {shown(text)}; write parts such as {EXAMPLE}, each once")
            found |= read
        return cls(**{**found, "anywhere": "anywhere" in found})  # type: ignore[arg-type]

    def compressed_keys(self, seq_kv: int) -> int:
        """Compressed keys of a sequence: one for each whole stretch of `compress` keys, `step` apart."""
        return max(0, (seq_kv - self.compress) // self.step + 1) if self.compress else 0

    def blocks(self, seq_kv: int) -> int:
        """Blocks of a sequence, the last perhaps shorter."""
        return -(-seq_kv // self.block)

    def misfit(self, seq_kv: int) -> str:
        """Why so many keys cannot be selected from, with what is allowed; "" where they can."""
        if self.block > seq_kv:
            return f"has blocks of {self.block} keys, the sequence has {seq_kv}; allowed: up to {seq_kv}"
        if self.block > 1 and self.top > self.blocks(seq_kv):
            return (
                f"selects {self.top} blocks of {self.block} keys, {seq_kv} keys have {self.blocks(seq_kv)}; "
                f"allowed: top 1 to {self.blocks(seq_kv)}"
            )
        if self.compress > seq_kv:
            return f"compresses {self.compress} keys into one, the sequence has {seq_kv}; allowed: up to {seq_kv}"
        return ""

    def __str__(self) -> str:
        size = "" if self.block == 1 else f"x{self.block}"
        parts = (
            f"top {self.top}{size}" if self.top else "",
            f"compress {self.compress} step {self.step}" if self.compress else "",
            f"window {self.window}" if self.window else "",
            f"index {self.index_heads}x{self.index_dim}" if self.index_heads else "",
            "anywhere" if self.anywhere else "",
        )
        return ", ".join(filter(None, parts))


def _numbers(words: list[str]) -> dict[str, int]:
    """The fields of a part's words, each with its number behind it; none where it is written otherwise."""
    read: dict[str, int] = {}
    for word, number in zip(words[::2], [*words[1::2], ""], strict=False):
        sizes = number.split("x")
        fields = _FIELDS.get(word, ())[: len(sizes)]
        digits = all(one.isascii() and one.isdigit() and len(one) < 8 for one in sizes)
        if len(fields) < len(sizes) or not digits or fields[0] in read:
            return {}
        read |= dict(zip(fields, map(int, sizes), strict=True))
    return read
