// Eight neighbouring elements of a row in global memory: one access of 16 bytes, or two bytes at a time where the row
// ends inside them, so that nothing beyond the row is asked for.
#pragma once
#include "element.cuh"

constexpr int kPieceElements = 8;

// A pair of elements, infinities replaced by the largest finite value: of a score beyond fp16's 65,504 softmax could
// make nothing but NaN. NaN stays NaN. bf16 reaches as far as fp32 and needs no such care.
__device__ __forceinline__ uint32 saturated(Half, uint32 pair) {
    asm("min.NaN.f16x2 %0, %0, %1;\n" : "+r"(pair) : "r"(0x7bff7bffu));
    asm("max.NaN.f16x2 %0, %0, %1;\n" : "+r"(pair) : "r"(0xfbfffbffu));
    return pair;
}
__device__ __forceinline__ uint32 saturated(Bfloat16, uint32 pair) { return pair; }

struct Piece {
    uint32 pairs[4];

    // The first `valid` elements at `source`, which is 16-byte aligned; the rest are zero.
    static __device__ __forceinline__ Piece load(const Element* source, int valid) {
        Piece piece;
        if (valid >= kPieceElements) {
            const uint4 all = *reinterpret_cast<const uint4*>(source);
            piece.pairs[0] = all.x, piece.pairs[1] = all.y, piece.pairs[2] = all.z, piece.pairs[3] = all.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32 low = 2 * i < valid ? source[2 * i].bits : 0;
                const uint32 high = 2 * i + 1 < valid ? source[2 * i + 1].bits : 0;
                piece.pairs[i] = low | high << 16;
            }
        }
        return piece;
    }

    // Writes the first `valid` elements.
    __device__ __forceinline__ void store(Element* target, int valid) const {
        if (valid >= kPieceElements) {
            *reinterpret_cast<uint4*>(target) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        } else {
#pragma unroll
            for (int i = 0; i < kPieceElements; ++i) {
                if (i < valid) target[i].bits = static_cast<uint16>(pairs[i / 2] >> (i % 2 * 16));
            }
        }
    }

    static __device__ __forceinline__ Piece pack(const float (&x)[kPieceElements]) {
        Piece piece;
#pragma unroll
        for (int i = 0; i < 4; ++i) piece.pairs[i] = Element::pack(x[2 * i], x[2 * i + 1]);
        return piece;
    }

    __device__ __forceinline__ void unpack(float (&x)[kPieceElements]) const {
#pragma unroll
        for (int i = 0; i < kPieceElements; ++i) {
            x[i] = Element{static_cast<uint16>(pairs[i / 2] >> (i % 2 * 16))}.to_float();
        }
    }
};
