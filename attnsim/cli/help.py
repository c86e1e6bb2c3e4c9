"""Help for a terminal of 80 columns: commands and flags in groups, an example below; and which commands have a flag."""

from __future__ import annotations

import difflib
import itertools
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import attnsim
from attnsim.cli import given
from attnsim.errors import InputError, nearest, shown

WIDTH = 80
"""Columns of the narrowest terminal whose help is not folded anew; two of them stay empty."""

STORED = Path(__file__).with_name("help.json")
"""The lines of the help of each command by its words, which `make outputs` writes."""

PANELS = ("GPU and kernels", "Question", "Conditions", "Output")
"""The groups of a command's flags in its help, in order; other flags stand below them."""
MACHINE, QUESTION, CONDITIONS, OUTPUT = PANELS


class _WithExample:
    """Writes the example on lines of its own."""

    epilog: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the example."""
        if self.epilog:
            with formatter.section("Example"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(_WithExample, TyperCommand):
    """A command whose flags stand in the groups that they name (`rich_help_panel`), and its example as it is typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line.

        Raises
        ------
        InputError
            For a word that the command does not take, with the flag that it is the value of; a flag that is given
            twice, or nothing; flags without which there is no question; a file that would be written over another of
            the same command.
        """
        ctx.allow_extra_args = True
        if not ctx.resilient_parsing:
            values, _, order = self.make_parser(ctx).parse_args(list(args))
            given.refuse_repeated(order, values)
        try:
            super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "MissingParameter":  # of whichever click Typer has
                given.refuse_missing(ctx, values)
            raise
        if not ctx.resilient_parsing:
            if ctx.args:
                raise InputError(_too_many(ctx, ctx.args[0]))
            given.refuse_missing(ctx, values)
            given.refuse_written_over(ctx)
        return list(ctx.args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags, those that name no group last."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PANELS)}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is not None:
                panel = "Arguments" if one.param_type_name == "argument" else getattr(one, "rich_help_panel", None)
                groups.setdefault(panel or "Options", []).append(record)
        groups = {name: records for name, records in groups.items() if records}
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


class Group(_WithExample, TyperGroup):
    """Commands in the groups that they name, their summaries never cut."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words begin with.

        Raises
        ------
        InputError
            Naming the nearest.
        """
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            path = ctx.command_path
            near = nearest(name, self.list_commands(ctx))
            raise InputError(f"{path} has no command {shown(name)}; {near}; {path} --help lists all")
        return super().resolve_command(ctx, args)

    def summaries(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """Group, name and summary of each command."""
        for name in self.list_commands(ctx):
            if (one := self.get_command(ctx, name)) is not None and not one.hidden:
                panel = getattr(one, "rich_help_panel", None)
                yield panel if isinstance(panel, str) else "Commands", name, summary(one)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands with their summaries, in groups."""
        for group, some in itertools.groupby(self.summaries(ctx), key=lambda one: one[0]):
            with formatter.section(group):
                formatter.write_dl([one[1:] for one in some])


class Commands(typer.Typer):
    """A Typer application whose groups and commands show their help so."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": Group, "rich_markup_mode": None, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """Register a command as Typer does, with an `example` of how it is typed."""
        example = settings.pop("example", None)
        return super().command(name, cls=Command, epilog=example, **settings)


def stored(words: Sequence[str]) -> str:
    """The help that is asked for, as it was stored; "" for another request, or a terminal that is too narrow.

    No command is loaded for it.
    """
    if words[-1:] not in (["--help"], ["-h"]) or shutil.get_terminal_size().columns < WIDTH:
        return ""
    return "\n".join(json.loads(STORED.read_text(encoding="utf-8")).get(" ".join(words[:-1]), []))


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".")


def refused(error: Any) -> str:
    """Click's error, and what to do: an example, or the commands that have a flag which this one lacks."""
    flag, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if flag is None and context is not None and hasattr(context.command, "commands"):
        return f"{context.command_path} needs a command: {', '.join(context.command.list_commands(context))}"
    given_to, why = getattr(error, "param", None), getattr(error, "message", "")
    if given_to is not None and why:
        return f"{given_to.opts[0]}: {why}"
    if flag is None or context is None:
        message = str(error.format_message())
        example = context.command.epilog if context is not None else ""
        return f"{message.removesuffix('.')}; such as: {example}" if example and "Missing" in message else message
    every = list(commands(context.find_root().command))
    having = [path for path, command in every if _has(command, flag)]
    taking = [f"{path} {one.metavar}" for path, command in every if (one := _argument(command, flag)) is not None]
    own = {one.lstrip("-"): one for command in context.command.params for one in command.opts if one.startswith("--")}
    near = [own[name] for name in difflib.get_close_matches(flag.lstrip("-"), own, 3, 0.6)]
    itself = _argument(context.command, flag)
    if itself is not None:
        return (
            f"{context.command_path} has no {flag}; give the value by itself: {context.command_path} {itself.metavar}"
        )
    ways = {"commands that have it: ": having, "a command takes it: ": taking, "nearest: ": near}
    more = next((words + ", ".join(found) for words, found in ways.items() if found), "")
    return f"{context.command_path} has no {flag}; {more or 'no command has it; --help lists the flags of this one'}"


def _too_many(ctx: Any, word: str) -> str:
    """A word on the command line that is no flag's value, and the flag that it goes with, where it names something."""
    taken = " ".join(one.metavar for one in ctx.command.params if one.param_type_name == "argument" and one.metavar)
    flags = (flag for flag, names in _names().items() if _has(ctx.command, flag) and _names_one(word, names))
    message = next((f"write {flag} {word}" for flag in flags), f"{ctx.command_path} --help lists its flags")
    what = f"no more words than {taken}" if taken else "flags only"
    return f"{ctx.command_path} takes {what}, not {shown(word)}; {message}"


def _names() -> dict[str, Collection[str]]:
    """Flags whose values are names, and those names."""
    from attnsim.models.hardware.files import known_gpu_ids
    from attnsim.models.mechanisms import ALGORITHMS

    return {"--algorithm": ALGORITHMS, "--gpu": known_gpu_ids(), "--model": attnsim.builtin_model_ids()}


def _names_one(word: str, names: Collection[str]) -> bool:
    """True if a word, or the first of a list, is one of the names or begins one: "h100"."""
    first = word.lower().partition(",")[0]
    return any(one == first or one.startswith(f"{first}-") for one in names)


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its path, such as "plot units"."""
    for name, one in group.commands.items():
        where = f"{path} {name}".strip()
        yield from commands(one, where) if hasattr(one, "commands") else iter([(where, one)])


def _argument(command: Any, flag: str) -> Any:
    """The argument of a command that goes by a flag's name, None where it has none."""
    arguments = (one for one in command.params if one.param_type_name == "argument")
    return next((one for one in arguments if one.name == flag.lstrip("-")), None)


def _has(command: Any, flag: str) -> bool:
    return flag in itertools.chain.from_iterable(one.opts for one in command.params)
