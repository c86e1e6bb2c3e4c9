"""Text form of masks: ``causal, window 512, global 16, random 3x64 seed 1``.

Items are separated by commas. ``causal``, ``left N`` and ``right N`` narrow the band; the others are united within it.
Numbers of tokens may have a suffix, as elsewhere: ``window 4k``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from attnsim.errors import InputError
from attnsim.models.mask.block_patterns import Blocks, BlockWindow, Random
from attnsim.models.mask.documents import Documents, Prefix
from attnsim.models.mask.neighborhood import Neighborhood, sizes
from attnsim.models.mask.patterns import Dilated, Global, Part, Strided, Window

BAND = ("causal", "left N", "right N")


FORMS: dict[str, tuple[str, Callable[[re.Match[str]], Part]]] = {
    "window N": (r"window (\d+)", lambda m: Window(int(m[1]) - 1, int(m[1]) - 1)),
    "window N left M right": (
        r"window(?! *$)(?: (\d+) left)?(?: (\d+) right)?",
        lambda m: Window(_number(m[1]), _number(m[2])),
    ),
    "dilated N step S": (r"dilated (\d+) step (\d+)", lambda m: Dilated(int(m[1]), int(m[2]))),
    "strided S": (r"strided (\d+)", lambda m: Strided(int(m[1]))),
    "global N": (r"global (\d+)", lambda m: Global.first(int(m[1]))),
    "global at I J-K": (r"global at((?: \d+(?:-\d+)?)+)", lambda m: Global(_ranges(m[1]))),
    "block window RxB": (r"block window (\d+)x(\d+)", lambda m: BlockWindow(int(m[1]), int(m[2]))),
    "random RxB seed S": (
        r"random (\d+)x(\d+)(?: seed (\d+))?",
        lambda m: Random(int(m[1]), int(m[2]), int(m[3] or 0)),
    ),
    "random P % xB seed S": (
        r"random (\d+(?:\.\d+)?) ?% ?x ?(\d+)(?: seed (\d+))?",
        lambda m: Random(0, int(m[2]), int(m[3] or 0), float(m[1])),
    ),
    "document N N": (r"document((?: \d+)*)", lambda m: Documents(tuple(map(int, m[1].split())))),
    "prefix N": (r"prefix (\d+)", lambda m: Prefix(int(m[1]))),
    "neighborhood L window W stride S": (
        r"neighborhood (\d+(?:x\d+)*) window (\d+(?:x\d+)*)(?: stride (\d+(?:x\d+)*))?",
        lambda m: Neighborhood(sizes(m[1]), sizes(m[2]), sizes(m[3]) if m[3] else (1,) * len(sizes(m[2]))),
    ),
    "blocks B R:K": (r"blocks (\d+)((?: \d+:\d+)*)", lambda m: Blocks(int(m[1]), _pairs(m[2]))),
}
"""Parts by the form shown to a reader: regular expression of the text, and constructor."""


def parse(text: str) -> tuple[int | None, int | None, tuple[Part, ...]]:
    """Parse left reach, right reach and parts of a mask from text.

    Raises
    ------
    InputError
        Quoting the unknown item, and the known forms.
    """
    limits: dict[str, int] = {}
    parts: list[Part] = []
    words = re.sub(r"\bcausal (?=window)", "causal, ", " ".join(text.lower().split()))
    words = re.sub(r"(?<= )(\d+)([km])\b", lambda found: str(int(found[1]) << (10 if found[2] == "k" else 20)), words)
    items = [item.strip() for item in words.split(",")]
    if items == ["full"]:
        return None, None, ()
    for item in items:
        band = re.fullmatch(r"(causal)|(left|right) (\d+)", item)
        if band is None:
            parts.append(_part(text, item))
            continue
        side, reach = band[2] or "right", int(band[3] or 0)
        if side in limits:
            raise InputError(f"mask {text!r} limits the {side} side twice; keep one")
        limits[side] = reach
    return limits.get("left"), limits.get("right"), tuple(parts)


def _part(text: str, item: str) -> Part:
    for pattern, make in FORMS.values():
        found = re.fullmatch(pattern, item)
        if found:
            return make(found)
    raise InputError(f"mask {text!r}: {item!r} is not understood; write {', '.join((*BAND, *FORMS))}, or full alone")


def written(left: int | None, right: int | None, parts: tuple[Part, ...]) -> str:
    """Text form of a mask."""
    if not parts:
        return _band(left, right)
    limits = ["causal" if right == 0 else f"right {right}"] if right is not None else []
    limits += [f"left {left}"] if left is not None else []
    return ", ".join((*limits, *map(str, parts)))


def _band(left: int | None, right: int | None) -> str:
    if left is None:
        return "full" if right is None else "causal" if right == 0 else f"right {right}"
    return f"causal window {left + 1}" if right == 0 else str(Window(left, right))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    ends = (piece.partition("-")[::2] for piece in text.split())
    return tuple((int(start), int(stop or start) + 1) for start, stop in ends)


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (pair.split(":") for pair in text.split())
    return tuple((int(row), int(key)) for row, key in pairs)
