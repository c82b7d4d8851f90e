// SPDX-License-Identifier: Apache-2.0
//
// Attention of a warp's 16 query rows by mma.m16n8k16, for any GPU from sm_80 on: tiles of K and V
// lie in shared memory, rows of PITCH bytes, V behind K; queries, sums and probabilities stay in
// registers. Softmax is online (Milakov & Gimelshein 2018), in base 2. Lane i has rows i / 4 and
// i / 4 + 8. Dimensions from head_dim to HD are zeros.
//
// K and V of E4M3 stay that in shared memory and become f16, which has their values, in registers;
// queries do, too. As in decode/tile.cuh, which rows and columns of a product the four elements in
// a register are is ours to choose.
#ifndef MSGL_CUDA_ATTN_ROWS16_CUH
#define MSGL_CUDA_ATTN_ROWS16_CUH

#include "cuda/attn/call.h"
#include "cuda/attn/page_row.cuh"
#include "cuda/attn/pool_types.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/e4m3.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"

// Bytes from row to row of a tile, so that reads of fragments have no bank conflicts.
template <typename T, int HD> struct msgl_rows16_pitch {
    static const int BYTES = HD * msgl_pool_types<T>::BYTES + 16;
};

// What becomes of the lane's products q.k of a tile, s[nb][i] that of row i / 2 and key nb * 8 +
// lane % 4 * 2 + i % 2. Any such function will do, one that sets some to -inf too.
struct msgl_score {
    float scale, softcap;

    template <int NB> __device__ __forceinline__ void operator()(float (&s)[NB][4]) const
    {
#pragma unroll
        for (int i = 0; i < NB * 4; i++) {
            float x = s[i / 4][i % 4] * scale;
            if (softcap > 0.f) {
                x *= 2.f / softcap;
                x = softcap * (1.f - __fdividef(2.f, 1.f + __expf(x)));
            }
            s[i / 4][i % 4] = x;
        }
    }
};

// A request's K and V of one KV head.
template <class SLOTS> struct msgl_rows16_keys {
    const char *k, *v; // of slot 0
    size_t slot_bytes; // from one slot to the next
    int32_t head_dim;
    SLOTS slots; // of the request's keys: a msgl_page_row, or a list of them
};

template <typename T, class SLOTS>
static __device__ __forceinline__ msgl_rows16_keys<SLOTS>
msgl_rows16_keys_of(const msgl_cuda_attn_call &c, int32_t kv_head, SLOTS slots)
{
    const size_t head_bytes = (size_t)c.head_dim * msgl_pool_types<T>::BYTES;
    return {(const char *)c.k + kv_head * head_bytes, (const char *)c.v + kv_head * head_bytes,
            c.num_kv_heads * head_bytes, c.head_dim, slots};
}

// Queues the copies of keys [key0, key0 + KEYS) to a tile, K and behind it V; zeros for keys
// outside [from, to), whose slots may be another request's: what a score is masked for could still
// be infinite.
template <typename T, int HD, int KEYS, int THREADS, class SLOTS>
static __device__ __forceinline__ void msgl_rows16_load(const msgl_rows16_keys<SLOTS> &keys,
                                                        int32_t key0, int32_t from, int32_t to,
                                                        uint32_t tile)
{
    const int BYTES = msgl_pool_types<T>::BYTES, PITCH = msgl_rows16_pitch<T, HD>::BYTES;
    const int CHUNKS = HD * BYTES / 16; // of 16 bytes, in a row
#pragma unroll
    for (int i = 0; i < KEYS * CHUNKS / THREADS; i++) {
        const int32_t at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const int32_t key = key0 + row;
        const bool inside = key >= from && key < to && chunk * 16 / BYTES < keys.head_dim;
        const size_t src = inside ? (size_t)keys.slots[key] * keys.slot_bytes + chunk * 16 : 0;
        const uint32_t dst = tile + row * PITCH + chunk * 16;
        msgl__copy_async_16(dst, keys.k + src, inside);
        msgl__copy_async_16(dst + KEYS * PITCH, keys.v + src, inside);
    }
}

template <int HD> struct msgl_rows16 {
    uint32_t q[HD / 16][4];
    // Sums of exp2(s - m) v, elements 8 nb + 2 (lane % 4) and the next one; of E4M3, of blocks 2 i
    // and 2 i + 1, every other one of the four from 16 i + 4 (lane % 4) on.
    float o[HD / 8][4];
    float m[2], l[2]; // largest score; this lane's share of the sum of exp2(s - m)
};

// Takes queries. row: the lane's two rows of head_dim elements, or NULL for zeros.
template <typename T, int HD>
static __device__ __forceinline__ void
msgl_rows16_query(const typename msgl_pool_types<T>::act *const row[2], int32_t head_dim,
                  int32_t lane, msgl_rows16<HD> *w)
{
    const bool wide = msgl_pool_types<T>::BYTES == 2;
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t d =
                ks * 16 + (wide ? (i & 2) * 4 + lane % 4 * 2 : (i & 2) + lane % 4 * 4);
            const bool there = row[i & 1] != NULL && d < head_dim;
            const uint32_t two = there ? *(const uint32_t *)(row[i & 1] + d) : 0u;
            w->q[ks][i] = wide ? two : msgl__bf16_to_f16(two);
        }
    }
}

