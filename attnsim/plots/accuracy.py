"""Predicted over measured time of rows that no fit has seen, a line for each library and pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnsim.plots.errors import READ, Line, ordered, panel
from attnsim.plots.sheet import Picture
from attnsim.validation.checking.sampled import group_of, line_of
from attnsim.validation.fitting.held_out import NEVER, HeldOut

COLUMNS = (
    "line", "group", "source", "implementation", "gpu", "pass", "split", "batch", "seq_q", "seq_kv", "head_dim",
    "measured_s", "predicted_s", "predicted_over_measured",
)  # fmt: skip


def accuracy(found: Sequence[HeldOut], each: int) -> Picture:
    """Predicted over measured time of held-out rows.

    Parameters
    ----------
    found : sequence of HeldOut
        As `attnsim.validation.checking.sampled.sampled` gives them.
    each : int
        Rows of a line that were asked for.
    """
    rows = [_row(one) for one in found]
    lines: dict[str, Line] = {}
    for row in rows:
        line = lines.setdefault(row["line"], Line(row["group"]))
        (line.hollow if row["split"] == NEVER else line.filled).append(row["predicted_over_measured"])
    gpus = ", ".join(sorted({row["gpu"] for row in rows}))
    return Picture(
        "Predicted over measured time, rows that no fit has seen",
        f"At most {each} rows of a line: in order of the measured time, the middle one of {each} equal parts, so that "
        "no error decides what is shown. Filled: predicted by fits without the row's group; hollow: never fitted. "
        f"{READ} All rows: attnsim accuracy.",
        (panel(ordered(lines)),),
        COLUMNS,
        tuple(rows),
        left=tuple(lines),
        right=("100 %",),
        subtitle=f"{len(rows)} predictions of rows on {gpus}",
    )


def _row(one: HeldOut) -> dict[str, Any]:
    case, record = one.row.case, one.row.record
    return {
        "line": line_of(one.row), "group": group_of(record.name), "source": case.source, "implementation": record.name,
        "gpu": one.row.gpu.base_id, "pass": case.passes, "split": one.split, "batch": case.batch, "seq_q": case.seq_q,
        "seq_kv": case.seq_kv, "head_dim": case.head_dim, "measured_s": one.row.measured_s,
        "predicted_s": one.predicted_s, "predicted_over_measured": one.predicted_s / one.row.measured_s,
    }  # fmt: skip
