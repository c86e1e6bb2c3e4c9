"""`attnsim predict`: one question on the command line, or a table of them."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from attnsim.api.answer import Answer
from attnsim.api.asking import Question, read_conditions
from attnsim.api.comparing.baselines import check_baseline
from attnsim.api.comparing.splitting import Split
from attnsim.api.tables import predict_rows, read, with_answers
from attnsim.cli import given, lifted, options, progress, question_flags, show, table_flags
from attnsim.cli.predict_flags import PredictFlags
from attnsim.cli.question_flags import QuestionFlags, asking
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.mechanisms import comparable_unfused, only_for, playing
from attnsim.models.question.case_file import write_table
from attnsim.models.question.workload import Workload
from attnsim.reports.question import Asked, Group, blocks, ratios_of, records, refusals, run_by


@asking()
def predict(*, asked: PredictFlags) -> None:
    """Predict attention on a GPU: time, bytes, what bounds it, and how far to trust it."""
    if asked.kernel is not None:
        lifted.predict(asked.kernel, asked)
    elif asked.cases is not None:
        _predict_cases(asked.cases, asked)
    elif asked.layer:
        from attnsim.cli.layer import predict_layers

        predict_layers(asked)
    else:
        _predict(asked)


def _predict(wanted: PredictFlags) -> None:
    """Answer one question."""
    context, flags, changes, json = wanted.context, wanted.flags, wanted.changes, wanted.json
    if wanted.split_changes:
        options.check_split(changes)
        left_out = ("baseline",) if json else ()
        given.refuse(context, "is about the table of times, which --split --json leaves out", left_out)
    question = flags.workload(seq=wanted.lengths[0])
    imitated = options.some_words(wanted.implementation, "--implementation")
    names = _algorithms(question, wanted.algorithm, imitated, flags)

    machines = [load_gpu(name) for name in options.words(wanted.gpu, "--gpu")]
    hypothetical = [question_flags.changed(machine, changes) for machine in machines]
    refused = refusals(question, hypothetical, names, imitated, not wanted.algorithm)
    tile, tiles = wanted.tile, wanted.tiles
    asked = Asked(names, imitated, tile, wanted.how.with_l2(flags.l2), refused)
    if not any(refused.values()):
        check_baseline(wanted.baseline, question, [*machines, *hypothetical], names, imitated)
    ways = [tiles] if tiles else ["shipped", "retuned"] if changes and tile is None else ["shipped"]
    groups: list[Group] = []
    splits: list[Split[Answer[Question]]] = []
    with progress.plays() as asked.conditions["progress"]:
        for base, machine in zip(machines, hypothetical, strict=True):
            groups += asked.groups(question, base, machine, ways)
            splits += asked.splits(question, machine, ways[0]) if wanted.split_changes else []
    everything = [item for group in groups for item in group.predictions]
    over = [ratios_of(group, wanted.baseline, bool(changes), everything) for group in groups]
    if json:
        for group in groups:
            if group.refusal or group.same:
                print(f"{group.title}{': ' if group.refusal else ''}{group.refusal}", file=sys.stderr)
    found = (item.to_dict() for item in splits) if splits else records(groups, over, asked)
    show.give(json, found, blocks(question, groups, over, flags.title, splits, wanted.verbose), wanted.verbose)


def _algorithms(question: Workload, algorithm: str, imitated: list[str], flags: QuestionFlags) -> list[str]:
    """The algorithms that are asked for, or the usual ones for a question."""
    only = only_for(question)
    usual = (*comparable_unfused(question), playing(question.without_window()).name, *only[:1], *run_by(imitated))
    names = options.words([algorithm or ",".join(dict.fromkeys(usual))], "--algorithm")
    if only and not set(only) & set(names):
        window, mask = flags.window, flags.mask
        which = f"--window {window}" if window else f"--mask {mask!r}" if mask else f"the mask of --model {flags.model}"
        who = " and ".join(only) if question.mask.is_band else only[0]
        raise InputError(f"{which} is for {who}, not for --algorithm {','.join(names)}; add {only[0]}")
    return names


_WITH_CASES = {"cases", "out", "implementation", "tiles", "mode", "budget", "calibration", "json", *table_flags.NAMES}


def _predict_cases(cases: Path, asked: PredictFlags) -> None:
    """The table of answers; ends with 1 where a row has none."""
    given.refuse(asked.context, "is given with --cases, whose table holds the questions", but=_WITH_CASES)
    naming, how, out = asked.columns.naming(implementation=asked.implementation or None), asked.how, asked.out
    if out is not None:
        table_flags.check_table(out)

    conditions = read_conditions(
        tiles=asked.tiles or "shipped", mode=how.mode, budget=how.budget, calibration=how.calibration
    )
    frame, columns = read(cases, naming)
    result = with_answers(frame, predict_rows(frame, columns, conditions), columns.time is not None)
    table_flags.print_columns(columns)
    asked.columns.save(columns, naming)
    failed = int((result["error"] != "").sum())
    if out is not None:
        write_table(result, out)
        missing = f", {failed} of them not: see column error" if failed else ""
        print(f"{len(result)} rows predicted to {out}{missing}", file=sys.stderr)
    if asked.json:
        show.print_json(result.astype(object).where(result.notna(), None).to_dict("records"))
    elif out is None:
        result.to_csv(sys.stdout, index=False, lineterminator="\n")
    if failed:
        raise typer.Exit(1)
