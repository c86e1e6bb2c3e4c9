"""`attnsim predict`: one question on the command line, or a table of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim.api import compare
from attnsim.api.answer import Answer, Outcome, plain
from attnsim.api.answering import compared
from attnsim.api.asking import Question, read_conditions
from attnsim.api.bounds import expect_bounds
from attnsim.api.comparing.baselines import Ratios, check_baseline, ratios_over, ratios_over_unchanged
from attnsim.api.comparing.ratios import LikeForLike
from attnsim.api.comparing.splitting import Split
from attnsim.api.comparing.splitting import split as shared_out
from attnsim.api.tables import predict_rows, read, with_answers
from attnsim.cli import given, lifted, options, progress, question_flags, show, table_flags
from attnsim.cli.help import MACHINE
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import ConditionFlags, QuestionFlags, asking
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import match
from attnsim.models.mechanisms import comparable_unfused, only_for, playing, running
from attnsim.models.question.case_file import write_table
from attnsim.models.question.workload import Workload
from attnsim.reports.predictions import caption, heading, of_call, predicted, split_table, trusted, why_fastest
from attnsim.tables import Block


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
    refused = _refused(question, hypothetical, names, imitated, not wanted.algorithm)
    tile, tiles = wanted.tile, wanted.tiles
    asked = _Asked(names, imitated, tile, wanted.how.with_l2(flags.l2), refused)
    if not any(refused.values()):
        check_baseline(wanted.baseline, question, [*machines, *hypothetical], names, imitated)
    ways = [tiles] if tiles else ["shipped", "retuned"] if changes and tile is None else ["shipped"]
    groups: list[_Group] = []
    splits: list[Split[Answer[Question]]] = []
    with progress.plays() as asked.conditions["progress"]:
        for base, machine in zip(machines, hypothetical, strict=True):
            groups += asked.groups(question, base, machine, ways)
            splits += asked.splits(question, machine, ways[0]) if wanted.split_changes else []
    everything = [item for group in groups for item in group.predictions]
    over = [_over(group, wanted.baseline, bool(changes), everything) for group in groups]
    if json:
        for group in groups:
            if group.refusal or group.same:
                print(f"{group.title}{': ' if group.refusal else ''}{group.refusal}", file=sys.stderr)
        if wanted.split_changes:
            show.print_json(item.to_dict() for item in splits)
            return
        rows = [
            item.to_dict()
            | {"bound": plain(item.bound)}
            | {"ratios": {one.over: ratio and ratio.to_dict() for one in ratios for ratio in [one.ratios[place]]}}
            | ({"like_for_like": group.alike[place].to_dict()} if group.alike else {})
            for group, ratios in zip(groups, over, strict=True)
            if not group.same
            for place, item in enumerate(group.predictions)
        ] + [
            {"algorithm" if name in names else "implementation": name, "gpu": machine, "time_s": None, "error": reason}
            for machine, why in refused.items()
            for name, reason in why.items()
        ]
        show.print_json(rows)
        return
    show.print_blocks(
        show.console(), _blocks(question, groups, over, flags.title, splits, wanted.verbose), wanted.verbose
    )


def _algorithms(question: Workload, algorithm: str, imitated: list[str], flags: QuestionFlags) -> list[str]:
    """The algorithms that are asked for, or the usual ones for a question."""
    only = only_for(question)
    usual = (*comparable_unfused(question), playing(question.without_window()).name, *only[:1], *_run_by(imitated))
    names = options.words([algorithm or ",".join(dict.fromkeys(usual))], "--algorithm")
    if only and not set(only) & set(names):
        window, mask = flags.window, flags.mask
        told = f"--window {window}" if window else f"--mask {mask!r}" if mask else f"the mask of --model {flags.model}"
        who = " and ".join(only) if question.mask.is_band else only[0]
        raise InputError(f"{told} is for {who}, not for --algorithm {','.join(names)}; add {only[0]}")
    return names


def _over(group: _Group, baseline: str | None, changed: bool, everything: list[Outcome]) -> list[Ratios]:
    """The ratios of a table: over the unchanged GPU where there is one, and over what was named or is usual."""
    found = [ratios_over_unchanged(group.predictions, group.unchanged)] if group.unchanged else []
    if group.predictions and (baseline or not changed):
        found.append(ratios_over(group.predictions, baseline, everything))
    return found


@dataclass(frozen=True)
class _Group:
    """The predictions that share a table, and those on the unchanged GPU to hold against them.

    Where tiles do not fit there are none, and `refusal` says why; where they are the `same` as in the table before,
    they are not printed again. Retuned ones are held `alike`, against the unchanged GPU on retuned tiles.
    """

    title: str
    predictions: list[Outcome]
    unchanged: list[Outcome]
    refusal: str = ""
    same: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    alike: Sequence[LikeForLike[Outcome]] = ()


@dataclass(frozen=True)
class _Asked:
    """The flags that stay the same from GPU to GPU."""

    names: list[str]
    implementations: list[str]
    tile: str | None
    conditions: dict[str, Any]
    refused: Mapping[str, Mapping[str, str]]

    def groups(self, question: Workload, base: Gpu, machine: Gpu, ways: list[str]) -> list[_Group]:
        """Tables for one GPU: as it is, and changed in each of the `ways` to choose tiles."""
        expect_bounds()
        if machine is base:
            why = self.refused[base.base_id]
            return [_Group(f"{base.id}{_way(way)}", self.answers(question, base, way), [], refused=why) for way in ways]
        unchanged, refusal = [], ""
        try:
            unchanged = self.answers(question, base, "shipped")
        except InputError as error:
            refusal = str(error)  # a number format that only the changed GPU has
        found = [_Group(f"{base.id}, unchanged", unchanged, [], refusal)]
        told = "; ".join(str(one) for one in machine.changes if one not in base.changes)
        for number, way in enumerate(ways):
            title = f"the same changes, {way} tiles" if number else f"{base.id} with {told}; {way} tiles"
            try:
                answers = self.answers(question, machine, way)
                same = number > 0 and all(item.tiles == "shipped" for item in answers)
                title = "the same changes: no other tiles are faster" if same else title
                alike = () if same or way == "shipped" else self.alike(question, base, unchanged, answers)
                before = [one.retuned for one in alike] or unchanged
                why = self.refused[base.base_id]
                found.append(_Group(title, answers, before, same=same, refused=why, alike=alike))
            except InputError as error:
                if way == ways[-1]:
                    raise
                found.append(_Group(title, [], [], str(error)))  # other tiles may fit
        return found

    def alike(
        self, question: Workload, base: Gpu, unchanged: list[Outcome], answers: list[Outcome]
    ) -> list[LikeForLike[Outcome]]:
        """Each answer on retuned tiles beside those on the unchanged GPU; none where that has no answer."""
        if not unchanged:
            return []
        retuned = self.answers(question, base, "retuned")
        return [LikeForLike(*three) for three in zip(unchanged, retuned, answers, strict=True)]

    def answers(self, question: Workload, gpu: Gpu, way: str) -> list[Outcome]:
        able = [name for name in self.implementations if name not in self.refused[gpu.base_id]]
        names = [name for name in _of(able, self.names, self.implementations) if name not in self.refused[gpu.base_id]]
        if not names:
            return []
        return compare(
            question,
            gpu,
            names,
            implementation=able,
            tiles=way,
            tile=self.tile,
            **self.conditions,
        )

    def splits(self, question: Workload, machine: Gpu, way: str) -> list[Split[Answer[Question]]]:
        """The gain of each change, for every algorithm that fits the memory."""
        conditions = {key: value for key, value in self.conditions.items() if key != "progress"}
        return [
            shared_out(
                one.workload,
                machine,
                one.algorithm,
                implementation=one.implementation,
                tiles=way if one.tiles != "given" else "shipped",
                tile=self.tile if one.tiles == "given" else None,
                **conditions,
            )
            for one in self.answers(question, machine, way)
            if one.fits
        ]


def _way(way: str) -> str:
    return "" if way == "shipped" else f", {way} tiles"


def _blocks(
    question: Workload,
    groups: list[_Group],
    over: list[list[Ratios]],
    model: str,
    splits: list[Split[Answer[Question]]],
    verbose: bool,
) -> Iterator[Block]:
    names = [item.algorithm for group in groups for item in group.predictions]
    yield f"{model}{heading(question, names)}\n"
    for group, columns in zip(groups, over, strict=True):
        if group.refusal or group.same:
            yield "\n".join(filter(None, (group.title, group.refusal))) + "\n"
            continue
        yield predicted(group.title, group.predictions, columns, verbose, group.refused)
        yield from why_fastest(group.predictions)
        for one in group.alike:
            if one.changed.tiles == "retuned":
                yield f"{one.changed.algorithm}: {one.sentence}.\n"
    for split_up in splits:
        yield split_table(split_up, of_call(split_up.changed))
    shown = [one for columns in over for one in columns if any(one.ratios)]
    yield from dict.fromkeys(one.note for one in shown if one.note)
    everything = [item for group in groups if not group.same for item in group.predictions]
    alike = any(group.alike for group in groups)
    details = [caption(question, [one.over for one in shown], names, retuned=alike)]
    yield from trusted(everything, verbose, details)


def _run_by(implementations: list[str]) -> tuple[str, ...]:
    """The algorithm of each implementation that is none of the usual two; of those that are known."""
    found = []
    for name in implementations:
        with suppress(InputError):
            found.append(running(match(name).record)[0].name)
    return tuple(found)


def _of(able: list[str], names: list[str], wanted: list[str]) -> list[str]:
    """The algorithms without those that only other implementations than these run."""
    theirs = {*_run_by([name for name in wanted if name not in able])} - {*_run_by(able)}
    return [name for name in names if name not in theirs]


def _refused(
    question: Workload, gpus: list[Gpu], names: list[str], wanted: list[str], usual: bool
) -> dict[str, dict[str, str]]:
    """Why implementations, or the usual algorithms, cannot answer, by GPU, where another can or does on another GPU.

    Where none can, the first says why.
    """

    def why_not(gpu: Gpu, algorithms: list[str], own: list[str]) -> str:
        try:
            compared(question, gpu, algorithms, own, read_conditions())
        except InputError as error:
            return str(error)
        return ""

    found: dict[str, dict[str, str]] = {gpu.base_id: {} for gpu in gpus}
    asked = {name: (_of([name], names, wanted), [name]) for name in wanted}
    asked = asked or {name: ([name], list[str]()) for name in names if usual}
    if len(asked) * len(gpus) < 2:
        return found
    for gpu in gpus:
        if wanted or why_not(gpu, names, []):  # together they may be asked what one of them alone is not
            reasons = {name: why_not(gpu, *how) for name, how in asked.items()}
            found[gpu.base_id] = {name: reason for name, reason in reasons.items() if reason}
    if all(len(reasons) == len(asked) for reasons in found.values()):
        raise InputError(next(iter(found[gpus[0].base_id].values())))
    return found


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
