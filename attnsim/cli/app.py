"""The Typer application: one function per command, each in a file of its own."""

from __future__ import annotations

import importlib
import os
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import attnsim
from attnsim import bounds
from attnsim.cli import help
from attnsim.tables import read_csv

COMMANDS = {one["command"]: one for one in read_csv(Path(__file__).with_name("commands.csv"))}
"""Group, module, summary and example of each command, in the order of the help.

The module has a function of the command's name, or commands below it as `app`. The summary is the first sentence of the
function's docstring: the help lists all commands without loading any.
"""


class Loaded(UserDict[str, Any]):
    """The commands by name, each imported when it is asked for: a command does not load the others."""

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _command(name)
        return self.data[name]


def _command(name: str) -> Any:
    entry = COMMANDS[name]
    home = importlib.import_module(f"attnsim.cli.{entry['module']}")
    one = getattr(home, "app", None) or help.Commands(add_completion=False)
    if not hasattr(home, "app"):
        one.command(name, example=f"attnsim {name} {entry['example']}".strip())(getattr(home, name))
    found: Any = typer.main.get_command(one)
    found.name, found.rich_help_panel = name, entry["group"]
    return found


class Root(help.Group):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Loaded(dict.fromkeys(COMMANDS))

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def summaries(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """Group, name and summary of each."""
        return ((one["group"], name, one["summary"]) for name, one in COMMANDS.items())


app = help.Commands(
    cls=Root,
    name="attnsim",
    help="Predict how attention runs on a GPU: time, bytes, what bounds it, and how far to trust the answer.",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": help.WIDTH - 2},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"attnsim {attnsim.__version__}")
        raise typer.Exit


def _unbounded(wanted: bool) -> None:
    if wanted:
        os.environ[bounds.UNBOUNDED] = "1"


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    unbounded: Annotated[
        bool,
        typer.Option(
            "--unbounded",
            help="Go on where a command takes over 2 GiB or a minute.",
            callback=_unbounded,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass
