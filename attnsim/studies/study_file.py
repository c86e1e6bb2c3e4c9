"""Reads a study file: YAML to a checked :class:`~attnsim.studies.study.Study`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from attnsim.api.asking import read_algorithm, read_conditions
from attnsim.errors import InputError, nearest, shown
from attnsim.files import read_yaml
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import settled_name
from attnsim.models.llm.asked import asked_layers
from attnsim.models.llm.files import load_model
from attnsim.models.question.words import FIELD_WORDS
from attnsim.models.schedule.kernel_file import read_kernels
from attnsim.studies.study import COLUMNS, Axis, Study, T, change_axis, check_keys, read_at, shape_axis, workload_axis

MODEL_FIELDS = ("heads_q", "heads_kv", "head_dim", "head_dim_v", "mask", "latent")
"""Fields of a workload that a model (:class:`attnsim.models.llm.model.Model`) sets."""


class StudyEntry(BaseModel):
    """Schema of a study file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: StrictStr = Field(default="", max_length=200)
    gpu: StrictStr | list[StrictStr]
    change: dict[StrictStr, Any] = Field(default_factory=dict)
    kernel: StrictStr | list[StrictStr] | None = None
    algorithm: StrictStr | list[StrictStr] = "flash"
    implementation: StrictStr | list[StrictStr] | None = None
    tile: StrictStr | list[StrictStr] = "shipped"
    workload: dict[StrictStr, Any] | None = None
    combine: Literal["cartesian", "list", "sobol"] = "cartesian"
    points: StrictInt | None = Field(default=None, ge=1, le=1 << 30)
    seed: StrictInt = Field(default=0, ge=0, le=(1 << 31) - 1)
    method: Literal["closed-form", "replay", "auto"] = "auto"
    replays: StrictInt | None = Field(default=None, ge=0)
    cache: Literal["warm", "cold"] | None = None
    launch: Literal["stream", "host", "graph", "kernel"] = "stream"
    # Of `attnsim report`, which reads the same file; a sweep does not need them.
    question: StrictStr = ""
    date: Any = None
    pictures: list[StrictStr] = Field(default_factory=list)


def read_study(path: str | Path) -> Study:
    """Read a study file.

    Parameters
    ----------
    path : str or Path
        A YAML file; GPU and kernel files in it are relative to the working directory, as on the command line.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        For an unknown key or a bad value, with the file and the key.
    """
    path = Path(path)
    return read_at(f"{path.name}:", study_of, read_yaml(path, "study"))


def study_of(content: object) -> Study:
    """Build the study from the content of a file.

    Raises
    ------
    InputError
        As in `read_study`, without the file's name.
    """
    if not isinstance(content, Mapping):
        held = "nothing" if content is None else shown(content)
        raise InputError(f"holds {held}; write keys such as 'gpu: h100-sxm5-80gb'")
    try:
        entry = StudyEntry.model_validate(content)
    except ValidationError as error:
        raise InputError(_reworded(error)) from None
    kept = entry.model_dump(include={"title", "combine", "seed", "method", "replays", "cache", "launch"})
    gpus = _read("gpu", entry.gpu, load_gpu)
    axes = [Axis("gpu", "gpu", gpus, labels=tuple(gpu.id for gpu in gpus))]
    axes += [change_axis(key, values) for key, values in entry.change.items()]
    if entry.kernel is not None:
        axes.append(_kernels(entry, entry.kernel))
        kept["method"] = "replay"
    elif entry.workload is not None:
        axes += _questions(entry, entry.workload)
    else:
        raise InputError("workload is missing; a study needs gpu, and workload or kernel")
    kept["cache"] = entry.cache or ("cold" if _decodes_of_models(entry.workload) else "warm")
    return Study(axes=tuple(axes), sample=entry.points, **kept)


def _decodes_of_models(workload: Mapping[str, Any] | None) -> bool:
    """True if a study has decode of models.

    The other layers of a model then leave nothing in the L2 (`attnsim.models.llm.asked`).
    """
    given = _of_record(workload or {})
    return isinstance(given.get("shape"), (str, list)) and "decode" in (given.get(COLUMNS["passes"]) or "")


