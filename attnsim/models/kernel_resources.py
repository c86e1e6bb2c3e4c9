"""Registers and shared memory of our CUDA kernels, as the compiler reported them.

``kernel_resources.csv`` is written by ``attnsim kernels check --write`` and reviewed like source.
"""

from __future__ import annotations

import csv
import functools
from importlib.resources import files

from attnsim.models.gpu import Gpu


@functools.cache
def _table() -> dict[tuple[str, int], int]:
    source = files("attnsim.models") / "kernel_resources.csv"
    if not source.is_file():
        return {}
    rows = csv.DictReader(source.read_text(encoding="utf-8").splitlines())
    return {(row["kernel"], int(row["arch"])): int(row["registers"]) for row in rows if row["arch"].isdigit()}


def registers_of(kernel: str, gpu: Gpu, threads: int) -> int:
    """Registers per thread of a kernel on a GPU's architecture, or on the nearest older one compiled for.

    Parameters
    ----------
    kernel : str
        Entry point and compile-time constants, ``flash_forward(Half,64,...)``.
    gpu : Gpu
    threads : int
        Of a block; where nothing is recorded the most that so many threads may have is taken.
    """
    known = [arch for name, arch in _table() if name == kernel and arch <= gpu.compute_capability_number]
    return _table()[kernel, max(known)] if known else min(255, gpu.sm.registers // threads // 8 * 8)
