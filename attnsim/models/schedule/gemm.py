"""Tiled GEMMs as cuBLAS and CUTLASS run them: one thread block a C tile, steps of k in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.nest import Nest, loop, once
from attnsim.models.schedule.operation import BLOCK, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Path


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


MOST_LISTED = 1 << 16
"""C tiles of a matrix up to which a launch lists them all, where both the last row and the last column are shorter."""
BATCHED = by_hand(GemmTile(128, 128, 32, stages=3, warps=4), "tile of cuBLAS's batched GEMMs (closed), in 3 stages")


@lru_cache(maxsize=4096)
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
    parts: int = 1,
    raster: int = 0,
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
    parts : int
        Ranges of whole steps that k is cut into, each with a C of its own (split-K); the last has what is left.
    raster : int
        Columns of C tiles that are walked together, row after row, before the next ones; 0: all.
    """
    m, n, k = shape
    tile = tile or replace(BATCHED, n=64 if n <= 64 else BATCHED.n)
    group = max(a.shared_by, b.shared_by)
    axes = {
        "b": Axis(batch // group), "g": Axis(group), "s": Axis(parts, cuts="k"),
        "m": Axis(m, tile.m), "n": Axis(n, tile.n), "k": Axis(k, tile.k),
    }  # fmt: skip
    together = min(raster, axes["n"].tiles) or axes["n"].tiles
    axes |= {"columns": Axis(-(-axes["n"].tiles // together), cuts="n"), "column": Axis(together, cuts="n")}
    left = Tensor(a.tensor, "b m k" if a.shared_by > 1 else "b g m k", a.element_bytes)
    right = Tensor(b.tensor, "b k n" if b.shared_by > 1 else "b g k n", b.element_bytes)
    out = Tensor(c.tensor, "b g s m n", c.element_bytes, written=True)
    flops, smem_bytes = 2 * tile.m * tile.n * tile.k, tile.operand_bytes(a.element_bytes)
    product = TileOp("mma", c.tensor, flops=flops, smem_bytes=smem_bytes)

    def c_tile(rows: int, columns: int, steps: Ints, missing_k: Ints) -> Nest:
        """What a block of one size does, of `steps` steps: none where a class has blocks of another size."""
        short, filled, whole = int(missing_k.max()), np.minimum(steps, tile.stages), steps - (missing_k > 0)

        def loads(whole: bool) -> tuple[TileOp, TileOp]:
            depth = tile.k - short * (not whole)
            return left.load(rows * depth), right.load(depth * columns)

        def turn(load_next: bool, whole: bool) -> Iterator[TileOp]:
            yield from (left.wait(), right.wait(), product)
            yield from loads(whole) if load_next else ()

        return [
            *once("prologue", [BLOCK], steps > 0),
            *loop("fill", filled, loads, whole=whole),
            *loop("k step", steps, turn, load_next=steps - filled, whole=whole - filled),
            *once(f"store {rows} x {columns}", [out.store(rows * columns)], steps > 0),
        ]

    def blocks(missing_m: Ints, missing_n: Ints, steps: Ints, missing_k: Ints) -> Nest:
        sizes = dict.fromkeys(zip(missing_m.tolist(), missing_n.tolist(), strict=True))
        of_size = ((y, x, steps * ((missing_m == y) & (missing_n == x))) for y, x in sizes)
        return [one for y, x, turns in of_size for one in c_tile(tile.m - y, tile.n - x, turns, missing_k)]

    missing_m, missing_n = (np.array(sorted({0, axes[x].short})) for x in "mn")
    most = -(-axes["k"].tiles // parts)
    rest = axes["k"].tiles - most * (parts - 1)
    ends = [(most, 0), (rest, axes["k"].short)]
    steps, missing_k = np.array(ends if parts > 1 and ends[0] != ends[1] else ends[1:]).T[..., None, None]
    return declared(
        name, axes, "b g s columns m column", (left, right, out),
        {"missing_m": missing_m[:, None], "missing_n": missing_n, "steps": steps, "missing_k": missing_k}, blocks,
        launches=lambda kinds: _order(kinds, axes["m"], axes["n"], batch, parts),
        threads=tile.warps * 32, registers_per_thread=232, path="simt" if dtype == "fp32" else path, dtype=dtype,
        buffers=(
            ("A", tile.stages * tile.m * tile.k * a.element_bytes),
            ("B", tile.stages * tile.n * tile.k * b.element_bytes),
        ),
        step="k step",
    )  # fmt: skip


def _order(kinds: Ints, m: Axis, n: Axis, batch: int, parts: int = 1) -> tuple[Launch, ...]:
    """Blocks in the order of the grid: parts, then rows, then columns of C tiles.

    Parameters
    ----------
    kinds : ndarray of int, shape [1 or 2, 1 or 2, 1 or 2]
        Classes by part, row and column: of all but the last, and of the last, where that differs.
    m, n : Axis
    batch, parts : int
    """
    if len(kinds) > 1:
        return (*_order(kinds[:1], m, n, parts - 1), *_order(kinds[1:], m, n, 1)) * batch
    matrices = batch * parts
    if kinds.size == 1:
        return (Launch.alike(m.tiles * n.tiles * matrices, kinds.item()),)
    row, last = (np.append(np.full(n.tiles - 1, kinds[0, at, 0]), kinds[0, at, -1]) for at in (0, -1))
    if not m.short:
        return (Launch(row, m.tiles * matrices),)
    if m.tiles * n.tiles > MOST_LISTED:
        return (Launch(row, m.tiles - 1), Launch(last)) * matrices
    return (Launch(np.vstack([*[row] * (m.tiles - 1), last]), matrices),)
