"""Compares the interpreter's counts with the schedule's, quantity by quantity and kernel by kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnsim.kernels.cpu_device import Launched
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.ptx.counters import Counters

EXACT = ("blocks", "load", "store")
"""Quantities that must agree exactly; FLOPs and exponentials may differ, since the schedule charges by model."""


@dataclass(frozen=True, slots=True)
class Count:
    """One quantity of one kernel.

    Parameters
    ----------
    quantity : str
        "blocks", "load Q", "tensor FLOPs", ...
    counted : int
        Count of the interpreter.
    planned : int or None
        Count of the schedule; None if it has no such quantity.
    """

    kernel: str
    quantity: str
    unit: str
    counted: int
    planned: int | None = None

    @property
    def agrees(self) -> bool | None:
        """True if the two counts are equal; None if there is nothing to compare."""
        return None if self.planned is None else self.counted == self.planned

    @property
    def must_agree(self) -> bool:
        """True if a difference is a bug."""
        return self.quantity.split()[0] in EXACT


def compare(launches: Sequence[Launched], schedule: Schedule) -> list[Count]:
    """Return the counts of every kernel that ran or was planned, in launch order, summed over equal launches."""
    names = dict.fromkeys([*(kernel.name for kernel in schedule.kernels), *(one.variant.entry for one in launches)])
    found: list[Count] = []
    for name in names:
        ran = [one for one in launches if one.variant.entry == name]
        planned = [kernel for kernel in schedule.kernels if kernel.name == name]
        found += _counts(name, ran, planned)
    return found


def _counts(name: str, ran: Sequence[Launched], planned: Sequence[Kernel]) -> Iterator[Count]:
    total = sum((one.counters for one in ran), Counters())
    blocks = sum(math.prod(one.grid) for one in ran)
    yield Count(name, "blocks", "", blocks, sum(kernel.blocks for kernel in planned))
    wanted: Counter[tuple[str, str]] = Counter()
    for kernel in planned:
        wanted.update(kernel.requested())
    got = total.requested()
    for kind, tensor in sorted({*got, *wanted}):
        key = kind, tensor
        yield Count(name, f"{kind} {tensor}", "B", got.get(key, 0), wanted.get(key, 0))
    on_tensor_cores = [kernel for kernel in planned if kernel.path != "simt"]
    flops = sum(kernel.total("flops") for kernel in on_tensor_cores)
    yield Count(name, "tensor FLOPs", "", total.tensor_flops, flops)
    yield Count(name, "exponentials", "", total.exponentials, sum(kernel.total("exps") for kernel in planned))
    yield Count(name, "FP32 FLOPs", "", total.flops)
    yield Count(name, "sectors loaded", "32 B", total.sectors_loaded)
    yield Count(name, "sectors stored", "32 B", total.sectors_stored)
    yield Count(name, "shared memory", "B", total.shared_bytes_loaded + total.shared_bytes_stored)
    yield Count(name, "bank conflicts", "", total.bank_conflicts)
    yield Count(name, "barriers", "", total.barriers)
    yield Count(name, "shuffles", "", total.shuffles)
    yield Count(name, "local memory", "B", total.local_bytes)
