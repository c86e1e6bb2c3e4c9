"""Useful work: the least work of a mechanism, independent of implementation and schedule.

FLOP convention: 2 B H (visible pairs)(d + dv) forward and 2.5 times that backward (Dao, arXiv 2307.08691, section 4.1);
dense = as if unmasked. Mechanisms without a softmax over all keys count the products that replace it, whatever the
mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnsim.models.mask.mask import Mask
from attnsim.models.question.selection import compressed_pairs, of_last_query, visible_pairs
from attnsim.models.question.workload import Workload
from attnsim.models.references.linear import feature_count, projected_count


@dataclass(frozen=True, slots=True)
class Useful:
    """Work that every schedule of a mechanism has to do.

    Parameters
    ----------
    flops, dense : int
        Useful FLOPs, and those of the question as if unmasked.
    """

    flops: int
    dense: int
    exponentials: int


def softmax(w: Workload) -> Useful:
    """Softmax attention over the visible pairs; one exponential for each, in the forward pass."""
    return _over(w, w.visible_pairs)


def linear(w: Workload) -> Useful:
    """The two products with the state: 2 B H N d dv each, H of the keys for one and of the queries for the other.

    phi takes an exponential for each element of Q and K (for negative ones; kernels do not branch). In decoding, K is
    of the new tokens only. The chunked form's products within a chunk are executed, not useful.
    """
    rows = _rows(w, w.seq_q if w.passes == "decode" else w.seq_kv)
    return _unmasked(2 * rows * w.head_dim * w.head_dim_v, rows * w.head_dim)


def efficient(w: Workload) -> Useful:
    """The two products with the state, and an exponential for each element of Q and K."""
    rows = _rows(w, w.seq_kv)
    return _unmasked(2 * rows * w.head_dim * w.head_dim_v, rows * w.head_dim)


def performer(features: int, w: Workload) -> Useful:
    """The feature maps and the two products with the state; an exponential per feature of each row of Q and K.

    The chunked form's products within a chunk are executed, not useful.
    """
    rows, m = _rows(w, w.seq_kv), features or feature_count(w.head_dim)
    return _unmasked(2 * rows * m * (w.head_dim + w.head_dim_v), rows * m)


def linformer(keys: int, w: Workload) -> Useful:
    """2 B G Nk k (d + dv) for the projections, 2 B H Nq k (d + dv) for the attention; an exponential per score."""
    k = projected_count(w.seq_kv, keys)
    return _unmasked(2 * _rows(w, w.seq_kv) * k * (w.head_dim + w.head_dim_v), w.batch * w.heads_q * w.seq_q * k)


def _rows(w: Workload, keys: int) -> int:
    return w.batch * (w.heads_q * w.seq_q + w.heads_kv * keys)


def _unmasked(flops: int, exponentials: int) -> Useful:
    return Useful(flops, flops, exponentials)


def selected(w: Workload) -> Useful:
    """Softmax attention over the visible keys of chosen blocks."""
    assert w.selection is not None
    return _over(w, w.batch * visible_pairs(w.selection, w.seq_q))


def compressed(w: Workload) -> Useful:
    """Softmax attention over the visible compressed keys."""
    assert w.selection is not None
    return _over(w, w.batch * compressed_pairs(w.selection, w.seq_q))


def three_branches(w: Workload) -> Useful:
    """Softmax attention over compressed keys, over chosen blocks and in a window."""
    assert w.selection is not None
    if w.passes == "decode":
        return _over(w, w.batch * of_last_query(w.selection, w.seq_kv))
    window = replace(w, mask=Mask.sliding_window(w.selection.window, causal=True), selection=None)
    chosen = visible_pairs(w.selection, w.seq_q) + compressed_pairs(w.selection, w.seq_q)
    return _over(w, w.batch * chosen + window.visible_pairs)


def _chosen_pairs(top: int, queries: int, keys: int) -> int:
    """Pairs of query and chosen key per head of a sequence: all visible keys if those are fewer than `top`."""
    before, first = max(0, keys - queries), max(0, queries - keys)
    all_seen = max(0, min(queries - first, top - before))  # queries that see no more than are chosen
    return all_seen * (before + 1) + all_seen * (all_seen - 1) // 2 + (queries - first - all_seen) * top


def index(w: Workload) -> Useful:
    """Products of the indexer over all pairs that the mask shows: no values, no exponentials."""
    per_pair = 2 * w.heads_q * w.head_dim
    return Useful(per_pair * w.visible_pairs, per_pair * w.all_pairs, 0)


def nothing(w: Workload) -> Useful:
    """No products: kernels that only compare numbers."""
    return Useful(0, 0, 0)


def chosen_keys(w: Workload) -> Useful:
    """Softmax attention over chosen keys, at the question's widths; over a latent, those of the absorbed form."""
    assert w.selection is not None
    absorbed = w if w.latent is None else replace(w, latent=None, head_dim=w.latent.width, head_dim_v=w.latent.rank)
    return _over(absorbed, sum(_chosen_pairs(w.selection.top, one.queries, one.keys) * one.times for one in w.parts))


def indexed(w: Workload) -> Useful:
    """The indexer's products and attention to the chosen keys."""
    assert w.selection is not None
    own, scores = chosen_keys(w), 2 * w.selection.index_heads * w.selection.index_dim
    return Useful(own.flops + scores * w.visible_pairs, own.dense, own.exponentials)


def _over(w: Workload, pairs: int) -> Useful:
    """Softmax attention over `pairs` pairs per head, summed over all sequences."""
    exponentials = w.heads_q * pairs if "fwd" in w.directions else 0
    return Useful(w.matrix_flops(pairs), w.matrix_flops(w.all_pairs), exponentials)
