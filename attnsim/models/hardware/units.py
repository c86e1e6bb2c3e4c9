"""Table of the units that work occupies, on every SM and on the chip; a new unit is a new row.

After it, the figures of merit of a machine: names, units and table columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.wording import NOTHING


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit.

    Parameters
    ----------
    name : str
        Name in answers: ``units_s``, ``bound``.
    words, short : str
        Text for a sentence and for a table cell.
    figure : str
        Key of the figure that gives its rate; ``{dtype}`` stands for the number format.
    amount : str
        The amount of a tile operation that occupies it, a field of
        :class:`attnsim.models.schedule.operation.TileOp`; "" if the memory model counts its bytes.
    moves : bool
        Whether it moves bytes; the others compute. Pictures colour by it.
    level : str
        Its name as a memory level of the roofline; "" if it is not one.
    counted : bool
        Whether its work is known only if a kernel's instructions are counted. Other kernels report it only if they name
        such work; so does a counted pipe.
    pipe : bool
        Whether its work overlaps with that of another unit: it delays an operation only if it is slower. A GPU whose
        figure is 0 does not have it.
    """

    name: str
    words: str
    short: str
    figure: str
    amount: str = ""
    moves: bool = False
    level: str = ""
    pipe: bool = False
    counted: bool = False

    @property
    def label(self) -> str:
        """Label of a bar in a picture: its words without the article."""
        return self.words.removeprefix("the ")

    def figure_for(self, dtype: str) -> str:
        """Key of its figure for a number format; fp32 products run on the FP32 lanes."""
        return "sm.fp32_rate" if self is TENSOR and dtype == "fp32" else self.figure.format(dtype=dtype)


TENSOR = Unit("tensor", "the tensor cores", "tensor", "tensor.{dtype}", "flops")
EXP = Unit("exp", "the exponential units", "exp", "sm.exp_rate", "exps")
FP32 = Unit("fp32", "the FP32 lanes", "FP32", "sm.fp32_rate", "fp32")
ISSUE = Unit("issue", "the warp schedulers", "issue", "sm.issue_rate", "issues", counted=True)
INT32 = Unit("int32", "the integer lanes", "INT", "sm.int32_rate", "int32", counted=True)
LOAD_STORE = Unit(
    "load_store", "the load/store units", "ld/st", "sm.load_store_rate", "load_stores", moves=True, counted=True
)
FP64 = Unit("fp64", "the FP64 lanes", "FP64", "sm.fp64_rate", "fp64", counted=True, pipe=True)
SHARED_MEMORY = Unit(
    "shared_memory",
    "shared memory",
    "smem",
    "sm.shared_memory_bandwidth",
    "smem_bytes",
    moves=True,
    level="smem",
    pipe=True,
)
TENSOR_MEMORY = Unit(
    "tensor_memory",
    "tensor memory",
    "tmem",
    "tensor.memory_bandwidth",
    "tmem_bytes",
    moves=True,
    level="tmem",
    pipe=True,
)
L2 = Unit("l2", "the L2", "L2", "l2.bandwidth", moves=True, level="l2")
HBM = Unit("hbm", "HBM", "HBM", "hbm.bandwidth", moves=True, level="hbm")

UNITS = {
    one.name: one for one in (TENSOR, EXP, FP32, ISSUE, INT32, FP64, LOAD_STORE, SHARED_MEMORY, TENSOR_MEMORY, L2, HBM)
}
ON_SM = tuple(one for one in UNITS.values() if one.amount)
"""Units that every SM has."""
PIPES = tuple(one for one in ON_SM if one.pipe)
COUNTED = tuple(one for one in ON_SM if one.counted and not one.pipe)


def bound_text(bound: str | None) -> str:
    """Name of the bound of a call, for a table cell: a unit, launch or latency."""
    return UNITS[bound].short if bound in UNITS else bound or NOTHING


def unit_text(bound: str | None) -> str:
    """Name of the bound of a call, for a sentence."""
    return UNITS[bound].words if bound in UNITS else bound or NOTHING


CONCURRENT = ("wgmma", "tcgen05")
"""Instruction paths whose products run concurrently with register work of the warps."""
ASYNC_SHARE = by_hand(0.95, "share of the tensor peak that wgmma and tcgen05 reach (arXiv 2402.13499, wgmma on H800)")
MMA_SYNC_STALL = by_hand(
    0.48, "share of a product of mma.sync for which vector work stalls: FlashAttention-2 on A100 and on H100 agree"
)


RESULTS = {"time": "s", "energy": "J", "power": "W", "area": "mm2", "cost": "USD"}
"""Results that a search over hardware can limit and minimise in addition to a GPU's figures, with units."""


def column(name: str, end: str = "") -> str:
    """Column of a result or of an end of its range: ``time_s``, ``time_low_s``; for a figure, its key."""
    return "_".join(filter(None, (name, end, RESULTS[name].lower()))) if name in RESULTS else name
