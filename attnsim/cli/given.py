"""Which flags of a command stand on the command line, and those that go with nothing there."""

from __future__ import annotations

from collections.abc import Collection

import typer

from attnsim.models.errors import InputError


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a flag, by its parameter, was given rather than left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(
    context: typer.Context, why: str, names: Collection[str] | None = None, *, but: Collection[str] = ()
) -> None:
    """Refuse the flags of some parameters, or of all `but` some, that the answer would ignore.

    Raises
    ------
    InputError
    """
    for one in context.command.params:
        name = one.name or ""
        if (name not in but if names is None else name in names) and is_given(context, name):
            raise InputError(f"{one.opts[0]} {why}; leave it out")
