"""Closed forms of kernels that PyTorch launches one operation at a time; Linformer and efficient attention of them."""

from __future__ import annotations

from collections.abc import Sequence

from attnsim.models.closed_forms.form import Form, gemm, load, store, transfer
from attnsim.models.implementations.frameworks.efficient import EfficientTile
from attnsim.models.implementations.frameworks.keys_gemm import Sizes, part_length, sum_name, tiles_of
from attnsim.models.implementations.frameworks.linformer import LinformerTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def moved(name: str, reads: Sequence[tuple[str, int]], writes: tuple[str, int], exps: int = 0) -> Form:
    """A pass: its operands once."""
    return transfer(name, reads, [writes], exps)


def product(
    name: str, batch: int, shape: Sizes, tensors: tuple[str, str, str], element_bytes: int, *, b_shared_by: int = 1
) -> Form:
    """A batched GEMM of one format, of which `b_shared_by` entries read one copy of B."""
    return gemm(name, batch, shape, tensors, (element_bytes,) * 3, b_shared_by=b_shared_by)


def keys_gemm(
    schedule: Schedule, name: str, batch: int, shape: Sizes, tensors: tuple[str, str, str], e: int, *,
    a_shared_by: int = 1, b_shared_by: int = 1,
) -> list[Form]:  # fmt: skip
    """Closed form of a GEMM that sums over the keys: of the schedule only the grid is used, for the number of parts."""
    (m, n, k), (a, b, c) = shape, tensors
    blocks = next(kernel.blocks for kernel in schedule.kernels if kernel.name == name)
    parts = blocks // tiles_of(batch, shape)
    length = part_length(k, parts)
    sizes = [length] * (parts - 1) + [k - length * (parts - 1)]
    pieces = [gemm(name, batch, (m, n, size), tensors, (e, e, 4 if parts > 1 else e)) for size in sizes]
    requested = [sum(piece.moved[i].requested_bytes for piece in pieces) for i in range(3)]
    moved = (
        load(a, requested[0], batch * m * k * e // a_shared_by),
        load(b, requested[1], batch * k * n * e // b_shared_by),
        store(f"{c} partial" if parts > 1 else c, requested[2]),
    )
    flops, smem = (sum(getattr(piece, field) for piece in pieces) for field in ("flops", "smem_bytes"))
    main = Form(name, moved, flops, smem_bytes=smem)
    if parts == 1:
        return [main]
    return [main, Form(sum_name(c), (load(f"{c} partial", requested[2]), store(c, batch * m * n * e)))]


def efficient(w: Workload, schedule: Schedule, _: EfficientTile) -> list[Form]:
    """What each kernel moves and multiplies; of the schedule only the grid of K'^T V is used."""
    e, d, dv, heads, kv_heads = w.element_bytes, w.head_dim, w.head_dim_v, w.batch * w.heads_q, w.batch * w.heads_kv
    queries, keys = heads * w.seq_q * d, kv_heads * w.seq_kv * d
    return [
        moved("softmax K", [("K", keys * e)], ("K'", keys * e), keys),
        moved("softmax Q", [("Q", queries * e)], ("Q'", queries * e), queries),
        *keys_gemm(schedule, "S = K'^T V", kv_heads, (d, dv, w.seq_kv), ("K'", "V", "S"), e),
        product("O = Q' S", heads, (w.seq_q, dv, d), ("Q'", "S", "O"), e, b_shared_by=w.group),
    ]


def linformer(w: Workload, schedule: Schedule, tile: LinformerTile) -> list[Form]:
    """What each kernel moves and multiplies; of the schedule only the grids of E K and F V are used."""
    k, e, heads, b, g = tile.keys, w.element_bytes, w.batch * w.heads_q, w.batch, w.group
    pairs = heads * w.seq_q * k
    d, dv = w.head_dim, w.head_dim_v
    projections = []
    for name, matrix, width in (("K", "E", d), ("V", "F", dv)):
        shape, tensors = (k, w.heads_kv * width, w.seq_kv), (matrix, name, f"{name} projected")
        projections += keys_gemm(schedule, f"{matrix} {name}", b, shape, tensors, e, a_shared_by=b)
    return [
        *projections,
        product("S = Q (E K)^T", heads, (w.seq_q, k, d), ("Q", "K projected", "S"), e, b_shared_by=g),
        moved("scale", [("S", pairs * e)], ("S", pairs * e)),
        moved("softmax", [("S", pairs * e)], ("P", pairs * e), pairs),
        product("O = P (F V)", heads, (w.seq_q, dv, k), ("P", "V projected", "O"), e, b_shared_by=g),
    ]