// Before the first tile.
template <int HD> static __device__ __forceinline__ void msgl_rows16_start(msgl_rows16<HD> *w)
{
#pragma unroll
    for (int nb = 0; nb < HD / 8; nb++) w->o[nb][0] = w->o[nb][1] = w->o[nb][2] = w->o[nb][3] = 0.f;
    w->m[0] = w->m[1] = -INFINITY;
    w->l[0] = w->l[1] = 0.f;
}

// Scores of a tile to probabilities, in place; o and l follow. sees(r, key): whether row r of the
// lane sees key `key` of the tile.
template <int HD, int NB, typename SCORE, typename SEES>
static __device__ __forceinline__ void msgl_rows16_softmax(const SCORE &score, float (&s)[NB][4],
                                                           int32_t lane, const SEES &sees,
                                                           msgl_rows16<HD> *w)
{
    const float log2e = 1.4426950408889634f;
    score(s);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = w->m[r];
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                const int32_t key = nb * 8 + lane % 4 * 2 + i % 2;
                // (Rounded, so that tiles with and without a mask have the same bits.)
                const float x = __fmul_rn(s[nb][i], log2e);
                s[nb][i] = sees(r, key) ? x : -INFINITY;
                m = fmaxf(m, s[nb][i]);
            }
        }
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        const float base = m == -INFINITY ? 0.f : m; // nothing seen yet
        const float rescale = msgl__exp2(w->m[r] - base);
        w->m[r] = m;
        w->l[r] *= rescale;
#pragma unroll
        for (int nb = 0; nb < HD / 8; nb++) {
            w->o[nb][2 * r] *= rescale;
            w->o[nb][2 * r + 1] *= rescale;
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[nb][i] = msgl__exp2(s[nb][i] - base);
                w->l[r] += s[nb][i];
            }
        }
    }
}

// Fragments of two blocks of eight keys, from matrices [keys of a block][16 bytes of K] in pairs:
// of both blocks, dims [16 ks, 16 ks + 16). r holds those of E4M3 for the odd ks behind.
template <typename T>
static __device__ __forceinline__ void msgl_rows16_k(uint32_t at, int ks, uint32_t r[4],
                                                     uint32_t b[4])
{
    if constexpr (msgl_pool_types<T>::BYTES == 2) {
        msgl__load_matrix_4(at + ks * 32, b);
    } else {
        if (ks % 2 == 0) msgl__load_matrix_4(at + ks * 16, r);
        msgl__e4m3_to_f16(r[ks % 2], b);
        msgl__e4m3_to_f16(r[ks % 2 + 2], b + 2);
    }
}

// Fragments of two blocks of eight elements of V, sixteen from 16 db on, and 16 keys.
template <typename T>
static __device__ __forceinline__ void msgl_rows16_v(uint32_t at, int db, uint32_t r[4],
                                                     uint32_t b[4])
{
    if constexpr (msgl_pool_types<T>::BYTES == 2) {
        msgl__load_matrix_4_transposed(at + db * 32, b);
    } else {
        if (db % 2 == 0) msgl__load_matrix_4_transposed(at + db * 16, r);
        msgl__e4m3_to_f16_by_element(r[db % 2 * 2], b[0], b[2]);
        msgl__e4m3_to_f16_by_element(r[db % 2 * 2 + 1], b[1], b[3]);
    }
}

// Products q.k of a tile of NB * 8 keys, K of which is at `tile`.
template <typename T, int HD, int NB>
static __device__ __forceinline__ void
msgl_rows16_scores(uint32_t tile, int32_t lane, const msgl_rows16<HD> &w, float (&s)[NB][4])
{
    typedef typename msgl_pool_types<T>::product product;
    const int PITCH = msgl_rows16_pitch<T, HD>::BYTES;
    const uint32_t at = tile + ((lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 16;
    uint32_t held[NB / 2][4];
#pragma unroll
    for (int nb = 0; nb < NB; nb++) s[nb][0] = s[nb][1] = s[nb][2] = s[nb][3] = 0.f;
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
#pragma unroll
        for (int nb = 0; nb < NB; nb += 2) {
            uint32_t b[4];
            msgl_rows16_k<T>(at + nb * 8 * PITCH, ks, held[nb / 2], b);
            msgl__mma(s[nb], w.q[ks], b[0], b[1], product());
            msgl__mma(s[nb + 1], w.q[ks], b[2], b[3], product());
        }
    }
}

// A tile of KEYS keys, K at `tile`, V behind it: scores, their softmax, the product with V.
template <typename T, int HD, int KEYS, typename SCORE, typename SEES>
static __device__ __forceinline__ void msgl_rows16_attend(const SCORE &score, uint32_t tile,
                                                          int32_t lane, const SEES &sees,
                                                          msgl_rows16<HD> *w)
{
    typedef typename msgl_pool_types<T>::product product;
    const int NB = KEYS / 8, PITCH = msgl_rows16_pitch<T, HD>::BYTES;
    float s[NB][4];
    msgl_rows16_scores<T, HD, NB>(tile, lane, *w, s);
    msgl_rows16_softmax<HD, NB>(score, s, lane, sees, w);
    const uint32_t v_at = tile + (KEYS + (lane & 15)) * PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int kb = 0; kb < NB / 2; kb++) {
        uint32_t p[4], r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[i] = msgl__pack_two(s[2 * kb + i / 2][i % 2 * 2], s[2 * kb + i / 2][i % 2 * 2 + 1],
                                  product());
        }
#pragma unroll
        for (int db = 0; db < HD / 16; db++) {
            uint32_t b[4];
            msgl_rows16_v<T>(v_at + kb * 16 * PITCH, db, r, b);
            msgl__mma(w->o[2 * db], p, b[0], b[1], product());
            msgl__mma(w->o[2 * db + 1], p, b[2], b[3], product());
        }
    }
}

