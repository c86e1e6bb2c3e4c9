// Decoding: a few queries against a long cache of keys, bound by the bytes of K and V.
//
// A block takes 16 packed rows (row r is query r / group of query head r % group, so that the heads of a group share
// what is read of their key head) and one range of the keys. Its warps share out the keys, not the rows: each copies
// slices of 16 keys into a ring of its own, multiplies them and keeps an online softmax of its own, and never waits
// for another warp before the end, when the states are merged. With several ranges (splits) the merged states are
// written in fp32 for decode_combine.cu.
#include "band.cuh"
#include "options.cuh"
#include "tile.cuh"

constexpr int kRows = 16;              // packed rows of a block: the M of one MMA
constexpr int kSlice = 16;             // keys that a warp loads and multiplies at a time: the K of P V
constexpr int kKeys = kSlice * WARPS;  // keys of a block's step
constexpr int kThreads = kWarp * WARPS;
constexpr int kDepth = HEAD_DIM / 16;
constexpr bool kQueriesInRegisters = HEAD_DIM <= 128;  // beside O of 16 x 256 they would spill
constexpr int kPending = 2 * STAGES - 1;               // copies that may be in flight while the oldest is used
constexpr float kLog2 = 0.69314718055994530942f;

using Queries = SharedTile<kRows, HEAD_DIM>;
using Slice = SharedTile<kSlice, HEAD_DIM>;

constexpr int kSlotBytes = 2 * Slice::kBytes;  // K and V of a slice
constexpr int kRingBytes = STAGES * kSlotBytes;

static_assert(STAGES >= 2, "the merge uses two slots of a ring: one for O, one for the softmax's state");
static_assert(kRows * HEAD_DIM * 4 <= kSlotBytes, "O of a warp passes through a slot");

// The rows of a block: queries of one key head's group, packed.
struct PackedRows {
    int head, group, seq_q, first, valid;

    __device__ __forceinline__ int query(int row) const { return (first + row) / group; }
    __device__ __forceinline__ int last_query() const { return query(valid - 1); }
    // Place of a row in [batch, heads_q, seq_q]; the group's heads begin at head * group, the batch included.
    __device__ __forceinline__ int64 index(int row) const {
        return (static_cast<int64>(head) * group + (first + row) % group) * seq_q + query(row);
    }
};

// Key tiles of a split: an even share, to within one, of those that any row of the block sees.
struct KeyTiles {
    int begin, end;

    __device__ __forceinline__ KeyTiles(const Band& band, const PackedRows& rows, int split, int splits) {
        const int low = band.keys(rows.query(0)).low, high = band.keys(rows.last_query()).high;
        const int first = low / kKeys, count = high > low ? (high + kKeys - 1) / kKeys - first : 0;
        begin = first + static_cast<int>(static_cast<int64>(count) * split / splits);
        end = first + static_cast<int>(static_cast<int64>(count) * (split + 1) / splits);
    }
};

// Keys that every row sees need no mask, the others are compared row by row.
struct Edges {
    VisibleKeys first, last;   // of the block's first and last query: all see what both do
    VisibleKeys upper, lower;  // of this thread's rows, lane / 4 and lane / 4 + 8

    __device__ __forceinline__ Edges(const Band& band, const PackedRows& rows, int lane)
        : first(band.keys(rows.query(0))),
          last(band.keys(rows.last_query())),
          upper(band.keys(rows.query(min(lane / 4, rows.valid - 1)))),
          lower(band.keys(rows.query(min(lane / 4 + 8, rows.valid - 1)))) {}

    __device__ __forceinline__ void hide(float (&s)[2][4], int key, int lane) const {
        if (first.all(key, kSlice) && last.all(key, kSlice)) return;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const VisibleKeys& visible = i < 2 ? upper : lower;
                if (!visible(key + 8 * n + 2 * (lane % 4) + (i & 1))) s[n][i] = negative_infinity();
            }
        }
    }
};

// What one warp has seen: O of 16 rows, not yet divided, and per row the maximum (log2 units) and the sum. A thread
// holds rows lane / 4 and lane / 4 + 8; its sums are of its own columns until the end.
struct State {
    float o[HEAD_DIM / 8][4];
    float highest[2], sum[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[j][i] = 0.f;
        }
        highest[0] = highest[1] = negative_infinity();
        sum[0] = sum[1] = 0.f;
    }
};

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// A maximum to subtract: 0 where nothing has been seen, so that (-inf) - (-inf) never arises.
__device__ __forceinline__ float finite(float highest) { return highest == negative_infinity() ? 0.f : highest; }

