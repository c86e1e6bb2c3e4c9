"""Compile functions by numba, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def jit(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the code for other processes where that can be done.

    Without numba it stays as it is; who would not call it then has asked for numba before.
    """
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # neither the function's folder nor the user's own may be written
        return njit(function)
