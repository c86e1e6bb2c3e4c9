"""Mutations of our own flash kernel: without any one of its barriers, waits or commits it does not pass."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attnsim.kernels.build.nvrtc import find_nvrtc
from attnsim.kernels.build.variant import CUDA, Variant
from attnsim.kernels.cpu.device import CpuDevice
from attnsim.kernels.cpu.faults import CopyInFlight, Race
from attnsim.kernels.cpu.run import run
from attnsim.kernels.device import Grid
from attnsim.kernels.flash import flash_forward
from attnsim.models.mask.mask import Mask

LOOP = '#include "flash_loop.cuh"'
SOURCE = (CUDA / "flash.cu").read_text("utf-8").replace(LOOP, (CUDA / "flash_loop.cuh").read_text("utf-8"))
"""The kernel with the loop that it shares with others."""
SYNCHRONISATION = re.compile(r"__syncthreads\(\);|cp_async_wait<[^;]*>\(\);|cp_async_commit\(\);")


@functools.cache
def ptx_of(text: str, variant: Variant) -> str:
    return find_nvrtc().compile(text, variant.source, (*variant.options, "-arch=compute_80")).ptx


class Mutant(CpuDevice):
    """Launches kernels from another text than the committed one, where that makes a difference."""

    def __init__(self, text: str) -> None:
        super().__init__("a100-sxm4-80gb")
        self.text = text
        self.changed = False

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Any]) -> None:
        ptx = ptx_of(self.text, variant)
        self.changed = ptx != ptx_of(SOURCE, variant)
        if self.changed:
            run(ptx, variant.entry, grid, variant.threads, arguments, variant.shared_memory_bytes)


@pytest.mark.parametrize("number", range(len(SYNCHRONISATION.findall(SOURCE))))
def test_every_synchronisation_is_needed(number: int) -> None:
    """By each tile whose loop has it: two stages at head_dim 64, one at 128."""
    statement = list(SYNCHRONISATION.finditer(SOURCE))[number]
    device = Mutant(SOURCE[: statement.start()] + SOURCE[statement.end() :])
    random = np.random.default_rng(0)
    needed = 0
    for head_dim in (64, 128):
        q, k, v = (random.standard_normal((1, 1, 136, head_dim)).astype(np.float16) for _ in range(3))
        try:
            flash_forward(device, q, k, v, mask=Mask.causal())
            assert not device.changed, f"runs without {statement[0]}"
        except (CopyInFlight, Race):
            needed += 1
    assert needed, f"no tile has {statement[0]}"
