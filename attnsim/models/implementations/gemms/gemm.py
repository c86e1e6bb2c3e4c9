"""GEMMs as kernels of their own, in closed form: waves of tiles, steps of k, split-k, and what a kernel waits for.

The tile is the one out of the library's (:data:`attnsim.models.schedule.gemm.TILES`, and each with rows and columns
exchanged, as cuBLAS computes C^T = B^T A^T) with which the product is done first; split-k as well. Of a tile:

* a step of k takes what the tensor cores, shared memory or the L2 take for it, or the latency of HBM over the steps
  in flight; and a wait;
* waves of blocks follow one another, each with a wait of its blocks' ends;
* operands and C pass HBM, after some latencies. What the SMs and HBM take overlaps, as the root of the sum of squares;
* where k is split, a second kernel adds up fp32 parts from the L2;
* formats below 16 bits convert A in a kernel of its own, a block for each row;
* power sets the clock (:mod:`attnsim.models.hardware.clock_law`).

Rates are the chip's, those that everything else is replayed with. Waits are the kernel's (`waits.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Bools, Floats, Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.clock_law import clock_law, clock_share, joules, limit_felt
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import Sm
from attnsim.models.hardware.units import HBM, L2, SHARED_MEMORY, TENSOR
from attnsim.models.implementations.gemms.kernels import FORMATS, KERNELS, Format, GemmKernel, Waits
from attnsim.models.schedule.gemm import TILES, GemmTile, gemm_path
from attnsim.models.schedule.schedule import Path as Instructions
from attnsim.models.schedule.schedule import bytes_of
from attnsim.tables import read_csv

LAUNCHES = Path(__file__).with_name("launches.csv")

PARTS = by_hand((1, 2, 3, 4, 6, 8, 12, 16), "parts that a GEMM of a library (closed) cuts k into")
REGISTERS = by_hand(232, "registers of a thread of a GEMM")
RASTER = by_hand(8, "columns of C tiles that a GEMM of a library (closed) walks together")
CONVERTING_BLOCKS = by_hand(2, "blocks of 1,024 threads that convert a row of A each, on an SM")
CONVERTED_AT_ONCE = by_hand(8192, "elements that such a block converts at once, 16 bytes a thread")


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Tiles and parts of k that a library chooses among, as columns."""

    tiles: tuple[Launched, ...]
    m: Floats
    n: Floats
    k: Floats
    stages: Floats
    resident: Floats
    smem_bytes: Floats
    shares: tuple[Floats, Floats]
    parts: Floats
    most: tuple[Floats, ...]

    def named(self, at: int) -> str:
        """A tile and the parts of k, in words."""
        tile = f"{self.m[at]:.0f} x {self.n[at]:.0f} x {self.k[at]:.0f}"
        return f"{tile}, split-K {self.parts[at]:.0f}" if self.parts[at] > 1 else tile

    def barred(self, m: Floats, n: Floats) -> Bools:
        """Whether a product has too few or too many rows or columns for a tile."""
        from_m, to_m, from_n, to_n = self.most
        return np.asarray((m < from_m) | (m > to_m) | (n < from_n) | (n > to_n))


@dataclass(frozen=True, slots=True, eq=False)
class GemmTimes:
    """How products run, an element each.

    Parameters
    ----------
    time_s : ndarray
        With launches.
    clock : ndarray
        Share of the full clock.
    hbm_bytes, l2_bytes, smem_bytes, flops : ndarray
    units_s : mapping of str to ndarray
        Busy seconds of each unit.
    cuts : tuple of str
        The tile of each, and the parts of k.
    """

    time_s: Floats
    clock: Floats
    hbm_bytes: Floats
    l2_bytes: Floats
    smem_bytes: Floats
    flops: Floats
    units_s: Mapping[str, Floats]
    cuts: tuple[str, ...]


