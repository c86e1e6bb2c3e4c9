"""How long each unit is busy within a call, and the bytes of each tensor that a call moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from attnsim.api.answer import Outcome
from attnsim.api.explaining import Explanation
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Marks
from attnsim.models.hardware.units import UNITS
from attnsim.plots.series import about, engineering, identity, names_of
from attnsim.plots.sheet import Panel, Picture, bar, cells, heading, key, longest, named_rows, note, size_of
from attnsim.plots.styles import TENSORS, Style, ink_on, tensor_hue, unit_hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAITS = "waits for data"
LAUNCH = "launch"
HEIGHT = 0.165
"""Inches of a row."""
WIDEST = 5.0
"""Ratio of times up to which all calls are drawn on one scale of time."""
CHANGED = "//////"
"""Hatch of the bars on a changed GPU."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call, and beside it the same call on changed GPUs, on one axis."""

    label: str
    calls: tuple[Outcome, ...]

    @property
    def parts(self) -> list[str]:
        """Launch, units and waits of any of them."""
        found = dict.fromkeys(part for one in self.calls for part, _ in _parts(one))
        return [part for part in (LAUNCH, *UNITS, WAITS) if part in found]


def units(predictions: Sequence[Outcome], marked: Marks | None = None) -> Picture:
    """How long each unit is busy within each call, a frame as long as the call around them.

    The same call on a changed GPU is drawn within the frame of the unchanged one, bar beside bar.

    Parameters
    ----------
    predictions : sequence of Answer
        Several algorithms, GPUs or shapes; those that do not fit the memory are told in the caption.
    marked : mapping, optional
        What stands behind the name of a changed GPU, by its id and changes; by default a star, or letters of several.

    Raises
    ------
    InputError
        When none fits.
    """
    labels = _labels(predictions, marked)
    shown = [(label, one) for label, one in zip(labels, predictions, strict=True) if one.time_s]
    if not shown:
        raise InputError(f"nothing to draw: {predictions[0].notes[0]}")
    times = [one.time_s or 0.0 for _, one in shown]
    frames = _frames(shown)
    relative = max(times) > WIDEST * min(times)
    lines = sum(len(one.parts) * _tall(one) + 1 + len(one.calls) for one in frames)
    missing = [label for label, one in zip(labels, predictions, strict=True) if not one.time_s]
    return Picture(
        "Busy time of each unit within the call",
        _caption([one for _, one in shown], missing),
        (Panel(partial(_draw, frames=frames, relative=relative), HEIGHT * lines),),
        tuple(row for label, one in shown for row in _rows(label, one)),
        left=(*(unit.label for unit in UNITS.values()), WAITS),
        right=("100 %     123 ms",),
        subtitle=about([one for _, one in shown], marked),
    )


def _labels(predictions: Sequence[Outcome], marked: Marks | None) -> list[str]:
    """Names, with the length where it differs."""
    names = names_of(predictions, marked)
    if len({one.workload.seq_kv for one in predictions}) == 1:
        return names
    return [f"{name}, {one.workload.seq_kv:,} keys" for name, one in zip(names, predictions, strict=True)]


def _frames(shown: Sequence[tuple[str, Outcome]]) -> list[Frame]:
    """Calls, those on changed GPUs with the same one on the GPU that these were made of."""
    found: dict[tuple[object, ...], Frame] = {}
    for label, one in shown:
        key = (one.algorithm, one.implementation, one.gpu, one.workload, one.tiles)
        if one.changes and key in found:
            found[key] = Frame(found[key].label, (*found[key].calls, one))
        else:
            found[(*key, one.changes) if key in found else key] = Frame(label, (one,))
    return list(found.values())


def _tall(frame: Frame) -> float:
    """Height of a row of a frame, in rows of a single call."""
    return 1 + 0.55 * (len(frame.calls) - 1)


