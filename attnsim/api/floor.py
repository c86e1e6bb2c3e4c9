"""The floor of a call: the time that no schedule of it undercuts, and how near to it anybody has come.

``fastest.csv`` is written from the published measurements by ``benchmarks/fastest.py``. A share of the floor is a
record, not a limit: no answer and no range ends at it, but an answer well beyond it says so.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attnsim.api.asking import Conditions
from attnsim.by_hand import by_hand
from attnsim.models.closed_forms.useful import Useful
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Schedule


def floor_s(schedule: Schedule, useful: Useful, gpu: Gpu, conditions: Conditions) -> float:
    """Seconds that a call takes at least: the longest of `limits_s`, and one launch."""
    return max(limits_s(schedule, useful, gpu, conditions.cache).values()) + gpu.launch.each_s(conditions.launch)


def limits_s(schedule: Schedule, useful: Useful, gpu: Gpu, cache: str) -> dict[str, float]:
    """Seconds that each limit of a GPU holds a call for at least.

    Its useful FLOPs at the rated "peak" and boost clock, its "rate of exponentials", and at the "bandwidth" the bytes
    of HBM that come from outside or stay, each once, less what a warm L2 holds and what the L2 keeps of the results
    (Williams, Waterman and Patterson, CACM 52(4), 2009, with a ceiling for exponentials).

    Parameters
    ----------
    schedule : Schedule
        Whose tensors and formats they are. Of forms that do less than the convention counts (no recomputation, fewer
        exponentials) it says how much.
    useful : Useful
    gpu : Gpu
    cache : str
        As for `predict`.
    """
    clks = gpu.sm.count * max(gpu.clock.boost_hz, gpu.clock.full_hz)
    flops_per_clk = max(gpu.tensor_flops_per_clk(kernel.dtype) for kernel in schedule.kernels)
    read = {use.tensor for kernel in schedule.kernels for use in kernel.uses if not use.written}
    moved = {"load": 0, "store": 0}
    for (_, kind, tensor), size in schedule.compulsory().items():
        stays = kind == "load" or tensor not in read  # what only goes from kernel to kernel may not stay
        moved[kind] += size * stays
    kept = {"load": gpu.l2.capacity_bytes * (cache != "cold"), "store": gpu.l2.capacity_bytes}
    left = sum(max(0, size - kept[kind]) for kind, size in moved.items())
    return {
        "peak": min(useful.flops, schedule.total("flops")) / (flops_per_clk * clks),
        "rate of exponentials": min(useful.exponentials, schedule.total("exps")) / (gpu.sm.exp_per_clk * clks),
        "bandwidth": left / gpu.hbm.bandwidth_bytes_per_s,
    }


TABLE = Path(__file__).with_name("fastest.csv")
LEAST_ROWS = by_hand(20, "measured calls of a pass on a chip from which the nearest to its floor counts as a record")
BEYOND = by_hand(1.1, "times the best measured share of a floor beyond which an answer says that nobody was as fast")
COLUMNS = ("gpu", "pass", "share", "rows", "implementation", "source", "question")


@dataclass(frozen=True, slots=True)
class Fastest:
    """The measured call of a pass that has come nearest to its floor on a chip.

    Parameters
    ----------
    share : float
        Its floor over its time.
    rows : int
        Measured calls among which it is the nearest.
    implementation, source, question : str
        Whose kernel, the key of its source, and what was asked.
    """

    share: float
    rows: int
    implementation: str
    source: str
    question: str

    def remark(self, share: float) -> str:
        """The remark on an answer that reaches this share of its floor; "" where it is not beyond the record."""
        return f"{share:.2f} of its floor; nobody has been this fast: {self}" if share > BEYOND * self.share else ""

    def __str__(self) -> str:
        return f"the nearest of {self.rows} measured calls came to {self.share:.2f} ({self.implementation})"


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str], Fastest]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {
            (row["gpu"], row["pass"]): Fastest(
                float(row["share"]), int(row["rows"]), row["implementation"], row["source"], row["question"]
            )
            for row in csv.DictReader(file)
        }


def fastest(gpu: Gpu, passes: str) -> Fastest | None:
    """The nearest of a pass on a chip; None on a changed GPU, and where too few were measured to be a record."""
    found = None if gpu.changes else _table().get((gpu.base_id, passes))
    return found if found and found.rows >= LEAST_ROWS else None
