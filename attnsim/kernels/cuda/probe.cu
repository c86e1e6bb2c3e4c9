// Microbenchmarks: each kernel keeps one unit of the GPU busy and nothing else, so that its rate can be read off.
#include "element.cuh"

// Independent chains a thread: enough to hide the latency of every pipe measured here.
constexpr int kChains = 8;

extern "C" __global__ void __launch_bounds__(256) probe_null() {}

// Sums `count` vectors of 16 bytes; the sum is stored only in a case that never occurs, so nothing is optimised away
// and nothing is written.
extern "C" __global__ void __launch_bounds__(256) probe_read(const uint4* source, uint32* sink, int64 count) {
    const int64 stride = static_cast<int64>(gridDim.x) * blockDim.x;
    int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32 sum = 0;
    for (; i + 3 * stride < count; i += 4 * stride) {
        uint4 piece[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) piece[j] = source[i + j * stride];
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += piece[j].x ^ piece[j].y ^ piece[j].z ^ piece[j].w;
    }
    for (; i < count; i += stride) {
        const uint4 piece = source[i];
        sum += piece.x ^ piece.y ^ piece.z ^ piece.w;
    }
    if (sum == 0x9e3779b9u) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(256) probe_copy(const uint4* source, uint4* target, int64 count) {
    const int64 stride = static_cast<int64>(gridDim.x) * blockDim.x;
    int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < count; i += 4 * stride) {
        uint4 piece[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) piece[j] = source[i + j * stride];
#pragma unroll
        for (int j = 0; j < 4; ++j) target[i + j * stride] = piece[j];
    }
    for (; i < count; i += stride) target[i] = source[i];
}

// Sums `count` vectors of 16 bytes `passes` times over. The L1 is passed by (.cg), so that every pass is the L2's to
// answer, or the memory's behind it where they do not fit.
extern "C" __global__ void __launch_bounds__(256) probe_reread(const uint4* source, uint32* sink, int64 count, int passes) {
    const int64 stride = static_cast<int64>(gridDim.x) * blockDim.x;
    uint32 sum = 0;
    for (int pass = 0; pass < passes; ++pass) {
#pragma unroll 4
        for (int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
            uint32 x, y, z, w;
            asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                         : "l"(source + i));
            sum += x ^ y ^ z ^ w;
        }
    }
    if (sum == 0x9e3779b9u) *sink = sum;
}

// `rounds` exponentials on each of kChains chains.
extern "C" __global__ void __launch_bounds__(256) probe_exp(float* sink, int rounds) {
    float x[kChains];
#pragma unroll
    for (int j = 0; j < kChains; ++j) x[j] = -0.001f * (threadIdx.x + j);
    for (int i = 0; i < rounds; ++i) {
#pragma unroll
        for (int j = 0; j < kChains; ++j) x[j] = exp2_fast(x[j]);
    }
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kChains; ++j) sum += x[j];
    if (sum == 12345.f) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(256) probe_fma(float* sink, int rounds, float a, float b) {
    float x[kChains];
#pragma unroll
    for (int j = 0; j < kChains; ++j) x[j] = 0.001f * (threadIdx.x + j);
    for (int i = 0; i < rounds; ++i) {
#pragma unroll
        for (int j = 0; j < kChains; ++j) x[j] = fmaf(x[j], a, b);
    }
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kChains; ++j) sum += x[j];
    if (sum == 12345.f) *sink = sum;
}

// `rounds` products of 16 x 8 x 16 on each of kChains accumulators of a warp.
extern "C" __global__ void __launch_bounds__(256) probe_mma(float* sink, int rounds) {
    const uint32 one = Element::pack(1.f, 0.f);
    const uint32 a[4] = {one, one, one, one};
    float c[kChains][4];
#pragma unroll
    for (int j = 0; j < kChains; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[j][i] = 0.f;
    for (int i = 0; i < rounds; ++i) {
#pragma unroll
        for (int j = 0; j < kChains; ++j) Element::mma(c[j], a, one, one);
    }
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kChains; ++j) sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
    if (sum == 12345.f) *sink = sum;
}

// `rounds` reads of kChains x 16 bytes a thread from shared memory, without bank conflicts.
extern "C" __global__ void __launch_bounds__(256) probe_shared(uint32* sink, int rounds) {
    __shared__ __align__(128) uint32 memory[256 * 4];
    for (int i = 0; i < 4; ++i) memory[threadIdx.x + 256 * i] = threadIdx.x + i;
    __syncthreads();
    const uint32 address = shared_address(memory) + threadIdx.x * 16;
    uint32 sum = 0;
    for (int i = 0; i < rounds; ++i) {
#pragma unroll
        for (int j = 0; j < kChains; ++j) {
            uint32 x, y, z, w;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                         : "r"(address ^ (j << 4)));
            sum += x ^ y ^ z ^ w;
        }
    }
    if (sum == 0x9e3779b9u) *sink = sum;
}

// One thread follows `steps` indices through a permutation: the latency of one dependent load after another.
extern "C" __global__ void __launch_bounds__(32) probe_latency(const uint32* next, uint32* sink, int64* clocks, int steps) {
    if (threadIdx.x != 0) return;
    uint32 at = 0;
    int64 start, stop;
    asm volatile("mov.u64 %0, %%clock64;\n" : "=l"(start)::"memory");
    for (int i = 0; i < steps; ++i) at = next[at];
    asm volatile("mov.u64 %0, %%clock64;\n" : "=l"(stop) : "r"(at) : "memory");
    *sink = at;
    *clocks = stop - start;
}

// Holds the stream for a while: what is queued behind it meanwhile runs without waiting for the CPU.
extern "C" __global__ void __launch_bounds__(32) probe_wait(int64 nanoseconds) {
    int64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(now));
    } while (now - start < nanoseconds);
}
