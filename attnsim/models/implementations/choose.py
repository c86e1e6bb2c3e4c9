"""The implementations that can be imitated, found by name.

A name stands for the code behind a column of measurements. Each file of this folder has the tiles, the builders and the
records of one library or project; nothing here is fitted.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import (
    cudnn,
    flash_attention,
    flash_attention_4,
    serving,
    triton,
    trtllm,
    xformers,
)
from attnsim.models.implementations.frameworks import efficient, linformer, performer, pytorch, transformers
from attnsim.models.implementations.implementation import Builder, Implementation, Shape, sizing
from attnsim.models.implementations.latent import records as latent
from attnsim.models.implementations.own import backward, decode, flash, hopper, linear, naive, sparse
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

OWN_KERNELS: tuple[Implementation, ...] = (
    *naive.RECORDS,
    *(one.RECORD for one in (decode, sparse, flash, hopper, backward, linear)),
)
"""The schedules of the CUDA kernels in :mod:`attnsim.kernels`."""


def _normalising(record: Implementation) -> Builder:
    """The record's builder for masks that it plays, without limits that are never reached unless it asks for them."""

    def normalised(w: Workload, gpu: Gpu, shape: Shape | None) -> Schedule:
        check_mask(record, w)
        if record.sees_window:
            return record.build(w, gpu, shape)
        return record.build(w.bounded(), gpu, shape)

    return normalised


def check_mask(record: Implementation, w: Workload) -> None:
    """Refuse patterns in the mask of an implementation that plays none.

    Raises
    ------
    InputError
    """
    if not (w.mask.is_band or record.patterns):
        raise InputError(
            f"{record.name} plays diagonal bands only, the mask is {w.mask}; take attnsim_sparse (--algorithm sparse)"
        )


IMPLEMENTATIONS: dict[str, Implementation] = {
    record.name: replace(record, build=_normalising(record))
    for record in (
        *(pytorch.RECORDS + transformers.RECORDS),
        *(flash_attention.RECORDS + flash_attention_4.RECORDS + serving.RECORDS),
        *(cudnn.RECORDS + trtllm.RECORDS + triton.RECORDS + xformers.RECORDS),
        *latent.RECORDS,
        *OWN_KERNELS,
        *(performer.RECORDS + linformer.RECORDS + efficient.RECORDS),
    )
}


def find_implementation(name: str) -> Implementation:
    """The record behind a name or alias; ``NAME@N`` is its twin with N features or projected keys.

    Raises
    ------
    InputError
        Naming the nearest known names.
    """
    key = name.strip().lower()
    if "@" in key:
        return _sized(key)
    if key in IMPLEMENTATIONS:
        return IMPLEMENTATIONS[key]
    for record in IMPLEMENTATIONS.values():
        for alias in record.aliases:
            if key == alias or (alias.endswith("*") and key.startswith(alias[:-1])):
                return record
    names = [
        *IMPLEMENTATIONS,
        *(a for r in IMPLEMENTATIONS.values() for a in r.aliases if not a.endswith("*")),
    ]
    near = difflib.get_close_matches(key, names, 3, 0.4) or sorted(IMPLEMENTATIONS)
    raise InputError(f"implementation {name!r} is not known; nearest: {', '.join(near)}; see `attnsim algorithms`")


def _sized(name: str) -> Implementation:
    base, _, number = name.partition("@")
    record = find_implementation(base)
    if record.sized is None:
        able = ", ".join(f"{one.name}@N" for one in IMPLEMENTATIONS.values() if one.sized)
        raise InputError(f"{record.name} has no number to choose, {name!r} gives one; those that have: {able}")
    twin = record.sized(sizing(number, name))
    return replace(twin, build=_normalising(twin))


def runs_on(record: Implementation, gpu: Gpu) -> bool:
    """Whether an implementation has kernels for the GPU."""
    low, high = record.compute_capability
    return low <= gpu.compute_capability_number <= high
