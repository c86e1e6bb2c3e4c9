"""Softmax attention over all pairs that a diagonal band shows: unfused, fused, split over the keys."""

from __future__ import annotations

from attnsim.models.mask import Mask
from attnsim.models.references.softmax import attention
from attnsim.models.registry.algorithm import Algorithm, Floats
from attnsim.models.workload import Workload

ANY_FLASH = ("flash-1", "flash-2", "flash-3")
_FLASH = ("flash_attn_v3", "flash_attn_v4", "flash_attn_v2", "flash_attn_v1", "xformers_cutlass")
_SOFTMAX = r"$O = \mathrm{softmax}(Q K^T / \sqrt{d})\,V$ over the visible keys of each query"
_FA1 = "Dao et al., FlashAttention, arXiv 2205.14135"
_FA2 = "Dao, FlashAttention-2, arXiv 2307.08691"
_FA3 = "Shah et al., FlashAttention-3, arXiv 2407.08608"
_PREFILL = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
_WINDOW = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.sliding_window(512, causal=True))
_DECODE = Workload(batch=4, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")


def softmax_reference(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    """O of softmax attention under the question's mask."""
    return attention(q, k, v, w.mask)[0]


DENSE: tuple[Algorithm, ...] = (
    Algorithm(
        "naive", "Unfused attention", "unfused: scores and probabilities go through HBM", "dense", ("naive",),
        ("pytorch", "naive_fused_epilogue"), _SOFTMAX, "short sequences, where one GEMM fills the chip.",
        ("Vaswani et al., arXiv 1706.03762, equation 1",), _PREFILL, softmax_reference,
    ),
    Algorithm(
        "flash", "Fused attention", "fused: the best implementation available for the GPU", "dense", ANY_FLASH, _FLASH,
        _SOFTMAX, "nearly always.", (_FA1, _FA2, _FA3), _PREFILL, softmax_reference,
    ),
    Algorithm(
        "flash-1", "FlashAttention-1", "FlashAttention-1: keys in the outer loop", "dense", ("flash-1",),
        ("flash_attn_v1",), _SOFTMAX, "never over its successors; its traffic shows what the loop order costs.",
        (_FA1,), _PREFILL, softmax_reference,
    ),
    Algorithm(
        "flash-2", "FlashAttention-2", "FlashAttention-2: queries in the outer loop", "dense", ("flash-2",),
        ("flash_attn_v2", "xformers_cutlass"), _SOFTMAX, "GPUs without wgmma.", (_FA2,), _PREFILL, softmax_reference,
    ),
    Algorithm(
        "flash-3", "FlashAttention-3", "FlashAttention-3: warp-specialised, softmax under the next GEMM", "dense",
        ("flash-3",), ("flash_attn_v3", "flash_attn_v4"), _SOFTMAX, "Hopper and later.", (_FA3,), _PREFILL,
        softmax_reference,
    ),
    Algorithm(
        "sliding-window", "Sliding window", "fused, visiting only the key tiles inside the window", "dense", ANY_FLASH,
        _FLASH, _SOFTMAX, "models trained with a window, beyond a few windows of length.",
        ("Beltagy et al., Longformer, arXiv 2004.05150, section 3.1",), _WINDOW, softmax_reference,
    ),
    Algorithm(
        "split-kv", "Split-KV decode", "fused decode: keys shared out over blocks, then combined", "dense", ANY_FLASH,
        _FLASH, _SOFTMAX, "few queries against a long cache.", ("Dao et al., Flash-Decoding, 2023",), _DECODE,
        softmax_reference,
    ),
)  # fmt: skip
