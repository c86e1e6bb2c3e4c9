// What a call may ask of a kernel beside its shape, in compilations with OPTIONS: scores bounded by
// softcap tanh(scale S / softcap) (Gemma 2, arXiv 2408.00118, section 2), and a term of each row's sum that has no value, the
// sink of its head (gpt-oss, arXiv 2508.10925). Others are compiled as if nothing of this were here.
#pragma once
#include "ptx.cuh"

#ifdef OPTIONS
#define OPTION_PARAMETERS , const float *sinks, int sink_heads, float tanh_scale
#define OPTIONS_GIVEN sinks, sink_heads, tanh_scale
#else
#define OPTION_PARAMETERS
#define OPTIONS_GIVEN
#endif

constexpr float kLog2e = 1.44269504088896341f;

// tanh(x) on the special function unit.
__device__ __forceinline__ float tanh_fast(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

struct Options {
    const float* sinks;      // of each query head, as scaled scores are
    int sink_heads;          // how many there are; 0: none
    float tanh_scale = 0.f;  // scale / softcap, and a scale of softcap takes the place of the scale; 0: not bounded

    __device__ __forceinline__ bool caps() const { return tanh_scale != 0.f; }
    __device__ __forceinline__ float capped(float score) const { return tanh_fast(score * tanh_scale); }

    // The sink of a row's head in powers of two, for the four lanes that share the row; read once, by the first of them, of
    // rows that are `there`. -inf: none.
    __device__ __forceinline__ float sink_log2(int head, bool there, int lane) const {
        float sink = negative_infinity();
        if (sink_heads > 0 && there && lane % 4 == 0) sink = load_whatever(sinks + head % sink_heads) * kLog2e;
        return __shfl_sync(kAllLanes, sink, lane & ~3);
    }

  private:
    // Read even where nothing is made of it, so that all blocks of a row read the same.
    static __device__ __forceinline__ float load_whatever(const float* from) {
        float value;
        asm volatile("ld.global.f32 %0, [%1];\n" : "=f"(value) : "l"(from));
        return value;
    }
};
