"""Which points of the grid operation x shape x format x cache x launch are measured, and in which order.

A run is cut off when its time is used up, so that what it has measured by then should tell as much as it can. The
operations take turns. Of each, the next point is the one with the most that was not there before: first a band of
lengths with few or many heads, then a width, a kind of mask, a condition (cold or warm L2, stream or graph), a group of
heads, a format. Once all of these have been seen, it is the point that lies farthest from its nearest neighbour among
those taken, so that neighbours, which tell the same twice, come last. The order depends on nothing that is measured: a
run that was killed goes on in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.kernels.catalog import Operation
from attnsim.kernels.gpu.correctness import bands_of
from attnsim.kernels.gpu.timing import Mode
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

BANDS = (1024, 4096)
"""Longest of the first and of the second band of lengths, as the fits hold them out."""

LENGTHS: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
CACHES: tuple[int, ...] = (1024, 4096, 16384, 65536, 131072)
"""Keys that a decoding step finds."""

HEADS = {"few": (1, 16), "many": (4, 32)}
"""Batch and query heads; up to 64 heads in all are few."""
DECODE_HEADS = {"few": (1, 32), "many": (16, 32)}
GROUPS = (1, 4)

CONDITIONS: dict[Mode, tuple[str, str]] = {
    "cold": ("cold", "stream"),
    "warm": ("warm", "stream"),
    "graph": ("warm", "graph"),
    "cold graph": ("cold", "graph"),
}
"""L2 and launch of each mode of the stopwatch, as case tables call them."""

LONGEST_S = 0.03
"""Of one call, were it at the GPU's peak: at a fifth of it, a handful of samples take a second."""

MEMORY_SHARE = 0.4
"""Of the card, for inputs, outputs and scores of a call together."""

APART = by_hand(
    {"heads": 2.0, "width": 2.0, "mask": 2.0, "mode": 1.5, "group": 0.5, "format": 0.5},
    "how far apart two questions to be timed are, a factor of 2 in length being 1",
)


@dataclass(frozen=True, slots=True)
class GridPoint:
    """Something to time.

    Parameters
    ----------
    operation : Operation
    workload : Workload
    mode : {"cold", "warm", "graph", "cold graph"}
    """

    operation: Operation
    workload: Workload
    mode: Mode

    @property
    def levels(self) -> tuple[str, ...]:
        """Band of lengths with few or many heads, width, mask, condition, group and format; weightiest first."""
        w = self.workload
        length = max(w.seq_q, w.seq_kv)
        band = sum(length > longest for longest in BANDS)
        many = w.batch * w.heads_q > 64
        return (f"{band} {many}", str(w.head_dim), kind_of(w.mask), self.mode, str(w.group), w.dtype)

    def place(self) -> list[float]:
        """Coordinates in which the sum of differences says how much two points have in common."""
        w = self.workload
        kinds, modes = ("full", "causal", "window"), tuple(CONDITIONS)
        return [
            float(np.log2(max(w.seq_q, w.seq_kv))),
            APART["heads"] * (w.batch * w.heads_q > 64),
            APART["width"] * float(np.log2(w.head_dim)),
            *(APART["mask"] / 2 * (kind_of(w.mask) == kind) for kind in kinds),
            *(APART["mode"] / 2 * (self.mode == mode) for mode in modes),
            APART["group"] * (w.group > 1),
            APART["format"] * (w.dtype == "fp16"),
        ]


def kind_of(mask: Mask) -> str:
    """Full, causal or window."""
    return "window" if mask.is_windowed else "causal" if mask.is_causal else "full"


def useful_flops(w: Workload) -> float:
    """2 B H pairs (d + dv) forward, 2.5 times that backward."""
    return 4.0 * w.heads_q * w.visible_pairs * w.head_dim * (2.5 if w.passes == "bwd" else 1.0)


