"""Meanings of kernel names by owner, GPU, version and pass (``names.csv``), and parsing of versions.

Speed of a build's kernels relative to the build that calibrations stand for: ``builds.csv``.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import Workload
from attnsim.tables import read_csv

_NUMBER = re.compile(r"\d+(\.\d+)*")
_IN_NAME = re.compile(
    r"(?P<before>.*?[a-z)])(?:\s*==\s*|[\s_:@-]+v?|_v)(?P<version>\d+\.\d[\w.+]*)(?P<after>.*)", re.IGNORECASE
)
_OF_WHAT = re.compile(r"([A-Za-z][\w-]*?)(?:_version)?(?:\s+|\s*==?\s*|[:@/-]\s*)v?(\d[\w.+]*)")


def version_number(text: str) -> str:
    """First number of a version, "0.24.0" of "vllm 0.24.0"; "" if there is none."""
    found = _NUMBER.search(text)
    return found[0] if found else ""


def version_parts(text: str) -> tuple[int, ...]:
    """A version as numbers; () if there is none."""
    return tuple(int(part) for part in version_number(text).split(".") if part)


def version_distance(one: str, other: str) -> tuple[int, ...]:
    """Distance of two versions: first by their first numbers, then by the next."""
    pairs = itertools.zip_longest(version_parts(one)[:3], version_parts(other)[:3], fillvalue=0)
    return tuple(abs(a - b) for a, b in pairs)


def version_in(name: str) -> tuple[str, str]:
    """A name without its version, and the version: "flash-attn==2.7.4" and "PyTorch 2.6 SDPA"; "" if there is none."""
    found = _IN_NAME.fullmatch(name.strip())
    return (f"{found['before']} {found['after']}".strip(), found["version"]) if found else (name, "")


def versions_of(text: str) -> dict[str, str]:
    """Versions by package, as :func:`plain` writes it: {"vllm": "0.24.0"} of "vllm 0.24.0"."""
    return {plain(what): number for what, number in _OF_WHAT.findall(text)}


def version_of(owner: str, text: str) -> str:
    """An owner's version in a text: its own, or one without a package; "" if there is none."""
    each = versions_of(text)
    mine = [number for what, number in each.items() if OWNERS.get(what, what) == OWNERS.get(plain(owner), plain(owner))]
    return mine[0] if mine else version_number(_OF_WHAT.sub("", text)) if each else text


def in_bounds(version: str, bounds: Iterable[str]) -> bool:
    """Return whether a version is known and within all bounds, "<2.2" or ">=2.5"; without bounds, any is."""
    given = version_parts(version)
    return all(
        bool(given) and (given < version_parts(bound) if bound.startswith("<") else given >= version_parts(bound))
        for bound in bounds
    )


def span(text: str, most: int = 10**3) -> tuple[int, int]:
    """Lower and upper bound of "80-89", "90", "1-" or ""."""
    low, dash, high = text.partition("-")
    return int(low or 0), int(high or (low if low and not dash else most))


def plain(name: str) -> str:
    """A name normalised for comparison: small letters and digits, points between digits, * and ? as wildcards."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.*?]", "", name.casefold())


@dataclass(frozen=True, slots=True)
class Meaning:
    """Meaning of a name on some GPUs, in some versions and passes: a line of ``names.csv``.

    Parameters
    ----------
    spellings : tuple of str
        Spellings, with wildcards `*` and `?`; those with capitals match this case first.
    whose : str
        Owner of the name.
    on : (int, int)
        Lowest and highest compute capability times ten.
    bounds : tuple of str
        "<2.2", ">=2.5"; empty for every version.
    passes : tuple of str
        Empty for every pass; "paged" if the cache has pages.
    implementation : str
        Name of the record; "" if it is not modelled.
    nearest : str
        The nearest modelled implementation, if it is not modelled.
    note : str
        Why something else is played, or nothing; "" if the record is what ran.
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
        """Return whether the line applies to this version, GPU and workload; unknown ones do not exclude it."""
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
    "torch": "pytorch",
    "hf": "transformers",
    "huggingface": "transformers",
    "trtllm": "tensorrtllm",
    "nvidia": "cudnn",
    "te": "transformerengine",
    "openai": "triton",
    "flashattn": "flashattention",
} | dict.fromkeys(("dao", "tridao", "daoailab"), "flashattention")
"""Other names of owners."""
OWNERS = {plain(one.whose): plain(one.whose) for one in MEANINGS} | _CALLED
"""Owners by their names."""
NOBODY = "Nobody"
"""Owner of names that are too general to have one."""
SERVING = ("vllm", "sglang", "tensorrtllm")
"""Owners whose version implies that they are the caller: PyTorch's version is stated by everyone."""
_NUMBERED = re.compile(r"v?\d")
"""A name that is meaningful only with its owner's."""
_ADDED = re.compile(r"(backend|kernels?|attention|attn)+$")
"""Words that are often appended to a name."""


