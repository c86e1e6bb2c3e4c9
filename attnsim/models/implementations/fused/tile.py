"""Tiles of fused kernels, forward and backward, and whether they fit a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Buffers, Path, bytes_of, check_shared_memory

Loop = Literal["fa2", "fa3", "staged", "ring"]
Order = Literal[
    "ascending",
    "longest_first",
    "longest_first_by_sequence",
    "planned",
    "grid_by_sequence",
    "last_rows_first",
    "sections_by_sequence",
    "most_queries_first",
]
GRIDS_OF_THE_LONGEST: tuple[Order, ...] = ("grid_by_sequence", "last_rows_first")
"""Orders whose grids have as many row tiles for every sequence as the longest has."""

FRAGMENT_COLUMNS = 16
"""Least columns of an operand that a warp's ``ldmatrix.x4`` loads; m16n8k16 needs eight of them."""
DQ_COLUMNS = 32
"""Columns of dQ that tcgen05 kernels pass to a TMA reduction at a time (``flash_bwd_sm100.py``, `dQ_reduce_ncol`)."""
ROWS = (64, 128, 192, 256)
KEYS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
ACCUMULATOR_REGISTERS = 200
"""fp32 accumulators that a thread may hold in addition to addresses and fragments, of 255 registers."""
_MOST_REGISTERS = 255


