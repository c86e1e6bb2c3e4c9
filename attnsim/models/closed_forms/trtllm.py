"""Closed forms of the schedules of :mod:`attnsim.models.implementations.trtllm`."""

from __future__ import annotations

import re
from dataclasses import replace

from attnsim.models.closed_forms import part as cost_parts
from attnsim.models.closed_forms.fused import Tiling, forward
from attnsim.models.closed_forms.part import Part, load, store
from attnsim.models.implementations import trtllm_tiles
from attnsim.models.implementations.fused.edits import narrowed, widened
from attnsim.models.implementations.trtllm import MAIN, MASKED, PREPARE, PREPROCESS, new_tokens, within_window
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule


def closed_form(w: Workload, schedule: Schedule) -> list[Part]:
    """Closed form of each kernel; of the schedule only names, tile and grid are used."""
    main = next(kernel for kernel in schedule.kernels if kernel.name in (MAIN, MASKED))
    tiling = _tiling(w, schedule, main)
    parts = []
    for kernel in schedule.kernels:
        match kernel.name:
            case "decoder_info":
                parts.append(Part(PREPARE, (load("lengths", 8 * w.batch), store("tokens", 8 * w.batch * w.seq_q))))
            case "qkv_preprocessing":
                parts.append(_preprocessing(w))
            case "flash_fwd" | "masked_attention":
                parts.append(_attention(w, tiling, kernel))
            case name:
                helper = cost_parts.helper(name, w, tiling.splits)
                assert helper is not None, name
                parts.append(helper)
    return parts


def _preprocessing(w: Workload) -> Part:
    e, tokens = w.element_bytes, new_tokens(w)
    q = w.batch * w.seq_q * w.heads_q * w.head_dim * e
    k, v = (tokens * w.heads_kv * width * e for width in (w.head_dim, w.head_dim_v))
    new = "" if w.passes == "fwd" else "new "
    return Part(PREPROCESS, (load("QKV", q + k + v), store("Q", q), store(f"{new}K", k), store(f"{new}V", v)))


def _tiling(w: Workload, schedule: Schedule, kernel: Kernel) -> Tiling:
    found = re.match(r"(\d+) x (\d+), (\d+) warps", schedule.tile)
    assert found is not None, schedule.tile
    rows, keys, warps = map(int, found.groups())
    pack = w.group if "GQA packed" in schedule.tile else 1
    blocks = -(-w.seq_q * pack // rows) * (w.batch * w.heads_q // pack)
    path = "wgmma" if w.passes == "decode" else kernel.path  # XQA's warps read a tile once, all of them together
    return Tiling(rows, keys, pack, kernel.blocks // blocks, warps, kernel.warpgroups, path)


def _attention(w: Workload, tiling: Tiling, kernel: Kernel) -> Part:
    """The attention kernel at the widths that it is compiled for, copying those that there are."""
    seen = w
    if w.passes == "decode":
        seen = within_window(w, trtllm_tiles.XQA_TILE if kernel.path == "mma_sync" else tiling.keys)
    if kernel.path == "tcgen05":
        return forward(seen, tiling, kernel.name, lse=False)
    part = forward(widened(seen), tiling, kernel.name, lse=False)
    moved = tuple(
        replace(
            item,
            requested_bytes=narrowed(item.tensor, item.requested_bytes, w),
            unique_bytes=narrowed(item.tensor, item.unique_bytes, w),
        )
        for item in part.moved
    )
    part = replace(part, moved=moved)
    return replace(part, flops=0, smem_bytes=0) if kernel.name == MASKED else part
