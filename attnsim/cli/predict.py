"""`attnsim predict`: one question on the command line, or a table of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.cli import options, progress, show
from attnsim.cli.heading import caption, heading
from attnsim.cli.layer import predict_layers
from attnsim.cli.question_flags import QuestionFlags, asking
from attnsim.models.errors import InputError

if TYPE_CHECKING:
    from attnsim.api import Prediction
    from attnsim.models.hardware.gpu import Gpu
    from attnsim.models.question.workload import Workload


@asking()
def predict(
    *,
    context: typer.Context,
    gpu: options.ManyGpus = [],  # noqa: B006 Typer copies it
    algorithm: Annotated[
        str, typer.Option(help="Names with commas; default: naive,flash, and what has the window or the patterns.")
    ] = "",
    implementation: options.ImplementationNames = "",
    layer: Annotated[
        bool, typer.Option("--layer", help="The whole attention layer of --model, with its projections; cold L2.")
    ] = False,
    flags: QuestionFlags,
    seq: options.Seqs = None,
    changes: options.Changes = [],  # noqa: B006
    tiles: Annotated[
        str | None, typer.Option(help="shipped or retuned; default: shipped, and both with --set.")
    ] = None,
    tile: options.Tile = None,
    mode: options.Mode = "fast",
    budget: options.Budget = None,
    cache: options.Cache = "warm",
    launch: options.Launch = "stream",
    cases: Annotated[Path | None, typer.Option(metavar="FILE", help="Case table, CSV or Parquet.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the predicted table goes.")] = None,
    json: options.Json = False,
) -> None:
    """Predict attention on a GPU: time, bytes, what bounds it, and how far to trust it."""
    if cases is not None:
        _check_alone(context)
        _predict_cases(cases, out, tiles or "shipped", mode, budget, json)
        return
    if out is not None:
        raise InputError(f"--out {out} goes with --cases; for one question use --json and redirect it")
    if not gpu:
        raise InputError("--gpu is missing; give --gpu ID (attnsim gpus lists them), or a table with --cases")
    lengths = options.lengths(seq)
    if layer:
        predict_layers(
            context, flags, gpu=gpu, changes=changes, lengths=lengths, algorithm=algorithm,
            implementation=implementation, mode=mode, budget=budget, cache=cache, launch=launch, json=json,
        )  # fmt: skip
        return
    if len(lengths) > 1:
        raise InputError(f"--seq {seq} has several lengths, which go with --layer; give one, or a table with --cases")
    question = flags.workload(seq=lengths[0])
    from attnsim.models.mechanisms import only_for, playing

    only = only_for(question)
    imitated = options.words([implementation], "--implementation") if implementation else []
    usual = ("naive", playing(question.without_window()).name, *only[:1], *_run_by(imitated))
    names = options.words([algorithm or ",".join(dict.fromkeys(usual))], "--algorithm")
    if only and not set(only) & set(names):
        window, mask = flags.window, flags.mask
        told = f"--window {window}" if window else f"--mask {mask!r}" if mask else f"the mask of --model {flags.model}"
        who = " and ".join(only) if question.mask.is_band else only[0]
        raise InputError(f"{told} is for {who}, not for --algorithm {','.join(names)}; add {only[0]}")
    if tile is not None and tiles is not None:
        raise InputError(f"--tile {tile} and --tiles {tiles} exclude each other; leave one out")
    asked = _Asked(names, imitated, tile, {"mode": mode, "budget": budget, "cache": cache, "launch": launch})
    from attnsim.models.hardware.files import load_gpu

    machines = [load_gpu(name) for name in options.words(gpu, "--gpu")]
    hypothetical = [options.changed(machine, changes) for machine in machines]
    ways = [tiles] if tiles else ["shipped", "retuned"] if changes and tile is None else ["shipped"]
    groups: list[_Group] = []
    with progress.plays() as asked.conditions["told"]:
        for base, machine in zip(machines, hypothetical, strict=True):
            groups += asked.groups(question, base, machine, ways)
    if json:
        for group in groups:
            if group.refusal:
                print(f"{group.title}: {group.refusal}", file=sys.stderr)
        show.print_json(item.to_dict() for group in groups for item in group.predictions)
        return
    _print(question, groups, flags.title)


@dataclass(frozen=True)
class _Group:
    """The predictions that share a table, and those on the unchanged GPU to hold against them.

    Where tiles do not fit there are none, and `refusal` says why.
    """

    title: str
    predictions: list[Prediction]
    unchanged: list[Prediction]
    refusal: str = ""


@dataclass(frozen=True)
class _Asked:
    """The flags that stay the same from GPU to GPU."""

    names: list[str]
    implementations: list[str]
    tile: str | None
    conditions: dict[str, Any]

    def groups(self, question: Workload, base: Gpu, machine: Gpu, ways: list[str]) -> list[_Group]:
        """Tables for one GPU: as it is, and changed in each of the `ways` to choose tiles."""
        if machine is base:
            return [_Group(f"{base.id}{_way(way)}", self.answers(question, base, way), []) for way in ways]
        unchanged = self.answers(question, base, "shipped")
        found = [_Group(f"{base.id}, unchanged", unchanged, [])]
        told = "; ".join(map(str, machine.changes))
        for number, way in enumerate(ways):
            title = f"the same changes, {way} tiles" if number else f"{base.id} with {told}; {way} tiles"
            try:
                found.append(_Group(title, self.answers(question, machine, way), unchanged))
            except InputError as error:
                if way == ways[-1]:
                    raise
                found.append(_Group(title, [], [], str(error)))  # other tiles may fit
        return found

    def answers(self, question: Workload, gpu: Gpu, way: str) -> list[Prediction]:
        from attnsim.api import compare

        return compare(
            question,
            gpu,
            self.names,
            implementation=self.implementations,
            tiles=way,
            tile=self.tile,
            **self.conditions,
        )


def _way(way: str) -> str:
    return "" if way == "shipped" else f", {way} tiles"


def _print(question: Workload, groups: list[_Group], model: str) -> None:
    out = show.console()
    names = [item.algorithm for group in groups for item in group.predictions]
    out.print(f"{model}{heading(question, names)}\n")
    for group in groups:
        if group.refusal:
            out.print(f"{group.title}\n{group.refusal}\n")
        else:
            show.print_predictions(out, group.title, group.predictions, group.unchanged)
    everything = [item for group in groups for item in group.predictions]
    show.print_remarks(out, everything)
    out.print(caption(question, any(group.unchanged for group in groups), names))


def _run_by(implementations: list[str]) -> tuple[str, ...]:
    """The algorithm of each implementation that is none of the usual two."""
    from attnsim.models.implementations.choose import find_implementation
    from attnsim.models.mechanisms import running

    return tuple(running(find_implementation(name))[0].name for name in implementations)


_WITH_CASES = {"cases", "out", "tiles", "mode", "budget", "json"}


def _check_alone(context: typer.Context) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in _WITH_CASES and source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"{parameter.opts[0]} is given with --cases, whose table holds the questions; leave it out"
            )


def _predict_cases(cases: Path, out: Path | None, tiles: str, mode: str, budget: int | None, json: bool) -> None:
    from attnsim.models.question.case_file import read_table, write_table

    if out is not None:
        if out.suffix.lower() not in (".csv", ".parquet", ".pq"):
            raise InputError(f"{out}: end the name with .csv or .parquet, which choose the format")
        options.check_output(out)
    frame = read_table(cases)
    from attnsim.api import predict_table

    result = predict_table(frame, tiles=tiles, mode=mode, budget=budget)
    if out is not None:
        write_table(result, out)
        failed = int((result["error"] != "").sum())
        print(
            f"{len(result)} rows predicted to {out}" + (f", {failed} of them not: see column error" if failed else ""),
            file=sys.stderr,
        )
    if json:
        rows = result.astype(object).where(result.notna(), None).to_dict("records")
        show.print_json(rows)
    elif out is None:
        result.to_csv(sys.stdout, index=False, lineterminator="\n")
