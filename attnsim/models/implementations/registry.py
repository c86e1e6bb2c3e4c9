"""Registry of all implementations, one record each; and the checks of their limits.

Each file of this folder has the tiles and the builders of one library or project. The TOML file of the same name has
the facts about each implementation; nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

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
    flex_mask,
    natten,
    serving,
    triton,
    trtllm,
    xformers,
)
from attnsim.models.implementations.frameworks import (
    efficient,
    gather,
    linformer,
    mask_tensor,
    performer,
    picking,
    pytorch,
    window_gather,
)
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
from attnsim.models.implementations.options import check_options, with_options
from attnsim.models.implementations.own import backward, decode, flash, hopper, linear, naive, sigmoid, sparse
from attnsim.models.implementations.selecting import dsa, flash_nsa, moba, nsa_decode, nsa_triton
from attnsim.models.implementations.surrounding import check_operations, surrounded
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

LIBRARIES = (
    *(pytorch, gather),
    *(flash_attention, flash_attention_varlen, flash_attention_4, flash_attention_sparse, serving),
    *(cudnn, trtllm, triton, xformers, flex, flex_mask, flash_mask, natten, flashinfer),
    latent,
    *(nsa_triton, nsa_decode, flash_nsa, dsa, moba),
    *(gated_delta, kda, fla, ssd, convolution),
)
"""Imitated libraries, a file for each."""

OWN_KERNELS: tuple[Implementation, ...] = (
    *naive.RECORDS,
    *(one.RECORD for one in (decode, sparse, flash, hopper, sigmoid, backward, linear)),
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
        asked = mask_tensor.without_mask(asked) if masked else asked
        schedule = replace(IMPLEMENTATIONS[one.launches].build(asked, gpu, shape), implementation=name)
        return mask_tensor.with_mask_tensor(schedule, w) if masked else schedule

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
        *(performer.RECORDS + linformer.RECORDS + efficient.RECORDS + window_gather.RECORDS),
        *(_launching(name) for name, given in facts().items() if "launches" in given),
        *(_picking(name, picks) for name, picks in picking.CALLS.items()),
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
