// SPDX-License-Identifier: Apache-2.0
//
// Family compress (kernel/compress.h). Every head, row and window is made alone, in one order that
// depends on the call's sizes and on its own request, so that its bits do, too.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/index.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/pool_e4m3.cuh"
#include "cuda/ops/rms.cuh"
#include "kernel/compress.h"

enum {
    ROTATE_WARPS = 4, // heads of a block
    STORE_THREADS = 128,
    MAKE_THREADS = 512, // of a window
    TOKENS = 8,         // that a block of make looks at
    TERMS = 4,          // that a thread of make asks for at a time
};

// --- heads --------------------------------------------------------------------------------------

// Where a head goes.
template <typename O>
static __device__ __forceinline__ O *rotated_to(const msgl_pair_rope_call &c, size_t token,
                                                size_t head)
{
    const size_t dim = (size_t)c.dim;
    return c.out != NULL ? (O *)c.out + token * c.ld_out + head * dim
                         : (O *)c.pool + (size_t)c.slots[token] * dim;
}

static __device__ __forceinline__ float rms_factor(float squares, int dim, float eps)
{
    return 1.0f / sqrtf(squares / (float)dim + eps);
}

// (a, b) by angle i.
static __device__ __forceinline__ float2 rotated_pair(float a, float b, const float *cos_sin,
                                                      int half, int i, bool back)
{
    const float c = cos_sin[i], s = back ? -cos_sin[half + i] : cos_sin[half + i];
    return make_float2(a * c - b * s, b * c + a * s);
}

// A warp a head, which it reads and writes once, eight elements at a time: memory is all that this
// takes. VECS eights a lane; pairs do not straddle them.
template <typename T, typename O, int VECS>
static __global__ void __launch_bounds__(ROTATE_WARPS * 32)
    rotate_kernel(const msgl_pair_rope_call c)
{
    msgl__pdl_trigger();
    const size_t at = (size_t)blockIdx.x * ROTATE_WARPS + threadIdx.x / 32;
    const size_t token = at / (size_t)c.heads, head = at % (size_t)c.heads;
    const int first = (int)threadIdx.x % 32 * 8;
    msgl__pdl_wait();
    if (token >= (size_t)c.tokens) return;
    const T *in = (const T *)c.in + token * c.ld_in + head * (size_t)c.dim;
    const float *cos_sin = c.cos_sin + token * 2 * (size_t)c.half;
    float v[VECS][8], squares = 0;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        if (first + i * 256 >= c.dim) break;
        load8(in + first + i * 256, v[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) squares += v[i][j] * v[i][j];
    }
    const float factor = c.normed ? rms_factor(group_sum(squares, 32), c.dim, c.eps) : 1.0f;
    O *to = rotated_to<O>(c, token, head);
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        const int d = first + i * 256, from = d - (c.dim - 2 * c.half); // of the first pair
        if (d >= c.dim) break;
        float weight[8];
        if (c.normed && c.weight != NULL) load8(c.weight + d, weight);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[i][j] *= c.normed && c.weight != NULL ? factor * weight[j] : factor;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            if (from + j < 0) continue;
            const float2 p =
                rotated_pair(v[i][j], v[i][j + 1], cos_sin, c.half, (from + j) / 2, c.back);
            v[i][j] = p.x, v[i][j + 1] = p.y;
        }
        store8(to + d, v[i]);
    }
}

// Any dim, stride and alignment. What a lane writes it alone has read again since all have read the
// head for its norm: `to` may be `in`.
template <typename T, typename O>
static __global__ void __launch_bounds__(ROTATE_WARPS * 32)
    rotate_any_kernel(const msgl_pair_rope_call c)
{
    msgl__pdl_trigger();
    const size_t at = (size_t)blockIdx.x * ROTATE_WARPS + threadIdx.x / 32;
    const size_t token = at / (size_t)c.heads, head = at % (size_t)c.heads;
    const int lane = (int)threadIdx.x % 32, plain = c.dim - 2 * c.half;
    msgl__pdl_wait();
    if (token >= (size_t)c.tokens) return;
    const T *in = (const T *)c.in + token * c.ld_in + head * (size_t)c.dim;
    const float *cos_sin = c.cos_sin + token * 2 * (size_t)c.half;
    float squares = 0;
    for (int i = lane; c.normed && i < c.dim; i += 32) squares += to_f32(in[i]) * to_f32(in[i]);
    const float factor = c.normed ? rms_factor(group_sum(squares, 32), c.dim, c.eps) : 1.0f;
    const float *weight = c.normed ? c.weight : NULL;
    O *to = rotated_to<O>(c, token, head);
    for (int i = lane; i < plain; i += 32) {
        to[i] = from_f32<O>(to_f32(in[i]) * (weight != NULL ? factor * weight[i] : factor));
    }
    for (int p = lane; p < c.half; p += 32) {
        const int i = plain + 2 * p;
        const float a = to_f32(in[i]) * (weight != NULL ? factor * weight[i] : factor);
        const float b = to_f32(in[i + 1]) * (weight != NULL ? factor * weight[i + 1] : factor);
        const float2 v = rotated_pair(a, b, cos_sin, c.half, p, c.back);
        to[i] = from_f32<O>(v.x), to[i + 1] = from_f32<O>(v.y);
    }
}

