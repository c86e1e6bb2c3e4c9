"""Draw docs/architecture.svg from the imports: rooms are folders, an arrow leads to what a room imports.

`python benchmarks/architecture_picture.py` writes the picture and the table beside it in docs/architecture.md;
with `--check` it changes nothing and fails if one is out of date. A room stands above everything it imports. Only those
arrows are drawn that no longer way implies; an arrow against the reading order is red.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.refresh_readme import REPOSITORY, in_place

PICTURE = REPOSITORY / "docs" / "architecture.svg"
PAGE = REPOSITORY / "docs" / "architecture.md"

ROOMS = {
    "models/hardware": "where it runs",
    "models/mask": "which pairs count",
    "models/question": "what is asked",
    "models/references": "the same in float64",
    "models/schedule": "how a kernel is written down",
    "models/llm": "shapes of language models",
    "models/implementations": "whose code runs",
    "models/closed_forms": "useful work, columns for sweeps",
    "models/calibrations": "fitted numbers",
    "models/mechanisms": "what is computed, and why",
    "simulator": "how long a schedule takes",
    "ptx": "anybody's PTX, run and checked",
    "kernels": "our CUDA, run and counted",
    "api": "from a question to an answer",
    "validation": "measured, fitted, checked",
    "studies": "many questions",
    "plots": "pictures",
    "reports": "every result as text, tables, a page",
    "explore": "a page on this machine",
    "cli": "flags",
}
"""Every room and its question, in reading order: a room imports only rooms above its own line."""

WORDS = ("attnsim.models.calibrations.numbers",)
"""Modules that are no part of their room: what a fitted number means, which stands below the implementations."""

Arrows = dict[str, set[str]]
WIDE, HIGH, ACROSS, UP = 2.9, 0.78, 3.35, 1.5
COLOURS = {"models": "#dbe9f6", "": "#fdeed7"}


def arrows() -> Arrows:
    """What each room imports, other rooms only; the files beside the folders are everybody's words."""
    import grimp

    graph = grimp.build_graph("attnsim")
    found: Arrows = {room: set() for room in ROOMS}
    for module in sorted(graph.modules):
        here = _room(module)
        if here:
            there = {_room(name) for name in graph.find_modules_directly_imported_by(module)}
            found[here] |= {room for room in there if room and room != here}
    return found


def _room(module: str) -> str | None:
    if module in WORDS:
        return None
    parts = module.split(".")[1:]
    name = "/".join(parts[:2]) if parts[:1] == ["models"] else (parts or [""])[0]
    if name in ROOMS:
        return name
    folder = REPOSITORY / "attnsim" / name
    if name not in ("", "models") and folder.is_dir():
        raise LookupError(f"attnsim/{name} has no question: add it to ROOMS in {Path(__file__).name}")
    return None


def needed(found: Mapping[str, set[str]]) -> Arrows:
    """The arrows that no longer way implies, those against the reading order among them."""
    order = list(ROOMS)
    down = {room: {other for other in found[room] if order.index(other) < order.index(room)} for room in order}
    below: Arrows = {}
    for room in order:
        below[room] = down[room].union(*(below[other] for other in down[room]))
    kept = {room: {one for one in down[room] if not any(one in below[two] for two in down[room])} for room in order}
    return {room: kept[room] | (found[room] - down[room]) for room in order}


