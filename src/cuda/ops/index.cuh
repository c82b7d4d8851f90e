// SPDX-License-Identifier: Apache-2.0
//
// What the two choices of family index share: where a new token's keys are, and products of sixteen
// queries, rows of the tensor cores' tiles, with a tile of keys.
#ifndef MSGL_CUDA_OPS_INDEX_CUH
#define MSGL_CUDA_OPS_INDEX_CUH

#include "core/batch.h"
#include "cuda/attn/page_row.cuh"
#include "cuda/ops/ordered.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/owner.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"

// A new token: its request, whose new tokens are [first, last], the table of that, and the keys
// that the token sees.
struct msgl_index_token {
    msgl_page_row table;
    int32_t req, first, last, keys;
};

// Token `token` of the sequences, whose lengths are on the device. pages: rows of page_stride each.
static __device__ __forceinline__ msgl_index_token msgl__index_token(const msgl_seqs &s,
                                                                     const int32_t *pages,
                                                                     size_t page_stride,
                                                                     const msgl_paging &paging,
                                                                     int32_t token)
{
    const int32_t req = msgl__owner_of(s.dev_cu_seqlens_q, s.size, token);
    msgl_index_token t;
    t.table.pages = pages;
    t.table.first = s.dev_table_rows[req] * (int32_t)page_stride * paging.size;
    t.table.paging = paging;
    t.req = req;
    t.first = s.dev_cu_seqlens_q[req];
    t.last = s.dev_cu_seqlens_q[req + 1] - 1;
    t.keys = s.dev_seqlens_k[req] - (t.last - token);
    return t;
}

// Where keys are that positions every - 1, 2 every - 1, ... have.
struct msgl_every_row {
    msgl_page_row table;
    int32_t every; // 1: all have one

    __device__ __forceinline__ int32_t operator[](int32_t key) const
    {
        return table[(key + 1) * every - 1];
    }
};

// max(s, 0), but a NaN stays one.
static __device__ __forceinline__ float msgl__positive(float s)
{
    return s < 0.f ? 0.f : s;
}

// By which the best scores are found: a NaN is below all others, and -0 and 0 are equal.
static __device__ __forceinline__ uint32_t msgl__score_order(float s)
{
    return s != s ? 0u : ordered(s);
}

// Whether kernels may read keys as pieces of 16 bytes and queries, ld_q elements from a token's to
// the next one's, as pairs of 4 bytes, both of this dtype.
static inline bool msgl__index_takes_pieces(msgl_dtype dtype, int32_t dim, const void *pool,
                                            const void *q, size_t ld_q)
{
    return dtype != MSGL_F32 && dim % 8 == 0 && ld_q % 2 == 0 && aligned16(pool) &&
           (uintptr_t)q % 4 == 0;
}

#define MSGL__OF_INDEX_DIM(T, dim, fn, ...)                                                        \
    do {                                                                                           \
        if ((dim) <= 64) {                                                                         \
            fn<T, 64>(__VA_ARGS__);                                                                \
        } else if ((dim) <= 128) {                                                                 \
            fn<T, 128>(__VA_ARGS__);                                                               \
        } else {                                                                                   \
            fn<T, 256>(__VA_ARGS__);                                                               \
        }                                                                                          \
    } while (0)

// Calls fn<T, DIM>(...) for keys of this dtype, which is of 16 bits, and `dim` elements, at most
// DIM of them.
#define MSGL_BY_INDEX_DIM(dtype, dim, fn, ...)                                                     \
    do {                                                                                           \
        if ((dtype) == MSGL_BF16) {                                                                \
            MSGL__OF_INDEX_DIM(__nv_bfloat16, dim, fn, __VA_ARGS__);                               \
        } else {                                                                                   \
            MSGL__OF_INDEX_DIM(__half, dim, fn, __VA_ARGS__);                                      \
        }                                                                                          \
    } while (0)

enum { INDEX_KEYS = 64 }; // of a tile

// A tile in shared memory.
template <int DIM> struct msgl_index_tile {
    static const int PITCH = DIM * 2 + 16; // bytes
    static const int BYTES = INDEX_KEYS * PITCH;
};

// Asks for keys [at, end), at most INDEX_KEYS, of `dim` elements, and zeros behind both; by a block
// of THREADS, one group of copies. table: the slots of keys, msgl_page_row where every position has
// one.
template <typename T, int DIM, int THREADS, typename TABLE>
static __device__ __forceinline__ void msgl__ask_index_tile(const void *pool, int32_t dim,
                                                            const TABLE &table, int32_t at,
                                                            int32_t end, uint32_t tile)
{
    for (int32_t i = threadIdx.x; i < INDEX_KEYS * (DIM / 8); i += THREADS) {
        const int32_t row = i / (DIM / 8), chunk = i % (DIM / 8);
        const bool there = at + row < end && chunk * 8 < dim;
        const T *from = (const T *)pool;
        if (there) from += (size_t)table[at + row] * (size_t)dim + chunk * 8;
        msgl__copy_async_16(tile + row * msgl_index_tile<DIM>::PITCH + chunk * 16, from, there);
    }
    msgl__copy_async_commit();
}

// Adds the products of a warp's sixteen queries with eight keys of a tile to s. at: of the lane,
// for msgl__load_matrix_4: its row of those is lane % 8, from byte lane / 8 * 16 on.
template <typename T, int DIM>
static __device__ __forceinline__ void msgl__index_products(const uint32_t (&queries)[DIM / 16][4],
                                                            uint32_t at, float (&s)[4])
{
#pragma unroll
    for (int ks = 0; ks < DIM / 16; ks += 2) {
        uint32_t k[4];
        msgl__load_matrix_4(at + ks * 32, k);
        msgl__mma(s, queries[ks], k[0], k[1], T());
        msgl__mma(s, queries[ks + 1], k[2], k[3], T());
    }
}

#endif
