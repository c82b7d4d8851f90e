// SPDX-License-Identifier: Apache-2.0
//
// What the decode kernels do with a tile: 16 keys, 16 rows of K and 16 of V in shared memory,
// fetched from wherever the table says, so page size 1 costs what page size 64 does. Rows are
// padded by 16 bytes, which keeps ldmatrix free of conflicts.
//
// A warp multiplies its tile by the query heads of its KV head and keeps its own online softmax
// (Milakov & Gimelshein 2018). Keys, then elements of V, are the 16 rows of m16n8k16, the query
// heads its 8 columns, so that up to eight heads (padded) cost one mma, and scores and results are
// held by all registers of a fragment.
//
// Of E4M3 a register that ldmatrix fills has four elements, of one key or of two, and which rows
// and columns of a product they are is ours to choose. With t and g as below: of K, thread t's four
// neighbours are its columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 (so q's elements are read in that
// order); of V, elements 2 g and 2 g + 1 are rows g and g + 8.
#ifndef MSGL_CUDA_ATTN_DECODE_TILE_CUH
#define MSGL_CUDA_ATTN_DECODE_TILE_CUH

#include "cuda/attn/decode/args.cuh"
#include "cuda/attn/page_row.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/ptx/e4m3.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

// Thread (g, t) = (lane / 4, lane % 4) of a warp has heads 8 n + 2 t and the one after it.
template <typename T, int HD, int ROWS> struct msgl_decode_warp {
    static const int N = ROWS / 8; // octets of query heads
    uint32_t q[HD / 16][N][2];
    float o[HD / 16][N][4]; // elements 16 i + g of both heads, then 16 i + g + 8; or as below
    float m[N][2], l[N][2]; // l: of this thread's keys
};

// Of E4M3 these are 16 i + 2 g and the one behind it.
template <typename T>
static __device__ __forceinline__ int32_t msgl_decode_element(int32_t lane, int i)
{
    return msgl_decode_types<T>::BYTES == 2 ? i * 8 + lane / 4 : i / 2 * 16 + lane / 4 * 2 + i % 2;
}

// In place of where a tile's KV head is in a slot, and of a row's page and slot.
enum {
    MSGL_DECODE_NO_TILE = -1,
    MSGL_DECODE_NO_SLOT = -1, // a row of zeros: past the end, or the newest token's
};

// A tile that is to come.
struct msgl_decode_tile {
    int32_t where; // its KV head is in a slot, in bytes
    int32_t place; // of its first key (cuda/attn/call.h)
};

// Whether this launch rotates the new tokens.
template <typename S>
static __device__ __forceinline__ bool msgl_decode_rotates(const msgl_decode_args &a)
{
    if constexpr (S::ROPE) return a.rope.on;
    return false;
}

// Copies 16 bytes of slot `slot` of slots of `bytes` bytes that start at src; a negative slot is
// zeros. L2 fetches 128 bytes at a time: 1-3 % faster from 64x1024 on (one run of each; why was not
// looked into). FIRST: they are the first to leave the L2, where K and V of a step are more than it
// holds; then tables, lengths and activations stay.
template <bool FIRST>
static __device__ __forceinline__ void msgl_decode_copy_16(uint32_t dst, const void *src,
                                                           int32_t slot, uint32_t bytes)
{
    // What createpolicy.fractional makes of evict_first and evict_normal.
    const uint64_t policy = FIRST ? 0x12f0000000000000u : 0x1000000000000000u;
    asm volatile("{\n"
                 ".reg .pred zeros;\n"
                 ".reg .u64 from;\n"
                 "setp.lt.s32 zeros, %2, 0;\n"
                 "mad.wide.u32 from, %2, %3, %1;\n"
                 "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [from], 16, zeros, %4;\n"
                 "}\n" ::"r"(dst),
                 "l"(src), "r"(slot), "r"(bytes), "l"(policy)
                 : "memory");
}

// Entry `row` of a tile that is to come: a page becomes a slot. Early, so that nobody waits for it
// where the tile is fetched.
static __device__ __forceinline__ void msgl_decode_resolve(const msgl_decode_args &a,
                                                           int32_t *entry, int32_t page,
                                                           int32_t place, int32_t row)
{
    if (page != MSGL_DECODE_NO_SLOT) *entry = msgl__page_slot(a.paging, page, place + row);
}

