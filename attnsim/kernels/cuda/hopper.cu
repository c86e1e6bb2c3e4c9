// FlashAttention forward for Hopper (sm_90a): O = softmax(scale Q K^T) V, and the log-sum-exp of each row.
//
// One producer warpgroup fills a ring of K and V tiles with the tensor copy engine; each consumer warpgroup owns 64
// query rows. A consumer issues S_j = Q K_j^T and, right behind it, O += P_{j-1} V_{j-1}; the softmax of step j runs
// while the second is still on the tensor cores, and named barriers let the consumers take turns at issuing, so that
// the softmax of one hides under the multiplications of the other (FlashAttention-3, arXiv 2407.08608, sections 3.1
// and 3.2).
#include "launch_order.cuh"
#include "scores.cuh"
#include "slab_tile.cuh"

constexpr int kKeys = BLOCK_N, kStages = STAGES, kConsumers = CONSUMERS, kDim = HEAD_DIM;
constexpr int kRows = kConsumers * 64, kThreads = (kConsumers + 1) * 128;

static_assert(kKeys == 128 || kKeys == 176, "S is written for 128 or 176 keys a tile");
static_assert(kDim == 64 || kDim == 128, "O is written for 64 or 128 columns");
static_assert(kStages >= 2, "a consumer waits for V of one step while it still has V of the step before");
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

    __device__ __forceinline__ void init() const {
        mbarrier_init(q_full(), 1);
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            mbarrier_init(k_full(stage), 1);
            mbarrier_init(v_full(stage), 1);
            mbarrier_init(k_empty(stage), kConsumers);
            mbarrier_init(v_empty(stage), kConsumers);
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

// The key tiles that any of the block's rows sees: [first, stop).
struct KeyTiles {
    int first, stop;

    __device__ __forceinline__ KeyTiles(const Band& band, int first_row, int last_row) {
        const int begin = band.begin(first_row), end = band.end(last_row);
        first = begin / kKeys;
        stop = end > begin ? (end + kKeys - 1) / kKeys : first;
    }
    __device__ __forceinline__ bool any() const { return stop > first; }
};

// Copies the visible tiles, last one first, as buffers become free. A fresh mbarrier counts as just past an odd phase,
// so that the first turn of the ring does not wait.
__device__ __forceinline__ void produce(const Pipeline& pipe, const TensorMap& q_map, const TensorMap& k_map,
                                        const TensorMap& v_map, KeyTiles tiles, int row, int head, int kv_head) {
    pipe.q().load(q_map, pipe.q_full(), row, head);
    Slot slot;
#pragma unroll 1
    for (int tile = tiles.stop - 1; tile >= tiles.first; --tile, slot.advance()) {
        mbarrier_wait(pipe.k_empty(slot.stage), slot.parity ^ 1);
        pipe.k(slot.stage).load(k_map, pipe.k_full(slot.stage), tile * kKeys, kv_head);
        mbarrier_wait(pipe.v_empty(slot.stage), slot.parity ^ 1);
        pipe.v(slot.stage).load(v_map, pipe.v_full(slot.stage), tile * kKeys, kv_head);
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

// At the start the first warpgroup need not wait, the second only for the first, and so on.
__device__ __forceinline__ void open_turns(int consumer) {
#pragma unroll
    for (int earlier = 0; earlier < kConsumers - 1; ++earlier)
        if (earlier < consumer) named_barrier_arrive(kTurnBarrier + earlier, kConsumers * 128);
}

// The loop over key tiles of one warpgroup; on return O is not yet divided by the row sums.
__device__ __forceinline__ void consume(float (&o)[kDim / 2], OnlineSoftmax& softmax, const Pipeline& pipe,
                                        const Band& band, KeyTiles tiles, int row, int consumer, float scale_log2) {
    const bool leads = threadIdx.x % 128 == 0;
    float s[kKeys / 2], rescale[2];
    uint32 p[kKeys / 4];
    Slot slot;

    open_turns(consumer);
    mbarrier_wait(pipe.q_full(), 0);
    mbarrier_wait(pipe.k_full(0), 0);
    multiply_scores(s, pipe.q(), consumer * 64, pipe.k(0));
    wgmma_wait<0>();
    pin(s);
    if (leads) mbarrier_arrive(pipe.k_empty(0));
    hide(s, band, row, (tiles.stop - 1) * kKeys);
    softmax.update(s, scale_log2, rescale);
    pack(p, s);
    mbarrier_wait(pipe.v_full(0), 0);

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
        if (leads) mbarrier_arrive(pipe.k_empty(slot.stage));
        hide(s, band, row, tile * kKeys);
        softmax.update(s, scale_log2, rescale);
        mbarrier_wait(pipe.v_full(slot.stage), slot.parity);  // a loop, above which ptxas does not move the next wait
        wgmma_wait<0>();
        pin(o);
        if (leads) mbarrier_arrive(pipe.v_empty(last));
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] *= rescale[i / 2 % 2];
        pack(p, s);
    }
    multiply_values(o, p, pipe.v(slot.stage));
    wgmma_wait<0>();
    pin(o);
}

// Divides by the row sums and writes the first `valid` of the warpgroup's rows. Each warp's rows of O pass through its
// own rows of Q, which nobody reads any more, so that every thread stores 16 bytes.
__device__ __forceinline__ void store(const float (&o)[kDim / 2], OnlineSoftmax& softmax, QTile staging, Element* out,
                                      float* lse, int valid, int consumer, float scale_log2) {
    const int lane = threadIdx.x % kWarp, warp_row = threadIdx.x % 128 / kWarp * 16;
    const int staging_row = consumer * 64 + warp_row;
    softmax.finish();
    const float inverse[2] = {softmax.inverse(0), softmax.inverse(1)};
#pragma unroll
    for (int piece = 0; piece < kDim / 8; piece += 2) {
        uint32 words[4];  // rows 0-7 and 8-15 of this piece, then of the next
#pragma unroll
        for (int i = 0; i < 4; ++i)
            words[i] = Element::pack(o[4 * piece + 2 * i] * inverse[i % 2], o[4 * piece + 2 * i + 1] * inverse[i % 2]);
        stmatrix_x4(staging.address(staging_row + lane % 16, piece + lane / 16), words);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp_row + lane / 4 + 8 * half;
        if (lane % 4 == 0 && row < valid) lse[row] = softmax.lse(half, scale_log2);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * kDim / 8 / kWarp; ++i) {
        const int index = i * kWarp + lane, row = index / (kDim / 8), piece = index % (kDim / 8);
        if (warp_row + row < valid) {
            uint32 words[4];
            load_shared_128(words, staging.address(staging_row + row, piece));
            store_global_128(out + (warp_row + row) * kDim + piece * 8, words);
        }
    }
}

__device__ __forceinline__ Position position(int seq_q, int heads, int section) {
    return Position(blockIdx.x, (seq_q + kRows - 1) / kRows, heads, section);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash_hopper(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                 const __grid_constant__ TensorMap v_map, Element* out, float* lse, int seq_q, int seq_kv, int heads,
                 int group, int left, int right, int section, float scale_log2) {
    extern __shared__ char shared[];
    const Pipeline pipe{(shared_address(shared) + 1023) & ~1023u};
    const Band band{seq_kv, seq_kv - seq_q, left, right};
    const Position at = position(seq_q, heads, section);
    const KeyTiles tiles(band, at.row_tile * kRows, min((at.row_tile + 1) * kRows, seq_q) - 1);

    if (threadIdx.x == 0) {
        prefetch_tensor_map(q_map);
        prefetch_tensor_map(k_map);
        prefetch_tensor_map(v_map);
        pipe.init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        give_registers<kProducerRegisters>();
        if (threadIdx.x == 0 && tiles.any())
            produce(pipe, q_map, k_map, v_map, tiles, at.row_tile * kRows, at.head, at.head / group);
    } else {
        take_registers<kConsumerRegisters>();
        const int consumer = threadIdx.x / 128 - 1, first_row = at.row_tile * kRows + consumer * 64;
        float o[kDim / 2];
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] = 0.f;
        OnlineSoftmax softmax;
        if (tiles.any()) consume(o, softmax, pipe, band, tiles, first_row, consumer, scale_log2);
        // Where to: worked out again, since beside S, P and O there is no register to keep it in.
        const Position to = position(opaque(seq_q), heads, section);
        const int row = to.row_tile * kRows + consumer * 64;
        const int64 rows_before = static_cast<int64>(to.head) * seq_q + row;
        store(o, softmax, pipe.q(), out + rows_before * kDim, lse + rows_before, seq_q - row, consumer, scale_log2);
    }
}
