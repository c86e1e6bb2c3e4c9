"""Closed forms of kernels that walk chosen blocks or compressed keys (arXiv 2502.11089)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnsim.models.closed_forms.form import Form, Moved, around_fused, load, store, transfer
from attnsim.models.closed_forms.fused import backward, convert_dq, forward, row_dots, step_amounts
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, ROWS_OUTSIDE
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.selecting.compressed import SCORE_READS, CompressedTile
from attnsim.models.implementations.selecting.flash_nsa import BRANCH, NsaTile, window_of
from attnsim.models.implementations.selecting.selected import SORT_BYTES, SelectedTile, power_of_two
from attnsim.models.implementations.selecting.top_k import FOUND_BYTES, PASSES
from attnsim.models.question.selected import walkers, walks
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import UNCUT
from attnsim.models.schedule.widths import padded

LIST, INDEX = "selected", 4
_Pass = tuple[list[tuple[str, int]], list[tuple[str, int]]]
"""What a pass over whole tensors reads and writes."""


def selected(w: Workload, schedule: Schedule, tile: SelectedTile) -> list[Form]:
    """Kernels over chosen blocks: of ``v`` walks of blocks of `block` keys K and V are read ``v block`` rows."""
    assert w.selection is not None
    return [_selected(w, kernel, tile, w.selection) for kernel in schedule.kernels]


def _selected(w: Workload, kernel: Kernel, tile: SelectedTile, selection: Selection) -> Form:
    e, d, dv, rows, kv = w.element_bytes, w.head_dim, w.head_dim_v, w.batch * w.heads_q, w.batch * w.heads_kv
    visits = kv * walks(selection, w.seq_q)
    reach = kv * w.seq_kv
    blocks = (
        load("K", visits * tile.forward.keys * d * e, reach * d * e),
        load("V", visits * tile.forward.keys * dv * e, reach * dv * e),
        load(LIST, visits * INDEX),
    )
    match kernel.name:
        case "selected_fwd":
            moved = (load("Q", rows * w.seq_q * d * e), *blocks, *_outputs(w, w.seq_q))
            return forward_over(kernel.name, w, tile.forward, visits, moved)
        case "selected_bwd_dkdv":
            steps = rows * int((-(-walkers(selection, w.seq_q) // tile.keys.rows)).sum())
            # Each query head reads the list of its head of K and V: a group reads it once.
            queries = load(LIST, steps * tile.keys.rows * INDEX, steps * tile.keys.rows * INDEX // w.group)
            return _keys_outside(kernel.name, w, tile.keys, (steps, w.seq_q, selection.blocks(w.seq_kv)), (queries,))
        case "selected_bwd_dq":
            return _rows_outside(kernel.name, w, tile.queries, visits, w.seq_q, blocks)
        case "sort queries":
            entries = kv * w.seq_q * selection.top
            half = entries * SORT_BYTES // 2
            reads = [(LIST, 2 * entries * INDEX), ("order", half)]
            return transfer(kernel.name, reads, [("order", half), ("queries", entries * INDEX)])
    return _around(w, w, kernel.name)


def compressed(w: Workload, schedule: Schedule, tile: CompressedTile) -> list[Form]:
    """Kernels over one compressed key for `compress` keys, every `step`; the last key of each is not in the future."""
    assert w.selection is not None
    return [_compressed(w, kernel.name, tile, w.selection) for kernel in schedule.kernels]


def _compressed(w: Workload, name: str, tile: CompressedTile, s: Selection) -> Form:
    e, d, dv, rows, kv = w.element_bytes, w.head_dim, w.head_dim_v, w.batch * w.heads_q, w.batch * w.heads_kv
    keys = s.compressed_keys(w.seq_kv)
    begin = s.compress - 1 if tile.first is None else tile.first
    seen = w.seq_q - begin
    c = replace(w, seq_kv=keys, selection=None)

    def visits(height: int, width: int) -> int:
        """Tiles of `width` compressed keys that tiles of `height` rows walk, of a head."""
        last = np.arange(1, -(-seen // height) + 1, dtype=np.int64) * height
        ends = np.clip((begin + last - s.compress) // s.step + 1, 0, keys)
        return int((-(-ends // width)).sum())

    match name:
        case "compressed_fwd":
            t = tile.forward
            v = rows * visits(t.rows, t.keys)
            read = {x: load(x, v * t.keys * n * e, kv * keys * n * e) for x, n in (("K", d), ("V", dv))}
            moved = (load("Q", rows * seen * d * e), *read.values(), *_outputs(w, seen))
            return forward_over(name, c, t, v, moved)
        case "compressed_bwd_dkdv":
            t_keys = tile.keys
            tiles = -(-keys // t_keys.keys)
            steps = (-(-(w.seq_q - (j * t_keys.keys * s.step + s.compress - 1)) // t_keys.rows) for j in range(tiles))
            return _keys_outside(name, c, t_keys, (rows * sum(max(0, n) for n in steps), w.seq_q, tiles), ())
        case "compressed_bwd_dq":
            t_rows = tile.queries
            v = rows * visits(t_rows.rows, t_rows.keys)
            read = {x: load(x, v * t_rows.keys * n * e, kv * keys * n * e) for x, n in (("K", d), ("V", dv))}
            return _rows_outside(name, c, t_rows, v, -(-seen // t_rows.rows) * t_rows.rows, tuple(read.values()))
    return _choice(w, name, tile, s) or _around(w, c, name)


def _choice(w: Workload, name: str, tile: CompressedTile, s: Selection) -> Form | None:
    """The kernels that choose blocks; None for another."""
    heads = w.batch * w.heads_kv
    at_once = heads if w.batch * w.seq_q <= 32768 else 1
    keys, blocks, rows = s.compressed_keys(w.seq_kv), s.blocks(w.seq_kv), at_once * w.seq_q
    found = rows * min(s.top, blocks)
    scores, summed, every = rows * keys * 4, rows * blocks * 4, found * FOUND_BYTES
    passes: dict[str, _Pass] = {
        "clear scores": ([], [("scores", scores)]),
        "clear block scores": ([], [("block scores", summed)]),
        "sum scores": ([("scores", scores)], [("block scores", summed)]),
        "sort values": ([("found", every)], [("found", every)]),
        "sort places": ([("found", every)], [("found", every)]),
        "future": ([("found", found * 8)], [("is future", found)]),
        "drop": ([("found", found * 8)], [("found", found * 8)]),
        "to int32": ([("found", found * 8)], [("selected", found * 4)]),
    }
    if name in passes:
        return transfer(name, *passes[name])
    if name == "top-k":
        return Form(name, (load("block scores", PASSES * summed, summed), store("found", every)))
    return _group_scores(w, tile, at_once, keys) if name == "score" else None


def _group_scores(w: Workload, tile: CompressedTile, at_once: int, keys: int) -> Form:
    """`at_once` heads of K: every tile of queries x compressed keys, the heads of a group in turn."""
    t, e, d, rows = tile.forward, w.element_bytes, padded(w.head_dim), at_once * w.seq_q
    tiles = at_once * -(-keys // t.keys) * -(-w.seq_q // t.rows)
    pairs = t.rows * t.keys
    moved = (
        load("Q", tiles * w.group * t.rows * w.head_dim * e, rows * w.group * w.head_dim * e),
        load("LSE", tiles * w.group * t.rows * 4, 0),
        load("K", tiles * t.keys * w.head_dim * e, at_once * keys * w.head_dim * e),
        store("scores", tiles * pairs * 4, rows * keys * 4),
    )
    of_q, of_k = SCORE_READS[t.path]
    read = (of_k * t.warpgroups * t.keys + of_q * t.rows) * d * e
    n = tiles * w.group
    return Form("score", moved, flops=n * 2 * pairs * d, exponentials=n * pairs, smem_bytes=n * read)


def _outputs(w: Workload, rows: int) -> tuple[Moved, ...]:
    heads = w.batch * w.heads_q
    return store("O", heads * rows * w.head_dim_v * w.output_bytes), store("LSE", heads * rows * 4)


def forward_over(name: str, w: Workload, t: FlashTile, visits: int, moved: tuple[Moved, ...]) -> Form:
    """A forward kernel whose tiles of rows visit tiles of keys so many times."""
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    by_rows = t.across * t.rows * (d + t.p_in_smem * t.keys)
    by_columns = t.readers * (t.read_columns(t.keys) * d + t.keys * t.read_columns(dv))
    read = (by_rows + by_columns) * w.element_bytes
    scores = t.rows * t.keys
    return Form(
        name,
        moved,
        flops=visits * scores * 2 * (d + dv),
        exponentials=visits * (scores + t.rows),
        smem_bytes=visits * read,
    )


def _keys_outside(
    name: str, w: Workload, t: BackwardTile, counts: tuple[int, int, int], more: tuple[Moved, ...]
) -> Form:
    """`counts`: steps of all blocks, rows of a head, tiles of keys of a head."""
    steps, rows, tiles = counts
    heads, kv, e, d, dv = w.batch * w.heads_q, w.batch * w.heads_kv, w.element_bytes, w.head_dim, w.head_dim_v
    expanded = " expanded" if w.group > 1 else ""
    kept = {x: load(x, heads * tiles * t.keys * n * e, kv * w.seq_kv * n * e) for x, n in (("K", d), ("V", dv))}
    passing = {"Q": d * e, "LSE, D": 8, "dO": dv * e}
    lse = 0 if "fwd" in w.directions else heads * rows * 4
    unique = {"Q": heads * rows * d * e, "LSE, D": lse, "dO": heads * rows * dv * e}
    return Form(
        name,
        (
            *kept.values(),
            *(load(x, steps * t.rows * n, unique[x]) for x, n in passing.items()),
            *more,
            store(f"dK{expanded}", heads * tiles * t.keys * d * e, heads * w.seq_kv * d * e),
            store(f"dV{expanded}", heads * tiles * t.keys * dv * e, heads * w.seq_kv * dv * e),
        ),
        *step_amounts(t, KEYS_OUTSIDE, steps, (padded(d), padded(dv)), e),
    )


def _rows_outside(name: str, w: Workload, t: BackwardTile, visits: int, rows: int, read: tuple[Moved, ...]) -> Form:
    heads, e, d, dv = w.batch * w.heads_q, w.element_bytes, w.head_dim, w.head_dim_v
    lse = 0 if "fwd" in w.directions else heads * w.seq_q * 4
    return Form(
        name,
        (
            load("Q", heads * rows * d * e, heads * w.seq_q * d * e),
            load("LSE, D", heads * rows * 8, lse),
            load("dO", heads * rows * dv * e, heads * w.seq_q * dv * e),
            *read,
            store("dQ", heads * rows * d * e, heads * w.seq_q * d * e),
        ),
        *step_amounts(t, ROWS_OUTSIDE, visits, (padded(d), padded(dv)), e),
    )


def _around(w: Workload, over: Workload, name: str) -> Form:
    """Kernels that clear tensors, add up a group, and take row sums; `over`: with the keys that are attended."""
    rows = w.batch * w.heads_q
    sizes = {
        "clear O": ("O", rows * w.seq_q * w.head_dim_v * w.output_bytes),
        "clear LSE": ("LSE", rows * w.seq_q * 4),
        "clear dK": ("dK expanded", rows * over.seq_kv * w.head_dim * w.element_bytes),
        "clear dV": ("dV expanded", rows * over.seq_kv * w.head_dim_v * w.element_bytes),
        "clear dQ": ("dQ", rows * w.seq_q * w.head_dim * w.element_bytes),
    }
    if name in sizes:
        return transfer(name, [], [sizes[name]])
    part = row_dots(w, accumulator=False) if name == "dot_do_o" else around_fused(name, over, 1)
    if part is None:
        raise LookupError(f"no closed form of the kernel {name}; add it to attnsim.models.closed_forms.selecting")
    return part


def whole(w: Workload, schedule: Schedule, tile: NsaTile) -> list[Form]:
    """All branches: each kernel by its own form, tensors of a branch under its name."""
    assert w.selection is not None
    return [_whole(w, kernel, tile, w.selection) for kernel in schedule.kernels]


def _whole(w: Workload, kernel: Kernel, tile: NsaTile, s: Selection) -> Form:
    window, name = window_of(w), kernel.name
    branch = next((use.tensor.rpartition(" ")[2] for use in kernel.uses if use.tensor.endswith(_BRANCHES)), "")
    if name == "window_fwd":
        form: Form | None = forward(window, tile.window, UNCUT, name)
    elif name == "flash_bwd":
        form = backward(window, tile.window_backward)
    elif name == "convert_dQ":
        form = convert_dq(window)
    elif branch == "window":
        form = around_fused(name, window, 1) or row_dots(window, accumulator=True)
    else:
        form = None
    if form is not None:
        return form.renamed(BRANCH["window"])
    own = _of_whole(w, name, tile, s)
    if own is not None:
        return own
    if branch == "compressed" or name.startswith("compressed"):
        return _compressed(w, name, tile.compressed, s).renamed(BRANCH["compressed"])
    return _selected(w, kernel, tile.selected, s)


_BRANCHES = (" compressed", " window")


def _of_whole(w: Workload, name: str, tile: NsaTile, s: Selection) -> Form | None:
    """Kernels between the branches; None for another."""
    e, kv, rows = w.element_bytes, w.batch * w.heads_kv, w.batch * w.heads_q * w.seq_q
    keys, blocks = s.compressed_keys(w.seq_kv), power_of_two(s.blocks(w.seq_kv))
    columns, queries = max(16, blocks), kv * w.seq_q
    out, weights = rows * w.head_dim_v * e, rows * 3 * e
    outs = ("O compressed", "O", "O window")
    table, found = kv * blocks * power_of_two(w.seq_q) * 4, queries * s.top * 4
    passes: dict[str, _Pass] = {
        "combine branches": ([*((x, out) for x in outs), ("weights", weights)], [("O combined", out)]),
        "combine_bwd": (
            [*((x, out) for x in (*outs, "dO combined")), ("weights", weights)],
            [*((f"d{x}", out) for x in outs), ("dweights", weights)],
        ),
        "clear block scores": ([], [("block scores", queries * columns * 2)]),
        "clear selected": ([], [("selected", found)]),
        "clear table": ([], [("queries", table)]),
        "mark queries": ([("selected", found)], []),
        "order queries": ([("queries", table)], [("queries", table)]),
    }
    for x, n in (("K", w.head_dim * e), ("V", w.head_dim_v * e)):
        passes[f"spread d{x}"] = [(f"d{x} compressed", kv * keys * n)], [(f"d{x} all", kv * w.seq_kv * n)]
        if name == f"compress {x}":
            read = load(x, -(-s.compress // s.step) * kv * w.seq_kv * n, kv * w.seq_kv * n)
            return Form(name, (read, store(f"{x} compressed", kv * keys * n)))
    if name in passes:
        return transfer(name, *passes[name])
    if name == "maxima":
        each = 1 if columns >= 2048 else 4
        count = -(-queries // each) * each
        read = load("block scores", count * columns * 2, queries * columns * 2)
        return Form(name, (read, store("selected", count * s.top * 4, found)))
    return _block_scores(w, tile, s) if name == "block scores" else None


def _block_scores(w: Workload, tile: NsaTile, s: Selection) -> Form:
    """Tiles of 64 queries x 128 compressed keys up to the block that the last query is in; a quarter of keys more."""
    t, e, d, heads = tile.compressed.forward, w.element_bytes, padded(w.head_dim), w.batch * w.heads_kv
    keys, fewer = s.compressed_keys(w.seq_kv), t.keys * s.step // s.block
    rows = -(-w.seq_q // t.rows)
    across = -(-keys // t.keys)
    # Tile j of keys begins in block j fewer; a tile of rows computes it where its last query has come that far.
    last = np.arange(1, rows + 1, dtype=np.int64) * t.rows
    tiles = heads * int(np.minimum(across, -(-last // s.block) // fewer + 1).sum())
    pairs, n = t.rows * (t.keys + fewer), tiles * w.group
    moved = (
        load("Q", n * t.rows * w.head_dim * e, heads * w.group * w.seq_q * w.head_dim * e),
        load("LSE compressed", n * t.rows * 4, 0),
        load("K compressed", tiles * 2 * t.keys * w.head_dim * e, heads * keys * w.head_dim * e),
        store("block scores", tiles * t.rows * fewer * 2, heads * w.seq_q * -(-keys * s.step // s.block) * 2),
    )
    read = (t.readers * (t.keys + fewer) + 2 * t.rows) * d * e
    return Form("block scores", moved, flops=n * 2 * pairs * d, exponentials=n * pairs, smem_bytes=n * read)