// S (scaled, log2 units) becomes P; O and the sums are rescaled to the new maximum.
__device__ __forceinline__ void online_softmax(float (&s)[2][4], State& state) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = 2 * half;
        const float here = fmaxf(fmaxf(s[0][i], s[0][i + 1]), fmaxf(s[1][i], s[1][i + 1]));
        const float highest = fmaxf(state.highest[half], quad_max(here));
        const float shift = finite(highest);
        const float rescale = exp2_fast(state.highest[half] - shift);
        state.highest[half] = highest;
        float sum = 0.f;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            s[n][i] = exp2_fast(s[n][i] - shift);
            s[n][i + 1] = exp2_fast(s[n][i + 1] - shift);
            sum += s[n][i] + s[n][i + 1];
        }
        state.sum[half] = state.sum[half] * rescale + sum;
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; ++j) {
            state.o[j][i] *= rescale;
            state.o[j][i + 1] *= rescale;
        }
    }
}

__device__ __forceinline__ void load_queries(Queries queries, const Element* source, const PackedRows& rows,
                                             int thread) {
#pragma unroll
    for (int i = 0; i < kRows * Queries::kPieces / kThreads; ++i) {
        const int index = i * kThreads + thread, row = index / Queries::kPieces, piece = index % Queries::kPieces;
        const bool inside = row < rows.valid;
        const int64 offset = inside ? rows.index(row) * HEAD_DIM : 0;
        cp_async_16(queries.address(row, piece), source + offset + piece * 8, inside);
    }
}

// Starts copying a slice. Its keys lie one after the other in global memory, so that the lanes take 512 bytes at a
// time, and what changes from one piece of a lane to its next are bits known at compile time.
__device__ __forceinline__ void load_slice(Slice slice, const Element* source, int valid_keys, int lane) {
    constexpr int kKeysAtATime = kWarp / Slice::kPieces;
    const uint32 first = slice.address(lane / Slice::kPieces, lane % Slice::kPieces);
    const int valid_pieces = min(valid_keys, kSlice) * Slice::kPieces - lane;
#pragma unroll
    for (int i = 0; i < kSlice / kKeysAtATime; ++i) {
        cp_async_16((first ^ ((i * kKeysAtATime % 8) << 4)) + i * 512, source + lane * 8 + i * 256,
                    i * kWarp < valid_pieces);
    }
}

// Where a lane points ldmatrix at columns 16 d.. of a tile, from where it does at column 0: d moves the permuted piece
// by an XOR and the group of eight pieces by an addition, so that a few registers serve all of a tile's fragments.
__device__ __forceinline__ uint32 at_depth(uint32 first, int d) { return (first ^ ((d % 4) << 5)) + d / 4 * 128; }

