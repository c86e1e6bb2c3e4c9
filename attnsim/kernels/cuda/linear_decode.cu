// Recurrent linear attention, token by token: S += phi(k)^T v, z += phi(k), O = phi(q) S / (phi(q) z). Its cost does
// not depend on how many tokens there were: a block reads and writes the state of one key head, for all its query
// heads.
//
// A thread keeps kQuads pieces of four columns of S in registers, kRowStep rows apart.
#include "linear.cuh"

constexpr int kThreads = kWarp * WARPS;
constexpr int kRowThreads = HEAD_DIM / 4;            // threads across a row of S
constexpr int kRowStep = kThreads / kRowThreads;     // rows that the block covers at a time
constexpr int kQuads = HEAD_DIM / kRowStep;
constexpr int kHeads = HEADS;                        // query heads that are worked on together
static_assert(kThreads >= HEAD_DIM && HEAD_DIM % kRowStep == 0, "a thread takes whole pieces");
static_assert(kHeads * HEAD_DIM % kThreads == 0, "every thread has as many weights");

struct Shared {
    float sums[HEAD_DIM];                        // z
    float features[HEAD_DIM];                    // phi(k)
    float values[HEAD_DIM];                      // v
    float weights[kHeads][HEAD_DIM];             // phi(q)
    float totals[kHeads][HEAD_DIM / kWarp];      // phi(q) z, by warp
    float outputs[WARPS][kHeads][HEAD_DIM];      // phi(q) S over the rows of each warp
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
}

__device__ __forceinline__ void add(float4& sum, float factor, const float4& x) {
    sum.x += factor * x.x, sum.y += factor * x.y, sum.z += factor * x.z, sum.w += factor * x.w;
}

// Weights of `heads` query heads, their rows `stride` elements apart, and the parts of phi(q) z.
__device__ __forceinline__ void weigh(Shared& shared, const Element* q, int64 stride, int heads, int thread) {
#pragma unroll
    for (int i = 0; i < kHeads * HEAD_DIM / kThreads; ++i) {
        const int index = i * kThreads + thread, head = index / HEAD_DIM, feature = index % HEAD_DIM;
        if (head < heads) {  // the same for a whole warp
            const float weight = phi(q[head * stride + feature].to_float());
            shared.weights[head][feature] = weight;
            const float total = warp_sum(weight * shared.sums[feature]);
            if (feature % kWarp == 0) shared.totals[head][feature / kWarp] = total;
        }
    }
}

// phi(q) S, each warp over its own rows.
__device__ __forceinline__ void multiply(Shared& shared, const float4 (&state)[kQuads], int heads, int thread) {
    const int first_row = thread / kRowThreads, column = thread % kRowThreads * 4;
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
        if (head == heads) break;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < kQuads; ++i) add(sum, shared.weights[head][i * kRowStep + first_row], state[i]);
#pragma unroll
        for (int step = kRowThreads; step < kWarp; step *= 2) {  // rows that a warp has side by side
            sum.x += __shfl_xor_sync(kAllLanes, sum.x, step), sum.y += __shfl_xor_sync(kAllLanes, sum.y, step);
            sum.z += __shfl_xor_sync(kAllLanes, sum.z, step), sum.w += __shfl_xor_sync(kAllLanes, sum.w, step);
        }
        if (thread % kWarp < kRowThreads)
            *reinterpret_cast<float4*>(&shared.outputs[thread / kWarp][head][column]) = sum;
    }
}

// O of `heads` query heads, their rows `stride` elements apart.
__device__ __forceinline__ void store(const Shared& shared, Element* o, int64 stride, int heads, int thread) {
#pragma unroll
    for (int i = 0; i < kHeads * HEAD_DIM / kThreads; ++i) {
        const int index = i * kThreads + thread, head = index / HEAD_DIM, column = index % HEAD_DIM;
        if (head < heads) {
            float output = 0.0f, total = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp) output += shared.outputs[warp][head][column];
#pragma unroll
            for (int warp = 0; warp < HEAD_DIM / kWarp; ++warp) total += shared.totals[head][warp];
            o[head * stride + column] = Element::from_float(output * inverse(total));
        }
    }
}

// K and V [heads, tokens, HEAD_DIM], state [heads, HEAD_DIM, HEAD_DIM], normalizer [heads, HEAD_DIM], Q and O
// [heads * group, tokens, HEAD_DIM]; state and normalizer are updated in place.
extern "C" __global__ void __launch_bounds__(kThreads)
    linear_decode(const Element* __restrict__ q, const Element* __restrict__ k, const Element* __restrict__ v,
                  float* __restrict__ state, float* __restrict__ normalizer, Element* __restrict__ o, int tokens,
                  int group) {
    extern __shared__ __align__(128) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int thread = threadIdx.x, first_row = thread / kRowThreads, column = thread % kRowThreads * 4;
    const int64 head = blockIdx.x, stride = static_cast<int64>(tokens) * HEAD_DIM;
    float4* const pieces = reinterpret_cast<float4*>(state + head * HEAD_DIM * HEAD_DIM) + thread;

    float4 s[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) s[i] = pieces[i * kThreads];
    float sum = thread < HEAD_DIM ? normalizer[head * HEAD_DIM + thread] : 0.0f;

    for (int token = 0; token < tokens; ++token) {
        if (thread < HEAD_DIM) {
            const int64 at = (head * tokens + token) * HEAD_DIM + thread;
            const float feature = phi(k[at].to_float());
            shared.features[thread] = feature;
            shared.values[thread] = v[at].to_float();
            shared.sums[thread] = sum += feature;
        }
        __syncthreads();
        const float4 value = *reinterpret_cast<const float4*>(&shared.values[column]);
#pragma unroll
        for (int i = 0; i < kQuads; ++i) add(s[i], shared.features[i * kRowStep + first_row], value);
        for (int first = 0; first < group; first += kHeads) {
            const int64 offset = (head * group + first) * stride + static_cast<int64>(token) * HEAD_DIM;
            const int heads = min(kHeads, group - first);
            weigh(shared, q + offset, stride, heads, thread);
            __syncthreads();
            multiply(shared, s, heads, thread);
            __syncthreads();
            store(shared, o + offset, stride, heads, thread);
            __syncthreads();
        }
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) pieces[i * kThreads] = s[i];
    if (thread < HEAD_DIM) normalizer[head * HEAD_DIM + thread] = sum;
}
