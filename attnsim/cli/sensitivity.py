"""`attnsim sensitivity`: which figure of a GPU a time hangs on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from attnsim.api.answering import answer
from attnsim.api.asking import ask, read_conditions
from attnsim.cli import given, options, progress, show
from attnsim.cli.question_flags import CallFlags, asking
from attnsim.reports.explanations import timed_text
from attnsim.reports.studies import elasticities_table, indices_table
from attnsim.studies.sensitivity import elasticities
from attnsim.studies.sensitivity import sobol as indices
from attnsim.tables import Block


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
        yield from elasticities_table(found, step)
        if shares:
            yield from indices_table(shares, sobol or 0, spread)

    show.give(json, ({"kind": kind, **item} for kind, items in kinds for item in items), blocks(), verbose)
