"""Area of a GPU's die: its published area, plus the area that changed figures add.

The unchanged die has its published area. The constants of ``area.yaml`` give the areas of its memory interface, L2
cells, crossbar and links, and a share that is not modelled; the SMs have the remaining area. A changed figure scales
its part::

    area = die + SMs ((n'/n) (1 + sum over units of share (f'/f - 1)) - 1) + L2 cells (c'/c - 1)
               + crossbar ((b'/b)^x - 1) + memory interface ((m'/m)^y - 1)

with n SMs, f the rate or size of a unit of an SM, c and b the L2's capacity and bandwidth, m the memory's bandwidth.

Manufacturing cost of a GPU: dies from wafers of a price and a yield, memory by the gigabyte, the package.

Tests, the board, design and masks, and the maker's margin are left out: the cost is far below a GPU's price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import Constant, Interval, propagated

UNITS: Mapping[str, tuple[str, ...]] = {
    "tensor": ("tensor.fp16", "tensor.bf16", "tensor.fp8"),
    "fp32": ("sm.fp32_rate",),
    "exp": ("sm.exp_rate",),
    "registers": ("sm.registers",),
    "shared memory": ("sm.shared_memory",),
    "shared memory ports": ("sm.shared_memory_bandwidth",),
}
"""Parts of an SM with a share in ``area.yaml``, and the figures they scale with; the figure that grows most decides."""
FIGURES = frozenset(
    ("sm.count", "l2.capacity", "l2.bandwidth", "hbm.bandwidth", *(key for keys in UNITS.values() for key in keys))
)
"""Figures that the area depends on."""
FOLLOWING = frozenset(("sm.shared_memory_per_block", "hbm.capacity"))
"""Figures without area of their own: limits, and memory outside the die."""


@dataclass(frozen=True, slots=True)
class Die:
    """A manufactured die, including units that a GPU may have disabled.

    Parameters
    ----------
    gpus : tuple of str
        Ids of the built-in GPUs that have it.
    area : Constant
        mm2, of all dies of a package.
    links : Constant
        mm2 of NVLink and PCIe.
    memory : {"hbm", "gddr"}
    units : int
        Stacks of HBM, or 32-bit channels.
    """

    gpus: tuple[str, ...]
    process: str
    area: Constant
    links: Constant
    memory: str
    units: int
    sms: int
    l2_mib: int


@dataclass(frozen=True, slots=True)
class Process:
    """A manufacturing process: densities per square millimetre, wafer price and defects."""

    density: Constant
    sram: Constant
    wafer: Constant
    defects: Constant


@dataclass(frozen=True, slots=True)
class Table:
    """The content of ``area.yaml``, whose first lines explain it."""

    reticle_mm2: Constant
    parts: Mapping[str, Constant]
    sm: Mapping[str, Constant]
    processes: Mapping[str, Process]
    costs: Mapping[str, Constant]
    dies: Mapping[str, Die]


@cache
def table() -> Table:
    """The constants."""
    return read_typed(Path(__file__).with_name("area.yaml"), "area", Table)


def die_of(gpu: Gpu) -> tuple[str, Die]:
    """Name and record of the die of a GPU; for a changed GPU, of the unchanged one.

    Raises
    ------
    InputError
        When it is not known.
    """
    for name, die in table().dies.items():
        if gpu.base_id in die.gpus:
            return name, die
    raise InputError(
        f"the die of {gpu.base_id} is not known, so neither are area and cost; take one of the table of attnsim gpus "
        "and --set its figures, or give search hardware prices of your own (--cost)"
    )


def constants_of(die: Die) -> dict[str, Constant]:
    """Constants that determine the area of a die, by name."""
    found = table()
    return {
        "area": die.area,
        "links": die.links,
        "density": found.processes[die.process].density,
        "sram": found.processes[die.process].sram,
        **found.parts,
        **{f"sm {name}": one for name, one in found.sm.items()},
    }


def parts_mm2(die: Die, values: Mapping[str, float]) -> dict[str, float]:
    """Areas of the parts of a die in mm2 for the given constants; the SMs have the remainder."""
    phy, controller = values[f"{die.memory} phy"], values[f"{die.memory} controller"]
    found = {
        "memory": die.units * (phy + controller / values["density"]),
        "l2": die.l2_mib * values["l2 cells"] * values["sram"],
        "crossbar": die.sms * values["crossbar"] / values["density"],
        "links": values["links"],
        "rest": values["rest"] * values["area"],
    }
    return {"sms": values["area"] - sum(found.values()), **found}


def typical_shares(die: Die) -> dict[str, float]:
    """Shares of the parts in a die's area, for typical constants."""
    parts = parts_mm2(die, {name: one.typical for name, one in constants_of(die).items()})
    return {name: part / die.area.typical for name, part in parts.items()}


def area_with(gpu: Gpu, die: Die, values: Mapping[str, float]) -> float:
    """Area in mm2 of a GPU, starting from its unchanged die, for the given constants."""
    base, parts = gpu.unchanged, parts_mm2(die, values)

    def grown(*keys: str) -> float:
        return max((gpu.get(key) / base.get(key) for key in keys if base.get(key)), default=1.0)

    sm = 1 + sum(values[f"sm {name}"] * (grown(*keys) - 1) for name, keys in UNITS.items())
    factors = {
        "sms": grown("sm.count") * sm,
        "l2": grown("l2.capacity"),
        "crossbar": math.pow(grown("l2.bandwidth"), values["crossbar growth"]),
        "memory": math.pow(grown("hbm.bandwidth"), values["memory growth"]),
    }
    return values["area"] + sum(parts[name] * (factor - 1) for name, factor in factors.items())


def area_mm2(gpu: Gpu) -> Interval:
    """Area of the die of a GPU; of both dies if it has two.

    Raises
    ------
    InputError
        When its die is not known.

    Examples
    --------
    >>> from attnsim.models.hardware.files import load_gpu
    >>> area_mm2(load_gpu("h100-sxm5-80gb"))
    Interval(low=814.0, typical=814.0, high=814.0)
    """
    _, die = die_of(gpu)
    return propagated(lambda values: area_with(gpu, die, values), constants_of(die))


def without_area(gpu: Gpu) -> tuple[str, ...]:
    """Changed figures whose area is not known, so that their change appears free."""
    changed = dict.fromkeys(key for change in gpu.changes for key in sorted(change.keys))
    return tuple(key for key in changed if key not in FIGURES | FOLLOWING)


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
