"""`attnsim explain`: one algorithm on one GPU, from its loop nest to what would have to change for it to be faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from attnsim.api.asking import read_conditions
from attnsim.api.comparing.splitting import split as shared_out
from attnsim.api.explaining import explain as explained
from attnsim.api.explaining import one_launch
from attnsim.cli import given, lifted, options, progress, question_flags, show
from attnsim.cli.question_flags import OF_THE_CALL, ConditionFlags, QuestionFlags, asking
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.reports.explanations import explanation
from attnsim.reports.predictions import check_window, of_call, split_table
from attnsim.tables import Block, Table


@asking()
def explain(
    *,
    context: typer.Context,
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help="A name that attnsim algorithms lists.")] = "",
    gpu: options.OneGpu = "",
    kernel: options.KernelFile = None,
    implementation: options.ImplementationName = None,
    flags: QuestionFlags,
    changes: options.Changes = [],  # noqa: B006 Typer copies it
    split_changes: options.SplitChanges = False,
    tile: options.Tile = None,
    how: ConditionFlags,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Explain an algorithm: loop nest, what limits it, bytes by tensor and level, what bounds it.

    Without --model, --heads, --seq and --head-dim its own example is taken.
    """
    if kernel is not None:
        lifted.explain(context, kernel, gpu, changes, verbose, json, how.with_l2(flags.l2))
        return
    if not algorithm:
        raise InputError("nothing to explain is given; give a name (attnsim algorithms lists them) or --kernel FILE")
    if split_changes:
        options.check_split(changes)
    question = flags.workload() if any(given.is_given(context, name) for name in OF_THE_CALL) else None

    if question is not None:
        check_window(question, [algorithm], flags.window)
    machine, asked = question_flags.changed(load_gpu(gpu), changes), how.with_l2(flags.l2)
    with progress.plays() as report:
        found = explained(
            question, machine, algorithm, implementation=implementation, tile=tile, progress=report, **asked
        )
    call, parts = found.prediction, None
    if split_changes:
        parts = shared_out(
            call.workload, machine, call.algorithm, implementation=call.implementation, tile=tile, **asked
        )
    conditions = read_conditions(mode=how.mode, cache=flags.l2, launch=how.launch)
    one = one_launch(call.workload, machine, conditions)

    def blocks() -> Iterator[Block]:
        yield from explanation(found, machine, flags.title)
        if one:
            yield ""
            title = "Prefill and decodes: one launch, two streams, one after the other"
            yield Table(title, one.shown(), remarks=[one.sentence])
        if parts:
            yield ""
            yield split_table(parts, of_call(parts.changed))

    more: dict[str, Any] = {"split": parts} if parts else {}
    more |= {"one_launch": one} if one else {}
    record = found.to_dict() | {name: part.to_dict() for name, part in more.items()}
    show.give(json, [record], blocks(), verbose)
