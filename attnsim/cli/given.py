"""Flags that were given on the command line, and those that exclude each other."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from attnsim.errors import InputError
from attnsim.plots.files import SUFFIXES
from attnsim.wording import and_text

INSTEAD = {
    "gpu": ("cases",),
    "heads": ("model", "kernel", "cases", "case", "layer"),
    "seq": ("lengths", "kernel", "cases", "case"),
    "head_dim": ("model", "kernel", "cases", "case", "layer"),
}
"""Parameters that a question needs, and those that say the same in their place."""

ANSWER_ALONE = ("breakeven", "explain", "roofline")
"""Commands with a question of their own where none is given."""

WRITTEN = ("out", "plot", "picture", "export", "records")
"""Parameters that name files to be written."""


def is_given(context: typer.Context, name: str) -> bool:
    """True if a flag, by its parameter, was given and not left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(
    context: typer.Context, why: str, names: Collection[str] | None = None, *, but: Collection[str] = ()
) -> None:
    """Refuse the flags of some parameters, or of all `but` some, that the answer would ignore."""
    for one in context.command.params:
        name = one.name or ""
        if (name not in but if names is None else name in names) and is_given(context, name):
            raise InputError(f"{one.opts[0]} {why}; leave it out")


def refuse_repeated(given: Collection[Any], values: Mapping[str, Any]) -> None:
    """Refuse a flag that takes one value and is given another, or an empty one.

    Parameters
    ----------
    given : collection of parameters
        In the order of their words.
    values : mapping
        What was given, by parameter.
    """
    seen: set[str] = set()
    for one in given:
        if one.name in seen and one.param_type_name == "option" and not one.multiple:
            takes = f" (it takes one {one.metavar}: {one.help.rstrip('.')})" if one.name in WRITTEN else ""
            raise InputError(f"{one.opts[0]} is given twice; keep one{takes}")
        if one.param_type_name == "option" and values[one.name] == "":
            raise InputError(f"{one.opts[0]} is empty; give it a value, or leave it out")
        seen.add(one.name)


def refuse_missing(context: typer.Context, values: Mapping[str, Any]) -> None:
    """Refuse a question that lacks something, naming all that it lacks.

    Parameters
    ----------
    context
    values : mapping
        What was given, by parameter.
    """
    command = context.command
    if not {"model", "head_dim"} <= {one.name for one in command.params}:
        return
    needed = ("gpu",) if command.name in ANSWER_ALONE else tuple(INSTEAD)
    lacking = [
        one.opts[0] if one.param_type_name == "option" else str(one.metavar)
        for one in command.params
        if (one.required or (one.name in needed and not one.default))
        and not any(values.get(name) for name in (one.name, *INSTEAD.get(one.name or "", ())))
    ]
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        example = getattr(command, "epilog", None)
        raise InputError(f"{and_text(lacking)} {verb} missing; such as: {example}")


def refuse_written_over(context: typer.Context) -> None:
    """Refuse to write a file over one that the same command reads, or writes."""
    taken: dict[str, str] = {}
    for one in context.command.params:
        if one.name not in WRITTEN:
            flag = one.opts[0] if one.param_type_name == "option" else str(one.metavar)
            words = [word for text in _texts(context.params.get(one.name or "")) for word in (text, *text.split(","))]
            taken |= {os.path.realpath(word): flag for word in words if os.path.isfile(word)}
    for one in context.command.params:
        if one.name in WRITTEN:
            for text in _texts(context.params.get(one.name)):
                for path in _with_those_beside(Path(text), context.params.get("caption") == "file"):
                    other = taken.setdefault(os.path.realpath(path), one.opts[0])
                    if other != one.opts[0]:
                        raise InputError(
                            f"{one.opts[0]} {text}: {path} would be written over that of {other}; give another name"
                        )


def _texts(value: Any) -> Iterator[str]:
    """The words of a parameter's value."""
    if isinstance(value, (str, Path)):
        yield str(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def _with_those_beside(path: Path, caption: bool) -> Iterator[Path]:
    """A file, and what `attnsim.plots.sheet.Picture.write` puts beside a picture: its table, and a caption."""
    yield path
    if path.suffix.lower() in SUFFIXES:
        yield path.with_suffix(".csv")
        if caption:
            yield from (path.with_suffix(".tex"), path.with_suffix(".txt"))
