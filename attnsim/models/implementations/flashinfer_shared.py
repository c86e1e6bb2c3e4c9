"""FlashInfer's attention of a prefix that all sequences share, and of draft tokens that branch.

Cascade (``flashinfer/cascade.py``, `MultiLevelCascadeAttentionWrapper`): the queries of all sequences attend the shared
prefix as one sequence, each then attends keys of its own, and a kernel merges both states
(``include/flashinfer/attention/cascade.cuh``, `MergeStateInPlaceKernel`). A tree is a custom mask, of which every tile
reads its bits (``include/flashinfer/attention/prefill.cuh``, `MaskMode::kCustom`, `logits_mask`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flashinfer import fa2_tile, merge_states, plan
from attnsim.models.implementations.fused.building import flash_schedule, one_query, override
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.loops import MASK_INSTRUCTIONS
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.mask import Mask
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor
from attnsim.models.schedule.editing import edited, renamed
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import Splits

MASK = "mask bits"
PREFIX_TENSORS = {name: f"{name} prefix" for name in ("K", "V", "O", "LSE", "O partial", "LSE partial")}
"""Names of the tensors of the shared part, beside those of each sequence's own."""


@dataclass(frozen=True, slots=True)
class TreeTile:
    """A tile that reads a custom mask."""

    flash: FlashTile

    @property
    def mask_bytes(self) -> int:
        """Bits of the mask that a visit reads, in bytes."""
        return self.flash.rows * self.flash.keys // 8

    def __str__(self) -> str:
        return f"{self.flash}, custom mask"


@dataclass(frozen=True, slots=True)
class CascadeTile:
    """The tiles of the shared prefix and of what follows it, and the splits of each."""

    prefix: FlashTile
    suffix: FlashTile
    cut_prefix: Splits
    cut_suffix: Splits

    def __str__(self) -> str:
        return f"prefix {self.prefix}; suffix {self.suffix}"


def without_tree(w: Workload) -> Workload:
    """The same with every key visited: the mask is looked at, no tile is left out by it."""
    return replace(w, mask=Mask.full(), tree=None)


def tree(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Attention of draft tokens that branch."""
    whole = without_tree(w)
    tile = TreeTile(override(fa2_tile(whole, gpu), shape, whole, gpu))
    splits = plan(whole, gpu, tile.flash)
    plain = flash_forward(whole, gpu, tile.flash, splits=splits)
    masked = edited(plain, lambda op: op._replace(fp32=op.fp32 + MASK_INSTRUCTIONS * op.scores))
    axes = {"h": Axis(w.heads_q), "bytes": Axis(sum(one.times * -(-one.queries * one.keys // 8) for one in w.parts))}
    bits = Tensor(MASK, "bytes", 1)
    reading = (replace(one, ops=tuple(_reading(bits, tile.mask_bytes, one.ops))) for one in masked.segments)
    kernel = replace(masked, segments=tuple(reading), uses=(*masked.uses, bits.use(axes, "h")))
    kernels = [kernel, *([merge_states(whole, gpu, splits)] if splits.partial else [])]
    schedule = flash_schedule(whole, "flashinfer.tree", kernels, tile, splits)
    return replace(schedule, useful_flops=w.matrix_flops(w.visible_pairs))


def _reading(bits: Tensor, size: int, ops: Iterable[TileOp]) -> Iterator[TileOp]:
    """A step whose scores read their bits of the mask where they are masked (`logits_mask`), once they are there."""
    for op in ops:
        yield op
        if op.tensor == "S":
            yield from (bits.load(size), bits.wait())


def cascaded(w: Workload) -> tuple[Workload, Workload]:
    """The queries of all sequences with the prefix, and each sequence with its own keys."""
    plain = replace(w, prefix=0, page_size=0)
    shared = replace(plain, mask=Mask.full()).of(Length(w.queries, w.prefix))
    return shared, plain.having(Length(one.queries, one.keys - w.prefix, one.times) for one in w.parts)


def _prefixed(kernel: Kernel, name: str) -> Kernel:
    return replace(renamed(kernel, PREFIX_TENSORS), name=name)


def cascade(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The shared prefix once, each sequence's own keys, and the merge of both.

    Raises
    ------
    InputError
        When nothing is shared.
    """
    if not w.prefix:
        raise InputError(f"flashinfer.cascade shares a prefix, the question is {w}; give one, --prefix N")
    shared, own = cascaded(w)
    own = one_query(own)
    first, second = override(fa2_tile(shared, gpu), shape, shared, gpu), override(fa2_tile(own, gpu), shape, own, gpu)
    tile = CascadeTile(first, second, plan(shared, gpu, first), plan(own, gpu, second))
    kernels = [_prefixed(flash_forward(shared, gpu, first, splits=tile.cut_prefix), "prefix")]
    if tile.cut_prefix.partial:
        kernels.append(_prefixed(merge_states(shared, gpu, tile.cut_prefix), "combine prefix"))
    kernels.append(flash_forward(own, gpu, second, "suffix", tile.cut_suffix))
    if tile.cut_suffix.partial:
        kernels.append(merge_states(own, gpu, tile.cut_suffix))
    kernels.append(merge(w))
    schedule = flash_schedule(own, "flashinfer.cascade", kernels, tile, tile.cut_suffix)
    once = w.prefix * w.heads_kv * (w.head_dim + w.head_dim_v) * w.element_bytes
    peak, useful = schedule.peak_memory_bytes + once, w.matrix_flops(w.visible_pairs)
    return replace(schedule, peak_memory_bytes=peak, useful_flops=useful)


def merge(w: Workload) -> Kernel:
    """Both states of every row read, one written (`MergeStateInPlaceKernel`)."""
    rows = w.heads_q * w.queries
    out, sums = rows * w.head_dim_v * w.output_bytes, rows * 4
    accesses = [Access("O", out), Access("O prefix", out), Access("LSE", sums), Access("LSE prefix", sums)]
    return streaming("merge", [*accesses, Access("O merged", out, True)], elements=rows * w.head_dim_v)


RECORDS = (record("flashinfer.tree", tree), record("flashinfer.cascade", cascade))
