// Two blocks that run at the same time and see each other's shared memory: sm_90 and later.
// PTX ISA 9.0: "barrier.cluster", "mapa", "mbarrier.arrive", "cp.async.bulk.tensor" with .multicast::cluster.
#pragma once
#include "hopper.cuh"

// Every thread of the cluster's blocks that has not exited comes here; what each did before is seen by all after.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

// Arrives at the mbarrier in the same place of a block of the cluster, this one's own included.
__device__ __forceinline__ void mbarrier_arrive_at(uint32 barrier, int block) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
        "r"(block)
        : "memory");
}

// Blocks until the phase of this parity is over, in which threads of other blocks arrive.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32 barrier, uint32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Starts the copy of a box to the same place in each of the blocks that are bits of `blocks`, told to the mbarrier in
// the same place of each.
__device__ __forceinline__ void tensor_copy_to(uint32 shared, const TensorMap& map, uint32 barrier, int column, int row,
                                               int plane, uint16 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;\n" ::"r"(shared),
        "l"(reinterpret_cast<uint64>(&map)), "r"(barrier), "r"(column), "r"(row), "r"(plane), "h"(blocks)
        : "memory");
}
