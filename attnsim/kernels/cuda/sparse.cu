// Block-sparse flash attention, forward: flash.cu over a list of visible tiles in place of a band.
//
// One block per tile of query rows and head. Its key tiles come from a list, from the last to the first; each is seen
// whole, or hidden in part by a bit mask that is copied beside K and V. All heads share the list. O and the log-sum-exp of
// Q [heads, seq_q, HEAD_DIM] and K, V [heads / group, seq_kv, HEAD_DIM].
//
// STAGES 1: one buffer each for K and V; V is copied under S = Q K^T, the next K under the softmax and O += P V.
// STAGES 2 and more: rings of K, V and bit masks; the tile STAGES - 1 ahead is copied under a whole step.
#include "flash_tile.cuh"

constexpr int kHeadDim = HEAD_DIM, kRows = BLOCK_M, kKeys = BLOCK_N, kWarps = WARPS, kStages = STAGES;
constexpr int kThreads = kWarps * kWarp;
static_assert(kRows % (16 * kWarps) == 0, "a warp takes whole fragments of 16 rows");
static_assert(kKeys % 32 == 0, "a row of a bit mask is whole words");
static_assert(kWarps >= 2, "two refills are fetched to begin with, one visit a thread");
constexpr int kRefill = 32;  // visits of the list that are fetched at a time
static_assert(kStages >= 1 && kStages <= kRefill, "K and V need a buffer each, and the list runs ahead of them");

using Warp = FlashWarp<kHeadDim, kRows / (16 * kWarps), kKeys>;
using QTile = SharedTile<kRows, kHeadDim>;
using KeyTile = SharedTile<kKeys, kHeadDim>;

// One tile of the list: `pattern` is the number of its bit mask, or negative where every row sees it whole.
struct __align__(8) Visit {
    int key_tile, pattern;
};

// A row tile's place in the list, as the launch order stores it: 16 bytes, read at once.
struct __align__(16) RowTile {
    int number, first_visit, end_visit, unused;
};

// Bit b of word c of a row: whether it sees key 32 c + b of the tile.
struct BitMask {
    static constexpr int kWords = kKeys / 32;
    static constexpr int kBytes = kRows * kWords * 4;
    static constexpr int kPieces = kBytes / 16;

    const uint32* words;  // in shared memory

    __device__ __forceinline__ void load_async(const uint32* source, int thread) const {
        const uint32 target = shared_address(words);
#pragma unroll
        for (int i = 0; i < (kPieces + kThreads - 1) / kThreads; ++i) {
            const int piece = i * kThreads + thread;
            if (kPieces % kThreads == 0 || piece < kPieces) cp_async_16(target + piece * 16, source + piece * 4);
        }
    }

    // Scores of unseen pairs become -inf. `first` is the warp's first row.
    __device__ __forceinline__ void hide(Warp& warp, int first, int lane) const {
#pragma unroll
        for (int m = 0; m < Warp::kRows / 16; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = first + 16 * m + lane / 4 + 8 * r;
#pragma unroll
                for (int c = 0; c < kWords; ++c) {
                    const uint32 word = words[row * kWords + c] >> (lane % 4 * 2);
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        float(&s)[4] = warp.s[m][4 * c + n];
                        if (!(word >> (8 * n) & 1)) s[2 * r] = negative_infinity();
                        if (!(word >> (8 * n) & 2)) s[2 * r + 1] = negative_infinity();
                    }
                }
            }
    }
};

// Shared memory: Q; rings of K, V and bit masks; two refills of the list, and before them the row tile.
extern __shared__ __align__(128) unsigned char shared[];
constexpr int kListed = 2 * kRefill;
constexpr int kMasksAt = QTile::kBytes + 2 * kStages * KeyTile::kBytes;
constexpr int kListAt = kMasksAt + kStages * BitMask::kBytes;

__device__ __forceinline__ QTile q_tile() { return {shared_address(shared)}; }
__device__ __forceinline__ KeyTile k_tile(int slot) {
    return {shared_address(shared) + QTile::kBytes + slot * KeyTile::kBytes};
}
__device__ __forceinline__ KeyTile v_tile(int slot) { return k_tile(kStages + slot); }
__device__ __forceinline__ BitMask bit_mask(int slot) {
    return {reinterpret_cast<const uint32*>(shared + kMasksAt + slot * BitMask::kBytes)};
}
__device__ __forceinline__ Visit& listed(int number) {
    return reinterpret_cast<Visit*>(shared + kListAt)[number % kListed];
}
__device__ __forceinline__ RowTile& row_tile() { return *reinterpret_cast<RowTile*>(shared + kListAt); }

// What a block works on, apart from what it has in registers. Its visits are counted from 0; visit n is in buffers number
// n % kStages.
struct Block {
    const Element* k;
    const Element* v;
    const Visit* list;
    const uint32* masks;
    int kv_head, first_visit, visits, seq_kv, thread;
    float scale_log2;

