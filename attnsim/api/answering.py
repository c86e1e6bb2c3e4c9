"""predict and compare: one question, one or several answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from attnsim.api.approximation import approximation_errors
from attnsim.api.building import peak_bytes, play, tunable
from attnsim.api.choosing import (
    Conditions,
    choose_implementation,
    read_algorithm,
    read_conditions,
    read_gpu,
    under_pattern,
    without_latent,
    without_window,
)
from attnsim.api.prediction import Prediction
from attnsim.api.trust import assess
from attnsim.models.calibrations.choose import Chosen, choose
from attnsim.models.closed_forms.cost import needed_work
from attnsim.models.errors import InputError, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import (
    default_implementation,
    find_implementation,
)
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mechanisms import ALGORITHMS, Algorithm
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Replay


def predict(
    workload: Workload,
    gpu: Gpu | str,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    tiles: str = "shipped",
    tile: str | tuple[int, int] | None = None,
    mode: str = "fast",
    cache: str = "warm",
    launch: str = "stream",
    baseline: bool = True,
    assumed: Iterable[str] = (),
) -> Prediction:
    """Predict how one algorithm runs a workload on a GPU.

    Parameters
    ----------
    workload : Workload
        The question; its mask is taken as it is, window included. A named pattern (`longformer`, `bigbird`, ...) that
        is asked for with a band only runs its default mask inside the band.
    gpu : Gpu or str
        A GPU, a built-in id or a path to a GPU file.
    algorithm : str
        One of `attnsim.api.ALGORITHMS`.
    implementation : str, optional
        Whose kernels to imitate; by default the best available for the GPU.
    tiles : {"shipped", "retuned"}
        Tiles and occupancy of the real implementation on the unchanged GPU, or the best that fits.
    tile : str or (int, int), optional
        Query rows x keys of the forward kernel, "128x64", in place of the implementation's.
    mode : {"fast", "exact"}
        Extend a few played thread blocks, or play every one on every SM.
    cache : {"warm", "cold"}
        Whether the L2 holds what the same call left there.
    launch : {"stream", "graph", "kernel"}
        Launched into a stream, from a CUDA graph, or kernels alone without launch.
    baseline : bool
        Whether to predict naive attention too, for `speedup_vs_naive`.
    assumed : iterable of str
        What the question left open, to be said in the trust.

    Raises
    ------
    InputError
        Bad input, in one line: what was given, what is allowed.

    Examples
    --------
    >>> from attnsim.models.mask.mask import Mask
    >>> question = Workload(batch=1, heads_q=32, seq_q=8192, head_dim=128, heads_kv=8, mask=Mask.causal())
    >>> predict(question, "h100-sxm5-80gb").implementation
    'flash_attn_v3'
    """
    if not isinstance(workload, Workload):
        raise InputError(f"workload is {shown(workload)}; give an attnsim.Workload")
    machine = read_gpu(gpu)
    conditions = read_conditions(tiles, tile, mode, cache, launch)
    what = read_algorithm(algorithm)
    question, said = under_pattern(what, workload), tuple(assumed)
    if question is not workload:
        said += (f"mask {question.mask}: the default of {what.name}",)
    if question.latent is not None and what.name != "mla":
        question, said = without_latent(question), (*said, "keys and values of every head cached, not the latent")
    record = choose_implementation(what, implementation, question, machine)
    answer = _answer(_Question(question, machine, what, record, conditions, said))
    return _with_speedup(answer, machine, conditions) if baseline else answer


def compare(
    workload: Workload,
    gpu: Gpu | str,
    algorithms: Sequence[str] = ("naive", "flash"),
    *,
    implementation: str | Sequence[str] | None = None,
    tiles: str = "shipped",
    tile: str | tuple[int, int] | None = None,
    mode: str = "fast",
    cache: str = "warm",
    launch: str = "stream",
) -> list[Prediction]:
    """Predict several algorithms for the same question, in the order given.

    A window in the workload's mask applies to sliding-window and sparse only, patterns to sparse ones only: the others
    run the full or causal mask, so that the list shows what is saved. `implementation` and `tile` apply to
    algorithms that have them; an algorithm is predicted once for each of several implementations that run it.

    Parameters
    ----------
    workload, gpu, tiles, tile, mode, cache, launch
        As for `predict`.
    algorithms : sequence of str
    implementation : str or sequence of str, optional

    Raises
    ------
    InputError
    """
    if not isinstance(workload, Workload):
        raise InputError(f"workload is {shown(workload)}; give an attnsim.Workload")
    chosen = [read_algorithm(name) for name in ([algorithms] if isinstance(algorithms, str) else algorithms)]
    if not chosen:
        raise InputError("no algorithm is given; give one or more, such as naive, flash")
    wanted = [implementation] if isinstance(implementation, str) else implementation or ()
    named = [find_implementation(name) for name in wanted]
    for record in named:
        if not any(record.family in item.families for item in chosen):
            raise InputError(
                f"{record.name} runs none of the algorithms {', '.join(item.name for item in chosen)}; add the one it "
                f"runs: {next(name for name, item in ALGORITHMS.items() if record.family in item.families)}"
            )
    fused = [
        item for item in chosen if item.group != "linear" and item.families not in (("naive",), ("flash-1",), ("mla",))
    ]
    if tile is not None and not fused:
        raise InputError(f"tile is {shown(tile)}, but {chosen[0].name} has no tile to choose; leave it out")
    runs: list[tuple[Algorithm, str | None]] = []
    for item in chosen:
        own = [record.name for record in named if record.family in item.families]
        runs += [(item, name) for name in own] or [(item, None)]
    return [
        predict(
            asked_of(item, workload),
            gpu,
            item.name,
            implementation=name,
            tiles=tiles,
            tile=tile if item in fused else None,
            mode=mode,
            cache=cache,
            launch=launch,
        )
        for item, name in runs
    ]


def asked_of(algorithm: Algorithm, w: Workload) -> Workload:
    """The question as an algorithm plays it: without a window or patterns that it does not have."""
    plays = algorithm.name in ("sliding-window", "sparse") or (algorithm.group == "sparse" and not w.mask.is_band)
    return w if plays else without_window(w)


@dataclass(frozen=True, slots=True)
class _Question:
    """Everything that decides an answer."""

    w: Workload
    gpu: Gpu
    algorithm: Algorithm
    record: Implementation
    conditions: Conditions
    assumed: tuple[str, ...] = ()


def _answer(asked: _Question) -> Prediction:
    w, gpu, record, conditions = asked.w, asked.gpu, asked.record, asked.conditions
    chosen = choose(record, gpu)
    peak = peak_bytes(record, w)
    schedule: Schedule | None = None
    played: Replay | None = None
    if peak <= gpu.hbm.capacity_bytes:
        schedule, played = play(record, w, gpu, chosen.numbers, conditions)
        peak = schedule.peak_memory_bytes
        if peak > gpu.hbm.capacity_bytes:
            schedule = played = None
    return _prediction(asked, chosen, peak, schedule, played)


def _prediction(
    asked: _Question, chosen: Chosen, peak: int, schedule: Schedule | None, played: Replay | None
) -> Prediction:
    w, gpu, algorithm, record, conditions = (
        asked.w,
        asked.gpu,
        asked.algorithm,
        asked.record,
        asked.conditions,
    )
    tiles = conditions.tiles if tunable(record) else "shipped"
    trust = assess(w, gpu, chosen, record, tiles=tiles, assumed=asked.assumed)
    notes = schedule.notes if schedule else (too_large(peak, gpu.hbm.capacity_bytes),)
    if schedule is None:
        trust = replace(trust, reason=f"{notes[0]}; {trust.reason}")
    if algorithm.name == "split-kv" and schedule is not None and schedule.algorithm != "split-kv":
        notes = (*notes, f"{record.name} does not split the keys of this question")
    needed, dense = needed_work(record, w)
    time = played.time_s if played else None
    main = played.main if played else None
    return Prediction(
        workload=w,
        algorithm=algorithm.name,
        implementation=record.name,
        gpu=gpu.id,
        changes=gpu.changes,
        tiles=tiles,
        mode=conditions.mode,
        cache=conditions.cache,
        launch=conditions.launch,
        time_s=time,
        time_low_s=None if time is None else time * trust.low,
        time_high_s=None if time is None else time * trust.high,
        hbm_read_bytes=round(played.hbm_read_bytes) if played else None,
        hbm_write_bytes=round(played.hbm_write_bytes) if played else None,
        l2_bytes=round(played.l2_bytes) if played else None,
        smem_bytes=played.smem_bytes if played else None,
        flops_useful=needed.flops,
        flops_executed=schedule.total("flops") if schedule else None,
        flops_dense=dense,
        exponentials=schedule.total("exps") if schedule else None,
        peak_memory_bytes=peak,
        fits=played is not None,
        bound=played.bound if played else None,
        blocks_per_sm=main.blocks_per_sm if main else None,
        waves=main.waves if main else None,
        speedup_vs_naive=None,
        trust=trust,
        units_s=played.units_s() if played else {},
        exposed_s=played.exposed_s if played else None,
        launch_s=played.launch_s if played else None,
        kernels=tuple((kernel.name, kernel.time_s) for kernel in played.kernels) if played else (),
        tile=schedule.tile if schedule else "",
        notes=notes,
        approximation=() if algorithm.exact else approximation_errors(algorithm.name, w),
    )


def too_large(peak: float, capacity: float) -> str:
    """What is said of a call that needs more memory than the card has, both in bytes."""
    return f"does not fit: needs {_bytes_text(peak)}, the card has {_bytes_text(capacity)}"


def _bytes_text(size: float) -> str:
    for unit, scale in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}" if size < 1e21 else f"{size / scale:.2e} {unit}"
    return f"{size / 1e3:.3g} kB"


def _with_speedup(answer: Prediction, gpu: Gpu, conditions: Conditions) -> Prediction:
    """The same answer with its speedup over the default naive implementation."""
    if answer.time_s is None:
        return answer
    plain = without_latent(without_window(answer.workload))
    default = answer.algorithm == "naive" and answer.implementation == "pytorch" and plain == answer.workload
    if default and conditions.mode == "fast":
        return replace(answer, speedup_vs_naive=1.0)
    naive = naive_time_s(plain, gpu, conditions.cache, conditions.launch)
    return replace(answer, speedup_vs_naive=None if naive is None else naive / answer.time_s)


@lru_cache(maxsize=1024)
def naive_time_s(w: Workload, gpu: Gpu, cache: str, launch: str) -> float | None:
    """Time of the default naive implementation, None where it does not run or does not fit."""
    conditions = read_conditions("shipped", None, "fast", cache, launch)
    algorithm = read_algorithm("naive")
    try:
        record = default_implementation("naive", gpu, w)
        choose_implementation(algorithm, record.name, w, gpu)
        return _answer(_Question(w, gpu, algorithm, record, conditions)).time_s
    except InputError:
        return None
