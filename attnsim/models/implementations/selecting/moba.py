"""Mixture of block attention (MoBA, arXiv 2502.13189): blocks chosen by their mean key; the query's own always.

``moba/moba_efficient.py`` of MoonshotAI/MoBA: keys of whole blocks are gathered and averaged, a product in fp32 scores
them for every query of the batch, `torch.topk` chooses, queries are gathered block by block. There are two calls of
FlashAttention-2 for packed sequences: one causal within each block, one of each block and head with the queries that
chose it. Their results are merged by their log-sum-exps. Every other line of PyTorch is a kernel over whole tensors.
The grids of both calls have the rows of the longest sequence; empty thread blocks are those of the longest block here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import FA2, counted, fa2_forward
from attnsim.models.implementations.fused.forward import flash_forward, flash_peak_bytes
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.selecting.nsa_triton import chosen
from attnsim.models.implementations.selecting.walks import FOUND_BYTES, over, top_k
from attnsim.models.mask.mask import Mask
from attnsim.models.question.lengths import Length
from attnsim.models.question.selection import Selection, visible_pairs
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import Operand, library_gemm
from attnsim.models.schedule.schedule import Kernel, Schedule, renamed

NAME = "moba.efficient"
INDEX_BYTES = 8
"""Bytes of PyTorch's int64."""
OTHER_TENSORS = {name: f"{name} others" for name in ("Q", "K", "V", "O", "LSE")}
"""Names of the tensors of the call over other blocks."""


@lru_cache(maxsize=16)
def choosers(selection: Selection, seq: int) -> Ints:
    """Queries of other blocks that chose each block but the last, ``[blocks - 1]``; evenly among a query's past."""
    blocks = selection.blocks(seq)
    later = np.arange(1, blocks, dtype=np.int64)
    rows = np.minimum(selection.block, seq - later * selection.block)
    share, left = np.divmod(rows * np.minimum(selection.top - 1, later), later)
    block = np.arange(blocks - 1, dtype=np.int64)[:, None]
    return np.asarray(((share + (block < left)) * (block < later)).sum(axis=1))


@lru_cache(maxsize=4)
def own_blocks(w: Workload) -> Workload:
    """The call that is causal in each block."""
    block = chosen(w).block
    whole, last = divmod(w.seq_q, block)
    lengths = (Length(block, block, whole), *([Length(last, last)] if last else []))
    return _packed(w, lengths * w.batch, w.heads_q, Mask.causal())


def own_tensors(w: Workload) -> dict[str, str]:
    """Names of the tensors of the call within each block; it reads K and V of a head for each head of Q."""
    names = {"O": "O own", "LSE": "LSE own"}
    return names | {"K": "K expanded", "V": "V expanded"} if w.group > 1 else names


@lru_cache(maxsize=4)
def other_blocks(w: Workload) -> Workload:
    """The call with a sequence of one head for each block and head: its keys, and the queries that chose it."""
    s = chosen(w)
    each = (Length(int(n), s.block, w.batch * w.heads_q) for n in choosers(s, w.seq_q) if n)
    return _packed(w, tuple(each), 1, Mask.full())


def _packed(w: Workload, lengths: tuple[Length, ...], heads: int, mask: Mask) -> Workload:
    return Workload(lengths=lengths, heads_q=heads, head_dim=w.head_dim, dtype=w.dtype, passes=w.passes, mask=mask)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """All kernels of a call."""
    s, own, others = chosen(w), own_blocks(w), other_blocks(w)
    tile, tile_others = (counted(fa2_forward(part, gpu), FA2, part, gpu) for part in (own, others))
    attended = [
        renamed(flash_forward(own, gpu, tile, "own blocks"), own_tensors(w)),
        renamed(flash_forward(others, gpu, tile_others, "other blocks"), OTHER_TENSORS),
    ]
    kernels = (*_before(w, s, gpu), *attended, *_merged(w, s))
    memory = flash_peak_bytes(w) + _kept_bytes(w, s)
    return Schedule(
        "moba", NAME, kernels, str(tile), memory, useful_flops=w.matrix_flops(w.batch * visible_pairs(s, w.seq_q))
    )


def _kept_bytes(w: Workload, s: Selection) -> int:
    """Bytes of stacked and gathered keys and values, plus the scores with three masks or the results to be merged."""
    rows, chunks = w.batch * w.seq_q * w.heads_q, w.batch * (s.blocks(w.seq_kv) - 1)
    stacked = 2 * w.head_dim * w.element_bytes * (rows + chunks * s.block * w.heads_q)
    found = int(choosers(s, w.seq_q).sum()) * w.batch * w.heads_q
    merged = (found * (2 * w.element_bytes + 4) + rows * 8) * w.head_dim
    return stacked + max(rows * chunks * (4 + 3), merged)


