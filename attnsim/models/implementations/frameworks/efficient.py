"""Efficient attention (Shen et al., arXiv 1812.01243) as a framework runs it: two softmax passes and two GEMMs.

The sequence follows cmsflash/efficient-attention (commit 23d44036), all heads in one launch. K and Q are stored there
as ``[head_dim, seq]``, so that K's softmax runs along contiguous rows of keys.
"""

from __future__ import annotations

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks import keys_gemm
from attnsim.models.implementations.frameworks.eager import (
    GEMM_TEXT,
    arrays_bytes,
    softmax,
)
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import Operand, library_gemm
from attnsim.models.schedule.schedule import Schedule

NAME = "efficient-attention.eager"


NOTES = ("weights are softmax(q over d) softmax(k over n), not softmax's: another function of the same inputs",)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of a workload.

    Raises
    ------
    InputError
        If there is no such form.
    """
    keys_gemm.check_nothing_hidden(w, f"{NAME} takes a softmax over all keys before any query")
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    heads, kv_heads = w.batch * w.heads_q, w.batch * w.heads_kv
    queries, keys = heads * w.seq_q * d, kv_heads * w.seq_kv * d
    q, k, v, o = Operand("Q'", e), Operand("K'", e), Operand("V", e), Operand("O", w.output_bytes)
    kernels = (
        softmax("softmax K", [("K", keys * e)], ("K'", keys * e), kv_heads * d, w.seq_kv),
        softmax("softmax Q", [("Q", queries * e)], ("Q'", queries * e), heads * w.seq_q, d),
        *keys_gemm.keys_gemm("S = K'^T V", kv_heads, (d, dv, w.seq_kv), k, v, Operand("S", e), dtype=w.dtype, gpu=gpu),
        library_gemm("O = Q' S", heads, (w.seq_q, dv, d), q, Operand("S", e, w.group), o, dtype=w.dtype, gpu=gpu),
    )
    return Schedule("efficient", NAME, kernels, GEMM_TEXT, peak_bytes(w), NOTES)


def peak_bytes(w: Workload) -> int:
    """Peak memory: arrays, both softmaxes and the state."""
    softmaxes = w.batch * (w.heads_q * w.seq_q + w.heads_kv * w.seq_kv) * w.head_dim
    return arrays_bytes(w) + (softmaxes + w.batch * w.heads_kv * w.head_dim * w.head_dim_v) * w.element_bytes


RECORDS = (record(NAME, build, peak_bytes=peak_bytes),)
