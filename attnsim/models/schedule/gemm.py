"""Tiled GEMMs as cuBLAS and CUTLASS run them: one thread block a C tile, steps of k in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.nest import Nest, loop, once
from attnsim.models.schedule.operation import BLOCK, TileOp
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
    group = max(a.shared_by, b.shared_by)
    axes = {
        "b": Axis(batch // group), "g": Axis(group),
        "m": Axis(m, tile.m), "n": Axis(n, tile.n), "k": Axis(k, tile.k),
    }  # fmt: skip
    left = Tensor(a.tensor, "b m k" if a.shared_by > 1 else "b g m k", a.element_bytes)
    right = Tensor(b.tensor, "b k n" if b.shared_by > 1 else "b g k n", b.element_bytes)
    out = Tensor(c.tensor, "b g m n", c.element_bytes, written=True)
    flops, smem_bytes = 2 * tile.m * tile.n * tile.k, tile.operand_bytes(a.element_bytes)
    product = TileOp("mma", c.tensor, flops=flops, smem_bytes=smem_bytes)

    def c_tile(rows: int, columns: int, steps: Ints, missing_k: Ints) -> Nest:
        """What blocks of one size of C tile run; none of `steps` where a block's is of another size."""
        short, here = int(missing_k.max()), np.minimum(steps, 1)

        def loads(whole: bool) -> tuple[TileOp, TileOp]:
            depth = tile.k - short * (not whole)
            return left.load(rows * depth), right.load(depth * columns)

        def turn(load_next: bool, whole: bool) -> Iterator[TileOp]:
            yield from (left.wait(), right.wait(), product)
            yield from loads(whole) if load_next else ()

        filled, whole = np.minimum(steps, tile.stages), steps - (missing_k > 0)
        return [
            *once("prologue", [BLOCK], here),
            *loop("fill", filled, loads, whole=whole),
            *loop("k step", steps, turn, load_next=steps - filled, whole=whole - filled),
            *once(f"store {rows} x {columns}", [out.store(rows * columns)], here),
        ]

    def blocks(missing_m: Ints, missing_n: Ints, steps: Ints, missing_k: Ints) -> Nest:
        return [
            segment
            for y, x in dict.fromkeys(zip(missing_m.tolist(), missing_n.tolist(), strict=True))
            for segment in c_tile(tile.m - y, tile.n - x, steps * ((missing_m == y) & (missing_n == x)), missing_k)
        ]

    steps, missing_k = np.array(axes["k"].tiles), axes["k"].missing[-1]
    short_m, short_n = (axes[x].missing if axes[x].missing[-1] else axes[x].missing[-1:] for x in "mn")
    kernel = declared(
        name, axes, "b g m n", (left, right, out),
        {"missing_m": short_m[:, None], "missing_n": short_n, "steps": steps, "missing_k": missing_k}, blocks,
        each=1 if short_n[-1] else axes["n"].tiles, rule="piece", threads=tile.warps * 32, registers_per_thread=232,
        path="simt" if dtype == "fp32" else path, dtype=dtype, step="k step",
        buffers=(
            ("A", tile.stages * tile.m * tile.k * a.element_bytes),
            ("B", tile.stages * tile.n * tile.k * b.element_bytes),
        ),
    )  # fmt: skip
    m_tiles, n_tiles = axes["m"].tiles, axes["n"].tiles
    sharers = m_tiles * n_tiles
    uses = (
        TensorUse(a.tensor, m * k * a.element_bytes, max(1, batch // a.shared_by), sharers * a.shared_by),
        TensorUse(b.tensor, k * n * b.element_bytes, max(1, batch // b.shared_by), sharers * b.shared_by),
        TensorUse(c.tensor, m * n * c.element_bytes, batch, written=True),
    )
    rows = kernel.launches[0]
    if len(rows.rows) > 1 and short_m[-1]:
        grid = rows.classes.reshape(m_tiles, n_tiles)
        regular = (Launch(grid[0], (m_tiles - 1) * batch),) if m_tiles > 1 else ()
        kernel = replace(kernel, launches=(*regular, Launch(grid[-1], batch)))
    return replace(kernel, uses=uses)
