"""The gain of each of several changes of a GPU: alone, as the last one, and on average over all orders."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Generic, Unpack

from attnsim.api.answer import Answer, played
from attnsim.api.answering import answer
from attnsim.api.asking import Given, Question, ask, read_conditions, read_gpu
from attnsim.api.comparing.ratios import Ratio, T
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Change, Gpu, inconsistency
from attnsim.models.question.workload import Workload

MOST = 8
"""Changes that are split: every subset of them is replayed, 256 of eight."""

Keys = frozenset[str]


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One change and what it brings.

    Parameters
    ----------
    change : Change
        Against the unchanged GPU.
    alone, without : Answer or LayerAnswer
        The call, or the layer, with this change alone, and with all but this one.
    first, last : Ratio
        Speedup of the change on the unchanged GPU, and on the one with all others.
    mean : Ratio
        Geometric mean of its speedup over all orders of the changes; of all parts the means multiply to the whole.
    """

    change: Change
    alone: T
    without: T
    first: Ratio
    last: Ratio
    mean: Ratio


@dataclass(frozen=True, slots=True)
class Split(Generic[T]):
    """The speedup of several changes, split among them.

    Parameters
    ----------
    unchanged, changed : Answer or LayerAnswer
        Without any and with all of them.
    together : Ratio
        Speedup of all.
    parts : tuple of Part
        In the order in which they were given.
    """

    unchanged: T
    changed: T
    together: Ratio
    parts: tuple[Part[T], ...]

    def to_dict(self) -> dict[str, object]:
        """Plain types, as JSON holds them."""
        return {
            "unchanged": self.unchanged.to_dict(),
            "changed": self.changed.to_dict(),
            "together": self.together.to_dict(),
            "parts": [
                {
                    "figure": one.change.key,
                    "change": str(one.change),
                    "alone_time_s": one.alone.time_s,
                    "without_time_s": one.without.time_s,
                    **{name: getattr(one, name).to_dict() for name in ("first", "last", "mean")},
                }
                for one in self.parts
            ],
        }


def split(
    workload: Workload,
    gpu: Gpu | str,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    **conditions: Unpack[Given],
) -> Split[Answer[Question]]:
    """Split the speedup of a changed GPU among its changes.

    Every subset of the changes is replayed. The mean over orders is Shapley's value (*A Value for n-Person Games*,
    1953) of the logarithm of the speedup.

    Parameters
    ----------
    workload : Workload
    gpu : Gpu or str
        A GPU with 2 to `MOST` changes.
    algorithm, implementation, tiles, tile, mode, cache, launch, budget, calibration
        As for `predict`; the implementation is that of the unchanged GPU.

    Raises
    ------
    InputError
        Other numbers of changes, changes that cannot stand without one another, or a call that does not fit.

    Examples
    --------
    >>> from attnsim.models.hardware.files import load_gpu
    >>> gpu = load_gpu("h100-sxm5-80gb").replace("l2.bandwidth", "2x").replace("hbm.bandwidth", "6 TB/s")
    >>> found = split(Workload(batch=1, heads_q=32, seq_q=8192, head_dim=128), gpu)
    >>> [one.change.key for one in found.parts]
    ['l2.bandwidth', 'hbm.bandwidth']
    """
    changed = read_gpu(gpu)
    check_splits(changed)
    question = ask(workload, changed.unchanged, algorithm, implementation, read_conditions(**conditions))
    return shared_out(changed.unchanged, changed, lambda machine: played(answer(replace(question, gpu=machine))))


def check_splits(gpu: Gpu) -> None:
    """Refuse a GPU with too few or too many changes.

    Raises
    ------
    InputError
        When the number of changes is not allowed.
    """
    number = len(differing(gpu.unchanged, gpu))
    if not 2 <= number <= MOST:
        raise InputError(
            f"{gpu.id} has {number} changed figures, of which every subset is replayed; "
            f"allowed: 2 to {MOST}, such as --set l2.bandwidth=2x --set hbm.bandwidth=6TB/s"
        )


def shared_out(unchanged: Gpu, changed: Gpu, answered: Callable[[Gpu], T]) -> Split[T]:
    """The speedup of a changed GPU, shared out by the answer on every subset of the changes that lead to it."""
    values = differing(unchanged, changed)
    subsets = [frozenset(keys) for size in range(len(values)) for keys in combinations(values, size)]
    machines = {keys: _some(unchanged, {key: values[key] for key in values if key in keys}) for keys in subsets}
    machines[frozenset(values)] = changed
    answers = {keys: answered(machine) for keys, machine in machines.items()}
    return Split(
        unchanged=answers[frozenset()],
        changed=answers[frozenset(values)],
        together=_ratio(answers[frozenset()], answers[frozenset(values)]),
        parts=tuple(_part(key, changed, answers) for key in values),
    )


def differing(unchanged: Gpu, changed: Gpu) -> dict[str, float]:
    """The figures that were changed, and are not what they were."""
    return {one.key: one.new for one in changed.changes if one.new != unchanged.get(one.key)}


def _some(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """The unchanged GPU with some of the changes.

    Raises
    ------
    InputError
        When there is no such GPU.
    """
    for key, value in values.items():
        gpu = gpu if gpu.get(key) == value else gpu.with_change(key, value)
    if problem := inconsistency(gpu):
        raise InputError(f"{' and '.join(values)} cannot be changed without the rest: {problem}; leave out the split")
    return gpu


def _part(key: str, changed: Gpu, answers: Mapping[Keys, T]) -> Part[T]:
    """The gain of one change, by the subsets of the others it comes to."""
    whole = max(answers, key=len)
    base, alone, without = answers[frozenset()], answers[frozenset({key})], answers[whole - {key}]
    logs = [0.0, 0.0, 0.0]
    for others, before in answers.items():
        if key in others:
            continue
        orders = math.factorial(len(others)) * math.factorial(len(whole) - len(others) - 1)
        step = _ratio(before, answers[others | {key}])
        for place, value in enumerate((step.value, step.low, step.high)):
            logs[place] += orders / math.factorial(len(whole)) * math.log(value)
    own = alone.changes[-1] if alone.changes else next(one for one in changed.changes if one.key == key)
    return Part(
        change=own,
        alone=alone,
        without=without,
        first=_ratio(base, alone),
        last=_ratio(without, answers[whole]),
        mean=Ratio(*map(math.exp, logs)),
    )


def _ratio(before: T, after: T) -> Ratio:
    found = after.speedup_over(before)
    assert found is not None  # all that do not fit are refused
    return found
