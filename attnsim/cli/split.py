"""The gain of each of several changes of a GPU, as `predict` and `explain` print it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from rich.console import Console

from attnsim import wording
from attnsim.api.answer import Outcome
from attnsim.api.comparing.ratios import T
from attnsim.api.comparing.splitting import Split
from attnsim.cli import show
from attnsim.cli.options import switch
from attnsim.errors import InputError

Flag = Annotated[bool, switch("What each of several --set brings: alone, last, on average.", "--split")]


def check(settings: Sequence[str]) -> None:
    """Refuse a split of fewer than two changes."""
    if len(settings) < 2:
        given = f"one, {settings[0]}" if settings else "none"
        raise InputError(f"--split shares out several changes and there is {given}; give --set KEY=VALUE twice or more")


def of_call(one: Outcome) -> str:
    """A call whose gain was split, in words."""
    return f"{one.algorithm} ({one.implementation}) on {one.gpu}, {one.tiles} tiles"


def print_split(out: Console, found: Split[T], what: str) -> None:
    """A line for each change, and one for all together."""
    rows: list[dict[str, object]] = [
        {
            "figure": one.change.key,
            "mean over\norders": str(one.mean),
            "alone": wording.time_text(one.alone.time_s),
            "speedup\nalone": str(one.first),
            "all\nwithout it": wording.time_text(one.without.time_s),
            "speedup\nlast": str(one.last),
        }
        for one in found.parts
    ]
    whole: dict[str, object] = {
        "figure": "all together",
        "alone": wording.time_text(found.changed.time_s),
        "all\nwithout it": wording.time_text(found.unchanged.time_s),
        "mean over\norders": str(found.together),
    }
    rows.append(dict.fromkeys(rows[0], "") | whole)
    show.print_rows(out, f"{what}: what each change brings", rows, right=rows[0].keys() - {"figure"}, whole=rows[0])
    out.print("alone: on the unchanged GPU. last: after all others. The means multiply to the whole.\n")
