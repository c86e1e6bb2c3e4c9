"""`attnsim models`: which models are known, what their KV caches hold, and a file from a Hugging Face configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnsim import wording
from attnsim.cli import help, options, outputs, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError

if TYPE_CHECKING:
    from attnsim.models.llm.model import Model

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
    from attnsim.models.llm.files import builtin_model_ids, load_model
    from attnsim.models.llm.model import SHARINGS
    from attnsim.models.question.workload import DTYPE_BYTES

    if dtype not in DTYPE_BYTES:
        raise InputError(f"--dtype is {dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
    models = [load_model(name) for name in builtin_model_ids()]
    if json:
        show.print_json(_record(model, dtype) for model in models)
        return
    rows: list[dict[str, object]] = []
    for model in models:
        row: dict[str, object] = {
            "id": model.id,
            "layers": model.layers,
            "heads": _pair(model.heads_q, model.heads_kv),
            "head_dim": _pair(model.head_dim, model.head_dim_v),
        }
        for sharing in SHARINGS:
            size = model.kv_bytes_per_token(dtype, sharing)
            own = "*" if sharing == model.sharing and size else ""
            row[sharing] = wording.NOTHING if size is None else f"{size:,}{own}"
        rows.append(row)
    out = show.console()
    title = f"Models; bytes that a token adds to the KV cache of all layers ({dtype}), * as the model shares"
    show.print_rows(out, title, rows, right=SHARINGS)
    out.print("MHA: G = H; MQA: G = 1; GQA and MLA where the model has them; encoders keep no cache.")
    out.print("attnsim models show ID: every figure and its source")
    out.print("attnsim models import config.json --out FILE: a model from Hugging Face")


def _pair(one: int, other: int) -> str:
    return f"{one}" if one == other else f"{one}/{other}"


@app.command("show", example="attnsim models show llama-3-8b")
def show_model(model: _ModelId, json: options.Json = False) -> None:
    """Show every figure of a model, its KV cache, and where the figures come from."""
    from attnsim.models.llm.files import load_model
    from attnsim.models.llm.model import SHARINGS

    found = load_model(model)
    if json:
        show.print_json([_record(found, "fp16")])
        return
    out = show.console()
    out.print(f"{found.id}: {found.name}, {found.sharing}\n")
    rows: list[dict[str, object]] = [
        {"figure": name, "value": str(value)}
        for name, value in _figures(found).items()
        if value is not None and name not in ("id", "name", "source", "sharing")
    ]
    for sharing in SHARINGS:
        size = found.kv_bytes_per_token("fp16", sharing)
        if size is not None:
            own = " (its own)" if sharing == found.sharing else ""
            rows.append({"figure": f"KV cache per token, {sharing}", "value": f"{size:,} bytes{own}"})
    show.print_rows(out, "", rows, whole=("figure",))
    out.print(f"source: {found.source}")


@app.command("import", example="attnsim models import config.json --out my-model.yaml")
def import_model(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Hugging Face config.json.")],
    out: Annotated[Path, flag("FILE", "Ends in .yaml; its name becomes the id.")],
    force: Annotated[bool, switch("Replace the file if it exists.", "--force")] = False,
    json: options.Json = False,
) -> None:
    """Write a model file from a Hugging Face configuration."""
    from attnsim.models.llm.files import check_new_file, model_to_yaml
    from attnsim.models.llm.huggingface import import_config
    from attnsim.writing import write_whole

    outputs.check_output(out)
    name = check_new_file(out)
    if out.exists() and not force:
        raise InputError(f"{out} exists; give another name, or --force to replace it")
    model = import_config(config)
    write_whole(out, model_to_yaml(model))
    if json:
        show.print_json([_record(model, "fp16") | {"id": name}])
    else:
        print(f"{out} written: {model.name}, {model.sharing}; use it with --model {out}")


def _figures(model: Model) -> dict[str, object]:
    """The fields of a model, absent ones as None."""
    return {
        **{name: getattr(model, name) for name in ("id", "name", "sharing", "layers", "hidden")},
        "heads": model.heads_q,
        "kv_heads": model.heads_kv,
        "head_dim": model.head_dim,
        "head_dim_v": model.head_dim_v,
        "mask": str(model.mask),
        **{name: getattr(model, name) or None for name in ("max_length", "rotary")},
        **{name: getattr(model, name) for name in ("qkv_bias", "out_bias")},
        "latent": str(model.latent) if model.latent else None,
        "query_rank": model.query_rank or None,
        "mlp": str(model.mlp) if model.mlp else None,
        "vocabulary": model.vocabulary or None,
        "source": model.source,
    }


def _record(model: Model, dtype: str) -> dict[str, object]:
    """A model for JSON, with the bytes of its KV cache per token over all layers."""
    from attnsim.models.llm.model import SHARINGS

    sizes = {sharing: model.kv_bytes_per_token(dtype, sharing) for sharing in SHARINGS}
    return _figures(model) | {
        "cache_dtype": dtype,
        "kv_bytes_per_token": model.kv_bytes_per_token(dtype),
        "kv_bytes_per_token_as": sizes,
    }
