// One warp's share of flash attention (Dao, arXiv 2307.08691, algorithm 1): kFragments * 16 query rows against tiles
// of kKeys keys. Scores, output and the online softmax stay in registers; K, V and Q come from shared memory.
//
// Of an m16n8 accumulator, lane l holds rows l / 4 (elements 0, 1) and l / 4 + 8 (elements 2, 3) in columns
// 2 (l % 4) and 2 (l % 4) + 1 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). The four lanes of a quad share a row.
// Two accumulators side by side are, packed to 16 bits, the A operand of the next product: P never leaves the registers.
//
// The accumulators take up to 192 of 255 registers. What the assembler would keep beside them (addresses that do not
// change, fragments far ahead, P in fp32 waiting to be added up) is held back where a comment says so.
#pragma once
#include "tile.cuh"

constexpr float kLn2 = 0.693147180559945309f;

template <int kHeadDim, int kFragments, int kKeys>
struct FlashWarp {
    static_assert(kKeys % 16 == 0 && kHeadDim % 16 == 0, "mma.m16n8k16 takes 16 at a time");
    static constexpr int kRows = 16 * kFragments;
    // Growth of a row's maximum, in powers of two, that leaves the old one standing: P then reaches 256 at most, exact
    // enough in either format, and O need not be rescaled (FlashAttention-4 does so, flash_attn/cute/softmax.py).
    static constexpr float kTolerated = 8.0f;
    static constexpr bool kAhead = true;  // whether a loop over tiles seen whole has registers for fragments ahead

    float s[kFragments][kKeys / 8][4];
    float o[kFragments][kHeadDim / 8][4];
    float highest[kFragments][2];  // a score of each row within kTolerated of its largest so far, before scaling
    float total[kFragments][2];    // this lane's part of the row's sum of P

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                highest[m][r] = negative_infinity();
                total[m][r] = 0.0f;
            }
