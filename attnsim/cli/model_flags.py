"""`--model`: the flags of a question filled from a model, where they are not given."""

from __future__ import annotations

from typing import Annotated

import typer

from attnsim.cli.options import QUESTION

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="ID",
        help="Model (see attnsim models), YAML file or Hugging Face config.json; other flags override it.",
        rich_help_panel=QUESTION,
    ),
]
