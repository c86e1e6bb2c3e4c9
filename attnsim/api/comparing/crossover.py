"""From which sequence length on one algorithm is faster than another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Unpack

from attnsim.api.answering import answer
from attnsim.api.asking import Given, Question, ask, read_conditions, read_gpu
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import LARGEST, Workload

SHORTEST, LONGEST = 64, 1 << 20
"""Lengths between which a crossover is looked for where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """The length at which one algorithm overtakes another as sequences grow.

    Parameters
    ----------
    slower, faster : str
        The algorithms: `faster` wins in long sequences.
    gpu : str
    seq : int or None
        Shortest length from which `faster` is the faster one, to within `step`: the shortest asked for where it always
        is, None where it is not even at the longest.
    time_s : float or None
        Time of `faster` there.
    seq_by_flops : int or None
        The same with useful FLOPs in place of times.
    """

    slower: str
    faster: str
    gpu: str
    seq: int | None
    time_s: float | None
    seq_by_flops: int | None


def crossover(
    slower: str,
    faster: str,
    question: Workload,
    gpu: Gpu | str,
    *,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
    step: int = 64,
    **given: Unpack[Given],
) -> Crossover:
    """The length from which `faster` beats `slower`, by the fast replay.

    Lengths are halved from the longest that fits the GPU's memory with `faster` until it is no longer faster, then
    bisected; where whole waves make times cross more than once, the crossing found is the last one on the halved
    lengths. An algorithm that does not fit loses.

    Parameters
    ----------
    slower, faster : str
        Algorithms, as for `predict`; ``NAME@N`` included, and ``NAME/IMPLEMENTATION`` for one that is not the default.
    question : Workload
        Its lengths are replaced, those of the keys alone where it decodes; its mask applies to what plays it.
    gpu : Gpu or str
    shortest, longest : int
        Lengths to look between.
    step : int
        Lengths are multiples of it.
    tiles, tile, mode, cache, launch, budget, progress, calibration
        As for `predict`.

    Raises
    ------
    InputError
        When an algorithm does not run the question, or the lengths are none.

    Examples
    --------
    >>> question = Workload(batch=1, heads_q=16, seq_q=1, head_dim=64)
    >>> found = crossover("flash", "linear", question, "a100-sxm4-80gb")
    >>> found.seq_by_flops
    64
    """
    if not 1 <= step <= shortest < longest <= LARGEST["seq_q"]:
        raise InputError(
            f"lengths are {shortest} to {longest} in steps of {step}; allowed: 1 <= step <= shortest < longest <= "
            f"{LARGEST['seq_q']}"
        )
    where, conditions = read_gpu(gpu), read_conditions(**given)

    def asked(name: str, seq: int) -> Question:
        algorithm, _, implementation = name.partition("/")
        w = at_length(question, seq)
        return ask(w, where, algorithm, implementation or None, conditions, in_comparison=True)

    @cache
    def time_s(name: str, seq: int) -> float:
        found = answer(asked(name, seq)).time_s
        return math.inf if found is None else found

    def wins(seq: int) -> bool:
        return time_s(faster, seq) < time_s(slower, seq)

    def costs_less(seq: int) -> bool:
        return useful_flops(faster, seq) <= useful_flops(slower, seq)

    mechanisms = {name: asked(name, longest).mechanism for name in (slower, faster)}

    def useful_flops(name: str, seq: int) -> int:
        return mechanisms[name].useful(mechanisms[name].in_comparison(at_length(question, seq))).flops

    fitting = longest
    while fitting // 2 >= shortest and math.isinf(time_s(faster, fitting)):
        fitting //= 2
    seq = _first(wins, shortest, fitting, step)
    return Crossover(
        slower,
        faster,
        where.id,
        seq,
        None if seq is None else time_s(faster, seq),
        _first(costs_less, 1, longest, 1),
    )


def at_length(question: Workload, seq: int) -> Workload:
    """The question with so many tokens: queries and keys, or keys alone where it decodes."""
    return replace(question, seq_kv=seq) if question.passes == "decode" else replace(question, seq_q=seq, seq_kv=seq)


def _first(holds: Callable[[int], bool], shortest: int, longest: int, step: int) -> int | None:
    """The smallest multiple of `step` from which on `holds` is true, found by halving and bisection."""
    low, high = -(-shortest // step), longest // step
    if not holds(high * step):
        return None
    while high > low and holds(max(low, high // 2) * step):
        high = max(low, high // 2)
    if high == low:
        return low * step
    return step * bisected(lambda place: holds(place * step), high, max(low, high // 2))


def bisected(holds: Callable[[int], bool], true: int, false: int, within: int = 1) -> int:
    """A number for which `holds`, at most `within` from one for which it does not, between one of each kind."""
    while abs(true - false) > within:
        middle = (true + false) // 2
        true, false = (middle, false) if holds(middle) else (true, middle)
    return true
