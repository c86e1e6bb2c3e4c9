"""Choice of the implementation of a mechanism for a question on a GPU: the named one, or the best; and refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from attnsim.errors import InputError, some
from attnsim.models.calibrations.choose import checked
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.options import able, check_operations, lacking
from attnsim.models.implementations.registry import check_lengths, check_mask, unplayed
from attnsim.models.mechanisms import MECHANISMS, running
from attnsim.models.mechanisms.mechanism import Mechanism
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import occupancy

NAIVE, FUSED, SPARSE = MECHANISMS["naive"], MECHANISMS["flash"], MECHANISMS["sparse"]


def choose_implementation(mechanism: Mechanism, record: Implementation | None, w: Workload, gpu: Gpu) -> Implementation:
    """Choose the implementation to imitate: the named one, or the best available for the GPU.

    Parameters
    ----------
    record : Implementation or None
        The named implementation, if any.
    w : Workload
        The question in the form that the mechanism gives it.

    Raises
    ------
    InputError
        If it does not run this mechanism or workload, or not on this GPU.
    """
    mechanism.check(w)
    _check_format(w, gpu)
    if record is None:
        record = default_implementation(mechanism, w, gpu)
    if not mechanism.run_by(record):
        runs = ", ".join(item.name for item in running(record))
        raise InputError(f"{record.name} does not run algorithm {mechanism.name}; it runs {runs}")
    check_runs(record, w, gpu)
    return record


def default_implementation(mechanism: Mechanism, w: Workload, gpu: Gpu) -> Implementation:
    """The best implementation of a mechanism on a GPU: one whose times there were checked, if there is one.

    Raises
    ------
    InputError
        If none runs there.
    """
    records = [find_implementation(name) for name in mechanism.ordered(mechanism.implementations, w)]
    further = map(find_implementation, able(w) if w.options else ())
    records += [record for record in further if record not in records and mechanism.run_by(record)]
    usable = [record for record in records if runs_on(record, gpu)]
    if not usable:
        best = default_implementation(FUSED, w, gpu).name
        raise InputError(
            f"{mechanism.name} has no kernels for {gpu.id} ({gpu.sm_arch}); nearest: {best} (--algorithm flash)"
        )
    usable = [record for record in usable if _suits(record, mechanism, w, gpu)] or usable
    formats = [record for record in usable if w.dtype in record.dtypes]
    checked_first = sorted(formats, key=lambda record: not checked(record, gpu, w.passes))
    return next((record for record in checked_first if _fits(record, w, gpu.tiled_for)), [*formats, *usable][0])


def _suits(record: Implementation, mechanism: Mechanism, w: Workload, gpu: Gpu) -> bool:
    """Return whether the implementation is a first choice for this question."""
    splits = mechanism.splits or w.passes == "decode"
    return (
        w.passes in record.passes
        and (record.splits or not splits)
        and (record.windows or not w.mask.is_windowed)
        and (record.lengths or not w.lengths)
        and record.prefixes == bool(w.prefix)
        and record.trees == bool(w.tree)
        and not lacking(record, w)
        and (not record.needs or getattr(gpu.features, record.needs))
    )


def check_runs(record: Implementation, w: Workload, gpu: Gpu) -> None:
    """Refuse an implementation or a number format that the GPU cannot run; name the nearest that it can."""
    _check_format(w, gpu)
    if not runs_on(record, gpu):
        low, high = record.compute_capability
        span = f"sm_{low}" if low == high else f"sm_{low} or newer" if high >= 120 else f"sm_{low} to sm_{high}"
        like = SPARSE if record.patterns else NAIVE if record.unfused else FUSED
        near = default_implementation(like, w, gpu).name
        if feature := unplayed(record, gpu):
            raise InputError(
                f"no schedule: {record.name} runs {feature} instructions on {gpu.id} ({gpu.sm_arch}), modelled is what "
                f"it runs on GPUs without {' or '.join(record.unplayed)}; nearest: {near}"
            )
        raise InputError(f"{record.name} needs {span}, {gpu.id} is {gpu.sm_arch}; nearest it can: {near}")
    if w.passes not in record.passes:
        raise InputError(f"{record.name} has no {w.passes} kernels; allowed: {', '.join(record.passes)}")
    if max(w.head_dim, w.head_dim_v) > record.largest_head_dim:
        raise InputError(
            f"{record.name} has kernels up to head_dim {record.largest_head_dim}, not "
            f"{max(w.head_dim, w.head_dim_v)}; {_instead(record, w, gpu)}"
        )
    if w.dtype == "fp8" and "bwd" in w.directions and not record.fp8_backward:
        able = some((one.name for one in IMPLEMENTATIONS.values() if one.fp8_backward), "attnsim implementations")
        raise InputError(f"{record.name} has no fp8 backward pass; take dtype bf16 for training, or one of {able}")
    check_mask(record, w)
    check_lengths(record, w)
    _check_options(record, w, gpu)
    check_operations(record, w)
    if w.operations is not None and "accumulate" in w.operations and "bwd" not in w.directions:
        raise InputError(f"operation 'accumulate' follows a backward pass, the pass is {w.passes}; leave it out")
    if w.dtype not in record.dtypes:
        allowed = ", ".join(record.dtypes)
        raise InputError(f"{record.name} has no {w.dtype} kernels; allowed: {allowed}; or {_instead(record, w, gpu)}")
    if w.mask.is_windowed and not record.windows:
        near = default_implementation(FUSED, w, gpu).name
        raise InputError(f"{record.name} has no sliding window; nearest that has: {near}")


def _check_options(record: Implementation, w: Workload, gpu: Gpu) -> None:
    """Refuse options that an implementation does not support; name others that do on the GPU.

    Raises
    ------
    InputError
        If all others are unfused, it says how to ask for them.
    """
    every = [
        one
        for one in map(find_implementation, able(w) if w.options else ())
        if one is not record
        and ((FUSED.run_by(record) and (one.unfused or FUSED.run_by(one))) or one.runs == record.runs)
    ]
    there = [one for one in every if w.passes in one.passes and _runs(one, w, gpu) and not lacking(one, w)]
    fused = [one for one in there if not one.unfused]
    names = {one.name for one in fused or there}
    if reason := lacking(record, w, names.__contains__):
        raise InputError(f"{reason} (algorithm {NAIVE.name})" if there and not fused else reason)


def _runs(record: Implementation, w: Workload, gpu: Gpu) -> bool:
    """Whether an implementation has kernels for the GPU, the width and the number format."""
    wide = max(w.head_dim, w.head_dim_v) <= record.largest_head_dim
    return runs_on(record, gpu) and wide and w.dtype in record.dtypes


def _instead(record: Implementation, w: Workload, gpu: Gpu) -> str:
    """Advice for a width or number format without kernels: implementations of the same library first, unfused last."""

    def able(one: Implementation) -> bool:
        alike = one.unfused or (FUSED.run_by(one) and FUSED.run_by(record)) or one.runs == record.runs
        known = alike and runs_on(one, gpu) and not one.picks and one.library != "ideal" and one is not record
        wide = max(w.head_dim, w.head_dim_v) <= one.largest_head_dim and w.dtype in one.dtypes
        return known and wide and w.passes in one.passes and _suits(one, FUSED, w, gpu) and _fits(one, w, gpu.tiled_for)

    found = sorted(filter(able, IMPLEMENTATIONS.values()), key=lambda one: (one.unfused, one.library != record.library))
    return f"take --implementation {' or '.join(one.name for one in found[:3])}" if found else "ask another"


def _check_format(w: Workload, gpu: Gpu) -> None:
    if not gpu.supports_dtype(w.dtype):
        able = [dtype for dtype in ("fp16", "bf16", "fp8", "fp32") if gpu.supports_dtype(dtype)]
        need = {"bf16": "Ampere (sm_80)", "fp8": "Ada (sm_89) or Hopper (sm_90)"}.get(w.dtype, "a newer GPU")
        raise InputError(
            f"{gpu.id} ({gpu.sm_arch}) has no {w.dtype} tensor cores, which need {need}; nearest it can: {able[0]}"
        )


def _fits(record: Implementation, w: Workload, gpu: Gpu) -> bool:
    """Return whether the implementation's own tiles fit; unfused GEMMs are not tried: their grids may be enormous."""
    if record.unfused:
        return True
    keys = min(w.seq_kv, 1024)  # tiles depend neither on length nor on pages or prefixes
    prefix = min(w.prefix, 1)
    short = replace(w, page_size=min(w.page_size, keys), prefix=prefix)
    small = short.of(Length(min(w.seq_q, 1024 - prefix), keys))
    return _tiles_fit(record.name, small, _Limits(gpu)) and max(w.head_dim, w.head_dim_v) <= record.largest_head_dim


class _Limits:
    """A GPU that stands for all with the same SMs: whether a tile fits depends on no bandwidth, rate or clock."""

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
