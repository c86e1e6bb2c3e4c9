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

from typing import Any


def __getattr__(name: str) -> Any:
    """Import an operation by the name of its function, ``run_ptx``, ``trace_ptx`` or ``trace_cuda`` (PEP 562)."""
    if name in ("trace_cuda", "trace_ptx"):
        from attnsim.kernels.lift import tracing

        return getattr(tracing, name)
    if name == "run_ptx":
        from attnsim.ptx.foreign.run import run_ptx

        return run_ptx
    if not name.startswith("_"):
        from attnsim.kernels.calling import on_arrays
        from attnsim.kernels.catalog import OPERATIONS

        for operation in OPERATIONS.values():
            if operation.function == name:
                globals()[name] = found = on_arrays(operation)
                return found
    raise AttributeError(f"module 'attnsim.kernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    from attnsim.kernels.catalog import OPERATIONS

    return sorted(
        {*globals(), "run_ptx", "trace_cuda", "trace_ptx", *(operation.function for operation in OPERATIONS.values())}
    )
