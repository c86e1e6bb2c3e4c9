"""Models from files and into files: the presets, anybody's own YAML, and Hugging Face configurations."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from attnsim.errors import InputError, nearest, shown
from attnsim.files import read_yaml, shipped
from attnsim.models.hardware.file_format import ID_PATTERN
from attnsim.models.llm.huggingface import import_config
from attnsim.models.llm.mlp import Experts, Mlp
from attnsim.models.llm.model import ATTENTION, LayerKind, Model
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Latent

_STRICT = ConfigDict(extra="forbid", frozen=True)

Count = Annotated[StrictInt, Field(ge=1)]


class LatentEntry(BaseModel):
    """Multi-head latent attention."""

    model_config = _STRICT

    rank: Count
    rope: Count
    query_rank: Count | None = None


class ExpertsEntry(BaseModel):
    """A mixture of experts."""

    model_config = _STRICT

    count: Count
    active: Count
    width: Count
    shared: Annotated[StrictInt, Field(ge=0)] = 0
    dense_layers: Annotated[StrictInt, Field(ge=0)] = 0


class KindEntry(BaseModel):
    """Layers that are alike; without a mask no attention, and then the parameters of one, or the MLP that it is."""

    model_config = _STRICT

    kind: StrictStr = Field(default=ATTENTION, min_length=1, max_length=60)
    at: list[Annotated[StrictInt, Field(ge=0)]] = Field(min_length=1, max_length=4096)
    heads: Annotated[StrictInt, Field(ge=0)] = 0
    kv_heads: Annotated[StrictInt, Field(ge=0)] = 0
    head_dim: Annotated[StrictInt, Field(ge=0)] = 0
    head_dim_v: Annotated[StrictInt, Field(ge=0)] = 0
    mask: StrictStr | None = Field(default=None, max_length=2000)
    weights: Annotated[StrictInt, Field(ge=0)] = 0
    shared: Annotated[StrictInt, Field(ge=0)] = 0
    intermediate: Annotated[StrictInt, Field(ge=1, le=1 << 20)] | None = None
    gated: StrictBool | None = None
    experts: ExpertsEntry | None = None


class ModelFile(BaseModel):
    """The fields that a model file may contain; their ranges are checked by :class:`attnsim.models.llm.model.Model`."""

    model_config = _STRICT

    name: StrictStr = Field(min_length=1, max_length=200)
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    head_dim_v: Count | None = None
    mask: Annotated[StrictStr, Field(min_length=1, max_length=2000)] | Annotated[list[StrictStr], Field(min_length=1)]
    max_length: Count | None = None
    rotary: Count | None = None
    qkv_bias: StrictBool = False
    out_bias: StrictBool = False
    latent: LatentEntry | None = None
    intermediate: Annotated[StrictInt, Field(ge=1, le=1 << 20)] | None = None
    gated: StrictBool | None = None
    experts: ExpertsEntry | None = None
    vocabulary: Count | None = None
    kinds: list[KindEntry] = Field(default_factory=list)
    outside: Annotated[StrictInt, Field(ge=0)] | None = None
    gate: StrictBool = False
    sinks: StrictBool = False
    softcap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    qk_norm: StrictBool = False
    fp8_blocks: StrictBool = False
    left_out: list[StrictStr] = Field(default_factory=list)
    source: StrictStr = Field(min_length=1, max_length=2000)


_builtin_paths = functools.partial(shipped, Path(__file__).parent / "presets")


def builtin_model_ids() -> list[str]:
    """Ids of the presets, sorted."""
    return list(_builtin_paths())


def load_model(name_or_path: str) -> Model:
    """A model by the id of its preset, from a YAML file, or from a Hugging Face ``config.json``.

    Parameters
    ----------
    name_or_path
        "llama-3-8b", or a path that ends in .yaml, .yml or .json; with ":2" behind it the second kind of its layers.

    Raises
    ------
    InputError
        Unknown id (names the nearest), or whatever is wrong with the file, in one line.
    """
    name, _, number = name_or_path.rpartition(":")
    if name and number.isdecimal():
        return _numbered(load_model(name), number)
    if name_or_path in _builtin_paths():
        return _load_builtin(name_or_path)
    path = Path(name_or_path)
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return _load(path)
        case ".json":
            return import_config(path)
    raise InputError(
        f"unknown model {shown(name_or_path)}; {nearest(name_or_path.lower(), _builtin_paths())}; "
        "`attnsim models` lists all, a path ending in .yaml or .json (Hugging Face) is read as a file"
    )


def _numbered(model: Model, number: str) -> Model:
    kinds = model.layer_kinds
    chosen = kinds[int(number) - 1] if 1 <= int(number) <= len(kinds) else None
    if chosen is None or not (chosen.mask or chosen.heads_q):
        attend = [f"{at} ({one.layers} layers: {one})" for at, one in enumerate(kinds, 1) if one.mask or one.heads_q]
        raise InputError(f"{model.id}:{number} is no kind of layer that is modelled; allowed: {', '.join(attend)}")
    return model.only(chosen)


@functools.lru_cache(maxsize=64)
def _load_builtin(name: str) -> Model:
    return _load(_builtin_paths()[name])


def _load(path: Path) -> Model:
    content = read_yaml(path, "model", "or a built-in id")
    if not isinstance(content, dict):
        raise InputError(f"{path.name}: holds no keys; write name: ..., layers: ..., heads: ... one a line")
    name = _id_of(path)
    try:
        checked = ModelFile.model_validate(content)
        latent, kinds = checked.latent, _kinds(checked)
        return Model(
            id=name,
            name=checked.name,
            layers=checked.layers,
            hidden=checked.hidden,
            heads_q=checked.heads,
            heads_kv=checked.kv_heads,
            head_dim=checked.head_dim,
            head_dim_v=checked.head_dim_v or checked.head_dim,
            mask=Mask.parse(checked.mask) if isinstance(checked.mask, str) else _widest(kinds),
            max_length=checked.max_length or 0,
            rotary=checked.rotary or 0,
            qkv_bias=checked.qkv_bias,
            out_bias=checked.out_bias,
            latent=Latent(latent.rank, latent.rope) if latent else None,
            query_rank=(latent.query_rank or 0) if latent else 0,
            mlp=_mlp(checked),
            vocabulary=checked.vocabulary or 0,
            kinds=kinds,
            left_out=tuple(checked.left_out),
            source=checked.source,
            **{name: getattr(checked, name) for name in _AS_WRITTEN},
        )
    except ValidationError as error:
        raise InputError(f"{path.name}: {_reworded(error)}") from None
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


_AS_WRITTEN = ("outside", "gate", "sinks", "softcap", "qk_norm", "fp8_blocks")


def _kinds(checked: ModelFile) -> tuple[LayerKind, ...]:
    """The kinds of layers: those that the file lists, or those of a list of masks that goes round the layers."""
    width = checked.head_dim_v or checked.head_dim
    if isinstance(checked.mask, list):
        if checked.kinds:
            raise InputError("mask is a list beside kinds, which have their own; keep one")
        every = len(checked.mask)
        at = {text: [n for n in range(checked.layers) if checked.mask[n % every] == text] for text in checked.mask}
        shape = (checked.heads, checked.kv_heads, checked.head_dim, width)
        return tuple(LayerKind(ATTENTION, tuple(n), *shape, Mask.parse(text)) for text, n in at.items() if n)
    return tuple(
        LayerKind(
            one.kind,
            tuple(one.at),
            one.heads,
            one.kv_heads,
            one.head_dim,
            one.head_dim_v or one.head_dim,
            None if one.mask is None else Mask.parse(one.mask),
            one.weights,
            one.shared,
            _mlp(one),
        )
        for one in checked.kinds
    )


def _widest(kinds: tuple[LayerKind, ...]) -> Mask:
    """The mask that a question about the model has: one without a window, where there is one."""
    masks = [one.mask for one in kinds if one.mask]
    return next((mask for mask in masks if not mask.is_windowed), masks[0])


def _mlp(checked: ModelFile | KindEntry) -> Mlp | None:
    """The MLP that a file tells of.

    Raises
    ------
    InputError
        When it tells half of it.
    """
    given = [name for name in ("intermediate", "gated") if getattr(checked, name) is not None]
    if not given and checked.experts is None:
        return None
    if checked.intermediate is None or checked.gated is None:
        missing = next(name for name in ("intermediate", "gated") if name not in given)
        raise InputError(f"{missing} is missing beside what the file says of its MLP; add it")
    experts = Experts(**checked.experts.model_dump()) if checked.experts else None
    return Mlp(checked.intermediate, checked.gated, experts)


def _id_of(path: Path) -> str:
    name = path.stem.lower()
    if not re.fullmatch(ID_PATTERN, name):
        raise InputError(f"{path.name}: the name becomes the id; allowed: at most 64 of a-z, 0-9, '.', '_', '-'")
    return name


def check_new_file(path: Path) -> str:
    """The id of a model whose file is to be written.

    Raises
    ------
    InputError
        When the name does not end in .yaml, is no id, or is that of a preset.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{path}: end the name with .yaml")
    name = _id_of(path)
    if name in _builtin_paths():
        raise InputError(f"{path}: {name} is a built-in model; choose another name")
    return name


