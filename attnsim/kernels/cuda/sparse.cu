// Block-sparse flash attention, forward: flash.cu over a list of visible tiles in place of a band.
//
// A block takes row tiles of heads one after the other, as a plan says that was made with the list: each row tile names
// the one that follows it on its block. Its key tiles come from a list, from the last to the first; each is seen whole,
// or hidden in part by a bit mask that is copied beside K and V. All heads share the list. O and the log-sum-exp of
// Q [heads, seq_q, HEAD_DIM] and K, V [heads / group, seq_kv, HEAD_DIM].
//
// STAGES 1: one buffer each for K and V; V is copied under S = Q K^T, the next K under the softmax and O += P V.
// STAGES 2: rings of K, V and bit masks; the next tile is copied under a whole step.
// Under the last step of a row tile what the next begins with is copied: its Q, K and list as soon as everyone has S, in
// a ring K, V and bit mask with the step, and Q and list, for which there are no registers before, while O is stored.
// What O is stored through is therefore the last tile of V, and not Q.
#include "flash_tile.cuh"

constexpr int kHeadDim = HEAD_DIM, kRows = BLOCK_M, kKeys = BLOCK_N, kWarps = WARPS, kStages = STAGES;
constexpr int kThreads = kWarps * kWarp;
static_assert(kRows % (16 * kWarps) == 0, "a warp takes whole fragments of 16 rows");
static_assert(kKeys % 32 == 0, "a row of a bit mask is whole words");
constexpr int kRefill = 16;  // visits of the list that are fetched at a time
static_assert(kStages == 1 || kStages == 2, "what is copied has landed a step later");

using Warp = FlashWarp<kHeadDim, kRows / (16 * kWarps), kKeys>;
using QTile = SharedTile<kRows, kHeadDim>;
using KeyTile = SharedTile<kKeys, kHeadDim>;

// One tile of the list: `pattern` is the number of its bit mask, or negative where every row sees it whole.
struct __align__(8) Visit {
    int key_tile, pattern;
};

// A row tile of a head, as the plan has it: its visits in the list, the first of them, and the place in the plan of the
// row tile that the block takes next, or -1.
struct __align__(16) RowTile {
    int number, head, first_visit, visits;
    Visit first;
    int next, kv_head;
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

// Shared memory: Q; rings of K, V and bit masks; two refills of the list; the row tile at work and the next.
extern __shared__ __align__(128) unsigned char shared[];
constexpr int kListed = 2 * kRefill;
constexpr int kMasksAt = QTile::kBytes + 2 * kStages * KeyTile::kBytes;
constexpr int kListAt = kMasksAt + kStages * BitMask::kBytes;
constexpr int kRowTilesAt = kListAt + kListed * int(sizeof(Visit));

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
// `turn` is 0 and kOther by turns: an offset in bytes, as both a number and an address would take two registers.
constexpr int kOther = sizeof(RowTile);
__device__ __forceinline__ RowTile& row_tile(int turn) {
    return *reinterpret_cast<RowTile*>(shared + kRowTilesAt + turn);
}

// What a block reads, and how far it is. Its visits are counted from 0 in each row tile; visit n is in buffers number
// (first_slot + n) % kStages.
struct Block {
    const Element* q;
    const Element* k;
    const Element* v;
    const RowTile* plan;
    const Visit* list;
    const uint32* masks;
    int seq_q, seq_kv, thread;
    float scale_log2;
    int turn, first_slot;

    __device__ __forceinline__ int slot(int number) const { return kStages == 1 ? 0 : (first_slot + number) % kStages; }

