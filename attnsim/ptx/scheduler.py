"""Model of a warp scheduler: warps issue machine code in order and wait for scoreboards.

An instruction issues when all of these hold (Jia et al., arXiv 1804.06826, section 2.1; Huerta et al., arXiv
2503.20481, for Ampere):

- The stall count of the warp's previous instruction has passed.
- The scoreboards that its control bits name are free: all instructions issued on them are complete.
- Its pipe accepts it.

If several warps are ready, the one that has waited longest issues. Every scheduler of the SM does the same at the same
time, so each gets a quarter of the shared memory and load/store units.

Global memory accesses, tile copies and ``wgmma`` products take no time here, since they are separate operations of a
schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.ptx.machine_code import Instruction

ITERATIONS = 4
"""Simulated loop iterations; the first is left out."""
QUEUED = by_hand(5, "instructions that memory and exponential units take of a scheduler before the next waits to issue")
"""Queue length for memory instructions, measured on an A6000 (Huerta et al., arXiv 2503.20481)."""
QUEUES = ("matrix_load", "load_store", "exp")
ELSEWHERE = frozenset(
    "LDG STG LDGSTS LDGDEPBAR DEPBAR RED REDG ATOM ATOMG HGMMA QGMMA UTCHMMA WARPGROUP".split()  # noqa: SIM905
)
"""Opcodes that a schedule models as separate operations: copies, and products that run asynchronously."""
LATENCIES = by_hand(
    {"MUFU": 20, "SHFL": 25, "LDL": 35, "LDC": 30},
    "clocks until the result of an instruction is there, about as microbenchmarks of an A100 found it; LDL: in the L1",
)
FIXED = by_hand(12, "clocks until the result of any other instruction is there")
READ = by_hand(10, "clocks until an instruction has read its operands")


@dataclass(frozen=True, slots=True)
class Iteration:
    """Time of one loop iteration for all warps of a scheduler, in clocks.

    Parameters
    ----------
    products : float
        Time from the previous issue to the issue of each product or matrix load, summed.
    others : float
        The same sum for all other instructions.
    held : float
        Busy time of the busier pipe of products and matrix loads.
    held_by_others : float
        Busy time of the busiest pipe of all other instructions, or of their issue slots.
    """

    products: float
    others: float
    held: float
    held_by_others: float

    @property
    def products_wait(self) -> float:
        """Clocks of products beyond the busy time of their pipes."""
        return max(0.0, self.products - self.held)

    @property
    def others_wait(self) -> float:
        """Clocks of the other instructions beyond the busy time of their busiest pipe."""
        return max(0.0, self.others - self.held_by_others)


def simulated_iteration(path: Sequence[Instruction], warps: int, costs: Mapping[str, float]) -> Iteration:
    """Simulate iterations of a loop on the warps of one scheduler; the warps meet at barriers.

    Parameters
    ----------
    path : sequence of Instruction
        Instructions of one iteration.
    warps : int
        Warps of the scheduler that run in step.
    costs : mapping of str to float
        Clocks that a warp instruction occupies the scheduler's share of each pipe; also ``mma latency`` and
        ``shared memory latency``, in clocks.
    """
    warps_in_step = [_Warp(path) for _ in range(warps)]
    free: dict[str, float] = {}
    now, begun = 0.0, 0.0
    while running := [one for one in warps_in_step if one.iterations < ITERATIONS]:
        if all(one.meets for one in running):
            for one in running:
                one.meets = False
        at, _, warp = min(
            (max(one.ready(costs, free), now), one.issued, number)
            for number, one in enumerate(warps_in_step)
            if one.iterations < ITERATIONS and not one.meets
        )
        warps_in_step[warp].issue(at, costs, free)
        now = at + 1
        if not begun and all(one.iterations for one in warps_in_step):
            begun = now
            for one in warps_in_step:
                one.spent = {True: 0.0, False: 0.0}
    share = (now - begun) / (ITERATIONS - 1) / sum(sum(one.spent.values()) for one in warps_in_step)
    spent = {kind: share * sum(one.spent[kind] for one in warps_in_step) for kind in (True, False)}
    held = {kind: warps * _held([one for one in path if _multiplies(one) == kind], costs) for kind in (True, False)}
    return Iteration(spent[True], spent[False], held[True], held[False])


def _multiplies(one: Instruction) -> bool:
    return one.pipe in ("tensor", "matrix_load") and one.name not in ELSEWHERE


def _held(ran: Sequence[Instruction], costs: Mapping[str, float]) -> float:
    """Return the busy time of the busiest pipe, or of the issue slot if that is longer, in clocks."""
    each = {"issue": float(len(ran))}
    for one in ran:
        each[one.pipe] = each.get(one.pipe, 0.0) + _cost(one, costs)
    return max(each.values())


def _cost(one: Instruction, costs: Mapping[str, float]) -> float:
    return 1.0 if one.name in ELSEWHERE else costs.get(one.pipe, 1.0)


class _Warp:
    """One warp: its position, and when the results that it waits for are ready."""

    def __init__(self, path: Sequence[Instruction]) -> None:
        self.path, self.place, self.iterations = path, 0, 0
        self.issued, self.next = 0.0, 0.0
        self.meets = False  # waits for the others at a barrier
        self.scoreboards = [0.0] * 6
        self.spent = {True: 0.0, False: 0.0}

    def ready(self, costs: Mapping[str, float], free: Mapping[str, float]) -> float:
        """Return the clock at which its next instruction may issue."""
        one = self.path[self.place]
        queue = (QUEUED - 1) * _cost(one, costs) if one.pipe in QUEUES else 0.0
        return max(self.next, free.get(one.pipe, 0.0) - queue, *(self.scoreboards[number] for number in one.waits))

    def issue(self, at: float, costs: Mapping[str, float], free: dict[str, float]) -> None:
        """Issue the next instruction."""
        one = self.path[self.place]
        begins = max(at, free.get(one.pipe, 0.0))
        free[one.pipe] = begins + _cost(one, costs)
        if one.name in ELSEWHERE:
            done = read = at + 1
        elif one.pipe == "tensor":
            done = read = at + costs["mma latency"]
        else:
            latency = costs["shared memory latency"] if one.name in ("LDSM", "LDS") else FIXED
            done, read = free[one.pipe] + LATENCIES.get(one.name, latency) - 1, begins + READ
        for number, end in ((one.written, done), (one.read, read)):
            if number is not None:
                self.scoreboards[number] = max(self.scoreboards[number], end)
        self.spent[_multiplies(one)] += at - self.issued
        self.issued, self.next = at, at + max(1, one.stall)
        self.meets = one.name == "BAR"
        self.place += 1
        if self.place == len(self.path):
            self.place, self.iterations = 0, self.iterations + 1
