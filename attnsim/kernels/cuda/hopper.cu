// FlashAttention forward for Hopper (sm_90a): O = softmax(scale Q K^T) V, and the log-sum-exp of each row.
//
// One producer warpgroup fills a ring of K and V tiles with the tensor copy engine; each consumer warpgroup owns 64
// query rows. A consumer issues S_j = Q K_j^T and, right behind it, O += P_{j-1} V_{j-1}; the softmax of step j runs
// while the second is still on the tensor cores, and named barriers let the consumers take turns at issuing, so that
// the softmax of one hides under the multiplications of the other (FlashAttention-3, arXiv 2407.08608, sections 3.1
// and 3.2).
//
// Where every query sees every key, blocks stay: each takes the row tile of its own number and then those that lie a
// grid further on. The ring turns on from tile to tile, and Q's buffer is free once its last S is there, so that the
// producer copies Q, K and V of the next tile under the last product and the stores of this one. Under a mask row tiles
// differ in length, and the GPU hands them out, a block each.
//
// Why no block waits for ever: a producer waits for buffers of earlier tiles alone, and consumers let go of these with
// nothing but copies that were begun before. Q's phase changes once a row tile, that of a K or V buffer once a turn of
// the ring, also across row tiles, and both sides count on the same numbers: the producer's loop is the consumers'. All
// consumers have as many steps, so that turns come out even at the end of a row tile.
//
// At head_dim 128 and an even number of row tiles two neighbours are a cluster, and share the K and V of their head:
// each copies one slab of every tile, 64 columns, to both. A full mbarrier waits for both slabs in its own block; bytes
// of the other's may come before this block has announced them, since the phase cannot end before its own arrival. A
// buffer is empty when the consumers of both blocks have let go of it, for either block writes to both.
//
// Why clusters do not wait for ever, beside the above: the GPU starts both blocks of one or neither, and clusters do not
// wait for each other. Grid and row tiles are even, so that both blocks have as many row tiles, of one head, and as many
// key tiles. Both producers go through these in the same order and wait for the release of an earlier one alone; what
// the consumers of either block need for that, both have asked for before. Blocks meet before the first arrival in the
// other's memory, when the mbarriers are made, and after the last: none ends while the other arrives or copies there.
#include "cluster.cuh"
#include "launch_order.cuh"
#include "scores.cuh"
#include "slab_tile.cuh"

constexpr int kKeys = BLOCK_N, kStages = STAGES, kConsumers = CONSUMERS, kDim = HEAD_DIM;
constexpr bool kMasked = MASKED;
constexpr int kCluster = CLUSTER;
constexpr int kNoLimit = 1 << 30;  // as the reach of a mask
constexpr int kRows = kConsumers * 64, kThreads = (kConsumers + 1) * 128;

static_assert(kKeys == 128 || kKeys == 176, "S is written for 128 or 176 keys a tile");
static_assert(kDim == 64 || kDim == 128, "O is written for 64 or 128 columns");
static_assert(kStages >= 2, "a consumer waits for V of one step while it still has V of the step before");
static_assert(kCluster == 1 || (kCluster == 2 && kDim == 128 && !kMasked), "each block copies one of two slabs");
static_assert(kConsumers == 2 || kConsumers == 3, "registers are shared out for two or three");

using QTile = SlabTile<kRows, kDim>;
using KeyTile = SlabTile<kKeys, kDim>;

// An SM has 65,536 registers: 24 or 32 for a producer thread, the rest for the consumers.
constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32, kConsumerRegisters = kConsumers == 2 ? 240 : 160;
static_assert(128 * (kProducerRegisters + kConsumers * kConsumerRegisters) <= 65536, "more registers than an SM has");

constexpr int kTurnBarrier = 1;  // kTurnBarrier + consumer: whose turn it is to issue

// What lies in shared memory: Q, kStages buffers of K, as many of V, and the mbarriers.
struct Pipeline {
    uint32 base;

