// Flash attention, forward, in FlashAttention-2's loop order (Dao, arXiv 2307.08691): one block per tile of query rows
// and head, key tiles from the last visible to the first. O and the log-sum-exp of Q [heads, seq_q, HEAD_DIM] and
// K, V [heads / group, seq_kv, HEAD_DIM].
#include "flash_tile.cuh"
#include "options.cuh"

#ifdef OPTIONS
// The same with bounded scores and a sink in each row's sum.
template <int kHeadDim, int kFragments, int kKeys>
struct OptionsWarp : FlashWarp<kHeadDim, kFragments, kKeys> {
    using Base = FlashWarp<kHeadDim, kFragments, kKeys>;
    static constexpr bool kAhead = false;
    Options options;

    template <bool kAhead, class QTile, class KTile>
    __device__ __forceinline__ void scores(const QTile& q, int first, const KTile& k, int lane) {
        Base::template scores<kAhead>(q, first, k, lane);
        if (!options.caps()) return;
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) this->s[m][n][i] = options.capped(this->s[m][n][i]);
    }

    // A further key without a value: the row's maximum, its sum and O follow it.
    __device__ __forceinline__ void add_sinks(int head, int valid, float scale_log2, int lane) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float sink = options.sink_log2(head, 16 * m + lane / 4 + 8 * r < valid, lane);
                if (sink == negative_infinity()) continue;
                const float before = this->highest[m][r] * scale_log2, top = fmaxf(before, sink);
                const float rescale = exp2_fast(before - top), term = exp2_fast(sink - top);
#pragma unroll
                for (int n = 0; n < kHeadDim / 8; ++n) {
                    this->o[m][n][2 * r] *= rescale;
                    this->o[m][n][2 * r + 1] *= rescale;
                }
                this->total[m][r] = this->total[m][r] * rescale + (lane % 4 == 0 ? term : 0.0f);
                this->highest[m][r] = top / scale_log2;
            }
    }
};
using Warp = OptionsWarp<HEAD_DIM, BLOCK_M / (16 * WARPS), BLOCK_N>;
#else
using Warp = FlashWarp<HEAD_DIM, BLOCK_M / (16 * WARPS), BLOCK_N>;
#endif
#include "flash_loop.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, kResidents)
    flash_forward(const Element* q, const Element* k, const Element* v, Element* o, float* lse, int seq_q, int seq_kv,
                  int heads, int group, int left, int right, int section, float scale_log2 OPTION_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32 base = shared_address(shared);
    Warp warp;
    warp.clear();
#ifdef OPTIONS
    warp.options = {OPTIONS_GIVEN};
#endif
    {
        const Position at(blockIdx.x, row_tiles(seq_q), heads, section);
        const Band band{seq_kv, 0, left, right};
        const int first_query = at.row_tile * kRows;
        const Block block{base, k, v, band, at.head / group, 0, first_query + seq_kv - seq_q, scale_log2};
        attend(warp, q + (int64(at.head) * seq_q + first_query) * kHeadDim, block, min(kRows, seq_q - first_query));
    }
    // Found out again: it would have held registers all the while.
    const Position at(opaque(int(blockIdx.x)), row_tiles(opaque(seq_q)), heads, section);
    const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * Warp::kRows;
    const int query = at.row_tile * kRows + row;
    const int64 offset = int64(at.head) * seq_q + query;
#ifdef OPTIONS
    warp.add_sinks(at.head, seq_q - query, scale_log2, lane);
#endif
    float row_lse[Warp::kRows / 16][2];
    warp.normalise(row_lse, scale_log2);
    warp.store_lse(row_lse, lse + offset, seq_q - query, lane);
    warp.store_output(QTile{base}, row, o + offset * kHeadDim, seq_q - query, lane);
}
