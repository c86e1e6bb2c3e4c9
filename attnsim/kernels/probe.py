"""Microbenchmarks: rates and latencies of a GPU's units, each by a kernel that does nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim.kernels.device import Array, Device
from attnsim.kernels.timing import Mode, Stopwatch
from attnsim.kernels.variant import Variant

THREADS = 256
CHAINS = 8
"""``kChains`` of ``probe.cu``."""
VECTOR_BYTES = 16
BLOCKS_PER_SM = 8
ROUNDS = 4096
WGMMA_FLOPS = 2 * 16 * (2 * 64 * 128 * 16)
"""FLOPs of a block in one round of ``probe_wgmma``: two warpgroups, sixteen products each."""
WGMMA_SHARED_BYTES = (2 * 64 + 128) * 128 + 1024


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured rate or latency.

    Parameters
    ----------
    name : str
        Key of a GPU file where there is one (``hbm.bandwidth``), with what distinguishes it (``l2.read 16 MiB``).
    value, spread : float
        Median, and the distance of the quartiles over the median.
    unit : str
    samples : int
    """

    name: str
    value: float
    spread: float
    unit: str
    samples: int


def variant(entry: str, dtype: str = "Bfloat16") -> Variant:
    """The compilation of one microbenchmark."""
    if entry == "probe_wgmma":
        return Variant(
            "probe_wgmma.cu", entry, (("ELEMENT", dtype),), THREADS, WGMMA_SHARED_BYTES, (9, 0), arch_suffix="a"
        )
    threads = 32 if entry == "probe_latency" else THREADS
    return Variant("probe.cu", entry, (("ELEMENT", dtype),), threads)


def read(device: Device, source: Array) -> None:
    """Read an array once, by a grid of as many blocks as fill the GPU."""
    vectors = source.nbytes // VECTOR_BYTES
    arguments = {"source": source, "sink": device.empty((1,), "uint32"), "count": np.int64(vectors)}
    device.launch(variant("probe_read"), _grid(device, vectors), arguments)


def copy(device: Device, source: Array, target: Array) -> None:
    """Copy an array."""
    vectors = source.nbytes // VECTOR_BYTES
    arguments = {"source": source, "target": target, "count": np.int64(vectors)}
    device.launch(variant("probe_copy"), _grid(device, vectors), arguments)


def spin(device: Device, entry: str, rounds: int = ROUNDS, blocks: int | None = None) -> None:
    """Run a kernel that only computes: probe_exp, probe_fma, probe_mma, probe_shared or probe_wgmma."""
    arguments: dict[str, Any] = {"sink": device.empty((1,), "uint32"), "rounds": np.int32(rounds)}
    if entry == "probe_fma":
        arguments |= {"a": np.float32(0.999), "b": np.float32(1e-3)}
    count = blocks or device.gpu.sm.count * (1 if entry == "probe_wgmma" else BLOCKS_PER_SM)
    device.launch(variant(entry), (count, 1, 1), arguments)


def work_of(entry: str, rounds: int = ROUNDS) -> float:
    """What one block does in `rounds`: exponentials, FLOPs or bytes."""
    return {
        "probe_exp": THREADS * CHAINS,
        "probe_fma": 2 * THREADS * CHAINS,
        "probe_mma": THREADS // 32 * CHAINS * 2 * 16 * 8 * 16,
        "probe_shared": THREADS * CHAINS * VECTOR_BYTES,
        "probe_wgmma": WGMMA_FLOPS,
    }[entry] * float(rounds)


def chase(device: Device, links: Array, steps: int) -> Array:
    """Follow `steps` dependent loads with one thread; the clocks they took, as an int64 array of one element."""
    clocks = device.empty((1,), "int64")
    arguments = {"next": links, "sink": device.empty((1,), "uint32"), "clocks": clocks, "steps": np.int32(steps)}
    device.launch(variant("probe_latency"), (1, 1, 1), arguments)
    return clocks


def ring(count: int, stride: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Links of one cycle through every `stride`-th of `count` elements in random order: no prefetcher follows it."""
    order = np.random.default_rng(seed).permutation(count // stride).astype(np.uint32) * np.uint32(stride)
    order = np.roll(order, -int(np.flatnonzero(order == 0)[0]))
    links = np.zeros(count, np.uint32)
    links[order] = np.roll(order, -1)
    return links


def _grid(device: Device, vectors: int) -> tuple[int, int, int]:
    return (max(1, min(device.gpu.sm.count * BLOCKS_PER_SM, -(-vectors // THREADS))), 1, 1)


def measure(device: Any, watch: Stopwatch) -> Iterator[Rate]:
    """Every microbenchmark in turn, most valuable first.

    Parameters
    ----------
    device : CudaDevice
    watch : Stopwatch
    """
    l2 = int(device.gpu.l2.capacity_bytes)
    large = device.zeros((max(8 * l2, 1 << 30),), "uint8")
    other = device.empty(large.shape, "uint8")
    yield _rate(watch, "hbm.read", large.nbytes, "B/s", lambda: read(device, large))
    yield _rate(watch, "hbm.copy", 2 * large.nbytes, "B/s", lambda: copy(device, large, other))
    for entry, name, unit in (
        ("probe_mma", "tensor.mma_sync bf16", "FLOP/s"),
        ("probe_wgmma", "tensor.wgmma bf16", "FLOP/s"),
        ("probe_exp", "exp", "1/s"),
        ("probe_fma", "fp32.fma", "FLOP/s"),
        ("probe_shared", "shared_memory.read", "B/s"),
    ):
        if entry == "probe_wgmma" and device.gpu.compute_capability_number != 90:
            continue
        blocks = device.gpu.sm.count * (1 if entry == "probe_wgmma" else BLOCKS_PER_SM)
        yield _rate(watch, name, work_of(entry) * blocks, unit, _spinning(device, entry), "warm")
    for fraction in (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1, 9 / 8, 5 / 4, 3 / 2, 2, 3):
        part = large[: int(l2 * fraction) // 512 * 512]
        yield _rate(watch, f"l2.read {fraction:g} of capacity", part.nbytes, "B/s", _reading(device, part), "warm")
    for mode in ("warm", "graph"):
        found = watch.time(lambda: device.launch(variant("probe_null"), (1, 1, 1), {}), mode, samples=200)
        yield Rate(
            f"launch.{'graph' if mode == 'graph' else 'stream'}", found.median_s, _spread(found), "s", len(found.kept)
        )
    for name, size in (("l1", 16 << 10), ("l2", l2 // 8), ("hbm", large.nbytes // 4)):
        yield _latency(device, name, size)


def _rate(watch: Stopwatch, name: str, work: float, unit: str, call: Callable[[], None], mode: Mode = "cold") -> Rate:
    found = watch.time(call, mode, samples=20, limit_s=0.5)
    return Rate(name, work / found.median_s, _spread(found), unit, len(found.kept))


def _spread(found: Any) -> float:
    return float(found.iqr_s / found.median_s)


def _spinning(device: Any, entry: str) -> Callable[[], None]:
    return lambda: spin(device, entry)


def _reading(device: Any, part: Array) -> Callable[[], None]:
    return lambda: read(device, part)


def _latency(device: Any, name: str, size: int) -> Rate:
    links = device.upload(ring(size // 4, 32))
    steps = min(20000, size // 128)
    chase(device, links, steps)
    clocks = [float(device.download(chase(device, links, steps))[0]) / steps for _ in range(5)]
    low, middle, high = np.quantile(clocks, [0.25, 0.5, 0.75])
    return Rate(f"latency.{name}", float(middle), float((high - low) / middle), "clk", len(clocks))
