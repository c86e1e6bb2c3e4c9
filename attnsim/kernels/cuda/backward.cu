// Gradients of attention: with P recomputed from the scores and their log-sum-exp, dV = P^T dO, dP = dO V^T,
// dS = P (dP - D) with D = rowsum(dO O), dK = dS^T Q, dQ = dS K (Dao, arXiv 2307.08691, algorithm 2).
//
// A block of the main kernel owns a tile of keys of one key/value head. It goes over all query heads of the group and,
// of each, over the tiles of queries that see its keys: dK and dV stay in registers to the end, are written once
// whatever the group, and come out the same at every run. dQ, to which all tiles of keys contribute, is summed in fp32
// in global memory; the kernel before it clears the sums, the one after it converts them.
//
// The sums of dQ lie as the accumulators do: number i of thread t, of a tile of queries, at i * kThreads + t. Thus a
// warp's additions go to 128 bytes side by side; they cover the missing rows of the last tile, adding zeros there.
#include "band.cuh"
#include "piece.cuh"
#include "warp_grid.cuh"

constexpr int kHeadDim = HEAD_DIM, kBlockM = BLOCK_M, kBlockN = BLOCK_N;  // queries and keys of a tile
constexpr int kWarps = 8, kThreads = kWarps * kWarp, kStages = 2;
constexpr float kLog2e = 1.44269504088896340736f;

using QueryTile = SharedTile<kBlockM, kHeadDim>;  // Q, dO
using KeyTile = SharedTile<kBlockN, kHeadDim>;    // K, V; dK, dV at the end
using ScoreTile = SharedTile<kBlockM, kBlockN>;   // P, dS

using ScoreGrid = WarpGrid<kWarps, kBlockM, kBlockN>;
using KeyGrid = WarpGrid<kWarps, kBlockN, kHeadDim>;
using QueryGrid = WarpGrid<kWarps, kBlockM, kHeadDim>;

// Turns of dQ's loop that are unrolled: all, or half of them where accumulators, with those of dK and dV, hold 192
// registers and more operands would have to be spilled.
constexpr int kOfQueries = kBlockN / (QueryGrid::kSize + 2 * KeyGrid::kSize < 192 ? 16 : 32);

extern __shared__ __align__(128) unsigned char shared_memory[];

// Where the tiles of the main kernel lie in shared memory. Queries come in two stages.
struct Block {
    static constexpr int kRowBytes = kBlockM * 4;
    static constexpr int kStageBytes = 2 * QueryTile::kBytes + 2 * kRowBytes;
    static constexpr int kBytes = 2 * KeyTile::kBytes + 2 * ScoreTile::kBytes + kStages * kStageBytes;
    static_assert(kBytes == SHARED_BYTES, "the launch asks for the shared memory that the tiles take");
    static_assert(2 * kBlockM <= kThreads, "a thread copies one number of LSE or of D");

    uint32 base = shared_address(shared_memory);

    __device__ __forceinline__ KeyTile k() const { return {base}; }
    __device__ __forceinline__ KeyTile v() const { return {base + KeyTile::kBytes}; }
    __device__ __forceinline__ ScoreTile p() const { return {base + 2 * KeyTile::kBytes}; }
    __device__ __forceinline__ ScoreTile ds() const { return {base + 2 * KeyTile::kBytes + ScoreTile::kBytes}; }
    __device__ __forceinline__ QueryTile q(int stage) const { return {stage_base() + stage * QueryTile::kBytes}; }
    __device__ __forceinline__ QueryTile d_o(int stage) const { return q(kStages + stage); }
    // LSE (which 0) or D (which 1) of the queries of a stage.
    __device__ __forceinline__ uint32 rows(int stage, int which) const {
        return stage_base() + 2 * kStages * QueryTile::kBytes + (2 * stage + which) * kRowBytes;
    }

  private:
    __device__ __forceinline__ uint32 stage_base() const { return base + 2 * KeyTile::kBytes + 2 * ScoreTile::kBytes; }
};

// The queries that see any key of a tile, by tiles: half-open.
struct VisibleTiles {
    int first, end;

    __device__ __forceinline__ VisibleTiles(int first_key, int last_key, int seq_q, int seq_kv, int left, int right) {
        const int shift = seq_kv - seq_q;
        first = max(first_key - shift - right, 0) / kBlockM;
        end = max((min(last_key - shift + left + 1, seq_q) + kBlockM - 1) / kBlockM, first);
    }
};

__device__ __forceinline__ int64 sums_of_tile(int head, int tile, int tiles) {
    return (static_cast<int64>(head) * tiles + tile) * (kBlockM * kHeadDim);
}

