"""Names whose meaning depends on the GPU or the version, ``names.csv`` and ``spoken.csv``; and what a version is."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from attnsim.models.hardware.gpu import Gpu
from attnsim.tables import read_csv

_NUMBER = re.compile(r"\d+(\.\d+)*")


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


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name stands for on some GPUs in some versions: a line of ``names.csv``.

    Parameters
    ----------
    name : str
        With `*` for anything.
    on : (int, int)
        Lowest and highest compute capability times ten.
    bound : str
        "<2.2", ">=2.5", or "" for every version.
    implementation : str
        Name of the record; "" where none is modelled.
    nearest : str
        The nearest that is, where none is.
    taken : str
        Why what is played is something else; "" where it is what ran.
    """

    name: str
    on: tuple[int, int]
    bound: str
    implementation: str
    nearest: str
    taken: str

    def holds(self, version: str, gpu: Gpu | None) -> bool:
        """Whether the line is for this version and GPU; without a GPU it is for any."""
        low, high = self.on
        if gpu is not None and not low <= gpu.compute_capability_number <= high:
            return False
        if not self.bound:
            return True
        given, limit = version_parts(version), version_parts(self.bound)
        return bool(given) and (given < limit if self.bound.startswith("<") else given >= limit)


def _read(file: str) -> Iterator[Meaning]:
    for row in read_csv(Path(__file__).with_name(file)):
        low, _, high = row["on"].partition("-")
        on = (int(low), int(high or low)) if low else (0, 10**3)
        yield Meaning(row["name"], on, row["versions"], row["implementation"], row["nearest"], row["taken"])


MEANINGS: tuple[Meaning, ...] = tuple(_read("names.csv"))
SPOKEN: tuple[Meaning, ...] = tuple(_read("spoken.csv"))
"""What people say, which columns of tables may mean otherwise."""


@functools.cache
def meanings_of(name: str, spoken: bool = False) -> tuple[Meaning, ...]:
    """The lines of a name, in order; of one that is `spoken` those that say what people mean, if there are any."""
    said = tuple(one for one in SPOKEN if fnmatchcase(name, one.name)) if spoken else ()
    return said or tuple(one for one in MEANINGS if fnmatchcase(name, one.name))
