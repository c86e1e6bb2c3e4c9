"""Small CUDA kernels in strings, compiled by NVRTC and run by the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from attnsim.kernels.variant import CUDA
from attnsim.ptx.counters import Counters
from attnsim.ptx.nvrtc import find_nvrtc
from attnsim.ptx.run import run

Launch = Callable[..., Counters]


@functools.cache
def ptx_of(source: str, arch: int | str) -> str:
    options = ("-std=c++17", f"-I{CUDA}", f"-arch=compute_{arch}", "-DELEMENT=Half")
    text = '#include "tile.cuh"\n#define KERNEL extern "C" __global__ void kernel\n' + source
    return find_nvrtc().compile(text, "test.cu", options).ptx


@pytest.fixture
def launch() -> Launch:
    """Compile a source with an entry point ``kernel`` and run it on the CPU."""

    def launch(
        source: str,
        arguments: Mapping[str, Any],
        *,
        block: int | tuple[int, ...] = 32,
        grid: int | tuple[int, ...] = 1,
        shared: int = 0,
        arch: int | str = 80,
        **options: Any,
    ) -> Counters:

        return run(ptx_of(source, arch), "kernel", grid, block, arguments, shared, **options)

    return launch
