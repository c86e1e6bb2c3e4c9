"""Closed forms of the schedules of multi-head latent attention: shapes, tiles and grids, never the tile stream."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.closed_forms import projection as projection_form
from attnsim.models.closed_forms.band import Band, reaches
from attnsim.models.closed_forms.form import Form, Moved, load, store, transfer
from attnsim.models.closed_forms.fused import band_visits, forward
from attnsim.models.implementations.frameworks import projection
from attnsim.models.implementations.latent.projections import copies, products
from attnsim.models.implementations.latent.tiles import DecompressedTile, LatentTile, Share, flash_mla_parts
from attnsim.models.implementations.latent.visits import absorbed, latent_of
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
        return [_flash(w, tile) if isinstance(tile, DecompressedTile) else _attention(w, schedule, tile, kernel)]
    if kernel.name in products(w):
        return _product(w, kernel)
    if kernel.name == "combine" and isinstance(tile, LatentTile):
        return [_combine(w, *_split_requests(w, schedule.splits, tile))]
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
    moved = tuple(replace(item, tensor=tile.names.get(item.tensor, item.tensor)) for item in part.moved)
    return replace(part, moved=moved)


def _attention(w: Workload, schedule: Schedule, tile: LatentTile, kernel: Kernel) -> Form:
    """Row tiles times the tiles of the cache that they see, each tile once as K and V, or V as a copy of its own."""
    latent, own = latent_of(w), absorbed(w)
    rows, keys, pair = tile.rows, tile.keys, tile.pair
    pack = w.heads_q if tile.packed else 1
    groups = w.batch * w.heads_q // pack
    e = w.element_bytes
    shares = _shares(w, schedule.splits, tile)
    total_rows = w.seq_q * pack
    row_tiles = -(-total_rows // rows)
    if shares is None:
        splits = schedule.splits
        partial = any(item.name == "combine" for item in schedule.kernels)
        count = band_visits(w, tile, splits.count, _band(w, rows, pack))
        visits, kv_rows, q_rows, seen = count.tiles, count.kv_rows, count.q_rows, count.seen
        out = _even_outputs(w, splits.count if partial else 0)
        idle = row_tiles * groups * max(0, splits.grid - splits.count)
        out = (*out, load("lengths", 8 * idle, 8 * w.batch if idle else 0))
    else:
        tiles = -(-w.seq_kv // keys)
        visits, kv_rows, seen = w.batch * row_tiles * tiles, w.batch * row_tiles * w.seq_kv, w.seq_kv
        pieces = sum((share.first > 0) + share.whole + (share.last > 0) for share in shares)
        q_rows, out = pieces * total_rows, _outputs(w, shares)
        groups = 1
    width = latent.width + (latent.rank if tile.reload else 0)
    unique_q = w.batch * w.heads_q * w.seq_q if shares is not None else groups * _busy_rows(w, rows, pack)
    down = max(1, min(tile.warps, rows // 16)) if tile.path == "mma_sync" else 1
    across = tile.warps // down if tile.path == "mma_sync" else 1
    reads = down * keys * (latent.width + latent.rank) // pair + across * rows * (latent.width + keys)
    return Form(
        kernel.name,
        (
            load("Q latent", groups * q_rows * latent.rank * e, unique_q * latent.rank * e),
            load("Q rope", groups * q_rows * latent.rope * e, unique_q * latent.rope * e),
            load("Latent", groups * kv_rows * width * e // pair, w.batch * seen * latent.width * e),
            *out,
        ),
        flops=groups * visits * 2 * rows * keys * (own.head_dim + own.head_dim_v),
        exponentials=groups * visits * rows * (keys + 1),
        smem_bytes=groups * visits * reads * e,
    )


def _band(w: Workload, rows: int, pack: int) -> Band:
    return Band.of_queries(w.seq_q, w.seq_kv, *reaches(w.mask), rows, pack=pack)


def _busy_rows(w: Workload, rows: int, pack: int) -> int:
    return int(_band(w, rows, pack).busy_rows())


def _even_outputs(w: Workload, partials: int) -> tuple[Moved, ...]:
    """What is written: every row once, or in fp32 once a range."""
    rows, rank = w.batch * w.heads_q * w.seq_q, latent_of(w).rank
    if partials:
        return (store("O partial", rows * partials * rank * 4), store("LSE partial", rows * partials * 4))
    return (store("O latent", rows * rank * w.output_bytes), store("LSE", rows * 4))


def _outputs(w: Workload, shares: list[Share]) -> tuple[Moved, ...]:
    """What FlashMLA's shares write: partial results of requests that were cut, results of the others."""
    rows, rank = w.heads_q * w.seq_q, latent_of(w).rank
    pieces = sum((share.first > 0) + (share.last > 0) for share in shares)
    whole = sum(share.whole for share in shares)
    return (
        store("O partial", pieces * rows * rank * 4),
        store("LSE partial", pieces * rows * 4),
        store("O latent", whole * rows * rank * w.output_bytes),
        store("LSE", whole * rows * 4),
    )


def _shares(w: Workload, splits: Splits, tile: LatentTile) -> list[Share] | None:
    """FlashMLA's shares, recomputed by its rule; None where ranges are even."""
    return flash_mla_parts(w.batch, -(-w.seq_kv // tile.keys), splits.shares) if splits.shares else None


def _split_requests(w: Workload, splits: Splits, tile: LatentTile) -> tuple[int, int]:
    """Requests that the combine kernel merges, and partial results of them all."""
    shares = _shares(w, splits, tile)
    if shares is not None:
        return w.batch - sum(share.whole for share in shares), sum((s.first > 0) + (s.last > 0) for s in shares)
    return w.batch, w.batch * splits.count


def _combine(w: Workload, requests: int, pieces: int) -> Form:
    rows, rank = w.heads_q * w.seq_q, latent_of(w).rank
    return Form(
        "combine",
        (
            load("LSE partial", pieces * rows * 4),
            load("O partial", pieces * rows * rank * 4),
            store("O latent", requests * rows * rank * w.output_bytes),
            store("LSE", requests * rows * 4),
        ),
        exponentials=pieces * rows,
    )
