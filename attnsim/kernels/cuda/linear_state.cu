// The state of linear attention over ranges of the keys: S = phi(K)^T V and z, the sum of phi(K), in fp32.
//
// A block takes a key head and a range of its keys; S stays in registers. The first `blocks_per_head` of `ranges` even
// ranges are worked on, by block: state [heads, blocks_per_head, HEAD_DIM, HEAD_DIM], normalizer without the last.
#include "linear.cuh"

constexpr int kKeys = BLOCK_N, kThreads = kWarp * WARPS;
static_assert(STAGES >= 2, "a tile is copied while another is used");

using KeyTile = SharedTile<kKeys, HEAD_DIM>;
using State = LinearState<WARPS, HEAD_DIM>;

extern "C" __global__ void __launch_bounds__(kThreads)
    linear_state(const Element* __restrict__ k, const Element* __restrict__ v, float* __restrict__ state,
                 float* __restrict__ normalizer, int seq_kv, int ranges, int blocks_per_head) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int thread = threadIdx.x, head = blockIdx.x / blocks_per_head, range = blockIdx.x % blocks_per_head;
    const int tiles = (seq_kv + kKeys - 1) / kKeys;
    const int begin = static_cast<int>(static_cast<int64>(tiles) * range / ranges);
    const int end = static_cast<int>(static_cast<int64>(tiles) * (range + 1) / ranges);

    // A ring of slots, a tile of K and one of V in each.
    const uint32 ring = shared_address(shared);
    constexpr uint32 kSlotBytes = 2 * KeyTile::kBytes, kRingBytes = STAGES * kSlotBytes;
    const auto load = [&](int tile, uint32 slot) {
        const int64 offset = (static_cast<int64>(head) * seq_kv + static_cast<int64>(tile) * kKeys) * HEAD_DIM;
        const int valid = min(kKeys, seq_kv - tile * kKeys);
        KeyTile{slot}.load_async<kThreads>(k + offset, HEAD_DIM, valid, thread);
        KeyTile{slot + KeyTile::kBytes}.load_async<kThreads>(v + offset, HEAD_DIM, valid, thread);
    };
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        if (begin + ahead < end) load(begin + ahead, ring + ahead * kSlotBytes);
        cp_async_commit();
    }

    State sum;
    sum.clear();
    uint32 slot = ring;
    for (int tile = begin; tile < end; ++tile) {
        const KeyTile keys{slot}, values{slot + KeyTile::kBytes};
        cp_async_wait<STAGES - 2>();
        apply_phi<kThreads>(keys, seq_kv - tile * kKeys, thread);
        __syncthreads();  // the tile is there for everyone, and everyone is done with the one before it
        const uint32 free = slot == ring ? ring + kRingBytes - kSlotBytes : slot - kSlotBytes;
        if (tile + STAGES - 1 < end) load(tile + STAGES - 1, free);
        cp_async_commit();
        sum.add(keys, values);
        slot = slot + kSlotBytes == ring + kRingBytes ? ring : slot + kSlotBytes;
    }

    float* const s = state + static_cast<int64>(blockIdx.x) * HEAD_DIM * HEAD_DIM;
    float* const z = normalizer + static_cast<int64>(blockIdx.x) * HEAD_DIM;
    const State::Grid::Place at;
    State::Grid::each([&](int m, int n, int e, int) {
        if (e % 2 == 0)
            *reinterpret_cast<float2*>(s + at.row_of(m, e) * HEAD_DIM + at.column_of(n, 0)) =
                make_float2(sum.values[m][n][e], sum.values[m][n][e + 1]);
    });
    sum.each_sum([&](int row, float total) { z[row] = total; });
}
