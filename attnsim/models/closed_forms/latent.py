"""Closed forms of the schedules of multi-head latent attention: shapes, tiles and grids, never the tile stream.

Of sequences of different lengths too: products and copies are of all tokens, attention is summed over sequences.
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.closed_forms import projection as projection_form
from attnsim.models.closed_forms.band import Band, reaches
from attnsim.models.closed_forms.form import Form, Moved, load, store, summed, transfer
from attnsim.models.closed_forms.fused import band_visits, forward
from attnsim.models.implementations.frameworks import projection
from attnsim.models.implementations.fused.forward import pages_of
from attnsim.models.implementations.fused.loops import PAGES, page_bytes
from attnsim.models.implementations.latent.projections import copies, products
from attnsim.models.implementations.latent.tiles import DecompressedTile, LatentTile, Piece
from attnsim.models.implementations.latent.visits import latent_of, pieces_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import GemmTile
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import Splits


def closed_form(w: Workload, schedule: Schedule, tile: LatentTile | DecompressedTile) -> list[Form]:
    """Closed form of the kernels: of the schedule only names, roles, buffers, tile, splits and grids are used."""
    return [part for kernel in schedule.kernels for part in _parts(w, schedule, tile, kernel)]


def _parts(w: Workload, schedule: Schedule, tile: LatentTile | DecompressedTile, kernel: Kernel) -> list[Form]:
    if kernel.role == "sum of parts":  # with its product
        return []
    if kernel.role == "attention":
        if isinstance(tile, DecompressedTile):
            return summed(_flash(w.of(one), tile) for one in w.parts)
        return summed(_attention(w, schedule, tile, kernel))
    if kernel.name in products(w):
        return _product(w, kernel)
    if kernel.name == "combine" and isinstance(tile, LatentTile):
        return [_combine(w, *_merged_rows(w, schedule.splits, tile))]
    if kernel.name in copies(w):
        return [_copy(w, kernel.name)]
    raise LookupError(f"no closed form of the kernel {kernel.name}; add it to attnsim.models.closed_forms.latent")


def _product(w: Workload, kernel: Kernel) -> list[Form]:
    """The GEMM on the tile that fills the kernel's buffers, k cut as its grid says."""
    product, buffers = products(w)[kernel.name], dict(kernel.buffers)

    def fills(tile: GemmTile) -> bool:
        depth = tile.stages * tile.k * w.element_bytes
        return (tile.m * depth, tile.n * depth, tile.warps * 32) == (buffers["A"], buffers["B"], kernel.threads)

    tile = next(tile for tile in projection.TILES[kernel.path] if fills(tile))
    (m, n, _) = product.shape
    splits = kernel.blocks // (product.batch * -(-m // tile.m) * -(-n // tile.n))
    return projection_form.product(product, projection.Cut(tile, splits), w.dtype)


def _copy(w: Workload, name: str) -> Form:
    reads, writes = ([(a.tensor, a.bytes) for a in copies(w)[name] if a.written == out] for out in (False, True))
    return transfer(name, reads, writes)


def _flash(w: Workload, tile: DecompressedTile) -> Form:
    """The fused kernel on decompressed heads."""
    wide = replace(w, latent=None, head_dim_v=w.head_dim if tile.same_width else w.head_dim_v)
    part = forward(wide, tile.tile, Splits(), "flash_fwd")
    return part.renamed(tile.names)


def _attention(w: Workload, schedule: Schedule, tile: LatentTile, kernel: Kernel) -> list[Form]:
    """The kernel that attends the cache: by FlashMLA's shares, or by ranges of each sequence's keys."""
    splits = schedule.splits
    pieces = _pieces(w, splits, tile)
    if pieces is not None:
        return [_by_pieces(w, tile, kernel.name, pieces)]
    merged = splits.merged(len(w.parts)) * any(item.name == "combine" for item in schedule.kernels)
    found = [
        _ranges(w.of(one), tile, kernel.name, splits.of(number).count, of)
        for number, (one, of) in enumerate(zip(w.parts, merged.tolist(), strict=True))
    ]
    idle = _idle_blocks(w, tile, splits)
    return [*found, Form(kernel.name, (load("lengths", 8 * idle, 8 * w.batch),))] if idle else found


def _ranges(w: Workload, tile: LatentTile, name: str, splits: int, merged: int) -> Form:
    """Row tiles times the tiles of the cache that they see."""
    pack = w.heads_q if tile.packed else 1
    groups = w.batch * w.heads_q // pack
    band = Band.of_queries(w.seq_q, w.seq_kv, *reaches(w.mask), tile.rows, pack=pack)
    count = band_visits(tile, splits, band)
    queries = groups * int(count.q_rows), groups * int(band.busy_rows())
    keys = groups * int(count.kv_rows), w.batch * int(count.seen)
    return _visited(w, tile, name, groups * int(count.tiles), queries, keys, _even_outputs(w, merged))