def floors(found: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms, each one floor above the highest that it imports, in reading order on their floor."""
    order, height = list(ROOMS), dict.fromkeys(ROOMS, 0)
    for room in order:
        height[room] = max(
            (height[other] + 1 for other in found[room] if order.index(other) < order.index(room)), default=0
        )
    return [[room for room in order if height[room] == at] for at in range(max(height.values()) + 1)]


def table(found: Mapping[str, set[str]]) -> str:
    """Every room with its question and what it imports."""
    lines = ["| folder of `attnsim` | question | imports |", "|---|---|---|"]
    for room, words in ROOMS.items():
        names = ", ".join(f"`{other.removeprefix('models/')}`" for other in ROOMS if other in found[room])
        lines.append(f"| `{room}` | {words} | {names or '-'} |")
    return "\n".join(lines) + "\n"


def picture(found: Mapping[str, set[str]], kind: str = "svg") -> bytes:
    """The picture as SVG or PNG, the same bytes each time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows, drawn = floors(found), needed(found)
    place = _places(rows, drawn)
    widest = max(abs(x) for x, _ in place.values()) + WIDE / 2 + 0.3
    with mpl.rc_context({"svg.hashsalt": "attnsim", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(2 * widest * 0.72, (len(rows) * UP + 0.1) * 0.72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-widest, widest), ylim=(-0.75, (len(rows) - 1) * UP + 0.75))
        axes.set_axis_off()
        for room in ROOMS:
            for other in sorted(drawn[room]):
                _arrow(axes, place, room, other)
        for room, words in ROOMS.items():
            _box(axes, place[room], room, words)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=90, metadata={"Date": None, "Creator": None} if kind == "svg" else None)
    return out.getvalue()


def _places(rows: list[list[str]], drawn: Mapping[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Centres: on each floor rooms stand near what they import, at their distance."""
    place: dict[str, tuple[float, float]] = {}
    for at, row in enumerate(rows):
        wish = {}
        for number, room in enumerate(row):
            below = [place[other][0] for other in drawn[room] if other in place]
            wish[room] = sum(below) / len(below) if below else (number - (len(row) - 1) / 2) * ACROSS
        ordered = sorted(row, key=lambda room: (round(wish[room], 6), row.index(room)))
        for number, room in enumerate(ordered):
            place[room] = ((number - (len(row) - 1) / 2) * ACROSS, at * UP)
    return place


def _arrow(axes: Any, place: Mapping[str, tuple[float, float]], room: str, other: str) -> None:
    against = list(ROOMS).index(other) > list(ROOMS).index(room)
    (x0, y0), (x1, y1) = place[room], place[other]
    near = abs(y0 - y1) <= UP * 1.01
    axes.annotate(
        "",
        (x1, y1 + (HIGH / 2 if y0 > y1 else -HIGH / 2)),
        (x0, y0 - (HIGH / 2 if y0 > y1 else -HIGH / 2)),
        arrowprops={
            "arrowstyle": "-|>",
            "color": "#c0392b" if against else "#444444" if near else "#b5b5b5",
            "linewidth": 1.1,
            "shrinkA": 0,
            "shrinkB": 0,
            "connectionstyle": "arc3,rad=0" if near else f"arc3,rad={0.12 if x0 <= x1 else -0.12}",
        },
        zorder=1 if near else 0,
    )


def _box(axes: Any, centre: tuple[float, float], room: str, words: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = centre
    group, _, name = room.rpartition("/")
    axes.add_patch(
        FancyBboxPatch(
            (x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=COLOURS[group], edgecolor="#333333", linewidth=0.9, zorder=2,
        )
    )  # fmt: skip
    axes.text(x, y + 0.15, name, ha="center", va="center", fontsize=11, fontweight="bold", color="#111111", zorder=3)
    axes.text(x, y - 0.18, words, ha="center", va="center", fontsize=8, color="#333333", zorder=3)


def wanted() -> dict[Path, str]:
    """The picture and its page as they should be."""
    found = arrows()
    page = in_place(PAGE.read_text(encoding="utf-8"), {"rooms": table(found)})
    return {PICTURE: picture(found).decode(), PAGE: page}


def stale() -> list[str]:
    """Files that differ from the imports."""
    return [
        path.name for path, text in wanted().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something is out of date")
    check = parser.parse_args().check
    names = stale()
    for path, text in wanted().items():
        if path.name in names:
            print(f"docs/{path.name} {'is out of date' if check else 'refreshed'}")
            if not check:
                path.write_text(text, encoding="utf-8")
    return int(check and bool(names))


if __name__ == "__main__":
    sys.exit(main())
