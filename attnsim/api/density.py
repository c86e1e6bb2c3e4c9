"""The density at which sparse attention breaks even, and what to make of it in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby

from attnsim.api.densities import Against
from attnsim.by_hand import by_hand
from attnsim.models.hardware.units import unit_text
from attnsim.models.implementations.choose import find_implementation
from attnsim.wording import number

FINER = by_hand(1.25, "tiles visited over pairs visible from which on a pattern is finer than the tile")
TENTH = 0.1
"""Density at which a speedup is told where nobody's own mask is."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The density at which a sparse kernel and dense flash take equally long.

    Parameters
    ----------
    at : Against
        The densest mask found under which the sparse kernel is not slower; the sparsest where it always is.
    density : float
        Visible pairs over those of dense attention: that mask's, 1 where even the densest pays, 0 where none does.
    density_low, density_high : float
        Those at which the low and the high end of the speedup's 90 % range is 1: below the first it pays nineteen times
        in twenty, above the second once in twenty.
    pattern : str
    block : int
        Tokens of a block of the pattern.
    tile_given : bool
        Whether the tile was asked for, rather than taken for this length.
    trust : str
        Whose numbers both times are made with.
    yours : Against, optional
        The answer under the mask that was asked about.
    points : tuple of Against
        The pattern at every density that was played, the sparsest first.
    """

    at: Against
    density: float
    density_low: float
    density_high: float
    pattern: str
    block: int
    tile_given: bool
    trust: str
    yours: Against | None = None
    points: tuple[Against, ...] = field(default=(), repr=False)

    @property
    def band(self) -> str:
        """The density with its range: "41 % (33-49)"."""
        low, high = (number(100 * one, 2) for one in (self.density_low, self.density_high))
        return f"{number(100 * self.density, 3)} % ({low}-{high})"

    @property
    def expected(self) -> Against:
        """What to expect: under the mask that was asked about, else under the pattern at about a tenth of the pairs."""
        return self.yours or min(self.points, key=lambda point: abs(point.density - TENTH))

    def to_dict(self) -> dict[str, object]:
        """The break-even and the mask that was asked about, without the points, ready for JSON."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _NESTED}
        yours = None if self.yours is None else self.yours.to_dict()
        return {**self.at.to_dict(), **own, "yours": yours}


_NESTED = ("at", "yours", "points")


def verdict(rows: Sequence[BreakEven]) -> list[str]:
    """Whether to write a sparse kernel, what to expect of it, and what its tile asks of the pattern.

    Parameters
    ----------
    rows : sequence of BreakEven
        As :func:`attnsim.api.breakeven.breakeven` returns them.

    Returns
    -------
    list of str
        A paragraph a GPU and length.
    """
    return [
        f"{gpu}, {seq:,} tokens: {_paragraph(list(some))}"
        for (gpu, seq), some in groupby(rows, key=lambda row: (row.at.machine, row.at.seq))
    ]


def _paragraph(rows: Sequence[BreakEven]) -> str:
    best = max(rows, key=lambda row: row.expected.speedup.value if row.yours else row.density)
    called = f"{best.at.sparse} is called as {find_implementation(best.at.sparse).calls[-1]}."
    return " ".join(filter(None, (_when(best), _what(best, rows), _tiles(rows), called)))


def _when(best: BreakEven) -> str:
    whose = f"as {best.at.sparse} runs it on tiles of {best.at.shape}"
    if best.density == 0:
        return f"sparse attention does not pay, not even one block of {best.block} keys a row ({whose})."
    low, high = (number(100 * one, 2) for one in (best.density_low, best.density_high))
    sure = [f"below {low} % nineteen times in twenty"] if best.density_low < 1 else []
    sure += [f"above {high} % once in twenty"] if best.density_high < 1 else []
    until = f"below {number(100 * best.density, 2)} % of the pairs" if best.density < 1 else "at every density"
    doubt = f" ({', '.join(sure)})" if sure else ""
    return f"sparse attention pays {until}, {whose}{doubt}."


def _what(best: BreakEven, rows: Sequence[BreakEven]) -> str:
    point = best.expected
    share = f"{number(100 * point.density, 3)} %"
    others = [f"{row.expected.speedup} as {row.at.sparse} on {row.at.shape}" for row in rows if row is not best]
    beside = f", against {'; '.join(others)}" if others else ""
    gain = point.speedup
    text = f"expect {gain} over {best.at.dense}, busiest {unit_text(point.busiest)}{beside}."
    if best.yours is None:
        return f"At {share} of the pairs {text}"
    worth = "It pays" if gain.low >= 1 else "It may pay" if gain.high > 1 else "It does not pay"
    return f"Your mask shows {share}. {worth}: {text}"


def _tiles(rows: Sequence[BreakEven]) -> str:
    """What the kernels' tiles ask of the pattern, where that is finer."""
    found = []
    for row in rows:
        point = row.expected
        visited = point.tiles / point.all_tiles
        if visited > FINER * point.density:
            found.append(f"{row.at.sparse} {number(100 * visited, 3)} % of its tiles of {point.shape}")
    if not found:
        return ""
    better = "better are blocks as large as a tile (--block) or smaller tiles (--tile)"
    return f"Visited for them: {', '.join(found)}; {better}."
