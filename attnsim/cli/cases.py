"""``--case``: several workloads, each the flags of the command with some of them in its own words, and a weight."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from attnsim.cli.question_flags import NOT_OF_LAYERS, QuestionFlags
from attnsim.errors import InputError, shown
from attnsim.files import read_yaml
from attnsim.models.question.words import whole
from attnsim.studies.hardware_case import HOW, Case, Layer, each_once, flag_of, is_file, name_of, pairs_of, weighted

_NAMED = {"pass": "passes"}
_WHOLE = ("batch", "heads", "kv_heads", "seq", "seq_kv", "head_dim", "head_dim_v", "window", "tp")


def cases_of(
    flags: QuestionFlags, given: list[str], layers: str = "", weights: bool = True, whole: bool = False
) -> list[Case]:
    """The workloads of ``--case``; the one of the flags where none is given.

    With `layers`, the flag that asks for it, each is a layer, or with `whole` a step of the model.
    Without `weights` a case has none in its words.
    """
    if not given:
        return [_case(flags, layers, whole)]
    cases = []
    for what, weight in (weighted(text) if weights else (text, 1.0) for text in given):
        pairs, where = _pairs(what), f"--case {what if is_file(what) else shown(what)}"
        ep = _number("ep", pairs.pop("ep", 1), where)
        if ep != 1 and not whole:
            raise InputError(f"{where}: ep divides the experts of a whole model; add --of model, or leave it out")
        case = _case(_with(flags, pairs, where), layers, whole)
        if whole and case.layer:
            case = replace(case, layer=replace(case.layer, ep=ep if ep != 1 else 0))
        cases.append(replace(case, weight=weight, name=name_of(what)))
    return each_once(cases)


def _case(flags: QuestionFlags, layers: str, whole: bool) -> Case:
    """The cases that the flags ask."""
    if not layers:
        name = flags.filled.title if flags.filled else ""
        return Case(flags.workload(), cache=flags.l2, model=name, tp=flags.tp)
    for name in NOT_OF_LAYERS:
        if getattr(flags, name) not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} does not go with {layers}; leave it out")
    if flags.filled is None:
        raise InputError(f"{layers} needs a model; give --model ID (attnsim models lists them)")
    if flags.seq is None:
        raise InputError("--seq is missing; give --seq N")
    model = flags.whole if whole else flags.filled.model
    layer = Layer(
        model, flags.batch, flags.seq, flags.seq_kv, passes=flags.passes, dtype=flags.dtype, tp=flags.tp, whole=whole
    )
    return Case(flags.workload(), layer=layer, cache=flags.cache or "cold", model=flags.filled.title, tp=flags.tp)


def _pairs(what: str) -> dict[str, Any]:
    """The flags of one case."""
    if not is_file(what):
        return dict(pairs_of(what))
    content = read_yaml(Path(what), "case")
    if not isinstance(content, dict):
        raise InputError(f"--case {what}: holds no keys; {HOW}")
    return content


def _with(flags: QuestionFlags, content: dict[str, Any], where: str) -> QuestionFlags:
    known = [one.name for one in fields(QuestionFlags)]
    changes: dict[str, Any] = {}
    for key, value in content.items():
        name = flag_of(_NAMED.get(key, key), known, where)
        changes[name] = _read(name, value, where)
    return replace(flags, **changes)


def _read(name: str, value: object, where: str) -> object:
    text = str(value).strip()
    if name == "causal":
        if text.lower() not in ("true", "false"):
            raise InputError(f"{where}: causal is {shown(text)}; allowed: true or false")
        return text.lower() == "true"
    return _number(name, text, where) if name in _WHOLE else text


def _number(name: str, value: object, where: str) -> int:
    text = str(value).strip()
    if not (number := whole(text)):
        raise InputError(f"{where}: {name} is {shown(text)}; allowed: whole numbers from 1, such as 65536 or 64k")
    return number
