"""Unfused attention with scale and mask as passes of their own: :mod:`attnsim.kernels.naive`, ``passes="separate"``."""

from __future__ import annotations

from attnsim.kernels import naive
from attnsim.kernels.device import Array, Device
from attnsim.kernels.naive import variants
from attnsim.kernels.outcome import Outcome
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

__all__ = ["exercise", "naive_passes_forward", "variants"]


def naive_passes_forward(
    device: Device, q: Array, k: Array, v: Array, *, mask: Mask | None = None, scale: float | None = None
) -> tuple[Array, Array]:
    """O and the log-sum-exp, in four kernels, or five where the mask hides something.

    See :func:`attnsim.kernels.naive.naive_forward` for parameters and errors. The unscaled scores pass through 16 bits:
    in fp16 those beyond 65,504 become 65,504.
    """
    return naive.naive_forward(device, q, k, v, mask=mask, scale=scale, passes="separate")


def exercise(device: Device, w: Workload, seed: int = 0) -> Outcome:
    """Random normal inputs through the kernels and through the float64 reference."""
    return naive.exercise(device, w, seed, passes="separate")