template <typename T, typename O> static void rotate_to(msgl_exec *x, const msgl_pair_rope_call *c)
{
    const bool to_pool = c->out == NULL;
    const bool vector = c->dim % 8 == 0 && c->ld_in % 8 == 0 && aligned16(c->in) &&
                        (c->weight == NULL || aligned16(c->weight)) &&
                        (to_pool ? aligned16(c->pool) : c->ld_out % 8 == 0 && aligned16(c->out));
    const size_t heads = (size_t)c->tokens * (size_t)c->heads;
    void (*const kernel)(msgl_pair_rope_call) = !vector         ? rotate_any_kernel<T, O>
                                                : c->dim <= 512 ? rotate_kernel<T, O, 2>
                                                                : rotate_kernel<T, O, 4>;
    MSGL_CUDA_TRY(x,
                  msgl__launch(kernel, dim3((unsigned)((heads + ROTATE_WARPS - 1) / ROTATE_WARPS)),
                               dim3(ROTATE_WARPS * 32), 0, msgl__cuda_stream(x), *c));
}

// Calls fn<T, element of a pool of dtype>(...).
#define BY_POOL(dtype, T, fn, ...)                                                                 \
    do {                                                                                           \
        if ((dtype) == MSGL_E4M3) {                                                                \
            fn<T, pool_e4m3>(__VA_ARGS__);                                                         \
        } else if ((dtype) == MSGL_BF16) {                                                         \
            fn<T, __nv_bfloat16>(__VA_ARGS__);                                                     \
        } else if ((dtype) == MSGL_F16) {                                                          \
            fn<T, __half>(__VA_ARGS__);                                                            \
        } else {                                                                                   \
            fn<T, float>(__VA_ARGS__);                                                             \
        }                                                                                          \
    } while (0)

template <typename T> static void rotate(msgl_exec *x, const msgl_pair_rope_call *c)
{
    if (c->out != NULL) {
        rotate_to<T, T>(x, c);
    } else {
        BY_POOL(c->dtype, T, rotate_to, x, c);
    }
}

extern "C" void msgl__cuda_rotate_pairs(msgl_exec *x, const msgl_pair_rope_call *c)
{
    if (c->tokens > 0 && c->heads > 0) MSGL_BY_DTYPE(x->act, rotate, x, c);
}

// --- raw rows -----------------------------------------------------------------------------------

// A block a row, which is copied, N elements at a time: memory is all that this takes.
template <typename T, typename O, int N>
static __global__ void __launch_bounds__(STORE_THREADS) store_kernel(const msgl_store_rows_call c)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const T *in = (const T *)c.in + (size_t)blockIdx.x * c.ld_in;
    O *to = (O *)c.pool + (size_t)c.slots[blockIdx.x] * (size_t)c.dim;
    for (int i = (int)threadIdx.x * N; i < c.dim; i += STORE_THREADS * N) {
        float v[N];
        load_n<N>(in + i, v);
        store_n<N>(to + i, v);
    }
}

template <typename T, typename O> static void store_to(msgl_exec *x, const msgl_store_rows_call *c)
{
    const bool vector =
        c->dim % 8 == 0 && c->ld_in % 8 == 0 && aligned16(c->in) && aligned16(c->pool);
    MSGL_CUDA_TRY(x, msgl__launch(vector ? store_kernel<T, O, 8> : store_kernel<T, O, 1>,
                                  dim3((unsigned)c->tokens), dim3(STORE_THREADS), 0,
                                  msgl__cuda_stream(x), *c));
}

template <typename T> static void store(msgl_exec *x, const msgl_store_rows_call *c)
{
    BY_POOL(c->dtype, T, store_to, x, c);
}

extern "C" void msgl__cuda_store_rows(msgl_exec *x, const msgl_store_rows_call *c)
{
    if (c->tokens > 0) MSGL_BY_DTYPE(x->act, store, x, c);
}

// --- windows ------------------------------------------------------------------------------------

