"""Cache and draft of a serving call: pages, a shared prefix, a tree of speculated tokens."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError, shown

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
