"""`attnsim whatif`: what each change of a GPU brings to each case, in one table and one picture."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

from attnsim.cli import options, outputs, progress, show
from attnsim.cli.cases import cases_of
from attnsim.cli.help import MACHINE, QUESTION
from attnsim.cli.look import Plot
from attnsim.cli.options import flag
from attnsim.cli.question_flags import NOT_OF_LAYERS, CallFlags, QuestionFlags, asking
from attnsim.errors import InputError, shown
from attnsim.plots.changes import whatif as picture
from attnsim.plots.files import write_csv
from attnsim.reports.search import whatif as what_ifs
from attnsim.studies.hardware_case import Case
from attnsim.studies.whatif import whatif as found_by
from attnsim.tables import written

SCOPES = ("attention", "layer", "model")
_row, _column = partial(flag, panel=MACHINE), partial(flag, panel=QUESTION)


@asking(algorithm="")
def whatif(
    *,
    case: Annotated[list[str], _column("CASE", "A column: 'pass=decode, batch=16, seq=8k'; repeat it.")] = [],  # noqa: B006
    of: Annotated[
        str,
        _column("WHAT", "attention, layer, model, or several with commas; default: attention, with --model layer too."),
    ] = "",
    mix: Annotated[str, _column("WEIGHTS", "A column more: the cases mixed, such as 0.5,0.5.")] = "",
    call: CallFlags,
    changes: Annotated[list[str], _row("KEY=VALUE", "A row: a change, or several with commas.", "--set")] = [],  # noqa: B006
    limit: Annotated[list[str], flag("NAME<=VALUE", "area<=1.1x, power<=700W: a row that breaks it says so.")] = [],  # noqa: B006
    tiles: Annotated[str, flag(None, "shipped or retuned; retuned ones for the unchanged GPU too.")] = "shipped",
    out: Annotated[Path | None, flag("FILE", "CSV, a line for each row and column.")] = None,
    plot: Plot,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Show what each change of a GPU brings to each case: speedup, range, bound, watts and die.

    Each --set is a row by itself; where all change different figures, the last row has them all together.
    """
    if out is not None:
        if out.suffix.lower() != ".csv":
            raise InputError(f"--out {out}: end the name with .csv")
        outputs.check_output(out)
    cases = _cases(call.flags, case, options.some_words(of, "--of"), mix)
    rows = [options.read_settings(text.split(",")) for text in changes]
    with progress.steps("answering machines", 1 + len(rows) + (len(rows) > 1)) as done:
        found = found_by(
            cases, call.machine, rows, algorithm=call.algorithm or None, tiles=tiles, limits=limit,
            mixed=bool(mix), done=done, **call.conditions,
        )  # fmt: skip
    records = found.records()
    files = [out] if out else []
    if out is not None:
        write_csv(out, list(records[0]), records)
    files += plot.draw(lambda: picture(records))
    blocks = what_ifs(found, call.flags.titled(left_out=False), call.how.launch, verbose)
    show.give(json, records, chain(blocks, written(files)), verbose)


def _cases(flags: QuestionFlags, given: list[str], scopes: list[str], mix: str) -> list[Case]:
    """The columns that are asked for: every case as a call, as a layer, or as both."""
    for scope in scopes:
        if scope not in SCOPES:
            raise InputError(f"--of is {shown(scope)}; allowed: attention, layer, model, or several with commas")
    if not scopes:
        alone = flags.model is None or any(getattr(flags, name) not in (None, False) for name in NOT_OF_LAYERS)
        scopes = list(SCOPES[:1] if alone else SCOPES[:2])
    weights = [1.0] * max(1, len(given))
    if mix:
        try:
            weights = [float(word) for word in mix.split(",")]
        except ValueError:
            weights = []
        if len(weights) < 2 or len(weights) != len(given) or not all(0 < one < float("inf") for one in weights):
            raise InputError(f"--mix is {shown(mix)}; allowed: a weight above 0 for each of several --case: 0.5,0.5")
    return [
        replace(one, weight=weight)
        for scope in scopes
        for one, weight in zip(
            cases_of(
                flags, given, f"--of {scope}" if scope != "attention" else "", weights=False, whole=scope == "model"
            ),
            weights,
            strict=True,
        )
    ]
