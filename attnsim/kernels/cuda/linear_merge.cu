// Partial states of linear attention put together, range after range, so that the result does not depend on which block
// was first. A thread takes four columns of a row of S; the first thread of a row takes its normaliser as well.
#include "linear.cuh"

constexpr int kThreads = kWarp * WARPS, kSize = HEAD_DIM * HEAD_DIM;
constexpr int kRowThreads = HEAD_DIM / 4;
constexpr int kAhead = 8;  // ranges whose loads are in flight together
static_assert(kSize / 4 % kThreads == 0, "a block stays within a head");

// Which four numbers of which head a thread takes.
struct Place {
    int head, row, element;
    bool leads;  // takes the row's normaliser

    __device__ __forceinline__ Place() {
        const int index = blockIdx.x % (kSize / 4 / kThreads) * kThreads + threadIdx.x;
        head = blockIdx.x / (kSize / 4 / kThreads);
        row = index / kRowThreads;
        element = index * 4;
        leads = index % kRowThreads == 0;
    }
};

// Calls visit(range, S, z) with the sum of all ranges up to each.
template <class Visit>
__device__ __forceinline__ void accumulate(const Place& at, const float* state, const float* normalizer, int ranges,
                                           Visit visit) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float total = 0.0f;
    for (int first = 0; first < ranges; first += kAhead) {
        float4 part[kAhead];
        float part_total[kAhead] = {};
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (first + i < ranges) {
                const int64 block = static_cast<int64>(at.head) * ranges + first + i;
                part[i] = *reinterpret_cast<const float4*>(state + block * kSize + at.element);
                if (at.leads) part_total[i] = normalizer[block * HEAD_DIM + at.row];
            }
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (first + i < ranges) {
                sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
                total += part_total[i];
                visit(first + i, sum, total);
            }
        }
    }
}

// All keys: S / z in 16 bits, z in fp32.
extern "C" __global__ void __launch_bounds__(kThreads)
    linear_reduce(const float* __restrict__ partial, const float* __restrict__ partial_normalizer,
                  Element* __restrict__ averages, float* __restrict__ normalizer, int ranges) {
    const Place at;
    float4 sum;
    float total = 0.0f;
    accumulate(at, partial, partial_normalizer, ranges, [&](int, const float4& s, float z) { sum = s, total = z; });
    if (at.leads) normalizer[static_cast<int64>(at.head) * HEAD_DIM + at.row] = total;
    const float scale = inverse(__shfl_sync(kAllLanes, total, threadIdx.x % kWarp / kRowThreads * kRowThreads));
    *reinterpret_cast<uint2*>(averages + static_cast<int64>(at.head) * kSize + at.element) =
        make_uint2(Element::pack(scale * sum.x, scale * sum.y), Element::pack(scale * sum.z, scale * sum.w));
}

// In place: the state of each range becomes that of all keys up to its end.
extern "C" __global__ void __launch_bounds__(kThreads) linear_scan(float* state, float* normalizer, int ranges) {
    const Place at;
    accumulate(at, state, normalizer, ranges, [&](int range, const float4& sum, float total) {
        if (range == 0) return;
        const int64 block = static_cast<int64>(at.head) * ranges + range;
        *reinterpret_cast<float4*>(state + block * kSize + at.element) = sum;
        if (at.leads) normalizer[block * HEAD_DIM + at.row] = total;
    });
}
