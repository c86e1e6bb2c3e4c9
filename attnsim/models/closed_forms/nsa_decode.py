"""Closed form of a step of decoding with native sparse attention (arXiv 2502.11089): PyTorch's passes, two kernels."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, gemm, load, store, transfer
from attnsim.models.closed_forms.selecting import forward_over
from attnsim.models.implementations.selecting.nsa_decode import WINDOW_KEYS, DecodeTile
from attnsim.models.implementations.selecting.top_k import FOUND_BYTES, PASSES
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

_Pass = tuple[list[tuple[str, int]], list[tuple[str, int]]]


def closed_form(w: Workload, schedule: Schedule, tile: DecodeTile) -> list[Form]:
    """Of ``n`` keys the ``n / step`` compressed ones are read, `top` blocks, and the window."""
    assert w.selection is not None
    s = w.selection
    passes = _attention(w, s) | _choice(w, s) | _outputs(w)
    named = {form.kernel: form for form in (*_products(w, s), _chosen(w, s, tile), _window(w, s, tile), _best(w, s))}
    found = []
    for kernel in schedule.kernels:
        name = kernel.name
        exps = w.batch * w.heads_q * s.compressed_keys(w.seq_kv) if name == "softmax" else 0
        found.append(named[name] if name in named else transfer(name, *passes[name], exps))
    return found


def _copied(w: Workload) -> str:
    return " by head" if w.batch > 1 else ""


def _products(w: Workload, s: Selection) -> tuple[Form, Form]:
    keys, heads, e, copied = s.compressed_keys(w.seq_kv), w.batch * w.heads_kv, w.element_bytes, _copied(w)
    k, v = f"K compressed{copied}", f"V compressed{copied}"
    return (
        gemm("compressed scores", heads, (w.group, keys, w.head_dim), ("Q", k, "scores"), (e, e, e)),
        gemm("compressed output", heads, (w.group, w.head_dim_v, keys), ("P", v, "O compressed"), (e, e, e)),
    )


def _attention(w: Workload, s: Selection) -> dict[str, _Pass]:
    keys, e, copied = s.compressed_keys(w.seq_kv), w.element_bytes, _copied(w)
    scores, absent, kept = w.batch * w.heads_q * keys, w.batch * keys, w.batch * w.heads_kv * keys * e
    return {
        "compare lengths": ([], [("absent", absent)]),
        "K by head": (
            [("K compressed", kept * w.head_dim)], [(f"K compressed{copied}", kept * w.head_dim)],
        ),
        "V by head": (
            [("V compressed", kept * w.head_dim_v)], [(f"V compressed{copied}", kept * w.head_dim_v)],
        ),
        "scale": ([("scores", scores * e)], [("scores", scores * e)]),
        "hide absent": ([("scores", scores * e), ("absent", absent)], [("scores", scores * e)]),
        "softmax": ([("scores", scores * e)], [("weights", scores * 4)]),
        "no number": ([("weights", scores * 4)], [("weights", scores * 4)]),
        "to 16 bits": ([("weights", scores * 4)], [("P", scores * e)]),
    }  # fmt: skip


def _choice(w: Workload, s: Selection) -> dict[str, _Pass]:
    rows, keys, blocks = w.batch * w.heads_kv, s.compressed_keys(w.seq_kv), s.blocks(w.seq_kv)
    around = 2 * (-(-s.compress // s.step) - 1)
    summed, whole, found = rows * blocks * 4, rows * (w.seq_kv // s.block) * 4, rows * min(s.top, blocks)
    score, wider = ("score", rows * keys * 4), ("score padded", rows * (keys + around) * 4)
    scores, part = ("block scores", summed), ("part", whole)
    each: dict[str, _Pass] = {}
    for place in range(max(1, s.block // s.step) + -(-s.compress // s.step) - 1):
        each[f"times {place}"] = [("score padded", whole)], [part]
        each[f"add {place}"] = [part, ("block scores", whole)], [("block scores", whole)]
    return each | {
        "sum heads": ([("weights", w.batch * w.heads_q * keys * 4)], [score]),
        "pad": ([score], [wider]),
        "clear block scores": ([], [scores]),
        "first blocks": ([], [("block scores", rows * 4)]),
        "local blocks": ([("local", rows * blocks)], [scores]),
        "no score": ([scores], [scores]),
        "sort values": ([("found", found * FOUND_BYTES)], [("found", found * FOUND_BYTES)]),
        "sort places": ([("found", found * FOUND_BYTES)], [("found", found * FOUND_BYTES)]),
        "future": ([("found", found * 8)], [("is future", found)]),
        "drop": ([("found", found * 8)], [("found", found * 8)]),
        "to int32": ([("found", found * 8)], [("selected", found * 4)]),
    }


def _best(w: Workload, s: Selection) -> Form:
    rows, blocks = w.batch * w.heads_kv, s.blocks(w.seq_kv)
    summed, found = rows * blocks * 4, rows * min(s.top, blocks) * FOUND_BYTES
    return Form("top-k", (load("block scores", PASSES * summed, summed), store("found", found)))


def _outputs(w: Workload) -> dict[str, _Pass]:
    out, gates = w.batch * w.heads_q * w.head_dim_v * w.output_bytes, w.batch * w.heads_q * w.element_bytes
    passes: dict[str, _Pass] = {
        f"gate {x}": ([(x, out), ("gates", gates)], [(f"{x} gated", out)]) for x in ("O compressed", "O", "O window")
    }
    return passes | {
        "clear O": ([], [("O", out)]),
        "clear O window": ([], [("O window", out)]),
        "add chosen": ([("O compressed gated", out), ("O gated", out)], [("two", out)]),
        "add window": ([("two", out), ("O window gated", out)], [("O combined", out)]),
    }


def _chosen(w: Workload, s: Selection, tile: DecodeTile) -> Form:
    t, e = tile.chosen, w.element_bytes
    steps, heads = w.batch * w.heads_kv * min(s.top, s.blocks(w.seq_kv)), w.batch * w.heads_q
    moved = (
        load("Q", heads * w.head_dim * e),
        load("K", steps * t.keys * w.head_dim * e),
        load("V", steps * t.keys * w.head_dim_v * e),
        load("selected", steps * 4),
        store("O", heads * w.head_dim_v * w.output_bytes),
    )
    return forward_over("selected_decode", w, t, steps, moved)


def _window(w: Workload, s: Selection, tile: DecodeTile) -> Form:
    """Each query head reads K and V of its group; blocks of `together` sequences go over `WINDOW_KEYS` keys a step."""
    keys, heads, e = min(s.window, w.seq_kv), w.batch * w.heads_q, w.element_bytes
    steps = -(-w.batch // tile.together) * w.heads_q * -(-keys // WINDOW_KEYS)
    kept = w.batch * w.heads_kv * keys * e
    return Form(
        "window_decode",
        (
            load("Q", heads * w.head_dim * e),
            load("K window", heads * keys * w.head_dim * e, kept * w.head_dim),
            load("V window", heads * keys * w.head_dim_v * e, kept * w.head_dim_v),
            store("O window", heads * w.head_dim_v * w.output_bytes),
        ),
        exponentials=steps * tile.together * (WINDOW_KEYS + 1),
    )