@dataclass(frozen=True, slots=True)
class FlashTile:
    """Tiling of a head by an implementation.

    Parameters
    ----------
    rows, keys : int
        Tile of queries x keys.
    warps : int
        Compute warps of a block.
    loop : {"fa2", "fa3", "staged", "ring"}
        Loop order: single-buffered; warp-specialised with overlapped GEMMs; plain multi-stage; or multi-stage with one
        barrier per step (the tile `stages - 1` ahead is copied under a whole step).
    stages : int
        Buffers of K and of V.
    warpgroups : int
        Groups of warps that may run ahead of one another (2 when two warps share a scheduler).
    extra_threads : int
        Threads that only copy.
    registers : int
        Registers per thread.
    path : str
        Instruction path.
    q_in_registers, share_q_v, p_in_smem : bool
        Q fragments kept in registers; Q's buffer reused for V; P goes through shared memory.
    pack_gqa : bool
        Query heads of a group share the rows of a tile.
    order : str
        Launch order of row tiles, one of `Order`. Longest first runs heads fastest within a section that fits the L2,
        over all heads of the batch or sequence by sequence. Planned is the order of FlashInfer's plans. The last four
        differ from these only for sequences of different lengths (:mod:`attnsim.models.implementations.fused.order`).
    persistent : bool
        One block per SM fetches tiles.
    max_blocks_per_sm : int or None
        Launch bounds.
    rescale : {"always", "through_registers", "first", "seldom"}
        When the softmax rescales O. "always": at every key tile. "through_registers": the same, with accumulators in
        tensor memory passing through registers. "first": only if a row's maximum grows by more than a tolerance, in
        effect at the first key tile. "seldom": as "first", by separate warps.
    emulated : (int, int)
        Fraction of the exponentials that are polynomials on the FMA pipes: (numerator, denominator).
    edges_only : bool
        In a window, only the key tiles at its edges are masked, not all.
    masks_all : bool
        Under a mask every key tile is masked: the kernel has one loop.
    from_first_key : bool
        The key tiles of a window begin at the first key that a row tile sees, not at a multiple of `keys`.
    widths : (int, int), optional
        Head dimensions of K and of V that it computes with; None: the next of FlashAttention's list.
    warps_share_keys : bool
        Each mma.sync warp multiplies its own keys, so that all warps together read K and V once.
    across : int
        Warps of mma.sync side by side along the keys of S and the columns of O, each of which reads all of Q and of P.
    by_row : bool
        The epilogue stores row by row, each through its own pointer, so that its latency scales with the valid rows.
    looks_up_pages : bool
        The multiplying warps read the page numbers of a tile of keys, and wait for them, before they copy it. Otherwise
        other warps do, or well ahead. Only the loop "fa2" plays it. A cache without a page size has pages of one key
        (SGLang's `page_size = 1`).
    slices : int
        Columns of Q, K and V per slice, if they pass through shared memory in slices. Two slices are resident, so that
        its size is independent of head_dim. Q is then re-read for each key tile, and the accumulators of O are in
        memory. 0: whole tiles. Only the loop "fa2" plays it.
    cache_bytes : int
        Bytes per element of K and V if their format is not Q's; with more than 16 rows, a whole tile of them is then
        converted in a separate buffer. 0 if it is Q's.
    counts : StepCounts, optional
        Instructions of a step from machine code; None if not counted.
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
    rescale: Literal["always", "through_registers", "first", "seldom"] = "always"
    emulated: tuple[int, int] = (0, 1)
    edges_only: bool = False
    masks_all: bool = False
    from_first_key: bool = False
    widths: tuple[int, int] | None = None
    warps_share_keys: bool = False
    across: int = 1
    by_row: bool = False
    looks_up_pages: bool = False
    slices: int = 0
    cache_bytes: int = 0
    counts: StepCounts | None = None

    def buffers(self, d: int, dv: int, element: int) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        d, dv = (2 * self.slices, 2 * self.slices) if self.slices else (d, dv)
        q = self.rows * d * element
        k, v = (self.stages * self.keys * columns * (self.cache_bytes or element) for columns in (d, dv))
        parts = [("K", k), ("V", max(v, q) if self.share_q_v else v)]
        if not self.share_q_v:
            parts.insert(0, ("Q", q))
        if self.p_in_smem:
            parts.append(("P", self.rows * self.keys * element))
        if self.cache_bytes and self.rows > 16:
            parts.append(("K, V converted", self.keys * max(d, dv) * element))
        return tuple(parts)

    def shared_memory_bytes(self, d: int, dv: int, element: int) -> int:
        """Sum of the buffers."""
        return bytes_of(self.buffers(d, dv, element))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * 32 + self.extra_threads

    @property
    def readers(self) -> int:
        """Times that a block reads a tile of K or V from shared memory: once per warp, or per warpgroup of wgmma."""
        each_warp = self.path == "mma_sync" and not self.warps_share_keys
        return self.warps // self.warpgroups * self.warpgroups if each_warp else self.warpgroups

    def read_columns(self, columns: int) -> int:
        """Columns of an operand that side-by-side warps read together."""
        return max(columns, FRAGMENT_COLUMNS * self.across)

    def compiled(self, w: Workload) -> tuple[int, int]:
        """Head dimensions of K and of V that it computes `w` with."""
        return self.widths or (padded(w.head_dim), padded(w.head_dim_v))

    def polynomials(self, scores: int) -> int:
        """Exponentials of `scores` that are polynomials."""
        return scores * self.emulated[0] // self.emulated[1]

    def __str__(self) -> str:
        stages = f", {self.stages} stages" if self.stages > 1 else ""
        packed = ", GQA packed" if self.pack_gqa else ""
        window = ", windows from their first key" if self.from_first_key else ""
        return f"{self.rows} x {self.keys}, {self.warps} warps{stages}{packed}{window}"


@dataclass(frozen=True, slots=True)
class BackwardTile:
    """Tile of the main backward kernel, with its warps and the operands kept in registers.

    Parameters
    ----------
    stages_q : int
        Buffers of Q (1 or 2).
    extra_threads : int
        Threads that only copy.
    pair : int
        Blocks of a cluster whose tensor cores multiply together (``cta_group::2`` of tcgen05), each with its own keys.
        A block keeps the half of Q that S needs, and the half that dK needs; likewise for dO. It sums half the rows of
        dQ over the keys of both.
    slices : int
        As for a forward tile: K and V are re-read for each tile of rows, and the sums of dK and dV are in memory.
    counts : StepCounts, optional
        Instructions of a step from machine code; None if not counted.
    """

    rows: int
    keys: int
    warps: int = 8
    stages_q: int = 2
    v_in_registers: bool = False
    path: Path = "mma_sync"
    extra_threads: int = 0
    registers: int = 255
    pair: int = 1
    slices: int = 0
    counts: StepCounts | None = None

    def buffers(self, d: int, dv: int, element: int) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        d, dv = (2 * self.slices, 2 * self.slices) if self.slices else (d, dv)
        m, n = self.rows, self.keys
        if self.path == "tcgen05":  # P lies in tensor memory; dQ passes through two buffers of 32 columns
            return (
                ("Q, dO", m * (d * self.stages_q // self.pair + dv) * element),
                ("K, V", n * (d + dv) * element),
                ("dS", m * n * element),
                ("dQ", 2 * m * DQ_COLUMNS * 4 // self.pair),
            )
        kv = n * d + (0 if self.v_in_registers else n * dv)
        scores = m * n * (1 if self.path == "wgmma" and self.v_in_registers else 2)  # wgmma reads P from registers
        return (
            ("Q, dO", m * (d * self.stages_q + dv) * element),
            ("K, V, P, dS", max(kv + scores, n * (d + dv)) * element),
        )

    def copies(self, product: str, d: int) -> int:
        """Times that a product is computed."""
        return 1

    def product_bytes(self, product: str, products: tuple[str, ...], d: int, dv: int, element: int) -> int:
        """Bytes of shared memory that half a block moves for one of its `products` per step.

        8 warps of mma.sync are arranged 4 x 2 over the output: all read A twice and B once in each half. Two warpgroups
        of wgmma read each once. For tcgen05 the traffic of a step is divided evenly: its products, its copies of dS and
        the drain of the step before run at the same time.
        """
        m, n = self.rows, self.keys
        if self.path == "tcgen05":
            return self._step_elements(products, d, dv, element) * element // 2 // len(products)
        a, b, depth = {"S": (m, n, d), "dP": (m, n, dv), "dV": (n, dv, m), "dK": (n, d, m), "dQ": (m, d, n)}[product]
        return (2 * a + b if self.path == "mma_sync" else (a + b) // 2) * depth * element

    def _step_elements(self, products: tuple[str, ...], d: int, dv: int, element: int) -> int:
        """Elements that a step of tcgen05 moves through shared memory (``flash_attn/cute/flash_bwd_sm100.py``).

        - S and dP read the tiles that stay and a block's share of the tiles that pass.
        - With keys outside, dV and dK read P and dS from tensor memory, and dO and Q.
        - dQ reads dS and K, and leaves in fp32 through shared memory.
        - dS is written once; of a pair, half of it goes to the other block.
        """
        m, n, pair = self.rows, self.keys, self.pair
        if "dK" not in products:
            return (m + n // pair) * (d + dv) + n * d // pair + 2 * m * n
        moved = (n + m // pair) * (d + dv) + m * (d + dv) // pair
        return moved + ("dQ" in products) * (n * d + m * n * (1 + pair) + 2 * m * d * 4 // element // pair)

    def __str__(self) -> str:
        pairs = f", pairs of {self.pair}" if self.pair > 1 else ""
        return f"backward {self.rows} x {self.keys}, {self.warps} warps{pairs}"


@dataclass(frozen=True, slots=True)
class FusedTiles:
    """Tiles of the forward and the backward kernel of a schedule; None for a missing pass."""

    forward: FlashTile | None = None
    backward: BackwardTile | None = None

    def __str__(self) -> str:
        return "; ".join(str(tile) for tile in (self.forward, self.backward) if tile is not None)


def with_tile(tile: FlashTile, request: TileRequest, gpu: Gpu) -> FlashTile:
    """The implementation's kernel on another tile: at least 16 rows per warp, or 64 per warpgroup.

    A request with stages also changes the buffers of K and V; a loop of one buffer becomes the multi-stage ring. A
    block of warpgroups is compiled for a whole register file: that of all GPUs with wgmma, or of `gpu` if it is
    smaller.
    """
    rows, keys, stages = request.rows, request.keys, request.stages
    tile = _asked(tile, request)
    if stages is not None:
        loop: Loop = "ring" if tile.loop == "fa2" and stages > 1 else tile.loop
        tile = replace(tile, stages=stages, loop=loop, looks_up_pages=tile.looks_up_pages and loop == "fa2")
    if tile.path == "mma_sync":
        warps = tile.warps
        while rows // warps < 16 and warps > 1:
            warps //= 2
        return replace(tile, rows=rows, keys=keys, warps=warps, warpgroups=min(tile.warpgroups, warps))
    if tile.path == "tcgen05":
        return replace(tile, rows=rows, keys=keys)
    groups = max(1, rows // 64)
    registers = min(255, min(65536, gpu.sm.registers) // (groups * 128 + tile.extra_threads) // 8 * 8)
    return replace(tile, rows=rows, keys=keys, warps=4 * groups, warpgroups=groups, registers=registers)


def _asked(tile: FlashTile, request: TileRequest) -> FlashTile:
    """The tile with the request's properties other than rows, keys and stages."""
    given = {name: getattr(request, name) for name in ("pack_gqa", "persistent") if getattr(request, name) is not None}
    if request.longest_first is not None:
        given["order"] = "longest_first" if request.longest_first else "ascending"
    return replace(tile, **given)


