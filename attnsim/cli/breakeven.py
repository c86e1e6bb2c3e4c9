"""`attnsim breakeven`: the density below which block-sparse attention beats dense flash."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from attnsim.api.comparing.breakeven import BreakEven
from attnsim.api.comparing.breakeven import breakeven as search
from attnsim.cli import options, question_flags, show
from attnsim.cli.help import QUESTION
from attnsim.cli.look import Plot
from attnsim.cli.options import flag
from attnsim.cli.plot_flags import numbers_of
from attnsim.cli.progress import steps
from attnsim.cli.question_flags import NOT_OF_DENSITIES, LaunchFlags, QuestionFlags, asking
from attnsim.models.hardware.files import load_gpu
from attnsim.plots.density import breakeven as picture
from attnsim.reports.studies import breakeven_tables


@asking(without=(*NOT_OF_DENSITIES, "caption"))
def breakeven(
    *,
    gpu: options.ManyGpus,
    flags: QuestionFlags,
    seq: Annotated[str, flag("N", "Sequence lengths: 64k; 4k,16k; 4k:64k.", panel=QUESTION)] = "4096,16384,65536",
    pattern: Annotated[str, flag(None, "What grows until it no longer pays: random, window or bigbird.")] = ("random"),
    block: Annotated[int, options.count("Tokens of a block of the pattern.")] = 64,
    tile: Annotated[str, flag("ROWSxKEYS", "Tiles of the sparse kernel, with commas; default: its own choice.")] = "",
    sparse: Annotated[
        str, flag(None, "Sparse implementations, with commas; default: the best for the GPU and our own.")
    ] = "",
    dense: Annotated[str, flag(None, "Implementation to beat; default: the best for the GPU.")] = "",
    plot: Plot,
    changes: options.Changes = [],  # noqa: B006 Typer copies it
    how: LaunchFlags,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Find the density below which block-sparse attention beats dense flash, by length, kernel, tile and GPU.

    Without --model, --heads and --head-dim it has 16 heads of 128. A --mask of your own is answered and marked beside
    the pattern.
    """
    lengths = numbers_of(seq, "--seq")
    tiles = options.words([tile], "--tile") if tile else [None]
    kernels = options.some_words(sparse, "--sparse")
    if flags.model is None:
        flags = replace(flags, heads=flags.heads or 16, head_dim=flags.head_dim or 128)
    question = flags.workload(seq=lengths[0])

    machines = [question_flags.changed(load_gpu(name), changes) for name in options.words(gpu, "--gpu")]
    rows: list[BreakEven] = []
    with steps("bisecting densities", len(machines) * len(lengths) * len(tiles)) as done:
        for machine in machines:
            rows += search(
                question, machine, lengths, tiles=tiles, pattern=pattern, block=block, sparse=kernels,
                dense=dense or None, done=done, **how.with_l2(flags.l2),
            )  # fmt: skip
    w = question
    heads = f"{w.heads_q}" if w.group == 1 else f"{w.heads_q}/{w.heads_kv}"
    what = f"batch {w.batch}, heads {heads}, head_dim {w.head_dim}, {w.dtype}"
    band = "causal" if w.mask.is_causal else "full"
    title = f"{flags.title}{pattern} pattern, blocks of {block}, {what}, {band}"
    files = plot.draw(lambda: picture(rows, title))
    show.give(json, (row.to_dict() for row in rows), breakeven_tables(rows, title, files), verbose)
