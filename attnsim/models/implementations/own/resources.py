"""Names shared by CUDA sources, compilations and schedules, and registers reported by the compiler.

``resources.csv`` is written by ``attnsim kernels check --write`` and ``instructions.csv`` by
``python benchmarks/instruction_counts.py --write``; both are reviewed like source.

Least time of a fused kernel on one of its tiles, by which our dense and our sparse kernel choose theirs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, Protocol, TypeVar

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import MMA_SYNC_STALL
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts, counts_in, nearest, product
from attnsim.models.schedule.occupancy import SHARED_MEMORY_UNIT
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Buffers, bytes_of
from attnsim.tables import read_csv

FILE = "resources.csv"
OPTIONS = (("OPTIONS", "asked"),)
"""Constant of compilations that support options of a call; their steps are counted without it."""
TURN = "turn"
"""Part of a kernel without products whose iterations or pieces are counted separately from each warp's one-time
work."""
ELEMENT = {"fp16": "Half", "bf16": "Bfloat16"}
"""Struct of ``element.cuh`` behind each 16-bit format."""


class Compiled(ABC):
    """A compilation of one of our kernels, by its warps and its shared-memory buffers."""

    __slots__ = ()

    warps: int

    @property
    @abstractmethod
    def buffers(self) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def shared_memory_bytes(self) -> int:
        """Sum of the buffers."""
        return bytes_of(self.buffers)

    def resources(self, label: str, gpu: Gpu, dtype: str) -> dict[str, Any]:
        """Fields of the kernel of this compilation, by its label; mma.sync multiplies, unless the format is fp32."""
        return {
            "threads": self.threads,
            "registers_per_thread": registers_of(label, gpu, self.threads),
            "path": "simt" if dtype == "fp32" else "mma_sync",
            "buffers": self.buffers,
            "dtype": dtype,
        }

    def blocks_in_shared_memory(self, gpu: Gpu) -> int:
        """Blocks whose shared memory fits an SM."""
        taken = -(-self.shared_memory_bytes // SHARED_MEMORY_UNIT) * SHARED_MEMORY_UNIT
        return gpu.sm.shared_memory_bytes // (taken + gpu.sm.shared_memory_reserved_bytes)


def check_compiled(name: str, w: Workload, head_dims: Iterable[int]) -> None:
    """Refuse a workload of another width or format than a kernel is compiled for, and dropout."""
    if w.head_dim not in head_dims or w.head_dim_v != w.head_dim or w.dtype not in ELEMENT or w.dropout:
        raise InputError(
            f"{name} has no kernels of {w}{', dropout' if w.dropout else ''}; allowed: head_dim "
            f"{', '.join(map(str, head_dims))}, V as wide as K, fp16 or bf16, no dropout"
        )


def kernel_label(entry: str, constants: Iterable[tuple[str, int | str]]) -> str:
    """Entry point and compile-time constants in one word: ``flash_forward(Half,64,...)``."""
    return f"{entry}({','.join(str(value) for _, value in constants)})"


@functools.cache
def _table() -> dict[str, dict[str, int]]:
    """Registers by kernel and architecture."""
    found: dict[str, dict[str, int]] = {}
    source = files("attnsim.models.implementations.own") / FILE
    if source.is_file():
        for row in read_csv(source):
            found.setdefault(row["kernel"], {})[row["arch"]] = int(row["registers"])
    return found


def registers_of(kernel: str, gpu: Gpu, threads: int) -> int:
    """Registers per thread of a kernel on a GPU's architecture, or on the nearest older one compiled for.

    Parameters
    ----------
    kernel : str
        Entry point and compile-time constants, ``flash_forward(Half,64,...)``.
    threads : int
        Threads per block. On a GPU older than every compiled architecture the result is the largest register count
        that still fits this many threads.

    Raises
    ------
    LookupError
        If the table has no such kernel: it was changed, and the table not updated.
    """
    by_arch = _table().get(kernel)
    if by_arch is None:
        raise LookupError(f"{FILE} has no row of {kernel}; write it anew: attnsim kernels check --write")
    number = gpu.compute_capability_number
    exactly = by_arch.get(f"{number}a")
    if exactly is not None:
        return exactly
    older = [int(arch) for arch in by_arch if arch.isdigit() and int(arch) <= number]
    return by_arch[str(max(older))] if older else min(255, gpu.sm.registers // threads // 8 * 8)


@functools.cache
def _counts() -> dict[tuple[str, str], dict[int, StepCounts]]:
    """Instructions of a step by kernel and part, and by compute capability."""
    found: dict[tuple[str, str], dict[int, StepCounts]] = {}
    for row in read_csv(files("attnsim.models.implementations.own") / "instructions.csv"):
        found.setdefault((row["kernel"], row["part"]), {})[int(row["arch"])] = counts_in(row)
    return found


def counts_of(kernel: str, gpu: Gpu, part: str = "") -> StepCounts | None:
    """Instructions of a step of a kernel on a GPU's architecture or the nearest older one; None if not counted.

    Parameters
    ----------
    kernel : str
        Entry point and compile-time constants.
    part : str
        Part of the step, if it is charged in parts.
    """
    known = _counts().get((kernel, part))
    return known[nearest(known, gpu.compute_capability_number)] if known else None


class _Sized(Protocol):
    """A tile of queries x keys."""

    @property
    def rows(self) -> int: ...
    @property
    def keys(self) -> int: ...


Tile = TypeVar("Tile", bound=_Sized)


def asked_for(tiles: Sequence[Tile], request: TileRequest | None, name: str, head_dim: int) -> list[Tile]:
    """Compiled tiles of a kernel that a request allows.

    Raises
    ------
    InputError
        When it is compiled for no such tile.
    """
    if request is None:
        return list(tiles)
    found = [tile for tile in tiles if (tile.rows, tile.keys) == (request.rows, request.keys)]
    if not found:
        known = " or ".join(dict.fromkeys(f"{tile.rows} x {tile.keys}" for tile in tiles))
        given = f"{request.rows} x {request.keys}"
        raise InputError(
            f"{name} has the tile {known} at head_dim {head_dim}, not {given}; take it or leave --tile out"
        )
    return found


LOADING, FLYING = "+loads", "+flight"
"""Suffixes of a part: a warp's work up to the last of the loads that it then waits for, and from there until it
waits."""
PHASES = (LOADING, FLYING, "")
"""Phases of a part: up to its loads, while they are in flight, and after the wait for them."""


def phases(label: str, gpu: Gpu, part: str = "") -> tuple[StepCounts | None, ...]:
    """Counts of a part of a kernel up to its loads, while they are in flight, and after the wait for them."""
    found = (counts_of(label, gpu, part + where) for where in PHASES)
    return tuple(one if one and one.issued else None for one in found)


def loaded(loads: Sequence[TileOp], work: Sequence[TileOp | None]) -> tuple[TileOp, ...]:
    """Loads and the waits for them, with the work of each phase in the order of `PHASES`; None for no work."""
    before, meanwhile, behind = ((one,) if one else () for one in work)
    return *before, *loads, *meanwhile, *(TileOp("wait", one.tensor) for one in loads), *behind


STEP_CLKS = by_hand(2250, "clocks that a step waits: FlashAttention-2's forward 1,956 on A100 and 2,558 on H100")


class _Tile(Protocol):
    """A tile of queries x keys, whose rows its warps divide."""

    @property
    def rows(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def stages(self) -> int: ...


def least_clks(
    w: Workload, gpu: Gpu, tile: _Tile, counts: StepCounts | None, residents: int, visits: Ints, heads: int
) -> float:
    """Clocks of the busiest SM, or of all visits spread over the SMs if that is longer.

    - A visit holds the units of its SM as in a replay. Products and softmax are sequential within a block, which then
      waits (`STEP_CLKS`; and for the L2 if K and V have one buffer each, which becomes free late). Each takes a share
      of its time from the unit of the other (`MMA_SYNC_STALL`).
    - Blocks are assigned longest first, one to each of n SMs, then a second one to each: the first SM begins with every
      n-th. Of the first k n + 1 blocks, one SM has at least k + 1. A grid therefore lasts at least as long as its
      longest block, and as an SM with one block more than others.

    Parameters
    ----------
    counts : StepCounts or None
        Instructions of a step of the kernel; None if not counted.
    residents : int
        Blocks that share an SM.
    visits : ndarray
        Key tiles that each row tile of a head visits.
    heads : int
        Heads of the whole batch.
    """
    together, alone = _visit(w, gpu, tile, counts)
    longest = np.sort(visits)[::-1]
    others = np.arange((len(visits) * heads - 1) // gpu.sm.count + 1)
    least = longest[others * gpu.sm.count // heads]
    busiest = least * np.maximum((others + 1) * together, (others // residents + 1) * alone)
    begun = float(least[:residents].sum()) * together
    read = 2 * tile.keys * w.head_dim * w.element_bytes
    l2 = read * gpu.sm.count * gpu.clock.full_hz / gpu.l2.bandwidth_bytes_per_s
    spread = float(visits.sum()) * heads * max(together, alone / residents, l2) / gpu.sm.count
    return max(float(busiest.max()), begun, spread)


def _visit(w: Workload, gpu: Gpu, tile: _Tile, counts: StepCounts | None) -> tuple[float, float]:
    """Clocks of a visit: of the SM unit that it holds longest, and of a block that has the SM to itself."""
    scores, row = tile.rows * tile.keys, w.head_dim * w.element_bytes
    products = product(
        TileOp("mma", flops=4 * scores * w.head_dim, smem_bytes=(2 * tile.warps * tile.keys + tile.rows) * row)
    )
    softmax = counts.softmax(scores, scores, 0, 0) if counts else TileOp("vector", exps=scores)
    tensor = max(
        products.flops / gpu.mma_sync_flops_per_clk(w.dtype),
        products.smem_bytes / gpu.sm.shared_memory_bytes_per_clk,
        *_on_pipes(products, gpu),
    )
    lanes = _on_pipes(softmax, gpu)
    vector, issue = max(lanes), (products.issues + softmax.issues) / gpu.sm.issues_per_clk
    together = max(tensor + MMA_SYNC_STALL * sum(lanes[1:]), vector + MMA_SYNC_STALL * tensor, issue)
    waited = STEP_CLKS + (gpu.l2.latency_clk if tile.stages == 1 else 0.0)
    return together, tensor + vector + waited


def _on_pipes(op: TileOp, gpu: Gpu) -> tuple[float, ...]:
    """Clocks of an operation's instructions on the schedulers, and on each pipe."""
    sm = gpu.sm
    return (
        op.issues / sm.issues_per_clk,
        op.exps / sm.exp_per_clk,
        op.fp32 / (sm.fp32_flops_per_clk / 2),
        op.int32 / sm.int32_per_clk,
        op.load_stores / sm.load_stores_per_clk,
    )
