// A tile of 16-bit elements in shared memory, and the warp's fragments of it.
//
// Rows are kColumns elements; the 16-byte pieces of a row are permuted by XOR with the row number modulo 8, so that
// the eight rows of an 8 x 8 matrix lie in eight different groups of four banks: ldmatrix and cp.async then run
// without bank conflicts and without padding.
#pragma once
#include "element.cuh"

template <int kRows_, int kColumns_>
struct SharedTile {
    static constexpr int kRows = kRows_;
    static constexpr int kColumns = kColumns_;
    static constexpr int kPieces = kColumns / 8;  // 16-byte pieces of a row
    static constexpr int kBytes = kRows * kColumns * 2;
    static_assert(kColumns % 64 == 0, "the permutation needs at least eight pieces a row");

    uint32 base;  // address in the shared window, 128-byte aligned

    __device__ __forceinline__ uint32 address(int row, int piece) const {
        return base + row * (kColumns * 2) + ((piece ^ (row & 7)) << 4);
    }

    // Address of 16-byte piece `piece`, 0 or 1, of the 16 columns from `column` on, in row `lane_row` after row `row`.
    // `row` is a multiple of 8 and `column` of 16, so that the lane's share is one value for the whole tile and the rest,
    // after unrolling, an XOR and an immediate offset.
    __device__ __forceinline__ uint32 lane_address(int row, int column, int lane_row, int piece) const {
        const uint32 lane_base = base + lane_row * (kColumns * 2) + ((piece ^ (lane_row & 7)) << 4);
        return (lane_base ^ (column % 64 * 2)) + column / 64 * 128 + row * (kColumns * 2);
    }

    // Starts copying `valid` rows of a row-major matrix whose rows are `stride` elements apart; the rest become zero.
    // kWhole: all rows are valid.
    template <int kThreads, bool kWhole = false>
    __device__ __forceinline__ void load_async(const Element* source, int64 stride, int valid, int thread) const {
        constexpr int kRowsAtOnce = kThreads / kPieces;
        static_assert(kThreads % kPieces == 0 && (kRowsAtOnce & (kRowsAtOnce - 1)) == 0, "rows do not change threads");
        const int first = thread / kPieces, piece = thread % kPieces;
        const uint32 target = address(first, piece);
        source += first * stride + piece * 8;
#pragma unroll
        for (int row = 0; row < kRows; row += kRowsAtOnce) {
            if (kRows % kRowsAtOnce == 0 || first + row < kRows) {
                const uint32 here = (target ^ ((row & 7) << 4)) + row * (kColumns * 2);  // first + row has no carries
                cp_async_16(here, source + row * stride, kWhole || first + row < valid);
            }
        }
    }

    // A of mma.m16n8k16: rows row..row+15, columns column..column+15.
    __device__ __forceinline__ void fragment_a(uint32 (&a)[4], int row, int column, int lane) const {
        ldmatrix_x4(a, lane_address(row, column, lane & 15, lane >> 4));
    }

    // B = (rows of this tile)^T, for S = Q K^T: columns n of B are rows row..row+15, its k are columns
    // column..column+15. b[0], b[1] belong to the first eight n, b[2], b[3] to the next.
    __device__ __forceinline__ void fragment_b_rows(uint32 (&b)[4], int row, int column, int lane) const {
        ldmatrix_x4(b, lane_address(row, column, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1));
    }

    // B = this tile, for O = P V: its k are rows row..row+15, its n are columns column..column+15.
    __device__ __forceinline__ void fragment_b_columns(uint32 (&b)[4], int row, int column, int lane) const {
        ldmatrix_x4_trans(b, lane_address(row, column, lane & 15, lane >> 4));
    }

    // A = (this tile)^T, for dV = P^T dO and phi(K)^T V: rows m of A are columns column..column+15, its k are rows
    // row..row+15.
    __device__ __forceinline__ void fragment_a_transposed(uint32 (&a)[4], int row, int column, int lane) const {
        ldmatrix_x4_trans(a, lane_address(row, column, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1));
    }
};
