"""Compilation of functions by numba, if it is installed."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def jit(function: Callable[..., Any], allocates: bool = True) -> Any:
    """Compile a function when it is first called, and cache the code for other processes if possible.

    Without numba the function is returned unchanged; callers that need compiled code check for numba first.
    ``allocates=False`` compiles without numba's reference counts (``_nrt=False``), for functions that allocate no
    array: a third less time if arrays are passed on in an inner loop.
    """
    try:
        from numba import njit
    except ImportError:
        return function
    _load_without_scipy()
    options: dict[str, Any] = {} if allocates else {"_nrt": False}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the function's folder nor the user's own may be written
        return njit(**options)(function)


@cache
def _load_without_scipy() -> None:
    """Load numba's functions of arrays without SciPy's linear algebra: 0.1 s, for products that nothing here has.

    They look for it when they are loaded; whoever compiles such a product later in the same process still gets it.
    Beside other threads, which may need it meanwhile, it is loaded.
    """
    name = "scipy.linalg"
    if name in sys.modules or threading.active_count() > 1:
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules[name]
