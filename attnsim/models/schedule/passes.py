"""Kernels that stream tensors, and tiled GEMMs: what unfused attention and the helpers of fused kernels are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from attnsim.models.schedule.schedule import Kernel, Launch, Path, Segment, TensorUse, TileOp

STREAM_BYTES = 16 * 1024
"""Bytes a block of a helper kernel reads: 256 threads with four 16-byte loads each in flight."""
BROADCAST_INSTRUCTIONS = 50
"""Integer instructions per element of an elementwise pass with a broadcast operand, before the fitted `extra`.

PyTorch's TensorIterator then computes each element's offset from its index with divisions instead of loading vectors
(``aten/src/ATen/native/cuda/OffsetCalculator.cuh``)."""


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor that a streaming kernel goes over once."""

    tensor: str
    bytes: int
    written: bool = False


def streaming(
    name: str,
    accesses: Sequence[Access],
    *,
    elements: int,
    exps: int = 0,
    fp32_per_element: float = 1.0,
    int32_per_element: int = 0,
    threads: int = 256,
    block_bytes: int = STREAM_BYTES,
    blocks: int | None = None,
) -> Kernel:
    """A kernel that reads and writes each tensor once, in blocks of about `block_bytes` of its largest tensor.

    Blocks have equal shares, to a byte.

    Parameters
    ----------
    name : str
    accesses : sequence of Access
    elements : int
        Elements processed, for the arithmetic.
    exps : int
        Exponentials over the whole grid.
    fp32_per_element : float
        FP32-lane instructions per element.
    int32_per_element : int
        Integer instructions per element.
    threads, block_bytes : int
    blocks : int, optional
        Number of blocks, when the implementation fixes it.
    """
    largest = max(access.bytes for access in accesses)
    count = blocks or max(1, -(-largest // block_bytes))
    # Bytes that are left over go one each to the first blocks, so that all add up.
    shares = [divmod(access.bytes, count) for access in accesses]
    bounds = sorted({0, count, *(left for _, left in shares)})
    part = elements // count
    fp32, int32 = round(part * fp32_per_element), part * int32_per_element
    work = TileOp("vector", name, exps=exps // count, fp32=fp32, int32=int32), TileOp("delay", "step")

    def block(tag: str, first: int) -> Segment:
        moved = [(a, n + (first < left)) for a, (n, left) in zip(accesses, shares, strict=True) if n or first < left]
        loads = [TileOp("load", a.tensor, bytes=n) for a, n in moved if not a.written]
        stores = [TileOp("store", a.tensor, bytes=n) for a, n in moved if a.written]
        return Segment(tag, (*loads, *(TileOp("wait", load.tensor) for load in loads), *work, *stores))

    tags = [*(f"block with odd bytes {n}" for n in range(1, len(bounds) - 1)), "block"]
    segments = tuple(block(tag, first) for tag, first in zip(tags, bounds, strict=False))
    launches = tuple(Launch(np.array([number]), end - begin) for number, (begin, end) in enumerate(pairwise(bounds)))
    return Kernel(
        name=name,
        threads=threads,
        registers_per_thread=32,
        shared_memory_bytes=0,
        segments=segments,
        repeats=np.eye(len(segments), dtype=np.int64)[:, None, :],
        launches=launches,
        uses=tuple(TensorUse(a.tensor, a.bytes, 1, written=a.written) for a in accesses),
        dtype="fp32",
        step="block",
    )


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of a batched GEMM: its name, element size, and how many batch entries share one copy."""

    tensor: str
    element_bytes: int = 2
    shared_by: int = 1


@dataclass(frozen=True, slots=True)
class GemmTile:
    """Tile of a cuBLAS-like GEMM: C tile, depth of a step, stages and warps.

    Warps stand in a grid of two columns; `bands` is how many bands of rows the C tile has that each read all of B and
    their own rows of A from shared memory, as warpgroups with wgmma do (0: as warps do).
    """

    m: int = 128
    n: int = 128
    k: int = 32
    stages: int = 3
    warps: int = 4
    bands: int = 0

    def operand_bytes(self, element_bytes: int) -> int:
        """Bytes of A and B that a step reads from shared memory."""
        a_reads, b_reads = (1, self.bands) if self.bands else (self.warps // 2, 2)
        return (a_reads * self.m + b_reads * self.n) * self.k * element_bytes


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
        Default 128 x 128 x 32, narrowed to 64 columns where n is no larger.
    """
    m, n, k = shape
    tile = tile or GemmTile(n=64 if n <= 64 else 128)
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
    segments: list[Segment] = []
    for rows, columns in kinds:
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
        segments += [Segment(f"{what}{tag}", ops) for (what, ops), n in zip(loop, counts, strict=True) if n]
    used = np.array([n for n in counts if n], dtype=np.int64)
    repeats = (np.eye(len(kinds), dtype=np.int64)[:, :, None] * used).reshape(len(kinds), 1, -1)
    sharers = m_tiles * n_tiles
    return Kernel(
        name=name,
        threads=tile.warps * 32,
        registers_per_thread=232,
        shared_memory_bytes=tile.stages * (tile.m + tile.n) * tile.k * a.element_bytes,
        segments=tuple(segments),
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

    def row(height: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        out = np.full(tiles[1], kinds.index((height, tile.n if tiles[1] > 1 else last[1])), dtype=np.int64)
        out[-1] = kinds.index((height, last[1]))
        return out

    if len(kinds) == 1:
        return (Launch(np.zeros(1, np.int64), tiles[0] * tiles[1] * batch),)
    regular = (tiles[0] - 1) * batch
    return (*((Launch(row(tile.m), regular),) if regular else ()), Launch(row(last[0]), batch))
