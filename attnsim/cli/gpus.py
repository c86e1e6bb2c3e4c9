"""`attnsim gpus`: which GPUs are known, what is known of one, and a new file from an old one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import help, options, outputs, question_flags, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError
from attnsim.models.hardware.files import gpu_to_yaml, known_gpu_ids, load_gpu
from attnsim.models.hardware.importing import import_hardware
from attnsim.models.hardware.importing.nvidia_smi import import_attached
from attnsim.reports.listings import gpu_figures, gpu_record, gpus_table
from attnsim.tables import Unfolded
from attnsim.writing import write_whole

app = help.Commands(help="List GPUs, show one, write or import a GPU file.", invoke_without_command=True)


@app.callback()
def list_gpus(context: typer.Context, json: options.Json = False) -> None:
    """List the GPUs, or show one, or write a new GPU file."""
    if context.invoked_subcommand is not None:
        if json:
            raise InputError("--json comes after the command: attnsim gpus show ID --json")
        return

    show.give(json, (gpu_record(load_gpu(name)) for name in known_gpu_ids()), gpus_table())


@app.command("show", example="attnsim gpus show h100-sxm5-80gb")
def show_gpu(
    gpu: Annotated[str, typer.Argument(metavar="ID", help="Built-in id or GPU file.")],
    changes: options.Changes = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Show every figure of a GPU with its kind and source."""
    machine = question_flags.changed(load_gpu(gpu), changes, joined=True)
    show.give(json, [gpu_record(machine)], gpu_figures(machine))


@app.command("new", example="attnsim gpus new my-gpu.yaml --from h100")
def new_gpu(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Ends in .yaml; its name becomes the id.")],
    base: Annotated[str, flag("ID", "Built-in id or GPU file to start from.", "--from")],
    changes: options.Changes = [],  # noqa: B006
    force: Annotated[bool, switch("Replace the file if it exists.", "--force")] = False,
    json: options.Json = False,
) -> None:
    """Write a GPU file from another GPU and changes to it."""
    name = outputs.new_gpu_file(file, force)
    original = load_gpu(base)
    machine = question_flags.changed(original, changes, joined=True)
    machine = dataclasses.replace(machine, id=name, name=f"{original.name}, changed" if changes else original.name)
    write_whole(file, gpu_to_yaml(machine))
    show.give(json, [gpu_record(machine)], [Unfolded(f"{file} written: {machine.name}; use it with --gpu {file}")])


@app.command("import", example="attnsim gpus import A100.json --out my-gpu.yaml")
def import_gpu(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Hardware file; none: the GPU of this machine, by NVML.")
    ] = None,
    *,
    out: Annotated[Path, flag("FILE", "Ends in .yaml; its name becomes the id.")],
    kind: Annotated[
        str | None, flag(None, "llmcompass, aiconfigurator or nvidia-smi; default: by the file's suffix.", "--format")
    ] = None,
    like: Annotated[str | None, flag("ID", "GPU for what the file lacks; default: the most alike.")] = None,
    force: Annotated[bool, switch("Replace the file if it exists.", "--force")] = False,
    json: options.Json = False,
) -> None:
    """Write a GPU file from LLMCompass's, AIConfigurator's or nvidia-smi's (nvidia-smi -q -x)."""
    name = outputs.new_gpu_file(out, force)
    given = load_gpu(like) if like else None
    found = import_attached() if file is None else import_hardware(file, kind, given)
    # A known GPU as it is set here keeps its calibration; anything else stands alone.
    known = found.format in ("nvidia-smi", "nvml") and found.like and not found.lacking
    base, changes = (found.like, found.gpu.changes) if known else (name, ())
    machine = dataclasses.replace(found.gpu, id=name, base_id=base, changes=changes)
    write_whole(out, gpu_to_yaml(machine))
    record = {"like": found.like, "lacking": found.lacking, "remarks": found.remarks}
    kinds = [figure.kind for figure in machine.provenance.values()]
    lines = [f"{out} written: {machine.name}, {machine.sm_arch}; use it with --gpu {out}"]
    lines.append(f"figures: {', '.join(f'{kinds.count(one)} {one}' for one in dict.fromkeys(kinds))}")
    if found.lacking:
        lines.append(f"not in the file, assumed as on {found.like}: {', '.join(found.lacking)}")
    lines += map(str, (*found.gpu.changes, *found.remarks))
    show.give(json, [gpu_record(machine) | record], map(Unfolded, lines))
