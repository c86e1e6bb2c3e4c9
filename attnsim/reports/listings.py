"""GPUs and models for people: all of one kind, and every figure of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnsim import wording
from attnsim.errors import some
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.names import VARIANTS
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.llm.model import SHARINGS, Model
from attnsim.models.question.workload import DTYPE_BYTES
from attnsim.tables import Block, Table


def gpus_table() -> Iterator[Block]:
    """A line for each GPU, and the variants of each."""
    gpus = [load_gpu(name) for name in builtin_gpu_ids()]
    rows = [
        {
            "id": gpu.id,
            "arch": gpu.sm_arch,
            "SMs": gpu.sm.count,
            "16-bit TFLOP/s": round(gpu.peak_tensor_flops_per_s("fp16") / 1e12),
            "memory GB": round(gpu.hbm.capacity_bytes / 1e9),
            "GB/s": round(gpu.hbm.bandwidth_bytes_per_s / 1e9),
            "L2 MB": round(gpu.l2.capacity_bytes / 1e6),
            "KiB/block": round(gpu.sm.shared_memory_per_block_bytes / 1024),
        }
        for gpu in gpus
    ]
    yield Table("GPUs", rows)
    for base in dict.fromkeys(one.extends for one in VARIANTS.values()):
        yield f"like {base}: {', '.join(one.id for one in VARIANTS.values() if one.extends == base)}"
    yield "\nattnsim gpus show ID: every figure and its source"
    yield "attnsim gpus new FILE --from ID --set KEY=VALUE: a file for another GPU"


def gpu_figures(machine: Gpu) -> Iterator[Block]:
    """Every figure of a GPU with its kind and source."""
    yield f"{machine.id}: {machine.name}, {machine.architecture}, {machine.sm_arch}"
    yield from (f"changed: {change}" for change in machine.changes)
    yield ""
    figures = ((key, field, machine.provenance.get(key)) for key, field in FIELDS.items())
    yield Table(
        "",
        [
            {
                "key": key,
                "value": field.show(machine.get(key)),
                "kind": figure.kind if figure else "",
                "source": figure.source if figure else "",
            }
            for key, field, figure in figures
        ],
    )


def gpu_record(gpu: Gpu) -> dict[str, object]:
    """A GPU for JSON: its figures in SI units by key, with kind and source."""
    figures = {}
    for key, field in FIELDS.items():
        figure = gpu.provenance.get(key)
        figures[key] = {
            "value": gpu.get(key),
            "unit": field.unit,
            "kind": figure.kind if figure else None,
            "source": figure.source if figure else None,
        }
    return {
        "id": gpu.id,
        "name": gpu.name,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "changes": list(map(str, gpu.changes)),
        "figures": figures,
    }


def models_table(models: Sequence[Model], dtype: str) -> Iterator[Block]:
    """A line for each model, with the bytes that a token adds to its cache."""
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


def model_figures(found: Model, memory: dict[str, Any]) -> Iterator[Block]:
    """Every figure of a model, its cache, and whether it fits."""
    yield f"{found.id}: {found.name}, {found.sharing}\n"
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


def memory_of(model: Model, gpu: Gpu | None, batch: int, seq: int, dtype: str) -> dict[str, object]:
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


def model_record(model: Model, dtype: str) -> dict[str, object]:
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
