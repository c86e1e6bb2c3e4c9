"""A function of somebody's own, by file or module and name: ``reference.py:attention``, ``package.module:kernel``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from attnsim.errors import InputError, nearest


def load_named(text: str) -> Any:
    """What ``FILE.py:NAME`` or ``MODULE:NAME`` names; modules are looked for in the working directory too.

    Raises
    ------
    InputError
        When there is no such file, module or name, or importing it fails.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise InputError(f"{text!r} is not of the form FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        needed = "" if error.name == where.partition(".")[0] else f"; install {error.name}, which it needs"
        raise InputError(f"{where} cannot be imported: {error}{needed}") from None
    except (Exception, SystemExit) as error:  # whatever somebody's file does when it is imported
        raise InputError(f"{where} cannot be imported: {type(error).__name__}: {error}") from None
    try:
        return getattr(module, name)
    except AttributeError:
        names = [one for one in vars(module) if not one.startswith("_")]
        raise InputError(f"{where} has no {name}; {nearest(name, names)}") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path}: no such file; give FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # Triton reads the source of a kernel by its module
    spec.loader.exec_module(module)
    return module


def _from_path(name: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)
