"""What the kernels of linear attention do with each element of their features."""

from __future__ import annotations

from attnsim.models.schedule.instructions import StepCounts
from attnsim.models.schedule.operation import TileOp

PHI_INSTRUCTIONS = 6
"""FP32-lane instructions per element of phi, its exponential apart: unpack, scale, add, compare, select, pack."""
WEIGHT_INSTRUCTIONS = 4
"""Per weight of a feature: times z, add to the sum, scale, pack."""


def features(elements: int, name: str, each: int, counts: StepCounts | None = None) -> TileOp:
    """Work on so many elements of phi, `each` instructions where nobody counted them."""
    if counts:
        return counts.work(name, elements, elements)
    return TileOp("vector", name, exps=elements, fp32=each * elements)


def phi(elements: int, name: str, counts: StepCounts | None = None) -> TileOp:
    """Read from shared memory and written there."""
    return features(elements, name, PHI_INSTRUCTIONS, counts)._replace(smem_bytes=4 * elements)
