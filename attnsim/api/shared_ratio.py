"""The speedup of several calls together, from the speedup of each: a layer's parts, a mix of workloads."""

from __future__ import annotations

from collections.abc import Sequence

from attnsim.api.ratios import Ratio


def together(parts: Sequence[tuple[float, Ratio | None]]) -> Ratio | None:
    """The speedup of all.

    ``sum of base times / sum of (base time / speedup)``; the ends of the range take each part at that end of its own,
    as if all were off in the same direction.

    Parameters
    ----------
    parts : sequence of (float, Ratio or None)
        Base time, or share of it, and speedup.

    Returns
    -------
    Ratio or None
        None where one part has none.
    """
    known = [(share, ratio) for share, ratio in parts if ratio is not None]
    if not known or len(known) < len(parts):
        return None
    whole = sum(share for share, _ in known)
    ends = ([share / getattr(ratio, end) for share, ratio in known] for end in ("value", "low", "high"))
    return Ratio(*(whole / sum(one) for one in ends))
