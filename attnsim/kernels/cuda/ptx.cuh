// Inline PTX for the instructions that make attention fast on sm_80 and newer. No CUDA header is needed, so the
// same text compiles under NVRTC with nothing but this folder, on a GPU machine and on one without.
// Names and operand layouts: PTX ISA 9.0, "Warp-level Matrix Instructions" and "Data Movement: cp.async".
#pragma once

using uint32 = unsigned int;
using uint16 = unsigned short;
using int64 = long long;
using uint64 = unsigned long long;

constexpr int kWarp = 32;
constexpr uint32 kAllLanes = 0xffffffffu;

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

// Address in the shared window, as ldmatrix and cp.async take it.
__device__ __forceinline__ uint32 shared_address(const void* pointer) {
    return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes; with `valid` false nothing is read and zeros are written.
__device__ __forceinline__ void cp_async_16(uint32 shared, const void* global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

// The same for 4 bytes: one number, which need not be aligned further.
__device__ __forceinline__ void cp_async_4(uint32 shared, const void* global, bool valid = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared), "l"(global), "r"(valid ? 4 : 0)
                 : "memory");
}

// Starts a copy of the first `bytes` of 16; zeros are written for the rest, which is not read.
__device__ __forceinline__ void cp_async_up_to_16(uint32 shared, const void* global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Blocks until at most kPending of this thread's newest groups are still in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void ldmatrix_x4(uint32 (&r)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32 (&r)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(uint32 (&r)[2], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32 (&r)[2], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store_shared_32(uint32 address, uint32 word) {
    asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ float load_shared_float(uint32 address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(address) : "memory");
    return x;
}

__device__ __forceinline__ void load_shared_128(uint32 (&words)[4], uint32 address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store_shared_128(uint32 address, const uint32 (&words)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}

__device__ __forceinline__ void store_global_128(void* global, const uint32 (&words)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(global), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}

// Plain accesses of shared memory by such an address.
__device__ __forceinline__ void store_shared(uint32 address, uint32 value) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void load_shared(uint32 (&r)[4], uint32 address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// 2^x on the exponential unit; 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// log2(x) on the same unit.
__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// Adds to global memory without reading the old value back.
__device__ __forceinline__ void atomic_add_global(float* address, float value) {
    asm volatile("red.global.add.f32 [%0], %1;\n" ::"l"(address), "f"(value) : "memory");
}

// The same value, as one that the compiler cannot trace: arithmetic on it is not moved out of a loop, where its results
// would hold registers from one turn to the next.
__device__ __forceinline__ int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
