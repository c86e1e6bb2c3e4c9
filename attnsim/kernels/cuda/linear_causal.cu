// Causal linear attention in chunks: quadratic within a chunk, through the state from all chunks before it.
//
// A block takes a query head and one of `ranges` even ranges of its chunks, and walks them in order with the state in
// registers, so that Q, K and V are read and O is written once. What precedes its first chunk it takes from
// linear_state.cu and linear_merge.cu: the state up to the end of the range before. Each warp has 16 rows of the chunk;
// for them O = W (S / z) + P V, the weights of the past and of the chunk together summing to one.
#include "linear.cuh"

constexpr int kThreads = kWarp * WARPS, kChunk = 16 * WARPS;
constexpr int kDepth = HEAD_DIM / 16, kAcross = HEAD_DIM / 16;

using Rows = SharedTile<16, HEAD_DIM>;
using Chunk = SharedTile<kChunk, HEAD_DIM>;
using Averages = SharedTile<HEAD_DIM, HEAD_DIM>;
using State = LinearState<WARPS, HEAD_DIM>;

// What 16 rows pay attention to within their chunk, and in all: A = phi(Q) phi(K)^T, by 16 keys.
struct Scores {
    float a[WARPS][2][4];
    float scale[2];  // one over the sum of the weights of rows l / 4 and l / 4 + 8, the past's included

    // Keys of warps after this one are later than all its rows.
    __device__ __forceinline__ Scores(const Rows& q, const Chunk& k, const float* normalizer, int warp, int lane) {
#pragma unroll
        for (int block = 0; block < WARPS; ++block)
#pragma unroll
            for (int i = 0; i < 8; ++i) a[block][i / 4][i % 4] = 0.0f;
        float total[2] = {};
#pragma unroll 2  // further, or below at all, the state in registers would spill
        for (int d = 0; d < kDepth; ++d) {
            uint32 features[4];
            q.fragment_a(features, 0, 16 * d, lane);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 z = *reinterpret_cast<const float2*>(normalizer + 16 * d + i / 2 * 8 + lane % 4 * 2);
                total[i % 2] += low_half(features[i]) * z.x + high_half(features[i]) * z.y;
            }
#pragma unroll
            for (int block = 0; block < WARPS; ++block) {
                if (block > warp) break;
                uint32 b[4];
                k.fragment_b_rows(b, 16 * block, 16 * d, lane);
                Element::mma(a[block][0], features, b[0], b[1]);
                Element::mma(a[block][1], features, b[2], b[3]);
            }
        }
#pragma unroll
        for (int block = 0; block < WARPS; ++block)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = lane / 4 + e / 2 * 8, key = 8 * n + lane % 4 * 2 + e % 2;
                    if (block == warp && key > row) a[block][n][e] = 0.0f;
                    total[e / 2] += a[block][n][e];
                }
        scale[0] = inverse(quad_sum(total[0]));
        scale[1] = inverse(quad_sum(total[1]));
    }

    // Weights of a block of keys, packed as the A operand of P V.
    __device__ __forceinline__ void weights(uint32 (&p)[4], int block) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* pair = a[block][i / 2] + i % 2 * 2;
            p[i] = Element::pack(pair[0] * scale[i % 2], pair[1] * scale[i % 2]);
        }
    }
};

// Weights of 16 features of the past: phi(q)_d z_d over the sum of all.
__device__ __forceinline__ void weigh_past(uint32 (&w)[4], const Rows& q, int d, const float* normalizer,
                                           const float (&scale)[2], int lane) {
    q.fragment_a(w, 0, 16 * d, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 z = *reinterpret_cast<const float2*>(normalizer + 16 * d + i / 2 * 8 + lane % 4 * 2);
        w[i] = Element::pack(low_half(w[i]) * (z.x * scale[i % 2]), high_half(w[i]) * (z.y * scale[i % 2]));
    }
}

// O of a warp's rows += 16 weights x 16 rows of a tile.
template <class Tile>
__device__ __forceinline__ void accumulate(float (&o)[2 * kAcross][4], const uint32 (&weights)[4], const Tile& tile,
                                           int row, int lane) {
#pragma unroll
    for (int n = 0; n < kAcross; ++n) {
        uint32 b[4];
        tile.fragment_b_columns(b, row, 16 * n, lane);
        Element::mma(o[2 * n], weights, b[0], b[1]);
        Element::mma(o[2 * n + 1], weights, b[2], b[3]);
    }
}