// S = scale Q K^T for a warp's slice; the Q of 256 columns is read again from shared memory each time.
__device__ __forceinline__ void scores(float (&s)[2][4], const uint32 (&q)[kDepth][4], Queries queries, Slice k,
                                       float scale, int lane) {
    const uint32 keys = k.address((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
    const uint32 rows = queries.address(lane & 15, lane >> 4);
    float even[2][4] = {}, odd[2][4] = {};  // chains of dependent MMAs half as long: they set a warp's pace
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
        float(&sum)[2][4] = d % 2 ? odd : even;
        uint32 b[4];
        ldmatrix_x4(b, at_depth(keys, d));
        if constexpr (kQueriesInRegisters) {
            Element::mma(sum[0], q[d], b[0], b[1]);
            Element::mma(sum[1], q[d], b[2], b[3]);
        } else {
            uint32 a[4];
            ldmatrix_x4(a, at_depth(rows, d));
            Element::mma(sum[0], a, b[0], b[1]);
            Element::mma(sum[1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = (even[n][i] + odd[n][i]) * scale;
    }
}

#ifdef OPTIONS
// The same, bounded: what scale S / softcap is multiplied by is softcap.
__device__ __forceinline__ void cap(float (&s)[2][4], const Options& options, float scale) {
    const float bound = 1.f / scale;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = options.capped(s[n][i] * bound) * scale;
    }
}

// A further key without a value for each row of one warp's state, those of one split.
__device__ __forceinline__ void add_sinks(State& state, const Options& options, const PackedRows& rows, bool first_split,
                                          int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half, i = 2 * half;
        const float read = options.sink_log2(rows.head * rows.group + (rows.first + row) % rows.group, row < rows.valid, lane);
        const float sink = first_split ? read : negative_infinity();
        const float highest = fmaxf(state.highest[half], sink), shift = finite(highest);
        const float rescale = exp2_fast(state.highest[half] - shift);
        state.highest[half] = highest;
        state.sum[half] = state.sum[half] * rescale + (lane % 4 == 0 ? exp2_fast(sink - shift) : 0.f);
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; ++j) {
            state.o[j][i] *= rescale;
            state.o[j][i + 1] *= rescale;
        }
    }
}
#endif

// O += P V.
__device__ __forceinline__ void weighted_values(State& state, const float (&p)[2][4], Slice v, int lane) {
    const uint32 values = v.address(lane & 15, lane >> 4);
    const uint32 a[4] = {Element::pack(p[0][0], p[0][1]), Element::pack(p[0][2], p[0][3]),
                         Element::pack(p[1][0], p[1][1]), Element::pack(p[1][2], p[1][3])};
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
        uint32 b[4];
        ldmatrix_x4_trans(b, at_depth(values, d));
        Element::mma(state.o[2 * d], a, b[0], b[1]);
        Element::mma(state.o[2 * d + 1], a, b[2], b[3]);
    }
}

// Where the states of the warps meet: each in the first two slots of its own ring, which it has finished with. Groups
// of eight columns are permuted by XOR with the row modulo 4: the rows that a half-warp writes then differ in bank.
struct Exchange {
    unsigned char* rings;

    __device__ __forceinline__ float* o(int warp, int row, int column) const {
        float* base = reinterpret_cast<float*>(rings + warp * kRingBytes);
        return base + row * HEAD_DIM + (((column >> 3) ^ (row & 3)) << 3) + (column & 7);
    }
    __device__ __forceinline__ float* highest(int warp) const {
        return reinterpret_cast<float*>(rings + warp * kRingBytes + kSlotBytes);
    }
    __device__ __forceinline__ float* sum(int warp) const { return highest(warp) + kRows; }

    __device__ __forceinline__ void publish(const State& mine, int warp, int lane) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane / 4 + 8 * half;
            const float all = quad_sum(mine.sum[half]);
            if (lane % 4 == 0) highest(warp)[row] = mine.highest[half], sum(warp)[row] = all;
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 8; ++j) {
                *reinterpret_cast<float2*>(o(warp, row, 8 * j + 2 * (lane % 4))) =
                    make_float2(mine.o[j][2 * half], mine.o[j][2 * half + 1]);
            }
        }
    }

    // Four columns of a row over all warps, divided by the row's sum, and its log-sum-exp (natural).
    __device__ __forceinline__ float4 merged(int row, int column, float& lse) const {
        float top = negative_infinity();
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) top = fmaxf(top, highest(warp)[row]);
        const float shift = finite(top);
        float all = 0.f;
        float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) {
            const float weight = exp2_fast(highest(warp)[row] - shift);
            const float4 part = *reinterpret_cast<const float4*>(o(warp, row, column));
            all += weight * sum(warp)[row];
            total.x += weight * part.x;
            total.y += weight * part.y;
            total.z += weight * part.z;
            total.w += weight * part.w;
        }
        const float inverse = all > 0.f ? 1.f / all : 0.f;
        lse = all > 0.f ? kLog2 * (top + log2_fast(all)) : negative_infinity();
        return make_float4(total.x * inverse, total.y * inverse, total.z * inverse, total.w * inverse);
    }
};

