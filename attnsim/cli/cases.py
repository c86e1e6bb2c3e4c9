"""``--case``: several workloads, each the flags of the command with some of them in its own words, and a weight."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnsim.cli.question_flags import QuestionFlags
from attnsim.models.errors import InputError, nearest, shown
from attnsim.models.question.words import whole

if TYPE_CHECKING:
    from attnsim.studies.hardware_answer import Case

_NAMED = {"pass": "passes"}
_WHOLE = ("batch", "heads", "kv_heads", "seq", "seq_kv", "head_dim", "head_dim_v", "window", "tp")
_HOW = "write --case 'pass=decode, batch=16, seq=8192: 0.5', or --case decode.yaml:0.5 with such keys in the file"


def cases_of(flags: QuestionFlags, given: list[str]) -> list[Case]:
    """The workloads of ``--case``; the one of the flags where none is given.

    Raises
    ------
    InputError
    """
    from attnsim.studies.hardware_answer import Case

    if not given:
        return [Case(flags.workload())]
    found = []
    for text in given:
        what, colon, weight = text.rpartition(":")
        if not (colon and what.strip()):
            raise InputError(f"--case {shown(text)} has no weight; {_HOW}")
        found.append(Case(_asked(flags, what.strip()).workload(), _weight(weight.strip()), _name(what.strip())))
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise InputError(f"--case {next(one for one in names if names.count(one) > 1)} is given twice; keep one")
    return found


def asked(case: Case, title: str) -> str:
    """A workload in words, with its name and weight where there are several."""
    return f"{case.name} (weight {case.weight:g}): {case.workload}" if case.name else f"{title}{case.workload}"


def _name(what: str) -> str:
    return Path(what).stem if _is_file(what) else what


def _is_file(what: str) -> bool:
    return what.lower().endswith((".yaml", ".yml"))


def _weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError(f"--case: the weight is {shown(text)}; allowed: a number above 0, such as 0.5")
    return value


def _asked(flags: QuestionFlags, what: str) -> QuestionFlags:
    """The command's flags with those of one case in their place."""
    if _is_file(what):
        from attnsim.models.files import read_yaml

        content = read_yaml(Path(what), "case")
        if not isinstance(content, dict):
            raise InputError(f"--case {what}: holds no keys; {_HOW}")
        return _with(flags, content, f"--case {what}")
    pairs: dict[str, str] = {}
    for part in what.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if equals:
            pairs[key] = value
        elif pairs:  # a comma inside a value, as masks have them
            last = next(reversed(pairs))
            pairs[last] = f"{pairs[last]}, {part.strip()}"
        else:
            raise InputError(f"--case {shown(what)} is not KEY=VALUE; {_HOW}")
    return _with(flags, pairs, f"--case {shown(what)}")


def _with(flags: QuestionFlags, content: dict[str, Any], where: str) -> QuestionFlags:
    known = [one.name for one in fields(QuestionFlags)]
    changes: dict[str, Any] = {}
    for key, value in content.items():
        name = _NAMED.get(key, str(key).replace("-", "_"))
        if name not in known:
            raise InputError(f"{where}: {shown(key)} is not a flag of a question; {nearest(name, known)}")
        changes[name] = _read(name, value, where)
    return replace(flags, **changes)


def _read(name: str, value: object, where: str) -> object:
    text = str(value).strip()
    if name == "causal":
        if text.lower() not in ("true", "false"):
            raise InputError(f"{where}: causal is {shown(text)}; allowed: true or false")
        return text.lower() == "true"
    if name not in _WHOLE:
        return text
    if not (number := whole(text)):
        raise InputError(f"{where}: {name} is {shown(text)}; allowed: whole numbers from 1, such as 65536 or 64k")
    return number
