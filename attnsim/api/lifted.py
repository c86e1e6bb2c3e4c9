"""A kernel file predicted: a kernel that was lifted from its instructions, on any GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Unpack

from attnsim.api.answer import Answer, plain
from attnsim.api.asking import Given, KernelQuestion, read_conditions, read_gpu
from attnsim.api.explaining import Explained, explained
from attnsim.api.playing import Played, replayed, too_large
from attnsim.api.tracing import NOT_TRACED, trace_schedule
from attnsim.api.trust import Reason, Trust, components_text
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import Chosen, choose
from attnsim.models.calibrations.components import widths
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.models.schedule.kernel_file import read_kernels
from attnsim.simulator.replay import Replay
from attnsim.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class KernelExplanation(Explained[KernelQuestion]):
    """Why a lifted kernel takes as long as it does."""

    def to_dict(self) -> dict[str, object]:
        """Plain types, as JSON holds them."""
        return {_KEYS.get(one.name, one.name): plain(getattr(self, one.name)) for one in fields(self)}


_KEYS = {"kernels": "fits"}
"""Keys of an explanation in JSON that are not the names of its fields."""


def predict_kernel(
    kernel: LiftedCall | Path | str, gpu: Gpu | str, **conditions: Unpack[Given]
) -> Answer[KernelQuestion]:
    """Predict a lifted kernel on a GPU.

    Parameters
    ----------
    kernel : LiftedCall, Path or str
        What ``attnsim kernels trace`` wrote, or its file.
    gpu : Gpu or str
    mode, cache, launch, budget, progress
        As for :func:`attnsim.predict`; a kernel has its own tile, and no timings correct it.

    Raises
    ------
    InputError
        Bad input, in one line; also where the kernel does not run on the GPU.
    """
    return _answered(_play(kernel, gpu, conditions))


def explain_kernel(kernel: LiftedCall | Path | str, gpu: Gpu | str, **conditions: Unpack[Given]) -> KernelExplanation:
    """Explain a lifted kernel on a GPU: its loop nest, its occupancy, its bytes, and what would make it faster.

    Parameters
    ----------
    kernel, gpu, mode, cache, launch, budget, progress
        As for :func:`predict_kernel`.

    Raises
    ------
    InputError
        Bad input, in one line; also where the kernel does not run on the GPU.
    """
    run = _play(kernel, gpu, conditions)
    return KernelExplanation(**explained(run, _answered(run)))


def trace_kernel(kernel: LiftedCall | Path | str, gpu: Gpu | str, *, sms: int = 2, **given: Unpack[Given]) -> Trace:
    """When each unit of an SM does what while it runs a lifted kernel.

    Parameters
    ----------
    kernel, gpu
        As for :func:`predict_kernel`.
    sms : int
        SMs to note, where the grid is small enough to be played whole.
    given
        Conditions as for :func:`attnsim.predict`: cache and launch.

    Raises
    ------
    InputError
        Bad input, in one line; also where the kernel does not run on the GPU.
    """
    file, machine = _read(kernel), read_gpu(gpu)
    _check(file, machine)
    conditions = read_conditions(of=_FILE, without=(*_OWN, *NOT_TRACED), **given)
    return trace_schedule(file.schedule, machine, _chosen(file, machine).numbers, conditions, sms)


_FILE = "a kernel file, which has a tile of its own"
_OWN = ("tiles", "tile", "calibration")
"""Conditions that a kernel file does not have: its tile is its own, and nobody has timed it."""


def _read(kernel: LiftedCall | Path | str) -> LiftedCall:
    return kernel if isinstance(kernel, LiftedCall) else read_kernels(Path(kernel))


def _chosen(file: LiftedCall, gpu: Gpu) -> Chosen:
    """The numbers of the implementation that the kernel is taken to be like."""
    if file.like:
        return choose(find_implementation(file.like), gpu)
    return Chosen(Numbers(), None, False, "priors used")


def _check(file: LiftedCall, gpu: Gpu) -> None:
    """Refuse a GPU that the instructions do not run on, or whose memory is too small."""
    for one in file.kernels:
        arch = one.origin.arch
        number = int("".join(filter(str.isdigit, arch)) or 0)
        only = arch[-1:].isalpha() and number != gpu.compute_capability_number
        if only or number > gpu.compute_capability_number:
            raise InputError(
                f"{one.kernel.name} is compiled for sm_{arch}; {gpu.id} is sm_{gpu.compute_capability_number}: "
                "trace it for an architecture that this GPU runs"
            )
        if one.kernel.path == "wgmma" and not gpu.features.wgmma:
            raise InputError(f"{one.kernel.name} needs wgmma, which {gpu.id} lacks; trace one by mma.sync (sm_80)")
    if file.memory_bytes > gpu.hbm.capacity_bytes:
        raise InputError(too_large(file.memory_bytes, gpu.hbm.capacity_bytes))


def _play(kernel: LiftedCall | Path | str, gpu: Gpu | str, given: Given) -> Played[KernelQuestion]:
    file, machine, conditions = _read(kernel), read_gpu(gpu), read_conditions(of=_FILE, without=_OWN, **given)
    _check(file, machine)
    chosen, schedule = _chosen(file, machine), file.schedule
    replay = replayed(schedule, machine, chosen.numbers, conditions)
    return Played(KernelQuestion(file, machine, conditions), chosen, schedule, replay)


def _answered(run: Played[KernelQuestion]) -> Answer[KernelQuestion]:
    return Answer(run, _trust(run.question.gpu, run.chosen, run.replay), "shipped")


def _trust(gpu: Gpu, chosen: Chosen, played: Replay) -> Trust:
    """Nobody has measured a lifted kernel: its range is that of another kernel's numbers in a shape never measured."""
    numbers = f"those fitted to {chosen.whose}" if chosen.calibration else "the priors, fitted to nothing"
    text = f"lifted from PTX: its operations are counted, its waits are {numbers}; nobody has measured this kernel"
    said = [Reason("borrowed", text)]
    if gpu.changes:
        changes = ", ".join(change.setting for change in gpu.changes)
        said.append(Reason("hypothetical", f"hypothetical GPU: {changes}"))
    found = chosen.calibration
    unknown = ["laboratory", "clock", "version", "shape", "kernel"]
    unknown += ["priors"] if found is None else ["architecture"] if found.architecture != gpu.architecture else []
    spread = max(found.spread.values(), default=0.0) if found else 0.0
    made = widths().parts(spread, unknown) | ({"timing": math.log1p(played.spread)} if played.spread else {})
    half = widths().half_width(made.values())
    said.append(Reason("components", components_text(made)))
    return Trust("extrapolated", math.exp(-half), math.exp(half), None, tuple(said), made)
