"""A YAML reader for files that people write: safe, with limits on size and depth, no duplicate keys, one-line errors.

`read_typed` also checks the content against a type; it reads the tables of facts that are part of the package.
"""

from __future__ import annotations

import functools
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from attnsim.errors import InputError

T = TypeVar("T")

MAX_FILE_BYTES = 256 * 1024
_MAX_DEPTH = 16  # a GPU file's figures have their fields at depth 3


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML loader that refuses duplicate keys, of which YAML itself would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                raise InputError(f"line {key_node.start_mark.line + 1}: keys must be plain words")
            if key_node.value in seen:
                raise InputError(f"line {key_node.start_mark.line + 1}: {key_node.value} is given twice; keep one")
            seen.add(key_node.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


# PyYAML looks constructors up by tag on the class; the stock one for maps would call flatten_mapping first.
def _construct_map(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_map)


@functools.cache
def shipped(folder: Path) -> dict[str, Path]:
    """YAML files in a folder of the package, sorted, by their id: the name without its suffix."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_written(path: Traversable) -> Any:
    """Content of a YAML file written by this package, which needs no check."""
    return yaml.load(path.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_bytes(path: Path, most: int, give: str, holds: str) -> bytes:
    """Content of a file; messages say what to `give`, and what such a file `holds`.

    Raises
    ------
    InputError
        If the file cannot be read, or has more than `most` bytes.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); give {give}") from None
    if len(raw) > most:
        raise InputError(f"{path.name}: is larger than {most // 1024} KiB; {holds}")
    return raw


def read_yaml(path: Path, what: str, give: str = "") -> object:
    """Content of a YAML file.

    Parameters
    ----------
    what : str
        The thing that the file describes, for messages: "GPU".
    give : str
        Alternative inputs, with "or": "or a built-in id".

    Raises
    ------
    InputError
        One line naming the file and, if known, the line at fault.
    """
    raw = read_bytes(path, MAX_FILE_BYTES, f"a {what} file {give}".rstrip(), f"a {what} file holds about 10 KiB")
    try:
        text = raw.decode("utf-8")
        _check_depth(text)
        return yaml.load(text, Loader=_Loader)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path.name}: is not UTF-8 text; save it as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read as YAML"
        raise InputError(f"{path.name}: {line}{' '.join(str(problem).split())}; correct the YAML") from None
    except ValueError as error:  # dates such as 2024-99-99
        raise InputError(f"{path.name}: {' '.join(str(error).split())}; correct the YAML") from None


def read_typed(path: Path, what: str, kind: type[T]) -> T:
    """Content of a YAML file as a value of a type: a dataclass, tuples, mappings; unknown keys are refused.

    Raises
    ------
    InputError
        As `read_yaml`, and for the first value that the type does not allow, with its path in the file.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    content = read_yaml(path, what)
    try:
        # pydantic takes settings for a container of dataclasses, not for a dataclass itself.
        (found,) = TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid")).validate_python((content,))  # type: ignore[valid-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][1:]))
        if not where:
            raise InputError(f"{path.name}: holds no keys and values; give a {what} file") from None
        raise InputError(f"{path.name}: {where}: {first['msg']}; its first lines explain the keys") from None
    return found


def _check_depth(text: str) -> None:
    """Refuse deep nesting by walking the events first: libyaml's composer recurses and would crash on it."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise InputError(f"nested more than {_MAX_DEPTH} deep; correct the YAML")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
