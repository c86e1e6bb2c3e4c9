// Flash attention, forward, in FlashAttention-2's loop order (Dao, arXiv 2307.08691): one block per tile of query rows
// and head, key tiles from the last visible to the first. O and the log-sum-exp of Q [heads, seq_q, HEAD_DIM] and
// K, V [heads / group, seq_kv, HEAD_DIM].
#include "flash_tile.cuh"

using Warp = FlashWarp<HEAD_DIM, BLOCK_M / (16 * WARPS), BLOCK_N>;
#include "flash_loop.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, kResidents)
    flash_forward(const Element* q, const Element* k, const Element* v, Element* o, float* lse, int seq_q, int seq_kv,
                  int heads, int group, int left, int right, int section, float scale_log2) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32 base = shared_address(shared);
    Warp warp;
    warp.clear();
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
    float row_lse[Warp::kRows / 16][2];
    warp.normalise(row_lse, scale_log2);
    warp.store_lse(row_lse, lse + offset, seq_q - query, lane);
    warp.store_output(QTile{base}, row, o + offset * kHeadDim, seq_q - query, lane);
}