// Fetches a tile. All slots are read before the first copy: one wait instead of one per row.
template <int HD, int EACH, int PITCH, bool FIRST>
static __device__ __forceinline__ void msgl_decode_issue(const msgl_decode_args &a, int32_t lane,
                                                         const int32_t *slots, int32_t where,
                                                         uint32_t stage)
{
    const int CHUNKS = HD * EACH / 16; // of 16 bytes per row
    const int N = MSGL_FA_TILE * CHUNKS / 32;
    if (where == MSGL_DECODE_NO_TILE) return;
    const bool columns = 32 % CHUNKS == 0; // a lane has one column, N rows of it
    const int32_t first = columns ? lane / CHUNKS * N : 0;
    alignas(16) int32_t slot[N]; // where it is no registers, four are written at once
#pragma unroll
    for (int i = 0; i < N; i += !columns ? 1 : N % 4 == 0 ? 4 : 2) {
        if (columns && N % 4 == 0) {
            *(int4 *)(slot + i) = *(const int4 *)(slots + first + i);
        } else if (columns) {
            *(int2 *)(slot + i) = *(const int2 *)(slots + first + i);
        } else {
            slot[i] = slots[(i * 32 + lane) / CHUNKS];
        }
    }
    const char *k = (const char *)a.k + (where & ~1);
    const char *v = (const char *)a.v + (where & ~1);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int32_t row = columns ? first + i : (i * 32 + lane) / CHUNKS;
        const int32_t at = (columns ? lane : i * 32 + lane) % CHUNKS * 16;
        const uint32_t dst = stage + row * PITCH + at;
        msgl_decode_copy_16<FIRST>(dst, k + at, slot[i], a.slot_bytes);
        msgl_decode_copy_16<FIRST>(dst + MSGL_FA_TILE * PITCH, v + at, slot[i], a.slot_bytes);
    }
}

// Query fragments; what is beyond the piece's heads does not matter.
template <typename T, int HD, int ROWS, int PITCH>
static __device__ __forceinline__ void msgl_decode_load_q(const char *input, int32_t lane,
                                                          msgl_decode_warp<T, HD, ROWS> *w)
{
    if constexpr (msgl_decode_types<T>::BYTES == 1) {
        const char *q = input + lane / 4 * PITCH + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < HD / 16 * (ROWS / 8); i++) {
            const int n = i % (ROWS / 8), ks = i / (ROWS / 8);
            const uint2 four = *(const uint2 *)(q + n * 8 * PITCH + ks * 32);
            w->q[ks][n][0] = msgl__bf16_to_f16(four.x);
            w->q[ks][n][1] = msgl__bf16_to_f16(four.y);
        }
        return;
    }
    const uint32_t at = msgl__shared_address(input) + (lane & 7) * PITCH + (lane >> 3) * 16;
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks += 2) {
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++) {
            uint32_t r[4];
            msgl__load_matrix_4(at + n * 8 * PITCH + ks * 32, r);
            w->q[ks][n][0] = r[0], w->q[ks][n][1] = r[1];
            w->q[ks + 1][n][0] = r[2], w->q[ks + 1][n][1] = r[3];
        }
    }
}

// The same straight from memory, of queries that are rotated. Heads beyond the piece's: zero.
template <typename T, int HD, int ROWS>
static __device__ __forceinline__ void msgl_decode_read_q(const msgl_decode_args &a,
                                                          const msgl_fa_walk &walk, int32_t lane,
                                                          msgl_decode_warp<T, HD, ROWS> *w)
{
    const int32_t g = lane / 4, t = lane % 4;
    const msgl_decode_head head = msgl_decode_find_head(a, walk.head);
    const bool wide = msgl_decode_types<T>::BYTES == 2;
    const uint16_t *q = (const uint16_t *)a.q + (size_t)walk.req * a.ld_q +
                        (size_t)(head.first + g) * HD + (wide ? 2 : 4) * t;
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
            const bool used = g + i / 2 * 8 < head.rows;
            const int at = i / 2 * 8 * HD + ks * 16 + i % 2 * (wide ? 8 : 2);
            const uint32_t two = used ? *(const uint32_t *)(q + at) : 0u;
            w->q[ks][i / 2][i % 2] = wide ? two : msgl__bf16_to_f16(two);
        }
    }
}

// Puts K and V of the newest token, the last one of tile `tile` in `stage`, into their rows.
template <int HD, typename S>
static __device__ __forceinline__ void msgl_decode_place_newest(char *stage, const char *input,
                                                                int32_t row, int32_t lane)
{
    const int CHUNKS = HD * S::EACH / 16;
    for (int32_t i = lane; i < 2 * CHUNKS; i += 32) {
        const int32_t v = i / CHUNKS, at = i % CHUNKS * 16;
        *(uint4 *)(stage + (v * MSGL_FA_TILE + row) * S::PITCH + at) =
            *(const uint4 *)(input + (S::ROWS + v) * S::INPUT_PITCH + at);
    }
    __syncwarp();
}

