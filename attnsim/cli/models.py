"""`attnsim models`: which models are known, what their KV caches hold, and a file from a Hugging Face configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import help, options, outputs, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.llm.files import builtin_model_ids, check_new_file, load_model, model_to_yaml
from attnsim.models.llm.huggingface import import_config
from attnsim.models.question.workload import DTYPE_BYTES
from attnsim.reports.listings import memory_of, model_figures, model_record, models_table
from attnsim.tables import Unfolded
from attnsim.writing import write_whole

app = help.Commands(help="List models, show one, or import one from Hugging Face.", invoke_without_command=True)

_ModelId = Annotated[str, typer.Argument(metavar="ID", help="Built-in id, model file or Hugging Face config.json.")]


@app.callback()
def list_models(
    context: typer.Context,
    dtype: Annotated[str, flag(None, "Of the cache: fp32, fp16, bf16 or fp8.")] = "fp16",
    json: options.Json = False,
) -> None:
    """List the models with the bytes that a token adds to their KV cache, as they share and as they might."""
    if context.invoked_subcommand is not None:
        if json:
            raise InputError("--json comes after the command: attnsim models show ID --json")
        return

    if dtype not in DTYPE_BYTES:
        raise InputError(f"--dtype is {dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
    models = [load_model(name) for name in builtin_model_ids()]
    show.give(json, (model_record(model, dtype) for model in models), models_table(models, dtype))


@app.command("show", example="attnsim models show llama-3-8b")
def show_model(
    model: _ModelId,
    gpu: options.OneGpu = "",
    batch: options.Batch = 1,
    seq: options.Seq = None,
    dtype: options.Dtype = "bf16",
    json: options.Json = False,
) -> None:
    """Show every figure of a model, its layers, parameters and KV cache, whether they fit a GPU, and the source."""
    found = load_model(model)
    memory = memory_of(found, load_gpu(gpu) if gpu else None, batch, seq or found.max_length, dtype)
    show.give(json, [model_record(found, "fp16") | memory], model_figures(found, memory))


@app.command("import", example="attnsim models import config.json --out my-model.yaml")
def import_model(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Hugging Face config.json.")],
    out: Annotated[Path, flag("FILE", "Ends in .yaml; its name becomes the id.")],
    force: Annotated[bool, switch("Replace the file if it exists.", "--force")] = False,
    json: options.Json = False,
) -> None:
    """Write a model file from a Hugging Face configuration."""
    outputs.check_output(out)
    name = check_new_file(out)
    if out.exists() and not force:
        raise InputError(f"{out} exists; give another name, or --force to replace it")
    model = import_config(config)
    write_whole(out, model_to_yaml(model))
    done = [Unfolded(f"{out} written: {model.name}, {model.sharing}; use it with --model {out}")]
    show.give(json, [model_record(model, "fp16") | {"id": name}], done)