def _by_pieces(w: Workload, tile: LatentTile, name: str, pieces: list[Piece]) -> Form:
    """FlashMLA's shares: every row tile goes over all keys of its request, whoever has them."""
    rows = w.heads_q * w.seq_q
    row_tiles = -(-rows // tile.rows)
    visits = row_tiles * sum(piece.blocks for piece in pieces)
    queries, keys = (len(pieces) * rows, w.batch * rows), (row_tiles * w.keys, w.keys)
    return _visited(w, tile, name, visits, queries, keys, _outputs(w, pieces))


def _visited(
    w: Workload,
    tile: LatentTile,
    name: str,
    visits: int,
    queries: tuple[int, int],
    keys: tuple[int, int],
    out: tuple[Moved, ...],
) -> Form:
    """A kernel by its visits of key tiles, each tile once as K and V, or V as a copy of its own.

    `queries` and `keys` are rows of Q and of the cache: read, and distinct ones.
    """
    latent, e, rows, pair = latent_of(w), w.element_bytes, tile.rows, tile.pair
    width = latent.width + (latent.rank if tile.reload else 0)
    down = max(1, min(tile.warps, rows // 16)) if tile.path == "mma_sync" else 1
    across = tile.warps // down if tile.path == "mma_sync" else 1
    reads = down * tile.keys * (latent.width + latent.rank) // pair + across * rows * (latent.width + tile.keys)
    (read, queries_once), (visited, keys_once) = queries, keys
    return Form(
        name,
        (
            load("Q latent", read * latent.rank * e, queries_once * latent.rank * e),
            load("Q rope", read * latent.rope * e, queries_once * latent.rope * e),
            load("Latent", visited * width * e // pair, keys_once * latent.width * e),
            *([load(PAGES, visits * page_bytes(w, tile.keys), 4 * pages_of(w))] if w.page_size else []),
            *out,
        ),
        flops=visits * 2 * rows * tile.keys * (latent.width + latent.rank),
        exponentials=visits * rows * (tile.keys + 1),
        smem_bytes=visits * reads * e,
    )


def _idle_blocks(w: Workload, tile: LatentTile, splits: Splits) -> int:
    """Blocks that find no row tile or no range of keys of their sequence."""
    tiles = [-(-one.queries * (w.heads_q if tile.packed else 1) // tile.rows) for one in w.parts]
    idle = 0
    for number, (one, own) in enumerate(zip(w.parts, tiles, strict=True)):
        count = splits.of(number).count
        rows = own if tile.longest_first else max(tiles)
        idle += one.times * (max(splits.grid, count) * rows - count * own)
    return idle * (1 if tile.packed else w.heads_q)


def _even_outputs(w: Workload, partials: int) -> tuple[Moved, ...]:
    """What is written: every row once, or in fp32 once a range."""
    rows, rank = w.batch * w.heads_q * w.seq_q, latent_of(w).rank
    if partials:
        return (store("O partial", rows * partials * rank * 4), store("LSE partial", rows * partials * 4))
    return (store("O latent", rows * rank * w.output_bytes), store("LSE", rows * 4))


def _outputs(w: Workload, pieces: list[Piece]) -> tuple[Moved, ...]:
    """What FlashMLA's shares write: partial results of requests that were cut, results of the others."""
    rows, rank = w.heads_q * w.seq_q, latent_of(w).rank
    whole = sum(piece.whole for piece in pieces)
    partial = len(pieces) - whole
    return (
        store("O partial", partial * rows * rank * 4),
        store("LSE partial", partial * rows * 4),
        store("O latent", whole * rows * rank * w.output_bytes),
        store("LSE", whole * rows * 4),
    )


def _pieces(w: Workload, splits: Splits, tile: LatentTile) -> list[Piece] | None:
    """FlashMLA's shares, recomputed by its rule; None where ranges are even."""
    return pieces_of(w, tile, splits.shares) if splits.shares else None


def _merged_rows(w: Workload, splits: Splits, tile: LatentTile) -> tuple[int, int]:
    """Rows that the combine kernel writes, and rows of the partial results that it merges."""
    pieces = _pieces(w, splits, tile)
    if pieces is not None:
        whole, rows = sum(piece.whole for piece in pieces), w.heads_q * w.seq_q
        return (w.batch - whole) * rows, (len(pieces) - whole) * rows
    merged = splits.merged(len(w.parts)).tolist()
    each = [(w.heads_q * one.queries * one.times, of) for one, of in zip(w.parts, merged, strict=True) if of]
    return sum(rows for rows, _ in each), sum(rows * of for rows, of in each)


def _combine(w: Workload, written: int, read: int) -> Form:
    rank = latent_of(w).rank
    return Form(
        "combine",
        (
            load("LSE partial", read * 4),
            load("O partial", read * rank * 4),
            store("O latent", written * rank * w.output_bytes),
            store("LSE", written * 4),
        ),
        exponentials=read,
    )
