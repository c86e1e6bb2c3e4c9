"""Number of ranges that the keys of an attention kernel are split into."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints


@dataclass(frozen=True, slots=True)
class Splits:
    """Ranges that the keys are split into, one thread block for each.

    Parameters
    ----------
    of_seen : bool
        Whether the ranges split the keys that each row tile sees (FlashAttention-3) instead of all keys
        (FlashAttention-2).
    grid : int
        Launched ranges, if some may be empty; 0: as many as there are.
    shares : int
        Equal shares of all requests' keys that a scheduler cuts (FlashMLA), instead of ranges of each request; 0: none.
    each : tuple of int
        Ranges of each sequence if they differ, in the order of :attr:`Workload.parts`. Empty: `count` for all.
    direct : bool
        Whether the only range of a sequence is written directly, while others are left to a combine kernel.
    chunk : int
        Key tiles of a range, the last one shorter (FlashInfer's plan); 0: equal ranges.
    """

    count: int = 1
    of_seen: bool = False
    grid: int = 0
    shares: int = 0
    each: tuple[int, ...] = ()
    direct: bool = True
    chunk: int = 0

    @property
    def partial(self) -> bool:
        """Whether blocks write fp32 partial results for a combine kernel."""
        return self.count > 1 or self.grid > 0

    def of(self, part: int) -> Splits:
        """Splits of one sequence."""
        if not self.each:
            return self
        count = self.each[part]
        return replace(self, count=count, each=(), grid=0 if self.direct else count)

    def merged(self, parts: int) -> Ints:
        """Partial results that are merged for each row, by sequence.

        0 if the only result of a sequence is written directly.
        """
        if not self.each:
            return np.full(parts, self.count if self.partial else 0)
        each = np.array(self.each)
        return np.where((each > 1) | (not self.direct), each, 0)

    def __str__(self) -> str:
        most = "up to " if len(set(self.each)) > 1 else ""
        ranges = f"{most}{self.count} splits{' of what a tile sees' * self.of_seen}" if self.count > 1 else ""
        grid = f"{self.grid} in the grid" if self.grid else ""
        return ", ".join(filter(None, (ranges, grid, f"{self.shares} parts" if self.shares else "")))


UNCUT = Splits()
"""One range: all keys."""
