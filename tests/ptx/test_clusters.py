"""Clusters: blocks that share what one of them copies, and what goes wrong between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.ptx import faults
from attnsim.ptx.counters import Counters
from attnsim.ptx.shared import TensorMap

Launch = Callable[..., Counters]

SHARED = """
#include "slab_tile.cuh"
__device__ uint32 rank() { uint32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ void cluster_sync() { cluster_arrive(); cluster_wait(); }
__device__ void arrive_at(uint32 barrier, uint32 block) {
    uint32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(block));
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
__device__ void copy_to(uint32 shared, const TensorMap& map, uint32 barrier, int row, int plane, int blocks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared), "l"(reinterpret_cast<uint64>(&map)), "r"(barrier),
        "r"(0), "r"(row), "r"(plane), "h"((short)blocks) : "memory");
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(const __grid_constant__ TensorMap map, float* out) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32 base = shared_address(memory), full = base + 8192, empty = full + 8;
    const int cluster = blockIdx.x / 2, half = 4096;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init(empty, 2);
        mbarrier_init_fence();
    }
    cluster_sync();  // begins
    float sum = 0.f;
    for (int tile = 0; tile < 3; ++tile) {
        if (threadIdx.x == 0) {
            mbarrier_wait(empty, tile % 2 ^ 1);
            mbarrier_arrive_expect(full, 2 * half);
            copy_to(base + rank() * half, map, full, 64 * tile + 32 * rank(), cluster, 3);
        }
        mbarrier_wait(full, tile % 2);
        sum += load_shared_float(base + 4 * threadIdx.x) + load_shared_float(base + half + 4 * threadIdx.x);
        __syncthreads();
        if (threadIdx.x == 0) {
            arrive_at(empty, 0);
            arrive_at(empty, 1);
        }
    }
    cluster_sync();  // ends
    out[blockIdx.x * 64 + threadIdx.x] = sum;
}
"""
"""Two blocks copy half of each of three tiles for both; a buffer is free when both have read it."""

BUGS: dict[str, tuple[type[faults.Fault], str, str, str]] = {
    "no meeting at the beginning": (
        faults.MisusedMbarrier, "cluster_sync();  // begins", "__syncthreads();", "with no barrier between"
    ),
    "no meeting at the end": (
        faults.MisusedMbarrier, "cluster_sync();  // ends", "",
        "the block ends, with no barrier of the cluster after warp 0 of the cluster's block",
    ),
    "arrives at a block that has ended": (
        faults.MisusedMbarrier, "    float sum", "    if (rank() == 1) return;\n    float sum", "has ended"
    ),
    "lets go of its own buffer alone": (
        faults.Deadlock, "arrive_at(empty, 0);\n            arrive_at(empty, 1);", "arrive_at(empty, rank());",
        "lacks 1 of 2",
    ),
    "copies before both have read": (
        faults.Race, "mbarrier_wait(empty, tile % 2 ^ 1);", "", "whose mbarrier it has not"
    ),
    "counts on one block": (faults.MisusedMbarrier, "mbarrier_init(empty, 2)", "mbarrier_init(empty, 1)", ""),
    "copies to itself alone": (faults.Deadlock, "cluster, 3)", "cluster, 1 << rank())", "4096 bytes"),
    "copies to a third block": (faults.OutOfBounds, "cluster, 3)", "cluster, 7)", "beyond its 2"),
    "arrives at a third block": (faults.OutOfBounds, "arrive_at(empty, 1);", "arrive_at(empty, 2);", "its 2"),
    "waits without arriving": (
        faults.DivergentBarrier, "cluster_sync();  // ends", "cluster_wait();", "no barrier.cluster.arrive before"
    ),
    "arrives twice": (
        faults.DivergentBarrier, "cluster_sync();  // ends", "cluster_arrive(); cluster_sync();", "for the second time"
    ),
    "one block does not come": (
        faults.Deadlock, "cluster_sync();  // ends", "if (rank() == 0) cluster_sync(); else mbarrier_wait(full, 1);",
        "",
    ),
}  # fmt: skip


def arguments(blocks: int) -> dict[str, Any]:
    tiles = np.random.default_rng(5).standard_normal((blocks // 2, 192, 32)).astype(np.float32)
    return {"map": TensorMap(tiles, (1, 32, 32), 0), "out": np.zeros(64 * blocks, np.float32)}


@pytest.mark.parametrize("lanes", [64, 128, 16384])
def test_two_blocks_share_what_each_copies_half_of(lanes: int, launch: Launch) -> None:
    given = arguments(6)
    counters = launch(SHARED, given, block=64, grid=6, shared=8192 + 128, arch="90a", lanes=lanes)
    tiles = given["map"].array.reshape(3, 3, 2, -1)[..., :64]
    np.testing.assert_allclose(given["out"].reshape(3, 2, 64), tiles.sum((1, 2))[:, None].repeat(2, 1), rtol=1e-5)
    assert counters.loads["map"] == 2 * given["map"].array.nbytes  # what comes to both blocks
    assert counters.load_sectors["map"] * 32 == given["map"].array.nbytes  # is read once


@pytest.mark.parametrize("name", BUGS)
def test_what_goes_wrong_between_two_blocks_is_found(name: str, launch: Launch) -> None:
    fault, old, new, told = BUGS[name]
    assert SHARED.count(old) == 1
    with pytest.raises(fault, match=told or None):
        launch(SHARED.replace(old, new), arguments(2), block=64, grid=2, shared=8192 + 128, arch="90a")


def test_a_grid_is_whole_clusters(launch: Launch) -> None:
    with pytest.raises(InputError, match="clusters of 2 blocks: give a multiple of that in x"):
        launch(SHARED, arguments(2), block=64, grid=3, shared=8192 + 128, arch="90a")
    square = SHARED.replace("__cluster_dims__(2, 1, 1)", "__cluster_dims__(1, 2, 1)")
    with pytest.raises(faults.UnsupportedInstruction, match="clusters of 1 x 2 x 1 blocks; those in a row are known"):
        launch(square, arguments(2), block=64, grid=(1, 2), shared=8192 + 128, arch="90a")
