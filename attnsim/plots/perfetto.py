"""A replay as a trace that ui.perfetto.dev and chrome://tracing open.

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
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.simulator.trace import UNITS, KernelTrace, Slice, Trace
from attnsim.writing import write_whole

SUFFIXES = (".json", ".json.gz")
BINS = 200
"""Share of a kernel's played time over which the rate of HBM is taken."""
US = 1e6
TITLES = {"copy": "copy", "tensor": "tensor", "softmax": "softmax", "store": "store", "block": "resident block"}

Event = dict[str, Any]


def check_suffix(out: Path) -> None:
    """Refuse a name that is not a trace's."""
    if not out.name.endswith(SUFFIXES):
        raise InputError(f"{out}: end the name with {' or '.join(SUFFIXES)}")


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
    check_suffix(out)
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
            for lane, piece in _lanes(mine):
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


def _lanes(slices: Sequence[Slice]) -> Iterator[tuple[int, Slice]]:
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