struct make_args {
    msgl_compress_call c;
    msgl_seqs seqs; // c.seqs is the host's
    msgl_paging paging;
    int32_t lanes; // threads that share a row: eight elements each
};

// Softmax over what is added, of eight elements: m the largest gate, l the sum of exp(z - m), sum
// that times the values.
struct eight_sums {
    float m[8], l[8], sum[8];
};

// One of the two exponentials is exp(0). A NaN among the gates stays one.
static __device__ __forceinline__ void add_term(eight_sums &s, const float gate[8],
                                                const float bias[8], const float value[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float z = gate[i] + bias[i];
        const bool more = z > s.m[i];
        const float less = expf(more ? s.m[i] - z : z - s.m[i]);
        const float old = more ? less : 1.0f, p = more ? 1.0f : less;
        s.m[i] = more ? z : s.m[i];
        s.l[i] = s.l[i] * old + p;
        s.sum[i] = s.sum[i] * old + p * value[i];
    }
}

// A window's terms: the rate tokens of the window in front by their first series, where there are
// two of these and it exists, then its own rate tokens.
struct window {
    int32_t begin; // its first token
    int32_t from;  // that of term 0
    int32_t terms;
};

static __device__ __forceinline__ window window_of(const msgl_compress_call &c, int32_t end)
{
    window w;
    w.begin = end - c.rate;
    w.from = c.two_series && w.begin > 0 ? w.begin - c.rate : w.begin;
    w.terms = end - w.from;
    return w;
}

// Every num-th term from `first` on. Rows of TERMS of them are asked for at a time: their slots
// come from memory, too, and one row after the other would be a chain of its latencies.
template <typename R, bool VECTOR>
static __device__ __forceinline__ void add_terms(const make_args &a, const msgl_page_row &table,
                                                 const window &w, int first, int num, int at,
                                                 eight_sums &s)
{
    const msgl_compress_call &c = a.c;
    const int all = c.two_series ? 2 : 1;
#pragma unroll 1
    for (int term0 = first; term0 < w.terms; term0 += num * TERMS) {
        float value[TERMS][8], gate[TERMS][8];
#pragma unroll
        for (int i = 0; i < TERMS; i++) {
            const int term = term0 + i * num;
            if (term >= w.terms) break;
            const int32_t pos = w.from + term, series = c.two_series && pos >= w.begin ? 1 : 0;
            const R *row = (const R *)c.rows + (size_t)table[pos] * c.ld_rows + c.at +
                           (size_t)series * (size_t)c.dim;
            load8_within<VECTOR>(row, at, c.dim, value[i]);
            load8_within<VECTOR>(row + (size_t)all * (size_t)c.dim, at, c.dim, gate[i]);
        }
#pragma unroll
        for (int i = 0; i < TERMS; i++) {
            const int term = term0 + i * num;
            if (term >= w.terms) break;
            const int32_t pos = w.from + term, own = pos >= w.begin ? w.begin : w.from;
            const int series = c.two_series && pos >= w.begin ? 1 : 0;
            float bias[8];
            load8_within<VECTOR>(c.bias + (size_t)((pos - own) * all + series) * (size_t)c.dim, at,
                                 c.dim, bias);
            add_term(s, gate[i], bias, value[i]);
        }
    }
}

static __device__ __forceinline__ void store_value(void *pool, msgl_dtype dtype, size_t at, float v)
{
    switch (dtype) {
    case MSGL_E4M3: ((pool_e4m3 *)pool)[at] = from_f32<pool_e4m3>(v); break;
    case MSGL_BF16: ((__nv_bfloat16 *)pool)[at] = from_f32<__nv_bfloat16>(v); break;
    case MSGL_F16: ((__half *)pool)[at] = from_f32<__half>(v); break;
    default: ((float *)pool)[at] = v; break;
    }
}

// The norm and the rotation of row [dim], which is shared memory, into slot `slot`.
static __device__ __forceinline__ void finish_entry(const msgl_compress_call &c, const float *row,
                                                    float squares, int32_t begin, int32_t slot)
{
    const float factor = rms_factor(squares, c.dim, c.eps);
    const size_t to = (size_t)slot * (size_t)c.dim;
    const int plain = c.dim - 2 * c.half;
    for (int i = (int)threadIdx.x; i < plain; i += MAKE_THREADS) {
        store_value(c.pool, c.dtype, to + i, row[i] * (factor * c.weight[i]));
    }
    for (int p = (int)threadIdx.x; p < c.half; p += MAKE_THREADS) {
        const int i = plain + 2 * p;
        const float u = row[i] * (factor * c.weight[i]);
        const float v = row[i + 1] * (factor * c.weight[i + 1]);
        float sine, cosine;
        sincosf((float)begin * c.inv_freq[p], &sine, &cosine); // as the tables of angles have it
        sine *= c.scale, cosine *= c.scale;
        store_value(c.pool, c.dtype, to + i, u * cosine - v * sine);
        store_value(c.pool, c.dtype, to + i + 1, v * cosine + u * sine);
    }
}

