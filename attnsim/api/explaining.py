"""explain: how an algorithm runs a workload: loop nest, what limits occupancy, bytes by tensor and level, the bound.

:func:`one_launch` explains a batch of prefill and decodes: in one launch, in two streams, or one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import repeat
from typing import Any, Generic, Unpack

from attnsim.api.answer import Answer, Outcome, answered, plain
from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, Given, Q, Question, ask, read_conditions, read_mechanism
from attnsim.api.bounds import Bound, bounds_of
from attnsim.api.comparing.baselines import why_slower
from attnsim.api.comparing.levers import KernelLever, Lever, Turn, kernel_levers, levers, turn
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.playing import Played, play
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import HBM, TENSOR
from attnsim.models.implementations.choose import find_implementation, runs_on
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import block_limits
from attnsim.models.schedule.schedule import Buffers, Kernel, Schedule
from attnsim.simulator.replay import KernelReplay
from attnsim.tables import Table
from attnsim.wording import time_text, times_text


@dataclass(frozen=True, slots=True)
class KernelFit:
    """A kernel's blocks against the SM they run on.

    Parameters
    ----------
    kernel : str
    blocks, threads, registers_per_thread, shared_memory_bytes : int
        Grid, and what a block takes.
    buffers : tuple of (str, int)
        Its shared-memory buffers and their bytes.
    limits : mapping of str to int
        Blocks an SM has room for, by resource.
    blocks_per_sm : int
    limited_by : str
        The resource that allows no more.
    waves, time_s : float
    bound : Bound
        The figure of the GPU whose doubling gains most of its time.
    """

    kernel: str
    blocks: int
    threads: int
    registers_per_thread: int
    shared_memory_bytes: int
    buffers: Buffers
    limits: Mapping[str, int]
    blocks_per_sm: int
    limited_by: str
    waves: float
    time_s: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """Bytes of one tensor in one kernel: with perfect reuse, asked of the L2, and passed on to HBM."""

    kernel: str
    tensor: str
    direction: str
    compulsory_bytes: int
    l2_bytes: int
    hbm_bytes: int


@dataclass(frozen=True, slots=True)
class Count:
    """One quantity of the whole call as the schedule counts it."""

    quantity: str
    counted: int


@dataclass(frozen=True, slots=True)
class Explained(Generic[Q]):
    """Why a call takes as long as it does.

    Parameters
    ----------
    prediction : Answer
    loop_nest : str
        The schedule as it is played.
    kernels : tuple of KernelFit
        Blocks against an SM.
    tensors : tuple of TensorBytes
    turn : Turn or None
        By how much the busiest unit would have to be faster for another one to be as busy.
    levers : tuple of Lever
        Figures of the GPU, each twice as good, on the same tile.
    bound : Bound
        The figure of the GPU whose doubling gains most of the call; that of each kernel stands in `kernels`.
    """

    prediction: Answer[Q]
    loop_nest: str
    kernels: tuple[KernelFit, ...]
    tensors: tuple[TensorBytes, ...]
    turn: Turn | None
    levers: tuple[Lever, ...]
    bound: Bound


def explained(run: Played[Any], found: Answer[Q]) -> dict[str, Any]:
    """The fields of `Explained` for a call that was played, and its answer."""
    bound, each = bounds_of(run)
    fits = map(fit_of, run.schedule.kernels, run.replay.kernels, repeat(run.question.gpu), each)
    return {
        "prediction": found,
        "loop_nest": str(run.schedule),
        "kernels": tuple(fits),
        "tensors": tensors_of(run),
        "turn": turn(run),
        "levers": levers(run),
        "bound": bound,
    }


@dataclass(frozen=True, slots=True)
class Explanation(Explained[Question]):
    """How one algorithm runs a workload on a GPU: `Explained`, and what follows from the question.

    Parameters
    ----------
    mechanism : str
        What was asked for.
    counts : tuple of Count
    useful_flops, compulsory_bytes : int
        What no schedule does without.
    kernel_levers : tuple of KernelLever
        Properties of the kernel, each changed by itself.
    unchanged : Answer, TooLarge or None
        The same call on the unchanged GPU, where `prediction` is of a changed one and that one runs it too.
    reached : mapping of str to float
        Share of the bandwidth of the L2 and of HBM that kernels reach, by which units are busy.
    """

    mechanism: str
    counts: tuple[Count, ...]
    useful_flops: int
    compulsory_bytes: int
    kernel_levers: tuple[KernelLever, ...]
    unchanged: Outcome | None = None
    reached: Mapping[str, float] = field(default_factory=dict)

    @property
    def speedup(self) -> Ratio | None:
        """How many times faster the call is than on the unchanged GPU."""
        return self.prediction.speedup_over(self.unchanged) if self.unchanged else None

    @property
    def slower(self) -> str:
        """The reason that the call is slower than on the unchanged GPU though figures are better; else empty."""
        return why_slower(self.unchanged, self.prediction) if self.unchanged else ""

    def to_dict(self) -> dict[str, object]:
        """Plain types, as JSON holds them."""
        return {name: plain(getattr(self, name)) for name in _NAMES}

    def __repr__(self) -> str:
        one = self.prediction
        return f"<Explanation of {self.mechanism}: {len(self.kernels)} kernels, {len(self.levers)} levers, {one!r}>"

    def _repr_html_(self) -> str:
        one = self.prediction
        levers = [
            {
                "unit": lever.unit,
                "busy": time_text(lever.busy_s),
                "figure": lever.figure,
                "now": lever.value,
                "twice as good": times_text(lever.speedup),
                "busiest then": lever.busiest,
            }
            for lever in self.levers
        ]
        nest = f"<details><summary>loop nest</summary><pre>{escape(self.loop_nest)}</pre></details>"
        return f"{Table(str(one.workload), [one.shown()]).html}{Table('Levers', levers).html}{nest}"


_NAMES = (
    *("mechanism", "loop_nest", "useful_flops", "compulsory_bytes", "kernels", "tensors", "counts", "levers"),
    *("kernel_levers", "prediction", "bound", "turn", "unchanged", "speedup", "slower", "reached"),
)
"""The names of an explanation in JSON, in order."""


def explain(
    workload: Workload | None,
    gpu: Gpu | str,
    mechanism: str = "flash",
    *,
    implementation: str | None = None,
    **given: Unpack[Given],
) -> Explanation:
    """Explain how a mechanism runs a workload on a GPU.

    Parameters
    ----------
    workload : Workload or None
        The question; None takes the mechanism's own example.
    gpu, implementation, tiles, tile, mode, cache, launch, budget, progress, calibration
        As for `predict`.
    mechanism : str
        One of `attnsim.models.mechanisms.MECHANISMS` that has kernels.

    Raises
    ------
    InputError
        Bad input, or a call that does not fit the GPU's memory.
    """
    what = read_mechanism(mechanism)
    w = what.example if workload is None else workload
    asked = ask(w, gpu, what, implementation, read_conditions(**given))
    run = play(asked, "explain a smaller question")
    return Explanation(
        **explained(run, answered(run)),
        mechanism=what.name,
        counts=_counts(run.schedule),
        useful_flops=asked.useful.flops,
        compulsory_bytes=sum(run.schedule.compulsory().values()),
        kernel_levers=kernel_levers(run),
        unchanged=_before(asked),
        reached={"l2": 1.0, "hbm": asked.gpu.hbm.achievable_fraction},
    )


def _before(asked: Question) -> Outcome | None:
    """The call on the unchanged GPU; None where that is the one asked about, or does not run it."""
    gpu = asked.gpu.unchanged
    if gpu is asked.gpu:
        return None
    try:
        check_runs(asked.record, asked.w, gpu)
        return answer(replace(asked, gpu=gpu))
    except InputError:
        return None


def fit_of(kernel: Kernel, seen: KernelReplay, gpu: Gpu, bound: Bound) -> KernelFit:
    """A played kernel against the SM it runs on, and what bounds it."""
    a_block = ("blocks", "threads", "registers_per_thread", "shared_memory_bytes", "buffers")
    return KernelFit(
        kernel=kernel.name,
        limits=block_limits(kernel, gpu),
        bound=bound,
        **{name: getattr(kernel, name) for name in a_block},
        **{name: getattr(seen, name) for name in ("blocks_per_sm", "limited_by", "waves", "time_s")},
    )


def tensors_of(run: Played[Any]) -> tuple[TensorBytes, ...]:
    """Bytes of each tensor in each kernel."""
    compulsory, out = run.schedule.compulsory(), []
    for kernel in run.replay.kernels:
        for row in kernel.traffic:
            kind = "store" if row.written else "load"
            least = compulsory.get((kernel.name, kind, row.tensor), 0)
            out.append(TensorBytes(kernel.name, row.tensor, kind, least, row.l2_bytes, round(row.hbm_bytes)))
    return tuple(out)


def _counts(schedule: Schedule) -> tuple[Count, ...]:
    return (
        Count("tensor FLOPs", schedule.total("flops")),
        Count("exponentials", schedule.total("exps")),
        Count("bytes asked of the L2", sum(schedule.requested().values())),
        Count("bytes of shared memory", schedule.total("smem_bytes")),
    )


WAYS = {
    "one launch": "flashinfer.pod",
    "two streams": "flashinfer.pod-streams",
    "one after the other": "flashinfer.pod-serial",
}
"""The ways, and whose kernels each is."""


@dataclass(frozen=True, slots=True)
class Way:
    """One of the ways.

    Parameters
    ----------
    way, implementation : str
    time_s : float
    tensor, hbm : float
        Shares of the time in which the tensor cores, and the memory, are busy.
    """

    way: str
    implementation: str
    time_s: float
    tensor: float
    hbm: float


@dataclass(frozen=True, slots=True)
class OneLaunch:
    """The ways, the fastest first, and the halves alone."""

    ways: tuple[Way, ...]

    @property
    def sentence(self) -> str:
        """Which wins, and why."""
        best, serial = self.ways[0], next(one for one in self.ways if one.way == "one after the other")
        gain = serial.time_s / best.time_s
        if gain < 1.02:
            return (
                f"Nothing is won by running them together: one after the other the busier unit works "
                f"{max(serial.tensor, serial.hbm):.0%} of the time already, or one half is over at once."
            )
        why = (
            "it hands prefill and decode blocks to each SM in turn, so that both kinds run until the end"
            if best.way == "one launch"
            else "the second kernel's blocks fill the SMs that the first leaves free, and no turn is imposed on them"
        )
        return (
            f"{best.way.capitalize()} wins, {gain:.2f}x over one after the other: {why}; tensor cores are busy "
            f"{best.tensor:.0%} of the time instead of {serial.tensor:.0%}, the memory {best.hbm:.0%} instead of "
            f"{serial.hbm:.0%}."
        )

    def shown(self) -> list[dict[str, str]]:
        """The ways as rows for people."""
        return [
            {
                "way": one.way,
                "as": one.implementation,
                "time": time_text(one.time_s),
                "tensor": f"{one.tensor:.0%}",
                "HBM": f"{one.hbm:.0%}",
            }
            for one in self.ways
        ]

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return {"ways": [asdict(one) for one in self.ways], "sentence": self.sentence}


def one_launch(w: Workload, gpu: Gpu, conditions: Conditions) -> OneLaunch | None:
    """The ways to run a batch of prefills and decodes.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    OneLaunch or None
        None where the batch is not of both, or FlashInfer has no kernels for it.
    """
    queries = [one.queries == 1 for one in w.parts]
    plain = w.mask.is_band and not w.mask.is_windowed and w.dtype in ("fp16", "bf16") and w.passes == "fwd"
    if not any(queries) or all(queries) or not plain or w.latent is not None:
        return None
    if not runs_on(find_implementation(WAYS["one launch"]), gpu):
        return None
    ways = []
    for way, name in WAYS.items():
        found = answer(ask(w, gpu, "flash", name, conditions))
        if not isinstance(found, Answer):
            return None
        busy = {unit: seconds / found.time_s for unit, seconds in found.units_s.items()}
        ways.append(Way(way, name, found.time_s, busy[TENSOR.name], busy[HBM.name]))
    return OneLaunch(tuple(sorted(ways, key=lambda one: one.time_s)))
