"""Closed form of mixture of block attention (arXiv 2502.13189): passes over whole tensors, a GEMM, two fused calls."""

from __future__ import annotations

from collections.abc import Iterable

from attnsim.models.closed_forms.form import Form, gemm, load, store, transfer
from attnsim.models.closed_forms.fused import forward
from attnsim.models.implementations.selecting.moba import OTHER_TENSORS, MobaTile, other_blocks, own_blocks, own_tensors
from attnsim.models.implementations.selecting.top_k import FOUND_BYTES, PASSES
from attnsim.models.question.selected import walks
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.models.schedule.splits import UNCUT

_Pass = tuple[list[tuple[str, int]], list[tuple[str, int]]]


def closed_form(w: Workload, schedule: Schedule, tile: MobaTile) -> list[Form]:
    """With ``n`` walks of blocks of which ``N`` are of a query's own: ``n - N`` queries are gathered and merged."""
    calls = {
        "own blocks": lambda name: forward(own_blocks(w), tile.own, UNCUT, name).renamed(own_tensors(w)),
        "other blocks": lambda name: forward(other_blocks(w), tile.others, UNCUT, name).renamed(OTHER_TENSORS),
    }
    passes = _before(w) | _after(w)
    found = []
    for kernel in schedule.kernels:
        if kernel.name in calls:
            found.append(calls[kernel.name](kernel.name))
        elif kernel.name in passes:
            found.append(transfer(kernel.name, *passes[kernel.name]))
        else:
            found.append(_scores(w) if kernel.name == "gate" else _best(w))
    return found


def _sizes(w: Workload) -> tuple[int, int, int, int]:
    """Tokens, whole blocks that are scored, rows of heads, and queries of heads that blocks are chosen by."""
    assert w.selection is not None
    chunks = w.batch * ((w.seq_kv - 1) // w.selection.block)
    found = w.batch * w.heads_q * (walks(w.selection, w.seq_q) - w.seq_q)
    return w.batch * w.seq_q, chunks, w.batch * w.seq_q * w.heads_q, found


def _scores(w: Workload) -> Form:
    tokens, chunks, _, _ = _sizes(w)
    return gemm("gate", w.heads_q, (chunks, tokens, w.head_dim), ("mean K fp32", "Q fp32", "gate"), (4, 4, 4))


def _best(w: Workload) -> Form:
    assert w.selection is not None
    _, chunks, rows, _ = _sizes(w)
    top = min(w.selection.top - 1, chunks)
    scores = rows * chunks * 4
    return Form("top-k", (load("gate", PASSES * scores, scores), store("found", rows * top * FOUND_BYTES)))


def _before(w: Workload) -> dict[str, _Pass]:
    assert w.selection is not None
    e, d = w.element_bytes, w.head_dim
    _, chunks, rows, found = _sizes(w)
    whole, kept, means = rows * d * e, chunks * w.selection.block * w.heads_q * d * e, chunks * w.heads_q * d
    pairs, places = chunks * rows, rows * min(w.selection.top - 1, chunks)
    k, v = ("K expanded", "V expanded") if w.group > 1 else ("K", "V")
    return {
        "expand K": ([("K", whole // w.group)], [(k, whole)]),
        "expand V": ([("V", whole // w.group)], [(v, whole)]),
        "stack": ([(k, whole), (v, whole)], [("KV", 2 * whole)]),
        "gather blocks": ([("KV", 2 * kept)], [("KV blocks", 2 * kept)]),
        "mean": ([("KV blocks", kept)], [("mean K", means * e)]),
        "mean to fp32": ([("mean K", means * e)], [("mean K fp32", means * 4)]),
        "Q to fp32": ([("Q", whole)], [("Q fp32", rows * d * 4)]),
        "positions": ([], [("positions", pairs // w.heads_q * 4)]),
        "in future": ([("positions", pairs // w.heads_q * 4)], [("future", pairs // w.heads_q)]),
        "hide future": ([("gate", pairs * 4), ("future", pairs // w.heads_q)], [("gate", pairs * 4)]),
        "is hidden": ([("gate", pairs * 4)], [("hidden", pairs)]),
        "is seen": ([("hidden", pairs)], [("seen", pairs)]),
        "clear choice": ([], [("choice", pairs)]),
        "mark choice": ([("found", places * FOUND_BYTES)], [("choice", places)]),
        "choice seen": ([("seen", pairs), ("choice", pairs)], [("gate mask", pairs)]),
        "find queries": ([("gate mask", 2 * pairs)], [("queries", found * 16)]),
        "count queries": ([("gate mask", pairs)], [("counts", chunks * w.heads_q * 8)]),
        "heads outside": ([("Q", whole)], [("Q by head", whole)]),
        "gather Q": ([("Q by head", found * d * e), ("queries", found * 8)], [("Q others", found * d * e)]),
        "blocks outside": ([("KV blocks", 2 * kept)], [("K others", kept), ("V others", kept)]),
    }


def _after(w: Workload) -> dict[str, _Pass]:
    e, d = w.element_bytes, w.head_dim
    _, _, rows, found = _sizes(w)
    out, parts, row, part, at = rows * d, found * d, rows * 4, found * 4, ("queries", found * 8)

    def each(size: int, reads: Iterable[str], write: str) -> _Pass:
        return [(name, size) for name in reads], [(write, size)]

    return {
        "clear O": ([], [("O fp32", out * 4)]),
        "largest": ([("LSE own", row), ("LSE others", part), at], [("top", row)]),
        "less top": each(row, ("LSE own", "top"), "own"),
        "gather top": ([("top", part), at], [("tops", part)]),
        "others less top": each(part, ("LSE others", "tops"), "others"),
        "exp own": each(row, ("own",), "sum"),
        "exp others": each(part, ("others",), "weights"),
        "add weights": ([("weights", part), at], [("sum", part)]),
        "log": each(row, ("sum",), "LSE"),
        "own factor": each(row, ("own", "LSE"), "factor"),
        "scale own": ([("O own", out * e), ("factor", row)], [("O scaled", out * 4)]),
        "add own": each(out * 4, ("O scaled", "O fp32"), "O fp32"),
        "gather LSE": ([("LSE", part), at], [("LSEs", part)]),
        "others factor": each(part, ("others", "LSEs"), "factors"),
        "scale others": ([("O others", parts * e), ("factors", part)], [("parts", parts * 4)]),
        "add others": ([("parts", parts * 4), at], [("O fp32", parts * 4)]),
        "O to 16 bits": ([("O fp32", out * 4)], [("O", out * e)]),
    }
