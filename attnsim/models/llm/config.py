"""A Hugging Face configuration as checked values: under whatever key, else as its architecture takes them."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from attnsim.errors import InputError, shown
from attnsim.files import read_written

_LARGEST = 1 << 27
_FLAT = ("attn_config", "ffn_config", "quantization_config")
"""Parts of a configuration that are read as if they stood in it (MPT, DBRX, and weights in fp8)."""
_CORE = ("hidden", "layers", "heads", "inner")
"""Fields that a file must give, but for one inside another's (LLaVA), which may leave out what its family takes."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A line of architectures.csv: names, kind, facts, layers, linear, keys."""

    name: str
    kind: str
    facts: frozenset[str]
    layers: tuple[str, ...]
    linear: str
    keys: Mapping[str, object]


@functools.cache
def architectures() -> dict[str, Architecture]:
    """The known architectures, by each of their names."""
    found: dict[str, Architecture] = {}
    with (files("attnsim.models.llm") / "architectures.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            pairs = [part.partition("=") for part in row["keys"].split("; ")]
            keys = {key: _written(value) for key, _, value in pairs}
            first, *_ = names = row["names"].split()
            facts, layers = frozenset(row["facts"].split()), tuple(row["layers"].split())
            found |= dict.fromkeys(names, Architecture(first, row["kind"], facts, layers, row["linear"], keys))
    return found


def _written(value: str) -> object:
    return json.loads(value) if value[:1].isdigit() or value in ("true", "false") else value or None


@functools.cache
def vocabulary() -> dict[str, Any]:
    """The content of keys.yaml: fields and their keys, rules, harmless names, words of layers."""
    known: dict[str, Any] = read_written(files("attnsim.models.llm") / "keys.yaml")
    return known


def spelt(field: str) -> list[str]:
    """The keys that may hold a field of keys.yaml; a key that is no field holds itself."""
    found: list[str] = vocabulary()["fields"].get(field, [field])
    return found


def plain(name: object) -> str:
    """A name by its letters and digits alone, small."""
    return "".join(letter for letter in str(name).lower() if letter.isascii() and letter.isalnum())


class Config:
    """A configuration whose values are checked as they are read."""

    def __init__(self, content: Mapping[str, object], known: Architecture | None, nested: bool = False) -> None:
        flat: dict[str, object] = {}
        for name in _FLAT:
            part = content.get(name)
            flat |= part if isinstance(part, dict) else {}
        self.content = {**flat, **content}
        self.known = known
        self.nested = nested
        self.taken: dict[str, object] = {}
        self.defaults = known.keys if known else {}
        self.linear = known.linear if known else ""
        self.left_out: list[str] = []

    def has(self, fact: str) -> bool:
        """Whether the architecture's line has a fact."""
        return self.known is not None and fact in self.known.facts

    def reads(self, field: str) -> bool:
        """Whether the architecture has such a thing; one that is not known may have anything."""
        return self.known is None or any(key in self.defaults for key in spelt(field))

    def value(self, field: str) -> object:
        """The value under any of a field's keys, else the architecture's default; None for neither and for null."""
        keys = spelt(field)
        given = [key for key in keys if key in self.content]
        found = next((self.content[key] for key in given if self.content[key] is not None), None)
        if given or (field in _CORE and not self.nested):
            return found
        key = next((key for key in keys if self.defaults.get(key) is not None), "")
        if field in _CORE and key:
            self.taken[key] = self.defaults[key]
        return self.defaults.get(key)

    def whole(self, field: str, default: int | None = None) -> int:
        """A whole number from 1; null and 0 count as absent where there is a default."""
        value, keys = self.value(field), spelt(field)
        key = next((key for key in keys if self.content.get(key) is not None), keys[0])
        if isinstance(value, list) and value:
            value = value[0]
            if any(one != value for one in self.listed(key)):
                self.left_out.append(f"{key} differs between layers; the first counts")
        if value in (None, "auto") or (value == 0 and value is not False and default is not None):
            if default is None:
                raise InputError(f"{key} is missing; add it")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise InputError(f"{key} is {shown(value)}; allowed: a whole number from 1 to {_LARGEST}")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """A truth value; null counts as absent."""
        value = self.value(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            key = next((key for key in spelt(field) if key in self.content), field)
            raise InputError(f"{key} is {shown(value)}; allowed: true or false")
        return value

    def share(self, field: str) -> float | None:
        """A number, None where there is none."""
        value = self.value(field)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise InputError(f"{spelt(field)[0]} is {shown(value)}; allowed: a number")

    def listed(self, *keys: str) -> list[Any]:
        """The first of these keys that holds a list, empty where none does."""
        return next((found for key in keys if isinstance(found := self.content.get(key), list)), [])

    def numbers(self, key: str) -> set[int]:
        """A list of layers."""
        found = self.listed(key)
        if not all(isinstance(one, int) for one in found):
            raise InputError(f"{key} is {shown(found)}; allowed: numbers of layers")
        return set(found)
