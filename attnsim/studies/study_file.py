"""The study file: YAML in, a checked :class:`~attnsim.studies.study.Study` out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from attnsim.api.asking import read_algorithm, read_conditions
from attnsim.models.errors import InputError, nearest, shown
from attnsim.models.files import read_yaml
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.llm.files import load_model
from attnsim.studies.axes import Axis, change_axis, gpu_axis, named_axis, shape_axis, workload_axis
from attnsim.studies.study import Study

MODEL_FIELDS = ("heads_q", "heads_kv", "head_dim", "head_dim_v", "mask", "latent")
"""What a model (:class:`attnsim.models.llm.model.Model`) says of a workload."""

_STRICT = ConfigDict(extra="forbid", frozen=True)


class WorkloadEntry(BaseModel):
    """Fields of a `Workload`: a value, a list or a range (:mod:`attnsim.studies.axes`)."""

    model_config = _STRICT

    shape: Any = None
    batch: Any = None
    heads_q: Any = None
    heads_kv: Any = None
    seq_q: Any = None
    seq_kv: Any = None
    head_dim: Any = None
    head_dim_v: Any = None
    dtype: Any = None
    passes: Any = Field(default=None, alias="pass")
    mask: Any = None
    dropout: Any = None
    latent: Any = None


class StudyEntry(BaseModel):
    """A study file as it is written."""

    model_config = _STRICT

    title: StrictStr = Field(default="", max_length=200)
    gpu: StrictStr | list[StrictStr]
    change: dict[StrictStr, Any] = Field(default_factory=dict)
    algorithm: StrictStr | list[StrictStr] = "flash"
    implementation: StrictStr | list[StrictStr] | None = None
    tile: StrictStr | list[StrictStr] = "shipped"
    workload: WorkloadEntry
    combine: Literal["cartesian", "list", "sobol"] = "cartesian"
    points: StrictInt | None = Field(default=None, ge=1, le=1 << 30)
    seed: StrictInt = Field(default=0, ge=0, le=(1 << 31) - 1)
    method: Literal["closed-form", "replay", "auto"] = "auto"
    replays: StrictInt | None = Field(default=None, ge=0)
    cache: Literal["warm", "cold"] = "warm"
    launch: Literal["stream", "graph", "kernel"] = "stream"
    # Of `attnsim report`, which reads the same file; a sweep does not need them.
    question: StrictStr = ""
    date: Any = None
    pictures: list[StrictStr] = Field(default_factory=list)


def read_study(path: str | Path) -> Study:
    """Read a study file.

    Parameters
    ----------
    path : str or Path
        A YAML file; GPU files that it names are looked for from the working directory, as on the command line.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        One line naming the file, the key, what was given and what is allowed.
    """
    path = Path(path)
    content = read_yaml(path, "study")
    try:
        return study_of(content)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def study_of(content: object) -> Study:
    """The study that the content of a file describes.

    Raises
    ------
    InputError
        As `read_study`, without the file's name.
    """
    if not isinstance(content, Mapping):
        held = "nothing" if content is None else shown(content)
        raise InputError(f"holds {held}; write keys such as 'gpu: h100-sxm5-80gb'")
    try:
        entry = StudyEntry.model_validate(content)
    except ValidationError as error:
        raise InputError(_reworded(error)) from None
    return Study(
        title=entry.title,
        axes=tuple(_axes(entry)),
        combine=entry.combine,
        sample=entry.points,
        seed=entry.seed,
        method=entry.method,
        replays=entry.replays,
        cache=entry.cache,
        launch=entry.launch,
    )


def _axes(entry: StudyEntry) -> list[Axis]:
    """Every key as an axis, the one that varies slowest first; those of one value included."""
    axes = [gpu_axis([_at("gpu", load_gpu, name) for name in _names("gpu", entry.gpu)])]
    axes += [change_axis(key, values) for key, values in entry.change.items()]
    algorithms = [_at("algorithm", read_algorithm, name).name for name in _names("algorithm", entry.algorithm)]
    axes.append(named_axis("algorithm", algorithms))
    if entry.implementation is not None:
        names = _names("implementation", entry.implementation)
        axes.append(
            named_axis("implementation", [_at("implementation", find_implementation, name).name for name in names])
        )
    tiles = _names("tile", entry.tile)
    for tile in tiles:
        _at("tile", _check_tile, tile)
    axes.append(named_axis("tile", tiles))
    shape = entry.workload.shape
    if isinstance(shape, (str, list)):
        axes.append(_models(shape, entry.workload))
    elif shape is not None:
        axes.append(shape_axis(shape))
    for name in WorkloadEntry.model_fields:
        values = getattr(entry.workload, name)
        if name != "shape" and values is not None:
            axes.append(workload_axis(name, values))
    return axes


def _models(given: str | list[Any], beside: WorkloadEntry) -> Axis:
    """The shapes of models by id, without the fields that the study gives itself."""
    names = [given] if isinstance(given, str) else given
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"workload.shape is {shown(given)}; write ids of models, or names with fields")
    models = [_at("workload.shape", load_model, name) for name in _names("workload.shape", names)]
    fields = [name for name in MODEL_FIELDS if getattr(beside, name) is None]
    shapes = tuple({name: getattr(model, name) for name in fields} for model in models)
    return Axis("shape", "shape", shapes, labels=tuple(model.id for model in models))


def _at(where: str, read: Any, name: str) -> Any:
    try:
        return read(name)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _check_tile(name: str) -> None:
    if name not in ("shipped", "retuned"):
        read_conditions("shipped", name, "fast", "warm", "stream")


def _names(where: str, given: str | list[str]) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not names:
        raise InputError(f"{where} is an empty list; give one name or several")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where} names {shown(twice)} twice; keep one")
    return list(names)


def _reworded(error: ValidationError) -> str:
    """The first fault in one line: pydantic's own text runs over several and names its classes."""
    first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"] if str(part) not in ("str", "list[str]")]
    where, given = ".".join(parts), shown(first["input"])
    match first["type"]:
        case "extra_forbidden":
            known = WorkloadEntry if len(parts) > 1 else StudyEntry
            names = [item.alias or name for name, item in known.model_fields.items()]
            text = f"unknown key {shown(where)}; {nearest(parts[-1], names)}"
        case "missing":
            text = f"{where} is missing; a study needs gpu and workload"
        case "literal_error":
            text = f"{where} is {given}; allowed: {first['ctx']['expected'].replace(' or ', ', ')}"
        case "greater_than_equal":
            text = f"{where} is {given}; allowed: {first['ctx']['ge']} or more"
        case "less_than_equal":
            text = f"{where} is {given}; allowed: at most {first['ctx']['le']}"
        case "string_too_long":
            text = f"{where} is too long; allowed: at most {first['ctx']['max_length']} letters"
        case "model_type":
            text = f"{where} is {given}; write fields such as {{batch: 1, heads_q: 32, seq_q: 4096, head_dim: 128}}"
        case _:
            text = f"{where or 'the file'} is {given}; {' '.join(first['msg'].split())}"
    return text
