"""Closed form of kernels that walk the blocks of a mask made at run time."""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.closed_forms.form import Form, load, store
from attnsim.models.closed_forms.fused import row_dots, step_amounts
from attnsim.models.implementations.flex_mask import COUNTS, COUNTS_BYTES, ENTRY_BYTES, LIST, TABLE, MaskTile, counts_of
from attnsim.models.implementations.flex_mask_backward import LOOKED_UP, queries_tile
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, ROWS_OUTSIDE
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.implementations.selecting import walks
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.models.schedule.widths import padded


def closed_form(w: Workload, schedule: Schedule, masked: MaskTile) -> list[Form]:
    """The kernels of each pass."""
    forms = []
    for name in (kernel.name for kernel in schedule.kernels):
        if name == "dot_do_o":
            forms.append(row_dots(w, accumulator=False))
        elif name == "flex_attention_backward" and masked.backward:
            forms.append(_backward(w, name, masked, masked.backward))
        else:
            forms.append(_forward(w, name, masked))
    return forms


def _walked(lists: Ints, length: int, size: int, block: int) -> int:
    """Blocks that all tiles of `size` walk: those of a block share its list, and the last may have fewer of them."""
    share, tiles = block // size, -(-length // size)
    return share * int(lists[:-1].sum()) + (tiles - share * (len(lists) - 1)) * int(lists[-1])


def _forward(w: Workload, name: str, masked: MaskTile) -> Form:
    """Of ``v`` blocks that the row tiles of a head walk K and V are ``block v`` rows, whole."""
    t, counts = masked.forward, counts_of(w, masked)
    tiles, visits = -(-w.seq_q // t.rows), _walked(counts.visits, w.seq_q, t.rows, masked.block)
    heads, e, (d, dv) = w.batch * w.heads_q, w.element_bytes, t.compiled(w)
    steps = heads * visits * (masked.block // t.keys)
    scores, kv = t.rows * t.keys, w.batch * w.heads_kv
    read = {"K": w.head_dim * e, "V": w.head_dim_v * e}
    rows = t.rows // t.warpgroups * t.warpgroups
    operands = (t.readers * t.keys * (d + dv) + (0 if t.q_in_registers else rows * d)) * e
    across = counts.tiles.key_tiles
    lists = (
        (load(TABLE, heads * tiles * across, counts.tiles.row_tiles * across),)
        if masked.scanned
        else (
            load(COUNTS, heads * tiles * COUNTS_BYTES, counts.tiles.row_tiles * COUNTS_BYTES),
            load(LIST, heads * visits * ENTRY_BYTES, int(counts.visits.sum()) * ENTRY_BYTES),
        )
    )
    return Form(
        name,
        (
            load("Q", heads * w.seq_q * w.head_dim * e),
            *(load(x, steps * t.keys * n, min(steps * t.keys, kv * counts.touched_keys) * n) for x, n in read.items()),
            *lists,
            store("O", heads * w.seq_q * w.head_dim_v * w.output_bytes),
            store("LSE", heads * w.seq_q * 4),
        ),
        flops=steps * scores * 2 * (d + dv),
        exponentials=steps * (scores + t.rows),
        smem_bytes=steps * operands,
    )


def _backward(w: Workload, name: str, masked: MaskTile, t: BackwardTile) -> Form:
    """A block of keys reads Q and dO of ``a`` steps, one of queries K and V of ``b``; each reads two entries a step."""
    counts, block, across = counts_of(w, masked), masked.block, queries_tile(t)
    heads, kv, e, d, dv = w.batch * w.heads_q, w.batch * w.heads_kv, w.element_bytes, w.head_dim, w.head_dim_v
    a = heads * _walked(counts.key_visits, w.seq_kv, t.keys, block) * (block // t.rows)
    b = heads * _walked(counts.visits, w.seq_q, across.rows, block) * (block // across.keys)
    keys = kv * -(-w.seq_kv // t.keys) * t.keys
    # Rows that see nothing are neither read nor written.
    busy = heads * across.rows * _walked((counts.visits > 0).astype(np.int64), w.seq_q, across.rows, block)
    lse = 0 if "fwd" in w.directions else heads * w.seq_q * 4
    wide = padded(d), padded(dv)
    amounts = (step_amounts(t, KEYS_OUTSIDE, a, wide, e), step_amounts(across, ROWS_OUTSIDE, b, wide, e))

    def passing(tensor: str, size: int, unique: int) -> tuple[str, int, int]:
        return tensor, (a * t.rows + busy) * size, unique

    return Form(
        name,
        (
            load(*passing("Q", d * e, min(busy, heads * w.seq_q) * d * e)),
            load(*passing("LSE, D", 8, min(lse, busy * 4))),
            load(*passing("dO", dv * e, min(busy, heads * w.seq_q) * dv * e)),
            load("K", (keys + b * across.keys) * d * e, kv * w.seq_kv * d * e),
            load("V", (keys + b * across.keys) * dv * e, kv * w.seq_kv * dv * e),
            load(walks.LIST, (a + b) * LOOKED_UP, min(a + b, 1)),
            store("dK", keys * d * e, kv * w.seq_kv * d * e),
            store("dV", keys * dv * e, kv * w.seq_kv * dv * e),
            store("dQ", busy * d * e, min(busy, heads * w.seq_q) * d * e),
        ),
        *(x + y for x, y in zip(*amounts, strict=True)),
    )
