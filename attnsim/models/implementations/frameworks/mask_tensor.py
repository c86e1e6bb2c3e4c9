"""A window given to a fused kernel as a mask tensor: every pair is computed, and the mask is added to each score.

PyTorch's SDPA has no window: its `attn_mask` is a tensor of queries and keys, which all heads and sequences share here.
The memory-efficient kernel adds a tile of it to the scores (``mem_eff_attention/kernel_forward.h``, `BiasLoader`),
cuDNN takes it as the graph's bias (pytorch/pytorch pull 130482). Making the tensor is not included, nor is the
conversion of a boolean one.
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, uses_of
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Schedule

TENSOR = "mask"
LANES = 32
NOTE = "the window is a mask tensor: every pair is computed, and the mask is read for every head"


def without_mask(w: Workload) -> Workload:
    """The question that the kernel computes: without its mask."""
    return replace(w, mask=Mask.full())


def with_mask_tensor(schedule: Schedule, w: Workload) -> Schedule:
    """The schedule of all pairs, with the mask read and added."""
    size = w.seq_q * w.seq_kv * w.element_bytes
    return replace(
        schedule,
        algorithm="sliding-window",
        kernels=tuple(_biased(kernel, w) for kernel in schedule.kernels),
        peak_memory_bytes=schedule.peak_memory_bytes + size,
        notes=(*schedule.notes, NOTE),
        useful_flops=w.matrix_flops(w.visible_pairs),
    )


def _biased(kernel: Kernel, w: Workload) -> Kernel:
    """A kernel that reads a tile of the mask with each tile of scores; unchanged if it computes no scores."""
    segments = tuple(_read(one, kernel.warpgroups * w.element_bytes) for one in kernel.segments)
    if segments == kernel.segments:
        return kernel
    tiles = max(1, kernel.blocks // (w.batch * w.heads_q))
    axes = {"heads": Axis(w.batch * w.heads_q), "i": Axis(w.seq_q, -(-w.seq_q // tiles)), "j": Axis(w.seq_kv)}
    uses = uses_of([Tensor(TENSOR, "i j", w.element_bytes)], axes, "heads i")
    return replace(kernel, segments=segments, uses=(*kernel.uses, *uses))


def _read(segment: Segment, each: int) -> Segment:
    """A segment that first copies as many elements of the mask as it has scores, and adds them."""
    place = next((at for at, op in enumerate(segment.ops) if op.scores), None)
    if place is None:
        return segment
    op = segment.ops[place]
    added = TileOp("vector", TENSOR, fp32=op.scores, issues=op.scores // LANES * (op.issues > 0))
    copy = TileOp("load", TENSOR, bytes=op.scores * each)
    return replace(segment, ops=(copy, *segment.ops[:place], TileOp("wait", TENSOR), added, *segment.ops[place:]))
