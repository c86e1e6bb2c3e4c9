"""The forward of Triton's tutorial 06 as it was in 2024, written for this repository.

What was timed for FlashAttention-3's figure 5 was a copy of that tutorial (``hopper/benchmark_attn.py`` of
Dao-AILab/flash-attention): pointers to blocks, and under a causal mask a loop over the tiles left of the diagonal and
another over those on it. ``make_published_triton_ptx.py`` in benchmarks compiles it to what lies beside this file.
"""

# Arrays have the names that the field gives them, and Triton gives no types.
# ruff: noqa: E741
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def _over_keys(
    o, top, total, q, k_at, v_at, rows, scale_log2, begin, end, MASKED: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Online softmax over the keys from begin to end; the pointers are those of key 0."""
    columns = tl.arange(0, BLOCK_N)
    k_at, v_at = tl.advance(k_at, (0, begin)), tl.advance(v_at, (begin, 0))
    for key in range(begin, end, BLOCK_N):
        first = tl.multiple_of(key, BLOCK_N)
        s = tl.dot(q, tl.load(k_at))
        if MASKED:
            s = s * scale_log2 + tl.where(rows[:, None] >= first + columns[None, :], 0, -1.0e6)
            new = tl.maximum(top, tl.max(s, 1))
            s -= new[:, None]
        else:
            new = tl.maximum(top, tl.max(s, 1) * scale_log2)
            s = s * scale_log2 - new[:, None]
        p = tl.math.exp2(s)
        here = tl.sum(p, 1)
        factor = tl.math.exp2(top - new)
        total = total * factor + here
        o = o * factor[:, None]
        v = tl.load(v_at)
        o = tl.dot(p.to(v.dtype), v, o)
        top = new
        k_at, v_at = tl.advance(k_at, (0, BLOCK_N)), tl.advance(v_at, (BLOCK_N, 0))
    return o, top, total


@triton.jit
def attention_forward(
    Q, K, V, O, L, scale_log2, N,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """O = softmax(Q K^T scale) V, and L, the logarithm to base 2 of each row's sum; grid (N / BLOCK_M, batch * heads).

    Arrays are contiguous ``[batch * heads, seq, head_dim]``; scale_log2 is the scale of the scores times log2(e).
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    base, here = head.to(tl.int64) * N * HEAD_DIM, tile * BLOCK_M
    q_at = tl.make_block_ptr(Q + base, (N, HEAD_DIM), (HEAD_DIM, 1), (here, 0), (BLOCK_M, HEAD_DIM), (1, 0))
    k_at = tl.make_block_ptr(K + base, (HEAD_DIM, N), (1, HEAD_DIM), (0, 0), (HEAD_DIM, BLOCK_N), (0, 1))
    v_at = tl.make_block_ptr(V + base, (N, HEAD_DIM), (HEAD_DIM, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0))
    o_at = tl.make_block_ptr(O + base, (N, HEAD_DIM), (HEAD_DIM, 1), (here, 0), (BLOCK_M, HEAD_DIM), (1, 0))
    rows = here + tl.arange(0, BLOCK_M)
    top = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], tl.float32) + 1.0
    o = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    q = tl.load(q_at)
    if CAUSAL:
        o, top, total = _over_keys(o, top, total, q, k_at, v_at, rows, scale_log2, 0, here, False, BLOCK_N)
        diagonal = tl.multiple_of(here, BLOCK_M)
        o, top, total = _over_keys(
            o, top, total, q, k_at, v_at, rows, scale_log2, diagonal, diagonal + BLOCK_M, True, BLOCK_N
        )
    else:
        o, top, total = _over_keys(o, top, total, q, k_at, v_at, rows, scale_log2, 0, N, False, BLOCK_N)
    top += tl.math.log2(total)
    tl.store(L + head * N + rows, top)
    tl.store(o_at, (o / total[:, None]).to(O.type.element_ty))
