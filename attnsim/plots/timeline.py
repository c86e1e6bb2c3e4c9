"""A replay over time: the first turns of an SM as a picture, and the whole of it as a trace for ui.perfetto.dev.

The format is Chrome's ("Trace Event Format", Google, 2016): complete events of a begin and a duration on tracks of
threads, counters, and names of processes and threads. The call is one process, with a track of kernels and the HBM
rate; every SM played is another, with tracks for copies, tensor work, work on registers, stores and resident blocks.
Slices of one track never overlap: what does gets a track of its own.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu, changes_text, marks
from attnsim.plots.sheet import Panel, Picture, bar, key, longest, named_rows, note, size_of, wrapped
from attnsim.plots.styles import Style, ink_on, tensor_hue
from attnsim.simulator.trace import UNITS, KernelTrace, Slice, Trace
from attnsim.wording import time_text
from attnsim.writing import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORK = {"S": r"$\mathregular{S = QK^T}$", "P": "softmax", "O": r"$\mathregular{O = PV}$"}
"""Names of the bars of warpgroups, by tensor; others keep their own."""
TURNS = 5
"""Softmax steps of a warpgroup that the picture begins with."""
MOST_WARPGROUPS = 4
"""Lanes of warpgroups that are drawn; elementwise kernels have up to 16 blocks an SM, all alike."""
HALVES = {"tensor": -0.2, "softmax": 0.2}
"""Places of a unit's bars in the lane of a warpgroup."""
MOST_TOGETHER = 4
"""Tiles in flight that lie below one another; further ones hide the lowest."""
LANE = 0.19
"""Inches of a lane."""


def timeline(traces: Sequence[Trace], names: Sequence[str] | None = None, subtitle: str = "") -> Picture:
    """Draw the first turns of an SM in each trace's longest kernel, a panel a trace, all on one scale of time.

    A lane is a warpgroup, its products above and its softmax below, or a tensor whose copies are in flight. Where a
    call has several kernels a strip above says how long each takes.

    Parameters
    ----------
    traces : sequence of Trace
        As `attnsim.api.tracing.trace` gives them.
    names : sequence of str, optional
        Titles; by default the algorithms of the schedules.
    subtitle : str
        The GPU and the question.

    Raises
    ------
    InputError
        For names that are not as many as traces, and when there is nothing to draw.

    Examples
    --------
    >>> import attnsim
    >>> from attnsim.api.tracing import trace
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> found = [trace(question, "a100-sxm4-80gb", name) for name in ("flash-1", "flash-2")]
    >>> figure = attnsim.plot.timeline(found)
    >>> [label.get_text() for label in figure.axes[-1].get_yticklabels()]
    ['load Q', 'load K', 'load V', 'block 1', 'block 2']
    """
    titles = names if names is not None else [one.schedule.algorithm for one in traces]
    if len(titles) != len(traces):
        raise InputError(f"{len(titles)} names for {len(traces)} traces; give one for each, or none")
    main, span = _longest_kernels(traces)
    whole = max(one.replay.time_s for one in traces)
    panels: list[Panel] = []
    for name, one, kernel in zip(titles, traces, main, strict=True):
        title = name
        if len(one.kernels) > 1:
            title = f"{kernel.name}, the longest kernel"
            panels.append(Panel(partial(_kernels, name=name, one=one, whole=whole), LANE * 1.3))
        draw = partial(_first_turns, title=title, one=one, kernel=kernel, span=span)
        panels.append(Panel(draw, LANE * len(_lanes(kernel, span))))
    rows = tuple(
        {
            "panel": name,
            "implementation": one.schedule.implementation,
            "kernel": kernel.name,
            "unit": piece.unit,
            "tensor": piece.tensor,
            "warpgroup": piece.warpgroup,
            "start_us": round(piece.start_s * 1e6, 6),
            "end_us": round(piece.end_s * 1e6, 6),
            "bytes": piece.bytes,
        }
        for name, one, kernel in zip(titles, traces, main, strict=True)
        for piece in _shown(kernel, span)
    )
    caption = (
        "A warpgroup's lane: products above, softmax below. A load is a tile, from its issue to its landing; tiles in "
        "flight together lie below one another."
    )
    left = tuple(lane for kernel in main for lane, _ in _lanes(kernel, span))
    return Picture("First turns of an SM", caption, tuple(panels), rows, left=left, subtitle=subtitle)


