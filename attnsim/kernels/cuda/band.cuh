// A band mask: query i sees key j when -left <= j - (i + seq_kv - seq_q) <= right.
#pragma once
#include "ptx.cuh"

// Keys low <= j < high that one query sees; none when high <= low.
struct VisibleKeys {
    int low, high;

    __device__ __forceinline__ VisibleKeys(int low, int high) : low(low), high(high) {}

    // No limit is a reach of 2^30, longer than any sequence and short enough to add to.
    __device__ __forceinline__ VisibleKeys(int query, int seq_q, int seq_kv, int left, int right) {
        const int diagonal = query + seq_kv - seq_q;
        low = max(diagonal - left, 0);
        high = min(diagonal + right + 1, seq_kv);
    }

    // Whether all of `count` keys from `first` on are seen.
    __device__ __forceinline__ bool all(int first, int count) const { return low <= first && first + count <= high; }

    __device__ __forceinline__ bool operator()(int key) const { return low <= key && key < high; }
};

// The band of all queries; `shift` is seq_kv - seq_q.
struct Band {
    int seq_kv, shift, left, right;

    __device__ __forceinline__ int begin(int query) const { return max(0, query + shift - left); }
    __device__ __forceinline__ int end(int query) const { return min(seq_kv, query + shift + right + 1); }
    __device__ __forceinline__ VisibleKeys keys(int query) const { return {begin(query), end(query)}; }
};
