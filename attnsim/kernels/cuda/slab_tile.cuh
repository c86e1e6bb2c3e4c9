// A tile of 16-bit elements as the tensor copy engine leaves it and wgmma reads it: slabs of 64 columns one after the
// other, 128 bytes a row, the eight 16-byte pieces of a row permuted by XOR with the row number modulo 8 (the 128-byte
// swizzle; PTX ISA 9.0, "Swizzling Modes").
#pragma once
#include "hopper.cuh"
#include "wgmma.cuh"

template <int kRows_, int kColumns_>
struct SlabTile {
    static constexpr int kRows = kRows_;
    static constexpr int kColumns = kColumns_;
    static constexpr int kSlabs = kColumns / 64;
    static constexpr uint32 kSlabBytes = kRows * 128;
    static constexpr uint32 kBytes = kSlabs * kSlabBytes;
    static_assert(kColumns % 64 == 0 && kRows % 8 == 0, "the swizzle repeats every eight rows of 128 bytes");

    uint32 base;  // address in the shared window, 1024-byte aligned

    // Address of the 16 bytes that hold columns 8 piece to 8 piece + 7 of a row.
    __device__ __forceinline__ uint32 address(int row, int piece) const {
        return base + piece / 8 * kSlabBytes + row * 128 + (((piece ^ row) & 7) << 4);
    }

    // Starts copying the rows from `row` on of one head; the barrier's phase ends when all have come.
    __device__ __forceinline__ void load(const TensorMap& map, uint32 barrier, int row, int head) const {
        mbarrier_arrive_expect(barrier, kBytes);
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
            tensor_copy(base + slab * kSlabBytes, map, barrier, slab * 64, row, head);
    }

    // An operand whose k runs along the columns: rows from `row`, a multiple of 8, on; k from 16 step to 16 step + 15.
    // Groups of eight rows are 1024 bytes apart; the other stride means nothing here.
    __device__ __forceinline__ uint64 along_columns(int row, int step) const {
        return matrix_descriptor(base, step / 4 * kSlabBytes + row * 128 + step % 4 * 32, 16, 1024);
    }

    // An operand whose k runs along the rows, of all columns: k from 16 step to 16 step + 15. Groups of eight k are
    // 1024 bytes apart, groups of 64 columns a slab.
    __device__ __forceinline__ uint64 along_rows(int step) const {
        return matrix_descriptor(base, step * 2048, kSlabBytes, 1024);
    }
};
