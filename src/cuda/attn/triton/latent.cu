// SPDX-License-Identifier: Apache-2.0
//
// Latent caches: a token's row of up to 576 elements is K of all heads and, its first 512, V. So
// all rows of a request, which are (token, head) pairs, read the same keys, and a block takes 16 or
// 64 of them. Answers: stage 1 (decode.cu) of a split. Chunks: rows of neighbouring tokens.
//
// A row's 512 sums are too many for a warp's registers. Four warps share 16 rows:
//
//     scores of a tile of 32 keys:   warp 0: keys 0-7      1: 8-15          2: 16-23    3: 24-31
//     sums:                          warp 0: V's 0-127     1: 128-255       2: 256-383  3: 384-511
//
// Between the two each needs the others' maxima and probabilities, which go through shared memory.
#include "attention/triton/splits.h"
#include "cuda/attn/rows16.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/attn/triton/latent.h"
#include "cuda/attn/triton/sight.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    DIM = 576, // most elements of a row
    V_DIM = MSGL_TRITON_MAX_V_DIM,
    KEYS = 32,        // of a tile
    COLUMN_WARPS = 4, // warps that share 16 rows, each with a range of columns
    COLUMNS = V_DIM / COLUMN_WARPS,
    PITCH = DIM * 2 + 16, // bytes; reads of fragments have no bank conflicts
    P_PITCH = KEYS * 2 + 16,
};

template <int ROWS> struct shape {
    static const int WARPS = ROWS / 16 * COLUMN_WARPS, THREADS = WARPS * 32;
    static const int Q = ROWS * PITCH, TILE = KEYS * PITCH, P = ROWS * P_PITCH;
    static const int BYTES = Q + 2 * TILE + P;
};

// What a block works on: rows [first, first + rows) of a request's (token, head) pairs, and keys.
struct work {
    int32_t req, split, first, rows, heads;
    int32_t token;           // of the batch, the request's first new one
    int32_t prefix;          // its older keys
    int32_t key_from, begin; // first key that any row sees, and of the first tile
    int32_t end;
};

// Answers: block (16 or 64 heads, split, request). Chunks: block (rows, 1, request), the last rows,
// which see the most keys, first. False: there is nothing to do.
template <int ROWS>
static __device__ __forceinline__ bool find_work(const msgl_triton_call &c, bool answers, work *w)
{
    const msgl_cuda_attn_call &a = c.attn;
    w->req = blockIdx.z;
    w->split = blockIdx.y;
    w->heads = a.num_q_heads;
    w->token = answers ? w->req : a.cu_seqlens_q[w->req];
    const int32_t tokens = answers ? 1 : a.cu_seqlens_q[w->req + 1] - w->token;
    const int32_t len = a.seqlens_k[w->req];
    w->prefix = len - tokens;
    w->first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    w->rows = min(tokens * w->heads - w->first, ROWS);
    if (w->rows <= 0) return false;
    if (answers) {
        const msgl_triton_range keys = msgl__triton_range(len, msgl__triton_seen(len, a.window),
                                                          c.num_kv_splits[w->req], w->split);
        w->key_from = w->begin = keys.begin;
        w->end = keys.end;
    } else {
        const int32_t least = c.tree != NULL ? w->prefix : w->prefix + w->first / w->heads;
        w->key_from = a.window >= 0 ? max(least - a.window, 0) : 0;
        w->begin = w->key_from / KEYS * KEYS; // at absolute places, whatever the chunk
        w->end = w->prefix + (w->first + w->rows - 1) / w->heads + 1;
    }
    return w->begin < w->end;
}

// A row of head_dim elements, or zeros, to shared memory, by a warp.
static __device__ __forceinline__ void bring_row(const void *from, bool there, int32_t head_dim,
                                                 int32_t lane, uint32_t to)
{
#pragma unroll
    for (int i = 0; i < (DIM / 8 + 31) / 32; i++) {
        const int32_t chunk = i * 32 + lane; // of 16 bytes
        const bool inside = there && chunk * 8 < head_dim;
        if (chunk < DIM / 8) {
            msgl__copy_async_16_line(to + chunk * 16,
                                     (const char *)from + (inside ? chunk * 16 : 0), inside);
        }
    }
}

