"""Branches of native sparse attention as XunhaoLai/native-sparse-attention-triton launches them."""

from __future__ import annotations

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.implementation import Builder, TileRequest, record
from attnsim.models.implementations.selecting import compressed, selected
from attnsim.models.question.selected import compressed_pairs, visible_pairs
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule


def build_selected(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The branch over chosen blocks; the choice is given."""
    tile = selected.choose_tile(w, gpu)
    kernels: list[Kernel] = []
    if "fwd" in w.directions:
        kernels += selected.selected_forward(w, gpu, tile)
    if "bwd" in w.directions:
        kernels += selected.selected_backward(w, gpu, tile)
    useful = w.matrix_flops(w.batch * visible_pairs(selected.chosen(w), w.seq_q))
    memory = flash_peak_bytes(w)
    return Schedule("nsa-selected", "nsa-triton.selected", tuple(kernels), tile, memory, useful_flops=useful)


def _compressed(name: str, scores: bool) -> Builder:
    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        tile = compressed.choose_tile(w, gpu, scores)
        kernels: list[Kernel] = []
        if "fwd" in w.directions:
            kernels += compressed.compressed_forward(w, gpu, tile)
        if "bwd" in w.directions:
            kernels += compressed.compressed_backward(w, tile)
        selection = compressed.compressing(w)
        useful = w.matrix_flops(w.batch * compressed_pairs(selection, w.seq_q))
        score_bytes = w.batch * w.heads_kv * w.seq_q * selection.compressed_keys(w.seq_kv) * 4 if scores else 0
        memory = flash_peak_bytes(compressed.over_compressed(w), score_bytes)
        return Schedule("nsa-compressed", name, tuple(kernels), tile, memory, useful_flops=useful)

    return build


RECORDS = (
    record("nsa-triton.selected", build_selected),
    record("nsa-triton.compressed", _compressed("nsa-triton.compressed", scores=False)),
    record("nsa-triton.compressed-scores", _compressed("nsa-triton.compressed-scores", scores=True)),
)
