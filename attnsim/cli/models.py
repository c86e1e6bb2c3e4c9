"""`attnsim models`: which models are known, what their KV caches hold, and a file from a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim import wording
from attnsim.cli import help, options, outputs, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError, some
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.llm.files import builtin_model_ids, check_new_file, load_model, model_to_yaml
from attnsim.models.llm.huggingface import import_config
from attnsim.models.llm.model import SHARINGS, Model
from attnsim.models.question.workload import DTYPE_BYTES
from attnsim.tables import Block, Table, Unfolded
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
    show.give(json, (_record(model, dtype) for model in models), _list(models, dtype))


def _list(models: Sequence[Model], dtype: str) -> Iterator[Block]:
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
    title = f"Models; bytes that a token adds to the KV cache of all layers ({dtype}), * as the model shares"
    yield Table(title, rows, right=SHARINGS)
    yield "MHA: G = H; MQA: G = 1; GQA and MLA where the model has them; encoders keep no cache."
    yield "attnsim models show ID: every figure and its source"
    yield "attnsim models import config.json --out FILE: a model from Hugging Face"


def _pair(one: int, other: int) -> str:
    return f"{one}" if one == other else f"{one}/{other}"


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
    memory = _memory(found, load_gpu(gpu) if gpu else None, batch, seq or found.max_length, dtype)
    show.give(json, [_record(found, "fp16") | memory], _show(found, memory))


def _show(found: Model, memory: dict[str, Any]) -> Iterator[Block]:
    yield (f"{found.id}: {found.name}, {found.sharing}\n")
    rows: list[dict[str, object]] = [
        {"figure": name, "value": str(value)}
        for name, value in _figures(found).items()
        if value is not None and name not in ("id", "name", "source", "sharing", "left_out")
    ]
    for number, kind in enumerate(found.kinds, 1):
        rows.append({"figure": f"layers, kind {number}", "value": f"{kind.layers}: {kind} ({_ranges(kind.at)})"})
    for sharing in SHARINGS:
        size = found.kv_bytes_per_token("fp16", sharing)
        if size is not None:
            own = " (its own)" if sharing == found.sharing else ""
            rows.append({"figure": f"KV cache per token, {sharing}", "value": f"{size:,} bytes{own}"})
    counted = {"parameters": found.parameters(), "active parameters": found.parameters(active=True)}
    rows += [{"figure": name, "value": f"{many:,}"} for name, many in counted.items() if many]
    yield Table("", rows, whole=("figure",))
    yield from _memory_lines(memory)
    if found.left_out:
        yield f"not modelled: {'; '.join(found.left_out)}"
    if any(kind.mask is None for kind in found.kinds):
        yield "Layers of what is no attention are counted among parameters alone."
    yield f"source: {found.source}"


def _memory(model: Model, gpu: Gpu | None, batch: int, seq: int, dtype: str) -> dict[str, object]:
    """Bytes of the weights and of the cache of so many sequences, and whether a GPU holds both."""
    many, cache = model.parameters(), batch * model.cache_bytes(seq, dtype) if seq else 0
    weights = None if many is None else many * DTYPE_BYTES[dtype]
    found: dict[str, object] = {
        "batch": batch,
        "seq": seq,
        "dtype": dtype,
        "weight_bytes": weights,
        "cache_bytes": cache,
    }
    if gpu is not None:
        capacity = gpu.hbm.capacity_bytes
        fits = None if weights is None else weights + cache <= capacity
        found |= {"gpu": gpu.id, "capacity_bytes": capacity, "fits": fits}
    return found


def _memory_lines(memory: dict[str, Any]) -> Iterator[str]:
    weights, cache, seq, dtype = (memory[name] for name in ("weight_bytes", "cache_bytes", "seq", "dtype"))
    cached = f"cache of {memory['batch']} x {seq:,} tokens {cache / 1e9:.3g} GB" if cache else "no cache"
    if weights is None:
        yield f"weights: not known, what stands outside the layers is not; {cached} ({dtype})"
        return
    fits = ""
    if "gpu" in memory:
        word = "fits" if memory["fits"] else "does not fit"
        fits = f": {word} {memory['gpu']} of {memory['capacity_bytes'] / 1e9:.3g} GB"
    yield f"weights {weights / 1e9:.3g} GB, {cached} ({dtype}){fits}"


def _ranges(numbers: Sequence[int]) -> str:
    """Layers as text: 0-2, 4."""
    ends = [n for n in numbers if n + 1 not in numbers]
    starts = [n for n in numbers if n - 1 not in numbers]
    parts = [f"{a}-{b}" if b > a else f"{a}" for a, b in zip(starts, ends, strict=True)]
    return some(parts, "--json has all", most=8)


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
    show.give(json, [_record(model, "fp16") | {"id": name}], done)


def _figures(model: Model) -> dict[str, object]:
    """The fields of a model, absent ones as None."""
    return {
        **{name: getattr(model, name) for name in ("id", "name", "sharing", "layers", "hidden")},
        "heads": model.heads_q,
        "kv_heads": model.heads_kv,
        "head_dim": model.head_dim,
        "head_dim_v": model.head_dim_v,
        "mask": " | ".join(dict.fromkeys(str(kind.mask) for kind in model.layer_kinds if kind.mask)),
        **{name: getattr(model, name) or None for name in ("max_length", "rotary")},
        **{name: getattr(model, name) for name in ("qkv_bias", "out_bias")},
        "latent": str(model.latent) if model.latent else None,
        "query_rank": model.query_rank or None,
        "mlp": str(model.mlp) if model.mlp else None,
        "vocabulary": model.vocabulary or None,
        "sinks": model.sinks or None,
        "softcap": model.softcap,
        "left_out": list(model.left_out) or None,
        "source": model.source,
    }


def _record(model: Model, dtype: str) -> dict[str, object]:
    """A model for JSON, with the bytes of its KV cache per token over all layers."""
    sizes = {sharing: model.kv_bytes_per_token(dtype, sharing) for sharing in SHARINGS}
    return _figures(model) | {
        "cache_dtype": dtype,
        "kv_bytes_per_token": model.kv_bytes_per_token(dtype),
        "kv_bytes_per_token_as": sizes,
        "parameters": model.parameters(),
        "active_parameters": model.parameters(active=True),
        "kinds": len(model.layer_kinds),
        "layer_kinds": [
            {
                "kind": kind.kind,
                "layers": kind.layers,
                "at": list(kind.at),
                "heads": kind.heads_q or None,
                "kv_heads": kind.heads_kv or None,
                "head_dim": kind.head_dim or None,
                "head_dim_v": kind.head_dim_v or None,
                "mask": str(kind.mask) if kind.mask else None,
            }
            for kind in model.layer_kinds
        ],
    }
