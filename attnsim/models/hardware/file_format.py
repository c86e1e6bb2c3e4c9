"""Format of GPU files: their structure for pydantic and the JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
)

from attnsim.errors import InputError, nearest, shown
from attnsim.files import read_yaml
from attnsim.models.hardware.architectures import ARCHITECTURES
from attnsim.models.hardware.rules import MEMORY_KINDS, REQUIRED
from attnsim.models.hardware.sections import FIELDS, SECTIONS, Kind, fields_of

KINDS = get_args(Kind)
ID_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
CAPABILITIES = tuple(f"{number // 10}.{number % 10}" for number in sorted({*ARCHITECTURES, 121}))
"""Capabilities of the table, and GB10's 12.1, which runs the code of 12.0 and is modelled by it."""

_FIGURE = f"{{value: ..., kind: {'|'.join(KINDS)}, source: '...'}}"
_FIGURE_DEPTH = 2  # hbm.bandwidth

_STRICT = ConfigDict(extra="forbid", frozen=True)


class FigureEntry(BaseModel):
    """One figure: value with its unit, kind and source."""

    model_config = _STRICT

    value: StrictBool | StrictInt | StrictFloat | StrictStr
    kind: Kind
    source: StrictStr = Field(min_length=1, max_length=2000)


class ChangeEntry(BaseModel):
    """One changed figure, with the figures that changed along with it."""

    model_config = _STRICT

    figure: StrictStr
    value: StrictBool | StrictInt | StrictFloat | StrictStr
    was: StrictBool | StrictInt | StrictFloat | StrictStr
    follows: tuple[ChangeEntry, ...] = ()


def _optional(kind: Any, description: str | None = None, **more: Any) -> tuple[Any, Any]:
    return kind | None, Field(default=None, description=description, **more)


def _section(name: str) -> type[BaseModel]:
    entries: dict[str, Any] = {}
    for field in fields_of(SECTIONS[name]).values():
        example = "true" if field.unit == "bool" else field.example()
        entries[field.name] = _optional(
            FigureEntry, f"Unit: {field.unit}, such as {example!r}. Allowed: {field.allowed()}."
        )
    return create_model(name.capitalize(), __config__=_STRICT, **entries)


def _gpu_file() -> type[BaseModel]:
    architectures, new = dict.fromkeys(row.name for row in ARCHITECTURES.values()), "Written by `attnsim gpus new`."
    entries: dict[str, Any] = {
        "id": _optional(StrictStr, "Default: the file's name.", pattern=ID_PATTERN),
        "name": _optional(StrictStr, min_length=1, max_length=200),
        "extends": _optional(StrictStr, "A built-in id, or a file relative to this one.", min_length=1),
        "architecture": _optional(Literal[tuple(architectures)]),
        "compute_capability": _optional(Literal[CAPABILITIES], "In quotes."),
        "memory": _optional(Literal[MEMORY_KINDS], "Chooses the copy-bandwidth rule."),
        "base_id": _optional(StrictStr, new, pattern=ID_PATTERN),
        "changes": (tuple[ChangeEntry | StrictStr, ...], Field(default=(), description=new)),
        **{name: _optional(_section(name)) for name in SECTIONS},
    }
    sections = dict.fromkeys(key.partition(".")[0] for key in REQUIRED)
    whole = ["name", "architecture", "compute_capability", *sections]
    extra: dict[str, Any] = {"anyOf": [{"required": ["extends"]}, {"required": whole}]}
    config = ConfigDict(extra="forbid", frozen=True, title="attnsim GPU file", json_schema_extra=extra)
    return create_model("GpuFile", __config__=config, **entries)


GpuFile = _gpu_file()


def read_document(path: Path) -> dict[str, Any]:
    """Read and check a GPU file; plain dictionaries without absent keys.

    Raises
    ------
    InputError
        One line naming the file, the key, what was given and what is allowed.
    """
    content = read_yaml(path, "GPU", "or a built-in id")
    if not isinstance(content, dict):
        raise InputError(f"{path.name}: holds {_kind_of(content)}; write keys such as 'extends: h100-sxm5-80gb'")
    try:
        checked = GpuFile.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{path.name}: {_reworded(error)}") from None
    return checked.model_dump(exclude_none=True, exclude_defaults=True)


def _reworded(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    # Paths of a union's branches end in the type's name, which is not in the file.
    parts = [str(part) for part in first["loc"] if str(part) not in ("bool", "int", "float", "str")]
    where, given = ".".join(parts), shown(first["input"])
    match first["type"]:
        case "extra_forbidden":
            text = f"unknown key {shown(where)}; {nearest(where, _allowed_names(parts))}"
        case "missing":
            text = f"{where} is missing; a figure is {_FIGURE}"
        case "literal_error":
            expected = first["ctx"]["expected"].replace(" or ", ", ")
            text = f"{where} is {given}; allowed: {expected}"
        case "string_pattern_mismatch":
            text = f"{where} is {given}; allowed: at most 64 of a-z, 0-9, '.', '_', '-'; rename it"
        case "model_type" | "model_attributes_type" | "dict_type" if len(parts) == _FIGURE_DEPTH:
            text = f"{where} is {given}; write {_FIGURE}"
        case "model_type" | "model_attributes_type" | "dict_type":
            text = f"{where} is {given}; write keys under it: {', '.join(_allowed_names([*parts, '']))}"
        case "string_too_short":
            text = f"{where} is empty; write a text"
        case _ if parts and parts[-1] == "value":
            text = f"{'.'.join(parts[:-1])} is {given}; write a value with its unit such as '3.35 TB/s'"
        case _:
            text = f"{where or 'the file'} is {given}; {' '.join(first['msg'].split())}"
    return text


def _allowed_names(parts: list[str]) -> list[str]:
    """Names allowed where `parts` points: top level, a section's keys, or a figure's."""
    if len(parts) <= 1:
        return list(GpuFile.model_fields)
    if len(parts) == _FIGURE_DEPTH:
        return [key for key in FIELDS if key.startswith(f"{parts[0]}.")]
    return [".".join([*parts[:2], name]) for name in FigureEntry.model_fields]


def _kind_of(content: object) -> str:
    return "nothing" if content is None else f"a {type(content).__name__}"
