"""The record of an implementation: whose code it is, what it runs, and how its schedule is built."""

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
    """A tile that the user asks for, and what else of its kernel; None leaves that as the implementation has it.

    Parameters
    ----------
    rows, keys : int
        Query rows x keys.
    stages : int, optional
        Buffers of K and V, for implementations that can have another number.
    pack_gqa, persistent, longest_first : bool, optional
        Query heads of a group in the rows of one tile; blocks that stay and fetch tiles; long row tiles first.
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
"""Most random features or projected keys that can be asked for."""


def sizing(number: str, name: str) -> int:
    """The N of ``NAME@N``."""
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and 1 <= int(number) <= LARGEST_NUMBER):
        raise InputError(f"{name!r} has {number!r} after the @; allowed: a whole number from 1 to {LARGEST_NUMBER}")
    return int(number)


@dataclass(frozen=True, slots=True)
class Implementation:
    """One code base's attention.

    Parameters
    ----------
    name : str
        ``library.kernel``; what may follow an @ is told by :func:`attnsim.models.implementations.choose.match`.
    runs : str
        The mechanism that its kernels are (:data:`attnsim.models.mechanisms.MECHANISMS`); others may name it too.
    build : callable
        (workload, gpu, tile or None) to Schedule.
    compute_capability : (int, int)
        Lowest and highest that it runs on.
    source : str
        Where its kernels were read.
    calls : tuple of str
        The library's calls that launch its kernels, as a user writes them; empty for what is nobody's code.
    versions : tuple of str
        Versions of the library that it stands for, oldest first; empty where there are none to tell apart.
    pages : tuple of int
        Least and most keys in a page of the cache, or each of three sizes and more; () where it has no page table.
    page_multiple : int
        What divides the keys of a page, between these two.
    aliases : tuple of str
        Other names, `*` for any ending: earlier ones, and those of measurement tables.
    like : str
        Implementation whose calibration stands in when there is none of its own.
    fp8_backward : bool
        Whether its backward takes fp8, of which no row was measured in either direction.
    closed : bool
        Tiles unknown (closed source): the nearest public schedule is played.
    passes : tuple of str
        Directions it has kernels for.
    form : str
        Of Performer "fused" where a feature map's element-wise operations are one kernel; of latent attention
        "absorbed", "decompressed" or, without the products with W_UK and W_UV, "attention".
    operations : str
        What it runs between and around the GEMMs of unfused attention, or around a fused kernel, in the text form of
        :class:`attnsim.models.question.operations.Operations`.
    unfused : bool
        Whether scores and probabilities go through HBM.
    tunable : bool
        Whether it has a tile that can be chosen.
    windows : bool
        Whether it has kernels for a sliding window.
    splits : bool
        Whether it shares the keys of few queries out over thread blocks.
    needs : str
        Feature of the GPU that its kernels need, where not every GPU of its compute capabilities is sure to have it.
    unplayed : tuple of str
        Features of a GPU on which its code takes instructions that no schedule here plays.
    patterns : bool
        Whether it plays masks with patterns beside their band.
    lengths : bool
        Whether it plays batches whose sequences differ in length.
    selects : bool
        Whether it plays what content selects; the others are refused a question with a selection.
    prefixes, trees : bool
        Whether it attends a prefix that all sequences share once, and draft tokens that branch.
    sees_window : bool
        Whether a window that covers everything changes what it launches.
    peak_bytes : callable, optional
        Least memory of a call without building its schedule, where what it runs does not tell.
    number : int
        Features or projected keys of a twin ``NAME@N``; 0: as many as the mechanism says.
    sized : callable, optional
        Its twin ``NAME@N``, where the algorithm has a number to choose (random features, projected keys).
    masks : bool
        Whether a window is a tensor to it, which it reads, and hides nothing from its loop.
    pads : int
        What it pads a head_dim to a multiple of, by copies.
    launches : str
        Implementation whose kernels it launches, compiled by itself; "" where they are its own.
    changed : bool
        Whether it has changed those kernels, so that their schedule and numbers stand in for its own.
    picks : callable, optional
        Of a call that chooses among implementations: (workload, gpu, version or "") to the name of the one it runs.
    version : str
        The version that is asked about, where one was named.
    counts : str
        Kernel of ``schedule/instructions.csv`` by whose machine code its schedules are charged where its own has
        not been counted; "" where none is alike. Its fitted numbers are those beside such instructions, and whoever
        borrows them borrows both.
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
        """Whether its page table may have pages of so many keys."""
        if len(self.pages) != 2:
            return keys in self.pages
        return self.pages[0] <= keys <= self.pages[1] and keys % self.page_multiple == 0

    @property
    def pages_told(self) -> str:
        """The pages that its page table may have, in words."""
        if len(self.pages) != 2:
            return ", ".join(map(str, self.pages))
        low, high = self.pages
        span = f"{low} or more" if high == LARGEST["seq_kv"] else f"{low} to {high:,}"
        return f"{span}, multiples of {self.page_multiple}," if self.page_multiple > 1 else span

    @property
    def library(self) -> str:
        """Whose it is: what stands before the first point of its name."""
        return self.name.partition(".")[0]

    @property
    def calibrated_as(self) -> tuple[str, ...]:
        """Names whose calibrations are its own: its name without an N, and whose kernels it launches as they are."""
        own = self.name.partition("@")[0]
        return (own, self.launches) if self.launches and not self.changed else (own,)


@functools.cache
def facts() -> dict[str, dict[str, Any]]:
    """What is known of each implementation, by name: of the fields of its record those that are not their default.

    They stand in a file of the name of the library's: ``flash_attention.toml`` beside ``flash_attention.py``; "any" is
    as large as a question can have it. TOML, which Python reads by itself: a GPU machine needs NumPy alone.
    """
    files = sorted(Path(__file__).parent.rglob("*.toml"))
    content = {name: given for path in files for name, given in tomllib.loads(path.read_text("utf-8")).items()}
    largest = {"largest_head_dim": LARGEST["head_dim"], "pages": LARGEST["seq_kv"]}

    def field(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(field(key, item) for item in value)
        return largest[key] if value == "any" else value

    own = {name: {key: field(key, value) for key, value in given.items()} for name, given in content.items()}
    return {name: _inherited(own.get(given.get("launches", ""), {})) | given for name, given in own.items()}


_OWN = {"source", "calls", "versions", "aliases", "like", "pages", "page_multiple"}
"""What an implementation that launches another's kernels does not take over from it."""


def _inherited(launched: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in launched.items() if key not in _OWN}


def record(
    name: str, build: Builder, *, peak_bytes: Callable[[Workload], int] | None = None, number: int = 0,
    sized: Callable[[int], Implementation] | None = None, picks: Picks | None = None,
) -> Implementation:  # fmt: skip
    """The record of an implementation: its facts from the TOML file of its library, and what Python does for it.

    Parameters
    ----------
    name : str
        ``library.kernel`` or, of a twin, ``library.kernel@N``.
    build, peak_bytes, number, sized, picks
        As in :class:`Implementation`.
    """
    known = facts()[name.partition("@")[0]]
    return Implementation(name, build=build, peak_bytes=peak_bytes, number=number, sized=sized, picks=picks, **known)
