"""Softmax attention over keys selected by content: compressed keys, chosen blocks, or both with a window."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.arrays import Floats
from attnsim.models.closed_forms import useful
from attnsim.models.mechanisms.mechanism import Mechanism, mechanism
from attnsim.models.question.selection import EXAMPLE, Selection
from attnsim.models.question.workload import Workload
from attnsim.models.references import selecting


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
    return selecting.dsa_attention(q, k, v, chosen(w).top)


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


def _no_other_blocks(w: Workload) -> str:
    s = chosen(w)
    if s.top < 2 or s.block < 2 or s.compress or s.window or s.anywhere:
        return f"attends to its own block and the best of its past, the selection is {s}; write top 3x512"
    if w.head_dim != w.head_dim_v:
        return f"stacks K and V, their widths are {w.head_dim} and {w.head_dim_v}; allowed: equal widths"
    return _misfit(("top",), w)


SELECTING: tuple[Mechanism, ...] = (
    mechanism("nsa", _nsa, useful=useful.three_branches, refuses=partial(_misfit, ("top", "compress", "window"))),
    mechanism("nsa-selected", _selected, useful=useful.selected, refuses=partial(_misfit, ("top",))),
    mechanism("nsa-compressed", _compressed, useful=useful.compressed, refuses=partial(_misfit, ("compress",))),
    mechanism("dsa", _dsa, useful=useful.indexed, refuses=partial(_no_tokens, ("top", "index_heads"))),
    mechanism("dsa-indexer", _dsa, useful=useful.index, refuses=partial(_no_tokens, ("top",))),
    mechanism("dsa-topk", _dsa, useful=useful.nothing, refuses=partial(_no_tokens, ("top",))),
    mechanism("dsa-attention", _dsa, useful=useful.chosen_keys, refuses=partial(_no_tokens, ("top",))),
    mechanism("moba", _moba, useful=useful.selected, refuses=_no_other_blocks),
)
"""Native sparse attention and two of its branches; DeepSeek sparse attention and its three kernels; MoBA."""
