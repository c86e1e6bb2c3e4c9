"""`attnsim whatif`: what each change of a GPU brings to each case, in one table and one picture."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from attnsim import wording
from attnsim.api.comparing.ratios import Ratio
from attnsim.cli import options, outputs, progress, show
from attnsim.cli.cases import cases_of
from attnsim.cli.help import MACHINE, QUESTION
from attnsim.cli.layer import NOT_OF_LAYERS
from attnsim.cli.look import Look
from attnsim.cli.options import flag
from attnsim.cli.question_flags import QuestionFlags, asking
from attnsim.cli.search_hardware import told_of_area
from attnsim.errors import InputError, shown
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.files import load_gpu
from attnsim.plots.changes import whatif as picture
from attnsim.plots.files import write_csv
from attnsim.studies.hardware_case import Case
from attnsim.studies.whatif import Cell, Column, Row, WhatIf
from attnsim.studies.whatif import whatif as found_by

SCOPES = ("attention", "layer", "model")
_row, _column = partial(flag, panel=MACHINE), partial(flag, panel=QUESTION)


@asking()
def whatif(
    *,
    context: typer.Context,
    gpu: options.OneGpu,
    changes: Annotated[list[str], _row("KEY=VALUE", "A row: a change, or several with commas.", "--set")] = [],  # noqa: B006
    case: Annotated[list[str], _column("CASE", "A column: 'pass=decode, batch=16, seq=8k'; repeat it.")] = [],  # noqa: B006
    of: Annotated[
        str,
        _column("WHAT", "attention, layer, model, or several with commas; default: attention, with --model layer too."),
    ] = "",
    mix: Annotated[str, _column("WEIGHTS", "A column more: the cases mixed, such as 0.5,0.5.")] = "",
    limit: Annotated[list[str], flag("NAME<=VALUE", "area<=1.1x, power<=700W: a row that breaks it says so.")] = [],  # noqa: B006
    tiles: Annotated[str, flag(None, "shipped or retuned; retuned ones for the unchanged GPU too.")] = "shipped",
    algorithm: options.AlgorithmName = "",
    implementation: options.ImplementationName = None,
    flags: QuestionFlags,
    launch: options.Launch = "stream",
    calibration: options.Calibration = None,
    out: Annotated[Path | None, flag("FILE", "CSV, a line for each row and column.")] = None,
    plot: Annotated[Path | None, flag("FILE", "Picture, .png, .svg, .pdf or .pgf, with its CSV beside it.")] = None,
    look: Look,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Show what each change of a GPU brings to each case: speedup, range, bound, watts and die.

    Each --set is a row by itself; where all change different figures, the last row has them all together.
    """
    look.check_asked(context, plot)
    if out is not None:
        if out.suffix.lower() != ".csv":
            raise InputError(f"--out {out}: end the name with .csv")
        outputs.check_output(out)
    cases = _cases(flags, case, options.words([of], "--of") if of else [], mix)
    base = load_gpu(gpu)
    rows = [options.read_settings(text.split(",")) for text in changes]
    with progress.steps("answering machines", 1 + len(rows) + (len(rows) > 1)) as done:
        found = found_by(
            cases, base, rows, algorithm=algorithm or None, implementation=implementation, tiles=tiles, limits=limit,
            mixed=bool(mix), cache=flags.l2, launch=launch, calibration=calibration, done=done,
        )  # fmt: skip
    records = found.records()
    written = [out] if out else []
    if out is not None:
        write_csv(out, list(records[0]), records)
    if plot is not None:
        written += look.write(picture(records), plot)
    if json:
        show.print_json(records)
        return
    _print(found, flags.titled(left_out=False), launch, verbose)
    if written:
        print(f"written: {', '.join(map(str, dict.fromkeys(written)))}")


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


