"""Lists every constant of the package that is declared as chosen by hand (:mod:`attnsim.by_hand`)."""

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
    """A constant: its module in `attnsim`, its name, value and meaning."""

    module: str
    name: str
    value: object
    meaning: str

    @property
    def shown(self) -> bool | int | float | str:
        """The value; as text if it is no number, and as the number of entries if it is long."""
        if isinstance(self.value, bool | int | float):
            return self.value
        return str(self.value) if len(str(self.value)) <= 48 else f"{len(cast(Sized, self.value))} entries"


def chosen() -> Iterator[Chosen]:
    """Yield the declarations, file by file; only modules with declarations are imported."""
    root = Path(attnsim.__file__).parent
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if " = by_hand(" not in source:
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(source).body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(name)], value=ast.Call(ast.Name("by_hand"), [_, ast.Constant(str(meaning))])
                ) | ast.AnnAssign(ast.Name(name), value=ast.Call(ast.Name("by_hand"), [_, ast.Constant(str(meaning))])):
                    yield Chosen(module, name, getattr(import_module(f"attnsim.{module}"), name), meaning)
