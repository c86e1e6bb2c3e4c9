"""Tile operations under construction from instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from attnsim.models.schedule.operation import Kind, TileOp
from attnsim.ptx.lanes import WARP

VANISHING = ("moves",)
"""Pipes of PTX instructions that the assembler merges or drops."""

CHARGED: tuple[Kind, ...] = ("vector", "mma", "mma_async")
"""Operations that are charged by instructions; those of copies, waits and stores are added to the next operation."""


@dataclass(slots=True)
class Draft:
    """One unfinished operation.

    Parameters
    ----------
    bytes, flops, smem_bytes, exps, fp32, scores : int
        As in :class:`attnsim.models.schedule.operation.TileOp`; `fp32` includes the work that becomes part of `scores`.
    special : int
        Other operations of the special function unit.
    on_sums : int
        Part of `fp32` that works on the results of products other than scores, such as the rescaling of O.
    instructions : Counter of str
        Warp instructions of the PTX by pipe.
    outputs : set of str
        Accumulator registers of a product.
    lanes : int
        Lanes that hold the accumulators.
    chains : int
        Number of accumulators that are summed into each result.
    consumed : bool
        Product: its result reaches an exponential.
    waited : bool
        Load: its wait has been found.
    whole : bool
        Copy: it is the copy of the whole block, not the part of one warpgroup.
    each_step : bool
        Store: it is in the loop of the products, so that every step has it.
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
        """Number of elements of a product."""
        return len(self.outputs) * self.lanes // self.chains

    @property
    def works(self) -> bool:
        """True if it has work other than addresses and predicates, which are counted with the next operation."""
        return bool(self.exps or self.special or self.fp32 or self.smem_bytes)

    def add(self, other: Draft) -> None:
        """Add the work of another operation."""
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
        """Return one of `times` equal parts, under a name of its own, so that no loop is found over them."""
        instructions = Counter({pipe: count // times for pipe, count in self.instructions.items()})
        smem_bytes = self.smem_bytes // times
        return replace(self, tensor=name, flops=self.flops // times, smem_bytes=smem_bytes, instructions=instructions)

    def operation(self, groups: int, counted: Counter[str] | None) -> TileOp:
        """Return the finished operation for one of `groups` warpgroups that share it.

        Parameters
        ----------
        counted : Counter of str or None
            Its warp instructions by pipe, to charge by; None to charge scores by fitted numbers.
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
    """True if an operation is a matrix product."""
    return draft.kind in ("mma", "mma_async")
