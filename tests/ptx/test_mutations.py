"""Mutations of our own flash and block-sparse kernels: without any one barrier, wait or commit they do not pass."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.device import Grid
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.sparse import sparse_forward
from attnsim.kernels.variant import CUDA, Variant
from attnsim.models.hardware.files import load_gpu
from attnsim.models.mask.mask import Mask
from attnsim.ptx.faults import CopyInFlight, Race
from attnsim.ptx.nvrtc import find_nvrtc
from attnsim.ptx.run import run

LOOP = '#include "flash_loop.cuh"'
SOURCES = {
    "flash": (CUDA / "flash.cu").read_text("utf-8").replace(LOOP, (CUDA / "flash_loop.cuh").read_text("utf-8")),
    "sparse": (CUDA / "sparse.cu").read_text("utf-8"),
}
"""The kernels; flash with the loop that it shares with others."""
SYNCHRONISATION = re.compile(r"__syncthreads\(\);|cp_async_wait<[^;]*>\(\);|cp_async_commit\(\);")
ONE_SM = load_gpu("a100-sxm4-80gb").replace("sm.count", "=1")


@functools.cache
def ptx_of(text: str, variant: Variant) -> str:
    return find_nvrtc().compile(text, variant.source, (*variant.options, "-arch=compute_80")).ptx


class Mutant(CpuDevice):
    """Launches kernels from another text than the committed one, where that makes a difference."""

    def __init__(self, source: str, text: str) -> None:
        super().__init__(ONE_SM)
        self.source, self.text = source, text
        self.changed = False

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Any]) -> None:
        ptx = ptx_of(self.text, variant)
        self.changed = ptx != ptx_of(self.source, variant)
        if self.changed:
            run(ptx, variant.entry, grid, variant.threads, arguments, variant.shared_memory_bytes)


def flash(device: CpuDevice, head_dim: int) -> None:
    flash_forward(device, *arrays(1, 136, head_dim), mask=Mask.causal())


def sparse(device: CpuDevice, head_dim: int) -> None:
    """Row tiles of several visits, of one and of none follow one another on a block."""
    mask = Mask.parse("blocks 64 0:0 1:0 1:1 1:2 3:1 3:2 4:4, blocks 16 1:9")
    sparse_forward(device, *arrays(4, 310, head_dim), mask=mask, tile=(64, 64))


def arrays(heads: int, seq: int, head_dim: int) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal((1, heads, seq, head_dim)).astype(np.float16) for _ in range(3)]


MUTATED: dict[str, Callable[[CpuDevice, int], None]] = {"flash": flash, "sparse": sparse}


@pytest.mark.parametrize(
    ("kernel", "number"),
    [(kernel, number) for kernel, text in SOURCES.items() for number in range(len(SYNCHRONISATION.findall(text)))],
)
def test_every_synchronisation_is_needed(kernel: str, number: int) -> None:
    """By each tile whose loop has it: two stages at head_dim 64, one at 128."""
    source = SOURCES[kernel]
    statement = list(SYNCHRONISATION.finditer(source))[number]
    device = Mutant(source, source[: statement.start()] + source[statement.end() :])
    needed = 0
    for head_dim in (64, 128):
        try:
            MUTATED[kernel](device, head_dim)
            assert not device.changed, f"runs without {statement[0]} at head_dim {head_dim}"
        except (CopyInFlight, Race):
            needed += 1
    assert needed, f"no tile has {statement[0]}"
