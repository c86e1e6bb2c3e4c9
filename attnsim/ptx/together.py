"""Instructions of one kind that may be executed as one, since none of them needs what another of them does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Self

from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Step


class Alike(ABC):
    """A compiled instruction that knows how to be executed with others.

    Parameters
    ----------
    kind : hashable
        Instructions of one kind do the same on other operands.
    memory : str, optional
        "" where it does not touch memory. Instructions that say the same here may pass each other, such as loads from
        shared memory; others that touch memory keep their order.
    targets : int, optional
        Leading operands that it writes; it reads the others.
    in_order : bool, optional
        Whether it may be executed with others that need what it does: they are then given in an order that holds.
    """

    def __init__(self, kind: Hashable, memory: str = "", targets: int = 1, in_order: bool = False) -> None:
        self.kind, self.memory, self.targets, self.in_order = kind, memory, targets, in_order

    @abstractmethod
    def __call__(self, mask: Mask) -> None:
        """Execute it."""

    @abstractmethod
    def together(self, others: Sequence[Self]) -> Step:
        """A step that executes it and others of its kind."""
