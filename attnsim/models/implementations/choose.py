"""The implementations that can be imitated, and which one a question gets: find, refuse, default.

A name stands for the code behind a column of measurements. Each file of this folder has the tiles, the builders and the
records of one library or project; nothing here is fitted.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import lru_cache

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
from attnsim.models.implementations.implementation import Builder, Implementation, Shape
from attnsim.models.implementations.latent import records as latent
from attnsim.models.implementations.own import backward, decode, flash, hopper, linear, naive, sparse
from attnsim.models.mechanisms import find_mechanism, sizing
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import occupancy
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


def check_runs(record: Implementation, w: Workload, gpu: Gpu) -> None:
    """Refuse an implementation or a number format that the GPU cannot run, naming the nearest that it can.

    Raises
    ------
    InputError
    """
    if not gpu.supports_dtype(w.dtype):
        able = [dtype for dtype in ("fp16", "bf16", "fp8", "fp32") if gpu.supports_dtype(dtype)]
        need = {"bf16": "Ampere (sm_80)", "fp8": "Ada (sm_89) or Hopper (sm_90)"}.get(w.dtype, "a newer GPU")
        raise InputError(
            f"{gpu.id} ({gpu.sm_arch}) has no {w.dtype} tensor cores, which need {need}; nearest it can: {able[0]}"
        )
    if not runs_on(record, gpu):
        low, high = record.compute_capability
        span = f"sm_{low}" if low == high else f"sm_{low} or newer" if high >= 120 else f"sm_{low} to sm_{high}"
        near = default_implementation("naive" if record.family in ("naive", "sparse") else "flash", gpu, w)
        raise InputError(f"{record.name} needs {span}, {gpu.id} is {gpu.sm_arch}; nearest it can: {near.name}")
    if w.passes not in record.passes:
        raise InputError(f"{record.name} has no {w.passes} kernels; allowed: {', '.join(record.passes)}")
    if max(w.head_dim, w.head_dim_v) > record.largest_head_dim:
        raise InputError(
            f"{record.name} has kernels up to head_dim {record.largest_head_dim}, not "
            f"{max(w.head_dim, w.head_dim_v)}; take --algorithm naive"
        )
    check_mask(record, w)
    if w.dtype not in record.dtypes:
        raise InputError(
            f"{record.name} has no {w.dtype} kernels; allowed: {', '.join(record.dtypes)}"
            + (" (or --algorithm naive)" if record.family != "naive" else "")
        )


def _fits(record: Implementation, w: Workload, gpu: Gpu) -> bool:
    """Whether the implementation's own tiles fit; unfused GEMMs are not tried, their grids may be enormous."""
    if record.family == "naive":
        return True
    small = replace(w, batch=1, seq_q=min(w.seq_q, 1024), seq_kv=min(w.seq_kv, 1024))  # tiles do not ask for length
    return _tiles_fit(record.name, small, _Limits(gpu)) and max(w.head_dim, w.head_dim_v) <= record.largest_head_dim


class _Limits:
    """A GPU that stands for all with its SMs: whether a tile fits does not depend on bandwidths, rates and clocks."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.key = (gpu.base_id, gpu.compute_capability, gpu.sm, gpu.features)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Limits) and self.key == other.key


@lru_cache(maxsize=4096)
def _tiles_fit(name: str, w: Workload, limits: _Limits) -> bool:
    try:
        for kernel in find_implementation(name).build(w, limits.gpu, None).kernels:
            occupancy(kernel, limits.gpu)
    except InputError:
        return False
    return True


def default_implementation(algorithm: str, gpu: Gpu, w: Workload) -> Implementation:
    """The best implementation available for an algorithm on a GPU.

    Raises
    ------
    InputError
        When none runs there.
    """
    names = find_mechanism(algorithm).implementations
    records = [find_implementation(name) for name in (latent.preferred(names, w) if algorithm == "mla" else names)]
    usable = [record for record in records if runs_on(record, gpu)]
    able = [record for record in usable if w.dtype in record.dtypes]
    for record in able:
        if _fits(record, w, gpu):
            return record
    if able:
        return able[0]
    if usable:
        return usable[0]
    raise InputError(
        f"{algorithm} has no kernels for {gpu.id} ({gpu.sm_arch}); nearest: "
        f"{default_implementation('flash', gpu, w).name} (--algorithm flash)"
    )