def _before(w: Workload, s: Selection, gpu: Gpu) -> Iterator[Kernel]:
    """From Q, K and V to queries and keys by block."""
    e, tokens, chunks = w.element_bytes, w.batch * w.seq_q, w.batch * (s.blocks(w.seq_kv) - 1)
    q = tokens * w.heads_q * w.head_dim
    kept = chunks * s.block * w.heads_q * w.head_dim
    pairs = chunks * w.heads_q * tokens
    found = int(choosers(s, w.seq_q).sum()) * w.batch * w.heads_q
    expanded = " expanded" if w.group > 1 else ""
    if expanded:
        for x in ("K", "V"):
            yield over(f"expand {x}", {x: q // w.group * e}, {f"{x} expanded": q * e}, q)
    yield over("stack", {f"K{expanded}": q * e, f"V{expanded}": q * e}, {"KV": 2 * q * e}, 2 * q)
    yield over("gather blocks", {"KV": 2 * kept * e}, {"KV blocks": 2 * kept * e}, 2 * kept)
    means = chunks * w.heads_q * w.head_dim
    yield over("mean", {"KV blocks": kept * e}, {"mean K": means * e}, kept)
    yield over("mean to fp32", {"mean K": means * e}, {"mean K fp32": means * 4}, means)
    yield over("Q to fp32", {"Q": q * e}, {"Q fp32": q * 4}, q)
    operands = Operand("mean K fp32", 4), Operand("Q fp32", 4), Operand("gate", 4)
    yield library_gemm("gate", w.heads_q, (chunks, tokens, w.head_dim), *operands, dtype="fp32", gpu=gpu)
    places = chunks * tokens
    yield over("positions", {}, {"positions": places * 4}, places)
    yield over("in future", {"positions": places * 4}, {"future": places}, places)
    yield over("hide future", {"gate": pairs * 4, "future": places}, {"gate": pairs * 4}, pairs)
    best = min(s.top - 1, chunks)
    yield top_k("gate", w.heads_q * tokens, chunks, best)[0]
    taken = w.heads_q * tokens * best
    yield over("is hidden", {"gate": pairs * 4}, {"hidden": pairs}, pairs)
    yield over("is seen", {"hidden": pairs}, {"seen": pairs}, pairs)
    yield over("clear choice", {}, {"choice": pairs}, pairs)
    yield over("mark choice", {"found": taken * FOUND_BYTES, "choice": taken}, {"choice": taken}, taken)
    yield over("choice seen", {"seen": pairs, "choice": pairs}, {"gate mask": pairs}, pairs)
    yield over("find queries", {"gate mask": 2 * pairs}, {"queries": found * 2 * INDEX_BYTES}, pairs)
    counted_ = chunks * w.heads_q * INDEX_BYTES
    yield over("count queries", {"gate mask": pairs}, {"counts": counted_}, pairs)
    yield over("heads outside", {"Q": q * e}, {"Q by head": q * e}, q)
    rows = found * w.head_dim
    yield over("gather Q", {"Q by head": rows * e, "queries": found * INDEX_BYTES}, {"Q others": rows * e}, rows)
    yield over("blocks outside", {"KV blocks": 2 * kept * e}, {"K others": kept * e, "V others": kept * e}, 2 * kept)


def _merged(w: Workload, s: Selection) -> Iterator[Kernel]:
    """Kernels that combine both outputs, weighted by their log-sum-exps."""
    rows, found = w.batch * w.seq_q * w.heads_q, int(choosers(s, w.seq_q).sum()) * w.batch * w.heads_q
    e, out, parts, at = w.element_bytes, rows * w.head_dim, found * w.head_dim, found * INDEX_BYTES
    yield over("clear O", {}, {"O fp32": out * 4}, out)
    yield over("largest", {"LSE own": rows * 4, "LSE others": found * 4, "queries": at}, {"top": rows * 4}, found)
    yield over("less top", {"LSE own": rows * 4, "top": rows * 4}, {"own": rows * 4}, rows)
    yield over("gather top", {"top": found * 4, "queries": at}, {"tops": found * 4}, found)
    yield over("others less top", {"LSE others": found * 4, "tops": found * 4}, {"others": found * 4}, found)
    yield over("exp own", {"own": rows * 4}, {"sum": rows * 4}, rows)
    yield over("exp others", {"others": found * 4}, {"weights": found * 4}, found)
    yield over("add weights", {"weights": found * 4, "queries": at, "sum": found * 4}, {"sum": found * 4}, found)
    yield over("log", {"sum": rows * 4}, {"LSE": rows * 4}, rows)
    yield over("own factor", {"own": rows * 4, "LSE": rows * 4}, {"factor": rows * 4}, rows)
    yield over("scale own", {"O own": out * e, "factor": rows * 4}, {"O scaled": out * 4}, out)
    yield over("add own", {"O scaled": out * 4, "O fp32": out * 4}, {"O fp32": out * 4}, out)
    yield over("gather LSE", {"LSE": found * 4, "queries": at}, {"LSEs": found * 4}, found)
    yield over("others factor", {"others": found * 4, "LSEs": found * 4}, {"factors": found * 4}, found)
    yield over("scale others", {"O others": parts * e, "factors": found * 4}, {"parts": parts * 4}, parts)
    yield over("add others", {"parts": parts * 4, "queries": at, "O fp32": parts * 4}, {"O fp32": parts * 4}, parts)
    yield over("O to 16 bits", {"O fp32": out * 4}, {"O": out * e}, out)


RECORDS = (record(NAME, build),)
