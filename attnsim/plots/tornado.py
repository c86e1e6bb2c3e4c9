"""Which figure of the GPU moves the time by how much: bars to both sides, the largest on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from attnsim.errors import InputError
from attnsim.plots.layout import Panel
from attnsim.plots.sheet import Picture, heading, named_rows, note
from attnsim.plots.styles import Style, figure_hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 0.33
"""Inches of two bars and the room around them."""
LESS = "/////"
"""Hatch of the bars of lower figures."""
SMALLEST = 0.0005
"""Changes of time that round to none."""
SMALL = 0.005
"""Changes of time below are not told apart from none."""


class Answered(Protocol):
    """An elasticity as the picture needs it; `attnsim.studies.sensitivity.Elasticity` is one."""

    @property
    def figure(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> float: ...  # noqa: D102
    @property
    def elasticity(self) -> float: ...  # noqa: D102
    @property
    def down(self) -> float | None: ...  # noqa: D102
    @property
    def up(self) -> float | None: ...  # noqa: D102
    @property
    def step(self) -> float: ...  # noqa: D102


def tornado(elasticities: Mapping[str, Sequence[Answered]], question: str = "") -> Picture:
    """Change of the time with one figure of the GPU higher or lower, the largest on top, a panel for each algorithm.

    Parameters
    ----------
    elasticities : mapping of str to sequence of Elasticity
        By the name of the algorithm, as :func:`attnsim.sensitivity` gives them, all of one step.
    question : str
        In words.

    Raises
    ------
    InputError
        When no figure moves any of the times, or the steps differ.
    """
    moved = {name: [one for one in each if _size(one) >= SMALL] for name, each in elasticities.items()}
    if not any(moved.values()):
        raise InputError("no figure of the GPU moves the time; give elasticities of at least one question")
    step, *others = sorted({one.step for each in elasticities.values() for one in each})
    if others:
        raise InputError(f"the elasticities have steps {step:g} and {others[0]:g}; ask all with one step")
    widest = max(abs(change) for each in moved.values() for one in each for change in changes(one) if change)
    panels = []
    for name, each in moved.items():
        ordered = sorted(each, key=lambda one: -_size(one))
        draw = partial(_draw, name=name, found=ordered, widest=widest, last=name == list(moved)[-1])
        panels.append(Panel(draw, ROW * max(1, len(ordered)) + 0.1))
    rows = tuple(_row(name, one) for name, each in elasticities.items() for one in each)
    return Picture(
        f"Change of the time with one figure of the GPU {100 * step:g} % higher or lower",
        _caption(moved, step),
        tuple(panels),
        rows,
        left=tuple(one.figure for each in moved.values() for one in each),
        subtitle=question,
    )


def changes(one: Answered) -> tuple[float | None, float | None]:
    """Relative change of the time with the figure divided by ``1 + step``, and multiplied by it.

    From the one-sided elasticities, which are replayed: ``t / t0 = (figure / figure0) ** elasticity``.
    """
    less = None if one.down is None else (1 + one.step) ** -one.down - 1
    more = None if one.up is None else (1 + one.step) ** one.up - 1
    return less, more


def _size(one: Answered) -> float:
    return max(abs(change) for change in (*changes(one), 0.0) if change is not None)


def _draw(axes: Axes, look: Style, *, name: str, found: Sequence[Answered], widest: float, last: bool) -> None:
    for number, one in enumerate(found):
        colour = look.colour(figure_hue(one.figure))
        for change, up, hatch in zip(changes(one), (-0.2, 0.2), (LESS, ""), strict=True):
            if change is None:
                continue
            axes.barh(
                [up - number],
                [100 * change],
                height=0.38,
                facecolor=look.page if hatch else colour,
                hatch=hatch,
                edgecolor=colour,
                linewidth=0.6,
                zorder=3,
            )
            side = 1 if change > 0 else -1
            text = f"{100 * change:+.1f} %" if abs(change) >= SMALLEST else "0.0 %"
            ha = "left" if side > 0 else "right"
            note(axes, text, (100 * change, up - number), look, (0.35 * side, 0), ha=ha)
    axes.axvline(0, color=look.text, linewidth=0.9, zorder=4)
    named_rows(axes, [-number for number in range(len(found))], [one.figure for one in found], look)
    axes.set_ylim(-max(len(found), 1) + 0.4, 0.5)
    figure = axes.get_figure(root=True)
    assert figure is not None
    half = axes.get_position().width * figure.get_size_inches()[0] / 2
    ends = 100 * widest / max(0.2, 1 - 4.4 * look.size / 72 / half)  # beside the longest bar stands its number
    axes.set_xlim(-ends, ends)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    if last:
        axes.set_xlabel("change of the time, %", fontsize=look.size)
    heading(axes, name, look)


def _caption(moved: Mapping[str, Sequence[Answered]], step: float) -> str:
    still = [name for name, each in moved.items() if not each]
    return (
        f"Upper bar, plain: the figure times {1 + step:g}; lower, hatched: over {1 + step:g}. Colours: the "
        "unit that the figure is of. Each change is replayed by itself, with tiles as they are and latencies in clocks "
        "following the clock; scheduling may make times jump. Figures that move a time by less than "
        f"{100 * SMALL:g} % are in the table only." + "".join(f" Nothing moves {name}." for name in still)
    ).strip()


def _row(name: str, one: Answered) -> dict[str, object]:
    less, more = changes(one)
    return {
        "name": name,
        "figure": one.figure,
        "value": one.value,
        "elasticity": one.elasticity,
        "less_time_change": less,
        "more_time_change": more,
        "step": one.step,
        "elasticity_less": one.down,
        "elasticity_more": one.up,
    }
