"""An operation on a tile while it is being put together from instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from attnsim.models.schedule.operation import Kind, TileOp
from attnsim.ptx.lanes import WARP

VANISHING = ("moves",)
"""Instructions of PTX that the assembler joins with others or drops."""

CHARGED: tuple[Kind, ...] = ("vector", "mma", "mma_async")
"""Operations that are charged by instructions; those of copies, waits and stores go with what follows."""


@dataclass(slots=True)
class Draft:
    """One operation, not finished.

    Parameters
    ----------
    kind : Kind
    tensor : str
    bytes, flops, smem_bytes, exps, fp32, scores : int
        As of :class:`attnsim.models.schedule.operation.TileOp`; `fp32` with what becomes part of `scores`.
    special : int
        What runs on the unit of exponentials beside them.
    on_sums : int
        Those of `fp32` that work on the results of products that are no scores: that rescale O.
    instructions : Counter of str
        Warp instructions of the PTX by pipe.
    outputs : set of str
        Accumulators of a product.
    lanes : int
        That hold them.
    chains : int
        Accumulators that each of its results is the sum of.
    consumed : bool
        Of a product: whether its result reaches an exponential.
    waited : bool
        Of a load: whether its wait has been found.
    whole : bool
        Of a copy: whether it is what the whole block copies, not the part of one warpgroup.
    each_step : bool
        Of a store: whether it stands in the loop of the products, so that a block that turns once is like the others.
    """

    kind: Kind
    tensor: str = ""
    bytes: int = 0
    flops: int = 0
    smem_bytes: int = 0
    exps: int = 0
    fp32: int = 0
    scores: int = 0
    special: int = 0
    on_sums: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    outputs: set[str] = field(default_factory=set)
    lanes: int = 0
    chains: int = 1
    consumed: bool = False
    waited: bool = False
    whole: bool = False
    each_step: bool = False

    @property
    def results(self) -> int:
        """Elements of a product."""
        return len(self.outputs) * self.lanes // self.chains

    @property
    def works(self) -> bool:
        """Whether it is more than addresses and predicates, which are counted with what follows."""
        return bool(self.exps or self.special or self.fp32 or self.smem_bytes)

    def add(self, other: Draft) -> None:
        """Take the work of another operation in."""
        self.bytes += other.bytes
        self.flops += other.flops
        self.smem_bytes += other.smem_bytes
        self.exps += other.exps
        self.fp32 += other.fp32
        self.scores += other.scores
        self.special += other.special
        self.on_sums += other.on_sums
        self.instructions += other.instructions
        self.outputs |= other.outputs
        self.consumed = self.consumed or other.consumed

    def part(self, times: int, name: str) -> Draft:
        """One of so many equal parts, under a name of its own: no loop goes over them."""
        instructions = Counter({pipe: count // times for pipe, count in self.instructions.items()})
        smem_bytes = self.smem_bytes // times
        return replace(self, tensor=name, flops=self.flops // times, smem_bytes=smem_bytes, instructions=instructions)

    def operation(self, groups: int, counted: Counter[str] | None) -> TileOp:
        """The operation of one of `groups` warpgroups that share it, without what it was put together with.

        Parameters
        ----------
        groups : int
        counted : Counter of str or None
            Its warp instructions by pipe, to be charged by them; None to charge scores by fitted numbers.
        """
        op = TileOp(
            self.kind,
            "P" if self.kind == "vector" and self.scores else self.tensor,
            bytes=self.bytes,
            flops=self.flops // groups,
            smem_bytes=self.smem_bytes // groups,
            scores=self.scores // groups,
            exps=(self.exps + self.special) // groups,
            fp32=self.fp32 // groups,
        )
        if counted is None:
            return op
        return op._replace(
            fp32=WARP * counted["FMA"] // groups,
            int32=WARP * counted["ALU"] // groups,
            load_stores=WARP * counted["LSU"] // groups,
            issues=sum(count for pipe, count in counted.items() if pipe not in VANISHING) // groups,
        )


def is_product(draft: Draft) -> bool:
    """Whether an operation is a product of matrices."""
    return draft.kind in ("mma", "mma_async")
