// SPDX-License-Identifier: Apache-2.0
//
// Family rope: one kernel norms and rotates the heads of q and k in place and stores k and v in the
// pool, so that the projection's output is read once. How a head is shared by lanes: rope_head.cuh.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/pool_e4m3.cuh"
#include "cuda/ops/rope_head.cuh"

static __global__ void table_kernel(const int32_t *positions, int tokens, const float *inv_freq,
                                    int half, float scale, float *cos_sin)
{
    msgl__pdl_trigger();
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    msgl__pdl_wait();
    if (at >= (size_t)tokens * (size_t)half) return;
    const size_t t = at / (size_t)half, i = at % (size_t)half;
    float s, c;
    sincosf((float)positions[t] * inv_freq[i], &s, &c);
    float *row = cos_sin + t * 2 * (size_t)half;
    row[i] = c * scale;
    row[(size_t)half + i] = s * scale;
}

// The call by value, for kernels; heads: q, then k, then v.
struct rope_args {
    void *qkv;
    size_t ld;
    int32_t tokens, num_q_heads, num_kv_heads, head_dim, v_dim, half;
    const float *q_weight, *k_weight, *v_weight, *cos_sin;
    float eps, clip; // clip: infinity where there is none
    bool norm_behind;
    void *k_pool, *v_pool;
    float k_inverse, v_inverse; // of a pool of E4M3: what K and V are multiplied by
    const int32_t *slots;
};

// A group of eight to the pool.
template <typename KV>
static __device__ __forceinline__ void store_group(KV *p, const float v[8], float)
{
    store8(p, v);
}

static __device__ __forceinline__ void store_group(pool_e4m3 *p, const float v[8], float inverse)
{
    float scaled[8];
#pragma unroll
    for (int i = 0; i < 8; i++) scaled[i] = __fmul_rn(v[i], inverse);
    store8(p, scaled);
}

template <typename KV>
static __device__ __forceinline__ KV *pool_row(const rope_args &a, int head, int32_t slot)
{
    const bool is_k = head < a.num_q_heads + a.num_kv_heads;
    const int kv = head - a.num_q_heads - (is_k ? 0 : a.num_kv_heads);
    KV *pool = (KV *)(is_k ? a.k_pool : a.v_pool);
    const int dim = is_k ? a.head_dim : a.v_dim;
    return pool + ((size_t)slot * (size_t)a.num_kv_heads + (size_t)kv) * (size_t)dim;
}

static __device__ __forceinline__ const float *head_weight(const rope_args &a, int head)
{
    return head < a.num_q_heads                    ? a.q_weight
           : head < a.num_q_heads + a.num_kv_heads ? a.k_weight
                                                   : a.v_weight;
}

// Groups `first` and `second` of a head's norm weights, where the head has them.
static __device__ __forceinline__ void read_weights(const rope_args &a, int head, int first,
                                                    int second, float w1[8], float w2[8])
{
    const float *weight = head_weight(a, head);
    if (weight == NULL) return;
    if (first * 8 < a.head_dim) load8(weight + first * 8, w1);
    if (second * 8 < a.head_dim) load8(weight + second * 8, w2);
}

static __device__ __forceinline__ float clipped(float v, float most)
{
    return v > most ? most : v < -most ? -most : v; // a NaN stays one
}

