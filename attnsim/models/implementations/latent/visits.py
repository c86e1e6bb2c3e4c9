"""Which key tiles each block of a kernel over a latent cache visits: ranges of each sequence, or FlashMLA's shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.implementations.fused.order import joined, longest_sequences
from attnsim.models.implementations.latent.tiles import LatentTile, Piece, flash_mla_pieces
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.schedule.row_tiles import classes, row_tiles
from attnsim.models.schedule.schedule import Launch
from attnsim.models.schedule.splits import Splits

FINAL, PARTIAL, NOTHING = range(3)
"""What a block leaves: its rows of O; a partial result in fp32; nothing, because there was no key for it."""


def latent_of(w: Workload) -> Latent:
    """The latent of a workload.

    Raises
    ------
    InputError
        When it has none.
    """
    if w.latent is None:
        raise InputError("the question has no latent; give one, --latent 512x64 or latent=Latent(512, 64)")
    return w.latent


def absorbed(w: Workload) -> Workload:
    """The attention over the cache: one key and value head, as wide as the latent with and without its rotary key."""
    latent = latent_of(w)
    return replace(w, heads_kv=1, head_dim=latent.width, head_dim_v=latent.rank, latent=None)


@dataclass(frozen=True, eq=False)
class Visits:
    """What each class of blocks does.

    Parameters
    ----------
    steps, masked : ndarray of int, ``[classes]``
        Key tiles visited, and those of them that are masked.
    missing_keys, missing_rows : ndarray of int, ``[classes]``
        By how much the last key tile is shorter where it is among them, and by how much the row tile is.
    written : ndarray of int, ``[classes]``
        What is left: `FINAL`, `PARTIAL` or `NOTHING`.
    launches : tuple of Launch
    partial_pieces, partial_rows : int
        Partial results, each of all rows of a request, and their rows.
    """

    steps: Ints
    masked: Ints
    missing_keys: Ints
    missing_rows: Ints
    written: Ints
    launches: tuple[Launch, ...]
    partial_pieces: int
    partial_rows: int


def even_visits(w: Workload, tile: LatentTile, splits: Splits, *, merged: bool = False) -> Visits:
    """The keys of every request cut into equal ranges, a block each, by row tile.

    Blocks for which a request has no row tile, or no range of keys, come last and leave. FlashAttention-3's scheduler
    has none, and takes the longest sequences first.

    Parameters
    ----------
    w : Workload
        Of the absorbed form.
    tile : LatentTile
    splits : Splits
    merged : bool
        Whether a combine kernel merges the ranges.
    """
    pack = w.heads_q if tile.packed else 1
    heads = w.heads_q // pack
    ranges = np.array(splits.each or [splits.count] * len(w.parts))
    of_parts = splits.merged(len(w.parts)) * merged
    cut = [row_tiles(w, tile.rows, tile.keys, pack, s, ranges) for s in range(splits.count)]
    part, number = np.concatenate([one.part for one in cut]), np.repeat(np.arange(len(cut)), len(cut[0].part))
    launched = np.flatnonzero(number < ranges[part])
    part = part[launched]
    columns = [
        np.concatenate([getattr(one, name) for one in cut])[launched]
        for name in ("steps", "masked", "missing_keys", "missing_rows")
    ]
    written = np.where(of_parts[part] > 0, PARTIAL, FINAL)
    (steps, masked, missing_keys, missing_rows, written), order = classes(*columns, written)
    tiles = np.bincount(cut[0].part)
    blocks = [order[part == one].reshape(-1, count) for one, count in enumerate(tiles.tolist())]
    visits = Visits(
        steps=steps,
        masked=masked,
        missing_keys=missing_keys,
        missing_rows=missing_rows,
        written=written,
        launches=_launches(w, tile, blocks, heads),
        partial_pieces=sum(one.times * of for one, of in zip(w.parts, of_parts.tolist(), strict=True)),
        partial_rows=sum(
            one.times * of * w.heads_q * one.queries for one, of in zip(w.parts, of_parts.tolist(), strict=True)
        ),
    )
    grid = np.maximum(splits.grid, ranges) * (tiles if tile.longest_first else tiles.max())
    counts = np.array([one.times for one in w.parts])
    idle = int(counts @ (grid - ranges * tiles)) * heads
    return _with_idle(visits, idle) if idle else visits


def _launches(w: Workload, tile: LatentTile, blocks: Sequence[Ints], heads: int) -> tuple[Launch, ...]:
    """Requests one after the other, of each ranges of keys, row tiles fastest; or the longest first, from the end."""
    parts: Sequence[tuple[Length, Ints]] = list(zip(w.parts, blocks, strict=True))
    if tile.longest_first:
        parts = [(one, of[::-1, ::-1]) for one, of in longest_sequences(w, tile.rows, tile.keys, parts)]
    return joined([Launch(of.reshape(-1), one.times * heads) for one, of in parts])


def _with_idle(visits: Visits, blocks: int) -> Visits:
    """The same with blocks behind it that find nothing to do."""
    last = Launch.alike(blocks, len(visits.steps))
    return replace(
        visits,
        steps=np.append(visits.steps, 0),
        masked=np.append(visits.masked, 0),
        missing_keys=np.append(visits.missing_keys, 0),
        missing_rows=np.append(visits.missing_rows, 0),
        written=np.append(visits.written, NOTHING),
        launches=(*visits.launches, last),
    )


def flash_mla_visits(w: Workload, tile: LatentTile, pieces: Sequence[Piece]) -> Visits:
    """FlashMLA's shares, a work tile for each request that a part touches and each row tile; `w` is absorbed.

    A part goes through its requests one by one. They are launched here in the order in which all parts together reach
    them, the first of every part before the second of any; the next free SM takes the next, which is the part's own
    wherever shares are equal.
    """
    keys = np.repeat([one.keys for one in w.parts], [one.times for one in w.parts])
    total_rows = w.seq_q * w.heads_q
    row_count = -(-total_rows // tile.rows)
    missing = -keys % tile.keys
    table = [
        (piece.blocks, FINAL if piece.whole else PARTIAL, int(piece.ends), int(missing[piece.request] * piece.ends))
        for piece in pieces
    ]
    unique, order = np.unique(np.array(table, dtype=np.int64), axis=0, return_inverse=True)
    short = int(row_count * tile.rows > total_rows)
    steps, written, ends, missing_keys = np.repeat(unique, 1 + short, axis=0).T
    missing_rows = np.tile(np.arange(1 + short) * (row_count * tile.rows - total_rows), len(unique))
    classes_in_order = np.repeat(order.reshape(-1) * (1 + short), row_count)
    classes_in_order[row_count - 1 :: row_count] += short
    partial = sum(not piece.whole for piece in pieces)
    return Visits(
        steps=steps,
        masked=ends,
        missing_keys=missing_keys,
        missing_rows=missing_rows,
        written=written,
        launches=(Launch(classes_in_order),),
        partial_pieces=partial,
        partial_rows=partial * total_rows,
    )


def split_requests(pieces: Sequence[Piece]) -> Counter[int]:
    """How many requests were cut into so many ranges, by the number of ranges."""
    return Counter(Counter(piece.request for piece in pieces if not piece.whole).values())


def flash_mla_shares(w: Workload, tile: LatentTile, sms: int) -> tuple[list[Piece], int]:
    """The pieces of FlashMLA's schedule, and the parts that its rule asks for."""
    wanted = max(1, sms // -(-w.seq_q * w.heads_q // tile.rows))
    return pieces_of(w, tile, wanted), wanted


def pieces_of(w: Workload, tile: LatentTile, parts: int) -> list[Piece]:
    """The keys of all requests shared out over so many parts."""
    blocks = [-(-one.keys // tile.keys) for one in w.parts for _ in range(one.times)]
    return flash_mla_pieces(blocks, parts)
