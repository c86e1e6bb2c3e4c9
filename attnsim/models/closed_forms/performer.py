"""Closed forms of the kernels of :mod:`attnsim.models.implementations.frameworks.performer`."""

from __future__ import annotations

from attnsim.models.closed_forms.eager import keys_gemm, moved, product
from attnsim.models.closed_forms.form import Form
from attnsim.models.implementations.frameworks.performer import CHUNK, PerformerTile, padded
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def closed_form(w: Workload, schedule: Schedule, tile: PerformerTile) -> list[Form]:
    """What each kernel moves and multiplies; of the schedule only the grid of K'^T V is used."""
    m, causal = tile.features, tile.chunked
    whole = padded(w) if causal else w
    suffix = " padded" if whole.seq_q != w.seq_q else ""
    parts = []
    if suffix:
        for x, width in (
            ("Q", w.heads_q * w.head_dim),
            ("K", w.heads_kv * w.head_dim),
            ("V", w.heads_kv * w.head_dim_v),
        ):
            row = w.batch * width * w.element_bytes
            parts.append(moved(f"pad {x}", [(x, row * w.seq_q)], (f"{x} padded", row * whole.seq_q)))
    for x in "QK":
        parts += _feature_map(x, whole, m, tile.fused, suffix)
    return parts + (_causal(whole, m, suffix) if causal else _full(whole, m, schedule))


def _feature_map(x: str, w: Workload, m: int, fused: bool, suffix: str) -> list[Form]:
    """Eager: 11 times over the features, counting the GEMM's write, and 5 over the array; fused: 3 and 2."""
    e, d = w.element_bytes, w.head_dim
    rows = w.batch * (w.heads_q * w.seq_q if x == "Q" else w.heads_kv * w.seq_kv)
    array, mapped, norm = (f"{x}{suffix}", rows * d * e), (f"{x}'", rows * m * e), (f"{x} norm", rows * e)
    source = array[0] if fused else f"{x} scaled"
    project = product(f"{x}' = {x} W^T", 1, (rows, m, d), (source, "W", mapped[0]), e)
    if fused:
        return [project, moved(f"map {x}'", [mapped, array], mapped, rows * m)]
    square, top = (f"{x} squared", rows * d * e), (f"{x} max", rows * e)
    return [
        moved(f"scale {x}", [array], (f"{x} scaled", rows * d * e)),
        project,
        moved(f"square {x}", [array], square),
        moved(f"sum {x} squared", [square], norm),
        moved(f"halve {x} norm", [norm], norm),
        moved(f"scale {x} norm", [norm], norm),
        moved(f"{x}' - norm", [mapped, norm], mapped),
        moved(f"max {x}'", [mapped], top),
        moved(f"{x}' - max", [mapped, top], mapped),
        moved(f"exp {x}'", [mapped], mapped, rows * m),
        moved(f"{x}' + eps", [mapped], mapped),
        moved(f"{x}' / sqrt m", [mapped], mapped),
    ]


def _full(w: Workload, m: int, schedule: Schedule) -> list[Form]:
    e, dv, heads, kv_heads = w.element_bytes, w.head_dim_v, w.batch * w.heads_q, w.batch * w.heads_kv
    rows = heads * w.seq_q
    sums, totals, out = ("z", kv_heads * m * e), ("D", rows * e), ("O", rows * dv * e)
    return [
        moved("sum K'", [("K'", kv_heads * w.seq_kv * m * e)], sums),
        moved("D = Q' z", [("Q'", rows * m * e)], totals),
        *keys_gemm(schedule, "S = K'^T V", kv_heads, (m, dv, w.seq_kv), ("K'", "V", "S"), e),
        product("O = Q' S", heads, (w.seq_q, dv, m), ("Q'", "S", "O"), e, b_shared_by=w.group),
        moved("O / D", [out, totals], out),
    ]


def _causal(w: Workload, m: int, suffix: str) -> list[Form]:
    """Per chunk of c rows: a state of m dv and weights of c^2, each gone over a fixed number of times."""
    e, dv, c, g = w.element_bytes, w.head_dim_v, CHUNK, w.group
    chunks, kv_chunks = w.batch * w.heads_q * w.seq_q // c, w.batch * w.heads_kv * w.seq_q // c
    rows, v = chunks * c, f"V{suffix}"
    state, sums = kv_chunks * m * dv * e, kv_chunks * m * e
    weights, totals, out = ("A", rows * c * e), ("D", rows * e), ("O", rows * dv * e)
    return [
        product("S = K'^T V", kv_chunks, (m, dv, c), ("K'", v, "S"), e),
        moved("cumulate S", [("S", state)], ("S", state)),
        moved("shift S", [("S", state)], ("S before", state)),
        moved("sum K'", [("K'", kv_chunks * c * m * e)], ("z", sums)),
        moved("cumulate z", [("z", sums)], ("z", sums)),
        moved("shift z", [("z", sums)], ("z before", sums)),
        product("O = Q' S", chunks, (c, dv, m), ("Q'", "S before", "O"), e, b_shared_by=g),
        product("A = Q' K'^T", chunks, (c, c, m), ("Q'", "K'", "A"), e, b_shared_by=g),
        moved("mask A", [weights], weights),
        product("A V", chunks, (c, dv, c), ("A", v, "O within"), e, b_shared_by=g),
        moved("O + A V", [out, ("O within", rows * dv * e)], out),
        moved("sum A", [weights], ("D within", rows * e)),
        moved("D = Q' z", [("Q'", rows * m * e), ("z before", sums)], totals),
        moved("D + sum A", [totals, ("D within", rows * e)], totals),
        moved("O / D", [out, totals], out),
    ]
