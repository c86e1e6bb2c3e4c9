"""Predictions as the series of a picture: what each is called, what all have in common, labels at the ends of lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from attnsim.api.answer import Outcome
from attnsim.api.libraries import never_run
from attnsim.errors import InputError, shown
from attnsim.models.hardware.gpu import Marks, changes_text, marks
from attnsim.plots.roofline_labels import short, spread
from attnsim.plots.sheet import Panel, legend, longest, note, size_of
from attnsim.plots.styles import Style, algorithm_hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vP<>"
NEVER_RUN = "Thin: our own kernels, which nobody has run on a GPU"
FLOPS = "Useful FLOPs: 2 B H (visible pairs)(d + dv) forward, 2.5 times that backward."
PREFIXES = {
    "s": ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")),
    "B": ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")),
}

Over = Literal["seq", "batch"]


@dataclass(frozen=True, slots=True)
class Series:
    """The predictions of one line or group, the shortest question first.

    Parameters
    ----------
    label : str
    number : int
        Of its marker.
    points : tuple of Answer
    before : int
        How many series before it have its hue.
    """

    label: str
    number: int
    points: tuple[Outcome, ...]
    before: int = 0

    @property
    def hue(self) -> int:
        """Its algorithm's (:mod:`attnsim.plots.styles`)."""
        return algorithm_hue(self.points[0].algorithm)

    @property
    def drawn(self) -> tuple[Outcome, ...]:
        """Entries that fit the memory."""
        return tuple(one for one in self.points if one.time_s is not None)

    @property
    def marker(self) -> str:
        """Marker of its points."""
        return MARKERS[self.number % len(MARKERS)]

    def line(self, look: Style, width: float, size: float) -> dict[str, Any]:
        """How its line looks, as Matplotlib takes it, with its width and its markers' size in sizes of letters."""
        how = {"color": look.colour(self.hue), "linestyle": look.dash(self.hue, self.before), "marker": self.marker}
        return how | {"linewidth": width * look.size, "markersize": size * look.size}


def series_of(predictions: Sequence[Outcome], over: Over = "seq") -> list[Series]:
    """Predictions grouped by what they are called, in the order in which the names come.

    Raises
    ------
    InputError
        Without any, or for two of one name and length.
    """
    found: dict[str, dict[int, Outcome]] = {}
    for name, one in zip(names_of(predictions), predictions, strict=True):
        at = place(one, over)
        if at in found.setdefault(name, {}):
            raise InputError(f"two predictions of {name} at {over} {at}; give one for each length, batch and GPU")
        found[name][at] = one
    lines: list[Series] = []
    for number, (name, points) in enumerate(found.items()):
        line = Series(name, number, tuple(points[at] for at in sorted(points)))
        lines.append(replace(line, before=sum(other.hue == line.hue for other in lines)))
    return lines


@dataclass(frozen=True, slots=True)
class Kernel:
    """How the lines of a kernel look, in every panel of a picture.

    Parameters
    ----------
    name : str
    implementation : str
    hue : int
        Its algorithm's.
    before : int
        How many kernels before it have that hue.
    """

    name: str
    implementation: str
    hue: int
    before: int

    def line(self, look: Style) -> dict[str, Any]:
        """Colour, dashes and width, as Matplotlib takes them; thin where nobody has run the kernel."""
        width = (0.1 if never_run(self.implementation) else 0.2) * look.size
        return {"color": look.colour(self.hue), "linestyle": look.dash(self.hue, self.before), "linewidth": width}


def kernels_of(named: Iterable[tuple[str, str, str]]) -> dict[str, Kernel]:
    """Kernels by their names, from name, implementation and algorithm of each line."""
    found: dict[str, Kernel] = {}
    for name, implementation, algorithm in named:
        hue = algorithm_hue(algorithm)
        if name not in found:
            before = sum(one.hue == hue for one in found.values())
            found[name] = Kernel(name, implementation, hue, before)
    return found


