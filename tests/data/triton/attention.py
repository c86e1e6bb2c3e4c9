"""Fused attention for Triton in the form of its tutorial, written for this repository.

The forward and the backward pass on contiguous arrays ``[batch * heads, seq, head_dim]`` whose length is a multiple of
every tile, as in Triton's tutorial 06 (triton-lang/triton, python/tutorials/06-fused-attention.py): under a causal mask
tiles left of the diagonal run without a mask, and one backward kernel takes a tile of keys for dK and dV and then a
tile of queries for dQ. ``make_triton_ptx.py`` in benchmarks compiles them to the PTX that lies beside this file.
"""

# Arrays have the names that the field gives them, and Triton gives no types.
# ruff: noqa: E741
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def _over_keys(
    o, top, total, q, k_at, v_at, rows, scale_log2, begin, end,
    MASKED: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys from begin to end; pointers are those of key 0."""
    columns = tl.arange(0, BLOCK_N)
    for first in tl.range(begin, end, BLOCK_N):
        s = tl.dot(q, tl.load(k_at + first * HEAD_DIM))
        if MASKED:
            s = s * scale_log2 + tl.where(rows[:, None] >= first + columns[None, :], 0, -1.0e6)
            new = tl.maximum(top, tl.max(s, 1))
            s -= new[:, None]
        else:
            new = tl.maximum(top, tl.max(s, 1) * scale_log2)
            s = s * scale_log2 - new[:, None]
        p = tl.math.exp2(s)
        factor = tl.math.exp2(top - new)
        total = total * factor + tl.sum(p, 1)
        o = o * factor[:, None]
        v = tl.load(v_at + first * HEAD_DIM)
        o = tl.dot(p.to(v.dtype), v, o)
        top = new
    return o, top, total


@triton.jit
def attention_forward(
    Q, K, V, O, L, scale_log2, N,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """O = softmax(Q K^T scale) V, and L, the logarithm to base 2 of each row's sum; grid (N / BLOCK_M, batch * heads).

    scale_log2 is the scale of the scores times log2(e).
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * N * HEAD_DIM
    rows, columns, features = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    by_row = rows[:, None] * HEAD_DIM + features[None, :]
    k_at = K + base + columns[None, :] * HEAD_DIM + features[:, None]
    v_at = V + base + columns[:, None] * HEAD_DIM + features[None, :]
    q = tl.load(Q + base + by_row)
    o = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.full([BLOCK_M], 1.0, tl.float32)
    if CAUSAL:
        diagonal = tl.multiple_of(tile * BLOCK_M, BLOCK_M)
        o, top, total = _over_keys(
            o, top, total, q, k_at, v_at, rows, scale_log2, 0, diagonal, False, BLOCK_N, HEAD_DIM
        )
        o, top, total = _over_keys(
            o, top, total, q, k_at, v_at, rows, scale_log2, diagonal, diagonal + BLOCK_M, True, BLOCK_N, HEAD_DIM
        )
    else:
        o, top, total = _over_keys(o, top, total, q, k_at, v_at, rows, scale_log2, 0, N, False, BLOCK_N, HEAD_DIM)
    tl.store(L + head * N + rows, top + tl.math.log2(total))
    tl.store(O + base + by_row, (o / total[:, None]).to(O.dtype.element_ty))


@triton.jit
def attention_row_dots(O, DO, D, N, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    """D = sum of O dO by row; grid (N / BLOCK_M, batch * heads)."""
    rows, head, features = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(1), tl.arange(0, HEAD_DIM)
    at = head.to(tl.int64) * N * HEAD_DIM + rows[:, None] * HEAD_DIM + features[None, :]
    o, do = tl.load(O + at).to(tl.float32), tl.load(DO + at).to(tl.float32)
    tl.store(D + head * N + rows, tl.sum(o * do, axis=1))


@triton.jit
def _dk_dv_over_queries(
    dk, dv, k, v, Q, DO, L, D, keys, scale_log2, begin, steps,
    MASKED: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Sums of dK and dV of a tile of keys over query tiles from begin; dK lacks the scale of the scores."""
    rows, features = begin + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    for _ in tl.range(steps):
        q_t = tl.load(Q + rows[None, :] * HEAD_DIM + features[:, None])
        p_t = tl.math.exp2(tl.dot(k, q_t) * scale_log2 - tl.load(L + rows)[None, :])
        if MASKED:
            p_t = tl.where(rows[None, :] >= keys[:, None], p_t, 0.0)
        do = tl.load(DO + rows[:, None] * HEAD_DIM + features[None, :])
        dv = tl.dot(p_t.to(do.dtype), do, dv)
        ds_t = p_t * (tl.dot(v, tl.trans(do)) - tl.load(D + rows)[None, :])
        dk = tl.dot(ds_t.to(do.dtype), tl.trans(q_t), dk)
        rows += BLOCK_M
    return dk, dv


@triton.jit
def _dq_over_keys(
    dq, q, do, sums, d, K, V, rows, scale_log2, begin, steps,
    MASKED: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Sum of dQ of a tile of queries over key tiles from begin; it lacks the scale of the scores."""
    keys, features = begin + tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    for _ in tl.range(steps):
        k_t = tl.load(K + keys[None, :] * HEAD_DIM + features[:, None])
        v_t = tl.load(V + keys[None, :] * HEAD_DIM + features[:, None])
        p = tl.math.exp2(tl.dot(q, k_t) * scale_log2 - sums[:, None])
        if MASKED:
            p = tl.where(rows[:, None] >= keys[None, :], p, 0.0)
        ds = p * (tl.dot(do, v_t) - d[:, None])
        dq = tl.dot(ds.to(k_t.dtype), tl.trans(k_t), dq)
        keys += BLOCK_N
    return dq


@triton.jit
def attention_backward(
    Q, K, V, DO, DQ, DK, DV, L, D, scale, scale_log2, N,
    CAUSAL: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """dQ, dK and dV from dO, the forward's L and the row dots D; grid (N / TILE, batch * heads).

    A block takes TILE keys against STEP queries at a time, then TILE queries against STEP keys; the tiles that cross
    the diagonal are taken in halves of a STEP.
    """
    HALF: tl.constexpr = STEP // 2
    first, head = tl.program_id(0) * TILE, tl.program_id(1)
    base = head.to(tl.int64) * N * HEAD_DIM
    at, features = first + tl.arange(0, TILE), tl.arange(0, HEAD_DIM)
    here = base + at[:, None] * HEAD_DIM + features[None, :]
    L, D = L + head * N, D + head * N

    k, v = tl.load(K + here), tl.load(V + here)
    dk, dv = tl.zeros([TILE, HEAD_DIM], tl.float32), tl.zeros([TILE, HEAD_DIM], tl.float32)
    begin = 0
    if CAUSAL:
        dk, dv = _dk_dv_over_queries(
            dk, dv, k, v, Q + base, DO + base, L, D, at, scale_log2, first, TILE // HALF, True, HALF, HEAD_DIM
        )
        begin = first + TILE
    dk, dv = _dk_dv_over_queries(
        dk, dv, k, v, Q + base, DO + base, L, D, at, scale_log2, begin, (N - begin) // STEP, False, STEP, HEAD_DIM
    )
    tl.store(DV + here, dv.to(DV.dtype.element_ty))
    tl.store(DK + here, (dk * scale).to(DK.dtype.element_ty))

    q, do, sums, d = tl.load(Q + here), tl.load(DO + here), tl.load(L + at), tl.load(D + at)
    dq = tl.zeros([TILE, HEAD_DIM], tl.float32)
    end = N
    if CAUSAL:
        dq = _dq_over_keys(
            dq, q, do, sums, d, K + base, V + base, at, scale_log2, first, TILE // HALF, True, HALF, HEAD_DIM
        )
        end = first
    dq = _dq_over_keys(dq, q, do, sums, d, K + base, V + base, at, scale_log2, 0, end // STEP, False, STEP, HEAD_DIM)
    tl.store(DQ + here, (dq * scale).to(DQ.dtype.element_ty))
