"""Correctness checks of operations on a device: the workloads, and the result as a record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from attnsim.kernels.catalog import Operation
from attnsim.kernels.device import Device
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

FULL = Mask()

LONG = 500
"""Longer sequences are checked with one head and the first two widths, since the float64 reference holds all scores."""


SHORT, MIDDLE, CACHE = 127, 500, 4096
"""Ragged lengths of the quick checks, and a cache that is long enough to be split in decode."""


def case(one: Operation, seq: int, head_dim: int, dtype: str = "bf16", mask: Mask = FULL, heads: int = 4) -> Workload:
    """Return a workload for the operation, with groups of four query heads per KV head."""
    return Workload(
        batch=1,
        heads_q=heads,
        heads_kv=max(1, heads // 4),
        seq_q=1 if one.passes == "decode" else seq,
        seq_kv=seq,
        head_dim=head_dim,
        dtype=dtype,
        passes=one.passes,
        mask=mask,
    )


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
