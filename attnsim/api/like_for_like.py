"""One ratio for one question: a changed GPU on retuned tiles, and what of its gain is the chip's and what the tile's.

A tile that the unchanged GPU can have as well is no gain of the chip: retuned is held against retuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from attnsim.api.ratios import Ratio
from attnsim.api.splitting import T
from attnsim.wording import time_text


@dataclass(frozen=True, slots=True)
class LikeForLike(Generic[T]):
    """A question on the unchanged GPU on shipped and on retuned tiles, and on the changed GPU on retuned tiles.

    Parameters
    ----------
    shipped, retuned : Answer, TooLarge or LayerAnswer
        On the unchanged GPU.
    changed : Answer, TooLarge or LayerAnswer
        On the changed one, on the best tiles that fit it.
    """

    shipped: T
    retuned: T
    changed: T

    @property
    def tile(self) -> Ratio | None:
        """What the best tile brings on the unchanged GPU; None where one of them does not fit."""
        return self.retuned.speedup_over(self.shipped)

    @property
    def chip(self) -> Ratio | None:
        """What the change brings, on the best tiles of both GPUs."""
        return self.changed.speedup_over(self.retuned)

    @property
    def both(self) -> Ratio | None:
        """Both together: today's kernel on today's GPU against the best tile on the changed one."""
        return self.changed.speedup_over(self.shipped)

    @property
    def sentence(self) -> str:
        """The three times, and the gain of the tile and of the chip."""
        times = [time_text(one.time_s) for one in (self.shipped, self.retuned, self.changed)]
        return (
            f"unchanged {times[0]}, retuned {times[1]}, changed and retuned {times[2]}. "
            f"The tile brings {self.tile or 'no ratio'}, the chip {self.chip or 'no ratio'}"
        )

    def to_dict(self) -> dict[str, object]:
        """Times and ratios, ready for JSON."""
        ratios = {name: getattr(self, name) for name in ("tile", "chip", "both")}
        return {
            "unchanged_time_s": self.shipped.time_s,
            "unchanged_retuned_time_s": self.retuned.time_s,
            **{name: one and one.to_dict() for name, one in ratios.items()},
        }