def timeline_of(found: Sequence[tuple[Gpu, str, Trace]], asked: str) -> Picture:
    """Draw the first turns of named traces on GPUs; a changed GPU has a mark behind its name.

    Parameters
    ----------
    found : sequence of (Gpu, str, Trace)
        GPU, algorithm and trace.
    asked : str
        The question.

    Raises
    ------
    InputError
        When there is nothing to draw.
    """
    marked = marks((gpu.id, gpu.changes) for gpu, _, _ in found)
    names = {gpu: gpu.id + marked.get((gpu.id, gpu.changes), "") for gpu, _, _ in found}
    several = len(names) > 1
    titles = [f"{name}, {names[gpu]}" if several else name for gpu, name, _ in found]
    modified = [f"{name}: {changes_text(gpu.changes)}" for gpu, name in names.items() if gpu.changes]
    text = "; ".join((asked, *modified))
    return timeline([one for _, _, one in found], titles, text if several else f"{found[0][0].id}: {text}")


def _longest_kernels(found: Sequence[Trace]) -> tuple[list[KernelTrace], float]:
    """The kernel of each trace that takes longest, and the seconds that are drawn of them."""
    main = [max(one.kernels, key=lambda kernel: kernel.time_s) for one in found]
    if not main or not all(kernel.slices for kernel in main):
        raise InputError("no kernel with operations to draw")
    return main, median(_span(kernel) for kernel in main)


def span_of(found: Sequence[Trace]) -> float:
    """Seconds of the longest kernels that the picture shows."""
    return _longest_kernels(found)[1]


def _first_sm(kernel: KernelTrace) -> list[Slice]:
    return [piece for piece in kernel.slices if piece.sm == 0 and piece.unit != "block"]


def _span(kernel: KernelTrace) -> float:
    """Seconds until every resident block has done some turns."""
    turns = sorted(piece.end_s for piece in _first_sm(kernel) if piece.unit == "softmax")
    if not turns:
        return max(piece.end_s for piece in _first_sm(kernel))
    return turns[min(len(turns) - 1, 2 * TURNS * kernel.blocks_per_sm)]


def _shown(kernel: KernelTrace, span: float) -> list[Slice]:
    return [piece for piece in _first_sm(kernel) if piece.start_s < span]


def overlap(kernel: KernelTrace, span: float) -> tuple[float, float, float]:
    """Shares of the time from the first MMA to `span` in which the tensor cores, the softmax, and both are busy."""
    pieces = _shown(kernel, span)
    begin = min((piece.start_s for piece in pieces if piece.unit == "tensor"), default=0.0)
    edges = []
    for piece in pieces:
        if piece.unit in ("tensor", "softmax") and piece.end_s > begin:
            unit = piece.unit == "softmax"
            edges += [(max(piece.start_s, begin), unit, 1), (min(piece.end_s, span), unit, -1)]
    busy, active, before = [0.0, 0.0, 0.0], [0, 0], begin
    for time_s, unit, change in sorted(edges):
        width = time_s - before
        for place in (0, 1):
            busy[place] += width * (active[place] > 0)
        busy[2] += width * (active[0] > 0 and active[1] > 0)
        active[unit] += change
        before = time_s
    whole = max(span - begin, 1e-15)
    return busy[0] / whole, busy[1] / whole, busy[2] / whole


