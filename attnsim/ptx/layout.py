"""Where a kernel's own variables lie, and who works on shared memory beside its warps."""

from __future__ import annotations

from attnsim.ptx.lanes import Meetings
from attnsim.ptx.syntax import Function, Instruction


def lay_out(function: Function, space: str) -> tuple[dict[str, int], int]:
    """Addresses of a kernel's shared or local variables by name, and what they take in bytes.

    They lie in order of declaration; dynamic shared memory comes last and takes nothing.
    """
    variables = sorted((v for v in function.variables if v.space == space), key=lambda v: v.size_bytes == 0)
    addresses, end = {}, 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        addresses[variable.name] = end
        end += variable.size_bytes
    return addresses, end


def meetings(function: Function) -> Meetings:
    """Who works beside the warps of a kernel's blocks."""
    instructions = function.instructions
    return Meetings(
        pairwise=any(
            i.name in ("mbarrier", "wgmma", "tcgen05", "mapa")
            or "bulk" in i.modifiers
            or (i.name in ("bar", "barrier") and _counts_threads(i))
            for i in instructions
        ),
        stores=any("bulk_group" in i.modifiers for i in instructions),
        products=any(i.name == "tcgen05" for i in instructions),
    )


def _counts_threads(instruction: Instruction) -> bool:
    """Whether a barrier is for some of the block's threads."""
    return "warp" not in instruction.modifiers and len(instruction.operands) > (
        3 if "red" in instruction.modifiers else 1
    )
