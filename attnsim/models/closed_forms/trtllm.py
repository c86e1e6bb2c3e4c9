"""Closed forms of the schedules of :mod:`attnsim.models.implementations.trtllm`."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.closed_forms.form import Form, around_fused, combine, load, transfer
from attnsim.models.closed_forms.fused import forward
from attnsim.models.implementations import trtllm_tiles
from attnsim.models.implementations.fused.last_block import ROUND_TRIPS
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.trtllm import PREPARE, PREPROCESS, PackedTile
from attnsim.models.implementations.trtllm_masked import NAME as MASKED
from attnsim.models.implementations.trtllm_masked import within_window
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import Splits


def closed_form(w: Workload, schedule: Schedule, packed: PackedTile) -> list[Form]:
    """Closed form of each kernel; of the schedule only names, tile and splits are used."""
    return [_part(w, kernel, packed.tile, schedule.splits) for kernel in schedule.kernels]


def _part(w: Workload, kernel: Kernel, tile: FlashTile, splits: Splits) -> Form:
    if kernel.role == "attention":
        return _attention(w, tile, splits, kernel)
    match kernel.name:
        case "decoder_info":
            return transfer(PREPARE, [("lengths", 8 * w.batch)], [("tokens", 8 * w.batch * w.seq_q)])
        case "qkv_preprocessing":
            return _preprocessing(w)
    part = around_fused(kernel.name, w, splits.count)
    assert part is not None, kernel.name
    return part


def _preprocessing(w: Workload) -> Form:
    e, tokens = w.element_bytes, w.new_tokens
    q = w.batch * w.seq_q * w.heads_q * w.head_dim * e
    k, v = (tokens * w.heads_kv * width * e for width in (w.head_dim, w.head_dim_v))
    new = "" if w.passes == "fwd" else "new "
    return transfer(PREPROCESS, [("QKV", q + k + v)], [("Q", q), (f"{new}K", k), (f"{new}V", v)])


def _attention(w: Workload, tile: FlashTile, splits: Splits, kernel: Kernel) -> Form:
    """The attention kernel, in a generation step without the keys before a window, and the merge of its last blocks."""
    whole = w
    if w.passes == "decode":
        steps = {"mma_sync": trtllm_tiles.XQA_TILE, "simt": 1}
        w = within_window(w, steps.get(kernel.path, tile.keys))
    part = forward(w, tile, splits, kernel.name, lse=False)
    if splits.partial:
        merge = combine(kernel.name, whole, splits.count)
        heads, rows = (w.heads_kv, w.seq_q * w.group) if tile.pack_gqa else (w.heads_q, w.seq_q)
        groups = w.batch * heads * -(-rows // tile.rows)
        counted = load("semaphores", 4 * ROUND_TRIPS * groups * splits.count, 0)
        moved = (*part.moved, counted, *merge.moved)
        part = replace(part, moved=moved, exponentials=part.exponentials + merge.exponentials)
    return replace(part, flops=0, smem_bytes=0) if kernel.name == MASKED else part
