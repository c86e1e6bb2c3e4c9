"""Closed form of the gather implementation: bytes and work from the sizes of what is gathered."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, gemm, load, store
from attnsim.models.implementations.frameworks.gather import INDEX
from attnsim.models.implementations.frameworks.gather_blocks import Gathering
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def closed_form(w: Workload, schedule: Schedule, sizes: Gathering) -> list[Form]:
    """Closed form of each kernel: of the schedule only the sizes of what is gathered are used.

    With ``n`` blocks of queries of a head, ``c`` blocks of ``b`` keys for each and ``g`` global keys, the gathers move
    ``n c b`` rows of K and V twice, and scores of ``n b (c b + g)`` elements move six times: written, read and written
    by the mask and by the softmax, and read; twice more where both kinds of keys have to be put side by side.
    """
    heads, e = w.batch * w.heads_q, w.element_bytes
    queries, width, tokens = heads * sizes.seq_q, sizes.width, sizes.global_keys
    o = queries * w.head_dim_v * e
    both = width > 0 and tokens > 0
    parts = []
    if width:
        parts += [_gather(w, sizes, "K", w.head_dim), _gather(w, sizes, "V", w.head_dim_v)]
        scores = "S local" if both else "S"
        tensors, shape = ("Q", "K gathered", scores), (sizes.rows, width, w.head_dim)
        parts.append(_product(w, "S = Q K^T", heads * sizes.row_blocks, shape, tensors))
    if tokens:
        scores = "S global" if both else "S"
        shape = (sizes.seq_q, tokens, w.head_dim)
        parts.append(_product(w, "S global = Q K^T", heads, shape, ("Q", "K", scores)))
    if both:
        apart = load("S local", queries * width * e), load("S global", queries * tokens * e)
        parts.append(Form("concatenate", (*apart, store("S", queries * (width + tokens) * e))))
    parts += _weights(w, "", sizes.seq_q, width + tokens) if width or tokens else [Form("fill O", (store("O", o),))]
    if width:
        tensors, shape = ("P", "V gathered", "O"), (sizes.rows, w.head_dim_v, width)
        parts.append(_product(w, "O = P V", heads * sizes.row_blocks, shape, tensors))
    if tokens:
        tensors, shape = ("P", "V", "O global" if both else "O"), (sizes.seq_q, w.head_dim_v, tokens)
        parts.append(_product(w, "O global = P V", heads, shape, tensors))
    if both:
        parts.append(Form("add O", (load("O", o), load("O global", o), store("O", o))))
    return parts + (_global_rows(w, sizes.global_rows) if sizes.global_rows else [])


def _global_rows(w: Workload, rows: int) -> list[Form]:
    """The queries of global tokens against every key, then into their places in O."""
    heads, e = w.batch * w.heads_q, w.element_bytes
    out = heads * rows * w.head_dim_v * e
    scores = _product(w, "S rows = Q K^T", heads, (rows, w.seq_kv, w.head_dim), ("Q", "K", "S rows"))
    values = _product(w, "O rows = P V", heads, (rows, w.head_dim_v, w.seq_kv), ("P rows", "V", "O rows"))
    return [
        scores,
        *_weights(w, " rows", rows, w.seq_kv),
        values,
        Form("put rows", (load("O rows", out), store("O", out))),
    ]


def _gather(w: Workload, sizes: Gathering, tensor: str, width: int) -> Form:
    kv_heads, e = w.batch * w.heads_kv, w.element_bytes
    copied = kv_heads * sizes.row_blocks * sizes.width * width * e
    index = load(INDEX, kv_heads * sizes.index_bytes, sizes.index_bytes)
    read = load(tensor, copied, kv_heads * sizes.touched_keys * width * e)
    return Form(f"gather {tensor}", (index, read, store(f"{tensor} gathered", copied)))


def _product(
    w: Workload,
    name: str,
    batch: int,
    shape: tuple[int, int, int],
    tensors: tuple[str, str, str],
) -> Form:
    """A batched GEMM whose B the query heads of a group have in common."""
    e, rows = w.element_bytes, 64 if shape[0] <= 64 else 128
    return gemm(name, batch, shape, tensors, (e, e, e), rows=rows, b_shared_by=w.group)


def _weights(w: Workload, tag: str, rows: int, columns: int) -> list[Form]:
    """The mask's addition and the softmax; the mask is one for all heads."""
    e, pairs = w.element_bytes, w.batch * w.heads_q * rows * columns
    added = load(f"S{tag}", pairs * e), load(f"mask{tag}", pairs * e, rows * columns * e), store(f"S{tag}", pairs * e)
    weighed = load(f"S{tag}", pairs * e), store(f"P{tag}", pairs * e)
    return [Form(f"mask{tag}", added), Form(f"softmax{tag}", weighed, exponentials=pairs)]
