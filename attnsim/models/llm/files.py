"""Models from files and into files: the presets, anybody's own YAML, and Hugging Face configurations."""

from __future__ import annotations

import functools
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from attnsim.errors import InputError, nearest, shown
from attnsim.files import read_yaml, shipped
from attnsim.models.hardware.file_format import ID_PATTERN
from attnsim.models.llm.huggingface import import_config
from attnsim.models.llm.mlp import Experts, Mlp
from attnsim.models.llm.model import Model
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


class ModelFile(BaseModel):
    """What a model file may contain; the figures' ranges are checked by :class:`attnsim.models.llm.model.Model`."""

    model_config = _STRICT

    name: StrictStr = Field(min_length=1, max_length=200)
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    head_dim_v: Count | None = None
    mask: StrictStr = Field(min_length=1, max_length=2000)
    max_length: Count | None = None
    rotary: Count | None = None
    qkv_bias: StrictBool = False
    out_bias: StrictBool = False
    latent: LatentEntry | None = None
    intermediate: Annotated[StrictInt, Field(ge=1, le=1 << 20)] | None = None
    gated: StrictBool | None = None
    experts: ExpertsEntry | None = None
    vocabulary: Count | None = None
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
        "llama-3-8b", or a path that ends in .yaml, .yml or .json.

    Raises
    ------
    InputError
        Unknown id (names the nearest), or whatever is wrong with the file, in one line.
    """
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
        latent = checked.latent
        return Model(
            id=name,
            name=checked.name,
            layers=checked.layers,
            hidden=checked.hidden,
            heads_q=checked.heads,
            heads_kv=checked.kv_heads,
            head_dim=checked.head_dim,
            head_dim_v=checked.head_dim_v or checked.head_dim,
            mask=Mask.parse(checked.mask),
            max_length=checked.max_length or 0,
            rotary=checked.rotary or 0,
            qkv_bias=checked.qkv_bias,
            out_bias=checked.out_bias,
            latent=Latent(latent.rank, latent.rope) if latent else None,
            query_rank=(latent.query_rank or 0) if latent else 0,
            mlp=_mlp(checked),
            vocabulary=checked.vocabulary or 0,
            source=checked.source,
        )
    except ValidationError as error:
        raise InputError(f"{path.name}: {_reworded(error)}") from None
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _mlp(checked: ModelFile) -> Mlp | None:
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
    parts: dict[str, type[BaseModel]] = {"latent.": LatentEntry, "experts.": ExpertsEntry}
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
    if model.mlp is not None:
        document |= {"intermediate": model.mlp.width, "gated": model.mlp.gated}
        if model.mlp.experts is not None:
            document["experts"] = asdict(model.mlp.experts)
    if model.vocabulary:
        document["vocabulary"] = model.vocabulary
    document["source"] = model.source
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
