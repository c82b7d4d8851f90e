// SPDX-License-Identifier: Apache-2.0
//
// Attention of heads that no other kernel is made for, for every GPU with mma.m16n8k16 and
// cp.async: K of up to 512 elements (layers of Gemma 4 that see all tokens), and V of fewer than K
// (MiMo-V2: 192 and 128). One kernel for chunks, answers and drafts. Rows are (token, query head)
// pairs (packed_rows.cuh). A row's 512 sums are too many for a warp's registers, so four warps
// share 16 rows; of 512 elements and tiles of 64 keys:
//
//     scores of a tile:   warp 0: keys 0-15     1: 16-31        2: 32-47        3: 48-63
//     sums:               warp 0: V's 0-127     1: 128-255      2: 256-383      3: 384-511
//
// Between the two each needs the others' maxima and probabilities, which go through shared memory.
// Queries lie there, too, with one tile of K and one of V: V is on its way while scores are
// computed, the next K while V is multiplied. Answers are 16 rows with tiles of 32 keys, so that
// two blocks share an SM and one loads while the other computes.
//
// Keys are split where blocks are few. Tiles lie at absolute positions, so a row's bits do not
// depend on the chunk that it came in; deterministic, an answer's splits depend on its own length.
#include "cuda/attn/wide_sm80.h"

#include <algorithm>

#include "cuda/attn/last_key.cuh"
#include "cuda/attn/packed_rows.cuh"
#include "cuda/attn/page_row.cuh"
#include "cuda/attn/rows16.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/shared.cuh"

enum { COLUMN_WARPS = 4 }; // that share 16 rows

// QD, VD: elements of a head's K and V, filled up with zeros.
template <typename POOL, int QD_, int VD_, int ROWS_, int KEYS_> struct shape {
    typedef POOL T;
    static const int QD = QD_, VD = VD_, ROWS = ROWS_, KEYS = KEYS_;
    static const int EACH = msgl_pool_types<T>::BYTES; // of an element of the pool
    static const int WARPS = ROWS / 16 * COLUMN_WARPS, THREADS = WARPS * 32;
    static const int NB = KEYS / COLUMN_WARPS / 8; // blocks of eight keys that a warp scores
    static const int COLUMNS = VD / COLUMN_WARPS;  // of V that a warp sums
    // Bytes from row to row: 16 more than a multiple of 32 that leave fragments without conflicts.
    static const int Q_PITCH = QD * 2 + 16, K_PITCH = QD * EACH + 16, V_PITCH = VD * EACH + 16;
    static const int P_PITCH = KEYS * 2 + 16;
    static const int Q = ROWS * Q_PITCH, K = KEYS * K_PITCH, V = KEYS * V_PITCH;
    static const int BYTES = Q + K + V + ROWS * P_PITCH;
    static_assert(QD % 64 == 0 && COLUMNS % 32 == 0, "whole fragments of E4M3");
};

// What the lane's two rows see: keys [from, to), and of the new ones, in a tree, their path's.
struct sight {
    bool in_tree;
    int32_t prefix, from[2], to[2];
    uint64_t path[2];

    // Row r is new token `token` of the request; -1: there is no such row.
    __device__ __forceinline__ void look(const msgl_cuda_attn_call &c, const uint64_t *words,
                                         const msgl_packed_place &p, int r, int32_t token)
    {
        from[r] = to[r] = 0;
        path[r] = 0;
        if (token < 0) return;
        int32_t pos = p.prefix + token;
        to[r] = msgl__last_key(c, pos, p.len) + 1;
        if (in_tree) {
            path[r] = words[p.token + token];
            pos = p.prefix + __popcll(path[r]) - 1; // along the path
        }
        if (c.window >= 0) from[r] = max(pos - c.window, 0);
        // What the window has left behind of a path are its first tokens.
        for (int32_t i = p.prefix; in_tree && i < from[r]; i++) path[r] &= path[r] - 1;
    }

    __device__ __forceinline__ bool sees(int r, int32_t key) const
    {
        const int32_t token = key - prefix;
        return key >= from[r] && key < to[r] &&
               (!in_tree || token < 0 || (path[r] >> token & 1) != 0);
    }
};

// Keys of a block: [from, to) that any of its rows sees, in its split; of tiles within [all_from,
// all_to) all rows see all.
struct range {
    int32_t from, to, all_from, all_to;
};