// The entry of the window that ends with `token`, by the block, whose groups of threads share the
// terms.
template <typename R, bool VECTOR>
static __device__ __forceinline__ void make_entry(const make_args &a, int32_t token)
{
    // [groups, lanes * 8] each: first the groups' largest gates, then their sums.
    __shared__ float weights[MAKE_THREADS * 8], sums[MAKE_THREADS * 8];
    __shared__ float part[32];
    const msgl_compress_call &c = a.c;
    const msgl_index_token of = msgl__index_token(a.seqs, c.pages, c.page_stride, a.paging, token);
    const window w = window_of(c, of.keys);
    const int groups = MAKE_THREADS / a.lanes, width = a.lanes * 8;
    const int group = (int)threadIdx.x / a.lanes, at = (int)threadIdx.x % a.lanes * 8;
    eight_sums s;
#pragma unroll
    for (int i = 0; i < 8; i++) s.m[i] = -INFINITY, s.l[i] = s.sum[i] = 0;
    if (group < groups) {
        add_terms<R, VECTOR>(a, of.table, w, group, groups, at, s);
#pragma unroll
        for (int i = 0; i < 8; i++) weights[group * width + at + i] = s.m[i];
    }
    __syncthreads();
    if (group < groups) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float most = -INFINITY;
            for (int g = 0; g < groups; g++) most = fmaxf(most, weights[g * width + at + i]);
            const float by = expf(s.m[i] - most);
            s.l[i] *= by, s.sum[i] *= by;
        }
    }
    __syncthreads(); // all have read the largest gates
    if (group < groups) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            weights[group * width + at + i] = s.l[i];
            sums[group * width + at + i] = s.sum[i];
        }
    }
    __syncthreads();
    float squares = 0;
    for (int i = (int)threadIdx.x; i < c.dim; i += MAKE_THREADS) {
        float l = 0, sum = 0;
        for (int g = 0; g < groups; g++) l += weights[g * width + i], sum += sums[g * width + i];
        sums[i] = sum / l; // no other thread has this column
        squares += sums[i] * sums[i];
    }
    squares = block_sum(squares, part); // behind its barrier all of the row is there
    finish_entry(c, sums, squares, w.begin, c.slots[token]);
}

// A block TOKENS tokens, of which those that end a window are few: with a rate of 128 most blocks
// have none. What limits this is the raw rows, each of which is read once, or twice with two
// series, and where few windows end in a step the time until they come.
template <typename R, bool VECTOR>
static __global__ void __launch_bounds__(MAKE_THREADS)
    make_kernel(const __grid_constant__ make_args a)
{
    const msgl_compress_call &c = a.c;
    const int32_t first = (int32_t)blockIdx.x * TOKENS;
    const int32_t own = first + (int32_t)threadIdx.x % 32; // all warps look at the same ones
    msgl__pdl_trigger();
    msgl__pdl_wait();
    bool ends = false;
    if (own < first + TOKENS && own < a.seqs.num_tokens) {
        ends = msgl__index_token(a.seqs, c.pages, c.page_stride, a.paging, own).keys % c.rate == 0;
    }
    for (uint32_t left = __ballot_sync(MSGL_FULL_MASK, ends); left != 0; left &= left - 1) {
        make_entry<R, VECTOR>(a, first + __ffs((int)left) - 1);
        __syncthreads(); // the sums have been read
    }
}

template <typename R> static void make(msgl_exec *x, const msgl_compress_call *c)
{
    const make_args a = {*c, *c->seqs, msgl__paging_of(c->page_size), (c->dim + 7) / 8};
    const bool vector = c->dim % 8 == 0 && c->ld_rows % 8 == 0 && c->at % 8 == 0 &&
                        aligned16(c->rows) && aligned16(c->bias);
    MSGL_CUDA_TRY(x, msgl__launch(vector ? make_kernel<R, true> : make_kernel<R, false>,
                                  dim3((unsigned)((c->seqs->num_tokens + TOKENS - 1) / TOKENS)),
                                  dim3(MAKE_THREADS), 0, msgl__cuda_stream(x), a));
}

extern "C" void msgl__cuda_compress(msgl_exec *x, const msgl_compress_call *c)
{
    if (c->seqs->num_tokens > 0) MSGL_BY_DTYPE(c->rows_dtype, make, x, c);
}