// Copies the first `valid` rows of a tile to a row-major matrix without gaps.
template <class Tile>
__device__ __forceinline__ void store_rows(Element* out, const Tile& tile, int valid) {
    for (int index = threadIdx.x; index < valid * Tile::kPieces; index += kThreads) {
        const int row = index / Tile::kPieces, piece = index % Tile::kPieces;
        uint32 words[4];
        load_shared_128(words, tile.address(row, piece));
        store_global_128(out + row * Tile::kColumns + piece * 8, words);
    }
}

// D = rowsum(dO O) of a tile of queries, and zeros for its sums of dQ.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_row_dots(const Element* __restrict__ o, const Element* __restrict__ d_o, float* __restrict__ d,
                      float* __restrict__ dq_sums, int seq_q) {
    constexpr int kPieces = kHeadDim / 8, kRowsAtOnce = kThreads / kPieces;
    const int head = blockIdx.z * gridDim.y + blockIdx.y, piece = threadIdx.x % kPieces;
#pragma unroll
    for (int i = 0; i < kBlockM; i += kRowsAtOnce) {
        const int query = blockIdx.x * kBlockM + i + threadIdx.x / kPieces;
        const int64 row = static_cast<int64>(head) * seq_q + query;
        float sum = 0.0f;
        if (query < seq_q) {
            const int64 offset = row * kHeadDim + piece * kPieceElements;
            float a[kPieceElements], b[kPieceElements];
            Piece::load(o + offset, kPieceElements).unpack(a);
            Piece::load(d_o + offset, kPieceElements).unpack(b);
#pragma unroll
            for (int j = 0; j < kPieceElements; ++j) sum = fmaf(a[j], b[j], sum);
        }
#pragma unroll
        for (int lanes = kPieces / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
        if (query < seq_q && piece == 0) d[row] = sum;
    }
    float* sums = dq_sums + sums_of_tile(head, blockIdx.x, gridDim.x);
    const uint32 zeros[4] = {};
#pragma unroll
    for (int i = 0; i < QueryGrid::kSize; i += 4) store_global_128(sums + i * kThreads + 4 * threadIdx.x, zeros);
}

// P = exp(scale S - LSE).
__device__ __forceinline__ void probabilities(ScoreGrid::Accumulators& p, uint32 lse, float scale_log2) {
    float shift[ScoreGrid::kM][2];
    ScoreGrid::load_rows(shift, lse);
    ScoreGrid::each([&](int m, int n, int e, int) {
        p[m][n][e] = exp2_fast(fmaf(p[m][n][e], scale_log2, -kLog2e * shift[m][e / 2]));
    });
}

// 0 for the pairs that the mask hides. A row without keys, whose LSE is -inf and P inf, is hidden whole.
__device__ __forceinline__ void hide(ScoreGrid::Accumulators& p, int query, int key, int seq_q, int seq_kv, int left,
                                     int right) {
    const ScoreGrid::Place at;
#pragma unroll
    for (int m = 0; m < ScoreGrid::kM; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const VisibleKeys visible(query + at.row_of(m, 2 * r), seq_q, seq_kv, left, right);
#pragma unroll
            for (int n = 0; n < ScoreGrid::kN; ++n)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; ++e)
                    if (!visible(key + at.column_of(n, e))) p[m][n][e] = 0.0f;
        }
}

// -D of each row: dP - D is then a product added to it.
__device__ __forceinline__ void minus_row_dots(ScoreGrid::Accumulators& ds, uint32 row_dots) {
    float d[ScoreGrid::kM][2];
    ScoreGrid::load_rows(d, row_dots);
    ScoreGrid::each([&](int m, int n, int e, int) { ds[m][n][e] = -d[m][e / 2]; });
}

