// Linear attention (Katharopoulos et al., arXiv 2006.16236): O = phi(Q) S / (phi(Q) z) with the state S = phi(K)^T V
// and its normaliser z, the sum of the rows of phi(K); phi(x) = elu(x) + 1.
//
// Between kernels S and z are fp32. For the tensor cores S is divided by z row by row and rounded to 16 bits: row d is
// then the average of the values, weighted by feature d of their keys, and no larger than the largest value, so that it
// fits fp16 however many keys there are. A query's weights phi(q)_d z_d / (phi(q) z) sum to one, as softmax's do.
#pragma once
#include "warp_grid.cuh"

constexpr float kLog2E = 1.44269504088896340736f;

__device__ __forceinline__ float phi(float x) {
    const float exponential = exp2_fast(x * kLog2E);
    return x > 0.0f ? x + 1.0f : exponential;
}

// 0 for a sum that has underflowed to 0: nothing is then attended to.
__device__ __forceinline__ float inverse(float sum) { return sum > 0.0f ? 1.0f / sum : 0.0f; }

__device__ __forceinline__ float low_half(uint32 pair) { return Element{static_cast<uint16>(pair)}.to_float(); }
__device__ __forceinline__ float high_half(uint32 pair) { return Element{static_cast<uint16>(pair >> 16)}.to_float(); }

// Sum over the four lanes that share the rows of an accumulator.
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// phi of the first `valid` rows of a tile, in place and rounded to 16 bits. A thread takes the pieces that it copied
// itself with load_async<kThreads>: it need not wait for others before, only others for it. Rows that were filled with
// zeros stay so, though phi(0) is 1: keys that do not exist count for nothing.
template <int kThreads, class Tile>
__device__ __forceinline__ void apply_phi(const Tile& tile, int valid, int thread) {
    constexpr int kTotal = Tile::kRows * Tile::kPieces;
    static_assert(kTotal % kThreads == 0, "every thread takes as many pieces");
#pragma unroll
    for (int i = 0; i < kTotal / kThreads; ++i) {
        const int index = i * kThreads + thread, row = index / Tile::kPieces;
        if (row < valid) {
            const uint32 address = tile.address(row, index % Tile::kPieces);
            uint32 words[4];
            load_shared_128(words, address);
#pragma unroll
            for (int j = 0; j < 4; ++j) words[j] = Element::pack(phi(low_half(words[j])), phi(high_half(words[j])));
            store_shared_128(address, words);
        }
    }
}

// Stores the first `valid` rows of a warp's tile in 16-byte pieces.
template <class Tile>
__device__ __forceinline__ void store_rows(const Tile& tile, Element* target, int valid, int lane) {
#pragma unroll
    for (int i = 0; i < Tile::kRows * Tile::kPieces / kWarp; ++i) {
        const int index = i * kWarp + lane, row = index / Tile::kPieces, piece = index % Tile::kPieces;
        if (row < valid) {
            uint32 words[4];
            load_shared_128(words, tile.address(row, piece));
            store_global_128(target + row * Tile::kColumns + piece * 8, words);
        }
    }
}

// S and z of a block, in the registers of its warps.
template <int kWarps, int kWidth>
struct LinearState {
    using Grid = WarpGrid<kWarps, kWidth, kWidth>;
    static constexpr int kSums = Grid::kM / 2;  // fragments of 16 features whose sums a warp keeps
    static_assert(Grid::kAcross == 2 && Grid::kM % 2 == 0, "two warps share out the features that both of them read");

    typename Grid::Accumulators values;
    float sums[kSums][4];  // every column of these accumulators is the sum

    // First of this warp's fragments to sum, and its first feature.
    static __device__ __forceinline__ int first_sum(const typename Grid::Place& at) { return at.column ? kSums : 0; }
    static __device__ __forceinline__ int feature(const typename Grid::Place& at, int t, int r) {
        return at.row + 16 * (first_sum(at) + t) + at.lane / 4 + 8 * r;
    }

    __device__ __forceinline__ void clear() {
        Grid::each([&](int m, int n, int e, int) { values[m][n][e] = 0.0f; });
#pragma unroll
        for (int t = 0; t < kSums; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[t][e] = 0.0f;
    }

    // z from shared memory.
    __device__ __forceinline__ void set_sums(uint32 normalizer) {
        const typename Grid::Place at;
#pragma unroll
        for (int t = 0; t < kSums; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[t][e] = load_shared_float(normalizer + 4 * feature(at, t, e / 2));
    }

    // S += phi(K)^T V, and z by the same product with a column of ones in V's place.
    template <class Tile>
    __device__ __forceinline__ void add(const Tile& features, const Tile& v) {
        const typename Grid::Place at;
        const uint32 ones = Element::pack(1.0f, 1.0f);
#pragma unroll 2  // further, the compiler reads operands ahead until accumulators spill
        for (int k = 0; k < Tile::kRows; k += 16) {
            uint32 a[Grid::kM][4];
#pragma unroll
            for (int m = 0; m < Grid::kM; ++m) features.fragment_a_transposed(a[m], k, at.row + 16 * m, at.lane);
#pragma unroll
            for (int n = 0; n < Grid::kN; n += 2) {
                uint32 b[4];
                v.fragment_b_columns(b, k, at.column + 8 * n, at.lane);
#pragma unroll
                for (int m = 0; m < Grid::kM; ++m) {
                    Element::mma(values[m][n], a[m], b[0], b[1]);
                    Element::mma(values[m][n + 1], a[m], b[2], b[3]);
                }
            }
#pragma unroll
            for (int t = 0; t < kSums; ++t) {
                uint32 mine[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) mine[i] = first_sum(at) ? a[kSums + t][i] : a[t][i];
                Element::mma(sums[t], mine, ones, ones);
            }
        }
    }

    // Calls visit(row, sum) once for each feature of the block.
    template <class Visit>
    __device__ __forceinline__ void each_sum(Visit visit) {
        const typename Grid::Place at;
#pragma unroll
        for (int t = 0; t < kSums; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (at.lane % 4 == 0) visit(feature(at, t, r), sums[t][2 * r]);
    }

    // S / z in 16 bits, `normalizer` being the shared address of z.
    __device__ __forceinline__ void store_averages(const SharedTile<kWidth, kWidth>& tile, uint32 normalizer) const {
        const typename Grid::Place at;
#pragma unroll
        for (int m = 0; m < Grid::kM; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = at.row_of(m, 2 * r);
                const float scale = inverse(load_shared_float(normalizer + 4 * row));
#pragma unroll
                for (int n = 0; n < Grid::kN; ++n)
                    store_shared_32(tile.address(row, at.column / 8 + n) + at.lane % 4 * 4,
                                    Element::pack(scale * values[m][n][2 * r], scale * values[m][n][2 * r + 1]));
            }
    }
};