MORE_TILES: dict[Instructions, tuple[GemmTile, ...]] = by_hand(
    {
        "mma_sync": (GemmTile(256, 64, 32, stages=4, warps=8), GemmTile(64, 32, 64, stages=5, warps=4)),
        "wgmma": (),
        "tcgen05": tuple(GemmTile(64, n, 64, stages=6, warps=4, bands=1) for n in (256, 192, 128, 64)),
    },
    "tiles of libraries' GEMMs (closed) beside those of attention's: of few rows, or few columns",
)
"""Traces name ``ampere_fp16_s16816gemm_fp16_256x64_ldg8_f2f_stages_64x3`` (deeper than fits an L40S) and, on Blackwell,
tiles of 64 rows without a pair: ``nvjet_sm100_tst_64x8_64x16_4x1_v_bz``, ``64x24_64x16_1x2``. 64 x 32 is assumed."""
LOW_CLUSTER = by_hand(4, "blocks that share an operand of a library's (closed) GEMM with tiles of one warpgroup")
"""Named in ``nvjet_tst_64x8_64x16_4x1_v_bz`` and ``nvjet_sm100_tst_32x64_64x16_4x1_v_bz``; others: 2 x 4, 1 x 2."""


def product_tiles(path: Instructions) -> tuple[GemmTile, ...]:
    """Tiles that a library has for products on a path."""
    every = (*TILES[path], *MORE_TILES[path])
    alone = [path != "mma_sync" and not one.paired and one.bands == 1 for one in every]
    return tuple(replace(one, cluster=LOW_CLUSTER) if low else one for one, low in zip(every, alone, strict=True))


@dataclass(frozen=True, slots=True)
class Launched:
    """A tile that a kernel may be launched with: of a product from so many to so many rows and columns.

    `shares` are the blocks that share A, and B.
    """

    tile: GemmTile
    rows: int
    columns: int
    shares: tuple[int, int]
    m: tuple[float, float] = (1, np.inf)
    n: tuple[float, float] = (1, np.inf)


def _held(tile: GemmTile) -> int:
    return bytes_of(tile.buffers(1 << 20, 2))


def _turned(tile: GemmTile) -> Launched:
    return Launched(tile, tile.n, tile.m, (tile.cluster, 1))


def launched(kernel: str, gpu: Gpu, limit_bytes: int) -> tuple[Launched, ...]:
    """The tiles of a kernel on a GPU: those that its source states, else what a library chooses among.

    Raises
    ------
    InputError
        When none fits `limit_bytes` of shared memory.
    """
    path, capability = gemm_path(gpu), gpu.compute_capability_number
    stated = [one for one in _stated() if one[:2] == (kernel, capability - capability % 10 * (capability > 99))]
    tiles = [one for one in product_tiles(path) if _held(one) <= limit_bytes]
    if not tiles:
        least = min(map(_held, product_tiles(path)))
        raise InputError(
            f"shared memory: the smallest tile of a GEMM needs {least >> 10} KiB, {gpu.id} has {limit_bytes >> 10} KiB "
            "per block; give it more"
        )
    if stated:
        return tuple(one for _, _, one in stated)
    own = {(one.m, one.n, one.k): Launched(one, one.m, one.n, (1, one.cluster)) for one in tiles}
    return (*own.values(), *(_turned(one) for one in tiles if (one.n, one.m, one.k) not in own))