#pragma unroll
            for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) o[m][n][i] = 0.0f;
        }
    }

    // S = Q K^T for the warp's rows, from row `first` of the block's Q tile on. Unrolled, the assembler loads fragments
    // while the products before them run: with kAhead all of it, else half where it would have to spill.
    template <bool kAhead, class QTile, class KTile>
    __device__ __forceinline__ void scores(const QTile& q, int first, const KTile& k, int lane) {
        const SharedTile<kRows, kHeadDim> rows{q.address(first, 0)};
        const int here = opaque(lane);  // else addresses of every fragment are kept from tile to tile
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0.0f;
        constexpr int kUnrolled = kHeadDim / (kAhead || kFragments == 1 || kHeadDim == 64 ? 16 : 32);
#pragma unroll kUnrolled
        for (int depth = 0; depth < kHeadDim; depth += 16) add_scores(rows, k, depth, here);
    }

    // Scores of pairs that are not `visible(row, key)`, counted from the warp's first row and the tile's first key,
    // become -inf.
    template <class Visible>
    __device__ __forceinline__ void hide(Visible visible, int lane) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = 16 * m + lane / 4 + (i / 2) * 8;
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n)
                    if (!visible(row, 8 * n + (lane % 4) * 2 + i % 2)) s[m][n][i] = negative_infinity();
            }
    }

    // The softmax of S and O += P V with P = exp(scale S - scale highest), `scale_log2` being scale * log2(e) > 0. With
    // kMasked a row may have seen no key at all so far.
    template <bool kMasked, class VTile>
    __device__ __forceinline__ void add_tile(const VTile& v, float scale_log2, int lane) {
        float shift[kFragments][2];
        raise_highest<kMasked>(scale_log2);
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) shift[m][r] = finite<kMasked>(highest[m][r]) * scale_log2;
        add_output(v, shift, scale_log2, opaque(lane));
    }

    // O divided by the sums; `lse` becomes the natural logarithm of sum(exp(scale S)). Rows without keys: 0 and -inf.
    __device__ __forceinline__ void normalise(float (&lse)[kFragments][2], float scale_log2) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float sum = total[m][r];
                sum += __shfl_xor_sync(kAllLanes, sum, 1);
                sum += __shfl_xor_sync(kAllLanes, sum, 2);
                const bool any = sum > 0.0f;
                const float inverse = any ? __fdividef(1.0f, sum) : 0.0f;
                lse[m][r] = any ? (highest[m][r] * scale_log2 + log2_fast(sum)) * kLn2 : negative_infinity();
                scale_row(m, r, inverse);
            }
    }

    // Stores the first `valid` of the warp's rows of O, in 16-byte pieces: through rows first .. first + kRows of
    // `staging`, which no other warp may touch.
    template <class Tile>
    __device__ __forceinline__ void store_output(const Tile& staging, int first, Element* target, int valid, int lane) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    store_shared_32(staging.address(first + 16 * m + lane / 4 + 8 * r, n) + (lane % 4) * 4,
                                    Element::pack(o[m][n][2 * r], o[m][n][2 * r + 1]));
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRows * kHeadDim / 8 / kWarp; ++i) {
            const int index = i * kWarp + lane, row = index / (kHeadDim / 8), piece = index % (kHeadDim / 8);
            if (row < valid) {
                uint32 words[4];
                load_shared_128(words, staging.address(first + row, piece));
                store_global_128(target + row * kHeadDim + piece * 8, words);
            }
        }
    }

    // Stores the log-sum-exps of the first `valid` of the warp's rows.
    __device__ __forceinline__ void store_lse(const float (&lse)[kFragments][2], float* target, int valid, int lane) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = 16 * m + lane / 4 + 8 * r;
                if (lane % 4 == 0 && row < valid) target[row] = lse[m][r];
            }
    }

  protected:
    // O += P V of the 16 keys of a slab, P as the A operand.
    template <class VTile>
    __device__ __forceinline__ void add_slab(const VTile& v, int slab, const uint32 (&p)[kFragments][4], int lane) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 16; ++n) {
            uint32 b[4];
            v.fragment_b_columns(b, 16 * slab, 16 * n, lane);
#pragma unroll
            for (int m = 0; m < kFragments; ++m) {
                Element::mma(o[m][2 * n], p[m], b[0], b[1]);
                Element::mma(o[m][2 * n + 1], p[m], b[2], b[3]);
            }
        }
    }

  private:
    // The scores' share of 16 columns of Q and K. One fragment of K serves all rows of the warp.
    template <class Rows, class KTile>
    __device__ __forceinline__ void add_scores(const Rows& q, const KTile& k, int depth, int lane) {
        uint32 a[kFragments][4];
#pragma unroll
        for (int m = 0; m < kFragments; ++m) q.fragment_a(a[m], 16 * m, depth, lane);
#pragma unroll
        for (int n = 0; n < kKeys / 16; ++n) {
            uint32 b[4];
            k.fragment_b_rows(b, 16 * n, depth, lane);
#pragma unroll
            for (int m = 0; m < kFragments; ++m) {
                Element::mma(s[m][2 * n], a[m], b[0], b[1]);
                Element::mma(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }

    // 0 in place of -inf for a row that has seen no key: -inf must not be subtracted from -inf.
    template <bool kMasked>
    static __device__ __forceinline__ float finite(float score) {
        return kMasked && score == negative_infinity() ? 0.0f : score;
    }

    // Where the largest score has grown beyond what is tolerated in any row of the warp, raises `highest` to it, and
    // shrinks the sums and O by as much.
    template <bool kMasked>
    __device__ __forceinline__ void raise_highest(float scale_log2) {
        float top[kFragments][2];
        bool grown = false;
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                top[m][r] = highest[m][r];
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n)
                    top[m][r] = fmaxf(top[m][r], fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
                top[m][r] = fmaxf(top[m][r], __shfl_xor_sync(kAllLanes, top[m][r], 1));
                top[m][r] = fmaxf(top[m][r], __shfl_xor_sync(kAllLanes, top[m][r], 2));
                grown |= (top[m][r] - highest[m][r]) * scale_log2 > kTolerated;
            }
        if (!__any_sync(kAllLanes, grown)) return;
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float factor = exp2_fast((highest[m][r] - finite<kMasked>(top[m][r])) * scale_log2);
                highest[m][r] = top[m][r];
                total[m][r] *= factor;
                scale_row(m, r, factor);
            }
    }

    __device__ __forceinline__ void scale_row(int m, int r, float factor) {
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
            o[m][n][2 * r] *= factor;
            o[m][n][2 * r + 1] *= factor;
        }
    }

    // O += P V in slabs of 16 keys. The exponentials of a slab do not wait for the products of the one before it, so
    // that the exponential unit and the tensor cores can run side by side within a warp.
    template <class VTile>
    __device__ __forceinline__ void add_output(const VTile& v, float (&shift)[kFragments][2], float scale_log2,
                                               int lane) {
#pragma unroll
        for (int slab = 0; slab < kKeys / 16; ++slab) {
            if (slab > 0) await_sums(shift);
            uint32 p[kFragments][4];
            probabilities(p, slab, shift, scale_log2);
            add_slab(v, slab, p, lane);
        }
    }

    // Leaves `shift` as it is, but not known before the sums: nothing else needs them soon, and all of P would be kept
    // in fp32 until they are added up.
    __device__ __forceinline__ void await_sums(float (&shift)[kFragments][2]) const {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) shift[m][r] = __fmaf_rn(total[m][r], 0.0f, shift[m][r]);
    }

    // P = exp2(scale S - shift) of 16 keys, packed as the A operand of P V; the sums take it before it is rounded.
    __device__ __forceinline__ void probabilities(uint32 (&p)[kFragments][4], int slab,
                                                  const float (&shift)[kFragments][2], float scale_log2) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = i % 2;  // registers 0 and 1 of A are keys 0-7, rows l / 4 and + 8; 2 and 3 are keys 8-15
                const float(&pair)[4] = s[m][2 * slab + i / 2];
                const float low = exp2_fast(pair[2 * r] * scale_log2 - shift[m][r]);
                const float high = exp2_fast(pair[2 * r + 1] * scale_log2 - shift[m][r]);
                total[m][r] += low + high;
                p[m][i] = Element::pack(low, high);
            }
    }
};
