"""A fused kernel with some of its tile operations replaced: what closed kernels do otherwise than FlashAttention's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Segment, TileOp


def edited(kernel: Kernel, edit: Callable[[TileOp], TileOp]) -> Kernel:
    """The kernel with every operation passed through `edit`."""
    segments = tuple(Segment(segment.name, tuple(map(edit, segment.ops))) for segment in kernel.segments)
    return replace(kernel, segments=segments)


def compiled_width(width: int) -> int:
    """The head_dim that TensorRT-LLM's own kernels are compiled for: 32, 64, 128, and multiples of 64 beyond."""
    return -(-width // 64) * 64 if width > 128 else max(32, 1 << (width - 1).bit_length())


def widened(w: Workload) -> Workload:
    """The workload at the widths that TensorRT-LLM's own kernels compute with."""
    return replace(w, head_dim=compiled_width(w.head_dim), head_dim_v=compiled_width(w.head_dim_v))


def valid_bytes(kernel: Kernel, w: Workload) -> Kernel:
    """A kernel built for `widened(w)`, copying only the columns that `w` has: copies are predicated."""
    wide = widened(w)
    if (wide.head_dim, wide.head_dim_v) == (w.head_dim, w.head_dim_v):
        return kernel

    def narrow(tensor: str, size: int) -> int:
        return narrowed(tensor, size, w)

    uses = tuple(replace(use, piece_bytes=narrow(use.tensor, use.piece_bytes)) for use in kernel.uses)
    edit = edited(kernel, lambda op: op._replace(bytes=narrow(op.tensor, op.bytes)) if op.bytes else op)
    return replace(edit, uses=uses)


def narrowed(tensor: str, size: int, w: Workload) -> int:
    """Bytes of `size` that are left of a tensor at the widths of `w` instead of those of `widened(w)`."""
    if tensor in ("Q", "K"):
        return size * w.head_dim // compiled_width(w.head_dim)
    if tensor in ("V", "O", "O partial"):
        return size * w.head_dim_v // compiled_width(w.head_dim_v)
    return size
