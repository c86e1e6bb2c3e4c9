// One C tile of a row-major GEMM on the tensor cores: BLOCK_M x BLOCK_N in the fp32 registers of WARPS warps, the
// operands passing through STAGES buffers of shared memory, BLOCK_K deep each, filled by cp.async.
//
// Only elements that exist are read: cp.async takes the number of bytes and writes zeros for the rest, so that ragged
// edges need no code in the loop over k.
#pragma once
#include "piece.cuh"
#include "tile.cuh"

constexpr int kThreads = WARPS * kWarp;
constexpr int kWarpM = BLOCK_M / 2, kWarpN = BLOCK_N / (WARPS / 2);  // warps in a grid of two rows
constexpr int kTilesM = kWarpM / 16, kTilesN = kWarpN / 8;           // mma tiles of a warp
static_assert(BLOCK_K == 32, "the panel's permutation is made for rows of four 16-byte pieces");
static_assert(WARPS % 2 == 0 && kWarpM % 16 == 0 && kWarpN % 16 == 0, "a warp multiplies tiles of 16 x 16");
static_assert(STAGES >= 2, "one buffer is read while another is filled");

using Accumulator = float[kTilesM][kTilesN][4];

// The part of a row-major matrix from a tile's corner on: `rows` x `columns` of it exist.
struct Matrix {
    const Element* corner;
    int64 stride;
    int rows, columns;
};

// kRows x BLOCK_K of a matrix whose rows run along k, in shared memory. Two rows share 128 bytes, so the row number
// over two, modulo 4, permutes the pieces: the eight rows of an 8 x 8 matrix then lie in different groups of banks.
template <int kRows>
struct Panel {
    static constexpr int kPieces = BLOCK_K / kPieceElements;
    static constexpr int kBytes = kRows * BLOCK_K * 2;

    uint32 base;

    __device__ __forceinline__ uint32 address(int row, int piece) const {
        return base + row * (BLOCK_K * 2) + ((piece ^ (row >> 1 & 3)) << 4);
    }

    // Starts copying columns k .. k + BLOCK_K of all rows. A thread copies the same piece of every kStep-th row.
    __device__ __forceinline__ void load_async(const Matrix& source, int k, int thread) const {
        constexpr int kStep = kThreads / kPieces;
        static_assert(kRows % kStep == 0 && kStep % 8 == 0, "every thread copies as much, with one permutation");
        const int first = thread / kPieces, piece = thread % kPieces, column = k + piece * kPieceElements;
        const int bytes = min(max(source.columns - column, 0), kPieceElements) * 2;
        const Element* from = source.corner + first * source.stride + column;
        const uint32 to = address(first, piece);
#pragma unroll
        for (int i = 0; i < kRows / kStep; ++i) {
            const bool exists = first + i * kStep < source.rows;
            cp_async_up_to_16(to + i * kStep * BLOCK_K * 2, from + i * kStep * source.stride, exists ? bytes : 0);
        }
    }

    // A of mma.m16n8k16: rows row..row+15, columns column..column+15.
    __device__ __forceinline__ void fragment_a(uint32 (&a)[4], int row, int column, int lane) const {
        ldmatrix_x4(a, address(row + (lane & 15), column / 8 + (lane >> 4)));
    }

    // B = (rows of this panel)^T; b[0], b[1] belong to rows row..row+7, b[2], b[3] to the next eight.
    __device__ __forceinline__ void fragment_b_rows(uint32 (&b)[4], int row, int column, int lane) const {
        ldmatrix_x4(b, address(row + (lane & 7) + ((lane >> 4) << 3), column / 8 + ((lane >> 3) & 1)));
    }
};

// The right operand as its transpose lies in memory: rows of `source` are columns of B, as K's are in Q K^T.
struct TransposedB {
    using Tile = Panel<BLOCK_N>;

    static __device__ __forceinline__ void load_async(const Tile& tile, const Matrix& source, int k, int thread) {
        tile.load_async(source, k, thread);
    }
    static __device__ __forceinline__ void fragment(uint32 (&b)[4], const Tile& tile, int column, int k, int lane) {
        tile.fragment_b_rows(b, column, k, lane);
    }
};

// The right operand as it lies in memory, V in P V. All BLOCK_N columns exist.
struct PlainB {
    using Tile = SharedTile<BLOCK_K, BLOCK_N>;

