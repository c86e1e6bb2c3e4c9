"""Our kernels on inputs that random normal numbers never are, and mutants that normal numbers let pass."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.kernels.arrays import random_arrays
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.device import Grid
from attnsim.kernels.gpu.grid import case, masks_of
from attnsim.kernels.variant import CUDA, Variant
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.ptx.counters import decode
from attnsim.ptx.nvrtc import find_nvrtc
from attnsim.ptx.outcome import INPUTS, fill
from attnsim.ptx.run import run

CASES = [(name, kind) for name, one in OPERATIONS.items() for kind in one.adversarial]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{name}, {kind}" for name, kind in CASES])
def test_right_on_adversarial_inputs(name: str, kind: str, dtype: str) -> None:
    one = OPERATIONS[name]
    w = case(one, 200, 64, dtype, masks_of(one, 200)[-1], heads=2)
    errors = one.exercise(CpuDevice(one.example_gpu), w, 1, kind).errors()
    assert max(errors.values()) <= one.tolerance(dtype), errors


class Mutant(CpuDevice):
    """Compiles its kernels from another folder of headers."""

    def __init__(self, folder: Path) -> None:
        super().__init__("a100-sxm4-80gb")
        self.folder = folder

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Any]) -> None:
        defines = [option for option in variant.options if not option.startswith("-I")]
        options = [f"-I{self.folder}", *defines, "-arch=compute_80"]
        ptx = find_nvrtc().compile(variant.text(), variant.source, options).ptx
        run(ptx, variant.entry, grid, variant.threads, arguments, variant.shared_memory_bytes)


@pytest.mark.parametrize("taken_out", ["total[m][r] *= factor;", "scale_row(m, r, factor);"])
def test_a_rescale_that_is_left_out_passes_normal_inputs_but_not_growing_scores(taken_out: str, tmp_path: Path) -> None:
    folder = tmp_path / "cuda"
    shutil.copytree(CUDA, folder)
    header = folder / "flash_tile.cuh"
    text = header.read_text()
    start = text.index("void raise_highest")
    assert text[start:].count(taken_out) == 1
    header.write_text(text[:start] + text[start:].replace(taken_out, ""))
    flash, w = OPERATIONS["flash"], Workload(1, 1, 64, 64, seq_kv=400)
    mutant = Mutant(folder)
    assert flash.exercise(mutant, w, 1, "normal").largest_error() <= flash.tolerance("bf16")
    assert flash.exercise(mutant, w, 1, "growing").largest_error() > 10 * flash.tolerance("bf16")


def test_scores_grow_for_whoever_walks_from_either_end() -> None:
    w = Workload(1, 1, 100, 64, dtype="fp16", mask=Mask())
    q, k, v = (decode(array)[0, 0] for array in random_arrays(w, 0, inputs="growing"))
    tiles = (q @ k.T / 8).reshape(100, 5, 20).max(axis=2)
    grows_by = np.diff(tiles[:, :3], axis=1), np.diff(tiles[:, :1:-1], axis=1)
    assert all((growth > 2).all() for growth in grows_by)
    assert abs(v.mean()) < 0.1  # scores are what grows


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("shape", [(5,), (1, 1), (2, 3, 7, 8), (1,)])
def test_every_kind_fills_every_shape(kind: str, shape: tuple[int, ...]) -> None:
    found = fill(shape, kind, np.random.default_rng(0))
    assert found.shape == shape and int(np.isnan(found).sum()) == (kind == "nan")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="unknown inputs 'growin'; nearest: growing; allowed: normal"):
        fill((3,), "growin", np.random.default_rng(0))
