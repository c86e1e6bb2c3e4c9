// The two 16-bit input formats behind one interface. ELEMENT names one of them on the compiler's command line.
#pragma once
#include "ptx.cuh"

struct Half {
    uint16 bits;

    // Two floats to a register, the first in the low half.
    static __device__ __forceinline__ uint32 pack(float low, float high) {
        uint32 packed;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
    }
    static __device__ __forceinline__ Half from_float(float x) {
        Half h;
        asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(h.bits) : "f"(x));
        return h;
    }
    __device__ __forceinline__ float to_float() const {
        float x;
        asm("cvt.f32.f16 %0, %1;\n" : "=f"(x) : "h"(bits));
        return x;
    }
    // C += A B on a 16 x 8 x 16 tile: A by rows, B by columns, C in fp32.
    static __device__ __forceinline__ void mma(float (&c)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct Bfloat16 {
    uint16 bits;

    static __device__ __forceinline__ uint32 pack(float low, float high) {
        uint32 packed;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
    }
    static __device__ __forceinline__ Bfloat16 from_float(float x) {
        Bfloat16 h;
        asm("cvt.rn.bf16.f32 %0, %1;\n" : "=h"(h.bits) : "f"(x));
        return h;
    }
    __device__ __forceinline__ float to_float() const { return __uint_as_float(static_cast<uint32>(bits) << 16); }
    static __device__ __forceinline__ void mma(float (&c)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

using Element = ELEMENT;