    static __device__ __forceinline__ void load_async(const Tile& tile, const Matrix& source, int k, int thread) {
        tile.load_async<kThreads>(source.corner + k * source.stride, source.stride, source.rows - k, thread);
    }
    static __device__ __forceinline__ void fragment(uint32 (&b)[4], const Tile& tile, int column, int k, int lane) {
        tile.fragment_b_columns(b, k, column, lane);
    }
};

// C tile = A B over `depth` columns of A.
template <class B>
struct Gemm {
    using TileA = Panel<BLOCK_M>;
    using TileB = typename B::Tile;
    using TileC = SharedTile<BLOCK_M, BLOCK_N>;
    static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
    static_assert(TileC::kBytes <= STAGES * kStageBytes, "C leaves through the operands' buffers");

    uint32 shared;
    int thread, lane, row, column;  // row and column: corner of the warp's part of the tile

    __device__ __forceinline__ explicit Gemm(uint32 shared_memory)
        : shared(shared_memory),
          thread(threadIdx.x),
          lane(thread % kWarp),
          row(thread / kWarp % 2 * kWarpM),
          column(thread / kWarp / 2 * kWarpN) {}

    __device__ __forceinline__ TileA tile_a(int stage) const { return {shared + stage * kStageBytes}; }
    __device__ __forceinline__ TileB tile_b(int stage) const { return {shared + stage * kStageBytes + TileA::kBytes}; }

    __device__ __forceinline__ void load_async(const Matrix& a, const Matrix& b, int stage, int k) const {
        tile_a(stage).load_async(a, k, thread);
        B::load_async(tile_b(stage), b, k, thread);
    }

    __device__ __forceinline__ void step(Accumulator& c, int stage) const {
        const TileA tile_of_a = tile_a(stage);
        const TileB tile_of_b = tile_b(stage);
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += 16) {
            uint32 a[kTilesM][4], b[kTilesN / 2][4];
#pragma unroll
            for (int i = 0; i < kTilesM; ++i) tile_of_a.fragment_a(a[i], row + 16 * i, k, lane);
#pragma unroll
            for (int j = 0; j < kTilesN / 2; ++j) B::fragment(b[j], tile_of_b, column + 16 * j, k, lane);
#pragma unroll
            for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
                for (int j = 0; j < kTilesN; ++j) {
                    const uint32* half = &b[j / 2][j % 2 * 2];
                    Element::mma(c[i][j], a[i], half[0], half[1]);
                }
            }
        }
    }

    __device__ __forceinline__ void multiply(Accumulator& c, const Matrix& a, const Matrix& b, int depth) const {
        const int steps = (depth + BLOCK_K - 1) / BLOCK_K;
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            if (stage < steps) load_async(a, b, stage, stage * BLOCK_K);
            cp_async_commit();
        }
        for (int i = 0, stage = 0, last = STAGES - 1; i < steps; ++i) {
            // All buffers are filled ahead; from the second step on, the one just used up is not yet refilled.
            if (i == 0) {
                cp_async_wait<STAGES - 1>();
            } else {
                cp_async_wait<STAGES - 2>();
            }
            __syncthreads();  // everybody's copies have landed, and everybody has left the last step's buffer
            if (i > 0) {
                const int refill = i - 1 + STAGES;
                if (refill < steps) load_async(a, b, last, refill * BLOCK_K);
                cp_async_commit();
            }
            step(c, stage);
            last = stage;
            stage = stage + 1 < STAGES ? stage + 1 : 0;
        }
        __syncthreads();  // the buffers are free for C
    }

    // Writes factor * C, rounded, to the `rows` x `columns` of a row-major matrix that exist from `corner` on. Through
    // shared memory, because a warp's fragments hold only 16 bytes of a row, half a sector.
    __device__ __forceinline__ void store(
        const Accumulator& c, float factor, Element* corner, int64 stride, int rows, int columns) const {
        const TileC tile{shared};
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
            for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int r = row + 16 * i + 8 * half + lane / 4, piece = column / 8 + j;
                    const uint32 pair = Element::pack(c[i][j][2 * half] * factor, c[i][j][2 * half + 1] * factor);
                    store_shared(tile.address(r, piece) + lane % 4 * 4, saturated(Element{}, pair));
                }
            }
        }
        __syncthreads();
#pragma unroll 4
        for (int index = thread; index < BLOCK_M * TileC::kPieces; index += kThreads) {
            const int r = index / TileC::kPieces, piece = index % TileC::kPieces, first = piece * kPieceElements;
            if (r < rows && first < columns) {
                Piece out;
                load_shared(out.pairs, tile.address(r, piece));
                out.store(corner + r * stride + first, columns - first);
            }
        }
    }
};
