"""Unfused attention: GEMM, passes over the N x N matrix in HBM, GEMM; as frameworks ran it before FlashAttention.

The passes are a list of operations (:mod:`attnsim.models.question.operations`): the implementation's own,
counted from the source of the code that was timed, or the question's.

Unfused attention in PyTorch, a list of operations for each form of the call; and its fused call of 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import flash1
from attnsim.models.implementations.frameworks.eager import one_pass, over_rows, softmax, strided_copy
from attnsim.models.implementations.implementation import Implementation, TileRequest, facts, record
from attnsim.models.question.operations import Operations
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm, gemm_path, library_tile
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS
from attnsim.models.schedule.schedule import Kernel, Schedule

DROPOUT_INSTRUCTIONS = by_hand(25, "integer instructions per element of a dropout pass: Philox")
"""A Philox-4x32-10 call of about 100 gives four numbers (Salmon et al., SC 2011;
``aten/src/ATen/native/cuda/Dropout.cu``)."""

TANH_EXPS = 2
"""Special functions of PyTorch's tanh per element: an exponential and a reciprocal, as libdevice's
(``option_work.csv``)."""

LIKELY_DROPOUT = 0.1
"""Rate if a question does not state it; the time does not depend on it."""

Side = dict[str, int]
"""Tensors of the size of the N x N matrix that a pass reads or writes, with their bytes per element."""


@dataclass(frozen=True, slots=True)
class UnfusedTile:
    """Operations of a call if the question names none; and the tiles of its GEMMs."""

    operations: Operations
    gemms: tuple[GemmTile, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"GEMM {', '.join(map(str, self.gemms))}"


def operations_of(w: Workload, own: Operations) -> Operations:
    """Operations of a call: the question's, otherwise those of the implementation that the question needs.

    A mask is added if there is one, K and V are repeated if heads share them, dropout follows the softmax if it is on.
    """
    if w.operations is not None:
        return w.operations
    if not _has_mask(w):
        own = own.without("mask")
    return own.with_dropout(LIKELY_DROPOUT) if w.dropout else own


def _has_mask(w: Workload) -> bool:
    mask = w.bounded().mask
    return mask.right is not None or mask.is_windowed


def naive(w: Workload, gpu: Gpu, shape: TileRequest | None, implementation: str, own: Operations) -> Schedule:
    """Kernels of unfused attention.

    Parameters
    ----------
    gpu : Gpu
        GPU for which cuBLAS chooses the tiles.
    shape : None
        cuBLAS chooses the tiles.
    own : Operations
        The implementation's operations, used if the question names none.
    """
    unfused = _Unfused(w, operations_of(w, own), gpu)
    kernels = _forward(unfused) if "fwd" in w.directions else []
    if "bwd" in w.directions:
        kernels += _backward(unfused)
    notes: tuple[str, ...] = ("works on all seq_q x seq_kv scores whatever the mask",)
    if w.dropout:
        notes = (*notes, "dropout writes P again and a 1-byte mask")
    if w.operations is not None and _has_mask(w) and "mask" not in w.operations:
        notes = (*notes, "the mask is part of another operation")
    tile = UnfusedTile(own, tuple(unfused.gemms))
    return Schedule("naive", implementation, tuple(kernels), tile, peak_memory_bytes(w, own), notes)


class _Sizes:
    """Element counts and sizes of a workload's tensors."""

    def __init__(self, w: Workload, operations: Operations) -> None:
        self.w, self.operations = w, operations
        self.heads = w.batch * w.heads_q
        self.pairs = self.heads * w.seq_q * w.seq_kv
        self.e = w.element_bytes
        self.in_fp32 = "copies fp32" in operations
        self.dtype = "fp32" if self.in_fp32 else w.dtype
        self.c = 4 if self.in_fp32 else self.e
        """Bytes of an element of the GEMMs' operands but P."""
        self.s = max(2, self.c)
        self.p = 4 if "softmax fp32" in operations else self.s
        self.cast = self.p > self.s
        self.expands = "expand" in operations and w.group > 1
        self.group = 1 if self.expands else w.group
        copied = ("QKV" if self.in_fp32 or not self.expands else "Q") if self.copies else ""
        self.operand = {x: (f"{x} expanded" if self.expands and x != "Q" else x) + "'" * (x in copied) for x in "QKV"}
        self.copied = copied

    @property
    def copies(self) -> bool:
        """Whether tensors are copied into the order of the GEMMs."""
        return self.in_fp32 or "copies" in self.operations

    def nd(self, tensor: str) -> int:
        """Elements of Q, K, V or O."""
        w = self.w
        heads = w.heads_q if tensor in "QO" else w.heads_kv
        seq = w.seq_q if tensor in "QO" else w.seq_kv
        return w.batch * heads * seq * (w.head_dim if tensor in "QK" else w.head_dim_v)