// Before the first tile of a piece.
template <typename T, int HD, int ROWS>
static __device__ __forceinline__ void msgl_decode_reset(msgl_decode_warp<T, HD, ROWS> *w)
{
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
#pragma unroll
        for (int i = 0; i < HD / 16 * 4; i++) w->o[i / 4][n][i % 4] = 0.f;
        w->m[n][0] = w->m[n][1] = -INFINITY;
        w->l[n][0] = w->l[n][1] = 0.f;
    }
}

// Scores of the tile's keys in two sums, so that one's products do not wait for each other.
template <typename T, int HD, int ROWS, int PITCH>
static __device__ __forceinline__ void msgl_decode_scores(uint32_t stage, int32_t lane,
                                                          const msgl_decode_warp<T, HD, ROWS> &w,
                                                          float s[2][ROWS / 8][4])
{
    const uint32_t k_at = stage + (lane & 15) * PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int i = 0; i < 2 * (ROWS / 8) * 4; i++) s[i % 2][i / 8][i / 2 % 4] = 0.f;
    const int STEPS = 3 - msgl_decode_types<T>::BYTES; // of 16 elements in four matrices
    uint32_t r[4];
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
        uint32_t k[4];
        if (ks % STEPS == 0) msgl__load_matrix_4(k_at + ks / STEPS * 32, r);
        if constexpr (STEPS == 1) {
#pragma unroll
            for (int i = 0; i < 4; i++) k[i] = r[i];
        } else {
            uint32_t low[2], high[2]; // keys g and g + 8
            msgl__e4m3_to_f16(r[ks % 2 * 2], low);
            msgl__e4m3_to_f16(r[ks % 2 * 2 + 1], high);
            k[0] = low[0], k[1] = high[0], k[2] = low[1], k[3] = high[1];
        }
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++) {
            msgl__mma(s[ks & 1][n], k, w.q[ks][n][0], w.q[ks][n][1],
                      typename msgl_decode_types<T>::product());
        }
    }
}

// Where this lane reads V of the tile in `stage`; 16 bits: keys of lanes 0-7 and 16-23, then the
// others, E4M3: the same halves of keys, 16 elements each. And the results of 16 elements of it.
template <int PITCH>
static __device__ __forceinline__ uint32_t msgl_decode_v_at(uint32_t stage, int32_t lane)
{
    return stage + (MSGL_FA_TILE + (lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 16;
}

template <typename T, int HD, int ROWS>
static __device__ __forceinline__ void msgl_decode_pv(const uint32_t v[4], int db,
                                                      const uint32_t p[ROWS / 8][2],
                                                      msgl_decode_warp<T, HD, ROWS> *w)
{
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        msgl__mma(w->o[db][n], v, p[n][0], p[n][1], typename msgl_decode_types<T>::product());
    }
}

// V of a tile in registers, four for each step of 16 elements, or two of E4M3.
template <typename T, int HD> struct msgl_decode_v {
    uint32_t r[HD / 16 * msgl_decode_types<T>::BYTES / 2][4];
};

template <typename T, int HD>
static __device__ __forceinline__ void msgl_decode_load_v(uint32_t v_at, msgl_decode_v<T, HD> *v)
{
#pragma unroll
    for (int i = 0; i < HD / 16 * msgl_decode_types<T>::BYTES / 2; i++) {
        msgl__load_matrix_4_transposed(v_at + i * 32, v->r[i]);
    }
}

// Of those, the fragment of elements [16 db, 16 db + 16).
template <typename T>
static __device__ __forceinline__ void msgl_decode_fragment(const uint32_t r[4], int db,
                                                            uint32_t v[4])
{
    if constexpr (msgl_decode_types<T>::BYTES == 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = r[i];
    } else {
        msgl__e4m3_to_f16_by_element(r[db % 2], v[0], v[1]);
        msgl__e4m3_to_f16_by_element(r[db % 2 + 2], v[2], v[3]);
    }
}

// Softmax of one tile's scores: probabilities as fragments, o and l rescaled. keys [0, 16) from
// key0; those outside [begin, end) are masked.
template <typename T, int HD, int ROWS>
static __device__ __forceinline__ void
msgl_decode_softmax(const msgl_decode_args &a, const float s[2][ROWS / 8][4], int32_t lane,
                    int32_t key0, int32_t begin, int32_t end, msgl_decode_warp<T, HD, ROWS> *w,
                    uint32_t p[ROWS / 8][2])
{
    const bool whole = key0 >= begin && key0 + MSGL_FA_TILE <= end;
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        float x[4]; // of keys g and g + 8, both heads each
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = (s[0][n][i] + s[1][n][i]) * a.scale_log2;
        if (a.cap_log2 > 0.f) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = a.cap_log2 * (1.f - __fdividef(2.f, 1.f + __expf(2.f * x[i])));
            }
        }
        if (!whole) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t key = key0 + i / 2 * 8 + lane / 4;
                if (key < begin || key >= end) x[i] = -INFINITY;
            }
        }
        float m[2] = {fmaxf(x[0], x[2]), fmaxf(x[1], x[3])};