// LANES lanes per head; blockIdx.x: token, the block's lane groups and blockIdx.y share its heads.
// ONE: a lane group has one head at most, whose weights are read before the wait.
template <typename T, typename KV, int LANES, bool ONE>
static __global__ void __launch_bounds__(256) rope_kernel(const rope_args a)
{
    msgl__pdl_trigger();
    const int j = (int)threadIdx.x % LANES, groups = (int)blockDim.x / LANES;
    const head_lane l = find_head_lane(j, a.half);
    const int first = l.first, second = l.second, chunks = a.head_dim / 8;
    const bool has_first = first < chunks, has_second = second < chunks;
    const int heads = a.num_q_heads + 2 * a.num_kv_heads;
    const size_t t = blockIdx.x;
    float w1[8], w2[8];
    const int only = (int)blockIdx.y * groups + (int)threadIdx.x / LANES;
    if (ONE) read_weights(a, only, first, second, w1, w2);
    msgl__pdl_wait();
    float c[8], s[8];
    if (l.rotates) {
        load8(a.cos_sin + t * 2 * (size_t)a.half + j * 8, c);
        load8(a.cos_sin + t * 2 * (size_t)a.half + a.half + j * 8, s);
    }
    const int32_t slot = a.slots[t];
    // All lanes of a warp take part in every round: group_sum shuffles.
    for (int base = (int)blockIdx.y * groups; base < heads; base += groups * (int)gridDim.y) {
        const int h = base + (int)threadIdx.x / LANES;
        const bool mine = h < heads, is_v = h >= a.num_q_heads + a.num_kv_heads;
        T *row = (T *)a.qkv + t * a.ld + (size_t)h * (size_t)a.head_dim;
        float p[8] = {0}, q[8] = {0};
        if (mine && has_first) load8(row + first * 8, p);
        if (mine && has_second) load8(row + second * 8, q);
#pragma unroll
        for (int i = 0; i < 8; i++) p[i] = clipped(p[i], a.clip), q[i] = clipped(q[i], a.clip);
        if (a.norm_behind && mine && !is_v && l.rotates) head_rotate(p, q, c, s);
        const float sum = group_sum(head_squares(p, q), LANES);
        if (!mine) continue;
        if (head_weight(a, h) != NULL) {
            const float scale = head_scale(sum, a.head_dim, a.eps);
            if (!ONE) read_weights(a, h, first, second, w1, w2);
            head_norm(p, w1, scale);
            head_norm(q, w2, scale);
        }
        if (!a.norm_behind && !is_v && l.rotates) head_rotate(p, q, c, s);
        if (!is_v) {
            if (has_first) store8(row + first * 8, p);
            if (has_second) store8(row + second * 8, q);
        }
        if (h >= a.num_q_heads) {
            KV *dst = pool_row<KV>(a, h, slot);
            const float inverse = is_v ? a.v_inverse : a.k_inverse;
            if (has_first) store_group(dst + first * 8, p, inverse);
            if (has_second) store_group(dst + second * 8, q, inverse);
        }
    }
}

// The next three are a warp's, of a head in shared memory.
static __device__ __forceinline__ void rotate_any(float *head, const float *cos_sin, int half)
{
    for (int i = (int)threadIdx.x; i < half; i += 32) {
        const float c = cos_sin[i], s = cos_sin[half + i];
        const float u = head[i], w = head[half + i];
        head[i] = u * c - w * s;
        head[half + i] = w * c + u * s;
    }
    __syncwarp();
}

static __device__ __forceinline__ void norm_any(float *head, const float *weight, int dim,
                                                float eps)
{
    float sum = 0;
    for (int i = (int)threadIdx.x; i < dim; i += 32) sum += head[i] * head[i];
    sum = group_sum(sum, 32);
    const float inv = 1.0f / sqrtf(sum / (float)dim + eps);
    for (int i = (int)threadIdx.x; i < dim; i += 32) head[i] *= inv * weight[i];
    __syncwarp();
}

// Any half, stride and alignment: a warp per head, the head in shared memory.
template <typename T, typename KV> static __global__ void rope_any_kernel(const rope_args a)
{
    msgl__pdl_trigger();
    __shared__ float head[512];
    const int h = (int)blockIdx.y, lane = (int)threadIdx.x;
    const size_t t = blockIdx.x;
    const bool is_v = h >= a.num_q_heads + a.num_kv_heads;
    const float *weight = head_weight(a, h);
    msgl__pdl_wait();
    const float *cos_sin = a.cos_sin + t * 2 * (size_t)a.half;
    const int dim = is_v ? a.v_dim : a.head_dim;
    const int kv = h - a.num_q_heads - a.num_kv_heads; // of V
    const int at = is_v ? (a.num_q_heads + a.num_kv_heads) * a.head_dim + kv * dim : h * dim;
    T *row = (T *)a.qkv + t * a.ld + at;
    for (int i = lane; i < dim; i += 32) head[i] = clipped(to_f32(row[i]), a.clip);
    __syncwarp();
    if (weight != NULL && (is_v || !a.norm_behind)) norm_any(head, weight, dim, a.eps);
    if (!is_v) {
        rotate_any(head, cos_sin, a.half);
        if (weight != NULL && a.norm_behind) norm_any(head, weight, a.head_dim, a.eps);
        for (int i = lane; i < dim; i += 32) row[i] = from_f32<T>(head[i]);
    }
    if (h >= a.num_q_heads) {
        KV *dst = pool_row<KV>(a, h, a.slots[t]);
        const float inverse = is_v ? a.v_inverse : a.k_inverse;
        for (int i = lane; i < dim; i += 32) dst[i] = from_f32<KV>(head[i] * inverse);
    }
}

