"""Closed forms of this project's kernels, apart from fused forward kernels (`fused`) and linear ones (`linear`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnsim.models.closed_forms import fused
from attnsim.models.closed_forms.band import Band, reaches
from attnsim.models.closed_forms.form import Form, gemm, load, store, transfer
from attnsim.models.implementations.fused.listed import busy_rows
from attnsim.models.implementations.own.backward_tiles import (
    CONVERT,
    MAIN,
    ROW_DOTS,
    OwnBackwardTile,
    operands_read,
    sums_bytes,
)
from attnsim.models.implementations.own.decode import COMBINE, COMBINE_WARPS, SPLIT
from attnsim.models.implementations.own.decode_tiles import ROWS, DecodeTile
from attnsim.models.implementations.own.naive import WARP_COLUMNS, NaiveTile, exponentiated, softmax_tile
from attnsim.models.implementations.own.sigmoid import ENTRY as SIGMOID
from attnsim.models.implementations.own.sigmoid import UNIT_OPERATIONS, SigmoidTile
from attnsim.models.implementations.own.sparse import LIST, MASKS, ROW_TILES
from attnsim.models.implementations.own.sparse_tiles import ENTRY, ROW_TILE_BYTES, VISIT_BYTES, SparseTile, counts_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.models.schedule.splits import Splits


def naive(w: Workload, schedule: Schedule, tile: NaiveTile) -> list[Form]:
    """Bytes, FLOPs and exponentials of each kernel, from the shape alone."""
    heads, rows = w.batch * w.heads_q, w.batch * w.heads_q * w.seq_q
    scores = 2 * rows * w.seq_kv
    softmax = softmax_tile(w.seq_kv)
    exps = softmax.sweeps * exponentiated(w.seq_kv)
    if softmax.sweeps > 1:
        exps += softmax.threads * (1 + -(-w.seq_kv // (softmax.warps * WARP_COLUMNS)))

    def product(name: str, shape: tuple[int, int, int], tensors: tuple[str, str, str]) -> Form:
        return gemm(name, heads, shape, tensors, (2, 2, 2), b_shared_by=w.group)

    forms = {
        "naive_scores": product("naive_scores", (w.seq_q, w.seq_kv, w.head_dim), ("Q", "K", "S")),
        "naive_scale": transfer("naive_scale", [("S", scores)], [("S", scores)]),
        "naive_mask": transfer("naive_mask", [("S", scores)], [("S", scores)]),
        "naive_softmax": Form(
            "naive_softmax",
            (load("S", softmax.sweeps * scores, scores), store("P", scores), store("LSE", 4 * rows)),
            exponentials=rows * exps,
        ),
        "naive_output": product("naive_output", (w.seq_q, w.head_dim, w.seq_kv), ("P", "V", "O")),
    }
    return [forms[kernel.name] for kernel in schedule.kernels]


def backward(w: Workload, schedule: Schedule, tile: OwnBackwardTile) -> list[Form]:
    """Row dots, main kernel, conversion of dQ."""
    rows, width = w.batch * w.heads_q * w.seq_q, w.head_dim * w.element_bytes
    sums = sums_bytes(w, tile)
    return [
        transfer(ROW_DOTS, [("O", rows * width), ("dO", rows * width)], [("D", rows * 4), ("dQ accum", sums)]),
        _backward_main(w, tile),
        # Each fp32 sum becomes an element that is written to shared memory and read.
        replace(
            transfer(CONVERT, [("dQ accum", sums)], [("dQ", rows * width)]), smem_bytes=sums // 4 * 2 * w.element_bytes
        ),
    ]


def _backward_main(w: Workload, tile: OwnBackwardTile) -> Form:
    band = Band.of_keys(w.seq_q, w.seq_kv, *reaches(w.mask), tile.keys)
    heads, kv, width = w.batch * w.heads_q, w.batch * w.heads_kv, w.head_dim * w.element_bytes
    m, n, d = tile.rows, tile.keys, tile.head_dim
    visits, rows, seen = (heads * count for count in band.read(m))
    keys = kv * int(band.busy_rows())
    reads = 2 * operands_read(m, n) * d + 2 * operands_read(n, d) * m + operands_read(m, d) * n
    return Form(
        MAIN,
        (
            load("K", keys * width),
            load("V", keys * width),
            load("Q", rows * width, seen * width),
            load("dO", rows * width, seen * width),
            load("LSE", rows * 4, seen * 4),
            load("D", rows * 4, seen * 4),
            store("dQ accum", visits * tile.sums_bytes, 0),
            store("dK", kv * w.seq_kv * width),
            store("dV", kv * w.seq_kv * width),
        ),
        flops=visits * 5 * 2 * m * n * d,
        exponentials=visits * m * n,
        # P and dS are written there, each beside a number of each row that all threads read.
        smem_bytes=visits * 2 * (reads + 2 * m * n + tile.row_numbers_bytes),
    )


def decode(w: Workload, schedule: Schedule, tile: DecodeTile) -> list[Form]:
    """Split and combine kernel.

    With ``v`` visits of key tiles by the row tiles of a key head, whatever the splits: K and V ``v keys`` rows less
    the missing rows of the last tile; Q, O and LSE every row once per split. Four lanes each compute the
    factor of a row of a warp's O. To combine a row, each thread weighs a split, and each two columns every warp's sum.
    """
    warps, keys, splits = tile.warps, tile.keys, schedule.splits.count
    band = Band.of_queries(w.seq_q, w.seq_kv, *reaches(w.mask), ROWS, pack=w.group)
    kv_heads, rows = w.batch * w.heads_kv, w.batch * w.heads_q * w.seq_q
    d, e = w.head_dim, w.element_bytes
    visits, kv_rows, seen = band.read(keys)
    kv = kv_heads * kv_rows * d * e, kv_heads * seen * d * e
    o, lse = (store("O partial", rows * splits * d * 4), store("LSE partial", rows * splits * 4))
    whole = (store("O", rows * d * w.output_bytes), store("LSE", rows * 4))
    parts = [
        Form(
            SPLIT,
            (
                load("Q", rows * splits * d * e, rows * d * e),
                load("K", *kv),
                load("V", *kv),
                *((o, lse) if splits > 1 else whole),
            ),
            flops=kv_heads * visits * 4 * ROWS * keys * d,
            exponentials=ROWS * kv_heads * visits * (keys + 4 * warps),
            smem_bytes=kv_heads * visits * (2 * keys + (warps * ROWS if d > 128 else 0)) * d * e,
        )
    ]
    if splits > 1:
        partial = load("O partial", rows * splits * d * 4), load("LSE partial", rows * splits * 4)
        parts.append(Form(COMBINE, (*partial, *whole), exponentials=rows * COMBINE_WARPS * (32 + d // 2)))
    return parts


def sparse(w: Workload, schedule: Schedule, tile: SparseTile) -> list[Form]:
    """The one kernel over a list of visible tiles.

    With ``v`` visits of a head's row tiles, ``p`` of them in part: K and V ``v keys`` rows less the missing rows of
    the last tile, ``8 v`` bytes of list, ``p`` bit masks, and Q for the rows of row tiles that visit anything.
    """
    counts = counts_of(w, tile)
    visits, partial, row_tiles = int(counts.visits.sum()), int(counts.partial.sum()), counts.tiles.row_tiles
    heads, kv_heads, d, e = w.batch * w.heads_q, w.batch * w.heads_kv, w.head_dim, w.element_bytes
    kv_rows = visits * tile.keys - int(counts.last_key_tile.sum()) * (-w.seq_kv % tile.keys)
    kv = heads * kv_rows * d * e, kv_heads * counts.touched_keys * d * e
    masks = heads * partial * tile.bit_mask_bytes, counts.patterns * tile.bit_mask_bytes
    return [
        Form(
            ENTRY,
            (
                load("Q", heads * busy_rows(w, counts) * d * e),
                load("K", *kv),
                load("V", *kv),
                load(ROW_TILES, heads * row_tiles * ROW_TILE_BYTES),
                load(LIST, heads * visits * VISIT_BYTES, visits * VISIT_BYTES),
                load(MASKS, *masks),
                store("O", heads * w.seq_q * d * w.output_bytes),
                store("LSE", heads * w.seq_q * 4),
            ),
            flops=heads * visits * 4 * tile.rows * tile.keys * d,
            exponentials=heads * tile.rows * (visits * tile.keys + 4 * int((counts.visits > 0).sum())),
            smem_bytes=heads * visits * (2 * tile.warps * tile.keys + tile.rows) * d * e,
        )
    ]


def sigmoid(w: Workload, schedule: Schedule, tile: SigmoidTile) -> list[Form]:
    """The flash kernel without its log-sum-exp and its factors, with two special-function operations a score."""
    part = fused.forward(w, tile.flash, Splits(), SIGMOID, lse=False)
    return [replace(part, exponentials=UNIT_OPERATIONS * part.exponentials)]


FORMS: dict[type, Callable[[Workload, Schedule, Any], list[Form]]] = {
    NaiveTile: naive,
    OwnBackwardTile: backward,
    DecodeTile: decode,
    SparseTile: sparse,
    SigmoidTile: sigmoid,
}
"""By the type of a schedule's tile."""
