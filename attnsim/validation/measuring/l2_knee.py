"""Estimates the capacity of an L2 from the bandwidth of re-reading working sets of many sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.errors import InputError

LEAST_POINTS = 5
"""Fewest working sets for the fit, which has four parameters."""

VISIBLE = by_hand(0.08, "rise of the time of a byte, as a share, below which no end of the L2 is told from noise")


@dataclass(frozen=True, slots=True)
class Knee:
    """The L2's bandwidth and capacity from a sweep over working sets.

    Parameters
    ----------
    bandwidth_bytes_per_s : float
        For working sets that fit the L2.
    capacity_bytes : float or None
        Working set of which half still hits; None if the sweep shows no fall of the bandwidth.
    begins_bytes : float or None
        Working set at which the first reads miss; None likewise.
    """

    bandwidth_bytes_per_s: float
    capacity_bytes: float | None
    begins_bytes: float | None


def fit_knee(sizes_bytes: Sequence[float], rates_bytes_per_s: Sequence[float]) -> Knee:
    """Fit the time per byte by a plateau, a linear rise and a second plateau.

    A least-recently-used cache of `c` bytes would miss everything once the working set exceeds `c`. Hashing, two
    partitions and random replacement blur this step into a ramp from ``c - w/2`` to ``c + w/2``. The fit is least
    squares on relative differences over a grid of `c` and `w`; the plateaus follow linearly.

    Parameters
    ----------
    sizes_bytes, rates_bytes_per_s : sequence of float
        Working sets and their re-read bandwidths.

    Raises
    ------
    InputError
        If there are fewer than `LEAST_POINTS` points.
    """
    if len(sizes_bytes) < LEAST_POINTS:
        raise InputError(f"the sweep over the L2 has {len(sizes_bytes)} sizes; {LEAST_POINTS} at least are needed")
    size = np.asarray(sizes_bytes, np.float64)
    per_byte = 1 / np.asarray(rates_bytes_per_s, np.float64)
    candidates, widths = np.geomspace(size.min(), size.max(), 120), np.linspace(0.02, 1.5, 60)
    begins = np.repeat(candidates, len(widths))
    ends = np.outer(candidates, 1 + widths).ravel()
    # [grid, points]: share of the working set that is missed
    missed = np.clip((size - begins[:, None]) / (ends - begins)[:, None], 0, 1)
    one, ramp = np.broadcast_to(1 / per_byte, missed.shape), missed / per_byte
    # Normal equations of one * a + ramp * b = 1 for each grid point; a ramp that no point is on leaves b at 0.
    aa, ab, bb = (one**2).sum(1), (one * ramp).sum(1), (ramp**2).sum(1)
    ya, yb = one.sum(1), ramp.sum(1)
    determinant = aa * bb - ab**2
    solvable = determinant > 1e-9 * aa * np.maximum(bb, 1e-300)
    safe = np.where(solvable, determinant, 1.0)
    a = np.where(solvable, (ya * bb - yb * ab) / safe, ya / aa)
    b = np.where(solvable, (aa * yb - ab * ya) / safe, 0.0)
    residual = ((one * a[:, None] + ramp * b[:, None] - 1) ** 2).sum(1)
    residual[(a <= 0) | (b < 0)] = np.inf
    best = int(np.argmin(residual))
    if not np.isfinite(residual[best]) or b[best] < VISIBLE * a[best]:
        return Knee(float(np.median(1 / per_byte)), None, None)
    return Knee(float(1 / a[best]), float((begins[best] + ends[best]) / 2), float(begins[best]))
