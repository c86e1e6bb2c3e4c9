"""Closed forms of unfused attention: GEMMs, and passes over the N x N matrix between them."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, gemm, transfer
from attnsim.models.implementations.frameworks.naive import NaiveForm, UnfusedTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


class _Bytes:
    """Sizes of a workload's tensors and of the elements of S and P in one form."""

    def __init__(self, w: Workload, form: NaiveForm) -> None:
        self.w, self.form = w, form
        self.heads = w.batch * w.heads_q
        self.pairs = self.heads * w.seq_q * w.seq_kv
        self.e = w.element_bytes
        self.s = max(form.score_bytes, self.e)
        self.p = max(form.softmax_bytes, self.e)
        self.q = self.heads * w.seq_q * w.head_dim * self.e
        self.k = w.batch * w.heads_kv * w.seq_kv * w.head_dim * self.e
        self.v = w.batch * w.heads_kv * w.seq_kv * w.head_dim_v * self.e


def closed_form(w: Workload, schedule: Schedule, tile: UnfusedTile) -> list[Form]:
    """The kernels of each direction: of the schedule only its form is used."""
    parts = forward(w, tile.form) if "fwd" in w.directions else []
    return parts + (backward(w, tile.form) if "bwd" in w.directions else [])


def forward(w: Workload, form: NaiveForm) -> list[Form]:
    """Copies, S, the passes over S and P, O."""
    b = _Bytes(w, form)
    q, k = ("Q'", "K'") if form.copies else ("Q", "K")
    s, p, e = b.pairs * b.s, b.pairs * b.p, b.e
    parts = []
    if form.copies:
        parts += [_copy("Q", b.q), _copy("K", b.k), _copy("V", b.v)]
    parts.append(_product(b, "S = Q K^T", (w.seq_q, w.seq_kv, w.head_dim), (q, k, "S"), (e, e, b.s), shared=True))
    if form.scale_pass:
        parts.append(transfer("scale", [("S", s)], [("S", s)]))
    if form.masks(w):
        parts.append(transfer("mask", [("S", s), ("mask", w.seq_q * w.seq_kv * b.s)], [("S", s)]))
    parts.append(transfer("softmax", [("S", s)], [("P", p)], b.pairs))
    if form.checks:
        parts += [
            transfer("is -inf", [("S", s)], [("B", b.pairs)]),
            transfer("all", [("B", b.pairs)], [("R", b.heads * w.seq_q)]),
            transfer("where", [("P", p)], [("P", p)]),
        ]
    weights, size = "P", b.p
    if form.cast_pass:
        parts.append(transfer("cast P", [("P", p)], [("P'", b.pairs * e)]))
        if form.gemm_dtype is None:
            weights, size = "P'", e
    if w.dropout:
        parts.append(transfer("dropout", [(weights, b.pairs * size)], [("Pd", b.pairs * size), ("D", b.pairs)]))
        weights = "Pd"
    shape = (w.seq_q, w.head_dim_v, w.seq_kv)
    parts.append(_product(b, "O = P V", shape, (weights, "V'" if form.copies else "V", "O"), (size, e, e), shared=True))
    return parts


def backward(w: Workload, form: NaiveForm) -> list[Form]:
    """Gradients of :func:`forward`: four GEMMs and the softmax backward, P read from memory."""
    b = _Bytes(w, form)
    e = b.e
    small = e if form.cast_pass else b.p
    s, p, half = b.pairs * b.s, b.pairs * b.p, b.pairs * small
    nq, nk, d, dv = w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v
    weights = "Pd" if w.dropout else "P'" if form.cast_pass else "P"
    v = "V'" if form.copies else "V"
    parts = [_copy("dO", b.heads * nq * dv * e)] if form.copies else []
    parts += [
        _product(b, "dV = P^T dO", (nk, dv, nq), (weights, "dO", "dV"), (small, e, e)),
        _product(b, "dP = dO V^T", (nq, nk, dv), ("dO", v, "dP"), (e, e, small), shared=True),
    ]
    if w.dropout:
        parts.append(transfer("dropout bwd", [("dP", half), ("D", b.pairs)], [("dP", half)]))
    gradient = "dP"
    if form.cast_pass:
        parts.append(transfer("cast dP", [("dP", half)], [("dP'", p)]))
        gradient = "dP'"
    parts += [
        transfer("dP * P", [(gradient, p), ("P", p)], [("T", p)]),
        transfer("softmax bwd", [("T", p), ("P", p)], [("dS", s)]),
    ]
    if form.scale_pass:
        parts.append(transfer("scale bwd", [("dS", s)], [("dS", s)]))
    q, k = ("Q'", "K'") if form.copies else ("Q", "K")
    parts += [
        _product(b, "dQ = dS K", (nq, d, nk), ("dS", k, "dQ"), (b.s, e, e), shared=True),
        _product(b, "dK = dS^T Q", (nk, d, nq), ("dS", q, "dK"), (b.s, e, e)),
    ]
    if not form.scale_pass:  # the scale was the GEMM's alpha: dQ and dK are multiplied by it
        dk = b.heads * nk * d * e
        parts += [
            transfer("alpha dQ", [("dQ", b.q)], [("dQ", b.q)]),
            transfer("alpha dK", [("dK", dk)], [("dK", dk)]),
        ]
    if form.copies:
        widths = {"dQ": nq * d, "dK": nk * d, "dV": nk * dv}
        parts += [_copy(tensor, b.heads * elements * e) for tensor, elements in widths.items()]
    if w.group > 1:
        for tensor, width in (("dK", d), ("dV", dv)):
            size = w.batch * w.heads_kv * nk * width * e
            parts.append(transfer(f"sum {tensor}", [(tensor, size * w.group)], [(f"{tensor} sum", size)]))
    return parts


def _copy(tensor: str, size: int) -> Form:
    return transfer(f"copy {tensor}", [(tensor, size)], [(f"{tensor}'", size)])


def _product(
    b: _Bytes,
    name: str,
    shape: tuple[int, int, int],
    tensors: tuple[str, str, str],
    element_bytes: tuple[int, int, int],
    *,
    shared: bool = False,
) -> Form:
    """A batched GEMM over all query heads; `shared`: the query heads of a group read the same B."""
    return gemm(name, b.heads, shape, tensors, element_bytes, b_shared_by=b.w.group if shared else 1)