@cache
def _stated() -> tuple[tuple[str, int, Launched], ...]:
    """Rows of ``launches.csv``, whose steps are as deep as half so many elements of 16 bits."""
    found = []
    for row in read_csv(LAUNCHES):
        rows, columns, stages, at = (int(row[name]) for name in ("rows", "columns", "stages", "capability"))
        shares = int(row["along_columns"]), int(row["along_rows"])
        bands = 0 if at in (89, 120) else max(1, rows // 64 if at == 90 else 1)
        tile = GemmTile(rows, columns, int(row["depth"]) // 2, stages, 8, bands, shares[1])
        m, n = ((float(row[f"from_{x}"]), float(row[f"to_{x}"] or np.inf)) for x in "mn")
        found.append((row["kernel"], at, Launched(tile, rows, columns, shares, m, n)))
    return tuple(found)


@lru_cache(maxsize=256)
def candidates(kernel: str, gpu: Gpu, sm: Sm) -> Candidates:
    """Tiles and parts of a kernel on a GPU that has such SMs; steps are as many bytes deep in every format."""
    known, e = KERNELS[kernel], FORMATS[KERNELS[kernel].format].bytes
    limit = sm.shared_memory_per_block_bytes
    ones = [(one, parts) for one in launched(kernel, gpu, limit) for parts in (PARTS if known.splits else (1,))]

    def column(of: Callable[[Launched], float]) -> Floats:
        return np.array([of(one) for one, _ in ones], float)

    def resident(one: Launched) -> int:
        by_registers = sm.registers // (one.tile.warps * 32 * REGISTERS)
        return max(1, min(by_registers, sm.shared_memory_bytes // _held(one.tile)))

    return Candidates(
        tiles=tuple(one for one, _ in ones),
        m=column(lambda one: one.rows),
        n=column(lambda one: one.columns),
        k=column(lambda one: one.tile.k * 2 / e),
        stages=column(lambda one: one.tile.stages),
        resident=column(resident),
        smem_bytes=column(lambda one: one.tile.operand_bytes(1 << 20, 2)),
        shares=(column(lambda one: one.shares[0]), column(lambda one: one.shares[1])),
        parts=np.array([parts for _, parts in ones], float),
        most=tuple(column(lambda one, at=at, x=x: getattr(one, x)[at]) for x in "mn" for at in (0, 1)),  # type: ignore[misc]
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Products:
    """Products as columns, and what was chosen for each."""

    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    weights: Floats
    converts: Floats
    power: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A kernel on a GPU."""

    gpu: Gpu
    of: Candidates
    kernel: GemmKernel
    waits: Waits
    launch_s: float

    @property
    def form(self) -> Format:
        return FORMATS[self.kernel.format]

    @property
    def e(self) -> float:
        """Bytes of an element with its part of the scales."""
        return self.form.bytes + self.form.scale_bytes

    @property
    def flops_per_clk(self) -> float:
        gpu = self.gpu
        of = gpu.mma_sync_flops_per_clk if gemm_path(gpu) == "mma_sync" else gpu.tensor_flops_per_clk
        return of(self.form.of) * self.form.rate

    @property
    def hbm_rate(self) -> float:
        return self.gpu.hbm.bandwidth_bytes_per_s * self.gpu.hbm.achievable_fraction

    @property
    def kept_bytes(self) -> float:
        return self.waits.kept * self.gpu.l2.capacity_bytes

    @property
    def latency_s(self) -> float:
        return self.gpu.hbm.latency_clk / self.gpu.clock.full_hz


def gemm_times(
    gpu: Gpu,
    name: str,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    waits: Waits,
    *,
    batch: ArrayLike = 1.0,
    weights: ArrayLike = np.inf,
    converts: ArrayLike = 1.0,
    power: ArrayLike = 1.0,
    launch_s: float | None = None,
    within_s: float = 0.0,
) -> GemmTimes:
    """Times of products C[m, n] = A[m, k] B[k, n].

    A changed GPU keeps the tiles that the unchanged one has, where they fit.

    Parameters
    ----------
    gpu : Gpu
    name : str
        A key of :data:`KERNELS`.
    m, n, k : array of products
    waits : Waits
    batch : array
        Products side by side, each with operands of its own.
    weights : array
        Matrices B that are read in turn: where all of them fit into the L2, B is there. Infinite where B is cold.
    converts : array
        Kernels that convert A, times `convert_launches`; 0 where the kernel before has written it so.
    power : array
        Of the operands, over that of random numbers.
    launch_s : float, optional
        Of a kernel; in a CUDA graph by default.
    within_s : float
        Length of what the product is a part of, for the power limit.

    Raises
    ------
    InputError
        When no tile fits the GPU's shared memory.
    """
    columns = np.broadcast_arrays(m, n, k, batch, weights, converts, power)
    some = _Products(*(np.atleast_1d(np.asarray(one, float)) for one in columns))
    own = gpu.tiled_for
    of = candidates(name, own, gpu.sm)
    launch_s = gpu.launch.graph_s if launch_s is None else launch_s
    run, chooser = (_Run(one, of, KERNELS[name], waits, launch_s) for one in (gpu, own))
    planned = _core(chooser, some), _hbm_bytes(chooser, some)
    chosen = _chosen(chooser, some, *planned)
    at = np.arange(len(some.m)), chosen
    core, moved = planned if gpu is own else (_core(run, some), _hbm_bytes(run, some))
    blocks, steps, loaded, core_s = (np.broadcast_to(one, (len(some.m), len(of.m)))[at] for one in core)
    hbm_bytes = moved[at]
    total = blocks * steps
    flops = total * (2 * of.m * of.n * of.k)[chosen]
    work = {"flops": flops, "smem_bytes": total * of.smem_bytes[chosen], "l2_bytes": total * loaded}
    hbm_s = hbm_bytes / run.hbm_rate
    memory_s = hbm_s + waits.memory_latencies * run.latency_s
    clock = _clock(run, some, core_s, memory_s, work | {"hbm_bytes": hbm_bytes}, within_s)
    sms_hz = gpu.sm.count * gpu.clock.full_hz * clock
    return GemmTimes(
        time_s=_overlap(core_s / clock, memory_s) + launch_s + waits.call_s + _converting_s(run, some),
        clock=clock,
        hbm_bytes=hbm_bytes,
        units_s={
            TENSOR.name: flops / (run.flops_per_clk * sms_hz),
            SHARED_MEMORY.name: work["smem_bytes"] / (gpu.sm.shared_memory_bytes_per_clk * sms_hz),
            L2.name: work["l2_bytes"] / gpu.l2.bandwidth_bytes_per_s,
            HBM.name: hbm_s,
        },
        cuts=tuple(of.named(one) for one in chosen),
        **work,
    )


def _chosen(run: _Run, some: _Products, core: tuple[Floats, ...], hbm_bytes: Floats) -> Ints:
    """The candidate with which each product is done first, of those that are launched for its size."""
    of, (_, steps, _, core_s) = run.of, core
    memory_s = hbm_bytes / run.hbm_rate + run.waits.memory_latencies * run.latency_s
    unsplit = (steps < of.stages) | (some.batch[:, None] > 1)
    barred = of.barred(some.m[:, None], some.n[:, None]) | ((of.parts > 1) & unsplit)
    return np.asarray(np.argmin(np.where(barred, np.inf, _overlap(core_s, memory_s)), axis=1))


def _core(run: _Run, some: _Products) -> tuple[Floats, Floats, Floats, Floats]:
    """Blocks, steps of k, bytes of A and B that a step loads, and seconds of the SMs: by product and candidate."""
    gpu, of, waits, sms = run.gpu, run.of, run.waits, run.gpu.sm.count
    m, n, k, batch = (one[:, None] for one in (some.m, some.n, some.k, some.batch))
    rows, across, slots = np.ceil(m / of.m), np.ceil(n / of.n), sms * of.resident
    blocks = rows * across * batch * of.parts
    steps = np.ceil(k / (of.k * of.parts))
    left = np.minimum(of.m, m) / np.where(across > 1, of.shares[0], 1)
    right = np.minimum(of.n, n) / np.where(rows > 1, of.shares[1], 1)
    loaded = (left + right) * of.k * run.e
    running = np.minimum(of.resident, np.ceil(blocks / sms))
    tensor = 2 * of.m * of.n * of.k / run.flops_per_clk
    smem = of.smem_bytes / gpu.sm.shared_memory_bytes_per_clk
    l2_rate = gpu.l2.bandwidth_bytes_per_s
    l2 = loaded * np.minimum(blocks, slots) / running / l2_rate * gpu.clock.full_hz
    step = np.maximum(np.maximum(np.maximum(tensor, smem), l2) * running, gpu.hbm.latency_clk / of.stages)
    clks = np.ceil(blocks / slots) * (steps * (step + waits.step_clks) + waits.block_clks) + gpu.hbm.latency_clk
    parts_s = 8 * m * n * batch * of.parts / l2_rate + run.launch_s * waits.sum_launches
    return blocks, steps, loaded, clks / gpu.clock.full_hz + np.where(of.parts > 1, parts_s, 0.0)


def _hbm_bytes(run: _Run, some: _Products) -> Floats:
    """Bytes of HBM by product and candidate: A comes once for every `RASTER` columns of tiles where it is too large."""
    a, b = some.m * some.k * run.e * some.batch, some.n * some.k * run.e * some.batch
    others = a + 2 * some.m * some.n * some.batch
    once = _missed((some.weights * b + others) / run.kept_bytes) * b + _missed((b + others) / run.kept_bytes) * others
    again = np.ceil(np.ceil(some.n[:, None] / run.of.n) / RASTER) - 1
    return np.asarray(once[:, None] + again * (a * _missed(a / run.gpu.l2.capacity_bytes))[:, None])


def _converting_s(run: _Run, some: _Products) -> Floats:
    """Seconds of the kernels that convert A or gather its rows: a block for each row."""
    if not run.kernel.moves_rows:
        return np.zeros_like(some.m)
    waits, moved = run.waits, (2 + run.e) * some.m * some.k * some.batch
    lost = _missed(moved / run.kept_bytes)
    moved_s = moved * (lost / run.hbm_rate + (1 - lost) / run.gpu.l2.bandwidth_bytes_per_s)
    row_clks = waits.row_clks + waits.turn_clks * np.ceil(some.k / CONVERTED_AT_ONCE)
    waves = np.ceil(some.m * some.batch / (CONVERTING_BLOCKS * run.gpu.sm.count))
    launches_s = some.converts * run.launch_s * waits.convert_launches
    each_s = launches_s + np.maximum(moved_s, waves * row_clks / run.gpu.clock.full_hz)
    return np.asarray(np.where(some.converts > 0, each_s, 0.0))


def _clock(
    run: _Run, some: _Products, core_s: Floats, memory_s: Floats, work: Mapping[str, Floats], within_s: float
) -> Floats:
    """Share of the full clock that power allows, in a row of calls."""
    gpu, law = run.gpu, clock_law(run.gpu)
    if gpu.clock.held_hz:
        return np.ones_like(core_s)
    useful = np.minimum(work["flops"], 2 * some.m * some.n * some.k * some.batch) / run.form.rate
    counts = dict(work) | {"useful": useful, "flops": work["flops"] / run.form.rate - useful}
    chip, memory = _prices(law.capability, run.form.of)
    chip_j, memory_j = (sum(price * counts[name] for name, price in prices.items()) for prices in (chip, memory))
    chip_j = chip_j * run.waits.drawn * some.power * gpu.clock.full_hz / law.tensor_hz
    full_s = _overlap(core_s, memory_s)
    held_s = np.maximum(0.0, full_s - core_s)
    felt = limit_felt(np.maximum(full_s * run.waits.busy_calls, within_s), law.from_s, law.to_s)
    share = clock_share(core_s, held_s, chip_j, memory_j, gpu.power.limit_w - law.static_w)
    return np.maximum(share**felt, law.least_hz / gpu.clock.full_hz)


def _overlap(core_s: Floats, memory_s: Floats) -> Floats:
    """Time of two parts that overlap, neither wholly hidden by the other."""
    return np.hypot(core_s, memory_s)


def _missed(times: Floats) -> Floats:
    """Share that is not found again of what is read in turn, `times` as large as a cache that drops lines at random.

    Of a line the others drop it with 1 - h of `times` lines' worth of misses: h = exp(-(1 - h) times).
    """
    found = np.where(times > 1, 0.5, 1.0)
    for _ in range(12):
        found = np.where(times > 1, np.exp(-(1 - found) * np.minimum(times, 1e3)), found)
    return 1 - found


@cache
def _prices(capability: int, dtype: str) -> tuple[dict[str, float], dict[str, float]]:
    """Joules of one of each count on the chip and in the memory; "flops" are those of padding."""
    names = ("flops", "useful", "smem_bytes", "l2_bytes", "hbm_bytes")
    none = dict.fromkeys((*names, "lanes", "exps"), 0.0)
    found = {
        name: joules(capability, dtype, **none | {name: 1.0} | ({"flops": 1.0} if name == "useful" else {}))
        for name in names
    }
    chip, memory = ({name: spent[at] for name, spent in found.items()} for at in (0, 1))
    return chip, memory
