"""What names of kernels stand for, ``names.csv``, by owner, GPU, version and pass; and what a version is."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.tables import read_csv

_NUMBER = re.compile(r"\d+(\.\d+)*")
_IN_NAME = re.compile(
    r"(?P<before>.*?[a-z)])(?:\s*==\s*|[\s_:@-]+v?|_v)(?P<version>\d+\.\d[\w.+]*)(?P<after>.*)", re.IGNORECASE
)
_OF_WHAT = re.compile(r"([A-Za-z][\w-]*?)(?:_version)?(?:\s+|\s*==?\s*|[:@/-]\s*)v?(\d[\w.+]*)")


def version_number(text: str) -> str:
    """The first number of a version, "0.24.0" of "vllm 0.24.0"; "" where it has none."""
    found = _NUMBER.search(text)
    return found[0] if found else ""


def version_parts(text: str) -> tuple[int, ...]:
    """A version as numbers; () where it has none."""
    return tuple(int(part) for part in version_number(text).split(".") if part)


def version_distance(one: str, other: str) -> tuple[int, ...]:
    """How far apart two versions are: first by their first numbers, then by the next."""
    pairs = itertools.zip_longest(version_parts(one)[:3], version_parts(other)[:3], fillvalue=0)
    return tuple(abs(a - b) for a, b in pairs)


def version_in(name: str) -> tuple[str, str]:
    """A name without the version in it, and that: "flash-attn==2.7.4" and "PyTorch 2.6 SDPA"; "" where it has none."""
    found = _IN_NAME.fullmatch(name.strip())
    return (f"{found['before']} {found['after']}".strip(), found["version"]) if found else (name, "")


def versions_of(text: str) -> dict[str, str]:
    """Versions by what they are of, as :func:`plain` writes it: {"vllm": "0.24.0"} of "vllm 0.24.0"."""
    return {plain(what): number for what, number in _OF_WHAT.findall(text)}


def version_of(owner: str, text: str) -> str:
    """What a text says of an owner's version: its own, or one that is not said to be of another; "" where none is."""
    told = versions_of(text)
    mine = [number for what, number in told.items() if OWNERS.get(what, what) == OWNERS.get(plain(owner), plain(owner))]
    return mine[0] if mine else version_number(_OF_WHAT.sub("", text)) if told else text


def in_bounds(version: str, bounds: Iterable[str]) -> bool:
    """Whether a version is known and within all bounds, "<2.2" or ">=2.5"; without bounds, any."""
    given = version_parts(version)
    return all(
        bool(given) and (given < version_parts(bound) if bound.startswith("<") else given >= version_parts(bound))
        for bound in bounds
    )


def span(text: str, most: int = 10**3) -> tuple[int, int]:
    """The least and the most of "80-89", "90", "1-" or ""."""
    low, dash, high = text.partition("-")
    return int(low or 0), int(high or (low if low and not dash else most))


def plain(name: str) -> str:
    """A name as it is compared: small letters and digits, with points between digits, and * and ? for anything."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.*?]", "", name.casefold())


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name stands for on some GPUs, in some versions and passes: a line of ``names.csv``.

    Parameters
    ----------
    spellings : tuple of str
        With `*` and `?` for anything; those with capitals are meant in this spelling first of all.
    whose : str
        Whose name it is.
    on : (int, int)
        Lowest and highest compute capability times ten.
    bounds : tuple of str
        "<2.2", ">=2.5"; none for every version.
    passes : tuple of str
        None for every pass; "paged" where the cache has pages.
    implementation : str
        Name of the record; "" where none is modelled.
    nearest : str
        The nearest that is, where none is.
    note : str
        Why what is played is something else, or why nothing is; "" where it is what ran.
    """

    spellings: tuple[str, ...]
    whose: str
    on: tuple[int, int]
    bounds: tuple[str, ...]
    passes: tuple[str, ...]
    implementation: str
    nearest: str
    note: str

    def holds(self, version: str, gpu: Gpu | None, w: Workload | None) -> bool:
        """Whether the line is for this version, GPU and workload; what is not known is none against it."""
        low, high = self.on
        if gpu is not None and not low <= gpu.compute_capability_number <= high:
            return False
        if (
            w is not None
            and self.passes
            and (w.passes not in self.passes or ("paged" in self.passes and not w.page_size))
        ):
            return False
        return in_bounds(version, self.bounds)


