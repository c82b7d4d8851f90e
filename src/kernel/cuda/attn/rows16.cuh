// SPDX-License-Identifier: Apache-2.0
//
// Attention of a warp's 16 query rows by mma.m16n8k16, for any GPU from sm_80 on: tiles of K and V
// lie in shared memory, rows of PITCH bytes, V behind K; queries, sums and probabilities stay in
// registers. Softmax is online (Milakov & Gimelshein 2018), in base 2. Lane i has rows i / 4 and
// i / 4 + 8. Dimensions from head_dim to HD are zeros.
#ifndef MSGL_KERNEL_CUDA_ATTN_ROWS16_CUH
#define MSGL_KERNEL_CUDA_ATTN_ROWS16_CUH

#include "kernel/cuda/ptx/copy.cuh"
#include "kernel/cuda/ptx/math.cuh"
#include "kernel/cuda/ptx/mma.cuh"

// Bytes from row to row of a tile, so that reads of fragments have no bank conflicts.
template <int HD> struct msgl_rows16_pitch {
    static const int BYTES = HD * 2 + 16;
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

// Queues the copies of keys [key0, key0 + KEYS) to a tile, K and behind it V; zeros for keys
// outside [from, to), whose slots may be another request's: what a score is masked for could still
// be infinite.
template <int HD, int KEYS, int THREADS>
static __device__ __forceinline__ void
msgl_rows16_load(const char *k, const char *v, size_t slot_bytes, int32_t head_dim,
                 const int32_t *slots, int32_t key0, int32_t from, int32_t to, uint32_t tile)
{
    const int CHUNKS = HD / 8, PITCH = msgl_rows16_pitch<HD>::BYTES;
#pragma unroll
    for (int i = 0; i < KEYS * CHUNKS / THREADS; i++) {
        const int32_t at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const int32_t key = key0 + row;
        const bool inside = key >= from && key < to && chunk * 8 < head_dim;
        const size_t src = inside ? (size_t)slots[key] * slot_bytes + chunk * 16 : 0;
        const uint32_t dst = tile + row * PITCH + chunk * 16;
        msgl__copy_async_16(dst, k + src, inside);
        msgl__copy_async_16(dst + KEYS * PITCH, v + src, inside);
    }
}

template <int HD> struct msgl_rows16 {
    uint32_t q[HD / 16][4];
    float o[HD / 8][4]; // sums of exp2(s - m) v
    float m[2], l[2];   // largest score; this lane's share of the sum of exp2(s - m)
};

// row: the lane's two rows of head_dim elements, or NULL for zeros.
template <typename T, int HD>
static __device__ __forceinline__ void msgl_rows16_start(const T *const row[2], int32_t head_dim,
                                                         int32_t lane, msgl_rows16<HD> *w)
{
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t d = ks * 16 + (i & 2) * 4 + lane % 4 * 2;
            const bool there = row[i & 1] != NULL && d < head_dim;
            w->q[ks][i] = there ? *(const uint32_t *)(row[i & 1] + d) : 0u;
        }
    }
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

// A tile of KEYS keys, K at `tile`, V behind it: scores, their softmax, the product with V.
template <typename T, int HD, int KEYS, typename SCORE, typename SEES>
static __device__ __forceinline__ void msgl_rows16_attend(const SCORE &score, uint32_t tile,
                                                          int32_t lane, const SEES &sees,
                                                          msgl_rows16<HD> *w)
{
    const int NB = KEYS / 8, PITCH = msgl_rows16_pitch<HD>::BYTES;
    float s[NB][4] = {};
    const uint32_t k_at = tile + ((lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
#pragma unroll
        for (int nb = 0; nb < NB; nb += 2) {
            uint32_t b[4];
            msgl__load_matrix_4(k_at + nb * 8 * PITCH + ks * 32, b);
            msgl__mma(s[nb], w->q[ks], b[0], b[1], T());
            msgl__mma(s[nb + 1], w->q[ks], b[2], b[3], T());
        }
    }
    msgl_rows16_softmax<HD, NB>(score, s, lane, sees, w);
    const uint32_t v_at = tile + (KEYS + (lane & 15)) * PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int kb = 0; kb < NB / 2; kb++) {
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[i] =
                msgl__pack_two(s[2 * kb + i / 2][i % 2 * 2], s[2 * kb + i / 2][i % 2 * 2 + 1], T());
        }
#pragma unroll
        for (int db = 0; db < HD / 16; db++) {
            uint32_t b[4];
            msgl__load_matrix_4_transposed(v_at + kb * 16 * PITCH + db * 32, b);
            msgl__mma(w->o[2 * db], p, b[0], b[1], T());
            msgl__mma(w->o[2 * db + 1], p, b[2], b[3], T());
        }
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

// Row r's result times `scale`, to head_dim elements from `out` on.
template <typename T, int HD>
static __device__ __forceinline__ void msgl_rows16_store(const msgl_rows16<HD> &w, int r,
                                                         float scale, int32_t head_dim,
                                                         int32_t lane, T *out)
{
#pragma unroll
    for (int nb = 0; nb < HD / 8; nb++) {
        if (nb * 8 >= head_dim) break;
        *(uint32_t *)(out + nb * 8 + lane % 4 * 2) =
            msgl__pack_two(w.o[nb][2 * r] * scale, w.o[nb][2 * r + 1] * scale, T());
    }
}

#endif
