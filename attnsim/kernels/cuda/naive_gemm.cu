// The two GEMMs of unfused attention, batched over batch x query heads: S = factor Q K^T and O = P V.
//
// S and P are [batch, heads_q, seq_q, stride] in 16 bits, `stride` being seq_kv rounded up to a whole 16-byte piece so
// that every row is aligned; the elements in between are neither read nor written.
#include "gemm.cuh"

extern __shared__ __align__(128) unsigned char shared_memory[];

// The C tile of a block: columns fastest, then rows, then heads, so that neighbours share a row of A in the L2 cache.
struct TileIndex {
    int column, row, head;

    __device__ __forceinline__ TileIndex(int rows, int columns) {
        const uint32 down = (rows + BLOCK_M - 1) / BLOCK_M, across = (columns + BLOCK_N - 1) / BLOCK_N;
        column = blockIdx.x % across * BLOCK_N;
        row = blockIdx.x / across % down * BLOCK_M;
        head = blockIdx.x / across / down;
    }
};

// Query head h reads key/value head h / group; with the batch in front, the same division finds both.
extern "C" __global__ void __launch_bounds__(kThreads)
    naive_scores(const Element* q, const Element* k, Element* s, int seq_q, int seq_kv, int stride, int head_dim,
                 int group, float factor) {
    const TileIndex tile(seq_q, seq_kv);
    const int rows = seq_q - tile.row, columns = seq_kv - tile.column;
    const int64 row = static_cast<int64>(tile.head) * seq_q + tile.row;
    const int64 key = static_cast<int64>(tile.head / group) * seq_kv + tile.column;
    const Matrix a{q + row * head_dim, head_dim, rows, head_dim};
    const Matrix b{k + key * head_dim, head_dim, columns, head_dim};
    const Gemm<TransposedB> gemm(shared_address(shared_memory));
    Accumulator c = {};
    gemm.multiply(c, a, b, head_dim);
    gemm.store(c, factor, s + row * stride + tile.column, stride, rows, columns);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    naive_output(const Element* p, const Element* v, Element* o, int seq_q, int seq_kv, int stride, int head_dim,
                 int group) {
    const TileIndex tile(seq_q, head_dim);
    const int rows = seq_q - tile.row, columns = head_dim - tile.column;
    const int64 row = static_cast<int64>(tile.head) * seq_q + tile.row;
    const int64 key = static_cast<int64>(tile.head / group) * seq_kv;
    const Matrix a{p + row * stride, stride, rows, seq_kv};
    const Matrix b{v + key * head_dim + tile.column, head_dim, seq_kv, columns};
    const Gemm<PlainB> gemm(shared_address(shared_memory));
    Accumulator c = {};
    gemm.multiply(c, a, b, seq_kv);
    gemm.store(c, 1.0f, o + row * head_dim + tile.column, head_dim, rows, columns);
}