// O of a warp's rows, rounded in Q's place.
__device__ __forceinline__ void output(const Rows& q, const Chunk& k, const Chunk& v, const Averages& averages,
                                       const float* normalizer) {
    const int thread = thread_here(), warp = thread / kWarp, lane = thread % kWarp;
    const Scores scores(q, k, normalizer, warp, lane);
    float o[2 * kAcross][4] = {};
#pragma unroll
    for (int block = 0; block < WARPS; ++block) {
        if (block > warp) break;
        uint32 p[4];
        scores.weights(p, block);
        accumulate(o, p, v, 16 * block, lane);
    }
#pragma unroll 1
    for (int d = 0; d < kDepth; ++d) {
        uint32 w[4];
        weigh_past(w, q, d, normalizer, scores.scale, lane);
        accumulate(o, w, averages, 16 * d, lane);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2 * kAcross; ++n)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            store_shared_32(q.address(lane / 4 + e / 2 * 8, n) + lane % 4 * 4, Element::pack(o[n][e], o[n][e + 1]));
    __syncwarp();
}

// The state at the end of an earlier range, from global memory, z by way of shared memory; zero where there is none.
__device__ __forceinline__ void begin_with(State& sum, const float* state, const float* normalizer, float* shared_sums,
                                           bool any, int thread) {
    if (thread < HEAD_DIM) shared_sums[thread] = any ? normalizer[thread] : 0.0f;
    sum.clear();
    if (any) {
        const State::Grid::Place at;
        State::Grid::each([&](int m, int n, int e, int) {
            if (e % 2) return;
            const float2 pair =
                *reinterpret_cast<const float2*>(state + at.row_of(m, e) * HEAD_DIM + at.column_of(n, 0));
            sum.values[m][n][e] = pair.x, sum.values[m][n][e + 1] = pair.y;
        });
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    linear_causal(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                  const float* __restrict__ state, const float* __restrict__ normalizer, Element* __restrict__ o,
                  int seq, int group, int ranges) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int thread = threadIdx.x, warp = thread / kWarp;
    const int head = blockIdx.x / ranges, range = blockIdx.x % ranges, key_head = head / group;
    const int chunks = (seq + kChunk - 1) / kChunk;
    const int begin = static_cast<int>(static_cast<int64>(chunks) * range / ranges);
    const int end = static_cast<int>(static_cast<int64>(chunks) * (range + 1) / ranges);

    const Averages averages{shared_address(shared)};
    const Chunk keys{averages.base + Averages::kBytes}, values{keys.base + Chunk::kBytes};
    const Rows rows{values.base + Chunk::kBytes + warp * Rows::kBytes};
    float* sums = reinterpret_cast<float*>(shared + Averages::kBytes + 3 * Chunk::kBytes);  // z of the chunks before
    float* next_sums = sums + HEAD_DIM;

    const auto first_row = [&](int chunk) { return chunk * kChunk + warp * Rows::kRows; };
    const auto load_keys = [&](int chunk) {
        const int64 offset = (static_cast<int64>(key_head) * seq + static_cast<int64>(chunk) * kChunk) * HEAD_DIM;
        const int thread = thread_here();
        keys.load_async<kThreads>(k + offset, HEAD_DIM, seq - chunk * kChunk, thread);
        values.load_async<kThreads>(v + offset, HEAD_DIM, seq - chunk * kChunk, thread);
    };
    const auto load_queries = [&](int chunk) {
        const int64 offset = (static_cast<int64>(head) * seq + first_row(chunk)) * HEAD_DIM;
        rows.load_async<kWarp>(q + offset, HEAD_DIM, seq - first_row(chunk), thread_here() % kWarp);
    };
    load_queries(begin);
    load_keys(begin);
    cp_async_commit();

    State sum;
    const int64 before = static_cast<int64>(key_head) * (ranges - 1) + range - 1;
    begin_with(sum, state + before * HEAD_DIM * HEAD_DIM, normalizer + before * HEAD_DIM, sums, range > 0, thread);
    sum.store_averages(averages, shared_address(sums));

    for (int chunk = begin;; ++chunk) {
        cp_async_wait<0>();
        apply_phi<kThreads>(keys, seq - chunk * kChunk, thread_here());
        apply_phi<kWarp>(rows, seq - first_row(chunk), thread_here() % kWarp);
        __syncthreads();  // keys, values and the state before them are there for everyone
        output(rows, keys, values, averages, sums);
        store_rows(rows, o + (static_cast<int64>(head) * seq + first_row(chunk)) * HEAD_DIM, seq - first_row(chunk),
                   thread_here() % kWarp);
        if (chunk + 1 == end) return;
        __syncwarp();
        load_queries(chunk + 1);
        sum.set_sums(shared_address(sums));
        sum.add(keys, values);
        sum.each_sum([&](int row, float total) { next_sums[row] = total; });
        __syncthreads();  // everyone is done with keys, values and the state before them, and has summed its features
        load_keys(chunk + 1);
        cp_async_commit();
        float* const swap = sums;
        sums = next_sums, next_sums = swap;
        sum.store_averages(averages, shared_address(sums));
    }
}
