"""A kernel file predicted: a kernel that was lifted from its instructions, on any GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import repeat
from pathlib import Path

from attnsim.api.asking import Conditions, read_conditions, read_gpu
from attnsim.api.bounds import Bound, bounds
from attnsim.api.explaining import KernelFit, fit_of
from attnsim.api.levers import Lever, Turn, levers, turn
from attnsim.api.playing import figures, replayed, too_large
from attnsim.api.prediction import plain
from attnsim.api.trust import Reason, Trust, told_of
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import Chosen, choose
from attnsim.models.calibrations.components import widths
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.changes import Change
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.schedule.kernel_file import read_kernels
from attnsim.models.schedule.lifted import LiftedCall
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Replay, Told
from attnsim.simulator.trace import Trace
from attnsim.simulator.trace import trace as play_traced
from attnsim.wording import interval_text, time_text

MOST_SMS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrediction:
    """How a lifted kernel runs on a GPU.

    Parameters
    ----------
    kernel : str
        The kernels of the file, by name.
    gpu : str
    changes : tuple of Change
        What makes the GPU hypothetical.
    like : str
        Whose fitted numbers are taken: "flash-attn.2, ampere", or "priors".
    time_s, time_low_s, time_high_s : float
        Of the call with its launches, and the interval in which it is expected nine times in ten.
    busiest : str
        Busiest unit of the longest kernel, or "launch" or "latency".
    hbm_read_bytes, hbm_write_bytes, l2_bytes, smem_bytes, flops, exponentials : int
        Of the whole call.
    memory_bytes : int
        All arguments.
    blocks_per_sm : int
        Of the longest kernel: as many as fit an SM, or fewer where it has no more.
    waves : float
        Of the longest kernel: its blocks over as many as fit the GPU.
    units_s : mapping of str to float
        Busy seconds of each unit, and "idle".
    clock_hz, exposed_s, launch_s, spread : float
        As of :class:`attnsim.api.prediction.Prediction`.
    kernels : tuple of (str, float)
        Kernels in launch order and their times without the launch, seconds.
    trust : Trust
    """

    kernel: str
    gpu: str
    changes: tuple[Change, ...]
    like: str
    time_s: float
    time_low_s: float
    time_high_s: float
    busiest: str
    hbm_read_bytes: int
    hbm_write_bytes: int
    l2_bytes: int
    smem_bytes: int
    flops: int
    exponentials: int
    memory_bytes: int
    blocks_per_sm: int
    waves: float
    units_s: Mapping[str, float]
    clock_hz: float
    exposed_s: float
    launch_s: float
    spread: float
    kernels: tuple[tuple[str, float], ...]
    trust: Trust

    def to_dict(self) -> dict[str, object]:
        """Plain types, as JSON holds them."""
        return {one.name: plain(getattr(self, one.name)) for one in fields(self)}

    def __repr__(self) -> str:
        ranged = interval_text(self.time_low_s, self.time_high_s, self.time_s)
        gpu = "; ".join((self.gpu, *(change.setting for change in self.changes)))
        return f"<KernelPrediction {self.kernel} on {gpu}: {time_text(self.time_s)} ({ranged}), busiest {self.busiest}>"


@dataclass(frozen=True, slots=True)
class KernelExplanation:
    """Why a lifted kernel takes as long as it does.

    Parameters
    ----------
    prediction : KernelPrediction
    loop_nest : str
    fits : tuple of KernelFit
        Blocks against an SM.
    tensors : tuple of mapping
        Bytes by kernel and tensor, asked of the L2 and passed on to HBM.
    turn : Turn or None
    levers : tuple of Lever
        Figures of the GPU, each twice as good.
    bound : Bound
        What bounds the call; each kernel's own stands in `fits`.
    """

    prediction: KernelPrediction
    loop_nest: str
    fits: tuple[KernelFit, ...]
    tensors: tuple[Mapping[str, object], ...]
    turn: Turn | None
    levers: tuple[Lever, ...]
    bound: Bound

    def to_dict(self) -> dict[str, object]:
        """Plain types, as JSON holds them."""
        return {one.name: plain(getattr(self, one.name)) for one in fields(self)}


def predict_kernel(
    kernel: LiftedCall | Path | str,
    gpu: Gpu | str,
    *,
    mode: str = "fast",
    cache: str = "warm",
    launch: str = "stream",
    budget: int | None = None,
    told: Told | None = None,
) -> KernelPrediction:
    """Predict a lifted kernel on a GPU.

    Parameters
    ----------
    kernel : LiftedCall, Path or str
        What ``attnsim kernels trace`` wrote, or its file.
    gpu : Gpu or str
    mode, cache, launch, budget, told
        As for :func:`attnsim.predict`.

    Raises
    ------
    InputError
        Bad input, in one line; also where the kernel does not run on the GPU.
    """
    file, machine = _read(kernel), read_gpu(gpu)
    conditions = read_conditions(mode=mode, cache=cache, launch=launch, budget=budget, told=told)
    chosen = _chosen(file, machine)
    return _prediction(file, machine, chosen, _play(file, machine, chosen, conditions))


def explain_kernel(
    kernel: LiftedCall | Path | str,
    gpu: Gpu | str,
    *,
    cache: str = "warm",
    launch: str = "stream",
    budget: int | None = None,
    told: Told | None = None,
) -> KernelExplanation:
    """Explain a lifted kernel on a GPU: its loop nest, its occupancy, its bytes, and what would make it faster.

    Parameters
    ----------
    kernel, gpu, cache, launch, budget, told
        As for :func:`predict_kernel`.

    Raises
    ------
    InputError
    """
    file, machine = _read(kernel), read_gpu(gpu)
    conditions = read_conditions(cache=cache, launch=launch, budget=budget, told=told)
    chosen, schedule = _chosen(file, machine), file.schedule
    played = _play(file, machine, chosen, conditions)

    def on(changed: Gpu) -> tuple[Schedule, Replay]:
        return schedule, replayed(schedule, changed, chosen.numbers, conditions)

    dtype = schedule.kernels[0].dtype
    bound, each = bounds(played, machine, dtype, conditions.launch, lambda changed: on(changed)[1])
    return KernelExplanation(
        prediction=_prediction(file, machine, chosen, played),
        loop_nest=str(schedule),
        fits=tuple(map(fit_of, schedule.kernels, played.kernels, repeat(machine), each)),
        tensors=tuple(
            {
                "kernel": one.name,
                "tensor": row.tensor,
                "direction": "store" if row.written else "load",
                "l2_bytes": row.l2_bytes,
                "hbm_bytes": round(row.hbm_bytes),
            }
            for one in played.kernels
            for row in one.traffic
        ),
        turn=turn(played, machine, dtype, on),
        levers=levers(played, machine, dtype, conditions.launch, on, lambda changed, held: None),
        bound=bound,
    )


def trace_kernel(
    kernel: LiftedCall | Path | str, gpu: Gpu | str, *, cache: str = "warm", launch: str = "stream", sms: int = 2
) -> Trace:
    """When each unit of an SM does what while it runs a lifted kernel.

    Parameters
    ----------
    kernel, gpu, cache, launch
        As for :func:`predict_kernel`.
    sms : int
        SMs to note, where the grid is small enough to be played whole.

    Raises
    ------
    InputError
    """
    if not 1 <= sms <= MOST_SMS:
        raise InputError(f"sms is {sms}; allowed: 1 to {MOST_SMS}")
    file, machine = _read(kernel), read_gpu(gpu)
    conditions = read_conditions(cache=cache, launch=launch)
    _check(file, machine)
    numbers = _chosen(file, machine).numbers
    return play_traced(file.schedule, machine, numbers, cache=conditions.cache, launch=conditions.launch, sms=sms)


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


def _play(file: LiftedCall, gpu: Gpu, chosen: Chosen, conditions: Conditions) -> Replay:
    _check(file, gpu)
    return replayed(file.schedule, gpu, chosen.numbers, conditions)


def _prediction(file: LiftedCall, gpu: Gpu, chosen: Chosen, played: Replay) -> KernelPrediction:
    trust = _trust(file, gpu, chosen, played)
    schedule = file.schedule
    return KernelPrediction(
        kernel=file.name,
        gpu=gpu.id,
        changes=gpu.changes,
        like=chosen.whose,
        flops=schedule.total("flops"),
        exponentials=schedule.total("exps"),
        memory_bytes=file.memory_bytes,
        trust=trust,
        **figures(played, trust.low, trust.high),
    )


def _trust(file: LiftedCall, gpu: Gpu, chosen: Chosen, played: Replay) -> Trust:
    """Nobody has measured a lifted kernel: its range is that of another kernel's numbers in a shape never measured."""
    numbers = f"latencies and rates of {chosen.whose}" if chosen.calibration else "every latency and rate at its prior"
    said = [Reason("borrowed", f"lifted from PTX: operations counted, {numbers}, no measurement of this kernel")]
    if gpu.changes:
        told = ", ".join(change.setting for change in gpu.changes)
        said.append(Reason("hypothetical", f"hypothetical GPU: {told}"))
    found = chosen.calibration
    carried = ["laboratory", "clock", "version", "shape", "kernel"]
    carried += ["priors"] if found is None else ["architecture"] if found.architecture != gpu.architecture else []
    spread = max(found.spread.values(), default=0.0) if found else 0.0
    made = widths().parts(spread, carried) | ({"timing": math.log1p(played.spread)} if played.spread else {})
    half = widths().half_width(made.values())
    said.append(Reason("components", told_of(made)))
    return Trust("extrapolated", math.exp(-half), math.exp(half), None, tuple(said), made)