def _parts(one: Outcome) -> list[tuple[str, float]]:
    """Launch, units and waits with their seconds, launches left out where there are none."""
    launch = [(LAUNCH, one.launch_s)] if one.launch_s else []
    return [
        *launch,
        *((unit, one.units_s[unit]) for unit in UNITS if unit in one.units_s),
        (WAITS, one.exposed_s or 0.0),
    ]


def _draw(axes: Axes, look: Style, *, frames: Sequence[Frame], relative: bool) -> None:
    ticks: list[tuple[float, str]] = []
    every = [one for frame in frames for one in frame.calls]
    longest = max((one.time_s or 0.0) / (_first(frame) if relative else 1) for frame in frames for one in frame.calls)
    y = 0.0
    for frame in frames:
        scale = 100.0 / _first(frame) if relative else 1.0
        heads = ["changed" if one.changes else "as it is" for one in frame.calls]
        heads = heads if len(heads) > 1 else ["share", "time"]
        cells(axes, y, heads, [False] * len(heads), look, head=True)
        for line in _titles(frame):
            axes.text(0, y, line, fontsize=look.size, fontweight="bold", va="center")
            y -= 1
        high = y + 0.5
        tall, low = _tall(frame), high - len(frame.parts) * _tall(frame)
        for one in frame.calls:
            _frame(axes, one, scale, low, high, look)
        for number, part in enumerate(frame.parts):
            at = high - tall * (number + 0.5)
            _bars(axes, frame, part, at, scale, look)
            ticks.append((at, UNITS[part].label if part in UNITS else part))
        y = low - 1
    named_rows(axes, [at for at, _ in ticks], [text for _, text in ticks], look)
    axes.set_ylim(y + 0.9, 0.7)
    axes.set_xlim(0, (100.0 if relative else 1.0) * longest * 1.002)
    heading(axes, "frame: the call; bars: its units", look)
    if relative:
        axes.set_xlabel("share of the call's time, %", fontsize=look.size)
    else:
        axes.locator_params(axis="x", nbins=6)
        unit = max(one.time_s or 0.0 for one in every)
        axes.xaxis.set_major_formatter(lambda value, _: engineering(value, "s", like=unit) if value else "0")
        axes.set_xlabel("time", fontsize=look.size)


def _first(frame: Frame) -> float:
    return frame.calls[0].time_s or 0.0


def _titles(frame: Frame) -> list[str]:
    """The call, its time, and in a line each what changed GPUs make of it."""
    first, *others = frame.calls
    found = [f"{frame.label}: {engineering(_first(frame), 's')}"]
    for one in others:
        gain = one.speedup_over(first)
        assert gain is not None
        found.append(f"changed: {engineering(one.time_s or 0.0, 's')}, {gain}")
    return found


def _frame(axes: Axes, one: Outcome, scale: float, low: float, high: float, look: Style) -> None:
    """The call as a frame, and what launches take of it in grey."""
    from matplotlib.patches import Rectangle

    whole, launch = (one.time_s or 0.0) * scale, (one.launch_s or 0.0) * scale
    line = (0, (3, 2)) if one.changes else "-"
    axes.add_patch(
        Rectangle((0, low), whole, high - low, fill=False, edgecolor=look.text, linewidth=0.9, linestyle=line, zorder=5)
    )
    axes.add_patch(Rectangle((0, low), launch, high - low, facecolor=look.middle, alpha=0.3, linewidth=0, zorder=1))


def _bars(axes: Axes, frame: Frame, part: str, at: float, scale: float, look: Style) -> None:
    """A unit's bar for each call, and its numbers on the right."""
    count, colour = len(frame.calls), look.colour(unit_hue(part))
    texts: list[str] = []
    bold: list[bool] = []
    for place, one in enumerate(frame.calls):
        bound = one.bound.unit if one.bound else ""
        seconds, whole = dict(_parts(one)).get(part, 0.0), one.time_s or 0.0
        high = 0.78 * _tall(frame) / count
        start, inside = 0.0 if part == LAUNCH else (one.launch_s or 0.0), look.page if one.changes else colour
        how: Any = {"edgecolor": colour, "linewidth": 0.6, "hatch": CHANGED if one.changes else ""}
        y, ends = at + high * ((count - 1) / 2 - place), (start * scale, (start + seconds) * scale)
        bar(axes, y, *ends, inside, height=0.92 * high, **how)
        texts += [] if count > 1 else [f"{100 * seconds / whole:.0f} %"]
        texts.append(engineering(seconds, "s"))
        bold += [part == bound] * (1 if count > 1 else 2)
    cells(axes, at, texts, bold, look)