    __device__ __forceinline__ QTile q() const { return {base}; }
    __device__ __forceinline__ KeyTile k(int stage) const { return {base + QTile::kBytes + stage * KeyTile::kBytes}; }
    __device__ __forceinline__ KeyTile v(int stage) const { return k(kStages + stage); }
    __device__ __forceinline__ uint32 q_full() const { return k(2 * kStages).base; }
    __device__ __forceinline__ uint32 k_full(int stage) const { return q_full() + 8 * (1 + stage); }
    __device__ __forceinline__ uint32 v_full(int stage) const { return k_full(kStages + stage); }
    __device__ __forceinline__ uint32 k_empty(int stage) const { return k_full(2 * kStages + stage); }
    __device__ __forceinline__ uint32 v_empty(int stage) const { return k_full(3 * kStages + stage); }
    __device__ __forceinline__ uint32 q_empty() const { return k_full(4 * kStages); }

    __device__ __forceinline__ void init() const {
        mbarrier_init(q_full(), 1);
        mbarrier_init(q_empty(), kConsumers);
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            mbarrier_init(k_full(stage), 1);
            mbarrier_init(v_full(stage), 1);
            mbarrier_init(k_empty(stage), kCluster * kConsumers);
            mbarrier_init(v_empty(stage), kCluster * kConsumers);
        }
        mbarrier_init_fence();
    }
};

// A buffer of the ring, and the parity of the phase in which it is full for this turn of the ring.
struct Slot {
    int stage = 0;
    uint32 parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == kStages) stage = 0, parity ^= 1;
    }
};

// The key tiles that any row of a row tile sees: [first, stop). Without a mask there is one at least.
struct KeyTiles {
    int first, stop;

    __device__ __forceinline__ KeyTiles(const Band& band, int row_tile, int seq_q) {
        const int row = kMasked ? row_tile * kRows : 0, last_row = kMasked ? min(row + kRows, seq_q) - 1 : 0;
        const int begin = band.begin(row), end = band.end(last_row);
        first = begin / kKeys;
        stop = end > begin ? (end + kKeys - 1) / kKeys : first;
    }
    __device__ __forceinline__ bool any() const { return !kMasked || stop > first; }
};

// Waits until a buffer is empty, in both blocks of a cluster.
__device__ __forceinline__ void wait_empty(uint32 barrier, uint32 parity) {
    if (kCluster == 1)
        mbarrier_wait(barrier, parity);
    else
        mbarrier_wait_cluster(barrier, parity);
}

// Starts copying a tile of K or V; of a cluster each block copies its slab to both.
__device__ __forceinline__ void load(KeyTile tile, const TensorMap& map, uint32 barrier, int row, int head) {
    if (kCluster == 1) {
        tile.load(map, barrier, row, head);
        return;
    }
    const int slab = blockIdx.x % kCluster;
    mbarrier_arrive_expect(barrier, KeyTile::kBytes);
    tensor_copy_to(tile.base + slab * KeyTile::kSlabBytes, map, barrier, slab * 64, row, head, (1 << kCluster) - 1);
}

// A thread of a consumer for each block of the cluster lets go of a buffer there.
__device__ __forceinline__ void release(uint32 barrier) {
    if (kCluster == 1)
        mbarrier_arrive(barrier);
    else
        mbarrier_arrive_at(barrier, threadIdx.x % 128);
}

// Copies the visible tiles, last one first, as buffers become free. A fresh mbarrier counts as just past an odd phase,
// so that the first turn of the ring does not wait.
__device__ __forceinline__ void produce(Slot& slot, const Pipeline& pipe, const TensorMap& k_map,
                                        const TensorMap& v_map, KeyTiles tiles, int kv_head) {
#pragma unroll 1
    for (int tile = tiles.stop - 1; tile >= tiles.first; --tile, slot.advance()) {
        wait_empty(pipe.k_empty(slot.stage), slot.parity ^ 1);
        load(pipe.k(slot.stage), k_map, pipe.k_full(slot.stage), tile * kKeys, kv_head);
        wait_empty(pipe.v_empty(slot.stage), slot.parity ^ 1);
        load(pipe.v(slot.stage), v_map, pipe.v_full(slot.stage), tile * kKeys, kv_head);
    }
}

// S = Q K^T: 64 rows of Q, from `row` on, by kKeys keys.
__device__ __forceinline__ void multiply_scores(float (&s)[kKeys / 2], QTile q, int row, KeyTile k) {
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
        wgmma_shared(s, q.along_columns(row, step), k.along_columns(0, step), step > 0);
    wgmma_commit();
}

