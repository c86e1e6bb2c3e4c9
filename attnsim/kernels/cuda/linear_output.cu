// Linear attention without a mask: O = phi(Q) S / (phi(Q) z), where every query sees the one state of all keys.
//
// A block takes a query head and one of `ranges` even ranges of its row tiles. Each warp has a ring of slabs of 32 rows
// to itself and waits for no other once the state has landed. It takes the weights phi(q)_d z_d / (phi(q) z) as the
// attention of its rows to HEAD_DIM averaged values.
#include "linear.cuh"

constexpr int kThreads = kWarp * WARPS, kRows = 32 * WARPS;  // rows of a row tile
constexpr int kFragments = 2, kDepth = HEAD_DIM / 16;
constexpr int kColumns = 64;  // columns of O that a warp accumulates at a time

using Slab = SharedTile<16 * kFragments, HEAD_DIM>;
using Averages = SharedTile<HEAD_DIM, HEAD_DIM>;

// Weights of 16 rows, from row `first` of a slab of Q, packed as A operands: they sum to one over the features.
__device__ __forceinline__ void weigh(uint32 (&weights)[kDepth][4], const Slab& q, int first, const float* normalizer) {
    const int lane = thread_here() % kWarp;
    float w[kDepth][4][2], total[2] = {};
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
        uint32 a[4];
        q.fragment_a(a, first, 16 * d, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // registers 0 and 1 are rows l / 4 and + 8; 2 and 3 the same, eight columns on
            const float2 z = *reinterpret_cast<const float2*>(normalizer + 16 * d + i / 2 * 8 + lane % 4 * 2);
            w[d][i][0] = phi(low_half(a[i])) * z.x;
            w[d][i][1] = phi(high_half(a[i])) * z.y;
            total[i % 2] += w[d][i][0] + w[d][i][1];
        }
    }
    const float scale[2] = {inverse(quad_sum(total[0])), inverse(quad_sum(total[1]))};
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[d][i] = Element::pack(w[d][i][0] * scale[i % 2], w[d][i][1] * scale[i % 2]);
}

// Columns first .. first + kColumns of O = weights x averages, rounded into the warp's slab.
__device__ __forceinline__ void multiply(const uint32 (&weights)[kFragments][kDepth][4], const Averages& averages,
                                         int first, const Slab& output) {
    const int lane = thread_here() % kWarp;
    float o[kFragments][kColumns / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
        for (int n = 0; n < kColumns / 8; n += 2) {
            uint32 b[4];
            averages.fragment_b_columns(b, 16 * d, first + 8 * n, lane);
#pragma unroll
            for (int m = 0; m < kFragments; ++m) {
                Element::mma(o[m][n], weights[m][d], b[0], b[1]);
                Element::mma(o[m][n + 1], weights[m][d], b[2], b[3]);
            }
        }
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                store_shared_32(output.address(16 * m + lane / 4 + e / 2 * 8, first / 8 + n) + lane % 4 * 4,
                                Element::pack(o[m][n][e], o[m][n][e + 1]));
}

extern "C" __global__ void __launch_bounds__(kThreads, HEAD_DIM == 64 ? 3 : 2)
    linear_output(const Element* __restrict__ q, const Element* __restrict__ state,
                  const float* __restrict__ normalizer, Element* __restrict__ o, int seq_q, int group, int ranges) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int thread = threadIdx.x, warp = thread / kWarp;
    const int head = blockIdx.x / ranges, range = blockIdx.x % ranges, key_head = head / group;
    const int tiles = (seq_q + kRows - 1) / kRows;
    const int begin = static_cast<int>(static_cast<int64>(tiles) * range / ranges);
    const int end = static_cast<int>(static_cast<int64>(tiles) * (range + 1) / ranges);

    const Averages averages{shared_address(shared)};
    const uint32 ring = averages.base + Averages::kBytes + warp * STAGES * Slab::kBytes;
    float* const sums = reinterpret_cast<float*>(shared + Averages::kBytes + WARPS * STAGES * Slab::kBytes);

    const auto first_row = [&](int tile) { return tile * kRows + warp * Slab::kRows; };
    const auto load = [&](int tile, uint32 slot) {
        if (tile < end && first_row(tile) < seq_q) {
            const int64 offset = (static_cast<int64>(head) * seq_q + first_row(tile)) * HEAD_DIM;
            Slab{slot}.load_async<kWarp>(q + offset, HEAD_DIM, seq_q - first_row(tile), thread_here() % kWarp);
        }
        cp_async_commit();
    };
    averages.load_async<kThreads>(state + static_cast<int64>(key_head) * HEAD_DIM * HEAD_DIM, HEAD_DIM, HEAD_DIM,
                                  thread);
    cp_async_commit();
#pragma unroll
    for (int ahead = 0; ahead < STAGES; ++ahead) load(begin + ahead, ring + ahead * Slab::kBytes);
    if (thread < HEAD_DIM) sums[thread] = normalizer[static_cast<int64>(key_head) * HEAD_DIM + thread];
    cp_async_wait<STAGES>();
    __syncthreads();

    uint32 slot = ring;
    for (int tile = begin; tile < end && first_row(tile) < seq_q; ++tile) {
        const Slab slab{slot};
        cp_async_wait<STAGES - 1>();
        __syncwarp();
        uint32 weights[kFragments][kDepth][4];
#pragma unroll
        for (int m = 0; m < kFragments; ++m) weigh(weights[m], slab, 16 * m, sums);
        __syncwarp();
#pragma unroll
        for (int first = 0; first < HEAD_DIM; first += kColumns) multiply(weights, averages, first, slab);
        __syncwarp();
        store_rows(slab, o + (static_cast<int64>(head) * seq_q + first_row(tile)) * HEAD_DIM, seq_q - first_row(tile),
                   thread_here() % kWarp);
        __syncwarp();
        load(tile + STAGES, slot);
        slot = slot + Slab::kBytes == ring + STAGES * Slab::kBytes ? ring : slot + Slab::kBytes;
    }
}
