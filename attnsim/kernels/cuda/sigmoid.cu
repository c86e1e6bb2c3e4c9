// Sigmoid attention, forward (Ramapuram et al., arXiv 2409.04431): O = sigmoid(scale Q K^T + bias) V over visible keys, in
// the loop of flash.cu. A weight depends on its own score alone: no running maximum, no sum, nothing to rescale or to
// divide by at the end. O of Q [heads, seq_q, HEAD_DIM] and K, V [heads / group, seq_kv, HEAD_DIM].
#include "flash_tile.cuh"

// Scores and output in registers as FlashWarp has them; its maxima and sums are not used.
template <int kHeadDim, int kFragments, int kKeys>
struct SigmoidWarp : FlashWarp<kHeadDim, kFragments, kKeys> {
    static constexpr bool kAhead = false;
    float bias_log2;  // bias * log2(e)

    // O += P V with P = 1 / (1 + exp(-(scale S + bias))), in slabs of 16 keys. A hidden score is -inf: its P is 0.
    template <bool kMasked, class VTile>
    __device__ __forceinline__ void add_tile(const VTile& v, float scale_log2, int lane) {
        const int here = opaque(lane);
        float bias[kFragments][2];
#pragma unroll
        for (int m = 0; m < kFragments; ++m) bias[m][0] = bias[m][1] = bias_log2;
#pragma unroll
        for (int slab = 0; slab < kKeys / 16; ++slab) {
            uint32 p[kFragments][4];
            weights(p, slab, bias, scale_log2);
            this->add_slab(v, slab, p, here);
        }
    }

  private:
    // P of 16 keys, packed as FlashWarp::probabilities packs it. Leaves `bias` as it is, but not known before the weights:
    // the assembler would otherwise compute all of P ahead of the products, and keep it in registers that it does not have.
    __device__ __forceinline__ void weights(uint32 (&p)[kFragments][4], int slab, float (&bias)[kFragments][2],
                                            float scale_log2) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = i % 2;
                const float(&pair)[4] = this->s[m][2 * slab + i / 2];
                const float low = weight(pair[2 * r] * scale_log2 + bias[m][r]);
                const float high = weight(pair[2 * r + 1] * scale_log2 + bias[m][r]);
                if (i >= 2) bias[m][r] = __fmaf_rn(low + high, 0.0f, bias[m][r]);
                p[m][i] = Element::pack(low, high);
            }
    }

    static __device__ __forceinline__ float weight(float score_log2) {
        return __fdividef(1.0f, 1.0f + exp2_fast(-score_log2));
    }
};

using Warp = SigmoidWarp<HEAD_DIM, BLOCK_M / (16 * WARPS), BLOCK_N>;
#include "flash_loop.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, kResidents)
    sigmoid_forward(const Element* q, const Element* k, const Element* v, Element* o, int seq_q, int seq_kv, int heads,
                    int group, int left, int right, int section, float scale_log2, float bias_log2) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32 base = shared_address(shared);
    Warp warp;
    warp.clear();
    warp.bias_log2 = bias_log2;
    {
        const Position at(blockIdx.x, row_tiles(seq_q), heads, section);
        const Band band{seq_kv, 0, left, right};
        const int first_query = at.row_tile * kRows;
        const Block block{base, k, v, band, at.head / group, 0, first_query + seq_kv - seq_q, scale_log2};
        attend(warp, q + (int64(at.head) * seq_q + first_query) * kHeadDim, block, min(kRows, seq_q - first_query));
    }
    const Position at(opaque(int(blockIdx.x)), row_tiles(opaque(seq_q)), heads, section);
    const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * Warp::kRows;
    const int query = at.row_tile * kRows + row;
    const int64 offset = int64(at.head) * seq_q + query;
    warp.store_output(QTile{base}, row, o + offset * kHeadDim, seq_q - query, lane);
}
