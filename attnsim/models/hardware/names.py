"""What people call a GPU: "h100", "A100-80GB", "rtx4090"; and what is no GPU of NVIDIA's."""

from __future__ import annotations

import functools
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.attached import spoken_words
from attnsim.tables import read_csv

OTHERS = (
    "mi", "radeon", "rx", "gfx", "instinct", "amd", "gaudi", "intel", "arc", "max", "tpu", "trainium", "inferentia",
    "ascend", "m",
)  # fmt: skip
"""How the names of other vendors' processors begin, up to the first digit."""
SUFFIXES = frozenset(("ti", "super", "d", "v2", "sff", "passive", "active", "cnx"))
"""Words that make another card: a name without one does not mean a card that has it."""


def called(name: str, known: Collection[str]) -> list[str]:
    """The ids that ``gpu_names.csv`` has for a name, the usual one first; none where it has none.

    Raises
    ------
    InputError
        Where the table says why there is none, naming the nearest of the `known`.
    """
    listed, refused = _listed()
    words = spoken_words(name)
    if found := listed.get(frozenset(words)):
        return list(found)
    text = " ".join(words)
    for pattern, why in refused.items():
        if fnmatchcase(text, pattern):
            raise InputError(f"no GPU {shown(name)}: {why}; {nearest(_key(name), known)}")
    return []


@functools.cache
def _listed() -> tuple[dict[frozenset[str], tuple[str, ...]], dict[str, str]]:
    """Ids by the words of a name, and reasons by pattern."""
    rows = read_csv(Path(__file__).with_name("gpu_names.csv"))
    ids = {frozenset(spoken_words(row["name"])): tuple(row["gpu"].split("; ")) for row in rows if row["gpu"]}
    return ids, {row["name"]: row["why"] for row in rows if not row["gpu"]}


def named(name: str, known: Collection[str]) -> list[str]:
    """The ids that a name may mean: the id itself, or all of one chip; none where it is none of the `known`."""
    key = _key(name)
    if key in known:
        return [key]
    others = SUFFIXES.difference(key.split("-"))
    found = [one for one in known if _squashed(one) == _squashed(key)]
    found = found or [one for one in known if _covers(one, key) and others.isdisjoint(one.split("-"))]
    return found if len({one.split("-")[0] for one in found}) == 1 else []


def unknown(name: str, known: Collection[str]) -> InputError:
    """What to say of a name that is none of the `known`: whose it is, or the nearest."""
    key = _key(name)
    if is_anothers(name):
        return InputError(
            f"unknown GPU {shown(name)}: attnsim models GPUs of NVIDIA only; `attnsim gpus` lists them, a GPU file may "
            "describe a hypothetical one"
        )
    return InputError(
        f"unknown GPU {shown(name)}; {nearest(key, known)}; `attnsim gpus` lists all, a path ending in .yaml is read "
        "as a file"
    )


def is_anothers(name: str) -> bool:
    """Whether a name begins as those of other vendors' processors do."""
    return _letters(_key(name).split("-")[0]) in OTHERS


def _key(name: str) -> str:
    return "-".join(spoken_words(name)).lower()


def usual(candidates: Collection[str]) -> list[str]:
    """Those on an SXM board, where there are any: what a chip's bare name usually means."""
    return [one for one in candidates if any(part.startswith("sxm") for part in one.split("-"))] or list(candidates)


def _covers(known: str, key: str) -> bool:
    """Whether every part of a name is a part of an id; letters alone may leave out its number ("sxm" of "sxm5")."""
    parts = known.split("-")
    return all(
        any(one == word or (word.isalpha() and _letters(one) == word) for one in parts) for word in key.split("-")
    )


def _letters(text: str) -> str:
    """The letters before the first digit."""
    return text[: next((at for at, sign in enumerate(text) if sign.isdigit()), len(text))]


def _squashed(text: str) -> str:
    return text.replace("-", "")
