"""Predicted over measured time of rows that no fit has seen, a line for each library and pass, the best on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from attnsim.models.wording import share_text
from attnsim.plots.colours import GROUPS, INK
from attnsim.plots.layout import Panel
from attnsim.plots.sheet import Picture, key, plain_axes
from attnsim.plots.styles import Style
from attnsim.validation.checking.sampled import group_of, line_of
from attnsim.validation.fitting.held_out import NEVER, HeldOut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = (
    "line", "group", "source", "implementation", "gpu", "pass", "split", "batch", "seq_q", "seq_kv", "head_dim",
    "measured_s", "predicted_s", "predicted_over_measured",
)  # fmt: skip
LINE = 0.19
"""Inches of a line."""
BAND = 0.1
"""Errors within this share are inside the grey band."""
RANGE = (0.3, 3.3)
"""Ratios drawn; those beyond are drawn at the edge, as arrows."""
TICKS = (0.33, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)

Row = Mapping[str, Any]


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
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row["line"], []).append(row)
    ordered = dict(sorted(lines.items(), key=lambda line: _error(line[1])))
    gpus = ", ".join(dict.fromkeys(sorted(str(row["gpu"]) for row in rows)))
    return Picture(
        "Predicted over measured time, rows that no fit has seen",
        _caption(each),
        (Panel(partial(_draw, lines=ordered), LINE * len(ordered) + 0.3),),
        COLUMNS,
        tuple(rows),
        left=tuple(ordered),
        right=("100 %",),
        subtitle=f"{len(rows)} predictions of rows on {gpus}",
    )


def _row(one: HeldOut) -> dict[str, Any]:
    case, record = one.row.case, one.row.record
    return {
        "line": line_of(one.row), "group": group_of(one.row), "source": case.source, "implementation": record.name,
        "gpu": one.row.gpu.base_id, "pass": case.passes, "split": one.split, "batch": case.batch, "seq_q": case.seq_q,
        "seq_kv": case.seq_kv, "head_dim": case.head_dim, "measured_s": one.row.measured_s,
        "predicted_s": one.predicted_s, "predicted_over_measured": one.predicted_s / one.row.measured_s,
    }  # fmt: skip


def _error(rows: Sequence[Row]) -> float:
    """Mean size of the errors."""
    return float(sum(abs(row["predicted_over_measured"] - 1) for row in rows) / len(rows))


def _draw(axes: Axes, look: Style, *, lines: Mapping[str, Sequence[Row]]) -> None:
    low, high = RANGE
    axes.axvspan(1 - BAND, 1 + BAND, color=look.grid, zorder=0)
    axes.axvline(1.0, color=look.text, linewidth=0.8, zorder=3)
    for number, rows in enumerate(lines.values()):
        ratios = [row["predicted_over_measured"] for row in rows]
        colour = look.colour(GROUPS.get(str(rows[0]["group"]), INK))
        axes.plot([median(ratios)] * 2, [-number - 0.34, -number + 0.34], color=colour, linewidth=1.6, zorder=5)
        for row, ratio in zip(rows, ratios, strict=True):
            marker = "o" if low < ratio < high else "<" if ratio <= low else ">"
            axes.plot(
                [min(max(ratio, low), high)], [-number], marker, markersize=0.42 * look.size, alpha=0.75, zorder=4,
                markerfacecolor=look.page if row["split"] == NEVER else colour, markeredgecolor=colour,
                markeredgewidth=0.8, clip_on=False,
            )  # fmt: skip
        axes.annotate(
            share_text(_error(rows)), (1, -number), (0.4 * look.size, 0), ("axes fraction", "data"),
            textcoords="offset points", fontsize=look.size, va="center", annotation_clip=False,
        )  # fmt: skip
    plain_axes(axes, look, grid="x")
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(TICKS, [f"{one:g}" for one in TICKS])
    axes.minorticks_off()
    axes.set_yticks([-number for number in range(len(lines))], list(lines))
    axes.set_ylim(-len(lines) + 0.4, 0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("predicted over measured", fontsize=look.size)
    axes.annotate(
        "mean", (1, 1), (0.4 * look.size, 4), "axes fraction", "offset points", fontsize=look.size, color=look.faint,
        annotation_clip=False,
    )  # fmt: skip
    groups = dict.fromkeys(str(rows[0]["group"]) for rows in lines.values())
    key(axes, [(group, look.colour(GROUPS.get(group, INK))) for group in groups], look)


def _caption(each: int) -> str:
    return (
        f"At most {each} rows of a line: in order of the measured time, the middle one of {each} equal parts, so that "
        "no error decides what is shown. Filled: predicted by fits without the row's group; hollow: never fitted. Bar: "
        "median; on the right the mean size of the errors. Grey: within 10 %. Arrows: beyond the axis. All rows: "
        "attnsim accuracy."
    )
