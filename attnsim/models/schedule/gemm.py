"""Tiled GEMMs as cuBLAS and CUTLASS run them: one thread block a C tile, steps of k in flight."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Path
from attnsim.models.schedule.uses import TensorUse


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of a batched GEMM: its name, element size, and how many batch entries share one copy."""

    tensor: str
    element_bytes: int = 2
    shared_by: int = 1


@dataclass(frozen=True, slots=True)
class GemmTile:
    """Tile of a cuBLAS-like GEMM.

    Parameters
    ----------
    m, n : int
        Rows and columns of the C tile.
    k : int
        Depth of a step.
    stages : int
        Steps of A and B in shared memory.
    warps : int
    bands : int
        Number of warpgroups stacked along m; each reads its own rows of A and all of B from shared memory. 0 means
        mma.sync warps in a grid of two columns.
    """

    m: int
    n: int
    k: int
    stages: int
    warps: int
    bands: int = 0

    def operand_bytes(self, element_bytes: int) -> int:
        """Bytes of A and B that a step reads from shared memory."""
        a_reads, b_reads = (1, self.bands) if self.bands else (self.warps // 2, 2)
        return (a_reads * self.m + b_reads * self.n) * self.k * element_bytes

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


BATCHED = by_hand(GemmTile(128, 128, 32, stages=3, warps=4), "tile of cuBLAS's batched GEMMs (closed), in 3 stages")


def gemm(
    name: str,
    batch: int,
    shape: tuple[int, int, int],
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    dtype: str,
    path: Path = "mma_sync",
    tile: GemmTile | None = None,
) -> Kernel:
    """A batched GEMM C[m, n] = A[m, k] B[k, n], one block per C tile, `stages` steps of k in flight.

    Parameters
    ----------
    name : str
    batch : int
    shape : (int, int, int)
        m, n, k.
    a, b, c : Operand
    dtype : str
        Input format on the tensor cores ("fp32": the FP32 lanes).
    path : str
    tile : GemmTile, optional
        Default `BATCHED`, narrowed to 64 columns where n is no larger.
    """
    m, n, k = shape
    tile = tile or replace(BATCHED, n=64 if n <= 64 else BATCHED.n)
    steps = -(-k // tile.k)
    last_k = k - (steps - 1) * tile.k
    short = int(last_k < tile.k)
    m_tiles, n_tiles = -(-m // tile.m), -(-n // tile.n)
    last_m, last_n = m - (m_tiles - 1) * tile.m, n - (n_tiles - 1) * tile.n
    kinds = list(dict.fromkeys((rows, columns) for rows in (tile.m, last_m) for columns in (tile.n, last_n)))
    refills = max(steps - tile.stages, 0)
    filled = steps - refills
    short_fill, short_refill = short * (not refills), short * bool(refills)
    counts = (1, filled - short_fill, short_fill, refills - short_refill, short_refill, filled, 1)
    flops = 2 * tile.m * tile.n * tile.k
    product = TileOp("mma", c.tensor, flops=flops, smem_bytes=tile.operand_bytes(a.element_bytes))
    nest: Nest = []
    for (rows, columns), chosen in zip(kinds, np.eye(len(kinds), dtype=np.int64), strict=True):
        tag = "" if len(kinds) == 1 else f", {rows} x {columns}"
        whole, last = (
            (
                TileOp("load", a.tensor, bytes=rows * depth * a.element_bytes),
                TileOp("load", b.tensor, bytes=depth * columns * b.element_bytes),
            )
            for depth in (tile.k, last_k)
        )
        step = (TileOp("wait", a.tensor), TileOp("wait", b.tensor), product)
        loop = (
            ("prologue", (TileOp("delay", "block"),)),
            ("fill", whole),
            ("fill, last k", last),
            ("k step", (*step, *whole)),
            ("k step, last load", (*step, *last)),
            ("k step, no load", step),
            ("store", (TileOp("store", c.tensor, bytes=rows * columns * c.element_bytes),)),
        )
        nest += [(Segment(f"{what}{tag}", ops), n * chosen) for (what, ops), n in zip(loop, counts, strict=True)]
    segments, repeats = loop_nest(nest)
    sharers = m_tiles * n_tiles
    return Kernel(
        name=name,
        threads=tile.warps * 32,
        registers_per_thread=232,
        segments=segments,
        repeats=repeats,
        launches=_tile_grid(kinds, tile, (last_m, last_n), (m_tiles, n_tiles), batch),
        uses=(
            TensorUse(a.tensor, m * k * a.element_bytes, max(1, batch // a.shared_by), sharers * a.shared_by),
            TensorUse(b.tensor, k * n * b.element_bytes, max(1, batch // b.shared_by), sharers * b.shared_by),
            TensorUse(c.tensor, m * n * c.element_bytes, batch, written=True),
        ),
        path="simt" if dtype == "fp32" else path,
        buffers=(
            ("A", tile.stages * tile.m * tile.k * a.element_bytes),
            ("B", tile.stages * tile.n * tile.k * b.element_bytes),
        ),
        dtype=dtype,
        step="k step",
    )


def _tile_grid(
    kinds: list[tuple[int, int]], tile: GemmTile, last: tuple[int, int], tiles: tuple[int, int], batch: int
) -> tuple[Launch, ...]:
    """Rows of C tiles: the regular ones of all batch entries, then the shorter last ones."""

    def row(height: int) -> Ints:
        out = np.full(tiles[1], kinds.index((height, tile.n if tiles[1] > 1 else last[1])), dtype=np.int64)
        out[-1] = kinds.index((height, last[1]))
        return out

    if len(kinds) == 1:
        return (Launch.alike(tiles[0] * tiles[1] * batch),)
    regular = (tiles[0] - 1) * batch
    return (*((Launch(row(tile.m), regular),) if regular else ()), Launch(row(last[0]), batch))
