"""Pictures as Matplotlib figures, from what `attnsim.compare` and its like return; nothing is written.

``attnsim.plot`` is this module. Every function draws a figure of its own, with title and caption, or on axes that it is
given, without them; a picture of several panels takes a sequence of axes, one for each panel from above, or fewer.
`rows` gives the tidy table behind a picture.

Examples
--------
>>> import attnsim
>>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
>>> found = attnsim.compare(question, "a100-sxm4-80gb", ["naive", "flash"])
>>> figure = attnsim.plot.units(found, width="column")
>>> figure.savefig("units.pdf")  # doctest: +SKIP
>>> [row["part"] for row in attnsim.plot.rows("units", found) if row["bounds"]]
['launch', 'tensor']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnsim.api.crossover import Crossover
from attnsim.api.explaining import Explanation
from attnsim.api.prediction import Prediction
from attnsim.models.errors import InputError, nearest, shown
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.plots import occupancy as occupancy_picture
from attnsim.plots import roofline as roofline_picture
from attnsim.plots import scaling as scaling_picture
from attnsim.plots import timeline as timeline_picture
from attnsim.plots import tornado as tornado_picture
from attnsim.plots import traffic as traffic_picture
from attnsim.plots import units as units_picture
from attnsim.plots.series import Over
from attnsim.plots.sheet import Picture
from attnsim.plots.styles import applied, find_style
from attnsim.plots.tornado import Answered
from attnsim.simulator.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["roofline", "rows", "scaling", "timeline", "tornado", "traffic", "units", "waves"]


def roofline(
    predictions: Sequence[Prediction],
    gpus: Sequence[Gpu | str] | None = None,
    *,
    measured: Sequence[float | None] = (),
    ax: Axes | None = None,
    style: str = "light",
    width: str = "page",
) -> Figure:
    """Rooflines of GPUs with predictions on them.

    Parameters
    ----------
    predictions : sequence of Prediction
    gpus : sequence of Gpu or str, optional
        By default those of the predictions, which have to be built in and unchanged.
    measured : sequence of float or None
        Seconds that each call took; empty where none was measured.
    ax : matplotlib.axes.Axes, optional
    style : {"light", "dark", "print", "latex"}
    width : {"page", "column"}

    Raises
    ------
    InputError

    Examples
    --------
    >>> import attnsim
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> figure = roofline(attnsim.compare(question, "a100-sxm4-80gb"))
    >>> figure.axes[0].get_ylabel()
    'useful TFLOP/s'
    """
    machines = _machines(predictions, gpus)
    if ax is None:
        return roofline_picture.roofline_page(machines, predictions, measured, style, width)[0]
    with applied(find_style(style, width)):
        roofline_picture.roofline_axes_of(ax, machines, predictions, measured, style, width)
    return _figure_of(ax)


def timeline(
    traces: Sequence[Trace], names: Sequence[str] | None = None, *, ax: Axes | Sequence[Axes] | None = None
) -> Figure:
    """What one SM's units do in the first turns of each trace's longest kernel.

    Parameters
    ----------
    traces : sequence of Trace
        As `attnsim.api.tracing.trace` gives them.
    names : sequence of str, optional
        Titles; by default the algorithms of the schedules.
    ax : Axes or sequence of Axes, optional
        One for each trace.

    Raises
    ------
    InputError

    Examples
    --------
    >>> import attnsim
    >>> from attnsim.api.tracing import trace
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> figure = timeline([trace(question, "a100-sxm4-80gb", name) for name in ("flash-1", "flash-2")])
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['store', 'softmax', 'tensor', 'copy']
    """
    titles = list(names) if names is not None else [one.schedule.algorithm for one in traces]
    if len(titles) != len(traces):
        raise InputError(f"{len(titles)} names for {len(traces)} traces; give one for each, or none")
    if ax is None:
        return timeline_picture.timeline_page(titles, traces)[0]
    axes = _sequence(ax)
    if len(axes) != len(traces):
        raise InputError(f"{len(axes)} axes for {len(traces)} traces; give one for each")
    timeline_picture.timeline_axes_of(axes, titles, traces)
    return _figure_of(axes[0])


def scaling(
    predictions: Sequence[Prediction],
    crossovers: Sequence[Crossover] = (),
    *,
    ax: Axes | Sequence[Axes] | None = None,
    style: str = "light",
    width: str = "page",
) -> Figure:
    """Time over the sequence length with 90 % ranges, and below it the speedup over unfused attention.

    Parameters
    ----------
    predictions : sequence of Prediction
        Of several lengths; one that does not fit the memory ends its line.
    crossovers : sequence of Crossover
        As `attnsim.api.crossover.crossover` gives them, to be marked.
    ax : Axes or sequence of Axes, optional
        One for the times, or two.
    style, width
        As for `roofline`.

    Raises
    ------
    InputError

    Examples
    --------
    >>> import attnsim
    >>> questions = [attnsim.Workload(1, 16, seq, 64) for seq in (1024, 2048)]
    >>> found = [one for question in questions for one in attnsim.compare(question, "a100-sxm4-80gb")]
    >>> len(scaling(found).axes)
    2
    """
    return _drawn(scaling_picture.scaling(predictions, crossovers), ax, style, width)


def units(
    predictions: Sequence[Prediction],
    *,
    ax: Axes | Sequence[Axes] | None = None,
    style: str = "light",
    width: str = "page",
) -> Figure:
    """How long each unit is busy within each call, a frame as long as the call around them.

    Parameters
    ----------
    predictions : sequence of Prediction
    ax, style, width
        As for `scaling`; one panel.

    Raises
    ------
    InputError
    """
    return _drawn(units_picture.units(predictions), ax, style, width)


def traffic(
    explanations: Sequence[Explanation],
    *,
    ax: Axes | Sequence[Axes] | None = None,
    style: str = "light",
    width: str = "page",
) -> Figure:
    """Bytes by tensor: through HBM, asked of the L2, and in shared memory.

    Parameters
    ----------
    explanations : sequence of Explanation
        As `attnsim.api.explaining.explain` gives them.
    ax, style, width
        As for `scaling`; three panels.

    Raises
    ------
    InputError

    Examples
    --------
    >>> import attnsim
    >>> from attnsim.api.explaining import explain
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> found = [explain(question, "a100-sxm4-80gb", name) for name in ("naive", "flash")]
    >>> [one.get_title(loc="left") for one in traffic(found).axes]
    ['from and to HBM, logarithmic', 'asked of the L2', 'read and written in shared memory']
    """
    return _drawn(traffic_picture.traffic(explanations), ax, style, width)


def waves(
    predictions: Sequence[Prediction],
    over: Over | None = None,
    *,
    ax: Axes | Sequence[Axes] | None = None,
    style: str = "light",
    width: str = "page",
) -> Figure:
    """Waves of thread blocks, the empty part of the last one, and the time per useful FLOP.

    Parameters
    ----------
    predictions : sequence of Prediction
        Of several lengths or batches.
    over : {"seq", "batch"}, optional
        By default the one that differs.
    ax, style, width
        As for `scaling`; three panels.

    Raises
    ------
    InputError
    """
    return _drawn(occupancy_picture.waves(predictions, over), ax, style, width)


def tornado(
    elasticities: Mapping[str, Sequence[Answered]],
    step: float,
    *,
    ax: Axes | Sequence[Axes] | None = None,
    style: str = "light",
    width: str = "page",
) -> Figure:
    """Change of the time with one figure of the GPU higher or lower, the largest on top.

    Parameters
    ----------
    elasticities : mapping of str to sequence of Elasticity
        By the panel's name, as `attnsim.studies.sensitivity.elasticities` gives them.
    step : float
        With which they were asked for.
    ax, style, width
        As for `scaling`; a panel for each name.

    Raises
    ------
    InputError
    """
    return _drawn(tornado_picture.tornado(elasticities, step), ax, style, width)


def rows(picture: str, *arguments: Any, **options: Any) -> list[dict[str, object]]:
    """The tidy table behind a picture, as the commands write it beside the file.

    Parameters
    ----------
    picture : str
        Name of a function of this module.
    *arguments, **options
        As for that function, without `ax`, `style` and `width`.

    Raises
    ------
    InputError
        For an unknown picture, and as the picture does.
    """
    known = [*_ROWS, *_PICTURES]
    if picture not in known:
        raise InputError(
            f"picture {shown(picture)} is not known; {nearest(str(picture), known)}; all: {', '.join(known)}"
        )
    found = (
        _ROWS[picture](*arguments, **options) if picture in _ROWS else _PICTURES[picture](*arguments, **options).rows
    )
    return [dict(row) for row in found]


def _roofline_rows(
    predictions: Sequence[Prediction], gpus: Sequence[Gpu | str] | None = None, measured: Sequence[float | None] = ()
) -> Sequence[Mapping[str, object]]:
    return roofline_picture.roofline_page(_machines(predictions, gpus), predictions, measured)[1]


def _timeline_rows(traces: Sequence[Trace], names: Sequence[str] | None = None) -> Sequence[Mapping[str, object]]:
    return timeline_picture.timeline_page(names or [one.schedule.algorithm for one in traces], traces)[1]


_PICTURES: dict[str, Callable[..., Picture]] = {
    "scaling": scaling_picture.scaling,
    "units": units_picture.units,
    "traffic": traffic_picture.traffic,
    "waves": occupancy_picture.waves,
    "tornado": tornado_picture.tornado,
}
_ROWS: dict[str, Callable[..., Sequence[Mapping[str, object]]]] = {
    "roofline": _roofline_rows, "timeline": _timeline_rows
}  # fmt: skip


def _drawn(picture: Picture, ax: Axes | Sequence[Axes] | None, style: str, width: str) -> Figure:
    return picture.figure(style, width) if ax is None else picture.on(_sequence(ax), style, width)


def _sequence(ax: Axes | Sequence[Axes]) -> list[Axes]:
    """One or several axes, an array of `matplotlib.pyplot.subplots` included, as a list."""
    from matplotlib.axes import Axes

    if isinstance(ax, Axes):
        return [ax]
    return [one for part in ax for one in _sequence(part)]


def _figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def _machines(predictions: Sequence[Prediction], gpus: Sequence[Gpu | str] | None) -> list[Gpu]:
    if gpus is not None:
        return [load_gpu(one) if isinstance(one, str) else one for one in gpus]
    changed = next((one for one in predictions if one.changes), None)
    if changed is not None:
        raise InputError(f"a prediction is for {changed.gpu} with {changed.changes[0]}; give that GPU with gpus=[...]")
    return [load_gpu(name) for name in dict.fromkeys(one.gpu for one in predictions)]
