"""Tiled GEMMs as cuBLAS and CUTLASS run them: one thread block a C tile, steps of k in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.operation import BLOCK, Nest, TileOp, loop, once
from attnsim.models.schedule.schedule import Buffers, Kernel, Launch, Path, bytes_of


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of a batched GEMM: its name, element size, and how many batch entries share one copy."""

    tensor: str
    element_bytes: int = 2
    shared_by: int = 1


@dataclass(frozen=True, slots=True)
class GemmTile:
    """Tile of a GEMM.

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
        Number of warpgroups, or of products of 128 rows, stacked along m; each reads its own rows of A and all of B
        from shared memory. 0 means mma.sync warps, of 64 rows and 64 columns each where there are four or more.
    cluster : int
        Blocks along m that share B: each asks the L2 for its part of the columns, which all of them get.
    paired : bool
        Whether the tensor cores read B from the shared memory of all blocks of the cluster (tcgen05's
        ``cta_group::2``), so that each holds its part only.
    """

    m: int
    n: int
    k: int
    stages: int
    warps: int
    bands: int = 0
    cluster: int = 1
    paired: bool = False

    def asked(self, m: int) -> int:
        """Columns of B that a block asks for, of a product of m rows."""
        return self.n // self.cluster if m > self.m else self.n

    def held(self, m: int) -> int:
        """Columns of B that a block holds."""
        return self.asked(m) if self.paired else self.n

    def operand_bytes(self, m: int, element_bytes: int) -> int:
        """Bytes of A and B that a step reads from shared memory, of a product of m rows."""
        a_reads, b_reads = (1, self.bands) if self.bands else (max(2, self.n // 64), max(2, self.m // 64))
        return (a_reads * self.m + b_reads * self.held(m)) * self.k * element_bytes

    def buffers(self, m: int, element_bytes: int) -> Buffers:
        """Shared memory of a block, of a product of m rows."""
        step = self.stages * self.k * element_bytes
        return ("A", self.m * step), ("B", self.held(m) * step)

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


MOST_LISTED = 1 << 16
"""C tiles of a matrix up to which a launch lists them all, where both the last row and the last column are shorter."""

_WGMMA = ((256, 128), *((128, n) for n in range(256, 63, -32)))
_TCGEN05 = {(256, 256): 4, (192, 256): 5, (256, 128): 5, (128, 256): 6, (128, 192): 6, (128, 160): 8, (64, 64): 16}
TILES: dict[Path, tuple[GemmTile, ...]] = by_hand(
    {
        "wgmma": (
            *(GemmTile(m, n, 64, stages=4, warps=8, bands=2, cluster=2) for m, n in _WGMMA),
            *(GemmTile(64, n, 64, stages=4, warps=4, bands=1, cluster=2) for n in (256, 192, 128, 64)),
        ),
        "tcgen05": (
            *(
                GemmTile(m, n, 64, stages, warps=4, bands=-(-m // 128), cluster=2, paired=True)
                for (m, n), stages in _TCGEN05.items()
            ),
            *(GemmTile(128, n, 64, stages=4, warps=4, bands=1) for n in range(256, 63, -32)),
        ),
        "mma_sync": (
            GemmTile(128, 256, 64, stages=3, warps=8),
            GemmTile(128, 256, 32, stages=3, warps=8),
            GemmTile(256, 128, 32, stages=3, warps=8),
            GemmTile(128, 128, 64, stages=3, warps=4),
            GemmTile(128, 64, 64, stages=3, warps=4),
            GemmTile(64, 64, 64, stages=6, warps=4),
            GemmTile(128, 128, 32, stages=2, warps=4),
            GemmTile(64, 64, 32, stages=2, warps=4),
        ),
    },
    "tiles of cuBLAS's GEMMs (closed) by instruction path, largest first, among those that traces name",
)
"""k is for 16-bit elements. Names of cuBLAS's kernels, with m, n, k and stages or cluster in them, as profilers' traces
in public repositories and in pytorch/xla pull request 6518 have them:

* ``ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3``, ``256x128_..._32x3``, ``128x128_..._64x3``,
  ``128x64_..._64x3``, ``64x64_..._64x6``; before Ampere there is no ``cp.async`` to fill more than two stages (no
  trace);
* ``sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1``, ``128x128x64``, ``64x128x64``, and
  ``nvjet_tst_128x256_64x4_1x2_h_bz_coopA``, ``256x128_64x4_1x2``, with widths in steps of 8 to 32;
* ``nvjet_sm100_tst_256x256_64x4_2x1_2cta_v_bz``, ``192x256_64x5``, ``256x128_64x5``, ``128x256_64x6``,
  ``128x192_64x6``, ``128x160_64x8``, ``64x64_64x16``. Their stages fill shared memory where the tile is one block's
  and half of B its own.

A cluster of 2 x 1 or 1 x 2 shares one operand of the two; here it is always B.
Where a product has one row of tiles, pairs give way to tiles of 128 rows without (no trace).
"""
ENDS_CLKS = by_hand(2000, "clocks that cuBLAS's choice of a tile counts for a block's beginning and end")


def gemm_path(gpu: Gpu) -> Path:
    """The tensor-core instructions that cuBLAS has on a GPU."""
    return "wgmma" if gpu.features.wgmma else "tcgen05" if gpu.features.tcgen05 else "mma_sync"


def _fits(tile: GemmTile, gpu: Gpu, m: int, element_bytes: int) -> bool:
    return bytes_of(tile.buffers(m, element_bytes)) <= gpu.sm.shared_memory_per_block_bytes


def _tiles(gpu: Gpu, dtype: str, element_bytes: int) -> list[GemmTile]:
    tiles = TILES["mma_sync" if dtype == "fp32" else gemm_path(gpu)]
    found = [replace(tile, k=tile.k * 2 // element_bytes) for tile in tiles]
    fewer = [] if _fits(found[-1], gpu, 0, element_bytes) else [replace(found[-1], stages=2)]
    return [*found, *fewer]


def library_tiles(gpu: Gpu, dtype: str, m: int, element_bytes: int) -> list[GemmTile]:
    """Tiles that cuBLAS has for a product of m rows on a GPU, as deep in k as the elements' size allows."""
    tiles = _tiles(gpu, dtype, element_bytes)
    return [tile for tile in tiles if _fits(tile, gpu, m, element_bytes)] or tiles[-1:]  # which is refused by its bytes


def waves_s(
    tile: GemmTile, batch: Any, shape: tuple[Any, Any, Any], gpu: Gpu, dtype: str, e: int, parts: int = 1
) -> Any:
    """Seconds of whole waves of tiles, with their ends, at the tensor cores' rate or as the L2 brings A and B.

    Of one product, or of many as columns that share B in clusters all or not at all; `e` bytes an element.
    """
    m, n, k = shape
    flops_per_clk = (gpu.mma_sync_flops_per_clk if gemm_path(gpu) == "mma_sync" else gpu.tensor_flops_per_clk)(dtype)
    waves = -(-batch * parts * -(-m // tile.m) * -(-n // tile.n) // gpu.sm.count)
    products = 2 * tile.m * tile.n / (flops_per_clk * gpu.clock.full_hz)
    operands = (tile.m + tile.asked(np.min(m))) * e * gpu.sm.count / gpu.l2.bandwidth_bytes_per_s
    return waves * (k / parts * max(products, operands) + ENDS_CLKS / gpu.clock.full_hz)


def library_tile(gpu: Gpu, dtype: str, batch: int, shape: tuple[int, int, int], element_bytes: int) -> GemmTile:
    """The tile of cuBLAS whose whole waves are done first, the largest among equals.

    For the GPU without its changes, as the library has chosen it.
    """
    chip = gpu.tiled_for
    tiles = library_tiles(chip, dtype, shape[0], element_bytes)
    return min(tiles, key=lambda tile: float(waves_s(tile, batch, shape, chip, dtype, element_bytes)))


def library_counts(gpu: Gpu, dtype: str, batch: Ints, m: Ints, n: Ints, k: Ints, element_bytes: int) -> Ints:
    """Counts of products on the tile of each: reads of A, columns of B asked for, executed FLOPs, ``[3, products]``."""
    chip, least, found = gpu.tiled_for, np.full(len(m), np.inf), np.zeros((3, len(m)), np.int64)
    for tile in _tiles(chip, dtype, element_bytes):
        for some in (np.flatnonzero(m > tile.m), np.flatnonzero(m <= tile.m)):
            height = int(m[some].min()) if len(some) else 0
            if not len(some) or not _fits(tile, chip, height, element_bytes):
                continue
            times = waves_s(tile, batch[some], (m[some], n[some], k[some]), chip, dtype, element_bytes)
            own, asked = some[times < least[some]], tile.asked(height)
            least[own] = times[times < least[some]]
            down, across = -(-m[own] // tile.m), -(-n[own] // tile.n)
            whole, rest = np.divmod(n[own], tile.n)
            steps = batch[own] * down * across * -(-k[own] // tile.k)
            flops = steps * 2 * tile.m * tile.n * tile.k
            found[:, own] = across, down * (whole * asked + -(-rest * asked // tile.n)), flops
    return found


def library_gemm(
    name: str, batch: int, shape: tuple[int, int, int], a: Operand, b: Operand, c: Operand, *, dtype: str, gpu: Gpu
) -> Kernel:
    """A batched GEMM as cuBLAS runs it on a GPU, see :func:`gemm`."""
    tile = library_tile(gpu, dtype, batch, shape, a.element_bytes)
    return gemm(name, batch, shape, a, b, c, dtype=dtype, path=gemm_path(gpu), tile=tile)


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
    tile: GemmTile,
    path: Path = "mma_sync",
    parts: int = 1,
    raster: int = 0,
    last: tuple[TileOp, ...] = (BLOCK,),
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
    tile : GemmTile
    path : str
    parts : int
        Ranges of whole steps that k is cut into, each with a C of its own (split-K); the last has what is left.
    raster : int
        Columns of C tiles that are walked together, row after row, before the next ones; 0: all.
    last : tuple of TileOp
        What a block does between its last product and the store of C.
    """
    m, n, k = shape
    group = max(a.shared_by, b.shared_by)
    axes = {
        "b": Axis(batch // group),
        "g": Axis(group),
        "s": Axis(parts, cuts="k"),
        "m": Axis(m, tile.m),
        "n": Axis(n, tile.n),
        "k": Axis(k, tile.k),
    }
    together = min(raster, axes["n"].tiles) or axes["n"].tiles
    axes |= {"columns": Axis(-(-axes["n"].tiles // together), cuts="n"), "column": Axis(together, cuts="n")}
    left = Tensor(a.tensor, "b m k" if a.shared_by > 1 else "b g m k", a.element_bytes)
    right = Tensor(b.tensor, "b k n" if b.shared_by > 1 else "b g k n", b.element_bytes)
    out = Tensor(c.tensor, "b g s m n", c.element_bytes, written=True)
    flops, smem_bytes = 2 * tile.m * tile.n * tile.k, tile.operand_bytes(m, a.element_bytes)
    product = TileOp("mma", c.tensor, flops=flops, smem_bytes=smem_bytes)

    def c_tile(rows: int, columns: int, steps: Ints, missing_k: Ints) -> Nest:
        """Operations of a block of one size, of `steps` steps: none where a class has blocks of another size."""
        short, filled, whole = int(missing_k.max()), np.minimum(steps, tile.stages), steps - (missing_k > 0)

        def loads(whole: bool) -> tuple[TileOp, TileOp]:
            depth = tile.k - short * (not whole)
            return left.load(rows * depth), right.load(depth * -(-columns * tile.asked(m) // tile.n))

        def turn(load_next: bool, whole: bool) -> Iterator[TileOp]:
            yield from (left.wait(), right.wait(), product)
            yield from loads(whole) if load_next else ()

        return [
            *once("prologue", [BLOCK], steps > 0),
            *loop("fill", filled, loads, whole=whole),
            *loop("k step", steps, turn, load_next=steps - filled, whole=whole - filled),
            *once(f"store {rows} x {columns}", [*last, out.store(rows * columns)], steps > 0),
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
        name,
        axes,
        "b g s columns m column",
        (left, right, out),
        {"missing_m": missing_m[:, None], "missing_n": missing_n, "steps": steps, "missing_k": missing_k},
        blocks,
        launches=lambda kinds: _order(kinds, axes["m"], axes["n"], batch, parts),
        threads=tile.warps * 32,
        registers_per_thread=232,
        path="simt" if dtype == "fp32" else path,
        dtype=dtype,
        buffers=tile.buffers(m, a.element_bytes),
        step="k step",
    )


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
