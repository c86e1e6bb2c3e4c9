// Flash attention, forward, in FlashAttention-2's loop order (Dao, arXiv 2307.08691): one block per tile of query rows
// and head, key tiles from the last visible to the first. O and the log-sum-exp of Q [heads, seq_q, HEAD_DIM] and
// K, V [heads / group, seq_kv, HEAD_DIM].
//
// STAGES 1: one buffer each for K and V; V is copied under S = Q K^T, the next K under the softmax and O += P V.
// STAGES 2 and more: rings of K and V; the tile STAGES - 1 ahead is copied under a whole step, one barrier a step.
#include "band.cuh"
#include "flash_tile.cuh"
#include "launch_order.cuh"

constexpr int kHeadDim = HEAD_DIM, kRows = BLOCK_M, kKeys = BLOCK_N, kWarps = WARPS, kStages = STAGES;
constexpr int kThreads = kWarps * kWarp;
static_assert(kRows % (16 * kWarps) == 0, "a warp takes whole fragments of 16 rows");
static_assert(kKeys % 16 == 0, "a slab of P is 16 keys");
static_assert(kStages >= 1, "K and V need a buffer each");

using Warp = FlashWarp<kHeadDim, kRows / (16 * kWarps), kKeys>;
using QTile = SharedTile<kRows, kHeadDim>;
using KeyTile = SharedTile<kKeys, kHeadDim>;

// What a block works on, apart from what it has in registers. Key tile t is in buffers number t % kStages.
struct Block {
    uint32 shared;  // Q, then kStages buffers of K, then kStages of V
    const Element* k;
    const Element* v;
    Band band;
    int kv_head, first_query, first_tile;
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
    warp.scores(block.q(), row, block.k_tile(tile), lane);
    if (kStages == 1) {
        cp_async_wait<0>();
        __syncthreads();  // V has landed, and everyone is done with K
        if (tile > block.first_tile) block.load_k<true>(tile - 1, thread);
        cp_async_commit();
    }
    if (kMasked) {
        const Band& band = block.band;
        const int query = block.first_query + row, key = tile * kKeys;
        if (key < band.begin(query + Warp::kRows - 1) || key + kKeys > band.end(query))  // not for all rows of the warp
            warp.hide([&](int i, int j) { return key + j >= band.begin(query + i) && key + j < band.end(query + i); },
                      lane);
    }
    warp.template softmax_and_output<kMasked>(block.v_tile(tile), block.scale_log2, lane);
}

// Everything that the queries of a row tile see.
__device__ __forceinline__ void attend(Warp& warp, const Element* q, Block block, int last_query, int head, int seq_q) {
    const Band& band = block.band;
    const int begin = band.begin(block.first_query), end = band.end(last_query);
    if (end <= begin) return;
    const int last_tile = (end - 1) / kKeys;
    block.first_tile = begin / kKeys;
    // Tiles whole_begin to whole_end - 1 are seen whole by every query.
    int whole_begin = (band.begin(last_query) + kKeys - 1) / kKeys;
    int whole_end = max(0, band.end(block.first_query)) / kKeys;
    if (whole_begin >= whole_end) whole_begin = whole_end = block.first_tile;

    block.q().load_async<kThreads>(q + (int64(head) * seq_q + block.first_query) * kHeadDim, kHeadDim,
                                   last_query - block.first_query + 1, threadIdx.x);
    fill(block, last_tile, threadIdx.x);
    // Masked tiles at the far end, whole ones, masked ones at the near end.
    for (int tile = last_tile; tile >= block.first_tile;) {
        const int masked_until = tile >= whole_end ? whole_end : block.first_tile;
        for (; tile >= masked_until; --tile) visit<true>(warp, block, tile);
        for (; tile >= whole_begin; --tile) visit<false>(warp, block, tile);
    }
}

// The 1 keeps the assembler from saving registers for blocks that shared memory has no room for.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash_forward(const Element* q, const Element* k, const Element* v, Element* o, float* lse, int seq_q, int seq_kv,
                  int heads, int group, int left, int right, int section, float scale_log2) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32 base = shared_address(shared);
    const int row_tiles = (seq_q + kRows - 1) / kRows;
    Warp warp;
    warp.clear();
    {
        const Position at(blockIdx.x, row_tiles, heads, section);
        const Band band{seq_kv, seq_kv - seq_q, left, right};
        const int first_query = at.row_tile * kRows, last_query = min(first_query + kRows, seq_q) - 1;
        const Block block{base, k, v, band, at.head / group, first_query, 0, scale_log2};
        attend(warp, q, block, last_query, at.head, seq_q);
    }
    // Found out again: it would have held registers all the while.
    const Position at(opaque(int(blockIdx.x)), row_tiles, heads, section);
    const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * Warp::kRows;
    const int query = at.row_tile * kRows + row;
    const int64 offset = int64(at.head) * seq_q + query;
    float row_lse[Warp::kRows / 16][2];
    warp.normalise(row_lse, scale_log2);
    warp.store_lse(row_lse, lse + offset, seq_q - query, lane);
    warp.store_output(QTile{base}, row, o + offset * kHeadDim, seq_q - query, lane);
}
