"""Closed form of FlexAttention over a BlockMask."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, load, store
from attnsim.models.implementations.flex_mask import BLOCK, COUNTS, COUNTS_BYTES, ENTRY_BYTES, LIST, MaskTile, counts_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def closed_form(w: Workload, schedule: Schedule, masked: MaskTile) -> list[Form]:
    """The one kernel: of ``v`` blocks that the row tiles of a head walk K and V are ``128 v`` rows, whole."""
    t, counts = masked.flash, counts_of(w, masked.flash)
    share = BLOCK // t.rows
    tiles = -(-w.seq_q // t.rows)
    # Row tiles of a block of queries walk one list; the last block may have fewer.
    last = tiles - share * (counts.tiles.row_tiles - 1)
    visits = share * int(counts.visits[:-1].sum()) + last * int(counts.visits[-1])
    heads, e, (d, dv) = w.batch * w.heads_q, w.element_bytes, t.compiled(w)
    steps = heads * visits * (BLOCK // t.keys)
    scores, kv = t.rows * t.keys, w.batch * w.heads_kv
    read = {"K": w.head_dim * e, "V": w.head_dim_v * e}
    rows = t.rows // t.warpgroups * t.warpgroups
    operands = (t.readers * t.keys * (d + dv) + (0 if t.q_in_registers else rows * d)) * e
    return [
        Form(
            "flex_attention",
            (
                load("Q", heads * w.seq_q * w.head_dim * e),
                *(
                    load(x, steps * t.keys * n, min(steps * t.keys, kv * counts.touched_keys) * n)
                    for x, n in read.items()
                ),
                load(COUNTS, heads * tiles * COUNTS_BYTES, counts.tiles.row_tiles * COUNTS_BYTES),
                load(LIST, heads * visits * ENTRY_BYTES, int(counts.visits.sum()) * ENTRY_BYTES),
                store("O", heads * w.seq_q * w.head_dim_v * w.output_bytes),
                store("LSE", heads * w.seq_q * 4),
            ),
            flops=steps * scores * 2 * (d + dv),
            exponentials=steps * (scores + t.rows),
            smem_bytes=steps * operands,
        )
    ]
