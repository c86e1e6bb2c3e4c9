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
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import BATCHED, Operand, gemm
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS, Access, streaming
from attnsim.models.schedule.schedule import Kernel, Path, Schedule

SOFTMAX_INSTRUCTIONS = by_hand(6, "FP32-lane instructions per element of a softmax pass")
"""Convert, max, subtract-scale, sum, multiply, convert."""
DROPOUT_INSTRUCTIONS = by_hand(25, "integer instructions per element of a dropout pass: Philox")
"""A Philox-4x32-10 call of about 100 gives four numbers (Salmon et al., SC 2011;
``aten/src/ATen/native/cuda/Dropout.cu``)."""
ELEMENTWISE_THREADS, ELEMENTWISE_WORK = 128, 4
"""Threads of a block and elements of a thread in PyTorch's elementwise kernels (``CUDALoops.cuh``)."""


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


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of the tensors of a workload."""

    w: Workload
    form: NaiveForm

    @property
    def heads(self) -> int:
        return self.w.batch * self.w.heads_q

    @property
    def pairs(self) -> int:
        return self.heads * self.w.seq_q * self.w.seq_kv

    def nd(self, tensor: str) -> int:
        """Bytes of Q, K, V, O or a gradient of one of them."""
        w, name = self.w, tensor.removeprefix("d")
        heads = w.heads_q if name in "QO" else w.heads_kv
        seq = w.seq_q if name in "QO" else w.seq_kv
        return w.batch * heads * seq * (w.head_dim if name in "QK" else w.head_dim_v) * w.element_bytes


def naive(w: Workload, gpu: Gpu, implementation: str, form: NaiveForm, path: Path) -> Schedule:
    """The kernels of unfused attention.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
        Unused but for symmetry with the other builders.
    implementation : str
    form : NaiveForm
    path : str
        Instruction path of the GEMMs.
    """
    sizes = _Sizes(w, form)
    kernels: list[Kernel] = []
    if "fwd" in w.directions:
        kernels += _forward(sizes, path)
    if "bwd" in w.directions:
        kernels += _backward(sizes, path)
    return Schedule(
        algorithm="naive",
        implementation=implementation,
        kernels=tuple(kernels),
        tile=UnfusedTile(form),
        peak_memory_bytes=peak_memory_bytes(w, form),
        notes=_notes(w, form),
    )


def _notes(w: Workload, form: NaiveForm) -> tuple[str, ...]:
    notes = ["works on all seq_q x seq_kv scores whatever the mask"]
    if w.dropout:
        notes.append("dropout writes P again and a 1-byte mask")
    return tuple(notes)


def _gemm_dtype(w: Workload, form: NaiveForm) -> str:
    return form.gemm_dtype or w.dtype


def _forward(sizes: _Sizes, path: Path) -> list[Kernel]:
    w, form, pairs = sizes.w, sizes.form, sizes.pairs
    e, s, p = (
        w.element_bytes,
        max(form.score_bytes, w.element_bytes),
        max(form.softmax_bytes, w.element_bytes),
    )
    dtype = _gemm_dtype(w, form)
    kernels: list[Kernel] = []
    if form.copies:
        for t in "QKV":
            kernels.append(
                _pass(
                    f"copy {t}",
                    [Access(t, sizes.nd(t)), Access(f"{t}'", sizes.nd(t), True)],
                    sizes.nd(t) // e,
                )
            )
    q, k = ("Q'", "K'") if form.copies else ("Q", "K")
    shape = (w.seq_q, w.seq_kv, w.head_dim)
    kernels.append(
        gemm(
            "S = Q K^T",
            sizes.heads,
            shape,
            Operand(q, e),
            Operand(k, e, w.group),
            Operand("S", s),
            dtype=dtype,
            path=path,
        )
    )
    scores = [Access("S", pairs * s), Access("S", pairs * s, True)]
    if form.scale_pass:
        kernels.append(_pass("scale", scores, pairs))
    if form.masks(w):
        mask = Access("mask", w.seq_q * w.seq_kv * s)
        kernels.append(_pass("mask", [*scores, mask], pairs, BROADCAST_INSTRUCTIONS * (w.batch * w.heads_q > 1)))
    kernels.append(_softmax("softmax", [Access("S", pairs * s), Access("P", pairs * p, True)], w, pairs))
    if form.checks:
        kernels.append(_pass("is -inf", [Access("S", pairs * s), Access("B", pairs, True)], pairs))
        kernels.append(_pass("all", [Access("B", pairs), Access("R", sizes.heads * w.seq_q, True)], pairs))
        kernels.append(_pass("where", [Access("P", pairs * p), Access("P", pairs * p, True)], pairs))
    weights = "P"
    if form.cast_pass:
        kernels.append(_pass("cast P", [Access("P", pairs * p), Access("P'", pairs * e, True)], pairs))
        weights, p = ("P'", e) if form.gemm_dtype is None else ("P", p)
    if w.dropout:
        kernels.append(
            _pass(
                "dropout",
                [Access(weights, pairs * p), Access("Pd", pairs * p, True), Access("D", pairs, True)],
                pairs,
                DROPOUT_INSTRUCTIONS,
            )
        )
        weights = "Pd"
    kernels.append(
        gemm(
            "O = P V", sizes.heads, (w.seq_q, w.head_dim_v, w.seq_kv),
            Operand(weights, p), Operand("V'" if form.copies else "V", e, w.group), Operand("O", e),
            dtype=dtype, path=path,
        )
    )  # fmt: skip
    return kernels


def _backward(sizes: _Sizes, path: Path) -> list[Kernel]:
    """Autograd of :func:`_forward`: dP and dV, dropout, softmax, (mask: nothing), scale, dQ and dK."""
    w, form, pairs, heads = sizes.w, sizes.form, sizes.pairs, sizes.heads
    e, s, p = (
        w.element_bytes,
        max(form.score_bytes, w.element_bytes),
        max(form.softmax_bytes, w.element_bytes),
    )
    dtype = _gemm_dtype(w, form)
    weights = "Pd" if w.dropout else "P'" if form.cast_pass else "P"
    small = e if form.cast_pass else p
    nq, nk, d, dv = w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v

    def product(name: str, shape: tuple[int, int, int], a: Operand, b: Operand, c: Operand) -> Kernel:
        return gemm(name, heads, shape, a, b, c, dtype=dtype, path=path)

    def copy(tensor: str, elements: int) -> Kernel:
        sides = [Access(tensor, elements * e), Access(f"{tensor}'", elements * e, True)]
        return _pass(f"copy {tensor}", sides, elements)

    v = "V'" if form.copies else "V"
    kernels = [] if not form.copies else [copy("dO", heads * nq * dv)]
    kernels += [
        product("dV = P^T dO", (nk, dv, nq), Operand(weights, small), Operand("dO", e), Operand("dV", e)),
        product("dP = dO V^T", (nq, nk, dv), Operand("dO", e), Operand(v, e, w.group), Operand("dP", small)),
    ]
    if w.dropout:
        kernels.append(
            _pass(
                "dropout bwd",
                [Access("dP", pairs * small), Access("D", pairs), Access("dP", pairs * small, True)],
                pairs,
            )
        )
    if form.cast_pass:
        kernels.append(_pass("cast dP", [Access("dP", pairs * small), Access("dP'", pairs * p, True)], pairs))
    grad = "dP'" if form.cast_pass else "dP"
    # PyTorch multiplies grad and output in a pass of its own before the softmax backward (SoftMax.cu, `grad * output`)
    product_of = [Access(grad, pairs * p), Access("P", pairs * p), Access("T", pairs * p, True)]
    kernels.append(_pass("dP * P", product_of, pairs))
    grad = "T"
    kernels.append(
        _softmax(
            "softmax bwd",
            [Access(grad, pairs * p), Access("P", pairs * p), Access("dS", pairs * s, True)],
            w,
            0,
        )
    )
    if form.scale_pass:
        kernels.append(_pass("scale bwd", [Access("dS", pairs * s), Access("dS", pairs * s, True)], pairs))
    k, q = ("K'", "Q'") if form.copies else ("K", "Q")
    kernels += [
        product("dQ = dS K", (nq, d, nk), Operand("dS", s), Operand(k, e, w.group), Operand("dQ", e)),
        product("dK = dS^T Q", (nk, d, nq), Operand("dS", s), Operand(q, e), Operand("dK", e)),
    ]
    if not form.scale_pass:  # the GEMM's alpha comes back as a multiplication of dQ and dK
        for t, seq in (("dQ", nq), ("dK", nk)):
            size = heads * seq * d
            kernels.append(_pass(f"alpha {t}", [Access(t, size * e), Access(t, size * e, True)], size))
    if form.copies:
        kernels += [copy("dQ", heads * nq * d), copy("dK", heads * nk * d), copy("dV", heads * nk * dv)]
    if w.group > 1:
        for t in ("dK", "dV"):
            summed = [Access(t, sizes.nd(t) * w.group), Access(f"{t} sum", sizes.nd(t), True)]
            kernels.append(_pass(f"sum {t}", summed, sizes.nd(t) * w.group // e))
    return kernels


def _pass(name: str, accesses: list[Access], elements: int, int32: int = 0) -> Kernel:
    """An elementwise kernel of PyTorch over `elements` elements."""
    return streaming(
        name,
        accesses,
        elements=elements,
        int32_per_element=int32,
        threads=ELEMENTWISE_THREADS,
        blocks=-(-elements // (ELEMENTWISE_THREADS * ELEMENTWISE_WORK)),
    )


def _softmax(name: str, accesses: list[Access], w: Workload, exps: int) -> Kernel:
    """PyTorch's softmax: up to 1,024 columns a warp per row, four to a block; beyond, a block per row."""
    rows = w.batch * w.heads_q * w.seq_q
    narrow = w.seq_kv <= 1024
    return streaming(
        name,
        accesses,
        elements=rows * w.seq_kv,
        exps=exps,
        fp32_per_element=SOFTMAX_INSTRUCTIONS,
        threads=128 if narrow else min(1024, -(-w.seq_kv // 256) * 32),
        blocks=-(-rows // 4) if narrow else rows,
    )


def peak_memory_bytes(w: Workload, form: NaiveForm) -> int:
    """Inputs, outputs and the N x N matrices alive together: S and P, with their gradients in training."""
    sizes = _Sizes(w, form)
    alive = {"fwd": 2, "decode": 2, "bwd": 3, "fwd+bwd": 3}[w.passes] * max(form.score_bytes, w.element_bytes)
    alive += (1 + max(form.softmax_bytes, w.element_bytes)) if w.dropout else 0
    gradients = 2 if "bwd" in w.directions else 1
    return sizes.pairs * alive + gradients * sum(sizes.nd(t) for t in "QKVO")