def _print(found: WhatIf, title: str, launch: str, verbose: bool) -> None:
    """The table, and a line for what does not fit into it."""
    out = show.console()
    base = found.unchanged.gpu
    asked: dict[str, str] = {}
    for one in found.columns:
        if len(one.cases) == 1:
            (case,) = one.cases
            cold = ", cold L2" if one.name and case.cache == "cold" and "cold L2" not in title else ""
            asked.setdefault(one.name, f"{case.workload}{cold}")
    out.print(f"{title}{base.id}, {found.tiles} tiles, {wording.launched_text(launch)}")
    for name, question in asked.items():
        out.print(f"{name}: {question}" if name else question)
    if shared := _all_reduces(found):
        out.print(shared)
    rows: list[dict[str, object]] = [
        {
            "change": _name(row),
            "die mm2": _die(row),
            **{_head(column): _cell(row, cell, found) for column, cell in zip(found.columns, row.cells, strict=True)},
        }
        for row in (found.unchanged, *found.rows)
    ]
    rows[-1] = {head: str(cell).rstrip("\n") for head, cell in rows[-1].items()}
    show.print_rows(out, "", rows, whole=rows[0])
    for line in found.remarks:
        out.print(line)
    limit = base.power.limit_w
    cells = [cell.answer for row in (found.unchanged, *found.rows) for cell in row.cells if cell.answer]
    if any(one.watts.typical > limit for one in cells):
        law = architecture_of(base.compute_capability_number)
        some, full = (f"{1e3 * one:g} ms" for one in (law.slowed_from_s, law.slowed_to_s))
        out.print(
            f"W above {limit:g}, the power limit: what the call would draw, run again and again at its clock. The "
            f"limit lowers the clock of calls, layers and steps from {some} on, and wholly from {full} on; shorter "
            "ones, run again and again, would be slower than said here."
        )
    retuned = " Retuned tiles are the unchanged GPU's too; tile: what they bring there." * (found.tiles == "retuned")
    out.print(
        "A cell: speedup over the unchanged GPU (of that its time), 90 % range, what bounds the call (of a layer: what "
        f"is busiest) and watts.{retuned}"
    )
    dies = told_of_area(base, [row.gpu for row in found.rows], [row.name for row in found.rows])
    for line in dies if verbose or found.unchanged.area is None else dies[1:]:  # the first says how it is counted
        out.print(line)
    answers = [cell.answer for cell in found.rows[0].cells if cell.answer and verbose]
    for reason in dict.fromkeys(call.trust.reason for one in answers for call in one.predictions):
        out.print(f"trust: {reason}")


def _all_reduces(found: WhatIf) -> str:
    """Which columns have the all-reduces of several GPUs, and which leave them out."""
    scopes = dict.fromkeys(column.of for column in found.columns if any(case.tp > 1 for case in column.cases))
    without = " and ".join(of for of in scopes if of != "model")
    told = [f"left out of {without}"] * bool(without) + ["part of the model's time"] * ("model" in scopes)
    return f"All-reduces: {', '.join(told)}" if told else ""


def _name(row: Row) -> str:
    """The settings of a row, a line each; of one alone its value below it."""
    settings = [f"{key}={value}" for key, value in row.change.items()] or [row.name]
    lines = map(str, *row.change.items()) if len(row.change) == 1 else settings
    return "\n".join((*lines, *dict.fromkeys(f"breaks {name}" for name, _ in row.broken), ""))


def _die(row: Row) -> str:
    if (area := row.area) is None:
        return wording.NOTHING
    ends = [wording.number(one) for one in (area.low, area.high)]
    return "\n".join((wording.number(area.typical), *(["-".join(ends)] if area.low < area.high else [])))


def _head(column: Column) -> str:
    """The scope of a column, and its case in lines."""
    return "\n".join((column.of, *filter(None, (word.strip() for word in column.name.split(",")))))


def _cell(row: Row, cell: Cell, found: WhatIf) -> str:
    if cell.answer is None:
        return wording.NOTHING
    lines = _ratio(cell.answer.speedup)
    if row is found.unchanged or not lines:
        lines = [wording.time_text(cell.answer.time_s.typical) if cell.bound else wording.NOTHING]
        tile = _ratio(cell.alike.tile) if cell.alike else []
        lines += [f"tile {tile[0]}", *tile[1:]] if tile else []
    return "\n".join((*lines, f"{cell.bound} {wording.number(cell.answer.watts.typical)} W".strip(), ""))


def _ratio(one: Ratio | None) -> list[str]:
    """A ratio, and its range below it."""
    return [wording.times_text(one.value), "-".join(wording.ends_text(one.value, one.low, one.high))] if one else []
