"""What an instruction costs whatever its values: operations by lane, known before the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.kernels.cpu.counters import Counters
from attnsim.kernels.cpu.lanes import WARP, WARPGROUP, Mask
from attnsim.kernels.cpu.ptx import Instruction

_FLOPS = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "mad": 2}
_FLOAT_TYPES = {"f16": 1, "bf16": 1, "f32": 1, "f64": 1, "f16x2": 2, "bf16x2": 2}


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations of one lane."""

    flops: int = 0
    tensor_flops: int = 0
    exponentials: int = 0
    shuffles: int = 0

    def charge(self, counters: Counters, lanes: int) -> None:
        """Count them for so many lanes."""
        counters.flops += self.flops * lanes
        counters.tensor_flops += self.tensor_flops * lanes
        counters.exponentials += self.exponentials * lanes
        counters.shuffles += self.shuffles * lanes


def cost(instruction: Instruction) -> Cost:
    """Operations of one lane of an instruction; of ``mma`` and ``wgmma`` a lane's share of 2 m n k."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    width = _FLOAT_TYPES.get(kind, 0)
    if instruction.name == "mma":
        shape = next(m for m in instruction.modifiers if m.startswith("m16n8k"))
        return Cost(tensor_flops=2 * 16 * 8 * int(shape.removeprefix("m16n8k")) // WARP)
    if instruction.name == "wgmma" and instruction.modifiers[0] == "mma_async":
        shape = next(m for m in instruction.modifiers if m.startswith("m64n"))
        columns, depth = shape.removeprefix("m64n").split("k")
        return Cost(tensor_flops=2 * 64 * int(columns) * int(depth) // WARPGROUP)
    if instruction.name == "shfl":
        return Cost(shuffles=1)
    return Cost(
        flops=_FLOPS.get(instruction.name, 0) * width,
        exponentials=width if instruction.name == "ex2" else 0,
    )


class Costs:
    """Sums of the costs of a kernel's instructions, so that a run of them is counted at once.

    Instructions under a predicate are counted when they run; here they only count as issued.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        rows = [
            (c.flops, c.tensor_flops, c.exponentials, c.shuffles) if not i.guard else (0, 0, 0, 0)
            for i in instructions
            for c in (cost(i),)
        ]
        sums = np.cumsum(np.array([(0, 0, 0, 0), *rows, (0, 0, 0, 0)]), axis=0)
        self._end = len(instructions)
        self._sums = [tuple(row) for row in sums.tolist()]

    def charge(self, counters: Counters, start: int, stop: int, mask: Mask) -> None:
        """Count instructions ``start`` to ``stop - 1``."""
        counters.instructions += (min(stop, self._end) - start) * mask.warp_count
        before, after = self._sums[start], self._sums[stop]
        if before == after:
            return
        lanes = mask.count
        counters.flops += (after[0] - before[0]) * lanes
        counters.tensor_flops += (after[1] - before[1]) * lanes
        counters.exponentials += (after[2] - before[2]) * lanes
        counters.shuffles += (after[3] - before[3]) * lanes
