"""`attnsim roofline`: the ceilings of GPUs and the predicted points under them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnsim.cli import options, show
from attnsim.cli.predict import heading
from attnsim.models.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnsim.api import Prediction
    from attnsim.models.gpu import Gpu


def roofline(
    *,
    gpu: options.ManyGpus,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Picture, .png, .svg or .pdf.")] = Path("roofline.png"),
    algorithm: Annotated[str, typer.Option(help="Names with commas.")] = "naive,flash",
    batch: options.Batch = 1,
    heads: options.Heads = 32,
    kv_heads: options.KvHeads = None,
    seq: options.Seq = 8192,
    seq_kv: options.SeqKv = None,
    head_dim: options.HeadDim = 128,
    head_dim_v: options.HeadDimV = None,
    dtype: options.Dtype = "fp16",
    causal: options.Causal = False,
    window: options.Window = None,
    passes: options.Pass = "fwd",
    changes: options.Changes = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Draw rooflines with predicted points, and a CSV of them beside the picture."""
    from attnsim.api import compare
    from attnsim.models.gpu_files import load_gpu

    check_picture(out)
    question = options.workload(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq=seq,
        seq_kv=seq_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        causal=causal,
        window=window,
        passes=passes,
    )
    machines = [options.changed(load_gpu(name), changes) for name in options.words(gpu, "--gpu")]
    names = options.words([algorithm], "--algorithm")
    groups = [(machine, compare(question, machine, names)) for machine in machines]
    predictions = [item for _, found in groups for item in found]
    written = draw(machines, predictions, out)
    if json:
        show.print_json(item.to_dict() for item in predictions)
        return
    console = show.console()
    console.print(f"{heading(question)}\n")
    for machine, found in groups:
        show.print_predictions(console, "; ".join((machine.id, *machine.changes)), found)
    show.print_remarks(console, predictions)
    console.print(f"written: {', '.join(map(str, written))}")


def check_picture(out: Path) -> None:
    """Refuse, before anything is computed, a picture that could not be written.

    Raises
    ------
    InputError
    """
    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{out}: end the name with .png, .svg or .pdf, which choose the format")
    options.check_output(out)


def draw(gpus: Sequence[Gpu], predictions: Sequence[Prediction], out: Path) -> list[Path]:
    """Draw the picture and return the files written: it, and its CSV where there is one.

    Raises
    ------
    InputError
        When they cannot be written.
    """
    from attnsim.plots.roofline import roofline_figure

    try:
        picture = roofline_figure(gpus, predictions, out)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from None
    return [path for path in (picture, picture.with_suffix(".csv")) if path.exists()]
