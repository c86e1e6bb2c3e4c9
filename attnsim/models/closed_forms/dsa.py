"""Closed forms of DeepSeek sparse attention's kernels (arXiv 2512.02556, section 2.1)."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, load, store, summed, transfer
from attnsim.models.implementations.selecting.dsa_decode import TOKEN_BYTES, pieces
from attnsim.models.implementations.selecting.dsa_indexer import PAGE
from attnsim.models.implementations.selecting.dsa_pair import TMEM_WIDTH
from attnsim.models.implementations.selecting.dsa_tiles import (
    SCALE_BYTES,
    DsaTile,
    IndexTile,
    TokensTile,
    TopKTile,
    chosen_keys,
)
from attnsim.models.implementations.selecting.dsa_top_k import GATHERED, REQUESTS, UNROLLED
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

LIST, INDEX = "selected", 4


def closed_form(w: Workload, schedule: Schedule, tile: DsaTile) -> list[Form]:
    """The kernels that the schedule has a tile of."""
    whole = tile.index is not None and tile.tokens is not None
    names = ("Q index", "K index") if whole else ("Q", "K")
    return [
        *(_indexers(w, tile.index, names) if tile.index else []),
        *(_top_ks(w, tile.top_k) if tile.top_k else []),
        *(([_attention(w, tile.tokens)] if not tile.tokens.shares else _decode(w, tile.tokens)) if tile.tokens else []),
    ]


def _end(w: Workload, query: int) -> int:
    """Keys before the first that a query of the batch does not see, sequences one after the other."""
    sequence, place = divmod(query, w.seq_q)
    return sequence * w.seq_kv + max(0, min(w.seq_kv, place + w.seq_kv - w.seq_q + 1))


def _calls(w: Workload, at_once: int) -> list[tuple[int, int]]:
    """First query of each call, and the one after its last."""
    rows = w.batch * w.seq_q
    return [(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]


def _indexers(w: Workload, t: IndexTile, names: tuple[str, str]) -> list[Form]:
    if t.shares:
        return [_paged_indexer(w, t, names)]
    return summed(_indexer(w, t, names, *call) for call in _calls(w, t.at_once))


def _indexer(w: Workload, t: IndexTile, names: tuple[str, str], start: int, stop: int) -> Form:
    """Blocks of `t.queries` queries, each from the first key of its first query's sequence to its last query's last."""
    total = stop - start
    sequences = (stop - 1) // w.seq_q - start // w.seq_q + 1
    blocks = range(start, stop, t.queries)
    steps = sum(
        -(-(_end(w, min(first + t.queries, stop) - 1) - first // w.seq_q * w.seq_kv) // t.keys) for first in blocks
    )
    columns, row = t.queries * t.heads, t.width + SCALE_BYTES
    busy = sum(_end(w, min(first + t.queries, stop) - 1) > first // w.seq_q * w.seq_kv for first in blocks)
    groups, written = (2 if t.path == "tcgen05" else 4), steps * t.queries * t.keys * 4
    return Form(
        "indexer",
        (
            load(names[0], busy * columns * row, min(total, busy * t.queries) * t.heads * row),
            load(names[1], steps * t.keys * row, sequences * w.seq_kv * row),
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


def _top_ks(w: Workload, t: TopKTile) -> list[Form]:
    return summed(_top_k(w, t, *call) for call in _calls(w, t.at_once))


def _top_k(w: Workload, t: TopKTile, start: int, stop: int) -> Form:
    """Two passes over the scores of queries that see more keys than are chosen, after the search for their request."""
    rows, cut = stop - start, t.at_once < w.batch * w.seq_q
    seen = (row % w.seq_q + w.seq_kv - w.seq_q + 1 for row in range(start, stop))
    turns = sum(-(-n // t.chunk) for n in seen if n > t.top)
    places, among = rows * t.top * INDEX, (rows if cut else w.batch) if w.seq_q > 1 else 0
    at_once = UNROLLED * t.chunk
    looked = rows * -(-among // at_once) * min(among, at_once) * INDEX
    return Form(
        "top-k",
        (
            load("scores", GATHERED * turns * t.chunk * 4, min(turns * t.chunk, rows * w.seq_kv) * 4),
            load("page table", places, places if cut else min(places, w.batch * w.seq_kv * INDEX)),
            *((load(REQUESTS, looked, among * INDEX),) if among else ()),
            store(LIST, places),
        ),
    )


def _attention(w: Workload, t: TokensTile) -> Form:
    """Per query and 64 heads: the latents of its keys, scores over all their width, values over its first part."""
    assert w.selection is not None
    (d, dv), e, top, pair = t.widths, w.element_bytes, w.selection.top, t.blocks > 1
    steps, read = -(-top // t.keys), -(-min(top, w.seq_kv) // t.keys)
    heads = -(-w.heads_q // (t.heads * t.blocks)) * t.blocks
    queries = w.batch * w.seq_q
    blocks, scores = queries * heads, t.heads * t.keys
    out = queries * (heads * t.heads if pair else w.heads_q)
    key_rows = w.batch * chosen_keys(w, min(read * t.keys, w.seq_kv))
    # A pair reads half the keys, and half the width of all; one block all keys, for both its warpgroups. Of Q a pair
    # reads what is not in tensor memory.
    k_rows, readers, q_width = (t.keys // 2, t.keys // 2, max(0, d - TMEM_WIDTH)) if pair else (t.keys, 2 * t.keys, d)
    return Form(
        "sparse_attn",
        (
            load("Q", out * d * e),
            load("KV", blocks * read * k_rows * d * e, key_rows * d * e),
            *((load("V", blocks * read * t.keys * dv // 2 * e, 0),) if pair else ()),
            load(LIST, blocks * read * t.keys * INDEX, queries * read * t.keys * INDEX),
            store("O", out * dv * w.output_bytes),
            store("LSE", out * 8),
        ),
        flops=blocks * steps * 2 * scores * (d + dv),
        exponentials=blocks * steps * (scores + t.heads),
        smem_bytes=blocks * steps * (readers * (d + dv) + t.heads * q_width + scores) * e,
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
