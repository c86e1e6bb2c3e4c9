"""``--case``: what a workload of several has in its own words, and its weight."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from attnsim.errors import InputError, nearest, shown
from attnsim.studies.hardware_case import Case

HOW = "write --case 'pass=decode, batch=16, seq=8192: 0.5', or --case decode.yaml:0.5 with such keys in the file"


def weighted(text: str) -> tuple[str, float]:
    """What ``--case`` says, and its weight.

    Raises
    ------
    InputError
    """
    what, colon, weight = (part.strip() for part in text.rpartition(":"))
    if not (colon and what):
        raise InputError(f"--case {shown(text)} has no weight; {HOW}")
    try:
        value = float(weight)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError(f"--case: the weight is {shown(weight)}; allowed: a number above 0, such as 0.5")
    return what, value


def is_file(what: str) -> bool:
    """Whether a case is a file of keys."""
    return what.lower().endswith((".yaml", ".yml"))


def name_of(what: str) -> str:
    """What a table calls a case."""
    return Path(what).stem if is_file(what) else what


def pairs_of(what: str) -> dict[str, str]:
    """The flags that a case has of its own.

    Raises
    ------
    InputError
    """
    pairs: dict[str, str] = {}
    for part in what.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if equals:
            pairs[key] = value
        elif pairs:  # a comma inside a value, as masks have them
            last = next(reversed(pairs))
            pairs[last] = f"{pairs[last]}, {part.strip()}"
        else:
            raise InputError(f"--case {shown(what)} is not KEY=VALUE; {HOW}")
    return pairs


def flag_of(key: object, known: Collection[str], where: str) -> str:
    """The name of a flag of a question, as Python writes it.

    Raises
    ------
    InputError
    """
    name = str(key).replace("-", "_")
    if name not in known:
        raise InputError(f"{where}: {shown(key)} is not a flag of a question; {nearest(name, known)}")
    return name


def each_once(cases: list[Case]) -> list[Case]:
    """The cases.

    Raises
    ------
    InputError
        For one that is given twice.
    """
    names = [one.name for one in cases]
    if len(set(names)) < len(names):
        raise InputError(f"--case {next(one for one in names if names.count(one) > 1)} is given twice; keep one")
    return cases


def asked(case: Case, title: str) -> str:
    """A workload in words, with its name and weight where there are several."""
    what = f"a whole layer, its attention {case.workload}" if case.layer else str(case.workload)
    return f"{case.name} (weight {case.weight:g}): {what}" if case.name else f"{title}{what}"
