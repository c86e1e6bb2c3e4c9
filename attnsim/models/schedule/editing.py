"""Kernels made of others: every operation edited, tensors renamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Kernel


def edited(kernel: Kernel, edit: Callable[[TileOp], TileOp]) -> Kernel:
    """The kernel with every operation passed through `edit`."""
    return replace(kernel, segments=tuple(replace(one, ops=tuple(map(edit, one.ops))) for one in kernel.segments))


def renamed(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The kernel with other names for the tensors that it reads and writes; an MMA is called by what it makes."""

    def named(op: TileOp) -> TileOp:
        moves = op.kind in ("load", "wait", "store")
        return op._replace(tensor=names.get(op.tensor, op.tensor)) if moves else op

    uses = tuple(replace(use, tensor=names.get(use.tensor, use.tensor)) for use in kernel.uses)
    return replace(edited(kernel, named), uses=uses)
