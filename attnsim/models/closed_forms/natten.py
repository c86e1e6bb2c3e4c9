"""Closed form of fused neighbourhood attention: boxes of tiles, whose numbers along the dimensions multiply."""

from __future__ import annotations

from math import prod

from attnsim.models.closed_forms.form import Form, load, store
from attnsim.models.implementations.natten import BoxTile, pattern
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def closed_form(w: Workload, schedule: Schedule, tile: BoxTile) -> list[Form]:
    """The one kernel: visits of all tiles are the product over dimensions of the visits along each."""
    t, part = tile.flash, pattern(w)
    visits, tiles = 1, 1
    for d, (rows, keys) in enumerate(zip(tile.queries, tile.keys, strict=True)):
        size, window, stride = part.layout[d], part.window[d], part.stride[d]

        def first(place: int, size: int = size, window: int = window, stride: int = stride) -> int:
            middle = min(place // stride * stride + stride // 2, size - 1)
            return max(0, min(middle - window // 2, size - window))

        ends = [(first(q), first(min(q + rows, size) - 1) + window) for q in range(0, size, rows)]
        visits *= sum(-(-high // keys) - low // keys for low, high in ends)
        tiles *= len(ends)
    heads, kv, e = w.batch * w.heads_q, w.batch * w.heads_kv, w.element_bytes
    (d_pad, dv_pad), keys_read = t.compiled(w), heads * visits * t.keys
    scores, rows = t.rows * t.keys, t.rows // t.warpgroups * t.warpgroups
    operands = t.readers * t.keys * (d_pad + dv_pad) * e + (0 if t.q_in_registers else rows * d_pad * e)
    operands += rows * t.keys * e if t.p_in_smem else 0
    factors = {"always": visits * rows, "first": 4 * rows * tiles, "seldom": 0}
    queries, unique = heads * tiles * t.rows, kv * prod(part.layout)
    return [
        Form(
            "fna",
            (
                load("Q", queries * w.head_dim * e),
                load("K", keys_read * w.head_dim * e, min(keys_read, unique) * w.head_dim * e),
                load("V", keys_read * w.head_dim_v * e, min(keys_read, unique) * w.head_dim_v * e),
                store("O", queries * w.head_dim_v * w.output_bytes),
                store("LSE", queries * 4),
            ),
            flops=heads * visits * scores * 2 * (d_pad + dv_pad),
            exponentials=heads * (visits * scores - t.polynomials(visits * rows * t.keys) + factors[t.rescale]),
            smem_bytes=heads * visits * operands,
        )
    ]
