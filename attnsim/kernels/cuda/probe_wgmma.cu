// Microbenchmark of Hopper's asynchronous tensor instruction, both operands from shared memory as in S = Q K^T: two
// warpgroups with `rounds` groups of sixteen 64 x 128 x 16 products each.
#include "wgmma.cuh"

extern "C" __global__ void __launch_bounds__(256, 1) probe_wgmma(float* sink, int rounds) {
    extern __shared__ char shared[];
    const uint32 base = (shared_address(shared) + 1023) & ~1023u;
    constexpr int kWords = (2 * 64 + 128) * 128 / 4;  // A of two warpgroups, B of both
    for (int i = threadIdx.x; i < kWords; i += 256)
        asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(base + 4 * i), "r"(0x3c003c00u) : "memory");
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    __syncthreads();
    const uint64 a = matrix_descriptor(base, (threadIdx.x >> 7) * 64 * 128, 16, 1024);
    const uint64 b = matrix_descriptor(base, 2 * 64 * 128, 16, 1024);
    float c[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) c[i] = 0.f;
    for (int i = 0; i < rounds; ++i) {
        pin(c);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 16; ++j) wgmma_shared(c, a + 2 * (j & 3), b + 2 * (j & 3), 1);
        wgmma_commit();
        wgmma_wait<0>();
    }
    pin(c);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 64; ++i) sum += c[i];
    if (sum == 12345.f) *sink = sum;
}