def key_panel(kernels: Mapping[str, Kernel]) -> Panel:
    """A line of each kernel with its name, above the panels, or above the first axes of the caller's."""

    def draw(axes: Axes, look: Style) -> None:
        names = [f"{one.name}{', never run' * never_run(one.implementation)}" for one in kernels.values()]
        key_rows(axes, [one.line(look) for one in kernels.values()], names, look)

    return Panel(draw, 0.16, apart=True, key=True)


def key_rows(
    axes: Axes, lines: Sequence[Mapping[str, Any]], names: Sequence[str], look: Style, handle: float = 2.4
) -> None:
    """Draw lines of a key with their names, side by side as far as there is room, on axes of their own or above.

    Parameters
    ----------
    lines : sequence of mapping
        How each looks, as ``Line2D`` takes it.
    handle : float
        Width of a line, in sizes of the font.
    """
    from matplotlib.lines import Line2D

    own, other = not axes.has_data(), axes.get_legend()
    inches = size_of(axes)[0]
    columns = int(inches / (longest(names, look) + (2.6 + handle) * look.size / 72))
    where: Any = {"loc": "center left" if own else "lower left", "bbox_to_anchor": (0, 0.5 if own else 1.1)}
    where |= {"borderpad": 0, "borderaxespad": 0, "columnspacing": 1.2, "ncols": max(1, min(columns, len(names)))}
    legend(axes, look, [Line2D([], [], **one) for one in lines], names, handlelength=handle, **where)
    if own:
        axes.set_axis_off()
    if other:
        axes.add_artist(other)


def names_of(predictions: Sequence[Outcome], marked: Marks | None = None) -> list[str]:
    """Algorithms, with the implementation or the GPU where there are several, and the mark of a changed GPU.

    Raises
    ------
    InputError
        Without any prediction.
    """
    if not isinstance(predictions, Sequence):
        raise InputError(f"a list of predictions is drawn, {shown(predictions)} is none; put it into one")
    if not predictions:
        raise InputError("no prediction to draw; give at least one, as attnsim.compare returns them")
    runs: dict[tuple[object, ...], set[str]] = {}
    for one in predictions:
        runs.setdefault((one.algorithm, one.gpu, one.changes, one.workload), set()).add(one.implementation)
    several = {key[0] for key, implementations in runs.items() if len(implementations) > 1}
    machines = _marked(predictions, marked)
    one_base = len({gpu for gpu, _ in machines}) == 1
    names = []
    for one in predictions:
        name = f"{one.algorithm}/{one.implementation}" if one.algorithm in several else one.algorithm
        mark = machines[one.gpu, one.changes]
        if len(machines) > 1:
            name += mark if one_base else f", {one.gpu}{mark}"
        names.append(name)
    return names


def _marked(predictions: Sequence[Outcome], marked: Marks | None) -> Marks:
    """Suffix of the name of each GPU; an unchanged one has none."""
    machines = list(dict.fromkeys((one.gpu, one.changes) for one in predictions))
    found = marked or marks(machines)
    return {key: found.get(key, "") for key in machines}


def identity(one: Outcome, *shape: str) -> dict[str, object]:
    """The columns of a table that say what was predicted, with some of the question's shape."""
    named = results(one, "algorithm", "implementation", "gpu")
    return named | {"changes": changes_text(one.changes)} | {name: getattr(one.workload, name) for name in shape}


def results(one: Outcome, *names: str) -> dict[str, object]:
    """Columns that an answer has by their names."""
    return {name: getattr(one, name) for name in names}


def place(one: Outcome, over: Over = "seq") -> int:
    """Length of the sequence, or the batch."""
    return one.workload.batch if over == "batch" else one.workload.seq_kv


def shared_words(predictions: Sequence[Outcome]) -> str:
    """Words that all questions share: "batch 1, heads 16, head_dim 128"."""
    parts = [str(one.workload).split(", ") for one in predictions]
    return ", ".join(part for part in parts[0] if all(part in other for other in parts)) if parts else ""