def _caption(shown: Sequence[Outcome], missing: Sequence[str]) -> str:
    text = (
        "Bars: work of a unit over its rate, averaged over the SMs. Units work at the same time: bars "
        "overlap and do not add up to the call (frame). Bold: the unit whose doubling gains most. Grey from the left: "
        "launches, under which nothing runs. Waits for data: of warpgroups, on average. What the longest bar leaves of "
        "the frame is latency, uneven SMs and dependences. Tensor cores: executed FLOPs, recomputation included."
    )
    if any(one.changes for one in shown):
        text += " Hatched, and dashed frame: the changed GPU."
    return text + "".join(f" {label}: does not fit the memory." for label in missing)


def _rows(label: str, one: Outcome) -> list[dict[str, object]]:
    whole, bound = one.time_s or 0.0, one.bound.unit if one.bound else ""
    parts = [("total", whole), *_parts(one), ("idle", one.units_s["idle"])]
    return [
        {"name": label, **identity(one)}
        | {"part": part, "seconds": seconds, "share": seconds / whole, "bounds": part == bound}
        for part, seconds in parts
    ]


LEVELS = {"hbm": "from and to HBM", "l2": "asked of the L2", "smem": "read and written in shared memory"}
STEP = 0.3
"""Inches of a bar and the room around it."""
TOGETHER = 12.0
"""Ratio of totals up to which the bars of a level are lengths of bytes; beyond, shares of each call's total."""
WRITTEN = "////"
"""Hatch of the bars of written bytes."""

Parts = dict[tuple[str, str], int]
"""Bytes by tensor and direction."""


def traffic(explanations: Sequence[Explanation]) -> Picture:
    """Bytes by tensor: through HBM, asked of the L2, and in shared memory, a panel for each.

    Parameters
    ----------
    explanations : sequence of Explanation
        As `attnsim.api.explaining.explain` gives them, one for each algorithm.

    Raises
    ------
    InputError
        Without any.

    Examples
    --------
    >>> import attnsim
    >>> from attnsim.api.explaining import explain
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> found = [explain(question, "a100-sxm4-80gb", name) for name in ("naive", "flash")]
    >>> [one.get_title(loc="left") for one in attnsim.plot.traffic(found).axes]
    ['from and to HBM, % of each total', 'asked of the L2', 'read and written in shared memory']
    """
    if not explanations:
        raise InputError("no explanation to draw; give at least one, as attnsim.api.explaining.explain returns them")
    names = names_of([one.prediction for one in explanations])
    bars = {level: [_parts_traffic(one, level) for one in explanations] for level in LEVELS}
    tensors = sorted({tensor for parts in bars["l2"] for tensor, _ in parts}, key=_rank)
    tall = STEP * len(names) + 0.06
    draw = partial(_draw_traffic, names=names, tensors=tensors)
    panels = tuple(Panel(partial(draw, level=level, bars=bars[level]), tall) for level in LEVELS)
    return Picture(
        "Bytes by tensor and level of memory",
        _caption_traffic(any(_far_apart(bars[level]) for level in LEVELS)),
        panels,
        tuple(row for name, one in zip(names, explanations, strict=True) for row in _rows_traffic(name, one)),
        left=tuple(names),
        right=("xx123 GB",),
        subtitle=about([one.prediction for one in explanations]),
    )


def _rank(tensor: str) -> tuple[int, str]:
    """Q, K, V, S, P, O, and what is small after them."""
    named = list(TENSORS)
    word = tensor.split(" ", maxsplit=1)[0]
    return (named.index(word) if word in named else len(named), tensor)