// O += P V.
__device__ __forceinline__ void multiply_values(float (&o)[kDim / 2], const uint32 (&p)[kKeys / 4], KeyTile v) {
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
        const uint32 a[4] = {p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3]};
        wgmma_registers(o, a, v.along_rows(step));
    }
    wgmma_commit();
}

// Waits for this warpgroup's turn to issue: until all others have passed it on.
__device__ __forceinline__ void take_turn(int consumer) {
    named_barrier_sync(kTurnBarrier + consumer, kConsumers * 128);
}

// One more of those that every other warpgroup waits for.
__device__ __forceinline__ void pass_turn(int consumer) {
#pragma unroll
    for (int other = 0; other < kConsumers; ++other)
        if (other != consumer) named_barrier_arrive(kTurnBarrier + other, kConsumers * 128);
}

// At the start the first warpgroup need not wait, the second only for the first, and so on. Every row tile ends as it
// began: each warpgroup has passed on as often as the others have waited for it.
__device__ __forceinline__ void open_turns(int consumer) {
#pragma unroll
    for (int earlier = 0; earlier < kConsumers - 1; ++earlier)
        if (earlier < consumer) named_barrier_arrive(kTurnBarrier + earlier, kConsumers * 128);
}

// The loop over key tiles of one warpgroup; on return O is not yet divided by the row sums.
__device__ __forceinline__ void consume(float (&o)[kDim / 2], OnlineSoftmax& softmax, Slot& slot,
                                        const Pipeline& pipe, const Band& band, KeyTiles tiles, int row, int consumer,
                                        float scale_log2) {
    const bool leads = threadIdx.x % 128 < kCluster;
    float s[kKeys / 2], rescale[2];
    uint32 p[kKeys / 4];

    mbarrier_wait(pipe.k_full(slot.stage), slot.parity);
    multiply_scores(s, pipe.q(), consumer * 64, pipe.k(slot.stage));
    wgmma_wait<0>();
    pin(s);
    if (leads) release(pipe.k_empty(slot.stage));
    hide(s, band, row, (tiles.stop - 1) * kKeys);
    softmax.update(s, scale_log2, rescale);
    pack(p, s);
    mbarrier_wait(pipe.v_full(slot.stage), slot.parity);

#pragma unroll 1
    for (int tile = tiles.stop - 2; tile >= tiles.first; --tile) {
        const int last = slot.stage;
        slot.advance();
        mbarrier_wait(pipe.k_full(slot.stage), slot.parity);
        take_turn(consumer);
        multiply_scores(s, pipe.q(), consumer * 64, pipe.k(slot.stage));
        multiply_values(o, p, pipe.v(last));
        pass_turn(consumer);
        wgmma_wait<1>();
        pin(s);
        if (leads) release(pipe.k_empty(slot.stage));
        if (kMasked) hide(s, band, row, tile * kKeys);
        softmax.update(s, scale_log2, rescale);
        mbarrier_wait(pipe.v_full(slot.stage), slot.parity);  // a loop, above which ptxas does not move the next wait
        wgmma_wait<0>();
        pin(o);
        if (leads) release(pipe.v_empty(last));
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] *= rescale[i / 2 % 2];
        pack(p, s);
    }
    if (threadIdx.x % 128 == 0) mbarrier_arrive(pipe.q_empty());
    multiply_values(o, p, pipe.v(slot.stage));
    wgmma_wait<0>();
    pin(o);
    if (leads) release(pipe.v_empty(slot.stage));
    slot.advance();
}

// Four lanes of a quad exchange words, so that lane i has the i-th of each lane, in the lanes' order.
__device__ __forceinline__ void transpose_in_quad(uint32 (&words)[4]) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (int low = 0; low < 4; ++low) {
            if (low & distance) continue;
            const int high = low | distance;
            const uint32 got = __shfl_xor_sync(kAllLanes, upper ? words[low] : words[high], distance);
            (upper ? words[low] : words[high]) = got;
        }
    }
}

