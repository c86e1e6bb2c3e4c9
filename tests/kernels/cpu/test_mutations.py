"""Mutations of our own flash kernel: without any one of its barriers, waits or commits it does not pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from attnsim.kernels.cpu.device import CpuDevice
from attnsim.kernels.cpu.faults import CopyInFlight, Race
from attnsim.kernels.cpu.run import run
from attnsim.kernels.device import Grid
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.nvrtc import find_nvrtc
from attnsim.kernels.variant import CUDA, Variant
from attnsim.models.mask import Mask

SOURCE = (CUDA / "flash_forward.cu").read_text(encoding="utf-8")
SYNCHRONISATION = re.compile(r"__syncthreads\(\);|cp_async_wait<[^;]*>\(\);|cp_async_commit\(\);")


class Mutant(CpuDevice):
    """Launches kernels from another text than the committed one."""

    def __init__(self, text: str) -> None:
        super().__init__("a100-sxm4-80gb")
        self.text = text

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Any]) -> None:
        options = (*variant.options, "-arch=compute_80")
        mutated, original = (find_nvrtc().compile(t, variant.source, options).ptx for t in (self.text, SOURCE))
        if mutated == original:
            raise Unused
        run(mutated, variant.entry, grid, variant.threads, arguments, variant.shared_memory_bytes)


class Unused(Exception):
    """The statement is in a branch that this variant does not have."""


@pytest.mark.parametrize("number", range(len(SYNCHRONISATION.findall(SOURCE))))
def test_every_synchronisation_is_needed(number: int) -> None:
    statement = list(SYNCHRONISATION.finditer(SOURCE))[number]
    device = Mutant(SOURCE[: statement.start()] + SOURCE[statement.end() :])
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 1, 200, 64)).astype(np.float16) for _ in range(3))
    with pytest.raises((CopyInFlight, Race, Unused)):
        flash_forward(device, q, k, v, mask=Mask.causal())