template <typename T>
static __device__ __forceinline__ const T *query_row(const msgl_cuda_attn_call &a, const work &w,
                                                     int32_t row)
{
    const int32_t token = row / w.heads, head = row % w.heads;
    return (const T *)a.q + (size_t)(w.token + token) * a.ld_q + (size_t)head * a.head_dim;
}

// Scores of 16 rows, whose queries begin at q, and 8 keys.
template <typename T>
static __device__ __forceinline__ void scores(uint32_t q, uint32_t keys, int32_t lane, float s[4])
{
    float odd[4] = {};
    const uint32_t q_at = q + lane % 16 * PITCH + lane / 16 * 16;
    const uint32_t k_at = keys + lane % 8 * PITCH + lane / 8 * 16;
    s[0] = s[1] = s[2] = s[3] = 0.f;
#pragma unroll
    for (int d = 0; d < DIM / 32; d++) {
        uint32_t k[4], even_q[4], odd_q[4];
        msgl__load_matrix_4(k_at + d * 64, k);
        msgl__load_matrix_4(q_at + d * 64, even_q);
        msgl__load_matrix_4(q_at + d * 64 + 32, odd_q);
        msgl__mma(s, even_q, k[0], k[1], T());
        msgl__mma(odd, odd_q, k[2], k[3], T());
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] += odd[i];
}

// o += P V of 16 rows and COLUMNS columns of a tile.
template <typename T>
static __device__ __forceinline__ void values(uint32_t p, uint32_t v, int32_t lane,
                                              float (&o)[COLUMNS / 8][4])
{
#pragma unroll
    for (int kb = 0; kb < KEYS / 16; kb++) {
        uint32_t a[4];
        msgl__load_matrix_4(p + lane % 16 * P_PITCH + lane / 16 * 16 + kb * 32, a);
        const uint32_t v_at = v + (kb * 16 + lane % 16) * PITCH + lane / 16 * 16;
#pragma unroll
        for (int db = 0; db < COLUMNS / 16; db++) {
            uint32_t b[4];
            msgl__load_matrix_4_transposed(v_at + db * 32, b);
            msgl__mma(o[2 * db], a, b[0], b[1], T());
            msgl__mma(o[2 * db + 1], a, b[2], b[3], T());
        }
    }
}

// The lane's columns of row `row` of the work: of an answer the mean of a split and its weight, for
// stage 2, of a chunk the result. l: sum of exp2(s - m).
template <typename T>
static __device__ __forceinline__ void store_row(const msgl_triton_call &c, const work &w,
                                                 bool answers, int32_t row, int32_t column, int r,
                                                 float m, float l, const float (&o)[COLUMNS / 8][4])
{
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t token = row / w.heads, head = row % w.heads;
    const size_t at =
        ((size_t)w.req * w.heads + head) * MSGL_TRITON_MAX_SPLITS + (answers ? w.split : 0);
    float *partial = c.attn_logits + at * a.v_dim;
    T *out = (T *)a.out + (size_t)(w.token + token) * a.ld_out + (size_t)head * a.v_dim;
    const float sink = !answers && a.sinks != NULL ? msgl__attn_sink(a.sinks[head], m) : 0.f;
    const float scale = (answers ? 1.f : a.out_scale) / (l + sink);
    if (answers && column == 0) c.attn_lse[at] = (m + log2f(l)) * 0.6931471805599453f;
#pragma unroll
    for (int nb = 0; nb < COLUMNS / 8; nb++) {
        const int32_t d = column + nb * 8;
        if (d >= a.v_dim) break;
        const float x = o[nb][2 * r] * scale, y = o[nb][2 * r + 1] * scale;
        if (answers) {
            *(float2 *)(partial + d) = make_float2(x, y);
        } else {
            *(uint32_t *)(out + d) = msgl__pack_two(x, y, T());
        }
    }
}