def _reworded(error: ValidationError) -> str:
    """The first of pydantic's complaints: the key, what was given, what is allowed."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    parts: dict[str, type[BaseModel]] = {"latent.": LatentEntry, "experts.": ExpertsEntry, "kinds.": KindEntry}
    names = next((kind for start, kind in parts.items() if where.startswith(start)), ModelFile).model_fields
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key {shown(where)}; {nearest(where.rsplit('.', maxsplit=1)[-1], names)}"
        case "missing":
            return f"{where} is missing; add it"
        case _:
            return f"{where} is {shown(first['input'])}; {' '.join(first['msg'].split())}"


def model_to_yaml(model: Model) -> str:
    """The model as the text of a file that `load_model` reads back to an equal one but for its id."""
    document: dict[str, object] = {
        "name": model.name,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads_q,
        "kv_heads": model.heads_kv,
        "head_dim": model.head_dim,
    }
    if model.head_dim_v != model.head_dim:
        document["head_dim_v"] = model.head_dim_v
    document["mask"] = str(model.mask)
    for name in ("max_length", "rotary"):
        if getattr(model, name):
            document[name] = getattr(model, name)
    document |= {"qkv_bias": model.qkv_bias, "out_bias": model.out_bias}
    if model.latent is not None:
        latent = {"rank": model.latent.rank, "rope": model.latent.rope}
        document["latent"] = latent | ({"query_rank": model.query_rank} if model.query_rank else {})
    document |= _written_mlp(model.mlp)
    if model.vocabulary:
        document["vocabulary"] = model.vocabulary
    if model.kinds:
        document["kinds"] = [_written(kind) for kind in model.kinds]
    as_written = {name: getattr(model, name) for name in _AS_WRITTEN}
    document |= {name: value for name, value in as_written.items() if value is not None and value is not False}
    if model.left_out:
        document["left_out"] = list(model.left_out)
    document["source"] = model.source
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _written_mlp(mlp: Mlp | None) -> dict[str, object]:
    if mlp is None:
        return {}
    experts = mlp.experts and {name: getattr(mlp.experts, name) for name in ExpertsEntry.model_fields}
    return {"intermediate": mlp.width, "gated": mlp.gated} | ({"experts": experts} if experts else {})


def _written(kind: LayerKind) -> dict[str, object]:
    names = {"heads_q": "heads", "heads_kv": "kv_heads"} | {
        n: n for n in ("head_dim", "head_dim_v", "weights", "shared")
    }
    figures = {theirs: getattr(kind, ours) for ours, theirs in names.items() if getattr(kind, ours)}
    mask = {"mask": str(kind.mask)} if kind.mask else {}
    return {"kind": kind.kind, "at": list(kind.at), **figures, **mask, **_written_mlp(kind.mlp)}