template <class S>
static __device__ __forceinline__ range find_range(const msgl_cuda_attn_call &c, bool in_tree,
                                                   const msgl_packed_place &p, int32_t splits)
{
    const int32_t group = c.num_q_heads / c.num_kv_heads, window = c.window;
    const int32_t first = p.prefix + p.first / group; // positions of the block's rows
    const int32_t last = p.prefix + (p.first + p.rows - 1) / group;
    range k;
    k.from = window >= 0 ? max((in_tree ? p.prefix : first) - window, 0) : 0;
    k.all_from = window >= 0 ? max(last - window, 0) : 0;
    k.to = msgl__last_key(c, last, p.len) + 1;
    k.all_to = in_tree ? p.prefix : msgl__last_key(c, first, p.len) + 1;
    // Whole tiles to each split; behind the last one splits are without keys.
    const int32_t begin = k.from / S::KEYS, tiles = (k.to + S::KEYS - 1) / S::KEYS - begin;
    const int32_t each = (tiles + splits - 1) / splits;
    const int32_t at = (begin + (int32_t)blockIdx.z * each) * S::KEYS;
    k.from = max(k.from, at);
    k.to = min(k.to, at + each * S::KEYS);
    return k;
}

// A block's queries to shared memory, zeros for what is not there. Of E4M3 they become f16, in the
// order in which four neighbours of K's bytes are fragments: element 4 t + 2 h + e of sixteen goes
// to place 8 h + 2 t + e.
template <class S>
static __device__ __forceinline__ void
take_queries(const msgl_cuda_attn_call &c, const msgl_packed_place &p, int32_t kv_head, char *to)
{
    typedef typename msgl_pool_types<typename S::T>::act act;
    const int CHUNKS = S::QD / 8; // of 16 bytes
    const int32_t group = c.num_q_heads / c.num_kv_heads;
    for (int32_t i = threadIdx.x; i < S::ROWS * CHUNKS; i += S::THREADS) {
        const int32_t row = i / CHUNKS, chunk = i % CHUNKS, at = p.first + row;
        const int32_t token = p.token + at / group, head = kv_head * group + at % group;
        const bool there = row < p.rows && chunk * 8 < c.head_dim;
        const act *q = (const act *)c.q;
        if (there) q += (size_t)token * c.ld_q + (size_t)head * c.head_dim + chunk * 8;
        const uint4 v = there ? *(const uint4 *)q : make_uint4(0, 0, 0, 0);
        char *const row_at = to + row * S::Q_PITCH;
        if constexpr (S::EACH == 2) {
            *(uint4 *)(row_at + chunk * 16) = v;
        } else {
            const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int32_t place = chunk / 2 * 16 + j % 2 * 8 + chunk % 2 * 4 + j / 2 * 2;
                *(uint32_t *)(row_at + place * 2) = msgl__bf16_to_f16(pairs[j]);
            }
        }
    }
}

// Queues a warp's share of the copies of a tile of K or V, rows of up to DIM elements: lane i has
// the slot of the warp's key i % (KEYS / WARPS), negative where there is none.
template <class S, int DIM>
static __device__ __forceinline__ void bring(const char *pool, size_t slot_bytes, int32_t dim,
                                             int32_t slot, int32_t warp, int32_t lane, uint32_t to)
{
    const int OWN = S::KEYS / S::WARPS, CHUNKS = DIM * S::EACH / 16, COPIES = OWN * CHUNKS;
    const int PITCH = DIM * S::EACH + 16;
#pragma unroll
    for (int i = 0; i < (COPIES + 31) / 32; i++) {
        const int32_t at = i * 32 + lane, row = at / CHUNKS, chunk = at % CHUNKS;
        const int32_t from = __shfl_sync(~0u, slot, row);
        const bool there = from >= 0 && chunk * 16 < dim * S::EACH;
        if (at >= COPIES) continue;
        msgl__copy_async_16_line(to + (warp * OWN + row) * PITCH + chunk * 16,
                                 pool + (there ? from * slot_bytes + chunk * 16 : 0), there);
    }
}

// Fragments of eight keys and elements [32 d, 32 d + 32). held: of E4M3, what an even d has left
// for the next one.
template <class S>
static __device__ __forceinline__ void take_keys(uint32_t at, int d, uint32_t held[4],
                                                 uint32_t b[4])
{
    if constexpr (S::EACH == 2) {
        msgl__load_matrix_4(at + d * 64, b);
    } else {
        if (d % 2 == 0) msgl__load_matrix_4(at + d * 32, held);
        msgl__e4m3_to_f16(held[d % 2 * 2], b);
        msgl__e4m3_to_f16(held[d % 2 * 2 + 1], b + 2);
    }
}

