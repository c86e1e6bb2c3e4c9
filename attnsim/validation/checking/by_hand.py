"""Every constant of the package that is declared as chosen by hand (:mod:`attnsim.by_hand`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

import attnsim


@dataclass(frozen=True, slots=True)
class Chosen:
    """A constant: its module below `attnsim`, its name there, its value and what it means."""

    module: str
    name: str
    value: object
    meaning: str

    @property
    def shown(self) -> bool | int | float | str:
        """The value, in words where it is no number; of a long one how many entries it has."""
        if isinstance(self.value, bool | int | float):
            return self.value
        return str(self.value) if len(str(self.value)) <= 48 else f"{len(cast(Sized, self.value))} entries"


def chosen() -> Iterator[Chosen]:
    """The declarations, file by file; only modules that hold one are imported."""
    root = Path(attnsim.__file__).parent
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if " = by_hand(" not in source:
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(source).body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(name)], value=ast.Call(ast.Name("by_hand"), [_, ast.Constant(str(said))])
                ) | ast.AnnAssign(ast.Name(name), value=ast.Call(ast.Name("by_hand"), [_, ast.Constant(str(said))])):
                    yield Chosen(module, name, getattr(import_module(f"attnsim.{module}"), name), said)