class _Unfused(_Sizes):
    """The kernels over all query heads, on one GPU."""

    def __init__(self, w: Workload, operations: Operations, gpu: Gpu) -> None:
        super().__init__(w, operations)
        self.gpu = gpu
        self.gemms: dict[GemmTile, None] = {}
        """Tiles of the GEMMs so far, each once."""

    def product(self, name: str, shape: tuple[int, int, int], a: Operand, b: Operand, c: Operand) -> Kernel:
        """A GEMM of every query head."""
        tile = library_tile(self.gpu, self.dtype, self.heads, shape, a.element_bytes)
        self.gemms[tile] = None
        return gemm(name, self.heads, shape, a, b, c, dtype=self.dtype, path=gemm_path(self.gpu), tile=tile)

    def input(self, tensor: str) -> Operand:
        """Q, K or V as the GEMMs read it."""
        return Operand(self.operand[tensor], self.c, 1 if tensor == "Q" else self.group)

    def over_scores(self, name: str, reads: Side, writes: Side, int32: int = 0) -> Kernel:
        """An element-wise pass over the N x N matrix; tensors with their bytes per element."""
        return one_pass(name, self.matrices(reads), self.matrices(writes), self.pairs, int32=int32)

    def by_rows(self, over: Callable[..., Kernel], name: str, reads: Side, writes: Side) -> Kernel:
        """A pass over the matrix's rows, :func:`softmax` or :func:`over_rows`."""
        (written,) = self.matrices(writes)
        rows = self.heads * self.w.seq_q
        return over(name, self.matrices(reads), written, rows, self.w.seq_kv, even=False)

    def matrices(self, side: Side) -> list[tuple[str, int]]:
        """Tensors of the size of the N x N matrix with their bytes."""
        return [(tensor, self.pairs * size) for tensor, size in side.items()]

    def copy(self, tensor: str, elements: int, read: int, written: int) -> Kernel:
        """Copy into the order and the format of the GEMMs, or back; bytes per element read and written."""
        sides = (tensor, elements * read), (f"{tensor}'", elements * written)
        return strided_copy(f"copy {tensor}", *sides, elements)

    def in_place(self, name: str, tensor: str, elements: int, size: int) -> Kernel:
        """Multiply a tensor by a number."""
        return one_pass(name, [(tensor, elements * size)], [(tensor, elements * size)], elements)


