"""Whether the interpreter's inner loops are compiled: where numba is installed."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType


@functools.cache
def compiled() -> ModuleType | None:
    """:mod:`attnsim.kernels.cpu.compiled`, or None where numba is not installed; results and counts are the same."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return None
    return importlib.import_module("attnsim.kernels.cpu.compiled")


@functools.cache
def arithmetic() -> ModuleType:
    """:mod:`attnsim.kernels.cpu.compiled_arithmetic`; for where `compiled` is not None."""
    return importlib.import_module("attnsim.kernels.cpu.compiled_arithmetic")