def _kernels(entry: StudyEntry, given: str | list[str]) -> Axis:
    """Read the axis of kernel files, which replace algorithms and workloads."""
    for key in ("algorithm", "implementation", "tile", "workload"):
        if key in entry.model_fields_set:
            raise InputError(f"{key} is not for kernel, whose file holds shapes, tile and fitted numbers; keep one")
    if entry.method == "closed-form" or entry.replays is not None:
        reason = "method is closed-form" if entry.replays is None else f"replays is {entry.replays}"
        raise InputError(f"{reason}, but a kernel file has no closed form: every point is a replay; leave it out")
    kernels = _read("kernel", given, lambda name: read_kernels(Path(name)))
    return Axis("kernel", "choice", kernels, labels=tuple([given] if isinstance(given, str) else given))


def _questions(entry: StudyEntry, workload: Mapping[str, Any]) -> list[Axis]:
    """Read the axes of algorithms and workloads, the slowest-varying first."""
    choices: tuple[tuple[str, str | list[str] | None, Callable[[str], str]], ...] = (
        ("algorithm", entry.algorithm, lambda name: read_algorithm(name).name),
        ("implementation", entry.implementation, settled_name),
        ("tile", entry.tile, _checked_tile),
    )
    axes = [Axis(key, "choice", _read(key, given, read)) for key, given, read in choices if given is not None]
    given = {key: value for key, value in _of_record(workload).items() if value is not None}
    check_keys("workload", given, ("shape", *COLUMNS.values()))
    shape = given.get("shape")
    if isinstance(shape, (str, list)):
        axes.append(_models(shape, given))
    elif shape is not None:
        axes.append(shape_axis(shape))
    if "lengths" not in given and (axes[-1].kind != "shape" or "batch" not in axes[-1].values[0]):
        given.setdefault("batch", 1)
    return axes + [workload_axis(name, given[column]) for name, column in COLUMNS.items() if column in given]


def _of_record(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields under their canonical names (:mod:`attnsim.models.question.words`).

    Raises
    ------
    InputError
        For a field that is given twice.
    """
    found: dict[str, Any] = {}
    for key, value in workload.items():
        name = COLUMNS.get(FIELD_WORDS.get(key, key), key)
        if name in found:
            raise InputError(f"workload.{key} and workload.{name} are the same; keep one")
        found[name] = value
    return found


def _models(given: str | list[Any], set_by_study: Mapping[str, Any]) -> Axis:
    """Read the shapes of models by id, without the fields that the study sets itself."""
    if not all(isinstance(name, str) for name in given):
        raise InputError(f"workload.shape is {shown(given)}; write ids of models, or names with fields")
    models = _read("workload.shape", given, lambda name: asked_layers(load_model(name), name))
    fields = [name for name in MODEL_FIELDS if name not in set_by_study]
    shapes = tuple({name: getattr(model, name) for name in fields} for model in models)
    return Axis("shape", "shape", shapes, labels=tuple(model.id for model in models))


def _checked_tile(name: str) -> str:
    if name not in ("shipped", "retuned"):
        read_conditions(tile=name)
    return name


def _read(where: str, given: str | list[str], read: Callable[[str], T]) -> tuple[T, ...]:
    """Read one name or several; raises InputError for an empty list or a repeated name."""
    names = [given] if isinstance(given, str) else given
    if not names:
        raise InputError(f"{where} is an empty list; give one name or several")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where} names {shown(twice)} twice; keep one")
    return tuple(read_at(f"{where}:", read, name) for name in names)


def _reworded(error: ValidationError) -> str:
    """Describe the first fault in one line; pydantic's own text has several lines and names its classes."""
    first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"] if str(part) not in ("str", "list[str]")]
    where, given = ".".join(parts), shown(first["input"])
    if first["type"] == "extra_forbidden":
        keys = StudyEntry.model_fields
        every = "" if len(parts) > 1 else f"; all: {', '.join(keys)}"
        return f"unknown key {shown(where)}; {nearest(where, keys)}{every}"
    if first["type"] == "dict_type" and where == "workload":
        return f"{where} is {given}; write fields such as {{batch: 1, heads_q: 32, seq_q: 4096, head_dim: 128}}"
    limits = {key: str(value).replace(" or ", ", ") for key, value in first.get("ctx", {}).items()}
    words = {
        "missing": "is missing; a study needs gpu, and workload or kernel",
        "literal_error": "is {given}; allowed: {expected}",
        "greater_than_equal": "is {given}; allowed: {ge} or more",
        "less_than_equal": "is {given}; allowed: at most {le}",
        "string_too_long": "is too long; allowed: at most {max_length} letters",
    }.get(first["type"], "is {given}; {fault}")
    return f"{where or 'the file'} {words.format(given=given, fault=' '.join(first['msg'].split()), **limits)}"
