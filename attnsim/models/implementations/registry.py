"""Registry of all implementations, one record each; and the checks of their limits.

Each file of this folder has the tiles and the builders of one library or project. The TOML file of the same name has
the facts about each implementation; nothing is fitted.

A window given to a fused kernel as a mask tensor: every pair is computed, and the mask is added to each score.

PyTorch's SDPA has no window: its `attn_mask` is a tensor of queries and keys, which all heads and sequences share here.
The memory-efficient kernel adds a tile of it to the scores (``mem_eff_attention/kernel_forward.h``, `BiasLoader`),
cuDNN takes it as the graph's bias (pytorch/pytorch pull 130482). Making the tensor is not included, nor is the
conversion of a boolean one.

Calls that choose among implementations: the choice for a workload, a GPU and a version.

PyTorch: ``sdpa.csv``, after ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` (`priority_order`,
`select_sdp_backend`). Transformer Engine: ``transformer_engine/pytorch/attention/dot_product_attention/utils.py``
(`get_attention_backend`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from attnsim.errors import InputError, some
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import (
    cudnn,
    flash_attention,
    flash_attention_4,
    flash_attention_sparse,
    flash_attention_varlen,
    flash_mask,
    flashinfer,
    flex,
    natten,
    serving,
    triton,
    trtllm,
    xformers,
)
from attnsim.models.implementations.frameworks import gather, naive
from attnsim.models.implementations.frameworks import linear as linear_in_keys
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.implementation import (
    Builder,
    Implementation,
    Picks,
    TileRequest,
    facts,
    record,
)
from attnsim.models.implementations.latent import records as latent
from attnsim.models.implementations.linear import convolution, fla, gated_delta, kda, ssd
from attnsim.models.implementations.names import in_bounds, span
from attnsim.models.implementations.options import check_operations, check_options, surrounded, with_options
from attnsim.models.implementations.own import backward, decode, flash, hopper, linear, sparse
from attnsim.models.implementations.own import naive as own_naive
from attnsim.models.implementations.selecting import dsa, flash_nsa, moba, nsa_decode, nsa_triton
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import LARGEST, Workload
from attnsim.models.schedule.axes import Axis, Tensor, uses_of
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.tables import read_csv

TENSOR = "mask"
LANES = 32
NOTE = "the window is a mask tensor: every pair is computed, and the mask is read for every head"


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


NEWEST = "2.13"
"""Default version of PyTorch: the newest with a measured table here."""


@dataclass(frozen=True, slots=True)
class BackEnd:
    """A line of ``sdpa.csv``: the questions that a back end of PyTorch's SDPA accepts."""

    implementation: str
    bounds: tuple[str, ...]
    on: tuple[int, int]
    dtypes: tuple[str, ...]
    widths: str
    aligned: int
    masked: bool
    grouped: bool
    passes: tuple[str, ...]

    def takes(self, w: Workload, gpu: Gpu, version: str) -> bool:
        """Return whether it accepts this call; a window that hides any key counts as a mask tensor."""
        low, high = self.on
        return (
            in_bounds(version, self.bounds)
            and low <= gpu.compute_capability_number <= high
            and w.dtype in (self.dtypes or (w.dtype,))
            and w.passes in (self.passes or (w.passes,))
            and self._fits(w)
            and (self.masked or not (w.bounded().mask.is_windowed or not w.mask.is_band))
            and (self.grouped or w.heads_q == w.heads_kv)
        )

    def _fits(self, w: Workload) -> bool:
        widths = (w.head_dim, w.head_dim_v)
        if any(width * w.element_bytes % self.aligned for width in widths):
            return False
        if "x" in self.widths:
            return self.widths == f"{w.head_dim}x{w.head_dim_v}"
        least, most = span(self.widths.split()[0], LARGEST["head_dim"])
        return least <= min(widths) and max(widths) <= most and ("equal" not in self.widths or len({*widths}) == 1)


def _back_end(row: dict[str, str]) -> BackEnd:
    bounds, dtypes, passes = (tuple(row[name].split()) for name in ("versions", "dtypes", "passes"))
    yes = (row["masked"] == "yes", row["grouped"] == "yes")
    return BackEnd(
        row["implementation"], bounds, span(row["on"]), dtypes, row["widths"], int(row["aligned"]), *yes, passes
    )


BACK_ENDS = tuple(map(_back_end, read_csv(Path(__file__).with_name("sdpa.csv"))))


def sdpa(w: Workload, gpu: Gpu, version: str) -> str:
    """Back end that PyTorch's SDPA chooses; by default for the newest version."""
    return next(one.implementation for one in BACK_ENDS if one.takes(w, gpu, version or NEWEST))


def transformers_sdpa(w: Workload, gpu: Gpu, version: str) -> str:
    """Back end when transformers calls SDPA: with a mask tensor it repeats K and V first (`use_gqa_in_sdpa`)."""
    return sdpa(replace(w, heads_kv=w.heads_q) if w.bounded().mask.is_windowed else w, gpu, version)


def transformer_engine(w: Workload, gpu: Gpu, version: str) -> str:
    """Transformer Engine: FlashAttention-2 before Hopper, cuDNN from there on."""
    return "transformer-engine.cudnn" if gpu.compute_capability_number >= 90 else "transformer-engine.flash"


CALLS: dict[str, Picks] = {
    "torch.sdpa": sdpa,
    "transformers.sdpa": transformers_sdpa,
    "transformer-engine.attention": transformer_engine,
}
"""Choosing functions by the names of their calls."""


