"""Closed forms of unfused attention: GEMMs, and passes over the N x N matrix between them."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, gemm, transfer
from attnsim.models.implementations.frameworks.naive import UnfusedTile, operations_of
from attnsim.models.question.operations import Operations
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

Named = tuple[str, int]
"""A tensor and its bytes an element."""


class _Bytes:
    """Sizes of a workload's tensors, and of the elements of S and P under its operations."""

    def __init__(self, w: Workload, operations: Operations) -> None:
        self.w, self.operations = w, operations
        self.heads = w.batch * w.heads_q
        self.pairs = self.heads * w.seq_q * w.seq_kv
        self.e = w.element_bytes
        self.fp32 = "copies fp32" in operations
        self.copies = self.fp32 or "copies" in operations
        self.c = 4 if self.fp32 else self.e
        self.s = 4 if self.c == 4 else 2
        self.p = 4 if "softmax fp32" in operations else self.s
        self.expands = "expand" in operations and w.group > 1
        kv_heads = self.heads if self.expands else w.batch * w.heads_kv
        self.q = self.heads * w.seq_q * w.head_dim
        self.k = kv_heads * w.seq_kv * w.head_dim
        self.v = kv_heads * w.seq_kv * w.head_dim_v

    def copied(self, tensor: str) -> bool:
        """Whether Q, K or V is copied: repeated ones are in order already, but not in fp32."""
        return self.copies and (self.fp32 or tensor == "Q" or not self.expands)

    def given(self, tensor: str) -> str:
        """Its name before it is copied."""
        return f"{tensor} expanded" if self.expands and tensor != "Q" else tensor

    def read(self, tensor: str) -> Named:
        """As the GEMMs read it."""
        return f"{self.given(tensor)}'" if self.copied(tensor) else self.given(tensor), self.c


def closed_form(w: Workload, schedule: Schedule, tile: UnfusedTile) -> list[Form]:
    """The kernels of each direction: of the schedule only its operations are used."""
    operations = operations_of(w, tile.operations)
    parts = forward(w, operations) if "fwd" in w.directions else []
    return parts + (backward(w, operations) if "bwd" in w.directions else [])


def forward(w: Workload, operations: Operations) -> list[Form]:
    """Copies, S, the passes over S and P, O."""
    b = _Bytes(w, operations)
    s, p, e = b.pairs * b.s, b.pairs * b.p, b.e
    sizes = {"Q": b.q, "K": b.k, "V": b.v}
    parts = []
    if b.expands:
        for x in "KV":
            parts.append(transfer(f"expand {x}", [(x, sizes[x] * e // w.group)], [(f"{x} expanded", sizes[x] * e)]))
    parts += [_copy(b.given(x), n, e, b.c) for x, n in sizes.items() if b.copied(x)]
    if "scale inputs" in operations:
        for x in "QK":
            tensor = (b.read(x)[0], sizes[x] * b.c)
            parts.append(transfer(f"scale {x}", [tensor], [tensor]))
    parts.append(_product(b, "S = Q K^T", (w.seq_q, w.seq_kv, w.head_dim), b.read("Q"), b.read("K"), ("S", b.s), True))
    if "scale" in operations:
        parts.append(transfer("scale", [("S", s)], [("S", s)]))
    if "mask" in operations:
        parts.append(transfer("mask", [("S", s), ("mask", w.seq_q * w.seq_kv * b.s)], [("S", s)]))
    parts.append(transfer("softmax", [("S", s)], [("P", p)], b.pairs))
    if "row check" in operations:
        parts += [
            transfer("is -inf", [("S", s)], [("B", b.pairs)]),
            transfer("all", [("B", b.pairs)], [("R", b.heads * w.seq_q)]),
            transfer("where", [("P", p)], [("P", p)]),
        ]
    weights = "P"
    if b.p != b.s:
        parts.append(transfer("cast P", [("P", p)], [("P'", s)]))
        weights = "P'"
    if "dropout" in operations:
        parts.append(transfer("dropout", [(weights, s)], [("Pd", s), ("D", b.pairs)]))
        weights = "Pd"
    shape, o = (w.seq_q, w.head_dim_v, w.seq_kv), b.heads * w.seq_q * w.head_dim_v
    parts.append(_product(b, "O = P V", shape, (weights, b.s), b.read("V"), ("O", b.c), True))
    if b.fp32:
        parts += [_copy("O", o, 4, e), transfer("cast P", [(weights, s)], [(f"{weights}'", b.pairs * e)])]
    return parts


def backward(w: Workload, operations: Operations) -> list[Form]:
    """Gradients of :func:`forward`: four GEMMs and the softmax backward, P read from memory."""
    b = _Bytes(w, operations)
    e, c = b.e, b.c
    s, p = b.pairs * b.s, b.pairs * b.p
    nq, nk, d, dv = w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v
    casts = b.p != b.s
    weights = "Pd" if "dropout" in operations else "P'" if casts else "P"
    grad_o = ("dO'" if b.copies else "dO", c)
    parts = [_copy("dO", b.heads * nq * dv, e, c)] if b.copies else []
    parts += [
        _product(b, "dV = P^T dO", (nk, dv, nq), (weights, b.s), grad_o, ("dV", c)),
        _product(b, "dP = dO V^T", (nq, nk, dv), grad_o, b.read("V"), ("dP", b.s), True),
    ]
    if "dropout" in operations:
        parts.append(transfer("dropout bwd", [("dP", s), ("D", b.pairs)], [("dP", s)]))
    gradient = "dP"
    if casts:
        parts.append(transfer("cast dP", [("dP", s)], [("dP'", p)]))
        gradient = "dP'"
    parts += [
        transfer("dP * P", [(gradient, p), ("P", p)], [("T", p)]),
        transfer("softmax bwd", [("T", p), ("P", p)], [("dS", s)]),
    ]
    if "scale" in operations:
        parts.append(transfer("scale bwd", [("dS", s)], [("dS", s)]))
    parts += [
        _product(b, "dQ = dS K", (nq, d, nk), ("dS", b.s), b.read("K"), ("dQ", c), True),
        _product(b, "dK = dS^T Q", (nk, d, nq), ("dS", b.s), b.read("Q"), ("dK", c)),
    ]
    sizes = {"dQ": nq * d, "dK": nk * d, "dV": nk * dv}
    if "scale" not in operations:  # the scale was a factor of Q K^T: dQ and dK are multiplied by it
        for tensor in ("dQ", "dK"):
            whole = (tensor, b.heads * sizes[tensor] * c)
            parts.append(transfer(f"alpha {tensor}", [whole], [whole]))
    if b.copies:
        parts += [_copy(tensor, b.heads * elements, c, e) for tensor, elements in sizes.items()]
    if w.group > 1:
        for tensor in ("dK", "dV"):
            size = w.batch * w.heads_kv * sizes[tensor] * e
            parts.append(transfer(f"sum {tensor}", [(tensor, size * w.group)], [(f"{tensor} sum", size)]))
    return parts


def _copy(tensor: str, elements: int, read: int, written: int) -> Form:
    return transfer(f"copy {tensor}", [(tensor, elements * read)], [(f"{tensor}'", elements * written)])


def _product(
    b: _Bytes, name: str, shape: tuple[int, int, int], a: Named, second: Named, c: Named, shared: bool = False
) -> Form:
    """A batched GEMM over all query heads; `shared`: the query heads of a group may read the same second operand."""
    tensors, sizes = (a[0], second[0], c[0]), (a[1], second[1], c[1])
    group = 1 if b.expands else b.w.group
    return gemm(name, b.heads, shape, tensors, sizes, b_shared_by=group if shared else 1)
