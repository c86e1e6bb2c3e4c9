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

    // Starts copying `valid` rows of a row-major matrix whose rows are `stride` elements apart; the rest become zero.
    template <int kThreads>
    __device__ __forceinline__ void load_async(const Element* source, int64 stride, int valid, int thread) const {
        constexpr int kTotal = kRows * kPieces;
#pragma unroll
        for (int i = 0; i < (kTotal + kThreads - 1) / kThreads; ++i) {
            const int index = i * kThreads + thread;
            if (kTotal % kThreads == 0 || index < kTotal) {
                const int row = index / kPieces, piece = index % kPieces;
                const bool inside = row < valid;
                cp_async_16(address(row, piece), source + (inside ? row * stride : 0) + piece * 8, inside);
            }
        }
    }

    // A of mma.m16n8k16: rows row..row+15, columns column..column+15.
    __device__ __forceinline__ void fragment_a(uint32 (&a)[4], int row, int column, int lane) const {
        ldmatrix_x4(a, address(row + (lane & 15), column / 8 + (lane >> 4)));
    }

    // B = (rows of this tile)^T, for S = Q K^T: columns n of B are rows row..row+15, its k are columns
    // column..column+15. b[0], b[1] belong to the first eight n, b[2], b[3] to the next.
    __device__ __forceinline__ void fragment_b_rows(uint32 (&b)[4], int row, int column, int lane) const {
        ldmatrix_x4(b, address(row + (lane & 7) + ((lane >> 4) << 3), column / 8 + ((lane >> 3) & 1)));
    }

    // B = this tile, for O = P V: its k are rows row..row+15, its n are columns column..column+15.
    __device__ __forceinline__ void fragment_b_columns(uint32 (&b)[4], int row, int column, int lane) const {
        ldmatrix_x4_trans(b, address(row + (lane & 15), column / 8 + (lane >> 4)));
    }

    // A = (this tile)^T, for dV = P^T dO and phi(K)^T V: rows m of A are columns column..column+15, its k are rows
    // row..row+15.
    __device__ __forceinline__ void fragment_a_transposed(uint32 (&a)[4], int row, int column, int lane) const {
        ldmatrix_x4_trans(a, address(row + (lane & 7) + ((lane >> 4) << 3), column / 8 + ((lane >> 3) & 1)));
    }
};
