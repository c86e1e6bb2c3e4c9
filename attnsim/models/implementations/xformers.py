"""The memory-efficient kernels of PyTorch and xformers (cutlass): ``generate_kernels.py``, December 2024."""

from __future__ import annotations

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import counted
from attnsim.models.implementations.fused.building import fitting, one_kernel_each_way
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.implementation import record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import bytes_of
from attnsim.models.schedule.widths import padded

REGISTERS = by_hand(128, "registers a thread of the memory-efficient kernels")
SMALL_BACKWARD_REGISTERS = by_hand(168, "registers a thread of the memory-efficient backward with tiles of 64 x 64")


def choose_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """PyTorch's and xformers' memory-efficient kernel (cutlass), with fewer keys where shared memory is short."""
    d = max(w.head_dim, w.head_dim_v)
    if d <= 64:
        return FlashTile(64, 64, warps=4, registers=REGISTERS, p_in_smem=True)
    if d <= 128:
        return fitting(FlashTile(64, 128, warps=8, warpgroups=2, registers=REGISTERS, p_in_smem=True), w, gpu)
    return fitting(FlashTile(32, 128, warps=4, registers=REGISTERS, p_in_smem=True), w, gpu)


def choose_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """The memory-efficient kernel's backward."""
    d = max(w.head_dim, w.head_dim_v)
    if d <= 64:
        return BackwardTile(64, 64, warps=4, stages_q=1, registers=SMALL_BACKWARD_REGISTERS)
    tile = BackwardTile(128, 128, warps=16, stages_q=1, registers=REGISTERS)
    fits = bytes_of(tile.buffers(padded(d), padded(d), w.element_bytes)) <= gpu.sm.shared_memory_per_block_bytes
    return tile if d <= 128 and fits else BackwardTile(64, 64, warps=4, stages_q=1, registers=SMALL_BACKWARD_REGISTERS)


NAME = "xformers.cutlass"
RECORDS = (
    record(
        NAME,
        one_kernel_each_way(
            NAME,
            lambda w, gpu: counted(choose_tile(w, gpu), NAME, w, gpu),
            lambda w, gpu: counted(choose_backward(w, gpu), NAME, w, gpu),
        ),
    ),
)