// Keys [from, to) in tiles at absolute positions, the next one on its way while one is computed,
// by all of a block's THREADS threads. Of tiles within [all_from, all_to) every row sees all keys;
// of the others sees(r, key) says whether the lane's row r sees that key, which may lie outside
// [from, to). ring: two tiles in shared memory, free again behind the call.
template <typename T, int HD, int KEYS, int THREADS, class SLOTS, typename SCORE, typename SEES>
static __device__ __forceinline__ void
msgl_rows16_walk(const msgl_rows16_keys<SLOTS> &keys, int32_t from, int32_t to, int32_t all_from,
                 int32_t all_to, const SCORE &score, const SEES &sees, uint32_t ring, int32_t lane,
                 msgl_rows16<HD> *w)
{
    const int TILE = 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
    const int32_t begin = from / KEYS, end = (to + KEYS - 1) / KEYS;
    msgl_rows16_load<T, HD, KEYS, THREADS>(keys, begin * KEYS, from, to, ring);
    msgl__copy_async_commit();
    for (int32_t tile = begin; tile < end; tile++) {
        const int32_t key0 = tile * KEYS, at = (tile - begin) & 1;
        if (tile + 1 < end) {
            msgl_rows16_load<T, HD, KEYS, THREADS>(keys, key0 + KEYS, from, to,
                                                   ring + (at ^ 1) * TILE);
        }
        msgl__copy_async_commit();
        msgl__copy_async_wait<1>();
        __syncthreads();
        if (key0 >= all_from && key0 + KEYS <= all_to) {
            const auto all = [](int, int32_t) { return true; };
            msgl_rows16_attend<T, HD, KEYS>(score, ring + at * TILE, lane, all, w);
        } else {
            const auto some = [&](int r, int32_t i) { return sees(r, key0 + i); };
            msgl_rows16_attend<T, HD, KEYS>(score, ring + at * TILE, lane, some, w);
        }
        __syncthreads();
    }
}

// Behind the last tile: l of both rows, in all lanes that have them.
template <int HD> static __device__ __forceinline__ void msgl_rows16_sum(msgl_rows16<HD> *w)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        w->l[r] += __shfl_xor_sync(~0u, w->l[r], 1);
        w->l[r] += __shfl_xor_sync(~0u, w->l[r], 2);
    }
}

// And the logarithm of the sum of row r's exp(s), natural.
template <int HD>
static __device__ __forceinline__ float msgl_rows16_lse(const msgl_rows16<HD> &w, int r)
{
    return (w.m[r] + log2f(w.l[r])) * 0.6931471805599453f;
}

// Row r's result times `scale`, to head_dim elements from `out` on.
template <typename T, int HD>
static __device__ __forceinline__ void
msgl_rows16_store(const msgl_rows16<HD> &w, int r, float scale, int32_t head_dim, int32_t lane,
                  typename msgl_pool_types<T>::act *out)
{
    typedef typename msgl_pool_types<T>::act act;
#pragma unroll
    for (int nb = 0; nb < HD / 8; nb += 3 - msgl_pool_types<T>::BYTES) {
        if (nb * 8 >= head_dim) break;
        const float *x = w.o[nb] + 2 * r;
        if constexpr (msgl_pool_types<T>::BYTES == 2) {
            *(uint32_t *)(out + nb * 8 + lane % 4 * 2) =
                msgl__pack_two(x[0] * scale, x[1] * scale, act());
        } else {
            const float *y = w.o[nb + 1] + 2 * r;
            *(uint2 *)(out + nb * 8 + lane % 4 * 4) =
                make_uint2(msgl__pack_two(x[0] * scale, y[0] * scale, act()),
                           msgl__pack_two(x[1] * scale, y[1] * scale, act()));
        }
    }
}

#endif