template <typename T, int ROWS, bool ANSWERS>
static __global__ __launch_bounds__(shape<ROWS>::THREADS) void triton_latent(
    const __grid_constant__ msgl_triton_call c)
{
    typedef shape<ROWS> S;
    extern __shared__ __align__(128) char smem[];
    __shared__ float maxima[COLUMN_WARPS][ROWS], sums[COLUMN_WARPS][ROWS];
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t rows16 = warp / COLUMN_WARPS * 16, column_warp = warp % COLUMN_WARPS;
    const uint32_t q = msgl__shared_address(smem), ring = q + S::Q, p = ring + 2 * S::TILE;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    work w;
    if (!find_work<ROWS>(c, ANSWERS, &w)) return;

    const int32_t *slots = c.kv_indices + c.kv_indptr[w.req];
    const size_t slot_bytes = (size_t)a.head_dim * 2;
    const auto slot_of = [&](int32_t key) { // of the tile from `key` on, a lane each
        return key + lane >= w.key_from && key + lane < w.end ? slots[key + lane] : -1;
    };
    const auto bring = [&](int32_t key, int32_t slot, uint32_t to) {
#pragma unroll
        for (int i = 0; i < KEYS / S::WARPS; i++) {
            const int32_t row = i * S::WARPS + warp, from = __shfl_sync(~0u, slot, row);
            if (key >= w.end) continue;
            bring_row((const char *)a.k + (from >= 0 ? from * slot_bytes : 0), from >= 0,
                      a.head_dim, lane, to + row * PITCH);
        }
        msgl__copy_async_commit();
    };
    for (int32_t row = warp; row < ROWS; row += S::WARPS) {
        const bool there = row < w.rows;
        bring_row(query_row<T>(a, w, w.first + (there ? row : 0)), there, a.head_dim, lane,
                  q + row * PITCH);
    }
    bring(w.begin, slot_of(w.begin), ring); // and the queries
    bring(w.begin + KEYS, slot_of(w.begin + KEYS), ring + S::TILE);
    int32_t slot = slot_of(w.begin + 2 * KEYS); // read a tile ahead of where it is needed

    // The lane's rows.
    int32_t row[2];
    msgl_triton_sight sight(c, w.prefix);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        row[r] = rows16 + lane / 4 + r * 8;
        const int32_t token = (w.first + row[r]) / w.heads;
        if (!ANSWERS) sight.look(c, r, token, w.token + token, row[r] < w.rows);
    }
    const msgl_score score = {a.scale, a.softcap};
    const float log2e = 1.4426950408889634f;
    float o[COLUMNS / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0.f, 0.f};
    uint32_t stage = ring, other = ring + S::TILE;
    for (int32_t key = w.begin; key < w.end; key += KEYS) {
        msgl__copy_async_wait<1>();
        __syncthreads(); // the tile is there, for all
        float s[1][4];
        scores<T>(q + rows16 * PITCH, stage + column_warp * 8 * PITCH, lane, s[0]);
        score(s);
        const int32_t key0 = key + column_warp * 8 + lane % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                const int32_t at = key0 + i % 2;
                const bool sees = ANSWERS ? at < w.end : sight.sees(r, at);
                s[0][i] = sees ? s[0][i] * log2e : -INFINITY;
            }
            float most = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            if (lane % 4 == 0) maxima[column_warp][row[r]] = most;
        }
        __syncthreads(); // the maxima are
        float rescale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float next = m[r];
