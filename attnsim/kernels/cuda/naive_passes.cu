// Scale and mask as passes of their own over S, in place: what frameworks do when nothing fuses them into a neighbour.
// A warp changes up to 1,024 neighbouring scores of one row.
#include "band.cuh"
#include "piece.cuh"

constexpr int kThreads = WARPS * kWarp;
constexpr int kPieces = 4;  // of a lane, 64 bytes in flight
constexpr int kChunk = kWarp * kPieces * kPieceElements;

// Calls change(row, column, piece) on each piece of S, `column` being its first score's, and writes the piece back.
template <class Change>
__device__ __forceinline__ void change_scores(Element* s, int rows, int seq_kv, int stride, const Change& change) {
    const uint32 chunk = blockIdx.x * WARPS + threadIdx.x / kWarp, chunks = (seq_kv + kChunk - 1) / kChunk;
    const int row = chunk / chunks, first = chunk % chunks * kChunk + threadIdx.x % kWarp * kPieceElements;
    if (row >= rows) return;
    Element* scores = s + static_cast<int64>(row) * stride;
    const auto column = [=](int i) { return first + i * kWarp * kPieceElements; };
    Piece pieces[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        if (column(i) < seq_kv) pieces[i] = Piece::load(scores + column(i), seq_kv - column(i));
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        if (column(i) >= seq_kv) continue;
        change(row, column(i), pieces[i]);
        pieces[i].store(scores + column(i), seq_kv - column(i));
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    naive_scale(Element* s, int rows, int seq_kv, int stride, float factor) {
    change_scores(s, rows, seq_kv, stride, [=](int, int, Piece& piece) {
        float x[kPieceElements];
        piece.unpack(x);
#pragma unroll
        for (int e = 0; e < kPieceElements; ++e) x[e] *= factor;
        piece = Piece::pack(x);
#pragma unroll
        for (int i = 0; i < 4; ++i) piece.pairs[i] = saturated(Element{}, piece.pairs[i]);
    });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    naive_mask(Element* s, int rows, int seq_kv, int stride, int seq_q, int left, int right) {
    change_scores(s, rows, seq_kv, stride, [=](int row, int column, Piece& piece) {
        const VisibleKeys visible(row % seq_q, seq_q, seq_kv, left, right);
        if (visible.all(column, kPieceElements)) return;
        float x[kPieceElements];
        piece.unpack(x);
#pragma unroll
        for (int e = 0; e < kPieceElements; ++e) x[e] = visible(column + e) ? x[e] : negative_infinity();
        piece = Piece::pack(x);
    });
}
