"""Softmax attention over keys selected by content: compressed keys, chosen blocks, or both with a window."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnsim.arrays import Floats
from attnsim.models.closed_forms import useful
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Mechanism, Reference
from attnsim.models.question.selection import EXAMPLE, Selection
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.references import dsa, selecting


def chosen(w: Workload) -> Selection:
    """Selection of a question in its mechanism's form."""
    assert w.selection is not None
    return w.selection


def _selected(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    s = chosen(w)
    blocks = selecting.chosen_blocks(q, k, s.top, s.block, s.compress, s.step)
    return selecting.selected_attention(q, k, v, blocks, s.block)


def _compressed(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    s = chosen(w)
    return selecting.compressed_attention(q, k, v, s.compress, s.step)


def _nsa(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    s = chosen(w)
    return selecting.native_sparse_attention(
        q, k, v, top=s.top, block=s.block, width=s.compress, step=s.step, window=s.window
    )


def _dsa(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return dsa.dsa_attention(q, k, v, chosen(w).top)


def _no_tokens(needs: tuple[str, ...], w: Workload) -> str:
    s = chosen(w)
    missing = [name for name in needs if not getattr(s, name)]
    if missing or s.block != 1:
        return f"chooses single keys, the selection is {s}; write top 2048, index 64x128"
    if not w.mask.is_causal or w.mask.is_windowed:
        return f"is causal, the mask is {w.mask}; take --causal"
    if w.latent is None and w.heads_kv != 1:
        return f"attends one latent for all heads, heads_kv is {w.heads_kv}; give --latent 512x64, or 1"
    return ""


def _misfit(needs: tuple[str, ...], w: Workload) -> str:
    s = chosen(w)
    missing = [name for name in needs if not getattr(s, name)]
    if missing:
        return f"needs {' and '.join(missing)} in its selection, which is {s}; write {EXAMPLE}"
    if s.window and "window" not in needs:
        return f"has no window beside what it selects, the selection is {s}; leave window {s.window} out"
    if s.index_heads:
        return f"has no indexer, the selection is {s}; leave index {s.index_heads}x{s.index_dim} out"
    if w.lengths or (w.seq_q != w.seq_kv and w.passes != "decode"):
        return f"has kernels for whole sequences of one length, as many keys as queries; the question is {w}"
    reason = s.misfit(w.seq_kv)
    return f"with selection {s} {reason}" if reason else ""


def _moba(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    s = chosen(w)
    keys, values = (np.repeat(x, w.group, axis=1) for x in (k, v))
    return selecting.selected_attention(q, keys, values, selecting.blocks_by_mean(q, k, s.top, s.block), s.block)


_PREFILL = Workload(batch=1, heads_q=64, heads_kv=4, seq_q=8192, head_dim=128, mask=Mask.causal())


def _no_other_blocks(w: Workload) -> str:
    s = chosen(w)
    if s.top < 2 or s.block < 2 or s.compress or s.window or s.anywhere:
        return f"attends to its own block and the best of its past, the selection is {s}; write top 3x512"
    if w.head_dim != w.head_dim_v:
        return f"stacks K and V, their widths are {w.head_dim} and {w.head_dim_v}; allowed: equal widths"
    return _misfit(("top",), w)


def _choosing(name: str, selection: str, reference: Reference, needs: tuple[str, ...], **more: Any) -> Mechanism:
    return Mechanism(
        name,
        group="sparse",
        exact=False,
        example=replace(_PREFILL, selection=Selection.parse(selection)),
        mask="causal",
        selection=selection,
        reference=reference,
        **{"refuses": partial(_misfit, needs), **more},
    )


_LATENT = Workload(
    batch=1,
    heads_q=128,
    seq_q=4096,
    seq_kv=32768,
    head_dim=192,
    head_dim_v=128,
    mask=Mask.causal(),
    latent=Latent(512, 64),
)
_INDEX = Workload(
    batch=1, heads_q=64, heads_kv=1, seq_q=4096, seq_kv=32768, head_dim=128, dtype="fp8", mask=Mask.causal()
)


def _indexing(name: str, example: Workload, needs: tuple[str, ...] = ("top",), **more: Any) -> Mechanism:
    """Record of DeepSeek sparse attention."""
    selection = "top 2048, index 64x128"
    return Mechanism(
        name,
        group="sparse",
        exact=False,
        example=replace(example, selection=Selection.parse(selection)),
        mask="causal",
        selection=selection,
        reference=_dsa,
        reads_latent=True,
        refuses=partial(_no_tokens, needs),
        **more,
    )


DSA: tuple[Mechanism, ...] = (
    _indexing("dsa", _LATENT, ("top", "index_heads"), implementations=("sglang.dsa",), useful=useful.indexed),
    _indexing(
        "dsa-indexer", _INDEX, implementations=("deepgemm.mqa-logits", "deepgemm.paged-mqa-logits"), useful=useful.index
    ),
    _indexing("dsa-topk", _INDEX, implementations=("sgl-kernel.topk",), useful=useful.nothing),
    _indexing(
        "dsa-attention",
        _LATENT,
        implementations=("flashmla.sparse", "flashmla.sparse-decode"),
        useful=useful.chosen_keys,
    ),
)
"""DeepSeek sparse attention, and its three kernels."""

SELECTING: tuple[Mechanism, ...] = (
    _choosing(
        "nsa",
        "top 16x64, compress 32 step 16, window 512",
        _nsa,
        ("top", "compress", "window"),
        implementations=("flash-nsa.nsa", "nsa-triton.decode"),
        useful=useful.three_branches,
    ),
    _choosing(
        "nsa-selected",
        "top 16x64",
        _selected,
        ("top",),
        implementations=("nsa-triton.selected",),
        useful=useful.selected,
    ),
    _choosing(
        "nsa-compressed",
        "top 16x64, compress 32 step 16",
        _compressed,
        ("compress",),
        implementations=("nsa-triton.compressed", "nsa-triton.compressed-scores"),
        useful=useful.compressed,
    ),
    *DSA,
    _choosing(
        "moba",
        "top 3x512",
        _moba,
        ("top",),
        implementations=("moba.efficient",),
        useful=useful.selected,
        refuses=_no_other_blocks,
    ),
)
"""Native sparse attention and two of its branches (the third, a window, is `sliding-window`); DeepSeek's; MoBA."""