#pragma unroll
            for (int i = 0; i < COLUMN_WARPS; i++) next = fmaxf(next, maxima[i][row[r]]);
            const float base = next == -INFINITY ? 0.f : next; // nothing seen yet
            rescale[r] = msgl__exp2(m[r] - base);
            m[r] = next;
            const float x = msgl__exp2(s[0][2 * r] - base), y = msgl__exp2(s[0][2 * r + 1] - base);
            l[r] = l[r] * rescale[r] + (x + y);
            *(uint32_t *)(smem + S::Q + 2 * S::TILE + row[r] * P_PITCH +
                          (column_warp * 8 + lane % 4 * 2) * 2) = msgl__pack_two(x, y, T());
        }
#pragma unroll
        for (int nb = 0; nb < COLUMNS / 8; nb++) {
#pragma unroll
            for (int i = 0; i < 4; i++) o[nb][i] *= rescale[i / 2];
        }
        __syncthreads(); // the probabilities are
        values<T>(p + rows16 * P_PITCH, stage + column_warp * COLUMNS * 2, lane, o);
        __syncthreads(); // the tile is free
        bring(key + 2 * KEYS, slot, stage);
        slot = slot_of(key + 3 * KEYS);
        const uint32_t free = stage;
        stage = other;
        other = free;
    }
    msgl__copy_async_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
        if (lane % 4 == 0) sums[column_warp][row[r]] = l[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] >= w.rows) continue;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < COLUMN_WARPS; i++) sum += sums[i][row[r]];
        store_row<T>(c, w, ANSWERS, w.first + row[r], column_warp * COLUMNS + lane % 4 * 2, r, m[r],
                     sum, o);
    }
}

template <typename T, int ROWS, bool ANSWERS>
static cudaError_t launch(const msgl_triton_call &c, cudaStream_t s)
{
    typedef shape<ROWS> S;
    const int32_t tokens = ANSWERS ? 1 : c.attn.max_seqlen_q;
    const int32_t blocks = msgl__triton_div(tokens * c.attn.num_q_heads, ROWS);
    const dim3 grid((unsigned)blocks, ANSWERS ? MSGL_TRITON_MAX_SPLITS : 1, (unsigned)c.attn.batch);
    constexpr auto kernel = triton_latent<T, ROWS, ANSWERS>;
    const cudaError_t e = msgl__allow_shared<kernel>(S::BYTES);
    if (e != cudaSuccess) return e;
    return msgl__launch(kernel, grid, S::THREADS, S::BYTES, s, c);
}

// 64 rows take more shared memory than an SM of some architectures has, and are worth it from more
// than two tiles of 16 on.
template <typename T, bool ANSWERS>
static cudaError_t launch_rows(const msgl_triton_call &c, cudaStream_t s)
{
    msgl_gpu gpu;
    const cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    const bool large = gpu.major == 9 || gpu.major == 10;
    const int32_t rows = c.attn.num_q_heads * (ANSWERS ? 1 : c.attn.max_seqlen_q);
    return large && rows > 32 ? launch<T, 64, ANSWERS>(c, s) : launch<T, 16, ANSWERS>(c, s);
}

template <bool ANSWERS> static cudaError_t launch_dtype(const msgl_triton_call &c, cudaStream_t s)
{
    const msgl_cuda_attn_call &a = c.attn;
    const bool fits = a.head_dim <= DIM && a.v_dim <= V_DIM && a.head_dim % 8 == 0 &&
                      a.v_dim % 8 == 0 && a.num_kv_heads == 1;
    if (!fits) return cudaErrorNotSupported;
    switch (a.dtype) {
    case MSGL_BF16: return launch_rows<__nv_bfloat16, ANSWERS>(c, s);
    case MSGL_F16: return launch_rows<__half, ANSWERS>(c, s);
    default: return cudaErrorNotSupported;
    }
}

extern "C" int msgl__triton_latent_stage1(const msgl_triton_call *c, void *stream)
{
    return launch_dtype<true>(*c, (cudaStream_t)stream);
}

extern "C" int msgl__triton_latent_extend(const msgl_triton_call *c, void *stream)
{
    return launch_dtype<false>(*c, (cudaStream_t)stream);
}
