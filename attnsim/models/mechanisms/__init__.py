"""All attention mechanisms, one record each; commands, documents and tests iterate over them.

A record states the mechanism's definition and its implementations. The implementations build the schedules
(:mod:`attnsim.models.implementations.choose`) and are found by name.
"""

import copyreg
from functools import cache

from attnsim.errors import InputError
from attnsim.models.implementations.implementation import Implementation, sizing
from attnsim.models.mechanisms.linear import GATED, LINEAR
from attnsim.models.mechanisms.mechanism import Mechanism as Mechanism
from attnsim.models.mechanisms.selecting import SELECTING
from attnsim.models.mechanisms.softmax import SHARING, SOFTMAX, SPARSE
from attnsim.models.question.workload import Workload

MECHANISMS: dict[str, Mechanism] = {
    item.name: item for item in (*SOFTMAX, *SPARSE, *SELECTING, *LINEAR, *GATED, *SHARING)
}
"""All mechanisms, by name."""

ALGORITHMS: dict[str, Mechanism] = {name: item for name, item in MECHANISMS.items() if item.selectable}
"""Mechanisms that a question can ask for, by name."""


@cache
def find_mechanism(name: str) -> Mechanism:
    """The mechanism with this name; for ``NAME@N``, with N random features or projected keys.

    Raises
    ------
    KeyError
        If there is none of that name.
    InputError
        If it has no number to choose.
    """
    base, at, number = name.strip().lower().partition("@")
    record = ALGORITHMS[base]
    if not at:
        return record
    if record.sized is None:
        able = ", ".join(f"{one}@N" for one, item in ALGORITHMS.items() if item.sized)
        raise InputError(f"algorithm {base} has no number to choose, {name!r} gives one; those that have: {able}")
    return record.sized(sizing(number, name))


def _restored(name: str) -> Mechanism:
    return find_mechanism(name) if "@" in name else MECHANISMS[name]


copyreg.pickle(Mechanism, lambda one: (_restored, (one.name,)))  # its functions cannot be pickled, its name can


def playing(w: Workload) -> Mechanism:
    """The mechanism of the whole question: by its latent, otherwise by its mask (no latent has backward kernels)."""
    if w.latent is not None and "bwd" not in w.directions:
        return MECHANISMS["mla"]
    if w.selection is not None:
        return next((item for item in SELECTING if not item.refuses(item.question(w))), SELECTING[0])
    if not w.mask.is_band:
        return MECHANISMS["sparse"]
    return MECHANISMS["sliding-window" if w.mask.is_windowed else "flash"]


def comparable_unfused(w: Workload) -> tuple[str, ...]:
    """The unfused algorithm, if comparable with others: one sequence length, no pages, one number format."""
    return () if w.lengths or w.page_size or w.prefix or w.tree or w.kv_dtype else ("naive",)


def running(record: Implementation) -> list[Mechanism]:
    """Mechanisms that an implementation runs, each with its number of features or projected keys."""
    number = record.number
    return [
        item.sized(number) if number and item.sized else item for item in ALGORITHMS.values() if item.run_by(record)
    ]


def only_for(w: Workload) -> tuple[str, ...]:
    """Algorithms that play a question's window or patterns, if others would see more keys."""
    if w.without_window() == w:
        return ()
    return tuple(
        name
        for name, item in ALGORITHMS.items()
        if not item.refuses(item.question(w)) and item.in_comparison(w).mask == w.mask
    )
