"""Useful work: what a mechanism cannot do without, whoever computes it and on whatever schedule.

FLOP convention: 2 B H (visible pairs)(d + dv) forward and 2.5 times that backward (Dao, arXiv 2307.08691, section 4.1);
dense = as if unmasked. Mechanisms without a softmax over all keys count the products in its place, whatever the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.models.question.workload import Workload
from attnsim.models.references.linformer import projected_count
from attnsim.models.references.performer import feature_count


@dataclass(frozen=True, slots=True)
class Useful:
    """What no schedule does without.

    Parameters
    ----------
    flops, dense : int
        Useful FLOPs, and those of the question as if unmasked.
    exponentials : int
    """

    flops: int
    dense: int
    exponentials: int


def softmax(w: Workload) -> Useful:
    """Softmax attention over the visible pairs; one exponential for each, in the forward pass."""
    forward = "fwd" in w.directions
    return Useful(useful_flops(w), useful_flops(w, dense=True), w.batch * w.heads_q * w.visible_pairs if forward else 0)


def useful_flops(w: Workload, dense: bool = False) -> int:
    """2 B H pairs (d + dv) forward, 2.5 times that backward; `dense` counts masked pairs too."""
    return w.matrix_flops(w.seq_q * w.seq_kv if dense else w.visible_pairs)


def linear(w: Workload) -> Useful:
    """The two products with the state: 2 B H N d dv each, H of the keys for the one, of the queries for the other.

    phi takes an exponential for each element of Q and K (where it is negative; kernels do not branch). In decoding K is
    the new tokens'. The chunked form's products within a chunk are work executed, not useful.
    """
    rows = _rows(w, w.seq_q if w.passes == "decode" else w.seq_kv)
    return _unmasked(2 * rows * w.head_dim * w.head_dim_v, rows * w.head_dim)


def efficient(w: Workload) -> Useful:
    """The two products with the state, and an exponential for each element of Q and K."""
    rows = _rows(w, w.seq_kv)
    return _unmasked(2 * rows * w.head_dim * w.head_dim_v, rows * w.head_dim)


def performer(features: int, w: Workload) -> Useful:
    """The feature maps and the two products with the state; an exponential per feature of each row of Q and K.

    The chunked form's products within a chunk are work executed, not useful.
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
