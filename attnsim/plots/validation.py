"""Predicted over measured time of all that `attnsim validate` predicts, a line for each implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnsim.plots.errors import READ, Line, ordered, panel
from attnsim.plots.sheet import Picture
from attnsim.validation.checking.sampled import group_of


def validation(points: Sequence[Mapping[str, Any]]) -> Picture:
    """Predicted over measured time of every point.

    Parameters
    ----------
    points : sequence of mapping
        As `attnsim.validation.checking.validate.Report.points` has them.
    """
    lines: dict[str, Line] = {}
    for point in points:
        name = point["implementation"]
        line = lines.setdefault(name, Line(group_of(name)))
        (line.filled if point["kind"] == "held out" else line.hollow).append(point["ratio"])
    named = {f"{name}, {len(line.ratios)}": line for name, line in lines.items()}
    gpus = ", ".join(sorted({str(point["gpu"]) for point in points}))
    return Picture(
        "Predicted over measured time",
        "A line an implementation, with its number of points. Filled: published rows that the fit did not see; hollow: "
        f"serving tables, our own runs and tables given. {READ}",
        (panel(ordered(named)),),
        tuple(points[0]),
        tuple(points),
        left=tuple(named),
        right=("100 %",),
        subtitle=f"{len(points)} predictions of rows on {gpus}",
    )