// Writes the merged rows: final ones in 16 bits where the keys are not split, partial ones in fp32 where they are.
__device__ __forceinline__ void store_rows(Exchange exchange, const PackedRows& rows, void* o, float* lse,
                                           int64 split_offset, bool partial, int thread) {
    constexpr int kQuads = HEAD_DIM / 4;
#pragma unroll 1
    for (int index = thread; index < rows.valid * kQuads; index += kThreads) {
        const int row = index / kQuads, column = index % kQuads * 4;
        float row_lse;
        const float4 out = exchange.merged(row, column, row_lse);
        const int64 at = split_offset + rows.index(row);
        if (partial) {
            reinterpret_cast<float4*>(o)[(at * HEAD_DIM + column) / 4] = out;
        } else {
            reinterpret_cast<uint2*>(o)[(at * HEAD_DIM + column) / 4] =
                make_uint2(Element::pack(out.x, out.y), Element::pack(out.z, out.w));
        }
        if (column == 0) lse[at] = row_lse;
    }
}

// Blocks: row tile fastest, then split, then head, so that the row tiles of a key head read the same keys at a time.
// `heads` counts key heads over the batch; more than one split is the outermost dimension of O and LSE, and one
// without keys writes O = 0 and LSE = -inf. Shared memory decides how many blocks an SM holds; without the bound of one
// the assembler would spill a few registers to make room for more.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    decode_split(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                 void* __restrict__ o, float* __restrict__ lse, int heads, int group, int seq_q, int seq_kv,
                 int splits, int left, int right, float scale_log2 OPTION_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
    const int all_rows = seq_q * group, row_tiles = (all_rows + kRows - 1) / kRows;
    const int first_row = blockIdx.x % row_tiles * kRows, split = blockIdx.x / row_tiles % splits;
    const int head = blockIdx.x / row_tiles / splits;
    const PackedRows rows{head, group, seq_q, first_row, min(kRows, all_rows - first_row)};
    const Band band{seq_kv, seq_kv - seq_q, left, right};
    const KeyTiles tiles(band, rows, split, splits);
    const int steps = tiles.end - tiles.begin;

    const Queries queries{shared_address(shared)};
    load_queries(queries, q, rows, thread);
    cp_async_commit();

    // Tiles are walked from the last to the first; a warp takes 16 keys of each.
    unsigned char* const rings = shared + Queries::kBytes;
    const uint32 ring = shared_address(rings) + warp * kRingBytes;
    const int64 head_offset = static_cast<int64>(head) * seq_kv * HEAD_DIM;
    const auto first_key = [&](int step) { return (tiles.end - 1 - step) * kKeys + warp * kSlice; };
    const auto load = [&](const Element* tensor, int step, Slice slice) {
        const int key = first_key(step);
        const Element* source = tensor + head_offset + static_cast<int64>(key) * HEAD_DIM;
        if (step < steps) load_slice(slice, source, seq_kv - key, lane);
        cp_async_commit();
    };
#pragma unroll
    for (int step = 0; step < STAGES; ++step) {
        load(k, step, Slice{ring + step * kSlotBytes});
        load(v, step, Slice{ring + step * kSlotBytes + Slice::kBytes});
    }

    cp_async_wait<2 * STAGES>();
    __syncthreads();
    uint32 fragments[kDepth][4];
    if constexpr (kQueriesInRegisters) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) queries.fragment_a(fragments[d], 0, 16 * d, lane);
    }

#ifdef OPTIONS
    const Options options{OPTIONS_GIVEN};
#endif
    const Edges edges(band, rows, lane);
    State state;
    state.clear();
    uint32 slot = ring;
    for (int step = 0; step < steps; ++step) {
        const Slice keys{slot}, values{slot + Slice::kBytes};
        float s[2][4];
        cp_async_wait<kPending>();
        __syncwarp();
        scores(s, fragments, queries, keys, scale_log2, lane);
#ifdef OPTIONS
        if (options.caps()) cap(s, options, scale_log2);
#endif
        __syncwarp();
        load(k, step + STAGES, keys);

        edges.hide(s, first_key(step), lane);
        online_softmax(s, state);

        cp_async_wait<kPending>();
        __syncwarp();
        weighted_values(state, s, values, lane);
        __syncwarp();
        load(v, step + STAGES, values);
        slot = slot + kSlotBytes == ring + kRingBytes ? ring : slot + kSlotBytes;
    }

#ifdef OPTIONS
    if (warp == 0) add_sinks(state, options, rows, split == 0, lane);
#endif
    const Exchange exchange{rings};
    exchange.publish(state, warp, lane);
    __syncthreads();
    store_rows(exchange, rows, o, lse, static_cast<int64>(split) * heads * all_rows, splits > 1, thread);
}
