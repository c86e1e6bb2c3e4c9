// What a thread of a warpgroup does between S = Q K^T and O += P V, in the registers that wgmma leaves S in: element i
// belongs to row i / 2 % 2 of the thread's two (lane / 4 of its warp's 16, and eight below) and to column
// i / 4 * 8 + lane % 4 * 2 + i % 2. The four lanes of a quad share a row.
// PTX ISA 9.0, "Register Fragments for wgmma.mma_async.m64nNk16".
#pragma once
#include "band.cuh"
#include "element.cuh"

// The running maximum and sum of a thread's two rows.
struct OnlineSoftmax {
    float highest[2] = {negative_infinity(), negative_infinity()};
    float total[2] = {0.f, 0.f};  // of this thread's columns only, until `finish`

    // Turns scores into probabilities; `rescale` is what earlier sums have to be multiplied by.
    template <int kCount>
    __device__ __forceinline__ void update(float (&s)[kCount], float scale_log2, float (&rescale)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = highest[half];
#pragma unroll
            for (int i = 2 * half; i < kCount; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
            top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
            top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
            const float shift = top == negative_infinity() ? 0.f : top * scale_log2;  // a row that has seen no key yet
            rescale[half] = exp2_fast(highest[half] * scale_log2 - shift);
            highest[half] = top;
            float sum = 0.f;
#pragma unroll
            for (int i = 2 * half; i < kCount; i += 4) {
                s[i] = exp2_fast(s[i] * scale_log2 - shift);
                s[i + 1] = exp2_fast(s[i + 1] * scale_log2 - shift);
                sum += s[i] + s[i + 1];
            }
            total[half] = total[half] * rescale[half] + sum;
        }
    }

    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
            total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
        }
    }

    // What O has to be multiplied by, and the log-sum-exp; 0 and -inf for a row without keys.
    __device__ __forceinline__ float inverse(int half) const {
        return total[half] > 0.f ? __fdividef(1.f, total[half]) : 0.f;
    }
    __device__ __forceinline__ float lse(int half, float scale_log2) const {
        constexpr float kLn2 = 0.693147180559945309f;
        if (!(total[half] > 0.f)) return negative_infinity();
        return (highest[half] * scale_log2 + log2_fast(total[half])) * kLn2;
    }
};

// Scores of keys that their row does not see become -inf. `row` is the warpgroup's first; most tiles are seen whole.
template <int kCount>
__device__ __forceinline__ void hide(float (&s)[kCount], const Band& band, int row, int first_key) {
    constexpr int kKeys = 2 * kCount;
    if (band.keys(row).all(first_key, kKeys) && band.keys(row + 63).all(first_key, kKeys)) return;
    const int warp = threadIdx.x % 128 / kWarp, lane = threadIdx.x % kWarp, column = first_key + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const VisibleKeys visible = band.keys(row + warp * 16 + lane / 4 + 8 * half);
        const int low = visible.low - column, high = visible.high - column;
#pragma unroll
        for (int i = 2 * half; i < kCount; i += 4) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
                if (i / 4 * 8 + j < low || i / 4 * 8 + j >= high) s[i + j] = negative_infinity();
        }
    }
}

// P as wgmma takes A from registers: that is S's own order, two elements to a register.
template <int kCount>
__device__ __forceinline__ void pack(uint32 (&p)[kCount / 2], const float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
}
