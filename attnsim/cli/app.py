"""The Typer application: one function per command, each in a file of its own."""

from __future__ import annotations

import importlib
import os
from collections import UserDict
from typing import Annotated, Any

import typer

from attnsim import bounds
from attnsim.cli import help

ASK, DRAW, STUDY, CHECK, MAINTAIN = "Ask", "Draw", "Study", "Check", "Maintain"
"""The groups of commands in the help, in this order."""

LLAMA = "--model llama-3-8b --seq 8k"
QUESTION = f"--gpu h100 {LLAMA}"

COMMANDS = {
    "predict": (ASK, "predict", f"{QUESTION} --set hbm.bandwidth=6TB/s"),
    "explain": (ASK, "explain", f"flash {QUESTION}"),
    "whatif": (ASK, "whatif", f"{QUESTION} --set hbm.bandwidth=6TB/s --set sm.exp_rate=1.5x"),
    "explore": (ASK, "explore", ""),
    "breakeven": (ASK, "breakeven", "--gpu h100 --heads 32 --kv-heads 8 --head-dim 128 --causal --seq 64k"),
    "sensitivity": (ASK, "sensitivity", QUESTION),
    "algorithms": (ASK, "algorithms", ""),
    "implementations": (ASK, "implementations", "--gpu h100 --pass decode"),
    "gpus": (ASK, "gpus", ""),
    "models": (ASK, "models", ""),
    "roofline": (DRAW, "roofline", f"{QUESTION} --out roofline.pdf --width column"),
    "trace": (DRAW, "trace", f"{QUESTION} --picture timeline.png"),
    "plot": (DRAW, "plot", ""),
    "sweep": (STUDY, "sweep", "study.yaml --out results"),
    "report": (STUDY, "report", "study.yaml --out report.html"),
    "search": (STUDY, "search", ""),
    "serving": (STUDY, "serving", "requests.csv --gpu h100 --model llama-3-8b --tokens 2048 --plot steps.png"),
    "check": (CHECK, "check", "mine.csv --time-unit ms"),
    "adapt": (CHECK, "adapt", "mine.csv --time-unit ms --out mine.yaml"),
    "validate": (CHECK, "validate", "--measured results --out validation"),
    "accuracy": (CHECK, "accuracy", "--claims"),
    "kernels": (CHECK, "kernels", ""),
    "measure": (CHECK, "measure", "--out results --minutes 8"),
    "probe": (CHECK, "probe", "--out my-gpu.yaml"),
    "fit": (MAINTAIN, "accuracy", "--check"),
    "demo": (MAINTAIN, "demo", ""),
    "doctor": (MAINTAIN, "doctor", ""),
}
"""Group, module and example of each command. Its module has a function of its name, or commands below it as `app`."""


class Loaded(UserDict[str, Any]):
    """The commands by name, each imported when it is asked for: a command does not load the others."""

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _command(name)
        return self.data[name]


def _command(name: str) -> Any:
    group, module, example = COMMANDS[name]
    home = importlib.import_module(f"attnsim.cli.{module}")
    one = getattr(home, "app", None) or help.Commands(add_completion=False)
    if not hasattr(home, "app"):
        one.command(name, example=f"attnsim {name} {example}".strip())(getattr(home, name))
    found: Any = typer.main.get_command(one)
    found.name, found.rich_help_panel = name, group
    return found


class Root(help.Group):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Loaded(dict.fromkeys(COMMANDS))

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)


app = help.Commands(
    cls=Root,
    name="attnsim",
    help="Predict how attention runs on a GPU: time, bytes, what bounds it, and how far to trust the answer.",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": help.WIDTH},
)


def _version(wanted: bool) -> None:
    if wanted:
        import attnsim

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
