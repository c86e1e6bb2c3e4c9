"""What an instruction costs whatever its values: operations by lane, known before the kernel runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import sub

import numpy as np

from attnsim.ptx.counters import Counters
from attnsim.ptx.lanes import WARP, WARPGROUP, Mask
from attnsim.ptx.syntax import Instruction

_FLOPS = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "mad": 2}
_FLOAT_TYPES = {"f16": 1, "bf16": 1, "f32": 1, "f64": 1, "f16x2": 2, "bf16x2": 2, "f32x2": 2}


Cost = tuple[int, int, int, int]
"""FLOPs outside and inside the tensor cores, exponentials and shuffles of one lane."""


def cost(instruction: Instruction) -> Cost:
    """Operations of one lane of an instruction; of ``mma`` and ``wgmma`` a lane's share of 2 m n k."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    width = _FLOAT_TYPES.get(kind, 0)
    if instruction.name == "mma":
        shape = next(m for m in instruction.modifiers if m.startswith("m16n8k"))
        return 0, 2 * 16 * 8 * int(shape.removeprefix("m16n8k")) // WARP, 0, 0
    if instruction.name == "wgmma" and instruction.modifiers[0] == "mma_async":
        shape = next(m for m in instruction.modifiers if m.startswith("m64n"))
        columns, depth = shape.removeprefix("m64n").split("k")
        return 0, 2 * 64 * int(columns) * int(depth) // WARPGROUP, 0, 0
    exponentials = width if instruction.name == "ex2" else 0
    return _FLOPS.get(instruction.name, 0) * width, 0, exponentials, int(instruction.name == "shfl")


def charge(counters: Counters, each: Iterable[int], lanes: int) -> None:
    """Count a cost for so many lanes."""
    flops, tensor_flops, exponentials, shuffles = each
    counters.flops += flops * lanes
    counters.tensor_flops += tensor_flops * lanes
    counters.exponentials += exponentials * lanes
    counters.shuffles += shuffles * lanes


class Costs:
    """Sums of the costs of a kernel's instructions, so that a run of them is counted at once.

    Instructions under a predicate are counted when they run; here they only count as issued.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        nothing = (0, 0, 0, 0)
        rows = [nothing if i.guard else cost(i) for i in instructions]
        self._end = len(instructions)
        self._sums: list[list[int]] = np.cumsum([nothing, *rows, nothing], axis=0).tolist()
        self._prices: dict[tuple[int, int], Cost | None] = {}

    def charge(self, counters: Counters, start: int, stop: int, mask: Mask) -> None:
        """Count instructions ``start`` to ``stop - 1``."""
        key = start, min(stop, self._end)
        counters.issued[key] += mask.warp_count
        if key not in self._prices:
            flops, tensor_flops, exponentials, shuffles = map(sub, self._sums[stop], self._sums[start])
            price = flops, tensor_flops, exponentials, shuffles
            self._prices[key] = price if any(price) else None
        if found := self._prices[key]:
            charge(counters, found, mask.count)