def about(predictions: Sequence[Outcome], marked: Marks | None = None) -> str:
    """The conditions of all predictions in words: machines, shape, cache, launch, and what only some have."""
    machines = ", ".join(
        f"{gpu}{mark} with {changes_text(changes)}" if changes else gpu
        for (gpu, changes), mark in _marked(predictions, marked).items()
    )
    parts = [str(one.workload).split(", ") for one in predictions]
    shared = shared_words(predictions).split(", ")
    cache, launch = (
        " and ".join(dict.fromkeys(getattr(one, name) for one in predictions)) for name in ("cache", "launch")
    )
    own: dict[str, list[str]] = {}
    for one, words in zip(predictions, parts, strict=True):
        rest = [part for part in words if part not in shared and not part.startswith(("seq ", "batch "))]
        if rest:
            own.setdefault(", ".join(rest), []).append(one.algorithm)
    others = "".join(f" {', '.join(dict.fromkeys(names))}: {words}." for words, names in own.items())
    tiles = "".join(f", {name} tiles" for name in dict.fromkeys(one.tiles for one in predictions) if name != "shipped")
    return f"Predicted on {machines}: {shared_words(predictions)}; {cache} L2, launch {launch}{tiles}.{others}"


def approximations(predictions: Sequence[Outcome]) -> str:
    """How far those that are not softmax attention are from it; empty where all are."""
    rough = {one.algorithm: one.approximation for one in predictions if one.approximation}
    if not rough:
        return ""
    first = next(iter(rough.values()))
    deviations = "/".join(f"{one.score_deviation:g}" for one in first)
    sizes = ", ".join(
        f"{name} {'/'.join(f'{100 * one.relative:.0f}' for one in found)} %" for name, found in rough.items()
    )
    return (
        " With an error beside its name: not softmax attention; the error is of O on untrained Gaussian inputs whose "
        f"scores have deviation 1 (at {deviations}: {sizes})."
    )


def error_text(one: Outcome) -> str:
    """The error of an approximation at scores of deviation 1; empty for an exact algorithm."""
    return next((f" (error {100 * e.relative:.0f} %)" for e in one.approximation if e.score_deviation == 1), "")


def engineering(value: float, unit: Literal["s", "B"], like: float | None = None) -> str:
    """Three digits with a prefix: "4.33 ms"; that of another value where numbers are to be compared."""
    over = value if like is None else like
    scale, prefix = next((one for one in PREFIXES[unit] if over >= one[0] * 0.9995), PREFIXES[unit][-1])
    return f"{short(value / scale)} {prefix}{unit}"


def length_text(tokens: float) -> str:
    """A length as people say it: "16k"."""
    return f"{tokens / 1024:g}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:g}"


def end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]], look: Style) -> None:
    """Name lines at their right ends, ``(x, y, text, colour)``, those that end at one x clear of one another.

    The axes' scales and limits have to be set.
    """

    def within(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        return float(across), float(up)

    wide, tall = size_of(axes)
    gap, aside = 1.25 * look.size / 72 / tall, 0.75 * look.size / 72 / wide
    for at in dict.fromkeys(end[0] for end in ends):
        here = sorted((end for end in ends if end[0] == at), key=lambda end: end[1])
        across = within(at, here[0][1])[0] + aside
        heights = spread([within(x, y)[1] for x, y, _, _ in here], gap)
        for number, limit in enumerate(1 - gap * (0.5 + below) for below in range(len(heights) - 1, -1, -1)):
            heights[number] = min(heights[number], limit)
        for number in range(len(heights)):
            heights[number] = max(heights[number], gap * (0.5 + number))
        for (_, _, text, colour), height in zip(here, heights, strict=True):
            note(axes, text, (across, height), look, where=axes.transAxes, rim=True, color=colour, zorder=6)
