"""Manufacturing cost of a GPU: dies from wafers of a price and a yield, memory by the gigabyte, the package.

Tests, the board, design and masks, and the maker's margin are left out: the cost is far below a GPU's price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attnsim.models.hardware.area import Die, area_mm2, area_with, constants_of, die_of, table
from attnsim.models.hardware.figure import Interval, propagated
from attnsim.models.hardware.gpu import Gpu

WAFER_MM = 300
CM2_MM2 = 100


def dies_in_package(die: Die) -> int:
    """Number of dies of the unchanged GPU, none larger than the reticle; a changed GPU has as many."""
    return math.ceil(die.area.typical / table().reticle_mm2.typical)


def beyond_reticle(gpu: Gpu) -> bool:
    """Return whether a die of the GPU exceeds the reticle, so that it cannot be made in one piece."""
    _, die = die_of(gpu)
    return area_mm2(gpu).typical / dies_in_package(die) > table().reticle_mm2.typical


def cost_usd(gpu: Gpu) -> Interval:
    """US dollars for dies, memory and package.

    Raises
    ------
    InputError
        When its die is not known.
    """
    _, die = die_of(gpu)
    found = table()
    process, prices = found.processes[die.process], found.costs
    count = dies_in_package(die)

    def cost(values: Mapping[str, float]) -> float:
        area = area_with(gpu, die, values)
        silicon = count * values["wafer"] / sold_per_wafer(area / count, values)
        return silicon + gpu.hbm.capacity_bytes / 1e9 * values["memory"] + area * values["package"]

    constants = {
        **constants_of(die),
        "wafer": process.wafer,
        "defects": process.defects,
        "harvest": prices["harvest"],
        "memory": prices[die.memory],
        "package": prices[f"{die.memory} package"],
    }
    return propagated(cost, constants)


def sold_per_wafer(area: float, values: Mapping[str, float]) -> float:
    """Saleable dies per wafer: those without a defect (Murphy), and a share of the others.

    ``pi (d/2)^2 / A - pi d / sqrt(2 A)`` dies fit a wafer of diameter d; ``((1 - e^(-A D)) / (A D))^2`` of them have no
    defect at D defects per area (Murphy, Proc. IEEE 52, 1964).
    """
    dies = math.pi * (WAFER_MM / 2) ** 2 / area - math.pi * WAFER_MM / math.sqrt(2 * area)
    defects = area / CM2_MM2 * values["defects"]
    good: float = ((1 - math.exp(-defects)) / defects) ** 2
    return dies * (good + values["harvest"] * (1 - good))