def meets(tile: FlashTile, request: TileRequest) -> bool:
    """Return whether a kernel satisfies a request."""
    stages = request.stages in (None, tile.stages)
    return (tile.rows, tile.keys) == (request.rows, request.keys) and stages and _asked(tile, request) == tile


def accumulators_that_fit(threads: int, gpu: Gpu) -> int:
    """fp32 accumulators per thread that fit the register file when the block has `threads` computing threads."""
    return ACCUMULATOR_REGISTERS * min(_MOST_REGISTERS, gpu.sm.registers // threads) // _MOST_REGISTERS


def fits(tile: FlashTile, w: Workload, gpu: Gpu) -> bool:
    """Return whether a tile's buffers fit shared memory and its accumulators the registers."""
    d, dv = tile.compiled(w)
    in_registers = tile.path == "tcgen05" or _accumulators(tile, dv) <= accumulators_that_fit(tile.warps * 32, gpu)
    small = tile.shared_memory_bytes(d, dv, w.element_bytes) <= gpu.sm.shared_memory_per_block_bytes
    return small and in_registers


def _accumulators(tile: FlashTile, dv: int) -> int:
    """fp32 accumulators of O and S that a thread holds."""
    return tile.rows * ((tile.keys if tile.slices else dv) + tile.keys) // (tile.warps * 32)


def candidates(tile: FlashTile, w: Workload, gpu: Gpu) -> Iterator[FlashTile]:
    """Tiles of the same kernel that fit `gpu`, most similar rows, then keys, first."""
    rows = [r for r in ROWS if r % 64 == 0] if tile.path != "mma_sync" else [r for r in ROWS if r <= 128]
    for shape in sorted(product(rows, KEYS), key=lambda one: (abs(one[0] - tile.rows), abs(one[1] - tile.keys))):
        other = with_tile(tile, TileRequest(*shape), gpu)
        if fits(other, w, gpu):
            yield other


def check_tile(tile: FlashTile, w: Workload, gpu: Gpu) -> None:
    """Refuse a tile that does not fit.

    Raises
    ------
    InputError
        Naming the buffers, the limit and the nearest tile that fits.
    """
    if fits(tile, w, gpu):
        return
    d, dv = tile.compiled(w)
    needed = tile.shared_memory_bytes(d, dv, w.element_bytes)
    near = next(candidates(tile, w, gpu), None)
    other = "no tile of this kernel fits; take another --implementation, or the unfused one, torch.eager"
    advice = f"{near.rows} x {near.keys} fits" if near else other
    stages = f" with {tile.stages} stages" if tile.stages > 1 else ""
    what = f"the tile {tile.rows} x {tile.keys} at head_dim {w.head_dim}{stages}"
    if needed <= gpu.sm.shared_memory_per_block_bytes:
        raise InputError(
            f"Registers: {what} needs {_accumulators(tile, dv)} accumulators a thread in {tile.warps} warps, about "
            f"{accumulators_that_fit(tile.warps * 32, gpu)} fit beside the rest; {advice}"
        )
    check_shared_memory(what, tile.buffers(d, dv, w.element_bytes), gpu, advice)