def _inputs(b: _Unfused) -> list[Kernel]:
    """K and V repeated for the query heads, and copies or multiplications before the first GEMM."""
    kernels = []
    for x in "KV" if b.expands else "":
        size = b.nd(x) * b.e
        wide = size * b.w.group
        kernels.append(strided_copy(f"expand {x}", (x, size), (f"{x} expanded", wide), wide // b.e))
    elements = {x: b.nd(x) * (b.w.group if b.expands and x != "Q" else 1) for x in "QKV"}
    kernels += [b.copy(b.operand[x].removesuffix("'"), elements[x], b.e, b.c) for x in b.copied]
    if "scale inputs" in b.operations:
        kernels += [b.in_place(f"scale {x}", b.operand[x], elements[x], b.c) for x in "QK"]
    return kernels


def _forward(b: _Unfused) -> list[Kernel]:
    w, s, p, operations = b.w, b.s, b.p, b.operations
    kernels = _inputs(b)
    shape = w.seq_q, w.seq_kv, w.head_dim
    kernels.append(b.product("S = Q K^T", shape, b.input("Q"), b.input("K"), Operand("S", s)))
    if "scale" in operations:
        kernels.append(b.over_scores("scale", {"S": s}, {"S": s}))
    kernels += _capped(b) if w.softcap else []
    if "mask" in operations:
        sides = [("S", b.pairs * s), ("mask", w.seq_q * w.seq_kv * s)], [("S", b.pairs * s)]
        kernels.append(one_pass("mask", *sides, b.pairs, int32=BROADCAST_INSTRUCTIONS * (b.heads > 1)))
    kernels += _with_sinks(b) if w.sinks else []
    kernels.append(b.by_rows(softmax, "softmax", {"S": s}, {"P": p}))
    if "row check" in operations:
        rows = ("R", b.heads * w.seq_q)
        kernels.append(b.over_scores("is -inf", {"S": s}, {"B": 1}))
        kernels.append(one_pass("all", [("B", b.pairs)], [rows], b.pairs))
        kernels.append(one_pass("where", [("P", b.pairs * p), rows], [("P", b.pairs * p)], b.pairs))
    weights = "P"
    if b.cast:
        kernels.append(b.over_scores("cast P", {"P": p}, {"P'": s}))
        weights = "P'"
    if "dropout" in operations:
        kernels.append(b.over_scores("dropout", {weights: s}, {"Pd": s, "D": 1}, DROPOUT_INSTRUCTIONS))
        weights = "Pd"
    shape = w.seq_q, w.head_dim_v, w.seq_kv
    kernels.append(b.product("O = P V", shape, Operand(weights, s), b.input("V"), Operand("O", b.c)))
    if b.in_fp32:
        kernels.append(b.copy("O", b.nd("O"), b.c, b.e))
        kernels.append(b.over_scores("cast P", {weights: s}, {f"{weights}'": b.e}))
    return kernels


def _capped(b: _Unfused) -> list[Kernel]:
    """Soft-capping as in Gemma 2's eager form: S over the bound, its tanh, and that times the bound."""
    side = {"S": b.s}
    tanh = one_pass("tanh", b.matrices(side), b.matrices(side), b.pairs, exps=TANH_EXPS)
    return [b.over_scores("over the cap", side, side), tanh, b.over_scores("times cap", side, side)]


def _with_sinks(b: _Unfused) -> list[Kernel]:
    """Sinks as in gpt-oss's eager form: a column appended to S, the maximum of each row, and S less that."""
    size, rows = ("S", b.pairs * b.s), ("highest", b.heads * b.w.seq_q * b.s)
    return [
        one_pass("cat sinks", [size, ("sinks", b.w.heads_q * b.s)], [size], b.pairs),
        one_pass("max", [size], [rows], b.pairs),
        one_pass("less max", [size, rows], [size], b.pairs, int32=BROADCAST_INSTRUCTIONS),
    ]


def _backward(b: _Unfused) -> list[Kernel]:
    """Autograd of :func:`_forward`: dP and dV, dropout, softmax, (mask: nothing), scale, dQ and dK."""
    w, c, s, p, operations = b.w, b.c, b.s, b.p, b.operations
    weights = "Pd" if "dropout" in operations else "P'" if b.cast else "P"
    nq, nk, d, dv = w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v
    elements = {"dQ": b.heads * nq * d, "dK": b.heads * nk * d, "dV": b.heads * nk * dv}
    kernels = [b.copy("dO", b.heads * nq * dv, b.e, c)] if b.copies else []
    grad_o = Operand("dO'" if b.copies else "dO", c)
    kernels += [
        b.product("dV = P^T dO", (nk, dv, nq), Operand(weights, s), grad_o, Operand("dV", c)),
        b.product("dP = dO V^T", (nq, nk, dv), grad_o, b.input("V"), Operand("dP", s)),
    ]
    if "dropout" in operations:
        kernels.append(b.over_scores("dropout bwd", {"dP": s, "D": 1}, {"dP": s}))
    grad = "dP"
    if b.cast:
        grad = "dP'"
        kernels.append(b.over_scores("cast dP", {"dP": s}, {grad: p}))
    # PyTorch multiplies grad and output in a pass of its own before the softmax backward (SoftMax.cu, `grad * output`)
    kernels.append(b.over_scores("dP * P", {grad: p, "P": p}, {"T": p}))
    kernels.append(b.by_rows(over_rows, "softmax bwd", {"T": p, "P": p}, {"dS": s}))
    derived = (*("less max", "cat sinks") * w.sinks, *("times cap", "tanh", "over the cap") * bool(w.softcap))
    for one in derived:
        kernels.append(b.over_scores(f"{one} bwd", {"dS": s, "S": s} if one == "tanh" else {"dS": s}, {"dS": s}))
    if "scale" in operations:
        kernels.append(b.over_scores("scale bwd", {"dS": s}, {"dS": s}))
    kernels += [
        b.product("dQ = dS K", (nq, d, nk), Operand("dS", s), b.input("K"), Operand("dQ", c)),
        b.product("dK = dS^T Q", (nk, d, nq), Operand("dS", s), b.input("Q"), Operand("dK", c)),
    ]
    if "scale" not in operations:  # the GEMM's alpha, or the factor of Q and K, comes back as one of dQ and dK
        kernels += [b.in_place(f"alpha {t}", t, elements[t], c) for t in ("dQ", "dK")]
    if b.copies:
        kernels += [b.copy(t, n, c, b.e) for t, n in elements.items()]
    if w.group > 1:
        for t in ("dK", "dV"):
            size, read = elements[t] * b.e, f"{t}'" if b.copies else t
            kernels.append(one_pass(f"sum {t}", [(read, size)], [(f"{t} sum", size // w.group)], elements[t]))
    return kernels


def peak_memory_bytes(w: Workload, own: Operations) -> int:
    """Peak memory: inputs, outputs and the N x N matrices alive together: S and P, with their gradients in training."""
    sizes = _Sizes(w, operations_of(w, own))
    alive = {"fwd": 2, "decode": 2, "bwd": 3, "fwd+bwd": 3}[w.passes] * sizes.s
    alive += (1 + sizes.p) if "dropout" in sizes.operations else 0
    gradients = 2 if "bwd" in w.directions else 1
    expanded = sum(sizes.nd(t) for t in "KV") * w.group if sizes.expands else 0
    return sizes.pairs * alive + (gradients * sum(sizes.nd(t) for t in "QKVO") + expanded) * sizes.e


def unfused(name: str) -> Implementation:
    """The record of an implementation that runs a list of operations."""
    own = Operations.parse(facts()[name]["operations"])
    return record(name, partial(naive, implementation=name, own=own), peak_bytes=partial(peak_memory_bytes, own=own))


RECORDS = (
    *map(unfused, ("torch.baddbmm", "torch.eager", "torch.sdpa-math", "ideal.unfused", "transformers.eager")),
    record("torch.sdpa-flash-1", partial(flash1, name="torch.sdpa-flash-1")),
)
