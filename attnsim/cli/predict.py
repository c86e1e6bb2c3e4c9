"""`attnsim predict`: one question on the command line, or a table of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from attnsim.api.answer import Answer
from attnsim.api.asking import Question, read_conditions
from attnsim.api.comparing.baselines import check_baseline
from attnsim.api.comparing.splitting import Split
from attnsim.api.tables import predict_rows, read, with_answers
from attnsim.cli import given, lifted, options, progress, question_flags, show, table_flags
from attnsim.cli.help import MACHINE
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import ConditionFlags, QuestionFlags, asking
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.mechanisms import comparable_unfused, only_for, playing
from attnsim.models.question.case_file import write_table
from attnsim.models.question.workload import Workload
from attnsim.reports.question import Asked, Group, blocks, ratios_of, records, refusals, run_by


@dataclass(frozen=True, kw_only=True)
class StepPlot(Plot):
    """The picture of a step."""

    plot: Annotated[Path | None, flag("FILE", "Picture of the step of --layer --lengths, and its CSV.")] = None


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """The flags of `attnsim predict`."""

    context: typer.Context
    gpu: options.ManyGpus = field(default_factory=list)
    kernel: lifted.File = None
    algorithm: Annotated[
        str,
        flag(None, "Names with commas; default: naive,flash, and what has the window or the patterns.", panel=MACHINE),
    ] = ""
    implementation: options.ImplementationNames = ""
    baseline: options.Baseline = None
    layer: Annotated[
        bool, switch("The whole layer of --model: projections, attention and MLP; cold L2.", "--layer")
    ] = False
    flags: QuestionFlags
    ep: options.ExpertGpus = None
    seq: options.Seqs = None
    changes: options.Changes = field(default_factory=list)
    split_changes: options.SplitChanges = False
    tiles: Annotated[str | None, flag(None, "shipped or retuned; default: shipped, and both with --set.")] = None
    tile: options.Tile = None
    how: ConditionFlags
    cases: Annotated[Path | None, flag("FILE", "Case table, CSV or Parquet.")] = None
    out: Annotated[Path | None, flag("FILE", "Where the predicted table goes.")] = None
    plot: StepPlot
    columns: table_flags.ColumnFlags
    verbose: options.Details = False
    json: options.Json = False

    def __post_init__(self) -> None:
        """Refuse what this question cannot be asked with."""
        if self.plot.plot is not None and not (self.layer and self.flags.lengths is not None):
            raise InputError("--plot draws the step of --layer --lengths; attnsim plot draws other answers")
        if self.kernel is not None or self.cases is not None:
            return
        self.columns.check_without("--cases")
        if self.out is not None:
            raise InputError(f"--out {self.out} goes with --cases; for one question use --json and redirect it")
        if self.tile is not None and self.tiles is not None:
            raise InputError(f"--tile {self.tile} and --tiles {self.tiles} exclude each other; leave one out")
        if not (self.layer and self.flags.lengths):
            given.refuse(self.context, "goes with --layer --lengths, a step of a server", ("ep",))

    @property
    def lengths(self) -> list[int | None]:
        """The lengths of ``--seq``."""
        found = options.lengths(self.seq, several=self.layer)
        if len(found) > 1 and not self.layer:
            raise InputError(
                f"--seq {self.seq} has several lengths, which go with --layer; give one, or a table with --cases"
            )
        return found


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
        told = f"--window {window}" if window else f"--mask {mask!r}" if mask else f"the mask of --model {flags.model}"
        who = " and ".join(only) if question.mask.is_band else only[0]
        raise InputError(f"{told} is for {who}, not for --algorithm {','.join(names)}; add {only[0]}")
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
        told = f", {failed} of them not: see column error" if failed else ""
        print(f"{len(result)} rows predicted to {out}{told}", file=sys.stderr)
    if asked.json:
        show.print_json(result.astype(object).where(result.notna(), None).to_dict("records"))
    elif out is None:
        result.to_csv(sys.stdout, index=False, lineterminator="\n")
    if failed:
        raise typer.Exit(1)
