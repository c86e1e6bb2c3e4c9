"""Into how many ranges the keys of an attention kernel are cut."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Splits:
    """How many ranges the keys are cut into, a thread block for each.

    Parameters
    ----------
    count : int
    of_seen : bool
        Whether the ranges cut up what each row tile sees (FlashAttention-3) instead of all keys (FlashAttention-2).
    grid : int
        Ranges that are launched where some of them may be empty; 0: as many as there are.
    shares : int
        Equal shares of all requests' keys that a scheduler cuts (FlashMLA), instead of ranges of each; 0: none.
    """

    count: int = 1
    of_seen: bool = False
    grid: int = 0
    shares: int = 0

    @property
    def partial(self) -> bool:
        """Whether blocks write fp32 partial results for a combine kernel."""
        return self.count > 1 or self.grid > 0

    def __str__(self) -> str:
        ranges = f"{self.count} splits{' of what a tile sees' * self.of_seen}" if self.count > 1 else ""
        grid = f"{self.grid} in the grid" if self.grid else ""
        return ", ".join(filter(None, (ranges, grid, f"{self.shares} parts" if self.shares else "")))


UNCUT = Splits()
"""One range: all keys."""
