"""Microbenchmark kernels, each for one unit of a GPU: their launches, and the work that they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnsim.kernels.device import Array, Device
from attnsim.kernels.variant import Variant

THREADS = 256
CHAINS = 8
"""``kChains`` of ``probe.cu``."""
VECTOR_BYTES = 16
BLOCKS_PER_SM = 8
ROUNDS = 4096
LINE_ELEMENTS = 32
"""32-bit elements of a cache line of 128 bytes."""
WGMMA_FLOPS = 2 * 16 * (2 * 64 * 128 * 16)
"""FLOPs of a block in one round of ``probe_wgmma``: two warpgroups, sixteen products each."""
WGMMA_SHARED_BYTES = (2 * 64 + 128) * 128 + 1024


def variant(entry: str, dtype: str = "Bfloat16") -> Variant:
    """Return the variant of one microbenchmark."""
    if entry == "probe_wgmma":
        return Variant(
            "probe_wgmma.cu", entry, (("ELEMENT", dtype),), THREADS, WGMMA_SHARED_BYTES, (9, 0), arch_suffix="a"
        )
    threads = 32 if entry in ("probe_latency", "probe_wait") else THREADS
    return Variant("probe.cu", entry, (("ELEMENT", dtype),), threads)


def null(device: Device) -> None:
    """Launch a kernel that does nothing."""
    device.launch(variant("probe_null"), (1, 1, 1), {})


def wait(device: Device, seconds: float) -> None:
    """Occupy the stream for so many seconds; the CPU does not wait."""
    device.launch(variant("probe_wait"), (1, 1, 1), {"nanoseconds": np.int64(round(seconds * 1e9))})


def read(device: Device, source: Array, sink: Array | None = None) -> None:
    """Read an array once; `sink` is a uint32 that keeps its value."""
    _stream(device, "probe_read", source, {"sink": device.empty((1,), "uint32") if sink is None else sink})


def reread(device: Device, source: Array, passes: int) -> None:
    """Read an array `passes` times, bypassing the L1."""
    _stream(device, "probe_reread", source, {"sink": device.empty((1,), "uint32")}, {"passes": np.int32(passes)})


def copy(device: Device, source: Array, target: Array) -> None:
    """Copy an array."""
    _stream(device, "probe_copy", source, {"target": target})


def _stream(device: Device, entry: str, source: Array, to: dict[str, Array], more: Mapping[str, Any] = {}) -> None:
    """Stream an array with as many blocks as fill the GPU."""
    vectors = source.nbytes // VECTOR_BYTES
    blocks = max(1, min(device.gpu.sm.count * BLOCKS_PER_SM, -(-vectors // THREADS)))
    device.launch(variant(entry), (blocks, 1, 1), {"source": source, **to, "count": np.int64(vectors), **more})


def spin(device: Device, entry: str, rounds: int = ROUNDS, blocks: int | None = None) -> None:
    """Run a compute-only kernel: probe_exp, probe_fma, probe_mma, probe_shared or probe_wgmma."""
    arguments: dict[str, Any] = {"sink": device.empty((1,), "uint32"), "rounds": np.int32(rounds)}
    if entry == "probe_fma":
        arguments |= {"a": np.float32(0.999), "b": np.float32(1e-3)}
    device.launch(variant(entry), (blocks or blocks_of(device, entry), 1, 1), arguments)


def blocks_of(device: Device, entry: str) -> int:
    """Return the blocks with which a compute-only kernel fills the GPU."""
    return device.gpu.sm.count * (1 if entry == "probe_wgmma" else BLOCKS_PER_SM)


def work_of(entry: str, rounds: int = ROUNDS) -> float:
    """Return the work of one block in `rounds`: exponentials, FLOPs or bytes."""
    return {
        "probe_exp": THREADS * CHAINS,
        "probe_fma": 2 * THREADS * CHAINS,
        "probe_mma": THREADS // 32 * CHAINS * 2 * 16 * 8 * 16,
        "probe_shared": THREADS * CHAINS * VECTOR_BYTES,
        "probe_wgmma": WGMMA_FLOPS,
    }[entry] * float(rounds)


def chase(device: Device, links: Array, steps: int) -> Array:
    """Run `steps` dependent loads in one thread; returns their clocks as an int64 array of one element."""
    clocks = device.empty((1,), "int64")
    arguments = {"next": links, "sink": device.empty((1,), "uint32"), "clocks": clocks, "steps": np.int32(steps)}
    device.launch(variant("probe_latency"), (1, 1, 1), arguments)
    return clocks


def ring(count: int, stride: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return links of one cycle through every `stride`-th of `count` elements, in random order (no prefetching)."""
    order = np.random.default_rng(seed).permutation(count // stride).astype(np.uint32) * np.uint32(stride)
    order = np.roll(order, -int(np.flatnonzero(order == 0)[0]))
    links = np.zeros(count, np.uint32)
    links[order] = np.roll(order, -1)
    return links