template <typename T, typename KV, int LANES> static void (*rope_of(bool one))(rope_args)
{
    return one ? rope_kernel<T, KV, LANES, true> : rope_kernel<T, KV, LANES, false>;
}

template <typename T, typename KV> static void rope(msgl_exec *x, const msgl_rope_call *c)
{
    const rope_args a = {.qkv = c->qkv,
                         .ld = c->ld,
                         .tokens = c->tokens,
                         .num_q_heads = c->num_q_heads,
                         .num_kv_heads = c->num_kv_heads,
                         .head_dim = c->head_dim,
                         .v_dim = c->v_dim > 0 ? c->v_dim : c->head_dim,
                         .half = c->half,
                         .q_weight = c->q_weight,
                         .k_weight = c->k_weight,
                         .v_weight = c->v_weight,
                         .cos_sin = c->cos_sin,
                         .eps = c->eps,
                         .clip = c->clip > 0 ? c->clip : INFINITY,
                         .norm_behind = c->norm_behind,
                         .k_pool = c->k_pool,
                         .v_pool = c->v_pool,
                         .k_inverse = c->kv_dtype == MSGL_E4M3 ? 1 / c->k_scale : 1,
                         .v_inverse = c->kv_dtype == MSGL_E4M3 ? 1 / c->v_scale : 1,
                         .slots = c->slots};
    const unsigned tokens = (unsigned)c->tokens;
    const int heads = c->num_q_heads + 2 * c->num_kv_heads;
    const bool vector = c->half % 8 == 0 && c->head_dim % 8 == 0 && c->head_dim <= 256 &&
                        a.v_dim == c->head_dim && c->ld % (16 / sizeof(T)) == 0 &&
                        aligned16(c->qkv) && aligned16(c->cos_sin) && aligned16(c->k_pool) &&
                        aligned16(c->v_pool) && (c->q_weight == NULL || aligned16(c->q_weight)) &&
                        (c->k_weight == NULL || aligned16(c->k_weight)) &&
                        (c->v_weight == NULL || aligned16(c->v_weight));
    if (!vector) {
        MSGL_CUDA_TRY(x, msgl__launch(rope_any_kernel<T, KV>, dim3(tokens, (unsigned)heads),
                                      dim3(32), 0, msgl__cuda_stream(x), a));
        return;
    }
    const int lanes = MSGL_HEAD_LANES(c->head_dim);
    // Few tokens: a lane group per head, in blocks of two warps. Many: a block per token, whose
    // lane groups keep the angles for several heads.
    const bool few = tokens <= 4 * (unsigned)msgl__cuda_device(x)->sm_count;
    const int threads = few ? 64 : 128, groups = threads / lanes;
    const unsigned blocks = few ? (unsigned)((heads + groups - 1) / groups) : 1;
    void (*const fn)(rope_args) = lanes == 4   ? rope_of<T, KV, 4>(few)
                                  : lanes == 8 ? rope_of<T, KV, 8>(few)
                                               : rope_of<T, KV, 16>(few);
    MSGL_CUDA_TRY(x, msgl__launch(fn, dim3(tokens, blocks), dim3((unsigned)threads), 0,
                                  msgl__cuda_stream(x), a));
}

template <typename T> static void rope_act(msgl_exec *x, const msgl_rope_call *c)
{
    if (c->kv_dtype == MSGL_BF16) {
        rope<T, __nv_bfloat16>(x, c);
    } else if (c->kv_dtype == MSGL_F16) {
        rope<T, __half>(x, c);
    } else if (c->kv_dtype == MSGL_E4M3) {
        rope<T, pool_e4m3>(x, c);
    } else {
        rope<T, float>(x, c);
    }
}

extern "C" void msgl__cuda_qk_norm_rope_store(msgl_exec *x, const msgl_rope_call *c)
{
    if (c->tokens > 0) MSGL_BY_DTYPE(x->act, rope_act, x, c);
}

extern "C" void msgl__cuda_rope_table(msgl_exec *x, const int32_t *positions, int tokens,
                                      const float *inv_freq, int half, float scale, float *cos_sin)
{
    const size_t n = (size_t)tokens * (size_t)half;
    if (n == 0) return;
    MSGL_CUDA_TRY(x, msgl__launch(table_kernel, dim3((unsigned)((n + 127) / 128)), dim3(128), 0,
                                  msgl__cuda_stream(x), positions, tokens, inv_freq, half, scale,
                                  cos_sin));
}
