"""explain: how an algorithm runs a workload: loop nest, what limits occupancy, bytes by tensor and level, the bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from attnsim.api.answering import predict
from attnsim.api.building import play
from attnsim.api.choosing import Conditions, choose_implementation, read_conditions, read_gpu, under_pattern
from attnsim.api.levers import Lever, Turn, levers, turn
from attnsim.api.prediction import Prediction
from attnsim.models.calibrations.choose import choose
from attnsim.models.closed_forms.cost import Cost, cost_of
from attnsim.models.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS, Algorithm, find_algorithm
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import block_limits
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import KernelReplay, Replay


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
    """

    kernel: str
    blocks: int
    threads: int
    registers_per_thread: int
    shared_memory_bytes: int
    buffers: tuple[tuple[str, int], ...]
    limits: Mapping[str, int]
    blocks_per_sm: int
    limited_by: str
    waves: float
    time_s: float


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """Bytes of one tensor in one kernel: in closed form, asked of the L2 as played, and passed on to HBM."""

    kernel: str
    tensor: str
    direction: str
    closed_form: int
    l2_bytes: int
    hbm_bytes: int


@dataclass(frozen=True, slots=True)
class Count:
    """One quantity of the whole call by the formula and as the schedule counts it."""

    quantity: str
    closed_form: int
    counted: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one algorithm runs a workload on a GPU.

    Parameters
    ----------
    mechanism : str
        What was asked for.
    prediction : Prediction
    loop_nest : str
        The schedule as it is played.
    kernels : tuple of KernelFit
    tensors : tuple of TensorBytes
    counts : tuple of Count
        Closed form beside the count.
    useful_flops, compulsory_bytes : int
        What no schedule does without.
    turn : Turn or None
        What would have to change for the bound to move.
    levers : tuple of Lever
    """

    mechanism: str
    prediction: Prediction
    loop_nest: str
    kernels: tuple[KernelFit, ...]
    tensors: tuple[TensorBytes, ...]
    counts: tuple[Count, ...]
    useful_flops: int
    compulsory_bytes: int
    turn: Turn | None
    levers: tuple[Lever, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain types, as JSON holds them."""
        out = {name: getattr(self, name) for name in ("mechanism", "loop_nest", "useful_flops", "compulsory_bytes")}
        out |= {name: [asdict(item) for item in getattr(self, name)] for name in _LISTS}
        return out | {
            "prediction": self.prediction.to_dict(),
            "turn": None if self.turn is None else asdict(self.turn),
        }


_LISTS = ("kernels", "tensors", "counts", "levers")


def explain(
    workload: Workload | None,
    gpu: Gpu | str,
    mechanism: str = "flash",
    *,
    implementation: str | None = None,
    tiles: str = "shipped",
    tile: str | tuple[int, int] | None = None,
    mode: str = "fast",
    cache: str = "warm",
    launch: str = "stream",
) -> Explanation:
    """Explain how a mechanism runs a workload on a GPU.

    Parameters
    ----------
    workload : Workload or None
        The question; None takes the mechanism's own example.
    gpu, implementation, tiles, tile, mode, cache, launch
        As for `predict`.
    mechanism : str
        One of `attnsim.models.mechanisms.MECHANISMS` that has kernels.

    Raises
    ------
    InputError
        Bad input, or a call that does not fit the GPU's memory.
    """
    machine = read_gpu(gpu)
    conditions = read_conditions(tiles, tile, mode, cache, launch)
    asked = read_mechanism(mechanism)
    w = asked.example if workload is None else under_pattern(asked, workload)
    _check_variant(asked, w)
    algorithm, record = played_by(asked, implementation, w, machine)
    prediction = predict(
        w, machine, algorithm.name, implementation=record.name, tiles=tiles, tile=tile, mode=mode, cache=cache,
        launch=launch, baseline=False,
    )  # fmt: skip
    if not prediction.fits:
        raise InputError(f"{prediction.notes[0]}; explain a smaller question")
    return _explanation(asked, prediction, record, machine, conditions)


def read_mechanism(name: str) -> Algorithm:
    """The record behind a mechanism's name.

    Raises
    ------
    InputError
        Naming the nearest.
    """
    key = name.strip().lower() if isinstance(name, str) else ""
    if key.partition("@")[0] not in MECHANISMS:
        raise InputError(
            f"algorithm {shown(name)} is not known; {nearest(key, MECHANISMS)}; all: {', '.join(MECHANISMS)}"
        )
    return find_algorithm(key) if "@" in key else MECHANISMS[key]


