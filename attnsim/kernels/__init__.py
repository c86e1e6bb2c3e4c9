"""Our own attention kernels, checked against a float64 reference.

The package has the functions of :data:`attnsim.kernels.catalog.OPERATIONS` by name. On NumPy arrays they run in the
interpreter, on CuPy arrays on the GPU; float16 is fp16, uint16 holds the bits of bf16. ``run_ptx`` runs any other
kernel in the interpreter; ``trace_ptx`` and ``trace_cuda`` derive its schedule. Functions are imported on first use;
until one is launched, this package needs only NumPy.

Examples
--------
>>> import numpy as np
>>> import attnsim.kernels as ak
>>> q = k = v = np.ones((1, 1, 64, 64), np.float16)
>>> o, lse = ak.flash_forward(q, k, v, causal=True)
>>> o.shape, float(o[0, 0, 0, 0])
((1, 1, 64, 64), 1.0)
"""

from __future__ import annotations

import importlib
from typing import Any

_TRACING = "attnsim.kernels.lift.tracing"
_HOMES = {"run_ptx": "attnsim.ptx.foreign.run", "trace_cuda": _TRACING, "trace_ptx": _TRACING}


def __getattr__(name: str) -> Any:
    """Import an operation by the name of its function, ``run_ptx``, ``trace_ptx`` or ``trace_cuda`` (PEP 562)."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    for operation in _operations() if not name.startswith("_") else ():
        if operation.function == name:
            on_arrays = importlib.import_module("attnsim.kernels.calling").on_arrays
            globals()[name] = found = on_arrays(operation)
            return found
    raise AttributeError(f"module 'attnsim.kernels' has no attribute {name!r}")


def _operations() -> list[Any]:
    return [*importlib.import_module("attnsim.kernels.catalog").OPERATIONS.values()]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *(operation.function for operation in _operations())})