def _parts_traffic(one: Explanation, level: str) -> Parts:
    """Bytes of each tensor by direction, in one order in every bar, the copies of a tensor counted with it."""
    if level == "smem":
        return {("", "load"): one.prediction.smem_bytes or 0}
    found: Parts = {}
    for row in one.tensors:
        name = (row.tensor.rstrip("'"), row.direction)
        found[name] = found.get(name, 0) + (row.hbm_bytes if level == "hbm" else row.l2_bytes)
    return dict(sorted(found.items(), key=lambda item: (_rank(item[0][0]), item[0][1])))


def _far_apart(bars: Sequence[Parts]) -> bool:
    totals = [sum(parts.values()) for parts in bars if sum(parts.values())]
    return bool(totals) and max(totals) > TOGETHER * min(totals)


def _draw_traffic(
    axes: Axes, look: Style, *, level: str, names: Sequence[str], bars: Sequence[Parts], tensors: Sequence[str]
) -> None:
    totals = [sum(parts.values()) for parts in bars]
    shares = _far_apart(bars)
    whole = 100.0 if shares else float(max(*totals, 1))
    axes.set_xlim(0, whole * 1.001)
    wide = size_of(axes)[0]
    for number, (parts, total) in enumerate(zip(bars, totals, strict=True)):
        scale = 100.0 / total if shares and total else 1.0
        for tensor, direction, start, size in _stacked(parts):
            colour, hatch = look.colour(tensor_hue(tensor)), WRITTEN if direction == "store" else ""
            ends = start * scale, (start + size) * scale
            bar(axes, -number, *ends, colour, height=0.66, hatch=hatch, edgecolor=look.page, linewidth=0.5)
            if tensor and wide * size * scale / whole > longest([tensor], look) + 0.5 * look.size / 72:
                behind = {"facecolor": colour, "linewidth": 0, "pad": 1} if hatch else None
                how: Any = {"ha": "center", "fontweight": "bold", "color": ink_on(colour), "zorder": 4, "bbox": behind}
                note(axes, tensor, ((start + size / 2) * scale, -number), look, **how)
        axes.text(whole, -number, f"  {engineering(total, 'B')}", fontsize=look.size, va="center", ha="left")
    named_rows(axes, [-number for number in range(len(names))], names, look)
    axes.spines["left"].set_visible(True)
    axes.set_ylim(-len(names) + 0.45, 0.55)
    axes.locator_params(axis="x", nbins=5)
    top = max(totals)
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value:g} %" if shares else engineering(value, "B", like=top) if value else "0"
    )
    heading(axes, f"{LEVELS[level]}{', % of each total' if shares else ''}", look)
    if level == next(iter(LEVELS)):
        key(axes, [(tensor, look.colour(tensor_hue(tensor))) for tensor in tensors if tensor in TENSORS], look)


def _stacked(parts: Parts) -> Iterator[tuple[str, str, int, int]]:
    """Tensor, direction, where its bytes begin, and how many."""
    done = 0
    for (tensor, direction), size in parts.items():
        if size:
            yield tensor, direction, done, size
        done += size


def _caption_traffic(shares: bool) -> str:
    text = (
        "Hatched: written; plain: read; copies of a tensor count "
        "with it; grey: sums and lists. Asked of the L2 is what every block asks for; through HBM goes what the L2 "
        "does not hold. Shared memory: operands of the tensor cores and staging, not told apart by tensor."
    )
    if shares:
        text += f" Where totals differ by more than {TOGETHER:g} times, a bar is its call's whole; the numbers compare."
    return text


def _rows_traffic(name: str, one: Explanation) -> list[dict[str, object]]:
    item = one.prediction
    here = {"name": name, **identity(item)}
    found = [
        here | {"level": level, "kernel": row.kernel, "tensor": row.tensor, "direction": row.direction, "bytes": size}
        for row in one.tensors
        for level, size in (("hbm", row.hbm_bytes), ("l2", row.l2_bytes))
    ]
    return [*found, here | {"level": "smem", "bytes": item.smem_bytes}]
