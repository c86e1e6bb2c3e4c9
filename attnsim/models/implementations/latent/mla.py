"""Attention over a latent cache: the absorbed form of multi-head latent attention as one kernel.

With W_UK absorbed into the queries and W_UV into the output (DeepSeek-V2, arXiv 2405.04434, section 2.1.2) every query
head attends the same keys, the cached latents with their rotary part, and the same values, the latents alone. The
heads of a token therefore fill the rows of a tile, and a tile of the cache is copied once and serves as K and as V.

Kernels around attention on latents: projections by W_UK and W_UV, copies, cache writes, combine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.projection import Product, projection
from attnsim.models.implementations.fused.forward import (
    MASK_INSTRUCTIONS,
    PAGES,
    block_begins,
    page_bytes,
    pages,
    tiled_kernel,
)
from attnsim.models.implementations.latent.tiles import FINAL, NOTHING, PARTIAL, LatentTile, Visits, latent_of
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.schedule.axes import Axis, Tensor, along, uses_of
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch


def latent_attention(w: Workload, tile: LatentTile, visits: Visits, latent: Latent) -> Kernel:
    """The kernel that attends the cache.

    Parameters
    ----------
    w : Workload
        The absorbed form (:func:`attnsim.models.implementations.latent.tiles.absorbed`).
    """
    ops = _Operations(w, tile, latent)
    nest = _with_ends(ops, visits, _LOOPS[tile.loop](ops, visits))
    if w.page_size:
        nest += once("page numbers", [TileOp("load", PAGES, bytes=page_bytes(w, tile.keys))], visits.steps)
    moved = {op.tensor for segment, count in nest if np.any(count) for op in segment.ops}
    pack = w.heads_q if tile.packed else 1
    axes = {
        "b": Axis(tuple(one.times for one in w.parts), cuts="r"),
        "h": Axis(w.heads_q // pack, cuts="r"),
        "i": Axis(tuple(one.queries * pack for one in w.parts), tile.rows, cuts="r"),
        "j": Axis(tuple(one.keys for one in w.parts), tile.keys),
        "p": Axis(tuple(pages(w, one.keys) for one in w.parts)),
        "r": Axis(visits.partial_rows),
    }
    tiles = int(axes["b"].sizes @ axes["i"].tiles_of) * axes["h"].tiles
    axes["s"] = Axis(max(1, sum(len(one) * one.times for one in visits.launches) // tiles), cuts="j p r")
    uses = uses_of((one for one in ops.tensors if one.name in moved), axes, "b h s i")
    buffers = tile.buffers(latent, w.element_bytes)
    return tiled_kernel(w, tile, "latent_attention", nest, visits.launches, uses, buffers)


class _Operations:
    """Tile operations of the kernel: loads per block, and each warpgroup's equal share of the arithmetic."""

    def __init__(self, w: Workload, tile: LatentTile, latent: Latent) -> None:
        self.w, self.tile, self.latent = w, tile, latent
        # A warp of an mma.sync kernel reads the operands of its own rows and columns; wgmma and tcgen05 read each once.
        down = max(1, min(tile.warps, tile.rows // 16)) if tile.path == "mma_sync" else 1
        self.readers = (down, tile.warps // down) if tile.path == "mma_sync" else (1, 1)
        e, rank = w.element_bytes, latent.rank
        self.q = Tensor("Q latent", "b h i", rank * e), Tensor("Q rope", "b h i", latent.rope * e)
        self.cache = Tensor("Latent", "b j", latent.width * e)
        self.lengths = Tensor("lengths", "b", 8)
        self.final = (*along("b h i", {"O latent": rank * w.output_bytes, "LSE": 4}, written=True),)
        self.partial = (*along("r", {"O partial": rank * 4, "LSE partial": 4}, written=True),)
        self.tensors = (*self.q, self.lengths, self.cache, *self.final, Tensor(PAGES, "b p", 4), *self.partial)

    def load(self, keys: int) -> Iterator[TileOp]:
        """Load of a tile of the cache, or the block's share of it, and of its V if that is a separate copy."""
        yield self.cache.load(keys)._replace(bytes=keys * self.cache.bytes // self.tile.pair)
        if self.tile.reload and not self.tile.v_over_k:
            yield self.load_v(keys)

    def load_v(self, keys: int) -> TileOp:
        """Second copy of the columns of a tile that serve as V."""
        return TileOp("load", "Latent", bytes=keys * self.latent.rank * self.w.element_bytes)

    def product(self, name: Literal["S", "O"], kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """S = Q K^T, or O += P V."""
        tile, e = self.tile, self.w.element_bytes
        down, across = self.readers
        width = self.latent.width if name == "S" else self.latent.rank
        left = tile.rows * (width if name == "S" else tile.keys)  # Q or P
        return TileOp(
            kind,
            name,
            flops=2 * tile.rows * tile.keys * width // tile.warpgroups,
            smem_bytes=(down * tile.keys * width // tile.pair + across * left) * e // tile.warpgroups,
        )

    def softmax(self, masked: bool) -> TileOp:
        """Online softmax of one tile and the rescaling of O."""
        rows, groups = self.tile.rows, self.tile.warpgroups
        scores = rows * self.tile.keys // groups
        fp32 = rows * self.latent.rank // groups + (MASK_INSTRUCTIONS * scores if masked else 0)
        tmem = scores * (4 + self.w.element_bytes) if self.tile.path == "tcgen05" else 0  # S read in fp32, P written
        return TileOp("vector", "P", tmem_bytes=tmem, scores=scores, exps=scores + rows // groups, fp32=fp32)


def _with_ends(ops: _Operations, visits: Visits, body: Nest) -> Nest:
    """Put prologue and epilogue, for full and for ragged row tiles, around the loop over key tiles."""
    rows, missing = ops.tile.rows, visits.missing_rows
    begins = block_begins(*(ops.tile.chunk or width for width in (ops.latent.width, ops.latent.rank)))
    leave = (ops.lengths.load(), ops.lengths.wait(), BLOCK)

    def stores(tensors: tuple[Tensor, ...]) -> Callable[[int], Iterator[TileOp]]:
        return lambda n: iter((BLOCK, *(tensor.store(rows - n) for tensor in tensors)))

    return [
        *by_size("prologue", missing, lambda n: (begins, *(q.load(rows - n) for q in ops.q)), visits.steps > 0),
        *body,
        *by_size("epilogue", missing, stores(ops.final), visits.written == FINAL),
        *by_size("epilogue, partial", missing, stores(ops.partial), visits.written == PARTIAL),
        *once("exit", leave, (visits.written == NOTHING) * 1),
    ]


def _fill(ops: _Operations, visits: Visits) -> Nest:
    """The first tiles in flight, starting with the shorter one if there is one, and the wait for Q."""
    filled, keys = np.minimum(visits.steps, ops.tile.stages), ops.tile.keys
    return [
        *loop("fill", filled, lambda n: ops.load(keys - n), shorter=visits.missing_keys),
        *once("wait Q", (q.wait() for q in ops.q), (visits.steps > 0) * 1),
    ]


def _serial_loop(ops: _Operations, visits: Visits) -> Nest:
    """S, softmax, O of one tile after the other; a buffer is refilled when both products have read it."""
    tile, steps = ops.tile, visits.steps

    def turn(missing: int, load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (ops.cache.wait(), STEP, ops.product("S"))
        if tile.v_over_k:
            yield ops.load_v(tile.keys - missing)
        yield ops.softmax(masked)
        if tile.reload:
            yield ops.cache.wait()
        yield ops.product("O")
        if load_next:
            yield from ops.load(tile.keys)

    # Where V follows K into its place, the first step's V is as short as its K.
    shorter = visits.missing_keys * tile.v_over_k
    return [
        *_fill(ops, visits),
        *loop("step", steps, turn, shorter, load_next=steps - tile.stages, masked=visits.masked),
    ]


def _overlapped_loop(ops: _Operations, visits: Visits) -> Nest:
    """S of a tile and P V of the one before are issued together; softmax runs under the second."""
    steps = visits.steps

    def first(masked: bool) -> Iterator[TileOp]:
        yield from (ops.cache.wait(), STEP, ops.product("S"), ops.softmax(masked))

    def turn(load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (ops.cache.wait(), STEP, ops.product("S", "mma_async"), ops.product("O", "mma_async"))
        yield from (TileOp("mma_wait", "S"), ops.softmax(masked), TileOp("mma_wait", "O"))
        if load_next:  # a tile's buffer is free after its P V, one step after its S
            yield from ops.load(ops.tile.keys)

    return [
        *_fill(ops, visits),
        *loop("first step", np.minimum(steps, 1), first, masked=visits.masked),
        *loop("step", steps - 1, turn, load_next=steps - ops.tile.stages, masked=visits.masked - 1),
        *once("last P V", [ops.product("O")], (steps > 0) * 1),
    ]


_LOOPS: dict[str, Callable[[_Operations, Visits], Nest]] = {"serial": _serial_loop, "overlapped": _overlapped_loop}


def products(w: Workload) -> dict[str, Product]:
    """Products with W_UK and W_UV, by name.

    ``absorb_q`` and ``output_up`` are batched over heads; ``decompress`` (``kv_b_proj``) makes K without its rotary
    part, and V, of all heads in one GEMM.
    """
    latent = latent_of(w)
    queries, nope, rank = w.queries, w.head_dim - latent.rope, latent.rank
    columns = w.heads_q * (nope + w.head_dim_v)
    found = (
        Product("absorb_q", (queries, rank, nope), ("Q nope", "W_UK", "Q latent"), w.heads_q),
        Product("output_up", (queries, w.head_dim_v, rank), ("O latent", "W_UV", "O"), w.heads_q),
        Product("decompress", (w.keys, columns, rank), ("Latent", "W_UK, W_UV", "K nope, V")),
    )
    return {product.name: product for product in found}


def product(w: Workload, name: str, gpu: Gpu) -> list[Kernel]:
    """The kernels of one of :func:`products`."""
    return projection(products(w)[name], gpu, w.dtype)[0]


def copies(w: Workload) -> dict[str, tuple[Access, ...]]:
    """Tensors that each copying kernel reads and writes, by name."""
    latent, e = latent_of(w), w.element_bytes
    keys, queries, heads, new = w.keys, w.queries, w.heads_q, w.new_tokens
    return {
        "concat_k": (
            Access("K nope, V", keys * heads * (w.head_dim - latent.rope) * e),
            Access("K rope", keys * latent.rope * e),
            Access("K", keys * heads * w.head_dim * e, True),
        ),
        "pad_v": (
            Access("K nope, V", keys * heads * w.head_dim_v * e),
            Access("V padded", keys * heads * w.head_dim * e, True),
        ),
        "slice_o": (
            Access("O padded", queries * heads * w.head_dim_v * w.output_bytes),
            Access("O", queries * heads * w.head_dim_v * w.output_bytes, True),
        ),
        "cache_write": (
            Access("new latent", new * latent.width * e),
            Access("Latent", new * latent.width * e, True),
        ),
        "rope_append": (
            Access("new latent", new * latent.width * e),
            Access("Q rope in", queries * heads * latent.rope * e),
            Access("Latent", new * latent.width * e, True),
            Access("Q rope", queries * heads * latent.rope * e, True),
        ),
        "metadata": (Access("lengths", 4 * w.batch), Access("shares", 4 * (w.batch + 1), True)),
        "prepare": (Access("lengths", 8 * w.batch), Access("splits", 4 * w.batch, True)),
        "combine (exits)": (Access("splits", 4 * w.batch),),
    }


def copy(w: Workload, name: str) -> Kernel:
    """One of the kernels of :func:`copies`."""
    accesses = copies(w)[name]
    elements = max(access.bytes for access in accesses) // w.element_bytes
    match name:
        case "metadata":  # FlashMLA's scheduler is one warp
            return streaming(name, accesses, elements=elements, threads=32, blocks=1)
        case "prepare":  # FA3's has a block for 992 sequences
            return streaming(name, accesses, elements=elements, threads=1024, blocks=-(-w.batch // 992))
    return streaming(name, accesses, elements=elements)


def latent_combine(
    w: Workload, counts: Mapping[tuple[int, int], int], *, rows_per_block: int, threads: int, in_flight: int
) -> Kernel:
    """Kernel that merges the partial outputs of each split request.

    Parameters
    ----------
    w : Workload
        The absorbed form.
    counts : mapping of (int, int) to int
        Number of requests, by their rows and the number of ranges they were split into.
    in_flight : int
        Partial results requested before the first is used.
    """
    width = w.head_dim_v
    parts, stats = Tensor("O partial", "p", width * 4), Tensor("LSE partial", "p", 4)
    out = Tensor("O latent", "r", width * w.output_bytes, written=True)
    lse = Tensor("LSE", "r", 4, written=True)
    requests = sorted(counts.items())
    blocks = [-(-rows // rows_per_block) for (rows, _), _ in requests]
    per_request = zip(requests, blocks, strict=True)
    size = np.concatenate(
        [np.minimum(rows_per_block, rows - np.arange(n) * rows_per_block) for ((rows, _), _), n in per_request]
    )
    (ranges, rows), order = classes(np.repeat([ranges for (_, ranges), _ in requests], blocks), size)

    def merged(n: int) -> Nest:
        """A block of n rows: partial results of the next range are on their way while one is merged."""
        work = TileOp("vector", out.name, exps=n, fp32=n * (2 * width + 4))

        def turn(load_next: bool) -> Iterator[TileOp]:
            yield from (stats.wait(), parts.wait(), work)
            if load_next:
                yield from (stats.load(n), parts.load(n))

        here, tag = (rows == n) * 1, f" ({n} rows)"
        return [
            *once(f"fill{tag}", (stats.load(n), parts.load(n)), here * np.minimum(ranges, in_flight)),
            *loop(f"split{tag}", here * ranges, turn, load_next=ranges - in_flight),
            *once(f"store{tag}", (out.store(n), lse.store(n)), here),
        ]

    nest = [one for n in sorted(set(rows.tolist()), reverse=True) for one in merged(n)]
    launched = np.split(order, np.cumsum(blocks)[:-1])
    read = sum(rows * ranges * n for (rows, ranges), n in requests)
    written = sum(rows * n for (rows, _), n in requests)
    return Kernel.of(
        nest,
        name="combine",
        threads=threads,
        registers_per_thread=64,
        buffers=(("LSE", rows_per_block * int(ranges.max()) * 4),),
        launches=tuple(Launch(one, n) for one, (_, n) in zip(launched, requests, strict=True)),
        uses=uses_of((parts, stats, out, lse), {"p": Axis(read), "r": Axis(written, rows_per_block, cuts="p")}, "r"),
        dtype="fp32",
        step="split",
    )
