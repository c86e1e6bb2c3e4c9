"""predict and compare: one question, one or several answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Unpack

from attnsim.api.answer import Answer, Answers, Outcome, answered, refused
from attnsim.api.asking import (
    Conditions,
    Given,
    Question,
    ask,
    check_selected,
    read_algorithm,
    read_conditions,
    read_gpus,
)
from attnsim.api.playing import DoesNotFit, play
from attnsim.errors import InputError, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation, match
from attnsim.models.mechanisms import MECHANISMS, Mechanism, running
from attnsim.models.question.workload import Workload


def predict(
    workload: Workload,
    gpu: Gpu | str,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    baseline: bool = True,
    assumed: Iterable[str] = (),
    **conditions: Unpack[Given],
) -> Outcome:
    """Predict how one algorithm runs a workload on a GPU.

    Parameters
    ----------
    workload : Workload
        The question; its mask is taken as it is, window included. A named pattern (`longformer`, `bigbird`, ...) takes
        the place of a mask without patterns, causal where that is; a window gives way to the pattern.
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
        Play grids whole up to a budget and smaller ones of their shape beyond it, or every thread block on every SM.
    cache : {"warm", "cold"}
        Whether the L2 holds what the same call left there.
    launch : {"stream", "host", "graph", "kernel"}
        Launched into a stream, into one from Python and no faster than it, from a CUDA graph, or kernels alone.
    budget : int, optional
        Segment executions that the fast mode plays of a call. Each kernel has its share: up to twice that a grid is
        played whole, beyond it a smaller grid of up to twice that. More takes longer and is nearer to the exact mode,
        which has no limit. By default `attnsim.simulator.grid.BUDGET`.
    progress : callable, optional
        Called now and then while a kernel takes long: with its name, its blocks that have ended, and all its blocks.
    calibration : OwnTimings, str or Path, optional
        Timings of one's own that correct answers near them, of `attnsim.adapt`, or the file that it wrote.
    baseline : bool
        Whether to predict naive attention too, for `speedup_vs_naive`.
    assumed : iterable of str
        What the question left open, to be said in the trust.

    Returns
    -------
    Answer or TooLarge
        `TooLarge` where the call does not fit the GPU's memory.

    Raises
    ------
    InputError
        Bad input, in one line: what was given, what is allowed.

    Examples
    --------
    >>> from attnsim.models.mask.mask import Mask
    >>> question = Workload(batch=1, heads_q=32, seq_q=8192, head_dim=128, heads_kv=8, mask=Mask.causal())
    >>> predict(question, "h100-sxm5-80gb").implementation
    'flash-attn.3'
    """
    question = ask(workload, gpu, algorithm, implementation, read_conditions(**conditions), assumed)
    return with_speedup(answer(question), question) if baseline else answer(question)


@lru_cache(maxsize=64)
def answer(question: Question) -> Outcome:
    """The answer without its speedup over naive attention; a table and its speedups ask the same."""
    try:
        return answered(play(question))
    except DoesNotFit as why:
        return refused(question, why)


def compare(
    workload: Workload,
    gpu: Gpu | str | Sequence[Gpu | str],
    algorithms: Sequence[str] = ("naive", "flash"),
    *,
    implementation: str | Sequence[str] | None = None,
    **conditions: Unpack[Given],
) -> Answers:
    """Predict several algorithms for the same question, in the order given, on each of the GPUs.

    A window in the workload's mask applies to sliding-window and sparse only, patterns to sparse ones only: the others
    run the full or causal mask, so that the list shows what is saved. `implementation` and `tile` apply to
    algorithms that have them; an algorithm is predicted once for each of several implementations that run it.

    Parameters
    ----------
    workload, tiles, tile, mode, cache, launch, budget, progress, calibration
        As for `predict`.
    gpu : Gpu, str, or a sequence of them
        The rows of the first GPU come first.
    algorithms : sequence of str
    implementation : str or sequence of str, optional

    Returns
    -------
    Answers
        A list with ``to_frame()``.

    Raises
    ------
    InputError
        Bad input, in one line; also an implementation or a tile that none of the algorithms has.
    """
    asked = compared(workload, gpu, algorithms, implementation, read_conditions(**conditions))
    return Answers(with_speedup(answer(question), question) for question in asked)


def compared(
    workload: Workload,
    gpu: Gpu | str | Sequence[Gpu | str],
    algorithms: Sequence[str],
    implementation: str | Sequence[str] | None,
    conditions: Conditions,
) -> list[Question]:
    """The questions that `compare` answers, in its order.

    Raises
    ------
    InputError
        When nothing is given to compare, or something that nothing of it uses.
    """
    gpus = read_gpus(gpu)
    if not gpus:
        raise InputError("no GPU is given; give one or more, such as 'h100-sxm5-80gb'")
    if not isinstance(workload, Workload):
        raise InputError(f"workload is {shown(workload)}; give an attnsim.Workload")
    chosen = [read_algorithm(name) for name in ([algorithms] if isinstance(algorithms, str) else algorithms)]
    if not chosen:
        raise InputError("no algorithm is given; give one or more, such as naive, flash")
    wanted = [implementation] if isinstance(implementation, str) else implementation or ()
    return [one for machine in gpus for one in _questions(workload, machine, chosen, wanted, conditions)]


def _questions(
    workload: Workload, gpu: Gpu, chosen: Sequence[Mechanism], wanted: Sequence[str], conditions: Conditions
) -> list[Question]:
    """The questions of `compare` about one GPU.

    Raises
    ------
    InputError
        Where something is given that nothing of it uses.
    """
    runs = runs_of(chosen, wanted, gpu, workload)
    questions = [ask(workload, gpu, item, name, conditions, in_comparison=True) for item, name in runs]
    if conditions.tile is not None and not any(question.record.tunable for question in questions):
        raise InputError(f"tile is {conditions.tile}, but {chosen[0].name} has no tile to choose; leave it out")
    if workload.operations is not None and all(question.w.operations is None for question in questions):
        raise InputError(
            f"operations are '{workload.operations}', which no implementation of "
            f"{', '.join(item.name for item in chosen)} runs; add naive, or leave them out"
        )
    check_selected(workload, [question.w for question in questions])
    untiled = replace(conditions, tiles="shipped", tile=None) if conditions.tile is not None else conditions
    return [one if one.record.tunable else replace(one, conditions=untiled) for one in questions]


def runs_of(
    chosen: Sequence[Mechanism], wanted: Sequence[str], gpu: Gpu, workload: Workload
) -> list[tuple[Mechanism, str | None]]:
    """Each mechanism with each of the implementations wanted that run it; with none where none of them does.

    Raises
    ------
    InputError
        For an implementation that runs none of them.
    """
    named = {name: match(name, "", gpu, workload).record for name in wanted}
    for record in named.values():
        if not any(item.run_by(record) for item in chosen):
            raise InputError(
                f"{record.name} runs none of the algorithms {', '.join(item.name for item in chosen)}; add the one it "
                f"runs: {running(record)[0].name}"
            )
    runs: list[tuple[Mechanism, str | None]] = []
    for item in chosen:
        own = [name for name, record in named.items() if item.run_by(record)]
        runs += [(item, name) for name in own] or [(item, None)]
    return runs


def with_speedup(found: Outcome, question: Question) -> Outcome:
    """An answer with its speedup over the default naive implementation, by the fast replay."""
    if not isinstance(found, Answer):
        return found
    naive, conditions = MECHANISMS["naive"], question.conditions
    plain = replace(naive.in_comparison(question.w), operations=None)
    itself = question.record is find_implementation(naive.implementations[0]) and plain == question.w
    asked = replace(conditions, tiles="shipped", tile=None, mode="fast")
    base = found if itself and conditions.mode == "fast" else _naive(plain, question.gpu, asked)
    return replace(found, vs_naive=found.speedup_over(base)) if base else found


@lru_cache(maxsize=1024)
def _naive(w: Workload, gpu: Gpu, conditions: Conditions) -> Outcome | None:
    """The default naive implementation's answer, None where it does not run."""
    try:
        return answer(ask(w, gpu, "naive", conditions=conditions))
    except InputError:
        return None