// Products q.k of 16 rows, whose queries begin at q, and the warp's keys, which begin at `keys`.
template <class S>
static __device__ __forceinline__ void scores(uint32_t q, uint32_t keys, int32_t lane,
                                              float (&s)[S::NB][4])
{
    typedef typename msgl_pool_types<typename S::T>::product product;
    const uint32_t q_at = q + lane % 16 * S::Q_PITCH + lane / 16 * 16;
    const uint32_t k_at = keys + lane % 8 * S::K_PITCH + lane / 8 * 16;
    float odd[S::NB][4] = {};
    uint32_t held[S::NB][4];
#pragma unroll
    for (int nb = 0; nb < S::NB; nb++) s[nb][0] = s[nb][1] = s[nb][2] = s[nb][3] = 0.f;
#pragma unroll
    for (int d = 0; d < S::QD / 32; d++) { // 32 elements
        uint32_t even_q[4], odd_q[4], b[4];
        msgl__load_matrix_4(q_at + d * 64, even_q);
        msgl__load_matrix_4(q_at + d * 64 + 32, odd_q);
#pragma unroll
        for (int nb = 0; nb < S::NB; nb++) {
            take_keys<S>(k_at + nb * 8 * S::K_PITCH, d, held[nb], b);
            msgl__mma(s[nb], even_q, b[0], b[1], product());
            msgl__mma(odd[nb], odd_q, b[2], b[3], product());
        }
    }
#pragma unroll
    for (int nb = 0; nb < S::NB; nb++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[nb][i] += odd[nb][i];
    }
}

// o += P V of 16 rows, whose probabilities begin at p, and the warp's columns, which begin at v.
template <class S>
static __device__ __forceinline__ void values(uint32_t p, uint32_t v, int32_t lane,
                                              float (&o)[S::COLUMNS / 8][4])
{
    typedef typename msgl_pool_types<typename S::T>::product product;
#pragma unroll
    for (int kb = 0; kb < S::KEYS / 16; kb++) {
        uint32_t a[4], held[4];
        msgl__load_matrix_4(p + lane % 16 * S::P_PITCH + lane / 16 * 16 + kb * 32, a);
        const uint32_t v_at = v + (kb * 16 + lane % 16) * S::V_PITCH + lane / 16 * 16;
#pragma unroll
        for (int db = 0; db < S::COLUMNS / 16; db++) {
            uint32_t b[4];
            msgl_rows16_v<typename S::T>(v_at, db, held, b);
            msgl__mma(o[2 * db], a, b[0], b[1], product());
            msgl__mma(o[2 * db + 1], a, b[2], b[3], product());
        }
    }
}

// A warp's sums of 16 rows: of its columns, and each row's maximum and sum of all keys so far.
template <class S> struct running {
    float o[S::COLUMNS / 8][4];
    float m[2], l[2]; // l: of the warp's and the lane's keys
};

// Scores of the warp's keys to probabilities, which go to `p`. maxima: of each warp's keys.
template <class S>
static __device__ __forceinline__ void softmax(const float (&s)[S::NB][4], float (*maxima)[S::ROWS],
                                               const int32_t row[2], int32_t column, char *p,
                                               running<S> *w)
{
    typedef typename msgl_pool_types<typename S::T>::product product;
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float next = w->m[r];
#pragma unroll
        for (int i = 0; i < COLUMN_WARPS; i++) next = fmaxf(next, maxima[i][row[r]]);
        const float base = next == -INFINITY ? 0.f : next; // nothing seen yet
        rescale[r] = msgl__exp2(w->m[r] - base);
        w->m[r] = next;
        w->l[r] *= rescale[r];
#pragma unroll
        for (int nb = 0; nb < S::NB; nb++) {
            const float x = msgl__exp2(s[nb][2 * r] - base);
            const float y = msgl__exp2(s[nb][2 * r + 1] - base);
            w->l[r] += x + y;
            *(uint32_t *)(p + row[r] * S::P_PITCH + (column + nb * 8) * 2) =
                msgl__pack_two(x, y, product());
        }
    }
