"""The interpreter's compiled loops, imported when a kernel first needs them: numba takes its time."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec
from types import ModuleType

from attnsim.errors import InputError


def compiled() -> ModuleType:
    """:mod:`attnsim.ptx.compiled`: accesses to memory, and their checks."""
    return _loops("compiled")


def arithmetic() -> ModuleType:
    """:mod:`attnsim.ptx.compiled_arithmetic`: the tape."""
    return _loops("compiled_arithmetic")


def compiled_clocks() -> ModuleType:
    """:mod:`attnsim.ptx.compiled_clocks`: checks by vector clocks."""
    return _loops("compiled_clocks")


def compiled_matrices() -> ModuleType:
    """:mod:`attnsim.ptx.compiled_matrices`: what tensor cores work on."""
    return _loops("compiled_matrices")


@functools.cache
def _loops(name: str) -> ModuleType:
    if find_spec("numba") is None:  # they would take hours
        raise InputError("numba is not installed, and the interpreter's loops need it: pip install numba")
    return importlib.import_module(f"attnsim.ptx.{name}")
