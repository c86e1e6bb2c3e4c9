// What sm_90a adds beside wgmma: transaction barriers, the tensor copy engine, named barriers, register hand-over.
// PTX ISA 9.0: "mbarrier", "cp.async.bulk.tensor", "barrier", "setmaxnreg".
#pragma once
#include "ptx.cuh"

// The opaque descriptor that cuTensorMapEncodeTiled fills on the host.
struct alignas(64) TensorMap {
    uint64 words[16];
};

__device__ __forceinline__ void mbarrier_init(uint32 barrier, uint32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives, and announces the bytes that the copy engine will deliver before the phase may end.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32 barrier, uint32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

// Blocks until the phase of this parity is over.
__device__ __forceinline__ void mbarrier_wait(uint32 barrier, uint32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Starts the copy of a box at (column, row, plane); what lies outside the tensor arrives as zeros.
__device__ __forceinline__ void tensor_copy(uint32 shared, const TensorMap& map, uint32 barrier, int column, int row,
                                            int plane) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];\n" ::"r"(shared),
        "l"(reinterpret_cast<uint64>(&map)), "r"(barrier), "r"(column), "r"(row), "r"(plane)
        : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(reinterpret_cast<uint64>(&map)) : "memory");
}

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("barrier.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("barrier.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Stores four 8 x 8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void stmatrix_x4(uint32 address, const uint32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// setmaxnreg: a warpgroup gives registers back to the block, or waits for such.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