    // Found out anew in each step where the assembler would spill what it keeps; for sm_100 it spills what is found out.
#if __CUDA_ARCH__ >= 1000
    __device__ __forceinline__ int lane() const { return thread % kWarp; }
    __device__ __forceinline__ int warp() const { return thread / kWarp; }
#else
    __device__ __forceinline__ int lane() const { return opaque(thread) % kWarp; }
    __device__ __forceinline__ int warp() const { return opaque(thread) / kWarp; }
#endif
    // Whether there is a next row tile that has anything to load; it is known from the first step on.
    __device__ __forceinline__ bool loads_ahead() const {
        return row_tile(turn).next >= 0 && row_tile(turn ^ kOther).visits > 0;
    }
    // A row tile of the plan, which becomes that of a turn.
    __device__ __forceinline__ void load_row_tile(int place, int of_turn) const {
        constexpr int kPieces = sizeof(RowTile) / 16;
        const int here = opaque(thread);
        if (here < kPieces)
            reinterpret_cast<int4*>(&row_tile(of_turn))[here] = reinterpret_cast<const int4*>(plan + place)[here];
        __syncwarp();
    }
    // Visits `begin` to `begin + count` of the list, one a thread; there after the next barrier.
    __device__ __forceinline__ void refill(int begin, int count) const {
        const RowTile& tile = row_tile(turn);
        const int here = opaque(thread), number = begin + here;
        if (here < count && number < tile.visits) listed(number) = list[tile.first_visit + number];
    }
    // Q and the first visits of a turn's row tile; everyone has done with those before.
    __device__ __forceinline__ void load_q_and_list(int of_turn) const {
        const RowTile& tile = row_tile(of_turn);
        const int here = opaque(thread), first_query = tile.number * kRows;
        q_tile().load_async<kThreads>(q + (int64(tile.head) * seq_q + first_query) * kHeadDim, kHeadDim,
                                      seq_q - first_query, here);
        if (here < kListed && here < tile.visits)
            listed(here) = list[tile.first_visit + here];
        __syncwarp();
    }
    // kWhole: the tile is not the last, shorter one. `at` is the buffer.
    template <bool kWhole>
    __device__ __forceinline__ void load_k(const Visit& visit, int of_turn, int at) const {
        load<kWhole>(k_tile(at), k, visit.key_tile, of_turn);
    }
    template <bool kWhole>
    __device__ __forceinline__ void load_v(const Visit& visit, int of_turn, int at) const {
        load<kWhole>(v_tile(at), v, visit.key_tile, of_turn);
    }
    __device__ __forceinline__ void load_mask(const Visit& visit, int at) const {
        if (visit.pattern >= 0)
            bit_mask(at).load_async(masks + int64(visit.pattern) * kRows * BitMask::kWords, opaque(thread));
    }
    // A tile for a ring, with all that goes with it.
    template <bool kWhole>
    __device__ __forceinline__ void load_tile(const Visit& visit, int of_turn, int at) const {
        load_k<kWhole>(visit, of_turn, at);
        load_v<kWhole>(visit, of_turn, at);
        load_mask(visit, at);
    }

