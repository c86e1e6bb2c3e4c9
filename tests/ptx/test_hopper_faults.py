"""Seeded bugs in the use of Hopper's asynchronous units: each is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from attnsim.ptx import faults
from attnsim.ptx.counters import Counters
from attnsim.ptx.shared import TensorMap

Launch = Callable[..., Counters]

TILE = """
#include "slab_tile.cuh"
KERNEL(const __grid_constant__ TensorMap map, float* out) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const SlabTile<64, 64> tile{shared_address(memory)};
    const uint32 barrier = tile.base + tile.kBytes;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) tile.load(map, barrier, 0, 0);
    mbarrier_wait(barrier, 0);
    const uint32 ones = Half::pack(1.f, 1.f), a[4] = {ones, ones, ones, ones};
    float d[32];
    pin(d);
    wgmma_fence();
    wgmma_registers(d, a, tile.along_rows(0), 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(d);
    out[threadIdx.x] = d[0];
}
"""
"""A tile comes by the copy engine, and its first sixteen rows are added up by the tensor cores."""

SHARED = 8192 + 128


@dataclass(frozen=True)
class Bug:
    """What is replaced in :data:`TILE` by what, and what comes of it."""

    fault: type[faults.Fault]
    old: str
    new: str
    message: str
    threads: int = 128


BUGS = {
    "initialisation not shown to the copy engine": Bug(
        faults.MisusedMbarrier, "mbarrier_init_fence();", "", "may not see the mbarrier at 0x2000 yet"
    ),
    "initialisation not shown to the other warps": Bug(
        faults.MisusedMbarrier, "__syncthreads();", "", "has been initialised, but with no barrier between"
    ),
    "no mbarrier": Bug(faults.MisusedMbarrier, "mbarrier_init(barrier, 1);", "", "there is no mbarrier at 0x2000"),
    "more arrivals than expected": Bug(
        faults.MisusedMbarrier,
        "if (threadIdx.x == 0) tile.load",
        "if (threadIdx.x % 64 == 0) tile.load",
        "more than it can count for the mbarrier at 0x2000: phase 0 lacks -1 of 1 arrivals",
    ),
    "fewer arrivals than expected": Bug(
        faults.Deadlock,
        "mbarrier_init(barrier, 1)",
        "mbarrier_init(barrier, 2)",
        "waits at the mbarrier at 0x2000: phase 0 lacks 1 of 2 arrivals and 0 bytes; no thread can go on",
    ),
    "more bytes announced than come": Bug(
        faults.Deadlock,
        "tile.load(map, barrier, 0, 0)",
        "mbarrier_arrive_expect(barrier, 8208), tensor_copy(tile.base, map, barrier, 0, 0, 0)",
        "phase 0 lacks 0 of 1 arrivals and 16 bytes",
    ),
    "fewer bytes announced than come": Bug(
        faults.Deadlock,
        "tile.load(map, barrier, 0, 0)",
        "mbarrier_arrive_expect(barrier, 4096), tensor_copy(tile.base, map, barrier, 0, 0, 0)",
        "phase 0 lacks 0 of 1 arrivals and -4096 bytes",
    ),
    "an mbarrier taken for memory": Bug(
        faults.MisusedMbarrier,
        "mbarrier_wait(barrier, 0);",
        "store_shared(barrier, 0); mbarrier_wait(barrier, 0);",
        "store of 4 bytes at shared address 0x2000 by warp 0: an mbarrier lies there",
    ),
    "no wait for the copy": Bug(
        faults.CopyInFlight,
        "mbarrier_wait(barrier, 0);",
        "",
        "read by wgmma at shared address 0x0 by warp 0: a copy to it is still in flight",
    ),
    "wait for the other parity": Bug(
        faults.CopyInFlight, "mbarrier_wait(barrier, 0)", "mbarrier_wait(barrier, 1)", "still in flight"
    ),
    "one warp waits for all": Bug(
        faults.Race,
        "mbarrier_wait(barrier, 0);",
        "if (threadIdx.x < 32) mbarrier_wait(barrier, 0);",
        "read by wgmma .*, written by a bulk copy whose mbarrier it has not waited for",
    ),
    "plain load before the wait": Bug(
        faults.CopyInFlight,
        "mbarrier_wait(barrier, 0);",
        "out[threadIdx.x] = load_shared_float(tile.base + 4 * threadIdx.x); mbarrier_wait(barrier, 0);",
        "load of 4 bytes at shared address 0x0 by warp 0: a copy to it is still in flight",
    ),
    "end before the copy's": Bug(
        faults.CopyInFlight,
        "mbarrier_wait(barrier, 0);",
        "return;",
        "the block has ended, and a bulk copy to it is still under way",
    ),
    "copy over what is being read": Bug(
        faults.Race,
        "wgmma_commit();",
        "wgmma_commit(); if (threadIdx.x == 0) tile.load(map, barrier, 0, 0);",
        "bulk copy at shared address 0x0 by warp 0, read by wgmma of warpgroup 0 with no barrier between",
    ),
    "store to what is being read": Bug(
        faults.Race,
        "wgmma_commit();",
        "wgmma_commit(); store_shared(tile.base + 4 * threadIdx.x, 0);",
        "store of 4 bytes at shared address 0x0 by warp 0, read by wgmma of warpgroup 0",
    ),
    "store not passed on": Bug(
        faults.Race,
        "mbarrier_wait(barrier, 0);",
        "mbarrier_wait(barrier, 0); store_shared(tile.base + 4 * threadIdx.x, 0); __syncthreads();",
        r"written by warp 0 and not passed on by fence\.proxy\.async",
    ),
    "copy over a store not passed on": Bug(
        faults.Race,
        "__syncthreads();",
        "store_shared(tile.base + 4 * threadIdx.x, 0); __syncthreads();",
        r"bulk copy at .*, written by warp 0 and not passed on by fence\.proxy\.async",
    ),
    "no fence before wgmma": Bug(faults.RegisterInFlight, "wgmma_fence();", "", r"no wgmma\.fence came after"),
    "no wait for wgmma": Bug(faults.RegisterInFlight, "wgmma_wait<0>();", "", r"wgmma\.wait_group must come first"),
    "no commit before the wait": Bug(
        faults.RegisterInFlight, "wgmma_commit();", "", r"wgmma\.wait_group must come first"
    ),
    "half a warpgroup": Bug(
        faults.InactiveLane,
        "wgmma_fence();",
        "if (threadIdx.x >= 64) return; wgmma_fence();",
        r"the other warps of the warpgroup do not come to this wgmma\.fence",
    ),
    "blocks of no whole warpgroups": Bug(
        faults.InactiveLane, "pin(d);\n    wgmma", "pin(d); wgmma", "needs blocks of whole warpgroups", threads=96
    ),
    "two descriptors in a warpgroup": Bug(
        faults.NotUniform,
        "tile.along_rows(0)",
        "tile.along_rows(threadIdx.x / 64)",
        "different values for a matrix descriptor",
    ),
    "operand outside the block's memory": Bug(
        faults.OutOfBounds,
        "tile.along_rows(0)",
        "matrix_descriptor(0x20000, 0, 16, 1024)",
        "wgmma operand at shared address 0x20000, but the block has 8320 bytes",
    ),
    "tile between repetitions of the swizzle": Bug(
        faults.Fault, "tile.along_rows(0)", "tile.along_rows(0) | 1ull << 49", "are not modelled"
    ),
    "copy to an odd place": Bug(
        faults.Misaligned, "tile{shared_address(memory)}", "tile{shared_address(memory) + 64}", "bulk copy to .* 0x40"
    ),
    "too few registers": Bug(
        faults.Fault, "pin(d);\n    wgmma_fence", "give_registers<20>(); wgmma_fence", "multiples of 8 from 24 to 256"
    ),
    "more registers than there are": Bug(
        faults.Deadlock,
        "pin(d);\n    wgmma_fence",
        "take_registers<176>(); wgmma_fence",
        "ask for 67584 registers, an SM has 65536",
        threads=384,
    ),
}


def arguments(threads: int) -> dict[str, Any]:
    tile = np.random.default_rng(3).integers(-8, 8, (1, 64, 64)).astype(np.float16)
    return {"map": TensorMap(tile, (1, 64, 64)), "out": np.zeros(threads, np.float32)}


@pytest.mark.parametrize("threads", [128, 384])
def test_without_a_bug_it_runs(threads: int, launch: Launch) -> None:
    given = arguments(threads)
    launch(TILE, given, block=threads, shared=SHARED, arch="90a")
    sums = given["map"].array[0, :16].astype(np.float32).sum(axis=0)
    want = np.tile(sums[0:8:2], threads // 4)
    np.testing.assert_array_equal(given["out"], want)


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_found(name: str, launch: Launch) -> None:
    bug = BUGS[name]
    assert TILE.count(bug.old) == 1
    with pytest.raises(bug.fault, match=bug.message):
        launch(TILE.replace(bug.old, bug.new), arguments(bug.threads), block=bug.threads, shared=SHARED, arch="90a")


MEETING = """
#include "hopper.cuh"
KERNEL(const int* in, int* out) {
    __shared__ int memory[96];
    const int warp = threadIdx.x / 32;
    memory[threadIdx.x] = in[threadIdx.x];
    if (warp < 2) named_barrier_sync(1, 64);
    @
    if (warp == 2) out[threadIdx.x] = memory[threadIdx.x - 32];
}
"""


def test_a_barrier_orders_those_who_meet_and_nobody_else(launch: Launch) -> None:
    given = {"in": np.arange(96, dtype=np.int32), "out": np.zeros(96, np.int32)}
    with pytest.raises(faults.Race, match=r"load of 4 bytes .* by warp 2, written by warp 1 with no barrier between"):
        launch(MEETING.replace("@", ""), given, block=96)
    for absent in (0, 1):  # warp 2 meets warp 1, or warp 0, which has met warp 1
        given["out"][:] = 0
        launch(MEETING.replace("@", f"if (warp != {absent}) named_barrier_sync(2, 64);"), given, block=96)
        np.testing.assert_array_equal(given["out"][64:], given["in"][32:64])


@pytest.mark.parametrize(
    ("threads", "told"), [(96, "for 3 warps, 2 for those before"), (32, "for 1 warps, 2 for those")]
)
def test_warps_that_meet_agree_on_how_many_they_are(threads: int, told: str, launch: Launch) -> None:
    source = """
    #include "hopper.cuh"
    KERNEL(const int* in, int* out) {
        if (threadIdx.x < 32) named_barrier_arrive(1, 64);
        else named_barrier_sync(1, @);
        out[threadIdx.x] = in[threadIdx.x];
    }"""
    given = {"in": np.arange(64, dtype=np.int32), "out": np.zeros(64, np.int32)}
    with pytest.raises(faults.DivergentBarrier, match=told):
        launch(source.replace("@", str(threads)), given, block=64)
    launch(source.replace("@", "64"), given, block=64)
