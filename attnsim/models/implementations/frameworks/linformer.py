"""Linformer (Wang et al., arXiv 2006.04768) as a framework runs it: keys projected to k, then unfused attention.

The sequence follows `LinformerSelfAttention` of lucidrains/linformer (commit 1533a130): two GEMMs against E and F,
which all heads share; scores of k keys, a scale pass, a softmax pass, P V. Its linear layers are not part of
attention, its dropout is off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks import keys_gemm
from attnsim.models.implementations.frameworks.eager import (
    GEMM_TEXT,
    arrays_bytes,
    elementwise,
    softmax,
)
from attnsim.models.implementations.implementation import Implementation, TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.references.linear import projected_count
from attnsim.models.schedule.gemm import Operand, library_gemm
from attnsim.models.schedule.schedule import Kernel, Schedule

NOTES = ("E and F are learned and belong to one length: k keys, each a mixture of all, stand for the sequence",)


@dataclass(frozen=True, slots=True)
class Linformer:
    """Linformer in one implementation.

    Parameters
    ----------
    name : str
        Name of the implementation.
    keys : int
        k; 0 for `PROJECTED_KEYS`. At most the number of keys.
    """

    name: str
    keys: int = 0

    def count(self, w: Workload) -> int:
        """k of a workload."""
        return projected_count(w.seq_kv, self.keys)

    def build(self, w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        """Schedule of a workload.

        Raises
        ------
        InputError
            If there is no such form.
        """
        keys_gemm.check_nothing_hidden(w, f"{self.name} mixes all keys before the softmax")
        k, e = self.count(w), w.element_bytes
        heads = w.batch * w.heads_q
        rows = heads * w.seq_q
        scores, weights = ("S", rows * k * e), ("P", rows * k * e)

        def projection(name: str, matrix: str, width: int) -> list[Kernel]:
            operands = Operand(matrix, e, w.batch), Operand(name, e), Operand(f"{name} projected", e)
            shape = (k, w.heads_kv * width, w.seq_kv)
            return keys_gemm.keys_gemm(f"{matrix} {name}", w.batch, shape, *operands, dtype=w.dtype, gpu=gpu)

        def attended(name: str, shape: tuple[int, int, int], a: Operand, b: str, c: Operand) -> Kernel:
            return library_gemm(name, heads, shape, a, Operand(b, e, w.group), c, dtype=w.dtype, gpu=gpu)

        q, s, p, o = Operand("Q", e), Operand("S", e), Operand("P", e), Operand("O", w.output_bytes)
        kernels = (
            *projection("K", "E", w.head_dim),
            *projection("V", "F", w.head_dim_v),
            attended("S = Q (E K)^T", (w.seq_q, k, w.head_dim), q, "K projected", s),
            elementwise("scale", [scores], scores, rows * k),
            softmax("softmax", [scores], weights, rows, k),
            attended("O = P (F V)", (w.seq_q, w.head_dim_v, k), p, "V projected", o),
        )
        tile = f"{k} projected keys, {GEMM_TEXT}"
        return Schedule("linformer", self.name, kernels, tile, self.peak_bytes(w), NOTES)

    def peak_bytes(self, w: Workload) -> int:
        """Peak memory: arrays, E and F, the projected keys and values, S and P."""
        k, e = self.count(w), w.element_bytes
        projected = w.batch * w.heads_kv * k * (w.head_dim + w.head_dim_v)
        return arrays_bytes(w) + (2 * k * w.seq_kv + projected + 2 * w.batch * w.heads_q * w.seq_q * k) * e


def _record(name: str, keys: int = 0) -> Implementation:
    made = Linformer(f"{name}@{keys}" if keys else name, keys)
    return record(made.name, made.build, peak_bytes=made.peak_bytes, number=keys, sized=partial(_record, name))


RECORDS = (_record("linformer.eager"),)
