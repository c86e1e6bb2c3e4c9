"""Predicted over measured time of many rows, a line for each kind of row, the best on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from attnsim.plots.sheet import Panel, Picture, dots, key, named_rows, note, side_text
from attnsim.plots.styles import GROUPS, INK, Style
from attnsim.validation.checking.accuracy import group_of, line_of
from attnsim.validation.fitting.held_out import NEVER, HeldOut
from attnsim.wording import share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


INCHES = 0.19
"""Height of a line."""
BAND = 0.1
"""Errors within this share are inside the grey band."""
RANGE = (0.3, 3.3)
"""Ratios drawn; those beyond are drawn at the edge, as arrows."""
TICKS = (0.33, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
READ = "Bar: median; on the right the mean size of the errors. Grey: within 10 %. Arrows: beyond the axis."
"""Caption text about the marks that all lines have."""


@dataclass(slots=True)
class Line:
    """The rows of a line.

    Parameters
    ----------
    group : str
        Of their algorithm, which the colour tells.
    filled, hollow : list of float
        Predicted over measured time, by how they are marked.
    """

    group: str
    filled: list[float] = field(default_factory=list)
    hollow: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Mean error of all rows."""
        return self.filled + self.hollow

    @property
    def error(self) -> float:
        """Mean size of the errors."""
        return sum(abs(ratio - 1) for ratio in self.ratios) / len(self.ratios)


def ordered(lines: Mapping[str, Line]) -> dict[str, Line]:
    """The lines from the top down."""
    return dict(sorted(lines.items(), key=lambda line: line[1].error))


def panel(lines: Mapping[str, Line]) -> Panel:
    """The lines below one another."""
    return Panel(partial(_draw, lines=lines), INCHES * len(lines) + 0.3)


def _draw(axes: Axes, look: Style, *, lines: Mapping[str, Line]) -> None:
    axes.axvspan(1 - BAND, 1 + BAND, color=look.grid, zorder=0)
    axes.axvline(1.0, color=look.text, linewidth=0.8, zorder=3)
    for number, line in enumerate(lines.values()):
        colour = look.colour(GROUPS.get(line.group, INK))
        axes.plot([median(line.ratios)] * 2, [-number - 0.34, -number + 0.34], color=colour, linewidth=1.6, zorder=5)
        for ratios, face in ((line.filled, colour), (line.hollow, look.page)):
            _marks(axes, look, ratios, -number, colour, face)
        side_text(axes, -number, share_text(line.error), look)
    _scales(axes, look, lines)
    note(axes, "mean", (1, 1), look, (0.6, 0.5), "axes fraction", color=look.faint, va="baseline")
    groups = dict.fromkeys(line.group for line in lines.values())
    key(axes, [(group, look.colour(GROUPS.get(group, INK))) for group in groups], look)


def _marks(axes: Axes, look: Style, ratios: list[float], height: float, colour: str, face: str) -> None:
    low, high = RANGE
    for marker, shown in (
        ("o", [one for one in ratios if low < one < high]),
        ("<", [low for one in ratios if one <= low]),
        (">", [high for one in ratios if one >= high]),
    ):
        if not shown:  # a line without points would count where margins are measured
            continue
        how: Any = {"alpha": 0.75, "zorder": 4, "markeredgewidth": 0.8, "clip_on": False}
        dots(axes, (shown, [height] * len(shown)), look, colour, 0.42, marker, face, **how)


def _scales(axes: Axes, look: Style, lines: Mapping[str, Line]) -> None:
    named_rows(axes, [-number for number in range(len(lines))], list(lines), look)
    axes.set_xscale("log")
    axes.set_xlim(*RANGE)
    axes.set_xticks(TICKS, [f"{one:g}" for one in TICKS])
    axes.minorticks_off()
    axes.set_ylim(-len(lines) + 0.4, 0.6)
    axes.set_xlabel("predicted over measured", fontsize=look.size)


def accuracy(found: Sequence[HeldOut], each: int) -> Picture:
    """Predicted over measured time of held-out rows.

    Parameters
    ----------
    found : sequence of HeldOut
        As `attnsim.validation.checking.accuracy.sampled` gives them.
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
        tuple(points),
        left=tuple(named),
        right=("100 %",),
        subtitle=f"{len(points)} predictions of rows on {gpus}",
    )