// Divides by the row sums and writes the first `valid` of the warpgroup's rows, straight from registers: the quad that
// has a row stores four pieces of it at once, 16 bytes a lane. Shared memory already takes the next row tile.
__device__ __forceinline__ void store(const float (&o)[kDim / 2], OnlineSoftmax& softmax, Element* out, float* lse,
                                      int valid, float scale_log2) {
    const int lane = threadIdx.x % kWarp, warp_row = threadIdx.x % 128 / kWarp * 16;
    softmax.finish();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp_row + lane / 4 + 8 * half;
        const float inverse = softmax.inverse(half);
        if (lane % 4 == 0 && row < valid) lse[row] = softmax.lse(half, scale_log2);
#pragma unroll
        for (int piece = 0; piece < kDim / 8; piece += 4) {
            uint32 words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int first = 4 * (piece + i) + 2 * half;
                words[i] = Element::pack(o[first] * inverse, o[first + 1] * inverse);
            }
            transpose_in_quad(words);
            if (row < valid) store_global_128(out + row * kDim + (piece + lane % 4) * 8, words);
        }
    }
}

// The row tiles that a block takes, in the launch order. Sizes are opaque, or else the compiler would keep what a
// division by the row tiles needs in registers all along.
struct Schedule {
    int seq_q, heads, section;

    __device__ __forceinline__ int row_tiles() const { return (opaque(seq_q) + kRows - 1) / kRows; }
    __device__ __forceinline__ int item(int turn) const { return blockIdx.x + turn * gridDim.x; }
    __device__ __forceinline__ bool has(int turn) const {
        return turn == 0 || (!kMasked && item(turn) < row_tiles() * heads);
    }
    __device__ __forceinline__ Position operator[](int turn) const {
        return Position(item(turn), row_tiles(), heads, kMasked ? section : 0);
    }
};

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

extern "C" __global__ void __launch_bounds__(kThreads, 1) CLUSTERED
    flash_hopper(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                 const __grid_constant__ TensorMap v_map, Element* out, float* lse, int seq_q, int seq_kv, int heads,
                 int group, int left, int right, int section, float scale_log2) {
    extern __shared__ char shared[];
    const Pipeline pipe{(shared_address(shared) + 1023) & ~1023u};
    const Band band = kMasked ? Band{seq_kv, seq_kv - seq_q, left, right}
                              : Band{opaque(seq_kv), 0, kNoLimit, kNoLimit};  // opaque: see Schedule
    const Schedule schedule{seq_q, heads, section};

    if (threadIdx.x == 0) {
        prefetch_tensor_map(q_map);
        prefetch_tensor_map(k_map);
        prefetch_tensor_map(v_map);
        pipe.init();
    }
    if (kCluster == 1)
        __syncthreads();
    else
        cluster_sync();

    Slot slot;
    if (threadIdx.x < 128) {
        give_registers<kProducerRegisters>();
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int turn = 0; schedule.has(turn); ++turn) {
                const Position at = schedule[turn];
                const KeyTiles tiles(band, at.row_tile, seq_q);
                if (!tiles.any()) continue;
                mbarrier_wait(pipe.q_empty(), turn % 2 ^ 1);
                pipe.q().load(q_map, pipe.q_full(), at.row_tile * kRows, at.head);
                produce(slot, pipe, k_map, v_map, tiles, at.head / group);
            }
        }
    } else {
        take_registers<kConsumerRegisters>();
        const int consumer = threadIdx.x / 128 - 1;
        open_turns(consumer);
#pragma unroll 1
        for (int turn = 0; schedule.has(turn); ++turn) {
            const Position at = schedule[turn];
            const KeyTiles tiles(band, at.row_tile, seq_q);
            float o[kDim / 2];
#pragma unroll
            for (int i = 0; i < kDim / 2; ++i) o[i] = 0.f;
            OnlineSoftmax softmax;
            if (tiles.any()) {
                mbarrier_wait(pipe.q_full(), turn % 2);
                const int first_row = kMasked ? at.row_tile * kRows + consumer * 64 : 0;
                consume(o, softmax, slot, pipe, band, tiles, first_row, consumer, scale_log2);
            }
            // Where to: worked out again, since beside S, P and O there is no register to keep it in.
            const Position to = schedule[opaque(turn)];
            const int row = to.row_tile * kRows + consumer * 64;
            const int64 rows_before = static_cast<int64>(to.head) * seq_q + row;
            store(o, softmax, out + rows_before * kDim, lse + rows_before, seq_q - row, scale_log2);
        }
    }
    if (kCluster > 1) cluster_sync();
}
