"""GEMMs as kernels of their own, in closed form: whole waves of tiles, steps of k, split-k, and what a kernel waits for.

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
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.by_hand import by_hand
from attnsim.files import read_typed
from attnsim.models.hardware.clock_law import clock_law, clock_share, joules, limit_felt
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import HBM, L2, SHARED_MEMORY, TENSOR
from attnsim.models.schedule.gemm import TILES, GemmTile, gemm_path
from attnsim.models.schedule.schedule import Path as Instructions
from attnsim.models.schedule.schedule import bytes_of
from attnsim.tables import read_csv

WAITS = Path(__file__).with_name("waits.yaml")
"""Written by ``python benchmarks/gemms.py --write``."""

LAUNCHES = Path(__file__).with_name("launches.csv")

PARTS = by_hand((1, 2, 3, 4, 6, 8, 12, 16), "parts that a GEMM of a library (closed) cuts k into")
REGISTERS = by_hand(232, "registers of a thread of a GEMM")
RASTER, REUSE, OVERLAP = 8, 1.0, 2.0
CONVERTING_BLOCKS = by_hand(2, "blocks of 1,024 threads that convert a row of A each, on an SM")
CONVERTED_AT_ONCE = by_hand(8192, "elements that such a block converts at once, 16 bytes a thread")


@dataclass(frozen=True, slots=True)
class Format:
    """A number format of A and B; C is of 16 bits.

    Parameters
    ----------
    bytes : float
        Of an element.
    of : str
        Format whose tensor rate it is counted by.
    rate : float
        Its rate over that one's.
    scale_bytes : float
        Of the scales of A and B, by element.
    converted : bool
        Whether A arrives in 16 bits and is converted first.
    """

    bytes: float
    of: str
    rate: float = 1.0
    scale_bytes: float = 0.0
    converted: bool = False


FORMATS = {
    "bf16": Format(2, "bf16"),
    "fp16": Format(2, "fp16"),
    "fp8": Format(1, "fp8", converted=True),
    "fp8-block": Format(1, "fp8", scale_bytes=4 / 128, converted=True),
    "nvfp4": Format(0.5, "fp8", 2.0, 1 / 16, converted=True),
}
"""fp8-block: a scale of fp32 for 128 elements of A (DeepSeek-V3, arXiv 2412.19437). nvfp4: a scale of a byte for 16;
twice the rate of fp8 on Blackwell (HGX B200 datasheet: 9 and 4.5 PFLOP/s dense)."""


@dataclass(frozen=True, slots=True)
class GemmKernel:
    """Whose GEMM it is: of a library in a format, and whether it splits k."""

    format: str
    splits: bool = False


KERNELS = {
    "cublas-bf16": GemmKernel("bf16", splits=True),
    "trtllm-fp8": GemmKernel("fp8", splits=True),
    "vllm-fp8": GemmKernel("fp8"),
    "sglang-fp8": GemmKernel("fp8"),
    "sglang-fp8-block": GemmKernel("fp8-block"),
    "trtllm-fp8-block": GemmKernel("fp8-block"),
    "sglang-nvfp4": GemmKernel("nvfp4"),
    "trtllm-nvfp4": GemmKernel("nvfp4"),
    "vllm-nvfp4": GemmKernel("nvfp4"),
}
"""Every framework takes cuBLAS for bf16 and TensorRT-LLM for fp8 too; DeepGEMM and FlashInfer's kernels do not split k."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What kernels of one format on one path wait for.

    Parameters
    ----------
    step_clks : float
        A step of k.
    block_clks : float
        A block's beginning and end, once a wave.
    call_s : float
        A call beside its launches.
    memory_latencies : float
        Latencies of HBM until its bytes flow, and at the end.
    sum_launches : float
        Launches that adding up the parts of k takes, beside their bytes.
    row_clks, turn_clks : float
        A block that converts a row of A, and each turn of its threads over it.
    convert_launches : float
        Launches that converting A takes.
    drawn : float
        Power of products of random numbers over what is counted.
    busy_calls : float
        Calls in a row that the power limit acts upon.
    kept : float
        Share of the L2 in which what passed is found again.
    """

    step_clks: float = 60.0
    block_clks: float = 1500.0
    call_s: float = 1e-7
    memory_latencies: float = 3.0
    sum_launches: float = 1.5
    row_clks: float = 1500.0
    turn_clks: float = 500.0
    convert_launches: float = 1.0
    drawn: float = 1.3
    busy_calls: float = 36.0
    kept: float = 0.4


@dataclass(frozen=True, slots=True)
class Fit:
    """Waits of a format on a path, and how far off they were on GPUs that were held out.

    Parameters
    ----------
    source, date : str
    gpus : tuple of str
    rows : int
    waits : Waits
    held_out : float
        Mean relative error.
    half_width : float
        Of the 90 % interval of log time.
    """

    source: str
    date: str
    gpus: tuple[str, ...]
    rows: int
    waits: Waits
    held_out: float
    half_width: float


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

    def barred(self, m: Floats, n: Floats) -> np.ndarray:
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
    chosen : ndarray of int
        Among the candidates.
    clock : ndarray
        Share of the full clock.
    hbm_bytes, l2_bytes, smem_bytes, flops : ndarray
    units_s : mapping of str to ndarray
        Busy seconds of each unit.
    """

    time_s: Floats
    chosen: np.ndarray
    clock: Floats
    hbm_bytes: Floats
    l2_bytes: Floats
    smem_bytes: Floats
    flops: Floats
    units_s: Mapping[str, Floats] = field(default_factory=dict)


