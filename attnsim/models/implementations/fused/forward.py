"""FlashAttention forward kernels: the FA2, the FA3 and the multi-stage loop orders on any tile.

FlashAttention-2 (Dao, arXiv 2307.08691): one block per tile of query rows, inner loop over key tiles, single-buffered
copies that overlap the other GEMM. FlashAttention-3 (Shah et al., arXiv 2407.08608): warpgroups with double-buffered
copies, the GEMM of one step issued before the softmax of the next. The loop orders follow
``csrc/flash_attn/src/flash_fwd_kernel.h`` and ``hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp`` of
Dao-AILab/flash-attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.mask.row_tiles import RowTiles, classes, row_tiles
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Launch, Path, Segment, TensorUse, TileOp

Loop = Literal["fa2", "fa3", "staged", "ring"]
Order = Literal["ascending", "longest_first", "longest_first_by_sequence"]
MASK_INSTRUCTIONS = 2
"""FP32-lane instructions per score of a masked tile: compare and select."""


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


def padded(d: int) -> int:
    """The head dimension that a kernel is compiled for (FlashAttention's list)."""
    for width in (32, 64, 96, 128, 192, 256, 512):
        if d <= width:
            return width
    raise InputError(f"head_dim is {d}; flash kernels exist up to 512; use --algorithm naive")


def flash_peak_bytes(w: Workload, partial: int = 0) -> int:
    """Inputs, outputs, log-sum-exp, the backward's dQ accumulator and gradients, and partial outputs."""
    e = w.element_bytes
    q = w.batch * w.heads_q * w.seq_q
    kv = w.batch * w.heads_kv * w.seq_kv
    inputs = (q + kv) * w.head_dim * e + kv * w.head_dim_v * e
    out = q * w.head_dim_v * w.output_bytes + 4 * q
    if "bwd" in w.directions:
        expanded = w.batch * w.heads_q * w.seq_kv * (w.head_dim + w.head_dim_v) * e if w.group > 1 else 0
        return 2 * (inputs + out) + q * padded(w.head_dim) * 4 + 4 * q + expanded
    return inputs + out + partial


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


def flash_forward(
    w: Workload,
    gpu: Gpu,
    tile: FlashTile,
    name: str = "flash_fwd",
    splits: Splits | None = None,
    lse: bool = True,
    fetch_clks: int = 0,
) -> Kernel:
    """The forward kernel of `w` on `tile`.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
        Only for the size of the L2 sections in longest-first order.
    tile : FlashTile
    name : str
    splits : Splits, optional
        Split-KV: one block per row tile and range of keys, fp32 partial outputs.
    lse : bool
        Whether the log-sum-exp of each row is written, fp32.
    fetch_clks : int
        Latency of finding a block's tile, where a scheduler has to search for it.
    """
    splits = splits or Splits()
    w = w.bounded()
    pack = w.group if tile.pack_gqa else 1
    heads = w.batch * (w.heads_kv if tile.pack_gqa else w.heads_q)
    cut = partial(
        row_tiles, w, tile.rows, tile.keys, pack, edges_only=tile.edges_only, from_first_key=tile.from_first_key
    )
    shape = cut()
    parts = [cut(s, splits.count, of_seen=splits.of_seen) if splits.partial else shape for s in range(splits.count)]
    columns = [
        np.concatenate([getattr(part, column) for part in parts])
        for column in ("steps", "masked", "ragged_keys", "ragged_rows")
    ]
    (steps, masked, ragged_keys, ragged_rows), inverse = classes(*columns)
    ops = _Operations(w, tile, shape, splits.partial, lse)
    nest = _LOOPS[tile.loop](ops, steps, masked, ragged_keys)
    nest = _with_ends(ops, nest, steps, ragged_rows, fetch_clks)
    segments = tuple(segment for segment, _ in nest)
    repeats = np.stack([count for _, count in nest], axis=1)[:, None, :].astype(np.int64)
    used = repeats.sum(axis=(0, 1)) > 0
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    seen, sharers = _shared_keys(w, shape, w.group // pack)
    uses = (
        TensorUse("Q", w.seq_q * d * e, w.batch * w.heads_q),
        TensorUse("K", seen * d * e, w.batch * w.heads_kv, sharers),
        TensorUse("V", seen * dv * e, w.batch * w.heads_kv, sharers),
        *_output_uses(w, splits, lse),
    )
    d_pad, dv_pad = padded(d), padded(dv)
    return Kernel(
        name=name,
        threads=tile.threads,
        registers_per_thread=tile.registers,
        shared_memory_bytes=tile.shared_memory_bytes(d_pad, dv_pad, e),
        segments=tuple(segment for segment, keep in zip(segments, used, strict=True) if keep),
        repeats=repeats[:, :, used],
        launches=_launch_order(w, gpu, tile, inverse, heads, splits.count),
        uses=uses,
        warpgroups=tile.warpgroups,
        path=tile.path,
        max_blocks_per_sm=tile.max_blocks_per_sm,
        persistent=tile.persistent,
        buffers=tile.buffers(d_pad, dv_pad, e),
        dtype=w.dtype,
        step="key tile",
    )


def _shared_keys(w: Workload, whole: RowTiles, heads: int) -> tuple[int, float]:
    """Keys of a KV head that are touched, and how many blocks touch each.

    All row tiles do, times the `heads` that do not share their rows; of a window those around it.
    """
    if not w.mask.is_windowed:
        return w.seq_kv, float(len(whole.steps) * heads)
    visits = int(whole.steps.sum()) * whole.keys
    return whole.touched_keys, max(1.0, visits / max(1, whole.touched_keys)) * heads


def _output_uses(w: Workload, splits: Splits, lse: bool) -> tuple[TensorUse, ...]:
    rows = w.batch * w.heads_q
    if splits.partial:
        return (
            TensorUse("O partial", w.seq_q * w.head_dim_v * 4, rows * splits.count, written=True),
            TensorUse("LSE partial", w.seq_q * 4, rows * splits.count, written=True),
        )
    out = (TensorUse("O", w.seq_q * w.head_dim_v * w.output_bytes, rows, written=True),)
    return (*out, TensorUse("LSE", w.seq_q * 4, rows, written=True)) if lse else out


def _launch_order(
    w: Workload, gpu: Gpu, tile: FlashTile, inverse: NDArray[np.int64], heads: int, splits: int
) -> tuple[Launch, ...]:
    """Block classes in launch order.

    Ascending: row tile fastest, then split, then head (FA2's grid). Longest first: within a section of heads whose
    K and V fit 32 MiB of L2, heads fastest, row tiles from last to first (FA3's dynamic scheduler).
    """
    if tile.order == "longest_first_by_sequence":
        return _by_sequence(w, tile, inverse, heads // w.batch, splits)
    if tile.order == "ascending" or splits > 1:
        return (Launch(inverse, heads),)
    section = section_heads(w, tile, heads)
    descending = inverse[::-1]
    whole = Launch(np.repeat(descending, section), heads // section)
    rest = heads % section
    return (whole, Launch(np.repeat(descending, rest), 1)) if rest else (whole,)


def _by_sequence(
    w: Workload, tile: FlashTile, inverse: NDArray[np.int64], heads: int, splits: int
) -> tuple[Launch, ...]:
    """FA3's scheduler of variable lengths: sequence by sequence, within one by sections of 1 to 16 heads.

    The largest power of two of heads whose K and V fit 8 MiB (``flash_prepare_scheduler.cu``); in a section row tiles
    from last to first, heads and splits fastest.
    """
    descending = inverse.reshape(splits, -1).T[::-1]  # [row tiles, splits]
    one_tile = tile.keys * (w.head_dim + w.head_dim_v) * w.element_bytes
    fitting = (8 << 20) // one_tile // max(1, -(-w.seq_kv // tile.keys))
    section = 1 << min(4, max(0, fitting.bit_length() - 1))
    section = min(section * (1 if tile.pack_gqa else w.group), heads)
    sizes = [section] * (heads // section) + ([heads % section] if heads % section else [])
    orders = {size: np.repeat(descending[:, None], size, axis=1).reshape(-1) for size in set(sizes)}
    return (Launch(np.concatenate([orders[size] for size in sizes]), w.batch),)


def section_heads(w: Workload, tile: FlashTile, heads: int) -> int:
    """Heads of a section of longest-first order: so many that their K and V fit 32 MiB of L2, a power of two."""
    one_head = w.seq_kv * (w.head_dim + w.head_dim_v) * w.element_bytes
    section = 1 if one_head > 32 << 20 else 1 << int(np.log2((32 << 20) / one_head))
    return min(section * (1 if tile.pack_gqa else w.group), heads)


class _Operations:
    """The tile operations of a flash kernel, per warpgroup where they compute and per block where they load."""

    def __init__(self, w: Workload, tile: FlashTile, shape: RowTiles, partial: bool, lse: bool) -> None:
        self.w, self.tile, self.shape, self.partial, self.lse = w, tile, shape, partial, lse
        self.rows = tile.rows // tile.warpgroups
        self.d, self.dv = padded(w.head_dim), padded(w.head_dim_v)
        # Every warp of an mma.sync kernel reads the whole K and V tile for its own rows; a wgmma reads it once for
        # its warpgroup.
        self.readers = tile.warps // tile.warpgroups if tile.path == "mma_sync" else 1

    def load(self, tensor: str, keys: int) -> TileOp:
        width = self.w.head_dim if tensor == "K" else self.w.head_dim_v
        return TileOp("load", tensor, bytes=keys * width * self.w.element_bytes)

    def load_q(self, rows: int) -> TileOp:
        return TileOp("load", "Q", bytes=rows * self.w.head_dim * self.w.element_bytes)

    def scores(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """S = Q K^T."""
        e, keys = self.w.element_bytes, self.tile.keys
        q_reads = 0 if self.tile.q_in_registers else self.rows * self.d * e
        return TileOp(
            kind,
            "S",
            flops=2 * self.rows * keys * self.d,
            smem_bytes=self.readers * keys * self.d * e + q_reads,
        )

    def output(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """O += P V."""
        e, keys = self.w.element_bytes, self.tile.keys
        p_reads = self.rows * keys * e if self.tile.p_in_smem else 0
        return TileOp(
            kind,
            "O",
            flops=2 * self.rows * keys * self.dv,
            smem_bytes=self.readers * keys * self.dv * e + p_reads,
        )

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax of one tile and the rescaling of O; `first`: it is the block's first tile."""
        scores = self.rows * self.tile.keys
        factors, rescaled = self.rows, self.rows
        if self.tile.rescale_once:  # each of the four lanes that share a row computes its factor
            factors, rescaled = (4 * self.rows, self.rows) if first else (0, 0)
        return TileOp(
            "vector",
            "P",
            scores=scores,
            exps=scores + factors,
            fp32=rescaled * self.dv + (MASK_INSTRUCTIONS * scores if masked else 0),
        )

    def stores(self, rows: int) -> tuple[TileOp, ...]:
        """O and LSE of the valid rows."""
        suffix = " partial" if self.partial else ""
        width = self.w.head_dim_v * (4 if self.partial else self.w.output_bytes)
        out = TileOp("store", f"O{suffix}", bytes=rows * width)
        return (out, TileOp("store", f"LSE{suffix}", bytes=rows * 4)) if self.lse or self.partial else (out,)


Nest = list[tuple[Segment, NDArray[np.int64]]]


def _with_ends(
    ops: _Operations, body: Nest, steps: NDArray[np.int64], ragged_rows: NDArray[np.int64], fetch_clks: int
) -> Nest:
    """Put the prologue and epilogue, for full and for ragged row tiles, around a loop body.

    A prologue waits for page table, Q and K in turn, however many rows are valid.
    """
    tile = ops.tile
    busy = steps > 0
    nest: Nest = []
    fetch = (TileOp("delay", "fetch", clks=fetch_clks),) if fetch_clks else ()
    for ragged in (False, True):
        rows = ops.shape.last_rows if ragged else tile.rows
        here = (ragged_rows == ragged) & busy
        nest.append(
            (
                Segment(
                    f"prologue{' (last rows)' if ragged else ''}",
                    (*fetch, TileOp("delay", "block"), ops.load_q(rows)),
                ),
                here.astype(np.int64),
            )
        )
    nest += body
    for ragged in (False, True):
        rows = ops.shape.last_rows if ragged else tile.rows
        name = f"epilogue{' (last rows)' if ragged else ''}"
        latency = TileOp("delay", "block", share=rows / tile.rows if tile.by_row else 1.0)
        nest.append((Segment(name, (latency, *ops.stores(rows))), (ragged_rows == ragged).astype(np.int64)))
    return nest


def _fa2_loop(ops: _Operations, steps: NDArray[np.int64], masked: NDArray[np.int64], ragged: NDArray[np.int64]) -> Nest:
    """FA2: wait K, start V, S = Q K^T, wait V, start the next K, softmax, O += P V."""
    keys, last = ops.tile.keys, ops.shape.last_keys
    always = ops.w.mask.right is not None or ops.w.mask.is_windowed

    def step(name: str, v_keys: int, next_k: bool, mask: bool, first: bool = False) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("delay", "step"),
                ops.load("V", v_keys),
                ops.scores(),
                TileOp("wait", "V"),
                *((ops.load("K", keys),) if next_k else ()),
                ops.softmax(mask, first),
                ops.output(),
            ),
        )

    one, many, none = steps == 1, steps > 1, np.zeros_like(steps)
    last_masked = many & (masked >= steps)
    middle_masked = np.where(many, np.clip(masked - 1, 0, steps - 2), none)
    nest: Nest = []
    for is_ragged in (False, True):
        here = ragged == is_ragged
        size, tag = (last, " (last keys)") if is_ragged else (keys, "")
        nest += [
            (Segment(f"load K{tag}", (ops.load("K", size), TileOp("wait", "Q"))), (here & (steps > 0)) * 1),
            (step(f"only step{tag}", size, False, always or is_ragged, True), (here & one) * 1),
            (step(f"first step{tag}", size, True, always or is_ragged, True), (here & many) * 1),
        ]
    nest += [
        (step("masked step", keys, True, True), middle_masked),
        (step("step", keys, True, False), np.where(many, steps - 2 - middle_masked, none)),
        (step("last step, masked", keys, False, True), last_masked * 1),
        (step("last step", keys, False, False), (many & ~last_masked) * 1),
    ]
    return nest


def _staged_loop(
    ops: _Operations, steps: NDArray[np.int64], masked: NDArray[np.int64], ragged: NDArray[np.int64]
) -> Nest:
    """Multi-stage: `stages` tiles in flight, a buffer is refilled as soon as its GEMM has read it."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def step(name: str, load: bool, mask: bool) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("delay", "step"),
                ops.scores(),
                *((ops.load("K", keys),) if load else ()),
                ops.softmax(mask),
                TileOp("wait", "V"),
                ops.output(),
                *((ops.load("V", keys),) if load else ()),
            ),
        )

    loading = np.maximum(steps - stages, 0)
    masked_loading = np.minimum(masked, loading)
    masked_rest = masked - masked_loading
    return [
        *_fill(ops, steps, ragged),
        (step("masked step", True, True), masked_loading),
        (step("step", True, False), loading - masked_loading),
        (step("masked step, no load", False, True), masked_rest),
        (step("step, no load", False, False), steps - loading - masked_rest),
        *([(Segment("next tile", (TileOp("prefetch"),)), (steps > 0) * 1)] if ops.tile.persistent else []),
    ]


def _fill(ops: _Operations, steps: NDArray[np.int64], ragged: NDArray[np.int64]) -> Nest:
    """Fill the pipeline: the first tile (the shorter one, where there is one), then the other stages."""
    keys, last = ops.tile.keys, ops.shape.last_keys
    busy = steps > 0

    def fill(name: str, size: int, wait: bool) -> Segment:
        wait_q = (TileOp("wait", "Q"),) if wait else ()
        return Segment(name, (ops.load("K", size), ops.load("V", size), *wait_q))

    return [
        (fill("fill (last keys)", last, False), (busy & (ragged == 1)) * 1),
        (fill("fill", keys, False), np.minimum(steps, ops.tile.stages) - (busy & (ragged == 1))),
        (Segment("wait Q", (TileOp("wait", "Q"),)), busy * 1),
    ]


def _ring_loop(
    ops: _Operations, steps: NDArray[np.int64], masked: NDArray[np.int64], ragged: NDArray[np.int64]
) -> Nest:
    """Multi-stage with one barrier a step: wait K and V, start both of the tile `stages - 1` ahead, compute."""
    keys, ahead = ops.tile.keys, ops.tile.stages - 1

    def step(load: bool, mask: bool, first: bool) -> Segment:
        name = f"{'first ' if first else ''}step{', masked' if mask else ''}{'' if load else ', no load'}"
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("wait", "V"),
                TileOp("delay", "step"),
                *((ops.load("K", keys), ops.load("V", keys)) if load else ()),
                ops.scores(),
                ops.softmax(mask, first),
                ops.output(),
            ),
        )

    loading = np.maximum(steps - ahead, 0)
    nest = _fill(ops, np.minimum(steps, ahead), ragged)
    done = np.zeros_like(steps)
    for first in (True, False):
        limit = np.minimum(steps, 1) if first else steps
        for load, mask in ((True, True), (True, False), (False, True), (False, False)):
            until = np.minimum(limit, loading if load else steps)
            until = np.minimum(until, masked) if mask else until
            nest.append((step(load, mask, first), np.maximum(until - done, 0)))
            done = np.maximum(done, until)
    return nest


def _fa3_loop(ops: _Operations, steps: NDArray[np.int64], masked: NDArray[np.int64], ragged: NDArray[np.int64]) -> Nest:
    """FA3: issue S_j = Q K_j^T and O += P_{j-1} V_{j-1} back to back; softmax of j runs under the second."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def first(name: str, load: bool, mask: bool) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("delay", "step"),
                ops.scores(),
                *((ops.load("K", keys),) if load else ()),
                ops.softmax(mask),
            ),
        )

    def step(name: str, load_k: bool, load_v: bool, mask: bool) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("delay", "step"),
                ops.scores("mma_async"),
                TileOp("wait", "V"),
                ops.output("mma_async"),
                TileOp("mma_wait", "S"),
                *((ops.load("K", keys),) if load_k else ()),
                ops.softmax(mask),
                TileOp("mma_wait", "O"),
                *((ops.load("V", keys),) if load_v else ()),
            ),
        )

    busy = steps > 0
    any_mask = masked > 0
    long = steps > stages  # the first step already refills K
    both = np.maximum(steps - 1 - stages, 0)
    only_v = np.where(steps - stages >= 1, 1, 0)
    after = np.maximum(steps - 1, 0)
    masked_after = np.maximum(masked - 1, 0)
    masked_both = np.minimum(masked_after, both)
    masked_v = np.minimum(masked_after - masked_both, only_v)
    masked_none = masked_after - masked_both - masked_v
    none = after - both - only_v
    return [
        *_fill(ops, steps, ragged),
        (first("first step, masked", True, True), (long & any_mask) * 1),
        (first("first step", True, False), (long & ~any_mask) * 1),
        (first("first step, masked, no load", False, True), (busy & ~long & any_mask) * 1),
        (first("first step, no load", False, False), (busy & ~long & ~any_mask) * 1),
        (step("masked step", True, True, True), masked_both),
        (step("step", True, True, False), both - masked_both),
        (step("masked step, last V", False, True, True), masked_v),
        (step("step, last V", False, True, False), only_v - masked_v),
        (step("masked step, no load", False, False, True), masked_none),
        (step("step, no load", False, False, False), none - masked_none),
        (
            Segment(
                "last P V",
                (*((TileOp("prefetch"),) if ops.tile.persistent else ()), TileOp("wait", "V"), ops.output()),
            ),
            busy * 1,
        ),
    ]


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


_LOOPS: dict[str, Callable[..., Nest]] = {
    "fa2": _fa2_loop,
    "fa3": _fa3_loop,
    "staged": _staged_loop,
    "ring": _ring_loop,
}
