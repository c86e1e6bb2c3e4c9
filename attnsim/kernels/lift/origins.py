"""Records the origin of a lifted kernel, for its file."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from attnsim.kernels.lift.lifting import Nest, PtxLaunch
from attnsim.models.digest import version
from attnsim.models.schedule.instructions import Lifted, Origin
from attnsim.models.schedule.schedule import Kernel

ZEROS = "zeros"
"""Default contents of arrays: all scores are then equal, so no branch on values is taken."""


def lifted_of(
    kernel: Kernel, nest: Nest, launch: PtxLaunch, ptx: str, arch: str, source: str, inputs: str, resources: str
) -> Lifted:
    """Return a kernel with the origin for its file."""
    origin = Origin(
        entry=kernel.name,
        source=source,
        ptx_sha256=hashlib.sha256(ptx.encode()).hexdigest(),
        arch=arch,
        grid=launch.grid,
        block=launch.block,
        arguments={name: described(value) for name, value in launch.arguments.items()},
        inputs=inputs,
        resources=resources,
        attnsim=version(),
    )
    return Lifted(kernel, origin, nest.instructions, round(nest.per_score, 3))


def described(value: Any) -> str:
    """Describe an argument: ``float16[2,8,500,64]``, or a number."""
    array = getattr(value, "array", value)
    if isinstance(array, np.ndarray):
        return f"{array.dtype}[{','.join(map(str, array.shape))}]"
    return str(value)
