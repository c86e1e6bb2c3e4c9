"""Which key tiles each block of a kernel over a latent cache visits: even ranges, or FlashMLA's shares."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.models.arrays import Ints
from attnsim.models.errors import InputError
from attnsim.models.implementations.latent.tiles import FIXED_OVERHEAD_BLOCKS, LatentTile, Share, flash_mla_parts
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.schedule.row_tiles import classes, row_tiles
from attnsim.models.schedule.schedule import Launch

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
    ragged_keys, ragged_rows : ndarray of int, ``[classes]``
        Whether the last, shorter key tile is among them; whether the row tile is the shorter one.
    written : ndarray of int, ``[classes]``
        What is left: `FINAL`, `PARTIAL` or `NOTHING`.
    launches : tuple of Launch
    rows, last_rows, last_keys : int
        Rows of a tile, of the last one, and keys of the last one.
    sharers : float
        Blocks that read each token.
    partial_pieces : int
        Partial results of all rows of a request.
    """

    steps: Ints
    masked: Ints
    ragged_keys: Ints
    ragged_rows: Ints
    written: Ints
    launches: tuple[Launch, ...]
    rows: int
    last_rows: int
    last_keys: int
    sharers: float
    partial_pieces: int


def even_visits(w: Workload, tile: LatentTile, splits: int, *, partial: bool = False, idle: int = 0) -> Visits:
    """Every request's keys cut into `splits` equal ranges, a block each, by row tile.

    Parameters
    ----------
    w : Workload
        Of the absorbed form.
    tile : LatentTile
    splits : int
    partial : bool
        Whether a combine kernel merges the ranges.
    idle : int
        Further ranges of the grid that turn out to be empty.
    """
    pack = w.heads_q if tile.packed else 1
    parts = [row_tiles(w, tile.rows, tile.keys, pack, s, splits) for s in range(splits)]
    columns = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("steps", "masked", "missing_keys", "missing_rows")
    ]
    (steps, masked, missing_keys, missing_rows), order = classes(*columns)
    if tile.longest_first:
        order = order[::-1]
    groups = w.batch * (1 if tile.packed else w.heads_q)
    visits = Visits(
        steps=steps,
        masked=masked,
        ragged_keys=(missing_keys > 0) * 1,
        ragged_rows=(missing_rows > 0) * 1,
        written=np.full_like(steps, PARTIAL if partial else FINAL),
        launches=(Launch(order, groups),),
        rows=tile.rows,
        last_rows=tile.rows - int(missing_rows.max()),
        last_keys=tile.keys - int(missing_keys.max()),
        sharers=len(order) / splits * (1 if tile.packed else w.heads_q),
        partial_pieces=w.batch * splits if partial else 0,
    )
    return _with_idle(visits, idle * len(parts[0].steps) * groups) if idle else visits


def _with_idle(visits: Visits, blocks: int) -> Visits:
    """The same with blocks behind it that find nothing to do."""
    last = Launch(np.array([len(visits.steps)], dtype=np.int64), blocks)
    return replace(
        visits,
        steps=np.append(visits.steps, 0),
        masked=np.append(visits.masked, 0),
        ragged_keys=np.append(visits.ragged_keys, 0),
        ragged_rows=np.append(visits.ragged_rows, 0),
        written=np.append(visits.written, NOTHING),
        launches=(*visits.launches, last),
    )


def flash_mla_visits(w: Workload, tile: LatentTile, parts: list[Share]) -> Visits:
    """FlashMLA's shares, a work tile for each request that a part touches and each row tile; `w` is absorbed.

    A part goes through its requests one by one. They are launched here in the order in which all parts together reach
    them, the first of every part before the second of any; the next free SM takes the next, which is the part's own
    wherever shares are equal.
    """
    blocks = -(-w.seq_kv // tile.keys)
    total_rows = w.seq_q * w.heads_q
    row_count = -(-total_rows // tile.rows)
    last_rows = total_rows - (row_count - 1) * tile.rows
    last_keys = w.seq_kv - (blocks - 1) * tile.keys
    pieces = np.array(_pieces(parts, blocks), dtype=np.int64)
    unique, order = np.unique(pieces, axis=0, return_inverse=True)
    short = int(last_rows < tile.rows)
    steps, written, ends = np.repeat(unique, 1 + short, axis=0).T
    ragged_rows = np.tile([0, 1], len(unique)) if short else np.zeros_like(steps)
    classes_in_order = np.repeat(order.reshape(-1) * (1 + short), row_count)
    classes_in_order[row_count - 1 :: row_count] += short
    return Visits(
        steps=steps,
        masked=ends,
        ragged_keys=ends * (last_keys < tile.keys),
        ragged_rows=ragged_rows,
        written=written,
        launches=(Launch(classes_in_order),),
        rows=tile.rows,
        last_rows=last_rows,
        last_keys=last_keys,
        sharers=row_count,
        partial_pieces=int((pieces[:, 1] == PARTIAL).sum()),
    )


def _pieces(parts: list[Share], blocks: int) -> list[tuple[int, int, int]]:
    """(steps, written, ends) of each request that a part touches, in the order in which the parts reach them."""
    found = []
    for index, part in enumerate(parts):
        own = [(part.first, PARTIAL, int(part.first_ends))] if part.first else []
        own += [(blocks, FINAL, 1)] * part.whole
        own += [(part.last, PARTIAL, 0)] if part.last else []
        begins = 0
        for piece in own:
            found.append((begins, index, piece))
            begins += piece[0] + FIXED_OVERHEAD_BLOCKS
    return [piece for _, _, piece in sorted(found)]


def split_requests(parts: list[Share]) -> dict[int, int]:
    """How many requests were cut into so many ranges, by the number of ranges."""
    counts: dict[int, int] = {}
    pieces = 0
    for part in parts:
        if part.first:
            pieces += 1
            if part.first_ends:
                counts[pieces] = counts.get(pieces, 0) + 1
                pieces = 0
        if part.last:
            pieces = 1
    return counts


def flash_mla_shares(w: Workload, tile: LatentTile, sms: int) -> tuple[list[Share], int]:
    """The parts of FlashMLA's schedule, and how many its rule asks for."""
    wanted = max(1, sms // -(-w.seq_q * w.heads_q // tile.rows))
    return flash_mla_parts(w.batch, -(-w.seq_kv // tile.keys), wanted), wanted
