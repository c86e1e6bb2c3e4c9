"""A call on the unchanged GPU and on the changed one, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnsim.cli import show
from attnsim.wording import clock_text

if TYPE_CHECKING:
    from rich.console import Console

    from attnsim.api import Prediction
    from attnsim.api.explaining import Explanation

BAR = 12
"""Characters of a bar that is as long as the call."""


def print_compared(out: Console, found: Explanation) -> None:
    """Time with its ratio, what bounds, and how long each unit is busy, before and after; nothing without a change."""
    before, after, ratio = found.unchanged, found.prediction, found.speedup
    if before is None:
        return
    text = f"{ratio} as fast" if ratio else "no ratio: one does not fit"
    columns = {"unchanged": _column(before), "changed": _column(after)}
    rows = [{"": name, **{head: cells.get(name, "") for head, cells in columns.items()}} for name in _column(after)]
    show.print_rows(out, f"Unchanged and changed: {text}", rows, whole=("", *columns))


def _column(one: Prediction) -> dict[str, object]:
    cells: dict[str, object] = {
        "time": show.time_text(one.time_s),
        "90 % range": show.interval_text(one.time_low_s, one.time_high_s, one.time_s),
        "bound": show.bound_text(one.bound),
        "SM clock": clock_text(one.clock_hz, one.clock_by) if one.clock_hz and one.clock_by else show.NOTHING,
    }
    for unit, busy in one.units_s.items():
        share = busy / (one.time_s or 1.0)
        bar = "█" * round(BAR * min(1.0, share))
        cells[unit.replace("_", " ")] = f"{bar:{BAR}} {100 * share:3.0f} %  {show.time_text(busy)}"
    return cells