@functools.cache
def meanings_of(name: str, whose: str = "", *, bare: bool = False) -> tuple[Meaning, ...]:
    """Lines of a name in order: of `whose`, of its first owner or, if not `bare`, of the owner named in it."""
    text, called, known = name.strip(), plain(name), OWNERS.get(plain(whose), "")
    return (
        (_of_owner(text, known) if known else ())
        or _lines(lambda one: one != one.lower() and fnmatchcase(text, one))
        or _lines(lambda one: one == one.lower() and _fits(text, one) and not _NUMBERED.fullmatch(one))
        or _lines(lambda one: _fits(text, one) and not _NUMBERED.fullmatch(one))
        or next((found for rest, owner in _owned(called) if not bare and (found := _of_owner(rest, owner))), ())
    )


_plain = functools.cache(plain)


def _fits(text: str, spelling: str) -> bool:
    """Return whether a text matches a spelling; a spelling that begins with "*." ignores the text before it."""
    if spelling.startswith("*."):
        return fnmatchcase(text.lower(), spelling.lower())
    return fnmatchcase(_plain(text), _plain(spelling))


def _of_owner(text: str, owner: str) -> tuple[Meaning, ...]:
    return _lines(lambda one: _fits(text, one), owner)


def _lines(is_it: Callable[[str], bool], whose: str = "") -> tuple[Meaning, ...]:
    """Lines of an owner, or of the first owner that has any, with a spelling that satisfies `is_it`."""
    mine = (one for one in MEANINGS if whose in ("", _plain(one.whose)))
    found = [one for one in mine if any(map(is_it, one.spellings))]
    return tuple(one for one in found if one.whose == found[0].whose)


def _owned(called: str) -> Iterator[tuple[str, str]]:
    """Remainders of a name without its owner and appended words, with the owner; an owner alone is its own name."""
    for word in sorted(OWNERS, key=len, reverse=True):
        for rest in (called.removeprefix(word), called.removesuffix(word)):
            if rest != called:
                yield rest or word, OWNERS[word]
                yield _ADDED.sub("", rest) or word, OWNERS[word]


BACKWARD_WORK = 2.5
"""GEMM work of a backward pass over that of its forward: five products per tile against two."""


@dataclass(frozen=True, slots=True)
class Build:
    """A line of ``builds.csv``.

    Parameters
    ----------
    implementation, version, architecture : str
        Builds that the line holds for; "" is any version or architecture.
    direction : str
        "fwd" or "bwd".
    speed : float
        Speed of SM work, over that of the build that calibrations stand for.
    """

    implementation: str
    version: str
    architecture: str
    direction: str
    speed: float


BUILDS: tuple[Build, ...] = tuple(
    Build(row["implementation"], row["version"], row["architecture"], row["passes"], float(row["speed"]))
    for row in read_csv(Path(__file__).with_name("builds.csv"))
)


def versions_differ(record: Implementation) -> bool:
    """Return whether versions of an implementation are known to differ in speed."""
    return any(one.implementation == record.name and one.version for one in BUILDS)


def build_speed(record: Implementation, w: Workload, gpu: Gpu) -> float:
    """Speed of SM work in the record's version, over the build that calibrations stand for."""
    work = {"fwd": 1.0, "bwd": BACKWARD_WORK}
    shares = {one: work[one] / sum(work[other] for other in w.directions) for one in w.directions}
    return 1.0 / sum(share / _speed(record, one, gpu) for one, share in shares.items())


def _speed(record: Implementation, direction: str, gpu: Gpu) -> float:
    version = min(record.versions, key=lambda known: version_distance(known, record.version)) if record.version else ""
    for one in BUILDS:
        same = (one.implementation, one.direction) == (record.name, direction)
        if same and one.architecture in ("", gpu.architecture) and one.version in ("", version):
            return one.speed
    return 1.0