def product_tiles(path: Instructions) -> tuple[GemmTile, ...]:
    """Tiles that a library has for products on a path."""
    if path == "mma_sync":
        return (*TILES[path], GemmTile(256, 64, 32, stages=4, warps=8), GemmTile(64, 32, 64, stages=5, warps=4))
    low = () if path == "wgmma" else tuple(GemmTile(64, n, 64, stages=6, warps=4, bands=1) for n in (256, 192, 128, 64))
    return tuple(one if one.paired or one.bands > 1 else replace(one, cluster=4) for one in (*TILES[path], *low))


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


def _turned(tile: GemmTile) -> Launched:
    return Launched(tile, tile.n, tile.m, (tile.cluster, 1))


def launched(kernel: str, gpu: Gpu) -> tuple[Launched, ...]:
    """The tiles of a kernel on a GPU: those that its source states, else what a library chooses among."""
    path, limit = gemm_path(gpu), gpu.sm.shared_memory_per_block_bytes
    capability = gpu.compute_capability_number
    stated = [one for one in _stated() if one[:2] == (kernel, capability - capability % 10 * (capability > 99))]
    if stated:
        return tuple(one for _, _, one in stated)
    tiles = [one for one in product_tiles(path) if bytes_of(one.buffers(1 << 20, 2)) <= limit]
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
def candidates(kernel: str, gpu: Gpu) -> Candidates:
    """What a kernel is launched with on a GPU, as columns; steps are as many bytes deep in every format."""
    known, sm, e = KERNELS[kernel], gpu.sm, FORMATS[KERNELS[kernel].format].bytes
    ones = [(one, parts) for one in launched(kernel, gpu) for parts in (PARTS if known.splits else (1,))]

    def column(of: Callable[[Launched], float]) -> Floats:
        return np.array([of(one) for one, _ in ones], float)

    def resident(one: Launched) -> int:
        by_registers = sm.registers // (one.tile.warps * 32 * REGISTERS)
        return max(1, min(by_registers, sm.shared_memory_bytes // bytes_of(one.tile.buffers(1 << 20, 2))))

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
        Kernels that convert A, times `convert_launches`.
    power : array
        Of the operands, over that of random numbers.
    launch_s : float, optional
        Of a kernel; in a CUDA graph by default.
    within_s : float
        Length of what the product is a part of, for the power limit.
    """
    own = gpu.tiled_for
    columns = [np.atleast_1d(np.asarray(one, float)) for one in np.broadcast_arrays(m, n, k, batch, weights, power)]
    if gpu.changes:
        chosen = _times(own, name, waits, *columns, launch_s, within_s, None, converts).chosen
        return _times(gpu, name, waits, *columns, launch_s, within_s, chosen, converts)
    return _times(gpu, name, waits, *columns, launch_s, within_s, None, converts)


def _times(
    gpu: Gpu, name: str, waits: Waits, m: Floats, n: Floats, k: Floats, batch: Floats, weights: Floats, power: Floats,
    launch_s: float | None, within_s: float, chosen: np.ndarray | None, converts: ArrayLike,
) -> GemmTimes:  # fmt: skip
    form, path, clk_hz, sms = FORMATS[KERNELS[name].format], gemm_path(gpu), gpu.clock.full_hz, gpu.sm.count
    launch_s, e = gpu.launch.graph_s if launch_s is None else launch_s, form.bytes + form.scale_bytes
    of = candidates(name, gpu.tiled_for)
    m_, n_, k_, b_ = (one[:, None] for one in (m, n, k, batch))
    rows, across = np.ceil(m_ / of.m), np.ceil(n_ / of.n)
    tiles = rows * across * b_
    blocks, slots = tiles * of.parts, sms * of.resident
    running = np.minimum(of.resident, np.ceil(blocks / sms))
    steps = np.ceil(k_ / (of.k * of.parts))
    flops_per_clk = (gpu.mma_sync_flops_per_clk if path == "mma_sync" else gpu.tensor_flops_per_clk)(form.of)
    tensor = 2 * of.m * of.n * of.k / (flops_per_clk * form.rate)
    smem = of.smem_bytes / gpu.sm.shared_memory_bytes_per_clk
    left = np.minimum(of.m, m_) / np.where(across > 1, of.shares[0], 1)
    right = np.minimum(of.n, n_) / np.where(rows > 1, of.shares[1], 1)
    loaded = (left + right) * of.k * e
    l2 = loaded * np.minimum(blocks, slots) / running / gpu.l2.bandwidth_bytes_per_s * clk_hz
    busy = np.maximum(np.maximum(tensor, smem), l2) * running
    step = np.maximum(busy, gpu.hbm.latency_clk / of.stages) + waits.step_clks
    core = np.ceil(blocks / slots) * (steps * step + waits.block_clks) + gpu.hbm.latency_clk
    parted = of.parts > 1
    l2_rate = gpu.l2.bandwidth_bytes_per_s
    sums = np.where(parted, 8 * m_ * n_ * b_ * of.parts / l2_rate + launch_s * waits.sum_launches, 0.0)
    core_s = core / clk_hz + sums
    b_bytes, others_bytes = k * n * e * batch, (m * k * e + 2 * m * n) * batch
    kept_bytes = waits.kept * gpu.l2.capacity_bytes
    hbm_bytes = _missed((weights * b_bytes + others_bytes) / kept_bytes) * b_bytes
    hbm_bytes = hbm_bytes + _missed((b_bytes + others_bytes) / kept_bytes) * others_bytes
    hbm_rate = gpu.hbm.bandwidth_bytes_per_s * gpu.hbm.achievable_fraction
    a_bytes = m * k * e * batch
    again = (np.ceil(across / RASTER) - 1) * (a_bytes * _missed(REUSE * a_bytes / gpu.l2.capacity_bytes))[:, None]
    hbm_s = (hbm_bytes[:, None] + again) / hbm_rate
    waited_s = waits.memory_latencies * gpu.hbm.latency_clk / clk_hz
    if chosen is None:
        barred = of.barred(m_, n_) | (parted & ((steps < of.stages) | (b_ > 1)))
        chosen = np.argmin(np.where(barred, np.inf, _overlap(core_s, hbm_s + waited_s)), axis=1)
    at = np.arange(len(m)), chosen

    def own(one: Floats) -> Floats:
        return np.asarray(np.broadcast_to(one, (len(m), len(of.m)))[at])

    total = own(blocks * steps)
    flops, l2_bytes, smem_bytes = (total * own(one) for one in (2 * of.m * of.n * of.k, loaded, of.smem_bytes))
    hbm_bytes, core_s, hbm_s = hbm_bytes + own(again), own(core_s), own(hbm_s)
    others_s = launch_s + waits.call_s
    if form.converted:
        moved, lost = (2 + e) * m * k, _missed((2 + e) * m * k / kept_bytes)
        moved_s = moved * (lost / hbm_rate + (1 - lost) / l2_rate)
        rows_clks = waits.row_clks + waits.turn_clks * np.ceil(k / CONVERTED_AT_ONCE)
        rows_s = np.ceil(m / (CONVERTING_BLOCKS * sms)) * rows_clks / clk_hz
        others_s = others_s + converts * launch_s * waits.convert_launches + np.maximum(moved_s, rows_s)
    full_s = _overlap(core_s, hbm_s + waited_s)
    share = np.ones_like(full_s)
    if not gpu.clock.held_hz:
        law = clock_law(gpu)
        useful = np.minimum(flops, 2 * m * n * k * batch)
        chip, memory = _joules(law.capability, form, flops, useful, smem_bytes, l2_bytes, hbm_bytes)
        chip = chip * (waits.drawn * power * clk_hz / law.tensor_hz)
        held = np.maximum(0.0, full_s - core_s)
        felt = limit_felt(np.maximum(full_s * waits.busy_calls, within_s), law.from_s, law.to_s)
        share = clock_share(core_s, held, chip, memory, gpu.power.limit_w - law.static_w) ** felt
        share = np.maximum(share, law.least_hz / clk_hz)
    units = {
        TENSOR.name: flops / (flops_per_clk * form.rate * sms * clk_hz * share),
        SHARED_MEMORY.name: smem_bytes / (gpu.sm.shared_memory_bytes_per_clk * sms * clk_hz * share),
        L2.name: l2_bytes / l2_rate,
        HBM.name: hbm_s,
    }
    time_s = _overlap(core_s / share, hbm_s + waited_s) + others_s
    return GemmTimes(time_s, chosen, share, hbm_bytes, l2_bytes, smem_bytes, flops, units)


def _overlap(one: Floats, other: Floats) -> Floats:
    return np.asarray((one**OVERLAP + other**OVERLAP) ** (1 / OVERLAP))


def _missed(times: Floats) -> Floats:
    """Share that is not found again of what is read in turn, `times` as large as a cache that drops lines at random.

    Of a line the others drop it with 1 - h of `times` lines' worth of misses: h = exp(-(1 - h) times).
    """
    found = np.where(times > 1, 0.5, 1.0)
    for _ in range(12):
        found = np.where(times > 1, np.exp(-(1 - found) * np.minimum(times, 1e3)), found)
    return 1 - found


def _joules(
    capability: int, form: Format, flops: Floats, useful: Floats, smem: Floats, l2: Floats, hbm: Floats
) -> tuple[Floats, Floats]:
    """Energy on the chip and of the memory; a format's FLOP takes less as its rate is higher."""
    one = joules(capability, form.of, flops=1.0, useful=1.0, lanes=0, exps=0, smem_bytes=0, l2_bytes=0, hbm_bytes=0)[0]
    none = joules(capability, form.of, flops=1.0, useful=0.0, lanes=0, exps=0, smem_bytes=0, l2_bytes=0, hbm_bytes=0)[0]
    kinds = {
        "flops": 0.0,
        "useful": 0.0,
        "lanes": 0.0,
        "exps": 0.0,
        "smem_bytes": 0.0,
        "l2_bytes": 0.0,
        "hbm_bytes": 0.0,
    }
    per_smem, per_l2 = (joules(capability, form.of, **(kinds | {name: 1.0}))[0] for name in ("smem_bytes", "l2_bytes"))
    per_hbm = joules(capability, form.of, **(kinds | {"hbm_bytes": 1.0}))[1]
    chip = (useful * one + (flops - useful) * none) / form.rate + smem * per_smem + l2 * per_l2
    return chip, hbm * per_hbm


@lru_cache(maxsize=1)
def fits() -> dict[str, dict[Instructions, Fit]]:
    """The waits of each format and path."""
    return read_typed(WAITS, "waits of GEMMs", dict[str, dict[Instructions, Fit]])
