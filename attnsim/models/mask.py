"""Which keys a query may see, and what that means for a tile of queries x keys."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from attnsim.models.errors import InputError


class Visibility(Enum):
    """How much of a tile a mask lets through."""

    NONE = "none"
    PARTIAL = "partial"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Mask:
    """A diagonal band: query ``i`` sees key ``j`` when ``-left <= j - (i + seq_kv - seq_q) <= right``.

    The offset aligns the last query with the last key (bottom-right alignment, as FlashAttention and PyTorch's
    ``is_causal`` with a cache do). Full, causal and sliding-window attention are bands, and so is every
    intersection of them, which ``&`` gives.

    Parameters
    ----------
    left : int or None
        Keys visible before the diagonal; None is all of them.
    right : int or None
        Keys visible after the diagonal; None is all of them.
    """

    left: int | None = None
    right: int | None = None

    def __post_init__(self) -> None:
        for name, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and reach < 0:
                raise InputError(f"mask: {name} is {reach}; allowed: 0 or more, or none for no limit")

    @classmethod
    def full(cls) -> Mask:
        """Every query sees every key."""
        return cls()

    @classmethod
    def causal(cls) -> Mask:
        """Query ``i`` sees keys up to ``i + seq_kv - seq_q``."""
        return cls(right=0)

    @classmethod
    def sliding_window(cls, window: int, causal: bool = True) -> Mask:
        """`window` keys to the left, the diagonal one included; without `causal` as many to the right."""
        if window < 1:
            raise InputError(f"window is {window}; allowed: 1 or more keys, the query's own included")
        return cls(left=window - 1, right=0 if causal else window - 1)

    def __and__(self, other: Mask) -> Mask:
        return Mask(_tighter(self.left, other.left), _tighter(self.right, other.right))

    @property
    def is_causal(self) -> bool:
        """Whether no query sees past its own position."""
        return self.right == 0

    @property
    def is_windowed(self) -> bool:
        """Whether keys far to the left are hidden."""
        return self.left is not None

    def within(self, seq_q: int, seq_kv: int) -> Mask:
        """The same mask without limits that these lengths never reach, as FlashAttention's entry points drop them."""
        left = None if self.left is not None and self.left >= seq_kv - 1 else self.left
        right = None if self.right is not None and self.right >= seq_q - 1 and seq_q > 1 else self.right
        return Mask(left, right)

    def columns(self, first_row: int, last_row: int, seq_q: int, seq_kv: int) -> tuple[int, int]:
        """Half-open interval of keys that rows `first_row` to `last_row` (inclusive) see between them."""
        shift = seq_kv - seq_q
        low = 0 if self.left is None else max(0, first_row + shift - self.left)
        high = seq_kv if self.right is None else min(seq_kv, last_row + shift + self.right + 1)
        return (low, high) if high > low else (0, 0)

    def tile(self, rows: tuple[int, int], keys: tuple[int, int], seq_q: int, seq_kv: int) -> Visibility:
        """Visibility of the tile of half-open ranges `rows` x `keys`."""
        shift = seq_kv - seq_q
        nearest = keys[0] - (rows[1] - 1 + shift)
        farthest = keys[1] - 1 - (rows[0] + shift)
        if (self.right is not None and nearest > self.right) or (self.left is not None and farthest < -self.left):
            return Visibility.NONE
        inside_right = self.right is None or farthest <= self.right
        inside_left = self.left is None or nearest >= -self.left
        return Visibility.FULL if inside_right and inside_left else Visibility.PARTIAL

    def visible_pairs(self, seq_q: int, seq_kv: int) -> int:
        """Number of (query, key) pairs that survive the mask, without building the matrix."""
        shift = seq_kv - seq_q
        upper = seq_q * seq_kv if self.right is None else _clipped_sum(shift + self.right + 1, seq_q, seq_kv)
        lower = 0 if self.left is None else _clipped_sum(shift - self.left, seq_q, seq_kv)
        return upper - lower

    def __str__(self) -> str:
        if self.left is None:
            return "full" if self.right is None else "causal" if self.right == 0 else f"right {self.right}"
        if self.right == 0:
            return f"causal window {self.left + 1}"
        return f"window {self.left} left, {'all' if self.right is None else self.right} right"


def _tighter(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _clipped_sum(offset: int, rows: int, limit: int) -> int:
    """Sum over i in [0, rows) of clip(i + offset, 0, limit)."""
    first = min(max(-offset, 0), rows)  # rows before this one contribute nothing
    full = min(max(limit - offset, first), rows)  # rows from this one on contribute `limit`
    rising = full - first
    return rising * (first + offset) + rising * (rising - 1) // 2 + (rows - full) * limit