// dK and dV of a tile of keys, and its share of dQ. `left` and `right` are 2^30 where they are no limit.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_main(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                  const Element* __restrict__ d_o, const float* __restrict__ lse, const float* __restrict__ d,
                  float* __restrict__ dq_sums, Element* __restrict__ dk, Element* __restrict__ dv, int group, int seq_q,
                  int seq_kv, int left, int right, float scale, float scale_log2) {
    const Block block;
    const int kv_head = blockIdx.z * gridDim.y + blockIdx.y, query_tiles = (seq_q + kBlockM - 1) / kBlockM;
    const int key = blockIdx.x * kBlockN, keys = min(kBlockN, seq_kv - key);
    const int64 key_offset = (static_cast<int64>(kv_head) * seq_kv + key) * kHeadDim;
    const VisibleTiles visible(key, key + keys - 1, seq_q, seq_kv, left, right);
    // Of a tile whose first query lies between these all queries see all keys: its first sees the last key, and its
    // last the first.
    const int shift = seq_kv - seq_q, last_whole = key - shift + left - (kBlockM - 1);
    const int first_whole = keys < kBlockN ? seq_q : key + kBlockN - 1 - shift - right;

    const auto load = [&](int head, int tile, int stage) {
        const int thread = thread_here(), query = tile * kBlockM, valid = min(kBlockM, seq_q - query);
        const int64 row = static_cast<int64>(head) * seq_q + query;
        block.q(stage).load_async<kThreads>(q + row * kHeadDim, kHeadDim, valid, thread);
        block.d_o(stage).load_async<kThreads>(d_o + row * kHeadDim, kHeadDim, valid, thread);
        const int i = thread % kBlockM, which = thread / kBlockM;
        if (which < 2)
            cp_async_4(block.rows(stage, which) + 4 * i, (which ? d : lse) + row + (i < valid ? i : 0), i < valid);
    };

    // All query heads of the group, and of each the tiles of queries from the last to the first.
    int head = kv_head * group, tile = visible.end - 1, stage = 0, steps = (visible.end - visible.first) * group;
    if (steps > 0) {
        block.k().load_async<kThreads>(k + key_offset, kHeadDim, keys, thread_here());
        block.v().load_async<kThreads>(v + key_offset, kHeadDim, keys, thread_here());
        load(head, tile, stage);
        cp_async_commit();
    }
    KeyGrid::Accumulators dk_tile = {}, dv_tile = {};
    for (; steps > 0; --steps) {
        const bool same_head = tile > visible.first;
        const int next_head = same_head ? head : head + 1, next_tile = same_head ? tile - 1 : visible.end - 1;
        cp_async_wait<0>();
        __syncthreads();  // this step's tiles have landed, and no warp reads the last step's any more
        if (steps > 1) load(next_head, next_tile, stage ^ 1);
        cp_async_commit();

        ScoreGrid::Accumulators p = {}, ds;
        ScoreGrid::multiply<kHeadDim, Lies::kStraight, Lies::kTransposed>(p, block.q(stage), block.k());  // Q K^T
        probabilities(p, block.rows(stage, 0), scale_log2);
        const int query = tile * kBlockM;
        const bool whole = first_whole <= query && query <= last_whole;
        if (!whole) hide(p, query, key, seq_q, seq_kv, left, right);
        ScoreGrid::store_rounded(block.p(), p);

        minus_row_dots(ds, block.rows(stage, 1));
        ScoreGrid::multiply<kHeadDim, Lies::kStraight, Lies::kTransposed>(ds, block.d_o(stage), block.v());  // dO V^T
        ScoreGrid::each([&](int m, int n, int e, int) { ds[m][n][e] *= p[m][n][e]; });  // P (dP - D)
        ScoreGrid::store_rounded(block.ds(), ds);
        __syncthreads();  // P and dS are whole

        KeyGrid::multiply<kBlockM, Lies::kTransposed, Lies::kStraight>(dv_tile, block.p(), block.d_o(stage));  // P^T dO
        KeyGrid::multiply<kBlockM, Lies::kTransposed, Lies::kStraight>(dk_tile, block.ds(), block.q(stage));  // dS^T Q
        QueryGrid::Accumulators dq = {};
        QueryGrid::multiply<kBlockN, Lies::kStraight, Lies::kStraight, kOfQueries>(dq, block.ds(), block.k());  // dS K
        float* sums = dq_sums + sums_of_tile(head, tile, query_tiles) + thread_here();
        QueryGrid::each(
            [&](int m, int n, int e, int number) { atomic_add_global(sums + number * kThreads, dq[m][n][e]); });
        head = next_head, tile = next_tile, stage ^= 1;
    }

    __syncthreads();  // no warp reads K and V any more
    KeyGrid::store_rounded(block.k(), dk_tile, scale);
    KeyGrid::store_rounded(block.v(), dv_tile);
    __syncthreads();
    store_rows(dk + key_offset, block.k(), keys);
    store_rows(dv + key_offset, block.v(), keys);
}

// dQ from its sums.
extern "C" __global__ void __launch_bounds__(kThreads)
    backward_convert(const float* __restrict__ dq_sums, Element* __restrict__ dq, int seq_q, float scale) {
    const int head = blockIdx.z * gridDim.y + blockIdx.y, query = blockIdx.x * kBlockM;
    const float* sums = dq_sums + sums_of_tile(head, blockIdx.x, gridDim.x) + threadIdx.x;
    QueryGrid::Accumulators c;
    QueryGrid::each([&](int m, int n, int e, int number) { c[m][n][e] = sums[number * kThreads]; });
    const QueryTile tile{shared_address(shared_memory)};
    QueryGrid::store_rounded(tile, c, scale);
    __syncthreads();
    store_rows(dq + (static_cast<int64>(head) * seq_q + query) * kHeadDim, tile, min(kBlockM, seq_q - query));
}