  private:
    template <bool kWhole>
    __device__ __forceinline__ void load(const KeyTile& target, const Element* source, int key_tile, int of_turn) const {
        const int64 row = int64(row_tile(of_turn).kv_head) * seq_kv + key_tile * kKeys;
        target.load_async<kThreads, kWhole>(source + row * kHeadDim, kHeadDim, seq_kv - key_tile * kKeys,
                                            opaque(thread));
    }
};

// One key tile. Only the first of a row tile may be the shorter one, and it has a bit mask then: others are whole. The last
// of a row tile stands apart: the loop over the others holds nothing that is done once.
template <bool kMasked, bool kLast>
__device__ __forceinline__ void step(Warp& warp, const Block& block, int number) {
    const int lane = block.lane(), row = block.warp() * Warp::kRows, slot = block.slot(number);
    cp_async_wait<0>();
    __syncthreads();  // the tile has landed for everyone, and everyone is done with the tile before it
    if (!kLast && number > 0 && number % kRefill == 0) block.refill(number + kRefill, kRefill);
    if (kStages == 1) {
        block.load_v<!kMasked>(listed(number), block.turn, slot);
        if (kMasked) block.load_mask(listed(number), slot);
    } else if (!kLast) {
        block.load_tile<true>(listed(number + 1), block.turn, block.slot(number + 1));
    } else if (block.loads_ahead()) {
        block.load_tile<false>(row_tile(block.turn ^ kOther).first, block.turn ^ kOther, block.slot(number + 1));
    }
    cp_async_commit();
    warp.template scores<false>(q_tile(), row, k_tile(slot), lane);
    if (kStages == 1) {
        cp_async_wait<0>();
        __syncthreads();  // V and the bit mask have landed, and everyone is done with K
        if (!kLast) {
            block.load_k<true>(listed(number + 1), block.turn, slot);
        } else if (block.loads_ahead()) {
            block.load_k<false>(row_tile(block.turn ^ kOther).first, block.turn ^ kOther, slot);
            block.load_q_and_list(block.turn ^ kOther);
        }
        cp_async_commit();
    }
    if (kMasked) bit_mask(slot).hide(warp, row, opaque(lane));
    warp.template add_tile<kMasked>(v_tile(slot), block.scale_log2, lane);
}

// Stores the warp's rows of O, from `target` on and at most `valid` of them: as many rows at once as a tile of V has for
// each warp.
__device__ __forceinline__ void store_output(const Warp& warp, const KeyTile& staging, Element* target, int valid,
                                             int thread) {
    constexpr int kAtOnce = kKeys / kWarps < 16 ? 8 : 16;  // rows
    const int lane = thread % kWarp, first = thread / kWarp * kAtOnce;
#pragma unroll
    for (int begin = 0; begin < Warp::kRows; begin += kAtOnce) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
            for (int r = begin % 16 / 8; r < begin % 16 / 8 + kAtOnce / 8; ++r) {
                const float(&o)[4] = warp.o[begin / 16][n];
                store_shared_32(staging.address(first + (lane / 4 + 8 * r) % kAtOnce, n) + (lane % 4) * 4,
                                Element::pack(o[2 * r], o[2 * r + 1]));
            }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kAtOnce * kHeadDim / 8 / kWarp; ++i) {
            const int index = i * kWarp + lane, row = index / (kHeadDim / 8), piece = index % (kHeadDim / 8);
            if (begin + row < valid) {
                uint32 words[4];
                load_shared_128(words, staging.address(first + row, piece));
                store_global_128(target + (begin + row) * kHeadDim + piece * 8, words);
            }
        }
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, RESIDENTS)
    sparse_forward(const Element* q, const Element* k, const Element* v, const RowTile* plan, const Visit* list,
                   const uint32* masks, Element* o, float* lse, int seq_q, int seq_kv, float scale_log2) {
    Block block{q, k, v, plan, list, masks, seq_q, seq_kv, int(threadIdx.x), scale_log2, 0, 0};
    block.load_row_tile(blockIdx.x, 0);
    for (bool more = true, ahead = false; more; block.turn ^= kOther) {
        if (!ahead) {
            __syncthreads();  // the row tile is there
            const RowTile& tile = row_tile(block.turn);
            if (tile.visits > 0) {
                block.load_q_and_list(block.turn);
                if (kStages == 1) {
                    block.load_k<false>(tile.first, block.turn, block.slot(0));
                } else {
                    block.load_tile<false>(tile.first, block.turn, block.slot(0));
                }
                cp_async_commit();
            }
        }
        if (row_tile(block.turn).next >= 0) block.load_row_tile(row_tile(block.turn).next, block.turn ^ kOther);
        Warp warp;
        warp.clear();
        int pattern = row_tile(block.turn).first.pattern, number = 0;
        for (; number + 1 < row_tile(block.turn).visits; ++number) {
            if (pattern >= 0) {
                step<true, false>(warp, block, number);
            } else {
                step<false, false>(warp, block, number);
            }
            pattern = listed(number + 1).pattern;
        }
        if (row_tile(block.turn).visits > 0) {
            if (pattern >= 0) {
                step<true, true>(warp, block, number);
            } else {
                step<false, true>(warp, block, number);
            }
        }
        const RowTile& tile = row_tile(block.turn);
        const int thread = opaque(block.thread), query = tile.number * kRows + thread / kWarp * Warp::kRows;
        const int64 offset = int64(tile.head) * seq_q + query;
        more = tile.next >= 0;
        ahead = tile.visits > 0;
        block.first_slot = block.slot(tile.visits);
        const bool q_is_left = kStages == 2 && ahead && block.loads_ahead();
        __syncthreads();  // everyone is done with Q and V, and with this row tile's place
        if (q_is_left) {
            block.load_q_and_list(block.turn ^ kOther);
            cp_async_commit();
        }
        float row_lse[Warp::kRows / 16][2];
        warp.normalise(row_lse, scale_log2);
        warp.store_lse(row_lse, lse + offset, seq_q - query, thread % kWarp);
        store_output(warp, v_tile(block.slot(kStages - 1)), o + offset * kHeadDim, seq_q - query, thread);
    }
}
