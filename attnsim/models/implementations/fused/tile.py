"""The tile of a fused forward kernel, and into how many ranges the keys are cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from attnsim.models.schedule.schedule import Path

Loop = Literal["fa2", "fa3", "staged", "ring"]
Order = Literal["ascending", "longest_first", "longest_first_by_sequence"]


@dataclass(frozen=True, slots=True)
class FlashTile:
    """How one implementation cuts a head into tiles.

    Parameters
    ----------
    rows, keys : int
        Tile of queries x keys.
    warps : int
        Compute warps of a block.
    loop : {"fa2", "fa3", "staged", "ring"}
        Loop order: single-buffered, warp-specialised with overlapped GEMMs, plain multi-stage, or multi-stage with one
        barrier a step (the tile `stages - 1` ahead is copied under a whole step).
    stages : int
        Buffers of K and of V.
    warpgroups : int
        Groups of warps that may run ahead of one another (2 when two warps share a scheduler).
    extra_threads : int
        Threads that only copy.
    registers : int
        Per thread.
    path : str
        Instruction path.
    q_in_registers, share_q_v, p_in_smem : bool
        Q fragments kept in registers; Q's buffer reused for V; P goes through shared memory.
    pack_gqa : bool
        Query heads of a group share the rows of a tile.
    order : {"ascending", "longest_first", "longest_first_by_sequence"}
        Launch order of row tiles; longest first runs heads fastest within a section that fits the L2, over all heads
        of the batch or over those of one sequence after the other.
    persistent : bool
        One block per SM fetches tiles.
    max_blocks_per_sm : int or None
        Launch bounds.
    rescale_once : bool
        O is rescaled where a row's maximum grows by more than is tolerated: at the first key tile, then hardly ever.
    edges_only : bool
        Of a window only the key tiles at its edges are masked, not all.
    from_first_key : bool
        The key tiles of a window begin at the first key that a row tile sees, not at a multiple of `keys`.
    by_row : bool
        The epilogue stores row by row, each through a pointer of its own, so that its latency follows the valid rows.
    """

    rows: int
    keys: int
    warps: int = 4
    loop: Loop = "fa2"
    stages: int = 1
    warpgroups: int = 1
    extra_threads: int = 0
    registers: int = 255
    path: Path = "mma_sync"
    q_in_registers: bool = False
    share_q_v: bool = False
    p_in_smem: bool = False
    pack_gqa: bool = False
    order: Order = "ascending"
    persistent: bool = False
    max_blocks_per_sm: int | None = None
    rescale_once: bool = False
    edges_only: bool = False
    from_first_key: bool = False
    by_row: bool = False

    def buffers(self, d: int, dv: int, element: int) -> tuple[tuple[str, int], ...]:
        """Shared-memory buffers of a block and their bytes."""
        q = self.rows * d * element
        k, v = self.stages * self.keys * d * element, self.stages * self.keys * dv * element
        parts = [("K", k), ("V", max(v, q) if self.share_q_v else v)]
        if not self.share_q_v:
            parts.insert(0, ("Q", q))
        if self.p_in_smem:
            parts.append(("P", self.rows * self.keys * element))
        return tuple(parts)

    def shared_memory_bytes(self, d: int, dv: int, element: int) -> int:
        """Sum of the buffers."""
        return sum(size for _, size in self.buffers(d, dv, element))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * 32 + self.extra_threads

    def __str__(self) -> str:
        stages = f", {self.stages} stages" if self.stages > 1 else ""
        packed = ", GQA packed" if self.pack_gqa else ""
        window = ", windows from their first key" if self.from_first_key else ""
        return f"{self.rows} x {self.keys}, {self.warps} warps{stages}{packed}{window}"


@dataclass(frozen=True, slots=True)
class Splits:
    """How many ranges the keys are cut into, and where partial results go.

    Parameters
    ----------
    count : int
    of_seen : bool
        Whether the ranges cut up what each row tile sees (FA3) instead of the whole of the keys (FA2).
    """

    count: int = 1
    of_seen: bool = False

    @property
    def partial(self) -> bool:
        """Whether blocks write fp32 partial results for a combine kernel."""
        return self.count > 1


def with_tile(tile: FlashTile, rows: int, keys: int, stages: int | None = None) -> FlashTile:
    """The same implementation on another tile: warps follow the rows, 16 or more of them each, or 64 a warpgroup.

    With `stages`, that many buffers of K and V too; a loop of one buffer becomes the ring that has several.
    """
    if stages is not None:
        loop: Loop = "ring" if tile.loop == "fa2" and stages > 1 else tile.loop
        tile = replace(tile, stages=stages, loop=loop)
    if tile.path == "mma_sync":
        warps = tile.warps
        while rows // warps < 16 and warps > 1:
            warps //= 2
        return replace(tile, rows=rows, keys=keys, warps=warps, warpgroups=min(tile.warpgroups, warps))
    if tile.path == "tcgen05":
        return replace(tile, rows=rows, keys=keys)
    groups = max(1, rows // 64)
    registers = min(255, 65536 // (groups * 128 + tile.extra_threads) // 8 * 8)
    return replace(tile, rows=rows, keys=keys, warps=4 * groups, warpgroups=groups, registers=registers)
