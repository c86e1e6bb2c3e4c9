"""`--model`: the flags of a question filled from a model, where they are not given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.cli.options import QUESTION
from attnsim.models.question.words import mask_of

if TYPE_CHECKING:
    from attnsim.models.llm.model import Model

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="ID",
        help="Model (see attnsim models), YAML file or Hugging Face config.json; other flags override it.",
        rich_help_panel=QUESTION,
    ),
]


@dataclass(frozen=True)
class Filled:
    """A model with the flags applied that were given beside it, and a heading that says so."""

    model: Model
    title: str


def filled(
    name: str,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    head_dim_v: int | None = None,
    causal: bool = False,
    window: int | None = None,
    mask: str | None = None,
) -> Filled:
    """The model of ``--model``, and over it what other flags say.

    What is equal in the model stays equal: key heads follow ``--heads`` and V's width follows ``--head-dim``.

    Raises
    ------
    InputError
    """
    from attnsim.models.llm.files import load_model

    model = load_model(name)
    flags: dict[str, int | str | None] = {
        "--heads": heads,
        "--kv-heads": kv_heads,
        "--head-dim": head_dim,
        "--head-dim-v": head_dim_v,
    }
    flags |= {"--window": window, "--mask": mask}
    told = [f"{flag} {value}" for flag, value in flags.items() if value is not None] + ["--causal"] * causal
    width = head_dim or model.head_dim
    figures: dict[str, Any] = {
        "heads_q": heads or model.heads_q,
        "heads_kv": kv_heads or (heads if heads and model.heads_kv == model.heads_q else model.heads_kv),
        "head_dim": width,
        "head_dim_v": head_dim_v or (width if model.head_dim_v == model.head_dim else model.head_dim_v),
        "rotary": width if model.rotary == model.head_dim else min(model.rotary, width),
        "mask": mask_of(mask, causal, window, model.mask),
    }
    over = f" with {', '.join(told)}" if told else ""
    return Filled(replace(model, **figures), f"{model.id}{over}")
