"""What a kernel computed beside what it should have, and how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Floats

TOLERANCE = {"fp16": 2e-3, "bf16": 1.6e-2}
"""Largest allowed ``max |got - want| / max |want|``: two units in the last place of the output format (2^-10, 2^-7)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outputs of one run of an operation, as float64, beside the float64 reference.

    Parameters
    ----------
    outputs, expected : mapping of str to ndarray
        By the tensor's name, in the same shapes.
    """

    outputs: Mapping[str, Floats]
    expected: Mapping[str, Floats]

    def errors(self) -> dict[str, float]:
        """Largest difference over the largest expected magnitude, by tensor; infinities and NaN must agree exactly.

        A tensor with a NaN or an infinity where none belongs, or without one where it does, has error ``inf``.
        """
        return {name: _error(self.outputs[name], want) for name, want in self.expected.items()}

    def largest_error(self) -> float:
        """The worst tensor's error."""
        return max(self.errors().values())


def _error(got: Floats, want: Floats) -> float:
    if got.shape != want.shape:
        return float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = np.abs(want[finite]).max()
    return float(np.abs(got[finite] - want[finite]).max() / scale) if scale else float(np.abs(got[finite]).max())
