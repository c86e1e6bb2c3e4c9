"""Write the help of every command into a file, from which it is printed: `python benchmarks/command_help.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import typer

from attnsim.cli import help
from attnsim.cli.app import app


def main() -> None:
    """Write the file."""
    text = json.dumps(helps(), indent=1, ensure_ascii=False)
    help.STORED.write_text(f"{text}\n", encoding="utf-8")


def helps() -> dict[str, list[str]]:
    """The lines of the help of each command and group of commands, by the words that come before --help."""
    root = typer.main.get_command(app)
    return dict(_below(root, typer.Context(root, info_name="attnsim", **root.context_settings), ()))


def _below(group: Any, context: Any, words: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    for name in group.list_commands(context):
        one, path = group.get_command(context, name), (*words, name)
        own = one.make_context(name, [], context, resilient_parsing=True)
        yield " ".join(path), one.get_help(own).splitlines()
        if hasattr(one, "commands"):
            yield from _below(one, own, path)


if __name__ == "__main__":
    main()