def _lanes(kernel: KernelTrace, span: float) -> list[tuple[str, list[Slice]]]:
    """Lanes from above: loads by tensor, warpgroups, stores by tensor."""
    pieces = _shown(kernel, span)
    moved = {unit: dict.fromkeys(one.tensor for one in pieces if one.unit == unit) for unit in ("copy", "store")}
    working = sorted({one.warpgroup for one in pieces if one.unit in ("tensor", "softmax")})[:MOST_WARPGROUPS]
    return [
        *(
            (f"load {name}", [one for one in pieces if (one.unit, one.tensor) == ("copy", name)])
            for name in moved["copy"]
        ),
        *(
            (
                _warpgroup(kernel, number),
                [one for one in pieces if one.warpgroup == number and one.unit in ("tensor", "softmax")],
            )
            for number in working
        ),
        *(
            (f"store {name}", [one for one in pieces if (one.unit, one.tensor) == ("store", name)])
            for name in moved["store"]
        ),
    ]


def _warpgroup(kernel: KernelTrace, number: int) -> str:
    block, one = divmod(number, kernel.warpgroups)
    if kernel.warpgroups == 1:
        return f"block {block + 1}"
    return f"warpgroup {one + 1}" if kernel.blocks_per_sm == 1 else f"block {block + 1}, warpgroup {one + 1}"


def _first_turns(axes: Axes, look: Style, *, title: str, one: Trace, kernel: KernelTrace, span: float) -> None:
    lanes = _lanes(kernel, span)
    for lane, (_, pieces) in enumerate(lanes):
        for piece, place, height in _bars(pieces):
            ends, colour = (piece.start_s * 1e6, min(piece.end_s, span) * 1e6), look.colour(tensor_hue(piece.tensor))
            bar(axes, lane + place, *ends, colour, height=height, edgecolor=look.page, linewidth=0.3)
    named_rows(axes, range(len(lanes)), [text for text, _ in lanes], look)
    axes.set_xlim(0, span * 1e6)
    axes.set_ylim(len(lanes) - 0.45, -0.55)
    axes.set_xlabel("µs from the start of the kernel", fontsize=look.size)
    work = dict.fromkeys(one.tensor for one in _shown(kernel, span) if one.unit in ("tensor", "softmax"))
    about = f"{one.schedule.implementation}, {one.schedule.tile_text}, {_busy(kernel, span)}"
    _head(axes, title, about, look)
    key(axes, [(WORK.get(tensor, tensor), look.colour(tensor_hue(tensor))) for tensor in work], look)


def _bars(pieces: Sequence[Slice]) -> Iterator[tuple[Slice, float, float]]:
    """A bar for each product, softmax and tile, with its middle in the lane and its height.

    Tiles that are in flight together lie below one another.
    """
    shelves: list[float] = []
    placed: list[tuple[Slice, int]] = []
    for piece in sorted(pieces, key=lambda one: one.start_s):
        if piece.unit in HALVES:
            yield piece, HALVES[piece.unit], 0.4
            continue
        free = (place for place, end_s in enumerate(shelves) if end_s <= piece.start_s)
        place = min(next(free, len(shelves)), MOST_TOGETHER - 1)
        shelves[place : place + 1] = [piece.end_s]
        placed.append((piece, place))
    height = 0.7 / max(1, len(shelves))
    yield from ((piece, height * (place + 0.5) - 0.35, height) for piece, place in placed)


def _busy(kernel: KernelTrace, span: float) -> str:
    """How busy the SM is and what of it is hidden, in words."""
    tensor, softmax, both = overlap(kernel, span)
    blocks = kernel.blocks_per_sm
    found = [f"{blocks} block{'s' * (blocks > 1)} an SM"]
    if blocks * kernel.warpgroups > MOST_WARPGROUPS:
        found[0] += f" ({MOST_WARPGROUPS} of {blocks * kernel.warpgroups} lanes drawn)"
    found += [f"in this part tensor cores busy {100 * tensor:.0f} %"] if tensor else []
    found += [f"softmax {100 * softmax:.0f} %"] if softmax and tensor else []
    if tensor and softmax:
        less, more = ("softmax", "products") if softmax <= tensor else ("products", "softmax")
        found.append(f"{100 * both / min(tensor, softmax):.0f} % of the {less} hidden under {more}")
    return ", ".join(found)


def _kernels(axes: Axes, look: Style, *, name: str, one: Trace, whole: float) -> None:
    """How long each kernel of the call takes, in launch order, the longest in colour."""
    main = max(kernel.time_s for kernel in one.kernels)
    inches = size_of(axes)[0]
    for kernel in one.kernels:
        colour = look.text if kernel.time_s == main else look.middle
        ends = kernel.start_s * 1e6, (kernel.start_s + kernel.time_s) * 1e6
        bar(axes, 0, *ends, colour, edgecolor=look.page, height=1)
        label = f"{kernel.name}, {time_text(kernel.time_s)}"
        if 1.1 * longest([label], look) < inches * kernel.time_s / whole:
            middle = (kernel.start_s + kernel.time_s / 2) * 1e6
            axes.text(middle, 0, label, ha="center", va="center", fontsize=look.size, color=ink_on(colour))
    axes.set_xlim(0, whole * 1e6)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([0], ["kernels"], fontsize=look.size)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _head(axes, f"{name}, {time_text(one.replay.time_s)} in {len(one.kernels)} kernels", "", look)


def _head(axes: Axes, title: str, about: str, look: Style) -> None:
    """Write the title of a panel, from the left edge of the picture; below more than a title a key has room."""
    wide = float(axes.get_figure(root=True).get_size_inches()[0])  # type: ignore[union-attr]
    faint = wrapped(about, wide - 0.2, look.size, look) if about else []
    high = 4 + 1.36 * look.size * bool(about)
    for place, line in enumerate(reversed([title, *faint])):
        bold = place == len(faint)
        how: Any = {"fontweight": "bold" if bold else "normal", "color": look.text if bold else look.faint}
        aside, where = (0, high / look.size + 1.36 * place), ("figure fraction", "axes fraction")
        note(axes, line, (0.1 / wide, 1), look, aside, where, va="baseline", **how)


TRACES = (".json", ".json.gz")
BINS = 200
"""Share of a kernel's played time over which the rate of HBM is taken."""
US = 1e6
TITLES = {"copy": "copy", "tensor": "tensor", "softmax": "softmax", "store": "store", "block": "resident block"}

Event = dict[str, Any]


def check_trace(out: Path) -> None:
    """Refuse a name that is not a trace's."""
    if not out.name.endswith(TRACES):
        raise InputError(f"{out}: end the name with {' or '.join(TRACES)}")


def write_trace(found: Trace, out: Path, about: Mapping[str, str] | None = None) -> Path:
    """Write a trace as JSON, compressed where the name ends in ``.gz``.

    Parameters
    ----------
    found : Trace
    out : Path
    about : mapping of str to str, optional
        The question in words, kept beside the events.

    Raises
    ------
    InputError
        For another suffix, or a path that cannot be written.
    """
    check_trace(out)
    text = json.dumps(document(found, about or {}), allow_nan=False, separators=(",", ":")).encode()
    data = gzip.compress(text, mtime=0) if out.suffix == ".gz" else text
    write_whole(out, data)
    return out


def document(found: Trace, about: Mapping[str, str]) -> dict[str, Any]:
    """The whole file: events, unit of display, and what the trace is of."""
    return {
        "traceEvents": list(events(found)),
        "displayTimeUnit": "ns",
        "otherData": {
            **about,
            "schedule": f"{found.schedule.implementation}, tile {found.schedule.tile_text}",
            "time": f"{found.replay.time_s * US:.3f} us",
            **{f"shown of {kernel.name}": kernel.shown for kernel in found.kernels if kernel.shown},
        },
    }


