"""`attnsim breakeven`: the density below which block-sparse attention beats dense flash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnsim.cli import options, show
from attnsim.cli.plot_flags import numbers_of
from attnsim.cli.progress import steps
from attnsim.cli.roofline import check_picture

if TYPE_CHECKING:
    from attnsim.api.breakeven import BreakEven


def breakeven(
    *,
    gpu: options.ManyGpus,
    seq: Annotated[str, typer.Option(metavar="N", help="Sequence lengths, with commas.")] = "4096,16384,65536",
    batch: options.Batch = 1,
    heads: options.Heads = 16,
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = 128,
    dtype: options.Dtype = "bf16",
    causal: options.Causal = False,
    pattern: Annotated[str, typer.Option(help="What grows until it no longer pays: random, window or bigbird.")] = (
        "random"
    ),
    tile: Annotated[
        str, typer.Option(metavar="ROWSxKEYS", help="Tiles of the sparse kernel, with commas; default: its own choice.")
    ] = "",
    dense: Annotated[str, typer.Option(help="Implementation to beat; default: the best for the GPU.")] = "",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture, .png, .svg, .pdf or .pgf, with its CSV beside it.")
    ] = None,
    style: options.StyleName = "light",
    changes: options.Changes = [],  # noqa: B006 Typer copies it
    json: options.Json = False,
) -> None:
    """Find the density below which block-sparse attention beats dense flash, by length, tile and GPU."""
    if plot is not None:
        check_picture(plot)
    lengths = numbers_of(seq, "--seq")
    tiles = options.words([tile], "--tile") if tile else [None]
    question = options.workload(
        batch=batch, heads=heads, kv_heads=kv_heads, seq=lengths[0], head_dim=head_dim, dtype=dtype, causal=causal
    )
    from attnsim.api.breakeven import breakeven as search
    from attnsim.models.hardware.files import load_gpu

    machines = [options.changed(load_gpu(name), changes) for name in options.words(gpu, "--gpu")]
    rows: list[BreakEven] = []
    with steps("bisecting densities", len(machines) * len(lengths) * len(tiles)) as done:
        for machine in machines:
            rows += search(question, machine, lengths, tiles=tiles, pattern=pattern, dense=dense or None, done=done)
    what = f"batch {batch}, heads {heads}{f'/{kv_heads}' * bool(kv_heads)}, head_dim {head_dim}, {dtype}"
    title = f"{pattern} pattern, {what}, {'causal' if causal else 'full'}"
    if plot is not None:
        from attnsim.plots import breakeven as picture

        picture.breakeven(rows, title).write(plot, style)
    if json:
        show.print_json(row.to_dict() for row in rows)
        return
    _print(rows, title)
    if plot is not None:
        print(f"written: {plot}, {plot.with_suffix('.csv')}")


def _print(rows: list[BreakEven], title: str) -> None:
    out = show.console()
    table: list[dict[str, object]] = [
        {
            "gpu": row.gpu,
            "seq": row.seq,
            "tile": row.tile,
            "density": f"{100 * row.density:.3g} %",
            "tiles visited": f"{row.tiles:,} of {row.all_tiles:,}",
            "sparse": show.time_text(row.sparse_s),
            "dense": show.time_text(row.dense_s),
            "dense as": row.dense,
        }
        for row in rows
    ]
    right = ("density", "tiles visited", "sparse", "dense")
    show.print_rows(out, f"Break-even density: {title}\n", table, right=right, whole=("gpu", "tile"))
    out.print(
        "Below this density (visible pairs over those of dense attention) the fused sparse kernel is faster than dense "
        "flash; 100 %: even where it visits every tile. 0 %: not even with one block of keys a row."
    )
    for reason in dict.fromkeys(row.trust for row in rows):
        out.print(f"trust: {reason}")
