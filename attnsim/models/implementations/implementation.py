"""Record of an implementation: its code base, the mechanism that it runs, and the builder of its schedule."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import LARGEST, PASSES, Workload
from attnsim.models.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True, order=True)
class TileRequest:
    """Tile and kernel properties requested by the user; None keeps the implementation's own.

    Parameters
    ----------
    rows, keys : int
        Query rows x keys.
    stages : int, optional
        Buffers of K and V, for implementations that support other numbers.
    pack_gqa, persistent, longest_first : bool, optional
        Query heads of a group packed into the rows of one tile; persistent blocks that fetch tiles; long row tiles
        first.
    """

    rows: int
    keys: int
    stages: int | None = None
    pack_gqa: bool | None = None
    persistent: bool | None = None
    longest_first: bool | None = None

    def __str__(self) -> str:
        return f"{self.rows}x{self.keys}"


Builder = Callable[[Workload, Gpu, TileRequest | None], Schedule]
Picks = Callable[[Workload, Gpu, str], str]
"""(workload, gpu, version or "") to the name of an implementation."""


LARGEST_NUMBER = 1 << 14
"""Largest number of random features or projected keys that can be requested."""


def sizing(number: str, name: str) -> int:
    """N of ``NAME@N``."""
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and 1 <= int(number) <= LARGEST_NUMBER):
        raise InputError(f"{name!r} has {number!r} after the @; allowed: a whole number from 1 to {LARGEST_NUMBER}")
    return int(number)


@dataclass(frozen=True, slots=True)
class Implementation:
    """The attention of one code base.

    Parameters
    ----------
    name : str
        ``library.kernel``; see :func:`attnsim.models.implementations.choose.match` for the text after an @.
    runs : str
        The mechanism of its kernels (:data:`attnsim.models.mechanisms.MECHANISMS`); others may name it too.
    build : callable
        (workload, gpu, tile or None) to Schedule.
    compute_capability : (int, int)
        Lowest and highest that it runs on.
    source : str
        Source that its kernels were read from.
    calls : tuple of str
        The library's calls that launch its kernels, as a user writes them; empty if it is not real code.
    versions : tuple of str
        Versions of the library that it stands for, oldest first; empty if versions do not differ.
    pages : tuple of int
        Least and most keys in a page of the cache; or a list of three or more sizes; () without a page table.
    page_multiple : int
        Divisor of the keys of a page, between these two.
    aliases : tuple of str
        Other names, `*` for any ending: earlier ones, and those of measurement tables.
    like : str
        Implementation whose calibration it borrows if it has none of its own.
    fp8_backward : bool
        Whether its backward takes fp8; no such row was measured in either direction.
    closed : bool
        Tiles unknown (closed source): the nearest public schedule is played.
    passes : tuple of str
        Directions it has kernels for.
    form : str
        For Performer: "fused" if a feature map's element-wise operations are one kernel. For latent attention:
        "absorbed", "decompressed" or, without the products with W_UK and W_UV, "attention".
    operations : str
        Operations between and around the GEMMs of unfused attention, or around a fused kernel, in the text form of
        :class:`attnsim.models.question.operations.Operations`.
    unfused : bool
        Whether scores and probabilities go through HBM.
    tunable : bool
        Whether its tile can be chosen.
    windows : bool
        Whether it has kernels for a sliding window.
    splits : bool
        Whether it splits the keys of few queries over thread blocks.
    needs : str
        Feature of the GPU that its kernels need, if not every GPU of its compute capabilities has it.
    unplayed : tuple of str
        Features of a GPU on which its code uses instructions that no schedule here plays.
    patterns : bool
        Whether it plays masks with patterns in addition to their band.
    lengths : bool
        Whether it plays batches with sequences of different lengths.
    selects : bool
        Whether it plays selections by content; others refuse a question with a selection.
    prefixes, trees : bool
        Whether it reads a prefix shared by all sequences once, and plays branching draft tokens.
    sees_window : bool
        Whether a window that covers everything changes its launches.
    peak_bytes : callable, optional
        Least memory of a call without building its schedule, if its mechanism does not determine it.
    number : int
        Features or projected keys of a variant ``NAME@N``; 0: the mechanism's default.
    sized : callable, optional
        Returns its variant ``NAME@N``, if the algorithm has a number to choose (random features, projected keys).
    masks : bool
        Whether it reads a window as a mask tensor, which does not shorten its loop.
    pads : int
        Multiple that it pads a head_dim to, by copies.
    launches : str
        Implementation whose kernels it launches, compiled by itself; "" if they are its own.
    changed : bool
        Whether it has changed those kernels, so that it only borrows their schedule and numbers.
    picks : callable, optional
        For a call that chooses among implementations: (workload, gpu, version or "") to the name of the one it runs.
    version : str
        The version asked about, if one was named.
    counts : str
        Kernel of ``schedule/instructions.csv`` whose instruction counts apply if its own are not counted; "" if none is
        similar. Its fitted numbers belong to these counts; an implementation that borrows the numbers borrows both.
    """

    name: str
    runs: str
    build: Builder
    compute_capability: tuple[int, int]
    source: str
    calls: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    pages: tuple[int, ...] = ()
    page_multiple: int = 1
    aliases: tuple[str, ...] = ()
    like: str = ""
    dtypes: tuple[str, ...] = ("fp16", "bf16")
    fp8_backward: bool = False
    closed: bool = False
    passes: tuple[str, ...] = PASSES
    largest_head_dim: int = 256
    form: str = ""
    operations: str = ""
    unfused: bool = False
    tunable: bool = True
    windows: bool = True
    splits: bool = True
    needs: str = ""
    unplayed: tuple[str, ...] = ()
    patterns: bool = False
    lengths: bool = False
    selects: bool = False
    prefixes: bool = False
    trees: bool = False
    sees_window: bool = False
    peak_bytes: Callable[[Workload], int] | None = None
    number: int = 0
    sized: Callable[[int], Implementation] | None = None
    masks: bool = False
    pads: int = 1
    launches: str = ""
    changed: bool = False
    picks: Picks | None = None
    version: str = ""
    counts: str = ""

    def takes_pages_of(self, keys: int) -> bool:
        """Return whether its page table allows pages of `keys` keys."""
        if len(self.pages) != 2:
            return keys in self.pages
        return self.pages[0] <= keys <= self.pages[1] and keys % self.page_multiple == 0

    @property
    def pages_text(self) -> str:
        """Allowed page sizes, in words."""
        if len(self.pages) != 2:
            return ", ".join(map(str, self.pages))
        low, high = self.pages
        span = f"{low} or more" if high == LARGEST["seq_kv"] else f"{low} to {high:,}"
        return f"{span}, multiples of {self.page_multiple}," if self.page_multiple > 1 else span

    @property
    def library(self) -> str:
        """Library: the part of its name before the first point."""
        return self.name.partition(".")[0]

    @property
    def calibrated_as(self) -> tuple[str, ...]:
        """Names whose calibrations count as its own: its name without N, and the one whose kernels it launches."""
        own = self.name.partition("@")[0]
        return (own, self.launches) if self.launches and not self.changed else (own,)


@functools.cache
def facts() -> dict[str, dict[str, Any]]:
    """Facts about each implementation by name: the fields of its record that differ from their defaults.

    They are in a TOML file with the library's name: ``flash_attention.toml`` beside ``flash_attention.py``; "any" is
    the largest value that a question allows. Python reads TOML without packages: a GPU machine needs only NumPy.
    """
    files = sorted(path for path in Path(__file__).parent.rglob("*.toml") if path.stem != "tiles")
    content = {name: given for path in files for name, given in _read(path).items()}
    largest = {"largest_head_dim": LARGEST["head_dim"], "pages": LARGEST["seq_kv"]}

    own = {
        name: {key: _field(value, largest.get(key, 0)) for key, value in given.items()}
        for name, given in content.items()
    }
    return {name: _inherited(own.get(given.get("launches", ""), {})) | given for name, given in own.items()}


_OWN = {"source", "calls", "versions", "aliases", "like", "pages", "page_multiple"}
"""Fields that an implementation does not inherit from the one whose kernels it launches."""


@functools.cache
def _read(path: Path) -> dict[str, dict[str, Any]]:
    return tomllib.loads(path.read_text("utf-8"))


def preset(kernel: str) -> dict[str, Any]:
    """Fields of a kernel's tiles that do not depend on the question: a table of ``tiles.toml``."""
    return {key: _field(value) for key, value in _read(Path(__file__).with_name("tiles.toml"))[kernel].items()}


def _field(value: Any, largest: int = 0) -> Any:
    if isinstance(value, list):
        return tuple(_field(item, largest) for item in value)
    return largest if value == "any" else value


def _inherited(launched: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in launched.items() if key not in _OWN}


def record(name: str, build: Builder, **functions: Any) -> Implementation:
    """Make the record of an implementation from its facts in the library's TOML file and its functions in Python.

    Parameters
    ----------
    name : str
        ``library.kernel`` or, for a variant, ``library.kernel@N``.
    build, **functions
        As in :class:`Implementation`.
    """
    return Implementation(name, build=build, **facts()[name.partition("@")[0]], **functions)
