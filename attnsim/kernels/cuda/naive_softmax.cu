// Row softmax of unfused attention: P = softmax(S) over the visible keys, and the log-sum-exp of each row.
//
// WARPS warps share a row, ROWS rows a block. A row of up to WARPS x 1,024 scores is read once and stays in registers;
// a longer one is read in two sweeps (SWEEPS 2): maximum and sum by the online recurrence, then the weights (Milakov
// and Gimelshein, arXiv 1805.02867). A row that sees no key gets P = 0 and -inf.
#include "band.cuh"
#include "piece.cuh"

constexpr int kRowThreads = WARPS * kWarp, kThreads = ROWS * kRowThreads;
constexpr int kPieces = 4;  // of a thread, 64 bytes in flight
constexpr int kResident = SWEEPS == 1 ? 1024 : 512;  // threads of an SM that registers must suffice for
constexpr int kChunk = kRowThreads * kPieces * kPieceElements;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
static_assert(ROWS == 1 || WARPS == 1, "a row of several warps meets at the block's barrier");
static_assert((WARPS & (WARPS - 1)) == 0 && WARPS <= kWarp, "the last step of a reduction is one warp's");

extern __shared__ float shared_memory[];  // 2 x WARPS floats where a row has several warps

// exp(x - shift)
__device__ __forceinline__ float exp_from(float x, float shift) { return exp2_fast((x - shift) * kLog2E); }

// What a row's scores are taken relative to: their maximum, or 0 where no key has been seen, as infinities do not
// cancel.
__device__ __forceinline__ float shift_of(float highest) { return highest == negative_infinity() ? 0.0f : highest; }

struct Maximum {
    __device__ __forceinline__ float operator()(float x, float y) const { return fmaxf(x, y); }
};
struct Sum {
    __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};

// One value of each of the row's threads to the value of all. `slots` are used once, so one barrier is enough.
template <class Operation>
__device__ __forceinline__ float across_row(float x, Operation operation, float* slots) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        x = operation(x, __shfl_xor_sync(kAllLanes, x, distance));
    }
    if constexpr (WARPS > 1) {
        if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = x;
        __syncthreads();
        x = slots[threadIdx.x % WARPS];
#pragma unroll
        for (int distance = WARPS / 2; distance > 0; distance /= 2) {
            x = operation(x, __shfl_xor_sync(kAllLanes, x, distance));
        }
    }
    return x;
}

// A thread's share of kChunk scores of a row: kPieces pieces, kRowThreads apart so that a warp's lie side by side.
// Pieces beyond the end of the row are skipped by all that follows.
struct Chunk {
    float x[kPieces][kPieceElements];
    int first, length;  // column of the first piece, columns of the row

    __device__ __forceinline__ int column(int piece) const { return first + piece * kRowThreads * kPieceElements; }
    __device__ __forceinline__ int valid(int piece) const { return length - column(piece); }

    // Hidden keys become -inf.
    __device__ __forceinline__ Chunk(const Element* row, int start, int seq_kv, const VisibleKeys& visible)
        : first(start + static_cast<int>(threadIdx.x % kRowThreads) * kPieceElements), length(seq_kv) {
        Piece pieces[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (valid(i) > 0) pieces[i] = Piece::load(row + column(i), valid(i));
        }
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (valid(i) <= 0) continue;
            pieces[i].unpack(x[i]);
            if (visible.all(column(i), kPieceElements)) continue;
#pragma unroll
            for (int e = 0; e < kPieceElements; ++e) x[i][e] = visible(column(i) + e) ? x[i][e] : negative_infinity();
        }
    }

    __device__ __forceinline__ float highest() const {
        float most = negative_infinity();
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (valid(i) <= 0) continue;
#pragma unroll
            for (int e = 0; e < kPieceElements; ++e) most = fmaxf(most, x[i][e]);
        }
        return most;
    }

    // Scores become exp(score - shift); returns their sum.
    __device__ __forceinline__ float exponentiate(float shift) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (valid(i) <= 0) continue;
#pragma unroll
            for (int e = 0; e < kPieceElements; ++e) {
                x[i][e] = exp_from(x[i][e], shift);
                total += x[i][e];
            }
        }
        return total;
    }

    __device__ __forceinline__ void store(Element* row, float factor) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (valid(i) <= 0) continue;
#pragma unroll
            for (int e = 0; e < kPieceElements; ++e) x[i][e] *= factor;
            Piece::pack(x[i]).store(row + column(i), valid(i));
        }
    }
};

extern "C" __global__ void __launch_bounds__(kThreads, kResident / kThreads)
    naive_softmax(const Element* s, Element* p, float* lse, int rows, int seq_q, int seq_kv, int stride, int left,
                  int right) {
    const int row = blockIdx.x * ROWS + threadIdx.x / kRowThreads;
    if (row >= rows) return;
    const VisibleKeys visible(row % seq_q, seq_q, seq_kv, left, right);
    const Element* scores = s + static_cast<int64>(row) * stride;
    Element* weights = p + static_cast<int64>(row) * stride;

    float shift, total;
    if constexpr (SWEEPS == 1) {
        Chunk chunk(scores, 0, seq_kv, visible);
        shift = shift_of(across_row(chunk.highest(), Maximum{}, shared_memory));
        total = across_row(chunk.exponentiate(shift), Sum{}, shared_memory + WARPS);
        chunk.store(weights, total == 0.0f ? 0.0f : 1.0f / total);
    } else {
        float highest = negative_infinity(), own = 0.0f;  // of what this thread has seen
        for (int start = 0; start < seq_kv; start += kChunk) {
            Chunk chunk(scores, start, seq_kv, visible);
            const float higher = fmaxf(highest, chunk.highest());
            own = own * exp_from(highest, shift_of(higher)) + chunk.exponentiate(shift_of(higher));
            highest = higher;
        }
        shift = shift_of(across_row(highest, Maximum{}, shared_memory));
        total = across_row(own * exp_from(highest, shift), Sum{}, shared_memory + WARPS);
        for (int start = 0; start < seq_kv; start += kChunk) {
            Chunk chunk(scores, start, seq_kv, visible);
            chunk.exponentiate(shift);
            chunk.store(weights, total == 0.0f ? 0.0f : 1.0f / total);
        }
    }
    if (threadIdx.x % kRowThreads == 0) lse[row] = shift + kLn2 * log2_fast(total);
}
