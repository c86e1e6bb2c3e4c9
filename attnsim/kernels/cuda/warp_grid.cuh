// A product of two tiles in shared memory, its output shared out to the warps of a block as a grid of equal rectangles
// that stay in registers.
//
// Of an m16n8 accumulator, lane l holds rows l / 4 (elements 0, 1) and l / 4 + 8 (elements 2, 3) in columns
// 2 (l % 4) and 2 (l % 4) + 1 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
#pragma once
#include "tile.cuh"

// This thread's number in its block. The compiler cannot know that it gets the same answer each time: what follows from
// it is then computed where it is used, instead of being kept in registers throughout a loop.
__device__ __forceinline__ uint32 thread_here() {
    uint32 thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    __builtin_assume(thread < 1024);  // the most that a block may have
    return thread;
}

// How an operand lies in its tile: as it is multiplied, or as the transpose of that.
enum class Lies { kStraight, kTransposed };

// Where a lane reads the fragments of its warp's rectangle in a tile. What depends on the warp and the lane is one
// number; of the rest, whose columns add to it without carries, an XOR and an immediate offset are left.
template <class Tile>
struct LaneAddress {
    static constexpr int kRowBytes = Tile::kColumns * 2;

    uint32 origin;

    // `row` and `column` are where the rectangle begins, multiples of 8; `bytes` is where in its piece the lane reads.
    __device__ __forceinline__ LaneAddress(const Tile& tile, int row, int column, int lane_row, int piece,
                                           int bytes = 0)
        : origin(tile.base + (row + lane_row) * kRowBytes + column / 64 * 128 + bytes +
                 (((piece ^ (lane_row & 7)) << 4) ^ (column % 64 * 2))) {}

    __device__ __forceinline__ uint32 at(int row, int column) const {
        return (origin ^ (column % 64 * 2)) + column / 64 * 128 + row * kRowBytes;
    }
};

template <int kWarps_, int kRows_, int kColumns_>
struct WarpGrid {
    static constexpr int kWarps = kWarps_, kRows = kRows_, kColumns = kColumns_;

    // Warps down the rows. All warps side by side read the same rows of A, all warps one below another the same columns
    // of B: of the grids possible the one that reads the fewest operands from shared memory.
    static __device__ constexpr int choose_down() {
        int best = 0;
        for (int down = 1; down <= kWarps; down *= 2) {
            const bool fits = kRows % (16 * down) == 0 && kColumns % (16 * (kWarps / down)) == 0;
            if (fits && (best == 0 || reads(down) <= reads(best))) best = down;
        }
        return best;
    }
    static __device__ constexpr int reads(int down) { return kWarps / down * kRows + down * kColumns; }

    static constexpr int kDown = choose_down(), kAcross = kWarps / kDown;
    static_assert(kDown > 0, "the warps cannot share the output in rectangles of whole 16 x 16 tiles");
    static constexpr int kM = kRows / kDown / 16;      // m16n8 tiles down a warp's rectangle
    static constexpr int kN = kColumns / kAcross / 8;  // and across it
    static constexpr int kSize = kM * kN * 4;          // accumulators of a thread
    static_assert((kM & (kM - 1)) == 0 && (kN & (kN - 1)) == 0, "its columns add to its first without carries");

    using Accumulators = float[kM][kN][4];

    // Where this thread's warp has its rectangle, and which lane of it the thread is.
    struct Place {
        int row, column, lane;

        __device__ __forceinline__ Place() {
            const uint32 thread = thread_here();
            row = thread / kWarp / kAcross * (kRows / kDown);
            column = thread / kWarp % kAcross * (kColumns / kAcross);
            lane = thread % kWarp;
        }
        __device__ __forceinline__ int row_of(int m, int e) const { return row + 16 * m + lane / 4 + e / 2 * 8; }
        __device__ __forceinline__ int column_of(int n, int e) const { return column + 8 * n + lane % 4 * 2 + e % 2; }
    };

    // Calls visit(m, n, e, number) for each accumulator of the thread.
    template <class Visit>
    static __device__ __forceinline__ void each(Visit visit) {
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int n = 0; n < kN; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) visit(m, n, e, (m * kN + n) * 4 + e);
    }

    // Where a lane reads fragments of a rectangle that begins so far across the tile, else down it. The four matrices of
    // a fragment lie one below another first, or, kSwapped, side by side.
    template <bool kIsAcross, bool kSwapped, class Tile>
    static __device__ __forceinline__ LaneAddress<Tile> fragments(const Tile& tile, int begin, int lane) {
        const int lane_row = kSwapped ? (lane & 7) + ((lane >> 4) << 3) : lane & 15;
        const int piece = kSwapped ? (lane >> 3) & 1 : lane >> 4;
        return {tile, kIsAcross ? 0 : begin, kIsAcross ? begin : 0, lane_row, piece};
    }

    // C += A B over a depth of kDepth. Unrolled, the compiler reads operands while the products before them run: as far as
    // it has registers for them.
    template <int kDepth, Lies kA, Lies kB, int kUnrolled = kDepth / 16, class TileA, class TileB>
    static __device__ __forceinline__ void multiply(Accumulators& c, const TileA& a, const TileB& b) {
        const Place at;
        constexpr bool kTurnedA = kA == Lies::kTransposed, kTurnedB = kB == Lies::kTransposed;
        const auto of_a = fragments<kTurnedA, kTurnedA>(a, at.row, at.lane);
        const auto of_b = fragments<!kTurnedB, kTurnedB>(b, at.column, at.lane);
#pragma unroll kUnrolled
        for (int k = 0; k < kDepth; k += 16) {
            uint32 part_a[kM][4];
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                if constexpr (!kTurnedA)
                    ldmatrix_x4(part_a[m], of_a.at(16 * m, k));
                else
                    ldmatrix_x4_trans(part_a[m], of_a.at(k, 16 * m));
            }
#pragma unroll
            for (int n = 0; n < kN; n += 2) {
                uint32 part_b[4];
                if constexpr (!kTurnedB)
                    ldmatrix_x4_trans(part_b, of_b.at(k, 8 * n));
                else
                    ldmatrix_x4(part_b, of_b.at(8 * n, k));
#pragma unroll
                for (int m = 0; m < kM; ++m) {
                    Element::mma(c[m][n], part_a[m], part_b[0], part_b[1]);
                    Element::mma(c[m][n + 1], part_a[m], part_b[2], part_b[3]);
                }
            }
        }
    }

    // Numbers of the rows of this thread, from 32-bit numbers in shared memory: rows[m][e / 2] is accumulator (m, e)'s.
    static __device__ __forceinline__ void load_rows(float (&rows)[kM][2], uint32 numbers) {
        const Place at;
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) rows[m][r] = load_shared_float(numbers + 4 * at.row_of(m, 2 * r));
    }

    // Rounds scale * C to 16 bits, into a tile of the same shape.
    static __device__ __forceinline__ void store_rounded(const SharedTile<kRows, kColumns>& tile, const Accumulators& c,
                                                         float scale = 1.0f) {
        const Place at;
        const LaneAddress<SharedTile<kRows, kColumns>> pairs(tile, at.row, at.column, at.lane / 4, 0, at.lane % 4 * 4);
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int n = 0; n < kN; ++n)
#pragma unroll
                for (int e = 0; e < 4; e += 2)
                    store_shared_32(pairs.at(16 * m + 4 * e, 8 * n),
                                    Element::pack(scale * c[m][n][e], scale * c[m][n][e + 1]));
    }
};
