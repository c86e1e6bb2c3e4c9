"""`attnsim sensitivity`: which figure of a GPU a time hangs on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from attnsim import wording
from attnsim.api.answering import answer
from attnsim.api.asking import ask, read_conditions
from attnsim.cli import given, options, progress, show
from attnsim.cli.question_flags import CallFlags, asking
from attnsim.models.hardware.sections import FIELDS
from attnsim.reports.explanations import timed_text
from attnsim.studies.sensitivity import Elasticity, Index, elasticities
from attnsim.studies.sensitivity import sobol as indices
from attnsim.tables import Block, Remarks, Table


@asking()
def sensitivity(
    *,
    context: typer.Context,
    call: CallFlags,
    tile: options.Tile = None,
    step: Annotated[float, options.amount("Relative step of the differences.")] = 0.05,
    sobol: Annotated[int | None, options.count("Sobol indices too, from N samples, a power of two.", None)] = None,
    spread: Annotated[float, options.amount("Sobol: each figure from its value over this to times this.")] = 2.0,
    seed: Annotated[int, options.count("Of the Sobol samples.", None, low=0)] = 0,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Show how sensitive the time is to each figure of a GPU: d log time / d log figure."""
    if sobol is None:
        given.refuse(context, "is about the indices of --sobol, which are not asked for", ("spread", "seed"))
    w, flags = call.flags.workload(), call.flags
    conditions = read_conditions(tile=tile, **call.how.with_l2(flags.l2))
    asked = ask(w, call.machine, call.algorithm, call.implementation, conditions)
    with progress.busy("varying figures"):
        found = elasticities(asked, step)
        shares = [] if sobol is None else indices(asked, sobol, seed, spread)
    base = answer(asked)
    kinds = (("prediction", [base.to_dict()]), ("elasticity", map(asdict, found)), ("sobol", map(asdict, shares)))

    def blocks() -> Iterator[Block]:
        yield f"{flags.title}{w}\n"
        yield f"{call.machine.described}, {call.algorithm}: {timed_text(base)}, {base.trust.level}\n"
        yield from _elasticities(found, step)
        if shares:
            yield from _indices(shares, sobol or 0, spread)

    show.give(json, ({"kind": kind, **item} for kind, items in kinds for item in items), blocks(), verbose)


SMALL = 0.005
"""Elasticities below are not told apart from 0."""


def _elasticities(found: list[Elasticity], step: float) -> Iterator[Block]:
    timed = any(item.timing for item in found)
    rows = [
        {
            "figure": item.figure,
            "value": FIELDS[item.figure].show(item.value),
            "elasticity": f"{item.elasticity:+.2f}" + (f" +-{item.timing:.2f}" if timed else ""),
            "down": wording.NOTHING if item.down is None else f"{item.down:+.2f}",
            "up": wording.NOTHING if item.up is None else f"{item.up:+.2f}",
            "10 % more": wording.NOTHING if item.up is None else f"{100 * (1.1**item.up - 1):+.1f} %",
            "": "kink" if item.kink else "",
        }
        for item in found
        if abs(item.elasticity) >= SMALL or item.kink
    ]
    yield Table("", rows, right=("elasticity", "down", "up", "10 % more"))
    idle = [item.figure for item in found if abs(item.elasticity) < SMALL and not item.kink]
    details = [f"no effect: {', '.join(idle)}"] if idle else []
    details.append(
        f"elasticity: d log time / d log figure, central difference over {100 * step:g} % down and up (beside it). "
        "-1: the figure alone decides; 0: it does not matter. The figure whose increase shortens the time most comes "
        "first. kink: the two sides differ, another unit takes over here or the number of "
        "waves changes. Tiles stay as they are; times are replayed, and may jump from anomalies of scheduling, by "
        "more than 2 % in one change of 1,000."
        + (" +-: how far it moves as resident blocks fall into step or not." if timed else "")
    )
    short = "-1: the figure alone decides the time; 0: it does not matter. -v says how it is taken, and which are 0."
    yield Remarks(short, details)


def _indices(shares: list[Index], samples: int, spread: float) -> Iterator[Block]:
    rows = [
        {"figure": item.figure, "first order": f"{item.first:.2f}", "total": f"{item.total:.2f}"} for item in shares
    ]
    yield ""
    yield Table(f"Sobol indices of log time, {samples} samples", rows, right=("first order", "total"))
    yield (
        f"shares of the variance when every figure varies from 1/{spread:g} to {spread:g} times its value "
        "(log-uniform, independent): first order alone, total with interactions. Times in closed form."
    )