LIBRARIES = (
    *(naive, gather),
    *(flash_attention, flash_attention_varlen, flash_attention_4, flash_attention_sparse, serving),
    *(cudnn, trtllm, triton, xformers, flex, flash_mask, natten, flashinfer),
    latent,
    *(nsa_triton, nsa_decode, flash_nsa, dsa, moba),
    *(gated_delta, kda, fla, ssd, convolution),
)
"""Imitated libraries, a file for each."""

OWN_KERNELS: tuple[Implementation, ...] = (
    *own_naive.RECORDS,
    *(one.RECORD for one in (decode, sparse, flash, hopper)),
    flash.SIGMOID_RECORD,
    *(one.RECORD for one in (backward, linear)),
)
"""The schedules of the CUDA kernels in :mod:`attnsim.kernels`."""


def normalising(record: Implementation) -> Builder:
    """The record's builder with masks and tiles checked; limits never reached are dropped unless it asks for them."""

    def normalised(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_mask(record, w)
        check_lengths(record, w)
        check_options(record, w)
        check_operations(record, w)
        if shape is not None and not record.tunable:
            raise InputError(f"{record.name} takes no tile of queries x keys; leave --tile out")
        asked = w if record.sees_window else w.bounded()
        return surrounded(record, asked, with_options(record, asked, record.build(asked, gpu, shape)))

    return normalised


def _some(names: Iterable[str]) -> str:
    return some(names, "attnsim implementations")


def check_mask(record: Implementation, w: Workload) -> None:
    """Refuse a mask with patterns if the implementation plays none."""
    if not (w.mask.is_band or record.patterns):
        raise InputError(
            f"{record.name} plays diagonal bands only, the mask is {w.mask}; take attnsim.sparse (--algorithm sparse)"
        )


def check_lengths(record: Implementation, w: Workload) -> None:
    """Refuse lengths, pages, prefixes, trees and selections that an implementation does not play."""
    for plays, given, reason in (
        ("prefixes", w.prefix, f"knows no prefix, it is {w.prefix}"),
        ("trees", w.tree, f"knows no tree, it is {w.tree}"),
        ("selects", w.selection, f"selects no keys, the selection is {w.selection}"),
    ):
        if given and not getattr(record, plays):
            able = _some(one.name for one in IMPLEMENTATIONS.values() if getattr(one, plays))
            raise InputError(f"{record.name} {reason}; leave it out, or take {able}")
    check_pages(record, w.page_size or None)
    if w.lengths and not record.lengths:
        able = _some(one.name for one in IMPLEMENTATIONS.values() if one.lengths and not one.launches)
        raise InputError(
            f"{record.name} takes sequences of one length; padded they are batch {w.batch}, seq "
            f"{w.seq_q}, kv {w.seq_kv}; ask that, or take one of {able}"
        )


def _launching(name: str) -> Implementation:
    """Record of an implementation that launches another's kernels; its own facts are in its TOML file."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        asked = replace(w, sinks=False, softcap=0.0)  # it may support them even if the other does not
        masked = one.masks and w.bounded().mask.is_windowed
        # The question that the kernel computes: without its mask.
        asked = replace(asked, mask=Mask.full()) if masked else asked
        schedule = replace(IMPLEMENTATIONS[one.launches].build(asked, gpu, shape), implementation=name)
        return with_mask_tensor(schedule, w) if masked else schedule

    def peak_bytes(w: Workload) -> int:
        return (IMPLEMENTATIONS[one.launches].peak_bytes or flash_peak_bytes)(w)

    one = record(name, build, peak_bytes=peak_bytes)
    return one


def _picking(name: str, picks: Picks) -> Implementation:
    """Record of a call that chooses among implementations."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        return IMPLEMENTATIONS[picks(w, gpu, "")].build(w, gpu, shape)

    return record(name, build, picks=picks)


IMPLEMENTATIONS: dict[str, Implementation] = {
    known.name: replace(known, build=normalising(known))
    for known in (
        *(one for library in LIBRARIES for one in library.RECORDS),
        *OWN_KERNELS,
        *(linear_in_keys.RECORDS + gather.WINDOW_RECORDS),
        *(_launching(name) for name, given in facts().items() if "launches" in given),
        *(_picking(name, picks) for name, picks in CALLS.items()),
    )
}


def check_pages(record: Implementation, page_size: int | None) -> None:
    """Refuse a page size that an implementation does not support."""
    if page_size is None:
        return
    if not record.pages:
        able = _some(one.name for one in IMPLEMENTATIONS.values() if one.pages and not one.form)
        raise InputError(f"page_size is {page_size}, {record.name} has no page table; leave it empty, or take {able}")
    if not record.takes_pages_of(page_size):
        raise InputError(f"page_size is {page_size}; {record.name} takes pages of {record.pages_text} keys")


def runs_on(record: Implementation, gpu: Gpu) -> bool:
    """Return whether an implementation has kernels for the GPU whose instructions a schedule here plays."""
    low, high = record.compute_capability
    return low <= gpu.compute_capability_number <= high and unplayed(record, gpu) is None


def unplayed(record: Implementation, gpu: Gpu) -> str | None:
    """The instructions that an implementation uses on the GPU but no schedule here plays; None if there are none."""
    return next((feature for feature in record.unplayed if getattr(gpu.features, feature)), None)