def _read(file: str) -> Iterator[Meaning]:
    for row in read_csv(Path(__file__).with_name(file)):
        words = (tuple(row["name"].split("|")), row["whose"], span(row["on"]), tuple(row["versions"].split()))
        yield Meaning(*words, tuple(row["passes"].split()), row["implementation"], row["nearest"], row["note"])


MEANINGS: tuple[Meaning, ...] = tuple(_read("names.csv"))

_CALLED = {
    "torch": "pytorch", "hf": "transformers", "huggingface": "transformers", "trtllm": "tensorrtllm", "nvidia": "cudnn",
    "te": "transformerengine", "openai": "triton", "flashattn": "flashattention",
} | dict.fromkeys(("dao", "tridao", "daoailab"), "flashattention")  # fmt: skip
"""Other words for owners."""
OWNERS = {plain(one.whose): plain(one.whose) for one in MEANINGS} | _CALLED
"""Owners by what they are called."""
NOBODY = "Nobody"
"""Whose names are that say too little to be anybody's."""
SERVING = ("vllm", "sglang", "tensorrtllm")
"""Owners whose version says that they call: PyTorch's is everybody's."""
_NUMBERED = re.compile(r"v?\d")
"""A name that is one only beside its owner's."""
_ADDED = re.compile(r"(backend|kernels?|attention|attn)+$")
"""What people add to a name."""


@functools.cache
def meanings_of(name: str, whose: str = "", *, bare: bool = False) -> tuple[Meaning, ...]:
    """The lines of a name in order: of `whose`, of the owner who has it first or, if not `bare`, is named in it."""
    text, called, told = name.strip(), plain(name), OWNERS.get(plain(whose), "")
    return (
        (_of_owner(text, told) if told else ())
        or _lines(lambda one: one != one.lower() and fnmatchcase(text, one))
        or _lines(lambda one: one == one.lower() and _fits(text, one) and not _NUMBERED.fullmatch(one))
        or _lines(lambda one: _fits(text, one) and not _NUMBERED.fullmatch(one))
        or next((found for rest, owner in _owned(called) if not bare and (found := _of_owner(rest, owner))), ())
    )


_plain = functools.cache(plain)


def _fits(text: str, spelling: str) -> bool:
    """Whether a text is this spelling, whatever stands before it where that begins with "*."."""
    if spelling.startswith("*."):
        return fnmatchcase(text.lower(), spelling.lower())
    return fnmatchcase(_plain(text), _plain(spelling))


def _of_owner(text: str, owner: str) -> tuple[Meaning, ...]:
    return _lines(lambda one: _fits(text, one), owner)


def _lines(is_it: Callable[[str], bool], whose: str = "") -> tuple[Meaning, ...]:
    """The lines of an owner, or of the first who has any, with a spelling that it is."""
    mine = (one for one in MEANINGS if whose in ("", _plain(one.whose)))
    found = [one for one in mine if any(map(is_it, one.spellings))]
    return tuple(one for one in found if one.whose == found[0].whose)


def _owned(called: str) -> Iterator[tuple[str, str]]:
    """What is left of a name without its owner and what people add to names; an owner by itself is its own name."""
    for word in sorted(OWNERS, key=len, reverse=True):
        for rest in (called.removeprefix(word), called.removesuffix(word)):
            if rest != called:
                yield rest or word, OWNERS[word]
                yield _ADDED.sub("", rest) or word, OWNERS[word]