    // Visits `begin` to `begin + count` of the list, one a thread; there after the next barrier.
    __device__ __forceinline__ void refill(int begin, int count) const {
        const int number = begin + thread;
        if (thread < count && number < visits) listed(number) = list[first_visit + number];
    }
    // kWhole: the tile is not the last, shorter one.
    template <bool kWhole>
    __device__ __forceinline__ void load_k(int number) const {
        load<kWhole>(k_tile(number % kStages), k, listed(number).key_tile);
    }
    template <bool kWhole>
    __device__ __forceinline__ void load_v(int number) const {
        load<kWhole>(v_tile(number % kStages), v, listed(number).key_tile);
    }
    __device__ __forceinline__ void load_mask(int number) const {
        const int pattern = listed(number).pattern;
        if (pattern >= 0)
            bit_mask(number % kStages).load_async(masks + int64(pattern) * kRows * BitMask::kWords, opaque(thread));
    }

  private:
    template <bool kWhole>
    __device__ __forceinline__ void load(const KeyTile& target, const Element* source, int key_tile) const {
        const int64 row = int64(opaque(kv_head)) * seq_kv + key_tile * kKeys;
        target.load_async<kThreads, kWhole>(source + row * kHeadDim, kHeadDim, seq_kv - key_tile * kKeys,
                                            opaque(thread));
    }
};

// The copies that are in flight when the first step begins.
__device__ __forceinline__ void fill(const Block& block) {
#pragma unroll
    for (int ahead = 0; ahead < (kStages == 1 ? 1 : kStages - 1); ++ahead) {
        if (ahead < block.visits) {
            block.load_k<false>(ahead);
            if (kStages > 1) {
                block.load_v<false>(ahead);
                block.load_mask(ahead);
            }
        }
        cp_async_commit();
    }
}

// One key tile. Only the first of a block may be the shorter one, and it has a bit mask then: copies ahead are whole.
template <bool kMasked>
__device__ __forceinline__ void step(Warp& warp, const Block& block, int number) {
    const int lane = block.thread % kWarp, row = block.thread / kWarp * Warp::kRows, slot = number % kStages;
    cp_async_wait<kStages == 1 ? 0 : kStages - 2>();
    __syncthreads();  // the tile has landed for everyone, and everyone is done with the tile before it
    if (number > 0 && number % kRefill == 0) block.refill(number + kRefill, kRefill);
    if (kStages == 1) {
        block.load_v<!kMasked>(number);
        if (kMasked) block.load_mask(number);
    } else if (number + kStages - 1 < block.visits) {
        block.load_k<true>(number + kStages - 1);
        block.load_v<true>(number + kStages - 1);
        block.load_mask(number + kStages - 1);
    }
    cp_async_commit();
    warp.template scores<false>(q_tile(), row, k_tile(slot), lane);
    if (kStages == 1) {
        cp_async_wait<0>();
        __syncthreads();  // V and the bit mask have landed, and everyone is done with K
        if (number + 1 < block.visits) block.load_k<true>(number + 1);
        cp_async_commit();
    }
    if (kMasked) bit_mask(slot).hide(warp, row, lane);
    warp.template add_tile<kMasked>(v_tile(slot), block.scale_log2, lane);
}

// Place of a block in the launch order, and its head: within sections of so many heads, heads change fastest.
struct Place {
    int row_tile, head;

    __device__ __forceinline__ Place(int block, int row_tiles, int heads, int section) {
        const int first = block / (row_tiles * section) * section;
        const int here = min(section, heads - first), place = block - first * row_tiles;
        row_tile = place / here;
        head = first + place % here;
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, RESIDENTS)
    sparse_forward(const Element* q, const Element* k, const Element* v, const RowTile* order, const Visit* list,
                   const uint32* masks, Element* o, float* lse, int seq_q, int seq_kv, int heads, int group, int section,
                   float scale_log2) {
    const int thread = threadIdx.x, row_tiles = (seq_q + kRows - 1) / kRows;
    Warp warp;
    warp.clear();
    int first_query;
    {
        const Place at(blockIdx.x, row_tiles, heads, section);
        if (thread == 0) row_tile() = order[at.row_tile];
        __syncthreads();
        const RowTile tile = row_tile();
        __syncthreads();  // the list takes its place
        first_query = tile.number * kRows;
        const int visits = tile.end_visit - tile.first_visit;
        const Block block{k, v, list, masks, at.head / group, tile.first_visit, visits, seq_kv, thread, scale_log2};
        if (visits > 0) {
            block.refill(0, kListed);
            q_tile().load_async<kThreads>(q + (int64(at.head) * seq_q + first_query) * kHeadDim, kHeadDim,
                                          seq_q - first_query, thread);
            __syncthreads();  // the list is there
            fill(block);
        }
        for (int number = 0; number < visits; ++number) {
            if (listed(number).pattern >= 0) {
                step<true>(warp, block, number);
            } else {
                step<false>(warp, block, number);
            }
        }
    }
    // Found out again: it would have held registers all the while.
    const Place at(opaque(int(blockIdx.x)), row_tiles, heads, section);
    const int lane = thread % kWarp, row = thread / kWarp * Warp::kRows;
    const int query = first_query + row;
    const int64 offset = int64(at.head) * seq_q + query;
    float row_lse[Warp::kRows / 16][2];
    warp.normalise(row_lse, scale_log2);
    warp.store_lse(row_lse, lse + offset, seq_q - query, lane);
    warp.store_output(q_tile(), row, o + offset * kHeadDim, seq_q - query, lane);
}