#pragma unroll
    for (int nb = 0; nb < S::COLUMNS / 8; nb++) {
#pragma unroll
        for (int i = 0; i < 4; i++) w->o[nb][i] *= rescale[i / 2];
    }
}

// Two neighbours of a result, or of a partial one.
template <typename ACT>
static __device__ __forceinline__ void put_two(ACT *out, float *partial, float x, float y)
{
    if (partial != NULL) {
        *(float2 *)partial = make_float2(x, y);
    } else {
        *(uint32_t *)out = msgl__pack_two(x, y, ACT());
    }
}

// Row r of the warp's, of (token, head) of the step, with all keys of the block. l: of all warps.
template <class S>
static __device__ __forceinline__ void
store_row(const msgl_cuda_attn_call &c, const msgl_packed_splits &t, int32_t token, int32_t head,
          int r, float l, int32_t column_warp, int32_t lane, const running<S> &w)
{
    typedef typename msgl_pool_types<typename S::T>::act act;
    const bool split = t.count > 1;
    const size_t at = msgl_packed_partial(c, split ? (int32_t)blockIdx.z : 0, token, head);
    const float sink = !split && c.sinks != NULL ? msgl__attn_sink(c.sinks[head], w.m[r]) : 0.f;
    const float scale = split ? 1.f : c.out_scale / (l + sink);
    if (column_warp == 0 && lane % 4 == 0) {
        if (split) t.ml[at] = make_float2(w.m[r], l);
        if (!split && c.lse != NULL) c.lse[at] = (w.m[r] + log2f(l)) * 0.6931471805599453f;
    }
    if (split && l == 0.f) return; // unread
    act *out = (act *)c.out + (size_t)token * c.ld_out + (size_t)head * c.v_dim;
    float *partial = split ? t.o + at * S::VD : NULL;
#pragma unroll
    for (int nb = 0; nb < S::COLUMNS / 8; nb += 3 - S::EACH) {
        const int32_t block = column_warp * S::COLUMNS + nb * 8;
        if (block >= c.v_dim) break;
        const float *x = w.o[nb] + 2 * r;
        if constexpr (S::EACH == 2) {
            const int32_t d = block + lane % 4 * 2;
            put_two(out + d, split ? partial + d : NULL, x[0] * scale, x[1] * scale);
        } else {
            const int32_t d = block + lane % 4 * 4;
            const float *y = w.o[nb + 1] + 2 * r;
            put_two(out + d, split ? partial + d : NULL, x[0] * scale, y[0] * scale);
            put_two(out + d + 2, split ? partial + d + 2 : NULL, x[1] * scale, y[1] * scale);
        }
    }
}

