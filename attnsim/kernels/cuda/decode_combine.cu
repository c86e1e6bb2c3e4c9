// Merges the partial results of decode.cu's splits, one block a row: O = sum_s w_s O_s / sum_s w_s with
// w_s = exp(LSE_s - max LSE).
//
// Warp w takes splits w, w + WARPS, ...; a lane holds one split's weight and HEAD_DIM / 32 columns. The first
// values are asked for before the weights are known, so that a row costs two latencies of the L2 and not three.
#include "element.cuh"

constexpr int kAhead = 4;              // splits of a warp whose values are in flight at a time
constexpr int kPairs = HEAD_DIM / 64;  // float2's of a lane: columns 2 lane + 64 j
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLog2 = 0.69314718055994530942f;

static_assert(HEAD_DIM % 64 == 0, "two columns a lane");

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
}

// At most 32 splits a warp. `rows` counts all rows: batch x heads_q x seq_q.
extern "C" __global__ void __launch_bounds__(kWarp * WARPS)
    decode_combine(const float* __restrict__ o_partial, const float* __restrict__ lse_partial,
                   Element* __restrict__ o, float* __restrict__ lse, int rows, int splits) {
    extern __shared__ __align__(16) unsigned char shared[];
    float* const merged = reinterpret_cast<float*>(shared);                       // [WARPS, HEAD_DIM]
    float2* const states = reinterpret_cast<float2*>(merged + WARPS * HEAD_DIM);  // maximum and sum of each warp
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int64 row = blockIdx.x;
    const int mine = splits > warp ? (splits - warp - 1) / WARPS + 1 : 0;  // splits of this warp

    float weight = negative_infinity();
    if (lane < mine) weight = lse_partial[(warp + lane * WARPS) * static_cast<int64>(rows) + row];

    float2 values[kAhead][kPairs];
    const auto fetch = [&](int first) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int64 source = ((warp + (first + i) * WARPS) * static_cast<int64>(rows) + row) * HEAD_DIM;
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                values[i][j] = make_float2(0.f, 0.f);
                if (first + i < mine) {
                    values[i][j] = *reinterpret_cast<const float2*>(o_partial + source + 2 * lane + 64 * j);
                }
            }
        }
    };
    fetch(0);

    const float highest = warp_max(weight);
    weight = highest == negative_infinity() ? 0.f : exp2_fast((weight - highest) * kLog2E);
    const float sum = warp_sum(weight);
    float2 total[kPairs] = {};
    for (int first = 0; first < mine; first += kAhead) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const float its = __shfl_sync(kAllLanes, weight, (first + i) % kWarp);  // beyond `mine` the values are 0
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                total[j].x += its * values[i][j].x;
                total[j].y += its * values[i][j].y;
            }
        }
        fetch(first + kAhead);
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        *reinterpret_cast<float2*>(merged + warp * HEAD_DIM + 2 * lane + 64 * j) = total[j];
    }
    if (lane == 0) states[warp] = make_float2(highest, sum);
    __syncthreads();

    float top = negative_infinity();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, states[w].x);
    for (int pair = threadIdx.x; pair < HEAD_DIM / 2; pair += kWarp * WARPS) {
        float all = 0.f;
        float2 out = make_float2(0.f, 0.f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float2 its = states[w];
            const float factor = its.x == negative_infinity() ? 0.f : exp2_fast((its.x - top) * kLog2E);
            const float2 part = reinterpret_cast<const float2*>(merged + w * HEAD_DIM)[pair];
            all += factor * its.y;
            out.x += factor * part.x;
            out.y += factor * part.y;
        }
        const float inverse = all > 0.f ? 1.f / all : 0.f;
        reinterpret_cast<uint32*>(o)[row * (HEAD_DIM / 2) + pair] = Element::pack(out.x * inverse, out.y * inverse);
        if (pair == 0) lse[row] = all > 0.f ? top + kLog2 * log2_fast(all) : negative_infinity();
    }
}
