"""Grid of measurements (operation x shape x format x cache x launch), and the order in which points are measured.

A run stops when its time is used up, so the first points should be the most informative. The operations take turns. For
each, the next point is chosen so:

- First, the point with the most new properties, in this order of weight: a band of lengths with few or many heads, a
  width, a kind of mask, a condition (cold or warm L2, stream or graph), a group of heads, a format.
- When every property has been measured, the point that is farthest from its nearest measured neighbour.

The order does not depend on measured values, so a killed run can be resumed.
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
"""Upper ends of the first and the second band of lengths, as in the held-out folds of the fits."""

LENGTHS: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
CACHES: tuple[int, ...] = (1024, 4096, 16384, 65536, 131072)
"""Keys in the cache of a decode step."""

HEADS = {"few": (1, 16), "many": (4, 32)}
"""Batch and query heads; a product of up to 64 counts as few."""
DECODE_HEADS = {"few": (1, 32), "many": (16, 32)}
GROUPS = (1, 4)

CONDITIONS: dict[Mode, tuple[str, str]] = {
    "cold": ("cold", "stream"),
    "warm": ("warm", "stream"),
    "graph": ("warm", "graph"),
    "cold graph": ("cold", "graph"),
}
"""L2 state and launch of each mode of the stopwatch, in the words of case tables."""

LONGEST_S = 0.03
"""Largest time of one call at the GPU's peak: at a fifth of the peak, a handful of samples take a second."""

MEMORY_SHARE = 0.4
"""Share of the card's memory for inputs, outputs and scores of one call."""

APART = by_hand(
    {"heads": 2.0, "width": 2.0, "mask": 2.0, "mode": 1.5, "group": 0.5, "format": 0.5},
    "how far apart two questions to be timed are, a factor of 2 in length being 1",
)


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One point to time.

    Parameters
    ----------
    mode : {"cold", "warm", "graph", "cold graph"}
    """

    operation: Operation
    workload: Workload
    mode: Mode

    @property
    def levels(self) -> tuple[str, ...]:
        """Properties, weightiest first: band of lengths and heads, width, mask, condition, group, format."""
        w = self.workload
        length = max(w.seq_q, w.seq_kv)
        band = sum(length > longest for longest in BANDS)
        many = w.batch * w.heads_q > 64
        return (f"{band} {many}", str(w.head_dim), kind_of(w.mask), self.mode, str(w.group), w.dtype)

    def place(self) -> list[float]:
        """Coordinates of the point; the sum of absolute differences measures how unlike two points are."""
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
    """Return "full", "causal" or "window"."""
    return "window" if mask.is_windowed else "causal" if mask.is_causal else "full"


def useful_flops(w: Workload) -> float:
    """Return useful FLOPs: 2 B H pairs (d + dv) forward, 2.5 times that backward."""
    return 4.0 * w.heads_q * w.visible_pairs * w.head_dim * (2.5 if w.passes == "bwd" else 1.0)


def candidates(one: Operation, gpu: Gpu) -> list[GridPoint]:
    """Return every point that a GPU can run in time and memory, the most usual first."""
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
    """Yield the points of all operations in turn, each operation's most informative points first.

    Parameters
    ----------
    operations : iterable of Operation
        The most valuable first.
    """
    queues = [informative(candidates(one, gpu)) for one in operations]
    for turn in itertools.zip_longest(*queues):
        yield from (point for point in turn if point is not None)


def informative(points: Sequence[GridPoint]) -> Iterator[GridPoint]:
    """Yield points so that each adds the most to those before; ties in the given order."""
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
