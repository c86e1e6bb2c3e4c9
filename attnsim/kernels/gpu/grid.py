"""The workloads of a run: those whose results are checked, and the points whose times are measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.kernels.catalog import Operation
from attnsim.kernels.device import Device
from attnsim.kernels.gpu.timing import Mode
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

FULL = Mask()

LONG = 500
"""Longer sequences are checked with one head and the first two widths, since the float64 reference holds all scores."""


SHORT, MIDDLE, CACHE = 127, 500, 4096
"""Ragged lengths of the quick checks, and a cache that is long enough to be split in decode."""


def case(
    one: Operation,
    seq: int,
    head_dim: int,
    dtype: str = "bf16",
    mask: Mask = FULL,
    heads: int = 4,
    batch: int = 1,
    group: int = 4,
) -> Workload:
    """Return a workload for the operation, with `group` query heads per KV head."""
    queries, shared = 1 if one.passes == "decode" else seq, max(1, heads // group)
    return Workload(batch, heads, queries, head_dim, shared, seq, dtype=dtype, passes=one.passes, mask=mask)


def masks_of(one: Operation, seq: int, dtype: str = "bf16") -> list[Mask]:
    """Return the kinds of mask that an operation supports; windows only in bf16, as both formats share their code."""
    if one.masks:
        return [Mask.parse(text) for text in one.masks]
    return bands_of(one, max(1, seq // 4) if dtype == "bf16" else None)


def bands_of(one: Operation, window: int | None) -> list[Mask]:
    """Return the supported bands: full, causal, and a window of so many keys."""
    if one.passes == "decode":
        return [FULL]
    found = [FULL, *([Mask.causal()] if one.causal else [])]
    return [*found, Mask.sliding_window(window)] if one.window and window else found


def cases(one: Operation, seq: int) -> Iterator[Workload]:
    """Yield the workloads of one length: both formats, every width, every kind of mask."""
    for dtype in ("bf16", "fp16"):
        for head_dim in one.head_dims if seq <= LONG else one.head_dims[:2]:
            for mask in masks_of(one, seq, dtype):
                yield case(one, seq, head_dim, dtype, mask, heads=4 if seq <= LONG else 1)


def quick_cases(one: Operation) -> Iterator[Workload]:
    """Yield quick workloads: both formats, every width and every kind of mask, at one or two lengths."""
    for dtype in ("bf16", "fp16"):
        for head_dim in one.head_dims:
            if one.passes == "decode":
                yield from (case(one, seq, head_dim, dtype) for seq in (SHORT, CACHE))
                continue
            for number, mask in enumerate(masks_of(one, MIDDLE, dtype)):
                yield case(one, MIDDLE if number else SHORT, head_dim, dtype, mask)


def check(one: Operation, device: Device, w: Workload, seed: int, inputs: str = "normal") -> dict[str, Any]:
    """Run the operation and the float64 reference on generated inputs; returns a record.

    Returns
    -------
    dict
        ``errors`` by tensor (None for one that is not finite), ``tolerance`` and ``ok``.
    """
    errors, allowed = one.exercise(device, w, seed, inputs).errors(), one.tolerance(w.dtype)
    return {
        "seed": seed,
        "errors": {name: error if math.isfinite(error) else None for name, error in errors.items()},
        "tolerance": allowed,
        "ok": max(errors.values()) <= allowed,
    }


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
            w = case(one, length, width, dtype, mask, heads_q, batch, group)
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
    mask = Mask.causal() if one.causal and not decode else Mask()
    w = case(one, 16384 if decode else 4096, 128, mask=mask, heads=heads_q, batch=batch, group=1)
    return GridPoint(one, w, "cold").place()
