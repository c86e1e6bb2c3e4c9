"""Closed forms of DeepSeek sparse attention's kernels (arXiv 2512.02556, section 2.1)."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, load, store, transfer
from attnsim.models.implementations.selecting.dsa import GATHERED, PAGE
from attnsim.models.implementations.selecting.dsa_decode import TOKEN_BYTES, pieces
from attnsim.models.implementations.selecting.dsa_tiles import (
    SCALE_BYTES,
    DsaTile,
    IndexTile,
    TokensTile,
    TopKTile,
    chosen_keys,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

LIST, INDEX = "selected", 4


def closed_form(w: Workload, schedule: Schedule, tile: DsaTile) -> list[Form]:
    """The kernels that the schedule has a tile of."""
    whole = tile.index is not None and tile.tokens is not None
    names = ("Q index", "K index") if whole else ("Q", "K")
    return [
        *([_indexer(w, tile.index, names)] if tile.index else []),
        *([_top_k(w, tile.top_k)] if tile.top_k else []),
        *(([_attention(w, tile.tokens)] if not tile.tokens.shares else _decode(w, tile.tokens)) if tile.tokens else []),
    ]


def _end(w: Workload, query: int) -> int:
    """Keys before the first that a query of the batch does not see, sequences one after the other."""
    sequence, place = divmod(query, w.seq_q)
    return sequence * w.seq_kv + max(0, min(w.seq_kv, place + w.seq_kv - w.seq_q + 1))


def _indexer(w: Workload, t: IndexTile, names: tuple[str, str]) -> Form:
    """Blocks of `t.queries` queries, each from the first key of its first query's sequence to its last query's last."""
    total = w.batch * w.seq_q
    if t.shares:
        return _paged_indexer(w, t, names)
    blocks = range(0, total, t.queries)
    steps = sum(
        -(-(_end(w, min(first + t.queries, total) - 1) - first // w.seq_q * w.seq_kv) // t.keys) for first in blocks
    )
    columns, row = t.queries * t.heads, t.width + SCALE_BYTES
    busy = sum(_end(w, min(first + t.queries, total) - 1) > first // w.seq_q * w.seq_kv for first in blocks)
    groups, written = (2 if t.path == "tcgen05" else 4), steps * t.queries * t.keys * 4
    return Form(
        "indexer",
        (
            load(names[0], busy * columns * row, min(total, busy * t.queries) * t.heads * row),
            load(names[1], steps * t.keys * row, w.batch * w.seq_kv * row),
            store("scores", written, min(written, total * w.seq_kv * 4)),
        ),
        flops=steps * 2 * columns * t.keys * t.width,
        smem_bytes=steps * (groups * columns + t.keys) * t.width,
    )


def _paged_indexer(w: Workload, t: IndexTile, names: tuple[str, str]) -> Form:
    """Shares of all tiles of keys: a block reads the queries of every sequence that its share reaches into."""
    each, row, columns = -(-w.seq_kv // t.keys), t.width + SCALE_BYTES, t.queries * t.heads
    steps = w.batch * each
    share, left = divmod(steps, t.shares)
    begins = {block * share + min(block, left) for block in range(t.shares)}
    reads = w.batch + sum(
        1 for place in begins if place < steps and place % each
    )  # each sequence, and where one is cut
    groups, written = (2 if t.path == "tcgen05" else 4), steps * t.queries * t.keys * 4
    pages = -(-w.seq_kv // PAGE) * INDEX
    return Form(
        "indexer",
        (
            load(names[0], reads * columns * row, w.batch * columns * row),
            load(names[1], steps * t.keys * row, w.batch * w.seq_kv * row),
            load("page numbers", steps * t.keys // PAGE * INDEX, w.batch * pages),
            store("scores", written, min(written, w.batch * w.seq_q * w.seq_kv * 4)),
        ),
        flops=steps * 2 * columns * t.keys * t.width,
        smem_bytes=steps * (groups * columns + t.keys) * t.width,
    )


def _top_k(w: Workload, t: TopKTile) -> Form:
    """Two passes over the scores of queries that see more keys than are chosen."""
    first = max(0, t.top - (w.seq_kv - w.seq_q))  # the first query that sees more
    seen = (place + w.seq_kv - w.seq_q + 1 for place in range(first, w.seq_q))
    turns = w.batch * sum(-(-n // t.chunk) for n in seen)
    rows, places = w.batch * w.seq_q, w.batch * w.seq_q * t.top * INDEX
    return Form(
        "top-k",
        (
            load("scores", GATHERED * turns * t.chunk * 4, min(turns * t.chunk, rows * w.seq_kv) * 4),
            load("page table", places, min(places, w.batch * w.seq_kv * INDEX)),
            store(LIST, places),
        ),
    )


def _attention(w: Workload, t: TokensTile) -> Form:
    """Per query and 64 heads: the latents of its keys once, scores over all their width, values over its first part."""
    assert w.selection is not None
    (d, dv), e = t.widths, w.element_bytes
    steps, heads = -(-w.selection.top // t.keys), -(-w.heads_q // t.heads)
    queries = w.batch * w.seq_q
    n = queries * heads * steps
    scores = t.heads * t.keys
    out = queries * w.heads_q
    key_rows = w.batch * chosen_keys(w, steps * t.keys)
    readers = 1 if t.path == "tcgen05" else 2
    read = (readers * t.keys + t.heads) * d + readers * t.keys * dv + scores
    return Form(
        "sparse_attn",
        (
            load("Q", out * d * e),
            load("KV", n * t.keys * d * e, key_rows * d * e),
            load(LIST, n * t.keys * INDEX, queries * steps * t.keys * INDEX),
            store("O", out * dv * w.output_bytes),
            store("LSE", out * 8),
        ),
        flops=n * 2 * scores * (d + dv),
        exponentials=n * (scores + t.heads),
        smem_bytes=n * read * e,
    )


def _decode(w: Workload, t: TokensTile) -> list[Form]:
    """Tokens in eight bits are read once a query by the blocks of its heads together; Q once a piece of its keys."""
    assert w.selection is not None
    (d, dv), e, steps = t.widths, w.element_bytes, -(-w.selection.top // t.keys)
    cut = pieces(w, t.shares).tolist()
    blocks, out, n = w.heads_q // t.heads, w.seq_q * w.heads_q, w.batch * w.seq_q * (w.heads_q // t.heads) * steps
    single, split = sum(one == 1 for one in cut), sum(one for one in cut if one > 1)
    scores, groups = t.heads * t.keys, 2
    read = groups * (t.keys + t.heads // groups) * d + groups * t.keys * dv + scores
    stored = [("", single, w.output_bytes), (" partial", split, 4)]
    forms = [
        Form(
            "sparse_decode",
            (
                load("Q", sum(cut) * out * d * e, w.batch * out * d * e),
                load("KV", n // blocks * t.keys * TOKEN_BYTES, w.batch * chosen_keys(w, steps * t.keys) * TOKEN_BYTES),
                load(LIST, n * t.keys * INDEX, n // blocks * t.keys * INDEX),
                *(store(f"O{suffix}", count * out * dv * size) for suffix, count, size in stored if count),
                *(store(f"LSE{suffix}", count * out * 4) for suffix, count, _ in stored if count),
            ),
            flops=n * 2 * scores * (d + dv),
            exponentials=n * (scores + t.heads),
            smem_bytes=n * read * e,
        )
    ]
    if split:
        merged = sum(one > 1 for one in cut) * out
        reads = [("O partial", split * out * dv * 4), ("LSE partial", split * out * 4)]
        forms.append(transfer("combine", reads, [("O", merged * dv * w.output_bytes), ("LSE", merged * 4)]))
    return forms
