// The key loop of flash attention over a band, for a `Warp` that the including file names: a FlashWarp, or one that
// weighs scores otherwise. Key tiles go from the last visible to the first.
//
// STAGES 1: one buffer each for K and V; V is copied under S = Q K^T, the next K under the softmax and O += P V.
// STAGES 2 and more: rings of K and V; the tile STAGES - 1 ahead is copied under a whole step, one barrier a step.
#pragma once
#include "band.cuh"
#include "launch_order.cuh"

constexpr int kHeadDim = HEAD_DIM, kRows = BLOCK_M, kKeys = BLOCK_N, kWarps = WARPS, kStages = STAGES;
constexpr int kThreads = kWarps * kWarp;
static_assert(kRows % (16 * kWarps) == 0, "a warp takes whole fragments of 16 rows");
static_assert(kKeys % 16 == 0, "a slab of P is 16 keys");
static_assert(kStages >= 1, "K and V need a buffer each");
// Blocks that the registers of an SM must hold: of 64 rows about as many as shared memory has room for. Of taller ones the
// accumulators would be spilled, and the 1 keeps the assembler from saving registers.
constexpr int kResidents = kRows > 64 || kHeadDim > 128 ? 1 : kHeadDim > 64 && kWarps == 4 ? 3 : 4;

using QTile = SharedTile<kRows, kHeadDim>;
using KeyTile = SharedTile<kKeys, kHeadDim>;

// What a block works on, apart from what it has in registers. Key tile t is in buffers number t % kStages.
struct Block {
    uint32 shared;  // Q, then kStages buffers of K, then kStages of V
    const Element* k;
    const Element* v;
    Band band;
    int kv_head, first_tile;
    int diagonal;  // key on the diagonal of the first query; the band counts from there
    float scale_log2;

    __device__ __forceinline__ QTile q() const { return {shared}; }
    __device__ __forceinline__ KeyTile k_tile(int tile) const {
        return {shared + QTile::kBytes + tile % kStages * KeyTile::kBytes};
    }
    __device__ __forceinline__ KeyTile v_tile(int tile) const {
        return {k_tile(tile).base + kStages * KeyTile::kBytes};
    }
    template <bool kWhole>
    __device__ __forceinline__ void load_k(int tile, int thread) const {
        load<kWhole>(k_tile(tile), k, tile, thread);
    }
    template <bool kWhole>
    __device__ __forceinline__ void load_v(int tile, int thread) const {
        load<kWhole>(v_tile(tile), v, tile, thread);
    }

  private:
    // kWhole: the tile is not the last, shorter one.
    template <bool kWhole>
    __device__ __forceinline__ void load(const KeyTile& target, const Element* source, int tile, int thread) const {
        const int64 row = int64(opaque(kv_head)) * band.seq_kv + tile * kKeys;
        target.load_async<kThreads, kWhole>(source + row * kHeadDim, kHeadDim, band.seq_kv - tile * kKeys, thread);
    }
};

// The copies that are in flight when the first step begins.
__device__ __forceinline__ void fill(const Block& block, int last_tile, int thread) {
#pragma unroll
    for (int ahead = 0; ahead < (kStages == 1 ? 1 : kStages - 1); ++ahead) {
        const int tile = last_tile - ahead;
        if (tile >= block.first_tile) {
            block.load_k<false>(tile, thread);
            if (kStages > 1) block.load_v<false>(tile, thread);
        }
        cp_async_commit();
    }
}

// One key tile. Only the first of a block may be the shorter one, and it is masked then: copies ahead are whole.
template <bool kMasked>
__device__ __forceinline__ void visit(Warp& warp, const Block& block, int tile) {
    const int thread = opaque(int(threadIdx.x)), lane = thread % kWarp, row = thread / kWarp * Warp::kRows;
    cp_async_wait<kStages == 1 ? 0 : kStages - 2>();
    __syncthreads();  // the tile has landed for everyone, and everyone is done with the tile before it
    if (kStages == 1) {
        block.load_v<!kMasked>(tile, thread);
    } else if (tile - (kStages - 1) >= block.first_tile) {
        block.load_k<true>(tile - (kStages - 1), thread);
        block.load_v<true>(tile - (kStages - 1), thread);
    }
    cp_async_commit();
    warp.template scores<!kMasked && Warp::kAhead>(block.q(), row, block.k_tile(tile), lane);
    if (kStages == 1) {
        cp_async_wait<0>();
        __syncthreads();  // V has landed, and everyone is done with K
        if (tile > block.first_tile) block.load_k<true>(tile - 1, thread);
        cp_async_commit();
    }
    if (kMasked) {
        const Band& band = block.band;
        const int at = block.diagonal + row, key = tile * kKeys;
        const VisibleKeys to_all{band.begin(at + Warp::kRows - 1), band.end(at)};
        if (!to_all.all(key, kKeys)) warp.hide([&](int i, int j) { return band.keys(at + i)(key + j); }, lane);
    }
    warp.template add_tile<kMasked>(block.v_tile(tile), block.scale_log2, lane);
}

__device__ __forceinline__ int row_tiles(int seq_q) { return (seq_q + kRows - 1) / kRows; }

// All that the `rows` queries at `q`, those of the block, see.
__device__ __forceinline__ void attend(Warp& warp, const Element* q, Block block, int rows) {
    const Band& band = block.band;
    const int last = block.diagonal + rows - 1, begin = band.begin(block.diagonal), end = band.end(last);
    if (end <= begin) return;
    const int last_tile = (end - 1) / kKeys;
    block.first_tile = begin / kKeys;
    // Tiles whole_begin to whole_end - 1 are seen whole by every query.
    int whole_begin = (band.begin(last) + kKeys - 1) / kKeys, whole_end = max(0, band.end(block.diagonal)) / kKeys;
    if (whole_begin >= whole_end) whole_begin = whole_end = block.first_tile;

    block.q().load_async<kThreads>(q, kHeadDim, rows, threadIdx.x);
    fill(block, last_tile, threadIdx.x);
    // Masked tiles at the far end, whole ones, masked ones at the near end.
    int tile = last_tile;
    for (; tile >= whole_end; --tile) visit<true>(warp, block, tile);
    for (; tile >= whole_begin; --tile) visit<false>(warp, block, tile);
    for (; tile >= block.first_tile; --tile) visit<true>(warp, block, tile);
}