// Block (rows, KV head, split); the rows that see the most keys come first.
template <class S>
static __global__
__launch_bounds__(S::THREADS) void fa_wide(const __grid_constant__ msgl_cuda_attn_call c,
                                           const uint64_t *words, const msgl_packed_splits splits)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ float maxima[COLUMN_WARPS][S::ROWS], sums[COLUMN_WARPS][S::ROWS];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    const int32_t rows16 = warp / COLUMN_WARPS * 16, column_warp = warp % COLUMN_WARPS;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    msgl_packed_place p;
    if (!msgl_packed_find<S::ROWS>(c, gridDim.x - 1 - blockIdx.x, &p)) return;
    const range keys = find_range<S>(c, words != NULL, p, splits.count);

    const msgl_page_row table = msgl__page_row(c, c.table_rows[p.req]);
    const int OWN = S::KEYS / S::WARPS;
    // Of the warp's keys of a tile, a lane each: pages, which are asked for a tile ahead, and
    // slots.
    const int32_t own = warp * OWN + lane % OWN;
    const auto page_of = [&](int32_t key0) {
        const int32_t key = key0 + own;
        return key >= keys.from && key < keys.to ? table.page(key) : -1;
    };
    const auto slot_of = [&](int32_t key0, int32_t page) {
        return page >= 0 ? table.slot(page, key0 + own) : -1;
    };
    const size_t k_bytes = (size_t)c.head_dim * S::EACH, v_bytes = (size_t)c.v_dim * S::EACH;
    const char *k = (const char *)c.k + kv_head * k_bytes,
               *v = (const char *)c.v + kv_head * v_bytes;
    const uint32_t q_at = msgl__shared_address(smem), k_at = q_at + S::Q, v_at = k_at + S::K;
    const auto bring_k = [&](int32_t slot) {
        bring<S, S::QD>(k, c.num_kv_heads * k_bytes, c.head_dim, slot, warp, lane, k_at);
    };
    const auto bring_v = [&](int32_t slot) {
        bring<S, S::VD>(v, c.num_kv_heads * v_bytes, c.v_dim, slot, warp, lane, v_at);
    };
    const int32_t begin = keys.from / S::KEYS * S::KEYS;
    int32_t slot = slot_of(begin, page_of(begin)), page = page_of(begin + S::KEYS);
    if (begin < keys.to) bring_k(slot);
    msgl__copy_async_commit();
    if (begin < keys.to) bring_v(slot);
    msgl__copy_async_commit();
    take_queries<S>(c, p, kv_head, smem);

    // The lane's rows.
    const int32_t group = c.num_q_heads / c.num_kv_heads;
    int32_t row[2];
    sight see;
    see.in_tree = words != NULL;
    see.prefix = p.prefix;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        row[r] = rows16 + lane / 4 + r * 8;
        see.look(c, words, p, r, row[r] < p.rows ? (p.first + row[r]) / group : -1);
    }
    const msgl_score score = {c.scale, c.softcap};
    const int32_t column = column_warp * S::NB * 8 + lane % 4 * 2; // the lane's first key of a tile
    char *const probabilities = smem + S::Q + S::K + S::V;
    const uint32_t p_at = v_at + S::V + rows16 * S::P_PITCH;
    running<S> w = {{}, {-INFINITY, -INFINITY}, {0.f, 0.f}};
    for (int32_t key0 = begin; key0 < keys.to; key0 += S::KEYS) {
        const bool all = key0 >= keys.all_from && key0 + S::KEYS <= keys.all_to;
        float s[S::NB][4];
        msgl__copy_async_wait<1>();
        __syncthreads(); // K and the queries are there
        scores<S>(q_at + rows16 * S::Q_PITCH, k_at + column_warp * S::NB * 8 * S::K_PITCH, lane, s);
        score(s);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = -INFINITY;
#pragma unroll
            for (int nb = 0; nb < S::NB; nb++) {
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) {
                    const bool sees = all || see.sees(r, key0 + column + nb * 8 + i % 2);
                    s[nb][i] = sees ? __fmul_rn(s[nb][i], 1.4426950408889634f) : -INFINITY;
                    most = fmaxf(most, s[nb][i]);
                }
            }
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            if (lane % 4 == 0) maxima[column_warp][row[r]] = most;
        }
        __syncthreads(); // maxima are, and K has been read
        slot = slot_of(key0 + S::KEYS, page);
        page = page_of(key0 + 2 * S::KEYS);
        if (key0 + S::KEYS < keys.to) bring_k(slot);
        msgl__copy_async_commit();
        softmax<S>(s, maxima, row, column, probabilities, &w);
        msgl__copy_async_wait<1>();
        __syncthreads(); // V and the probabilities are there
        values<S>(p_at, v_at + column_warp * S::COLUMNS * S::EACH, lane, w.o);
        __syncthreads(); // and have been read
        if (key0 + S::KEYS < keys.to) bring_v(slot);
        msgl__copy_async_commit();
    }
    msgl__copy_async_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        w.l[r] += __shfl_xor_sync(~0u, w.l[r], 1);
        w.l[r] += __shfl_xor_sync(~0u, w.l[r], 2);
        if (lane % 4 == 0) sums[column_warp][row[r]] = w.l[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] >= p.rows) continue;
        float l = 0.f;
#pragma unroll
        for (int i = 0; i < COLUMN_WARPS; i++) l += sums[i][row[r]];
        const int32_t at = p.first + row[r];
        store_row<S>(c, splits, p.token + at / group, kv_head * group + at % group, r, l,
                     column_warp, lane, w);
    }
}

// Splits for about two blocks to an SM, each of LEAST tiles or more. Lengths are bounds.
template <class S>
static int32_t choose_splits(const msgl_cuda_attn_call &c, bool answers, int32_t sms)
{
    enum { LEAST = 4 };
    if (c.workspace == NULL) return 1;
    if (c.deterministic) return answers ? MSGL_WIDE_SPLITS : 1;
    const int32_t group = c.num_q_heads / c.num_kv_heads;
    const int32_t rows = std::max(c.batch, c.total_q * group / S::ROWS) * c.num_kv_heads;
    const bool near = c.window >= 0 && c.window < c.max_seqlen_k;
    const int32_t seen = near ? c.window + c.max_seqlen_q : c.max_seqlen_k;
    const int32_t room = MSGL_WIDE_PARTIALS / c.total_q;
    return std::max(
        1, std::min({2 * sms / rows, seen / (LEAST * S::KEYS), room, (int32_t)MSGL_WIDE_SPLITS}));
}