#pragma unroll
        for (int d = 4; d < 32; d *= 2) {
            m[0] = fmaxf(m[0], __shfl_xor_sync(~0u, m[0], d));
            m[1] = fmaxf(m[1], __shfl_xor_sync(~0u, m[1], d));
        }
        const bool rises = m[0] > w->m[n][0] || m[1] > w->m[n][1];
        float alpha[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            m[h] = fmaxf(m[h], w->m[n][h]);
            alpha[h] = msgl__exp2(w->m[n][h] - m[h]);
            w->m[n][h] = m[h];
        }
        if (__any_sync(~0u, rises)) {
#pragma unroll
            for (int db = 0; db < HD / 16; db++) {
#pragma unroll
                for (int i = 0; i < 4; i++) w->o[db][n][i] *= alpha[i % 2];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = msgl__exp2(x[i] - m[i % 2]);
#pragma unroll
        for (int h = 0; h < 2; h++) w->l[n][h] = w->l[n][h] * alpha[h] + (x[h] + x[2 + h]);
        typedef typename msgl_decode_types<T>::product product;
        p[n][0] = msgl__transpose_8(msgl__pack_two(x[0], x[1], product()));
        p[n][1] = msgl__transpose_8(msgl__pack_two(x[2], x[3], product()));
    }
}

// After the last tile: sums of all the warp's keys, in every lane.
template <typename T, int HD, int ROWS>
static __device__ __forceinline__ void msgl_decode_sum(msgl_decode_warp<T, HD, ROWS> *w)
{
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) {
            w->l[n][0] += __shfl_xor_sync(~0u, w->l[n][0], d);
            w->l[n][1] += __shfl_xor_sync(~0u, w->l[n][1], d);
        }
    }
}

// Maximum and sum of each head to ml.
template <typename T, int HD, int ROWS>
static __device__ __forceinline__ void msgl_decode_put_ml(const msgl_decode_warp<T, HD, ROWS> &w,
                                                          int32_t lane, float2 *ml)
{
    const int32_t g = lane / 4, t = lane % 4;
    if (g >= 2) return;
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        ml[8 * n + 2 * t + g] = make_float2(g ? w.m[n][1] : w.m[n][0], g ? w.l[n][1] : w.l[n][0]);
    }
}

// Results of heads [first, first + COUNT) of octet n to rows of `sums`, PITCH floats apart.
template <int COUNT, int PITCH, typename T, int HD, int ROWS>
static __device__ __forceinline__ void msgl_decode_put_rows(const msgl_decode_warp<T, HD, ROWS> &w,
                                                            int n, int32_t first, int32_t lane,
                                                            float *sums)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t row = lane % 4 * 2 + h - first;
        if (row < 0 || row >= COUNT) continue;
        float *dst = sums + row * PITCH;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            dst[msgl_decode_element<T>(lane, i)] = w.o[i / 2][n][i % 2 * 2 + h];
        }
    }
}

// The end of a row of one head, with all its keys: two elements of the result, and the log-sum-exp
// once.
template <typename T, int HD>
static __device__ __forceinline__ void msgl_decode_store(const msgl_decode_args &a, int32_t req,
                                                         int32_t q_head, int32_t d, float2 sum,
                                                         float m, float l)
{
    typedef typename msgl_decode_types<T>::act act;
    act *out = (act *)a.out + (size_t)req * a.ld_out + (size_t)q_head * HD + d;
    const float sink = a.sinks != NULL ? msgl__attn_sink(a.sinks[q_head], m) : 0.f;
    const float scale = a.out_scale / (l + sink);
    *(uint32_t *)out = msgl__pack_two(sum.x * scale, sum.y * scale, act());
    if (a.lse != NULL && d == 0) {
        a.lse[(size_t)req * a.q_heads + q_head] = (m + log2f(l)) * 0.6931471805599453f;
    }
}

#endif