def events(found: Trace) -> Iterator[Event]:
    """All events, names of tracks first."""
    yield _name("process_name", 0, 0, "call")
    yield _name("thread_name", 0, 0, "kernels")
    for kernel in found.kernels:
        about = {"blocks a SM": kernel.blocks_per_sm, "shown": kernel.shown or "everything"}
        yield _complete(0, 0, kernel.name, kernel.start_s, kernel.time_s, about)
        yield from _hbm_rate(kernel)
    lanes: dict[tuple[int, str], int] = {}
    slices: list[Event] = []
    for kernel in found.kernels:
        for (sm, unit), mine in _by_track(kernel.slices).items():
            for lane, piece in _tracks(mine):
                lanes[sm, unit] = max(lanes.get((sm, unit), 0), lane + 1)
                slices.append(_slice(kernel, piece, _thread(unit, lane)))
        slices += _shared_memory(kernel)
    for sm in sorted({sm for sm, _ in lanes}):
        yield _name("process_name", sm + 1, 0, f"SM {sm}")
        for unit in UNITS:
            for lane in range(lanes.get((sm, unit), 0)):
                title = TITLES[unit] if lane == 0 else f"{TITLES[unit]} {lane + 1}"
                yield _name("thread_name", sm + 1, _thread(unit, lane), title)
    yield from slices


def _thread(unit: str, lane: int) -> int:
    return 1000 * UNITS.index(unit) + lane


def _by_track(slices: Iterable[Slice]) -> dict[tuple[int, str], list[Slice]]:
    found: dict[tuple[int, str], list[Slice]] = {}
    for piece in slices:
        found.setdefault((piece.sm, piece.unit), []).append(piece)
    return found


def _tracks(slices: Sequence[Slice]) -> Iterator[tuple[int, Slice]]:
    """Slices with the number of a track on which none overlaps another: the lowest that is free."""
    busy: list[tuple[float, int]] = []  # end, lane
    free: list[int] = []
    used = 0
    for piece in sorted(slices, key=lambda one: (one.start_s, one.end_s)):
        while busy and busy[0][0] <= piece.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        heapq.heappush(busy, (piece.end_s, lane))
        yield lane, piece


def _slice(kernel: KernelTrace, piece: Slice, thread: int) -> Event:
    about = {"bytes": piece.bytes, "from or to HBM": round(piece.hbm_bytes)} if piece.bytes else {}
    name = piece.tensor or "block"
    return _complete(piece.sm + 1, thread, name, kernel.start_s + piece.start_s, piece.end_s - piece.start_s, about)


def _complete(
    process: int, thread: int, name: str, start_s: float, time_s: float, about: Mapping[str, object]
) -> Event:
    """Times in microseconds, to the picosecond."""
    event = {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": round(start_s * US, 6)}
    return event | {"dur": round(time_s * US, 6), **({"args": dict(about)} if about else {})}


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}


def _counter(process: int, name: str, time_s: float, value: float) -> Event:
    return {"ph": "C", "pid": process, "tid": 0, "name": name, "ts": round(time_s * US, 6), "args": {name: value}}


def _hbm_rate(kernel: KernelTrace) -> Iterator[Event]:
    """GB/s of the chip, as the SMs shown would have it: every transfer spread evenly over its time."""
    moved = [piece for piece in kernel.slices if piece.hbm_bytes]
    end = max((piece.end_s for piece in moved), default=0.0)
    if not end:
        return
    width = end / BINS
    held = [0.0] * BINS
    for piece in moved:
        first, last = int(piece.start_s / width), min(BINS - 1, int(piece.end_s / width))
        first = min(first, last)
        for place in range(first, last + 1):
            held[place] += piece.hbm_bytes / (last - first + 1)
    for place, size in enumerate(held):
        yield _counter(0, "HBM GB/s", kernel.start_s + place * width, round(size * kernel.stands_for / width / 1e9, 3))
    yield _counter(0, "HBM GB/s", kernel.start_s + end, 0.0)


def _shared_memory(kernel: KernelTrace) -> Iterator[Event]:
    """Bytes held by resident blocks, by SM."""
    changes: dict[int, list[tuple[float, int]]] = {}
    for piece in kernel.slices:
        if piece.unit == "block":
            changes.setdefault(piece.sm, []).extend([(piece.start_s, 1), (piece.end_s, -1)])
    for sm, found in changes.items():
        resident = 0
        for time_s, change in sorted(found, key=lambda one: (one[0], one[1])):
            resident += change
            value = resident * kernel.shared_memory_bytes
            yield _counter(sm + 1, "shared memory, bytes", kernel.start_s + time_s, value)