template <class S>
static cudaError_t launch(const msgl_cuda_attn_call &c, bool answers, const uint64_t *words,
                          int32_t sms, cudaStream_t stream)
{
    constexpr auto kernel = fa_wide<S>;
    cudaError_t e = msgl__allow_shared<kernel>(S::BYTES);
    if (e != cudaSuccess) return e;
    msgl_packed_splits t = {choose_splits<S>(c, answers, sms), (float2 *)c.workspace, NULL};
    const size_t partials = (size_t)t.count * c.total_q * c.num_q_heads;
    t.o = (float *)(t.ml + (partials + 1) / 2 * 2);
    const int32_t group = c.num_q_heads / c.num_kv_heads;
    const dim3 grid((unsigned)(c.total_q * group / S::ROWS + c.batch), (unsigned)c.num_kv_heads,
                    (unsigned)t.count);
    e = msgl__launch(kernel, grid, S::THREADS, S::BYTES, stream, c, words, t);
    if (e != cudaSuccess || t.count == 1) return e;
    return msgl_packed_merge_launch<typename msgl_pool_types<typename S::T>::act, S::VD>(c, t,
                                                                                         stream);
}

// Whether heads have the instance for MiMo-V2's, not that for the widest.
static bool narrow(int32_t head_dim, int32_t v_dim)
{
    return head_dim <= 192 && v_dim <= 128;
}

// 64 rows are worth it from more than two tiles of 16 on, but those of 512 elements take more
// shared memory than an SM of some architectures has. Deterministic, all chunks have the same.
template <typename T>
static cudaError_t launch_rows(const msgl_cuda_attn_call &c, bool answers, const uint64_t *words,
                               cudaStream_t s)
{
    msgl_gpu gpu;
    const cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    const int32_t rows = c.num_q_heads / c.num_kv_heads * (answers ? 1 : c.max_seqlen_q);
    const bool many = rows > 32 || (c.deterministic && !answers);
    if (narrow(c.head_dim, c.v_dim)) {
        return many ? launch<shape<T, 192, 128, 64, 64>>(c, answers, words, gpu.sms, s)
                    : launch<shape<T, 192, 128, 16, 32>>(c, answers, words, gpu.sms, s);
    }
    return many && (gpu.major == 9 || gpu.major == 10)
               ? launch<shape<T, 512, 512, 64, 64>>(c, answers, words, gpu.sms, s)
               : launch<shape<T, 512, 512, 16, 32>>(c, answers, words, gpu.sms, s);
}

extern "C" size_t msgl__fa_wide_workspace(int32_t num_q_heads, int32_t head_dim, int32_t v_dim,
                                          int32_t max_running, bool deterministic)
{
    const size_t dim = narrow(head_dim, v_dim) ? 128 : MSGL_WIDE_DIM;
    const size_t partials =
        deterministic ? (size_t)max_running * MSGL_WIDE_SPLITS : (size_t)MSGL_WIDE_PARTIALS;
    return partials * (size_t)num_q_heads * (2 + dim) * sizeof(float);
}

extern "C" int msgl__cuda_fa_wide(const msgl_cuda_attn_call *c, bool answers, const uint64_t *tree,
                                  void *stream)
{
    const cudaStream_t s = (cudaStream_t)stream;
    const msgl_dtype kv = c->e4m3 ? MSGL_E4M3 : c->dtype;
    if (!msgl__fa_wide_fits(kv, c->head_dim, c->v_dim) || c->k == c->v)
        return cudaErrorNotSupported;
    if (c->total_q == 0) return cudaSuccess;
    if (c->e4m3) {
        return c->dtype == MSGL_BF16 ? launch_rows<msgl_pool_e4m3>(*c, answers, tree, s)
                                     : cudaErrorNotSupported;
    }
    return c->dtype == MSGL_BF16 ? launch_rows<__nv_bfloat16>(*c, answers, tree, s)
                                 : launch_rows<__half>(*c, answers, tree, s);
}