def _check_variant(asked: Algorithm, w: Workload) -> None:
    """Refuse a question that does not have the property that the mechanism is."""
    example = asked.example
    if asked.selectable:
        return
    if "bwd" in example.directions and "bwd" not in w.directions:
        raise InputError(f"{asked.name} is about pass bwd, the question's is {w.passes}; allowed: bwd, fwd+bwd")
    if example.dtype == "fp8" and w.dtype != "fp8":
        raise InputError(f"{asked.name} is about dtype fp8, the question's is {w.dtype}; ask with fp8")


def played_by(asked: Algorithm, implementation: str | None, w: Workload, gpu: Gpu) -> tuple[Algorithm, Implementation]:
    """The algorithm and the implementation whose schedule shows the mechanism.

    Raises
    ------
    InputError
        When it has no schedule of its own, or none for this question or GPU.
    """
    if asked.selectable:
        return asked, choose_implementation(asked, implementation, w, gpu)
    if not asked.implementations:
        raise InputError(
            f"{asked.name} is a property of the question and has no schedule of its own; "
            "explain one with it, such as flash"
        )
    able = [name for name in asked.implementations if runs_on(IMPLEMENTATIONS[name], gpu)]
    record = choose_implementation(asked, implementation or (able or asked.implementations)[0], w, gpu)
    return next(item for item in ALGORITHMS.values() if record.family in item.families), record


def _explanation(
    asked: Algorithm, prediction: Prediction, record: Implementation, gpu: Gpu, conditions: Conditions
) -> Explanation:
    w = prediction.workload
    numbers = choose(record, gpu).numbers
    schedule, played = play(record, w, gpu, numbers, conditions)
    form = cost_of(w, schedule)
    shape = conditions.tile
    fixed = Conditions("given" if shape else "shipped", shape, "fast", conditions.cache, conditions.launch)
    if conditions.tiles == "retuned":
        fixed = conditions

    def on(changed: Gpu) -> Replay:
        return play(record, w, changed, numbers, fixed)[1]

    base = played if conditions.mode == "fast" else on(gpu)
    return Explanation(
        mechanism=asked.name,
        prediction=prediction,
        loop_nest=str(schedule),
        kernels=tuple(_fit(kernel, seen, gpu) for kernel, seen in zip(schedule.kernels, played.kernels, strict=True)),
        tensors=_tensors(form, played),
        counts=_counts(form, schedule),
        useful_flops=form.flops_useful,
        compulsory_bytes=form.compulsory_bytes,
        turn=turn(base, gpu, w, on),
        levers=levers(base, gpu, w, conditions.launch, on),
    )


def _fit(kernel: Kernel, seen: KernelReplay, gpu: Gpu) -> KernelFit:
    return KernelFit(
        kernel=kernel.name,
        blocks=kernel.blocks,
        threads=kernel.threads,
        registers_per_thread=kernel.registers_per_thread,
        shared_memory_bytes=kernel.shared_memory_bytes,
        buffers=kernel.buffers,
        limits=block_limits(kernel, gpu),
        blocks_per_sm=seen.blocks_per_sm,
        limited_by=seen.limited_by,
        waves=seen.waves,
        time_s=seen.time_s,
    )


def _tensors(form: Cost, played: Replay) -> tuple[TensorBytes, ...]:
    out = []
    for kernel in played.kernels:
        for row in kernel.traffic:
            kind = "store" if row.written else "load"
            closed = form.requested_bytes.get((kernel.name, kind, row.tensor), 0)
            out.append(TensorBytes(kernel.name, row.tensor, kind, closed, row.l2_bytes, round(row.hbm_bytes)))
    return tuple(out)


def _counts(form: Cost, schedule: Schedule) -> tuple[Count, ...]:
    return (
        Count("tensor FLOPs", form.flops_executed, schedule.total("flops")),
        Count("exponentials", form.exponentials, schedule.total("exps")),
        Count("bytes asked of the L2", form.no_reuse_bytes, sum(schedule.requested().values())),
        Count("bytes of shared memory", form.smem_bytes, schedule.total("smem_bytes")),
    )