def candidates(one: Operation, gpu: Gpu) -> list[GridPoint]:
    """Every point of an operation's grid that a GPU can answer in time and memory, the most usual first."""
    decode = one.passes == "decode"
    heads, lengths = (DECODE_HEADS, CACHES) if decode else (HEADS, LENGTHS)
    if one.name == "linear-decode":
        lengths = lengths[1:2]  # its sums are as large after any number of tokens
    shapes = itertools.product(lengths, heads.values(), one.head_dims, GROUPS, ("bf16", "fp16"))
    found = []
    for length, (batch, heads_q), width, group, dtype in shapes:
        # Case tables hold windows, not patterns: the operations that play those are timed on bands too.
        for mask in bands_of(one, min(1024, length // 4)):
            w = Workload(
                batch=batch,
                heads_q=heads_q,
                heads_kv=heads_q // group,
                seq_q=1 if decode else length,
                seq_kv=length,
                head_dim=width,
                dtype=dtype,
                passes=one.passes,
                mask=mask,
            )
            if _answerable(one, w, gpu):
                found += [GridPoint(one, w, mode) for mode in CONDITIONS]
    usual = _usual(one)
    return sorted(found, key=lambda point: sum(abs(a - b) for a, b in zip(point.place(), usual, strict=True)))


def ordered(operations: Iterable[Operation], gpu: Gpu) -> Iterator[GridPoint]:
    """The points of all operations in turn, each operation's most informative first.

    Parameters
    ----------
    operations : iterable of Operation
        The most valuable first.
    gpu : Gpu
    """
    queues = [informative(candidates(one, gpu)) for one in operations]
    for turn in itertools.zip_longest(*queues):
        yield from (point for point in turn if point is not None)


def informative(points: Sequence[GridPoint]) -> Iterator[GridPoint]:
    """The points in the order in which each adds the most to those before; of equals the first given."""
    if not points:
        return
    places = np.array([point.place() for point in points])
    levels = np.array([point.levels for point in points])
    weights = 2 ** np.arange(levels.shape[1])[::-1]
    left = np.ones(len(points), np.bool_)
    unseen = np.ones(levels.shape, np.bool_)
    nearest = np.full(len(points), np.inf)
    while left.any():
        number = int(np.lexsort((np.arange(len(points)), -nearest, -(unseen @ weights), ~left))[0])
        yield points[number]
        left[number] = False
        unseen &= levels != levels[number]
        nearest = np.minimum(nearest, np.abs(places - places[number]).sum(axis=1))


def _answerable(one: Operation, w: Workload, gpu: Gpu) -> bool:
    linear, unfused = one.name.startswith("linear"), find_implementation(one.implementation).unfused
    pairs = w.batch * w.heads_q * w.seq_q * w.seq_kv
    played = 4.0 * pairs * w.head_dim if unfused else useful_flops(w)  # unfused kernels compute what the mask hides
    seconds = 0.0 if linear else played / gpu.peak_tensor_flops_per_s(w.dtype)
    arrays = 2 * w.batch * w.head_dim * (w.heads_q * w.seq_q + w.heads_kv * w.seq_kv) * w.element_bytes
    # Backward: O, dO and the gradients, dQ in fp32 too. Unfused: scores and probabilities, each in 16 bits, masked.
    needed = arrays * (4 if w.passes == "bwd" else 1) + (3 * pairs * w.element_bytes if unfused else 0)
    return seconds <= LONGEST_S and needed <= MEMORY_SHARE * gpu.hbm.capacity_bytes


def _usual(one: Operation) -> list[float]:
    decode = one.passes == "decode"
    batch, heads_q = (DECODE_HEADS if decode else HEADS)["many"]
    queries, keys = (1, 16384) if decode else (4096, 4096)
    mask = Mask.causal() if one.causal and not decode else Mask()
    w = Workload(batch, heads_q, queries, 128, heads_q, keys, passes=one.passes, mask=mask)
    return GridPoint(one, w, "cold").place()
