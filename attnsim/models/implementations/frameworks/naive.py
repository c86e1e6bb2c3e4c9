"""Unfused attention: GEMM, passes over the N x N matrix in HBM, GEMM; what frameworks ran before FlashAttention.

The passes of each form are counted from the source of the code that was timed:

* ``benchmark``: `attention_pytorch` of the FlashAttention benchmarks (Dao-AILab/flash-attention,
  ``benchmarks/benchmark_flash_attention.py``): the scale is the GEMM's alpha, a causal mask is one addition, softmax
  reads and writes 16-bit values; Q, K and V are first copied into ``[batch * heads, seq, head_dim]`` and dO, dQ, dK and
  dV back into the packed layout.
* ``eager``: the same on tensors that are already ``[batch, heads, seq, head_dim]``: no copies.
* ``hf_eager``: Hugging Face's `eager_attention_forward`: separate scale and mask passes, softmax in fp32, cast back.
* ``sdpa_math``: PyTorch >= 2.5 `scaled_dot_product_attention`, math backend: everything in fp32.
* ``fused_epilogue``: scale and mask in the GEMM's epilogue, the fewest passes an unfused form can make.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.models.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import gemm_path, one_pass, over_rows
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import BATCHED, Operand, gemm
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS
from attnsim.models.schedule.schedule import Kernel, Path, Schedule

DROPOUT_INSTRUCTIONS = by_hand(25, "integer instructions per element of a dropout pass: Philox")
"""A Philox-4x32-10 call of about 100 gives four numbers (Salmon et al., SC 2011;
``aten/src/ATen/native/cuda/Dropout.cu``)."""


Side = dict[str, int]
"""Tensors of the size of the N x N matrix that a pass reads or writes, with their bytes an element."""


@dataclass(frozen=True, slots=True)
class NaiveForm:
    """How an unfused implementation treats the N x N matrix.

    Parameters
    ----------
    score_bytes : int
        Element size of S as the first GEMM writes it.
    scale_pass : bool
        Whether the scale is a pass of its own.
    mask_pass : {"never", "masked", "always"}
        Whether a mask is added in a pass of its own; "masked": only when there is one.
    softmax_bytes : int
        Element size of P as softmax writes it.
    cast_pass : bool
        Whether P is cast back to the input type in a pass of its own.
    checks : bool
        Whether fully masked rows are looked for (PyTorch's `_safe_softmax`).
    copies : bool
        Whether Q, K and V are first copied into GEMM order, and the gradients back.
    gemm_dtype : str or None
        Format of the GEMMs when it is not the workload's.
    """

    score_bytes: int = 2
    scale_pass: bool = False
    mask_pass: str = "masked"
    softmax_bytes: int = 2
    cast_pass: bool = False
    checks: bool = False
    copies: bool = True
    gemm_dtype: str | None = None

    def masks(self, w: Workload) -> bool:
        """Whether a mask is added to the scores of `w` in a pass of its own."""
        has_mask = w.mask.right is not None or w.mask.is_windowed
        return self.mask_pass == "always" or (self.mask_pass == "masked" and has_mask)


@dataclass(frozen=True, slots=True)
class UnfusedTile:
    """The tile of the GEMMs, and which passes are between them."""

    form: NaiveForm

    def __str__(self) -> str:
        return f"GEMM {BATCHED}"


FORMS: dict[str, NaiveForm] = {
    "benchmark": NaiveForm(),
    "eager": NaiveForm(copies=False),
    "hf_eager": NaiveForm(scale_pass=True, mask_pass="always", softmax_bytes=4, cast_pass=True),
    "sdpa_math": NaiveForm(
        score_bytes=4, mask_pass="masked", softmax_bytes=4, cast_pass=True, checks=True, gemm_dtype="fp32"
    ),
    "fused_epilogue": NaiveForm(mask_pass="never", copies=False),
}


def naive(w: Workload, gpu: Gpu, shape: TileRequest | None, implementation: str, form: NaiveForm) -> Schedule:
    """The kernels of unfused attention.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
        Its tensor cores' instructions are those of the GEMMs.
    shape : None
        cuBLAS chooses the tiles.
    implementation : str
    form : NaiveForm
    """
    sizes = _Sizes(w, form, gemm_path(gpu))
    kernels = _forward(sizes) if "fwd" in w.directions else []
    if "bwd" in w.directions:
        kernels += _backward(sizes)
    notes: tuple[str, ...] = ("works on all seq_q x seq_kv scores whatever the mask",)
    if w.dropout:
        notes = (*notes, "dropout writes P again and a 1-byte mask")
    return Schedule("naive", implementation, tuple(kernels), UnfusedTile(form), peak_memory_bytes(w, form), notes)


class _Sizes:
    """Element counts and sizes of a workload's tensors, and the kernels over all query heads."""

    def __init__(self, w: Workload, form: NaiveForm, path: Path = "mma_sync") -> None:
        self.w, self.form, self.path = w, form, path
        self.heads = w.batch * w.heads_q
        self.pairs = self.heads * w.seq_q * w.seq_kv
        self.e = w.element_bytes
        self.s, self.p = max(form.score_bytes, self.e), max(form.softmax_bytes, self.e)

    def nd(self, tensor: str) -> int:
        """Bytes of Q, K, V, O or a gradient of one of them."""
        w, name = self.w, tensor.removeprefix("d")
        heads = w.heads_q if name in "QO" else w.heads_kv
        seq = w.seq_q if name in "QO" else w.seq_kv
        return w.batch * heads * seq * (w.head_dim if name in "QK" else w.head_dim_v) * w.element_bytes

    def product(self, name: str, shape: tuple[int, int, int], a: Operand, b: Operand, c: Operand) -> Kernel:
        """A GEMM of every query head."""
        dtype = self.form.gemm_dtype or self.w.dtype
        return gemm(name, self.heads, shape, a, b, c, dtype=dtype, path=self.path)

    def over_scores(self, name: str, reads: Side, writes: Side, int32: int = 0) -> Kernel:
        """An element-wise pass over the N x N matrix; tensors with their bytes an element."""
        return one_pass(name, self._matrices(reads), self._matrices(writes), self.pairs, int32=int32)

    def softmax(self, name: str, reads: Side, writes: Side, exps: int) -> Kernel:
        """A pass over its rows."""
        (written,) = self._matrices(writes)
        rows = self.heads * self.w.seq_q
        return over_rows(name, self._matrices(reads), written, rows, self.w.seq_kv, exps=exps, even=False)

    def _matrices(self, side: Side) -> list[tuple[str, int]]:
        return [(tensor, self.pairs * size) for tensor, size in side.items()]

    def copy(self, tensor: str, size: int) -> Kernel:
        """Into the order of the GEMMs, or back."""
        return one_pass(f"copy {tensor}", [(tensor, size)], [(f"{tensor}'", size)], size // self.e)


def _forward(b: _Sizes) -> list[Kernel]:
    w, form, e, s, p = b.w, b.form, b.e, b.s, b.p
    q, k, v = (f"{x}'" if form.copies else x for x in "QKV")
    kernels = [b.copy(x, b.nd(x)) for x in "QKV"] if form.copies else []
    operands = Operand(q, e), Operand(k, e, w.group), Operand("S", s)
    kernels.append(b.product("S = Q K^T", (w.seq_q, w.seq_kv, w.head_dim), *operands))
    if form.scale_pass:
        kernels.append(b.over_scores("scale", {"S": s}, {"S": s}))
    if form.masks(w):
        sides = [("S", b.pairs * s), ("mask", w.seq_q * w.seq_kv * s)], [("S", b.pairs * s)]
        kernels.append(one_pass("mask", *sides, b.pairs, int32=BROADCAST_INSTRUCTIONS * (b.heads > 1)))
    kernels.append(b.softmax("softmax", {"S": s}, {"P": p}, b.pairs))
    if form.checks:
        rows = ("R", b.heads * w.seq_q)
        kernels.append(b.over_scores("is -inf", {"S": s}, {"B": 1}))
        kernels.append(one_pass("all", [("B", b.pairs)], [rows], b.pairs))
        kernels.append(b.over_scores("where", {"P": p}, {"P": p}))
    weights = "P"
    if form.cast_pass:
        kernels.append(b.over_scores("cast P", {"P": p}, {"P'": e}))
        weights, p = ("P'", e) if form.gemm_dtype is None else ("P", p)
    if w.dropout:
        kernels.append(b.over_scores("dropout", {weights: p}, {"Pd": p, "D": 1}, DROPOUT_INSTRUCTIONS))
        weights = "Pd"
    operands = Operand(weights, p), Operand(v, e, w.group), Operand("O", e)
    return [*kernels, b.product("O = P V", (w.seq_q, w.head_dim_v, w.seq_kv), *operands)]


def _backward(b: _Sizes) -> list[Kernel]:
    """Autograd of :func:`_forward`: dP and dV, dropout, softmax, (mask: nothing), scale, dQ and dK."""
    w, form, e, s, p = b.w, b.form, b.e, b.s, b.p
    weights = "Pd" if w.dropout else "P'" if form.cast_pass else "P"
    small = e if form.cast_pass else p
    nq, nk, d, dv = w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v
    q, k, v = (f"{x}'" if form.copies else x for x in "QKV")
    kernels = [b.copy("dO", b.heads * nq * dv * e)] if form.copies else []
    kernels += [
        b.product("dV = P^T dO", (nk, dv, nq), Operand(weights, small), Operand("dO", e), Operand("dV", e)),
        b.product("dP = dO V^T", (nq, nk, dv), Operand("dO", e), Operand(v, e, w.group), Operand("dP", small)),
    ]
    if w.dropout:
        kernels.append(b.over_scores("dropout bwd", {"dP": small, "D": 1}, {"dP": small}))
    grad = "dP"
    if form.cast_pass:
        grad = "dP'"
        kernels.append(b.over_scores("cast dP", {"dP": small}, {grad: p}))
    # PyTorch multiplies grad and output in a pass of its own before the softmax backward (SoftMax.cu, `grad * output`)
    kernels.append(b.over_scores("dP * P", {grad: p, "P": p}, {"T": p}))
    kernels.append(b.softmax("softmax bwd", {"T": p, "P": p}, {"dS": s}, 0))
    if form.scale_pass:
        kernels.append(b.over_scores("scale bwd", {"dS": s}, {"dS": s}))
    kernels += [
        b.product("dQ = dS K", (nq, d, nk), Operand("dS", s), Operand(k, e, w.group), Operand("dQ", e)),
        b.product("dK = dS^T Q", (nk, d, nq), Operand("dS", s), Operand(q, e), Operand("dK", e)),
    ]
    if not form.scale_pass:  # the GEMM's alpha comes back as a multiplication of dQ and dK
        for t, seq in (("dQ", nq), ("dK", nk)):
            size = b.heads * seq * d
            kernels.append(one_pass(f"alpha {t}", [(t, size * e)], [(t, size * e)], size))
    if form.copies:
        kernels += [b.copy(t, b.heads * n * e) for t, n in (("dQ", nq * d), ("dK", nk * d), ("dV", nk * dv))]
    if w.group > 1:
        for t in ("dK", "dV"):
            size = b.nd(t)
            kernels.append(one_pass(f"sum {t}", [(t, size * w.group)], [(f"{t} sum", size)], size * w.group // e))
    return kernels


def peak_memory_bytes(w: Workload, form: NaiveForm) -> int:
    """Inputs, outputs and the N x N matrices alive together: S and P, with their gradients in training."""
    sizes = _Sizes(w, form)
    alive = {"fwd": 2, "decode": 2, "bwd": 3, "fwd+bwd": 3}[w.passes] * max(form.score_bytes, w.element_bytes)
    alive += (1 + max(form.softmax_bytes, w.element_bytes)) if w.dropout else 0
    gradients = 2 if "bwd" in w.directions else 1
    return sizes.pairs * alive + gradients * sum(sizes.nd(t) for t in "QKVO")
