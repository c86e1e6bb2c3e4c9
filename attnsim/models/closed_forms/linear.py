"""Closed forms of the schedules of :mod:`attnsim.models.implementations.own.linear`."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, load, store
from attnsim.models.implementations.own.linear_tiles import (
    CAUSAL,
    CHUNK,
    DECODE,
    KEYS,
    OUTPUT,
    REDUCE,
    SCAN,
    SLAB,
    STATE,
    WARPS,
    LinearTile,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

READ_AND_WRITTEN = 4
"""Of shared memory for an element of phi or of O, which is read from there and written there in 16 bits."""


def closed_form(w: Workload, schedule: Schedule, tile: LinearTile) -> list[Form]:
    """Closed form of the kernels: of the schedule only the ranges are used."""
    ranges = tile.ranges
    if w.passes == "decode":
        return [_decode_part(w)]
    if tile.row_ranges:
        return [_state_part(w, ranges, ranges), _merge_part(w, REDUCE, ranges), _output_part(w, tile.row_ranges)]
    before = [_state_part(w, ranges, ranges - 1)] if ranges > 1 else []
    before += [_merge_part(w, SCAN, ranges - 1)] if ranges > 2 else []
    return [*before, _causal_part(w, ranges)]


def _state_part(w: Workload, ranges: int, blocks: int) -> Form:
    """Of ``t`` key tiles a head the first ``t blocks // ranges``, as even ranges have it."""
    d, heads = w.head_dim, w.batch * w.heads_kv
    tiles = -(-w.seq_kv // KEYS) * blocks // ranges
    keys = heads * min(w.seq_kv, tiles * KEYS)
    states = heads * blocks
    return Form(
        STATE,
        (
            load("K", keys * d * w.element_bytes),
            load("V", keys * d * w.element_bytes),
            store("State partial", states * d * d * 4),
            store("Normalizer partial", states * d * 4),
        ),
        flops=heads * tiles * 2 * KEYS * d * (d + 8),
        exponentials=keys * d,
        smem_bytes=heads * tiles * KEYS * WARPS * d * 2 + READ_AND_WRITTEN * keys * d,
    )


def _merge_part(w: Workload, name: str, ranges: int) -> Form:
    d, heads = w.head_dim, w.batch * w.heads_kv
    loads = (load("State partial", heads * ranges * d * d * 4), load("Normalizer partial", heads * ranges * d * 4))
    if name == REDUCE:
        return Form(name, (*loads, store("State", heads * d * d * 2), store("Normalizer", heads * d * 4)))
    later = heads * (ranges - 1)
    return Form(name, (*loads, store("State partial", later * d * d * 4), store("Normalizer partial", later * d * 4)))


def _output_part(w: Workload, ranges: int) -> Form:
    d, heads = w.head_dim, w.batch * w.heads_q
    states = w.batch * w.heads_kv
    slabs = heads * -(-w.seq_q // SLAB)
    rows = heads * w.seq_q
    return Form(
        OUTPUT,
        (
            load("State", heads * ranges * d * d * 2, states * d * d * 2),
            load("Normalizer", heads * ranges * d * 4, states * d * 4),
            load("Q", rows * d * w.element_bytes),
            store("O", rows * d * w.output_bytes),
        ),
        flops=2 * slabs * SLAB * d * d,
        exponentials=slabs * SLAB * d,
        smem_bytes=2 * slabs * d * (SLAB + d) + READ_AND_WRITTEN * slabs * SLAB * d,
    )


def _causal_part(w: Workload, ranges: int) -> Form:
    """``c`` chunks a head, all but the last of each range added to the state."""
    d, e, heads, kv_heads = w.head_dim, w.element_bytes, w.batch * w.heads_q, w.batch * w.heads_kv
    chunks, rows = heads * -(-w.seq_q // CHUNK), heads * w.seq_q
    added = chunks - heads * ranges
    scores = CHUNK * (CHUNK + 16) // 2
    later = heads * (ranges - 1)
    kv = rows * d * e, kv_heads * w.seq_q * d * e
    state = (
        load("State partial", later * d * d * 4, later // w.group * d * d * 4),
        load("Normalizer partial", later * d * 4, later // w.group * d * 4),
    )
    # Fragments: A = phi(Q) phi(K)^T reads Q once and K per block; O reads Q again, S / z for each warp, V per block.
    blocks = CHUNK // 16
    fragments = d // 16 * (2 * blocks + 2 * scores // 256 + blocks * d // 16)
    return Form(
        CAUSAL,
        (load("Q", rows * d * e), load("K", *kv), load("V", *kv), *state, store("O", rows * d * w.output_bytes)),
        flops=2 * d * (chunks * (2 * scores + CHUNK * d) + added * CHUNK * (d + 8)),
        exponentials=2 * rows * d,
        smem_bytes=chunks * fragments * 512
        + added * CHUNK * WARPS * d * 2
        + READ_AND_WRITTEN * d * (2 * rows + chunks * CHUNK),
    )


def _decode_part(w: Workload) -> Form:
    d, e, heads = w.head_dim, w.element_bytes, w.batch * w.heads_kv
    tokens, queries = heads * w.seq_q, w.batch * w.heads_q * w.seq_q
    return Form(
        DECODE,
        (
            load("State", heads * d * d * 4),
            load("Normalizer", heads * d * 4),
            load("K", tokens * d * e),
            load("V", tokens * d * e),
            load("Q", queries * d * e),
            store("State", heads * d * d * 4),
            store("Normalizer", heads * d * 4),
            store("O", queries * d * w.output_bytes),
        ),
        flops=2 * (tokens + queries) * d * d,
        exponentials=(tokens + queries) * d,
        smem_bytes=READ_AND_WRITTEN * (tokens + queries) * d,
    )
