"""The PTX that Triton made of tests/data/triton/attention.py, ready to run without Triton."""

from __future__ import annotations

import functools
import gzip
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.ptx.foreign.compilers import Compiled
from attnsim.ptx.foreign.run import PtxRun, run_ptx

FOLDER = Path(__file__).parents[1] / "data" / "triton"


@functools.cache
def index() -> dict[str, dict[str, Any]]:
    """What is told of each kernel, by its name."""
    kernels = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["kernels"]
    return {one["name"]: one for one in kernels}


@functools.cache
def compiled(name: str) -> Compiled:
    """A kernel as Triton compiled it."""
    told = index()[name]
    return Compiled(
        ptx=gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode(),
        entry=told["entry"],
        threads=told["threads"],
        shared_memory_bytes=told["shared_memory_bytes"],
        scratch_bytes=told["scratch_bytes"],
    )


def launch(name: str, blocks: int, heads: int, **arguments: Any) -> PtxRun:
    """Run a kernel on a grid of tiles by heads; arguments by name, in any order."""
    kernel, told = compiled(name), index()[name]
    filled = kernel.with_scratch({one: arguments[one] for one in told["arguments"]}, blocks * heads)
    return run_ptx(
        kernel.ptx, kernel.entry, grid=(blocks, heads), arguments=filled, shared_memory_bytes=kernel.shared_memory_bytes
    )


@dataclass(frozen=True)
class Attention:
    """Inputs ``[heads, seq, head_dim]`` in fp16, and both passes by kernels of one architecture."""

    arch: str
    head_dim: int
    causal: bool
    heads: int = 1
    seq: int = 256

    @property
    def scale(self) -> float:
        """Of the scores."""
        return 1 / math.sqrt(self.head_dim)

    @functools.cached_property
    def inputs(self) -> dict[str, Any]:
        """Q, K, V and dO."""
        random, shape = np.random.default_rng(0), (self.heads, self.seq, self.head_dim)
        return {name: random.standard_normal(shape).astype(np.float16) for name in ("Q", "K", "V", "DO")}

    def kernel(self, kind: str) -> str:
        """The name of a kernel."""
        mask = f"_{'causal' if self.causal else 'full'}" if kind != "row_dots" else ""
        return f"{kind}_d{self.head_dim}{mask}_sm{self.arch}"

    def empty(self) -> Any:
        """An output like an input."""
        return np.full((self.heads, self.seq, self.head_dim), np.nan, np.float16)

    def rows(self) -> Any:
        """An output of one fp32 number a row."""
        return np.full((self.heads, self.seq), np.nan, np.float32)

    def forward(self) -> tuple[PtxRun, Any, Any]:
        """The run, O and L."""
        o, sums = self.empty(), self.rows()
        run = self._launch("forward", **self.inputs, O=o, L=sums)
        return run, o, sums

    def backward(self) -> tuple[PtxRun, dict[str, Any]]:
        """The run of the main kernel, after forward and row dots; and dQ, dK, dV."""
        _, o, sums = self.forward()
        dots = self.rows()
        self._launch("row_dots", O=o, DO=self.inputs["DO"], D=dots)
        gradients = {name: self.empty() for name in ("DQ", "DK", "DV")}
        run = self._launch("backward", **self.inputs, **gradients, L=sums, D=dots)
        return run, gradients

    def _launch(self, kind: str, **arrays: Any) -> PtxRun:
        numbers = {"N": self.seq, "scale": self.scale, "scale_log2": self.scale / math.log(2)}
        name = self.kernel(kind)
        constants = index()[name]["constants"]
        tile = constants.get("BLOCK_M") or constants["TILE"]
        return launch(name, self.seq // tile, self.heads, **arrays, **numbers)
