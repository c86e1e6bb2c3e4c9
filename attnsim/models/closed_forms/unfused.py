"""Closed forms of unfused attention: so many passes over the N x N matrix, and the GEMMs around them."""

from __future__ import annotations

from attnsim.models.closed_forms.part import Moved, Part, gemm, helper, load, store
from attnsim.models.question.workload import Workload


class _Bytes:
    """Sizes of a workload's tensors and of the elements of S and P in one form."""

    def __init__(self, w: Workload, form: str) -> None:
        self.w, self.form = w, form
        self.heads = w.batch * w.heads_q
        self.pairs = self.heads * w.seq_q * w.seq_kv
        self.e = w.element_bytes
        self.s = max(4 if form == "sdpa_math" else 2, self.e)
        self.p = max(4 if form in ("sdpa_math", "hf_eager") else 2, self.e)
        self.q = self.heads * w.seq_q * w.head_dim * self.e
        self.k = w.batch * w.heads_kv * w.seq_kv * w.head_dim * self.e
        self.v = w.batch * w.heads_kv * w.seq_kv * w.head_dim_v * self.e
        self.casts = form in ("sdpa_math", "hf_eager")
        self.copies = form not in ("fused_epilogue", "eager")
        hides = w.mask.right is not None or w.mask.left is not None
        self.masks = form == "hf_eager" or (form != "fused_epilogue" and hides)


def forward(w: Workload, form: str) -> list[Part]:
    """Copies, S, the passes over S and P, O."""
    b = _Bytes(w, form)
    q, k = ("Q'", "K'") if b.copies else ("Q", "K")
    s, p, e = b.pairs * b.s, b.pairs * b.p, b.e
    parts = []
    if b.copies:
        parts += [_copy("Q", b.q), _copy("K", b.k), _copy("V", b.v)]
    parts.append(_product(b, "S = Q K^T", (w.seq_q, w.seq_kv, w.head_dim), (q, k, "S"), (e, e, b.s), shared=True))
    if form == "hf_eager":
        parts.append(Part("scale", (load("S", s), store("S", s))))
    if b.masks:
        parts.append(Part("mask", (load("S", s), load("mask", w.seq_q * w.seq_kv * b.s), store("S", s))))
    parts.append(Part("softmax", (load("S", s), store("P", p)), exponentials=b.pairs))
    if form == "sdpa_math":
        parts += [
            Part("is -inf", (load("S", s), store("B", b.pairs))),
            Part("all", (load("B", b.pairs), store("R", b.heads * w.seq_q))),
            Part("where", (load("P", p), store("P", p))),
        ]
    weights, size = "P", b.p
    if b.casts:
        parts.append(Part("cast P", (load("P", p), store("P'", b.pairs * e))))
        if form == "hf_eager":
            weights, size = "P'", e
    if w.dropout:
        moved = (load(weights, b.pairs * size), store("Pd", b.pairs * size), store("D", b.pairs))
        parts.append(Part("dropout", moved))
        weights = "Pd"
    shape = (w.seq_q, w.head_dim_v, w.seq_kv)
    parts.append(_product(b, "O = P V", shape, (weights, "V'" if b.copies else "V", "O"), (size, e, e), shared=True))
    return parts


def backward(w: Workload, form: str) -> list[Part]:
    """Gradients of :func:`forward`: four GEMMs and the softmax backward, P read from memory."""
    b = _Bytes(w, form)
    e = b.e
    small = e if b.casts else b.p
    s, p, half = b.pairs * b.s, b.pairs * b.p, b.pairs * small
    nq, nk, d, dv = w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v
    weights = "Pd" if w.dropout else "P'" if b.casts else "P"
    v = "V'" if b.copies else "V"
    parts = [_copy("dO", b.heads * nq * dv * e)] if b.copies else []
    parts += [
        _product(b, "dV = P^T dO", (nk, dv, nq), (weights, "dO", "dV"), (small, e, e)),
        _product(b, "dP = dO V^T", (nq, nk, dv), ("dO", v, "dP"), (e, e, small), shared=True),
    ]
    if w.dropout:
        parts.append(Part("dropout bwd", (load("dP", half), load("D", b.pairs), store("dP", half))))
    gradient = "dP"
    if b.casts:
        parts.append(Part("cast dP", (load("dP", half), store("dP'", p))))
        gradient = "dP'"
    parts += [
        Part("dP * P", (load(gradient, p), load("P", p), store("T", p))),
        Part("softmax bwd", (load("T", p), load("P", p), store("dS", s))),
    ]
    if form == "hf_eager":
        parts.append(Part("scale bwd", (load("dS", s), store("dS", s))))
    q, k = ("Q'", "K'") if b.copies else ("Q", "K")
    parts += [
        _product(b, "dQ = dS K", (nq, d, nk), ("dS", k, "dQ"), (b.s, e, e), shared=True),
        _product(b, "dK = dS^T Q", (nk, d, nq), ("dS", q, "dK"), (b.s, e, e)),
    ]
    if form != "hf_eager":  # the scale was the GEMM's alpha: dQ and dK are multiplied by it
        dk = b.heads * nk * d * e
        parts += [
            Part("alpha dQ", (load("dQ", b.q), store("dQ", b.q))),
            Part("alpha dK", (load("dK", dk), store("dK", dk))),
        ]
    if b.copies:
        widths = {"dQ": nq * d, "dK": nk * d, "dV": nk * dv}
        parts += [_copy(tensor, b.heads * elements * e) for tensor, elements in widths.items()]
    if w.group > 1:
        for tensor in ("dK", "dV"):
            part = helper(f"sum {tensor}", w, 1)
            assert part is not None
            moved: tuple[Moved, ...] = tuple(
                Moved(m.kind, tensor if m.kind == "load" else f"{tensor} sum", m.requested_bytes, m.unique_bytes)
                for m in part.moved
            )
            parts.append(Part(part.kernel, moved))
    return parts


def _copy(tensor: str, size: int) -> Part:
    return Part(f"copy {tensor}", (load(tensor, size), store(f"{tensor}'", size)))


def _product(
    b: _Bytes,
    name: str,
    shape: tuple[int, int, int],
    tensors: tuple[str, str, str],
    element_bytes: tuple[int, int, int],
    *,
    shared: bool = False,
) -> Part:
    """A batched GEMM over all query heads; `shared`: the query heads of a group read the same B."""
    part = gemm(name, b.heads, shape, tensors, element_bytes)
    if not shared:
        return part
    a, right, c = part.moved
    unique = right.unique_bytes // b.w.group
    return Part(
        name,
        (a, load(right.tensor, right.requested_bytes, unique), c),
        part.flops,
        part.exponentials,
        part.smem_bytes,
    )
