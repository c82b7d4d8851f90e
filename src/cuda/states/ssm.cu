// SPDX-License-Identifier: Apache-2.0
//
// Family ssm: the recurrence token by token with S in registers (recur.cuh), then gate and norm of
// whole rows. What a few tokens bring is loaded while those before them are worked on.
//
// Limits. An answer reads and writes S: of 128 heads of 64 x 128 f32 and 64 requests 2 x 268 MB a
// layer, 0.11 ms of an H200's 4.8 TB/s. A prompt's token takes 6 operations an element of S, 6.3
// MFLOP, 0.1 us of its 67 TFLOPS in f32, which is less than the model's products take: the
// recurrence needs no chunked form, whose sums would depend on cuts.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/states/recur.cuh"
#include "cuda/states/states.h"
#include "kernel/pointwise.h"

struct ssm_args {
    states_args io;
    const void *x, *b, *c, *dt;
    size_t ld_x, ld_dt;
    void *out;
    size_t ld_out;
    const float *a_log, *d, *dt_bias;
    float dt_min, dt_max, dt_scale;
    int group_heads; // of a group
    int head_dim, state_dim;
    int parts; // blocks of a head
};

// ROWS of a thread, TOKENS of a tile.
template <int R, int T> struct ssm_shape : recur_shape<R> {
    static const int ROWS = R, TOKENS = T;
    static const int XS = TOKENS * RECUR_COLUMNS; // elements of x in a tile
};

template <class C> struct ssm_smem {
    float b[C::TOKENS][C::SPREAD], c[C::TOKENS][C::SPREAD];
    float x[C::TOKENS][RECUR_COLUMNS];
    float dt[C::TOKENS], decay[C::TOKENS];
};

// A thread's part of a tile on its way.
template <typename T, class C> struct ssm_tile {
    static const int VALUES = C::TOKENS * C::MOST / RECUR_THREADS;
    static const int OWN = (C::XS + RECUR_THREADS - 1) / RECUR_THREADS; // of x
    T b[VALUES], c[VALUES], x[OWN], dt;

    // n tokens from row `row` on; zeros where there is nothing.
    __device__ __forceinline__ void load(const ssm_args &p, const recur_thread &me, int row, int n)
    {
        const int tid = (int)threadIdx.x, first = me.head / p.group_heads * p.state_dim;
        const T zero = from_f32<T>(0.f);
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const int e = i * RECUR_THREADS + tid, t = e / C::MOST, d = e % C::MOST;
            const bool there = t < n && d < p.state_dim;
            const size_t at = (size_t)(row + t) * p.ld_x + (first + d);
            b[i] = there ? ((const T *)p.b)[at] : zero;
            c[i] = there ? ((const T *)p.c)[at] : zero;
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int e = i * RECUR_THREADS + tid, t = e / RECUR_COLUMNS;
            const int column = me.part * RECUR_COLUMNS + e % RECUR_COLUMNS;
            const size_t at = (size_t)(row + t) * p.ld_x + (me.head * p.head_dim + column);
            x[i] = t < n && column < p.head_dim ? ((const T *)p.x)[at] : zero;
        }
        dt = tid < n ? ((const T *)p.dt)[(size_t)(row + tid) * p.ld_dt + me.head] : zero;
    }

    __device__ __forceinline__ void put(const ssm_args &p, const recur_thread &me,
                                        ssm_smem<C> &to) const
    {
        const int tid = (int)threadIdx.x;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const int e = i * RECUR_THREADS + tid, t = e / C::MOST, at = C::at(e % C::MOST);
            to.b[t][at] = to_f32(b[i]);
            to.c[t][at] = to_f32(c[i]);
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int e = i * RECUR_THREADS + tid;
            if (e < C::XS) to.x[e / RECUR_COLUMNS][e % RECUR_COLUMNS] = to_f32(x[i]);
        }
        if (tid >= C::TOKENS) return;
        const float raw = fmaf(to_f32(dt), p.dt_scale, p.dt_bias[me.head]);
        const float step = fminf(fmaxf(msgl__softplus(raw), p.dt_min), p.dt_max);
        to.dt[tid] = step;
        to.decay[tid] = expf(-step * expf(p.a_log[me.head]));
    }
};

// S takes token t of the tile in; S^T c of the thread's column.
template <class C>
static __device__ __forceinline__ float step(recur_state<C::ROWS> &s, const ssm_smem<C> &smem,
                                             int t, const recur_thread &me)
{
    const float4 x = *(const float4 *)&smem.x[t][me.own()];
    const float *b = smem.b[t] + me.group * C::STRIDE;
    const float *c = smem.c[t] + me.group * C::STRIDE;
    const float decay = smem.decay[t], dt = smem.dt[t];
    const float4 u = make_float4(dt * x.x, dt * x.y, dt * x.z, dt * x.w);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 b4 = *(const float4 *)(b + i), c4 = *(const float4 *)(c + i);
        const float br[4] = {b4.x, b4.y, b4.z, b4.w}, cr[4] = {c4.x, c4.y, c4.z, c4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 &v = s.rows[i + j];
            v.x = fmaf(v.x, decay, br[j] * u.x), v.y = fmaf(v.y, decay, br[j] * u.y);
            v.z = fmaf(v.z, decay, br[j] * u.z), v.w = fmaf(v.w, decay, br[j] * u.w);
            sum.x = fmaf(v.x, cr[j], sum.x), sum.y = fmaf(v.y, cr[j], sum.y);
            sum.z = fmaf(v.z, cr[j], sum.z), sum.w = fmaf(v.w, cr[j], sum.w);
        }
    }
    return sum_rows_apart(sum, me);
}

// Grid: parts of heads, requests.
template <typename T, class C>
static __global__ void __launch_bounds__(RECUR_THREADS)
    ssm_kernel(const __grid_constant__ ssm_args p)
{
    __shared__ __align__(16) ssm_smem<C> smem;
    msgl__pdl_trigger();
    const recur_thread me(p.parts, p.head_dim);
    states_request q = request_of(p.io, (int)blockIdx.y);
    const size_t matrix = (size_t)me.head * p.state_dim * p.head_dim;
    T *const out = (T *)p.out + (size_t)me.head * p.head_dim;
    if (q.to < 0) {
        msgl__pdl_wait();
        clear_results(out, p.ld_out, q, me);
        return;
    }
    recur_state<C::ROWS> s; // older than the step
    s.load(me.active && q.from >= 0 ? p.io.at<float>(q.from) + matrix : NULL, me, p.state_dim,
           p.head_dim);
    const float skip = p.d[me.head];
    msgl__pdl_wait();
    ssm_tile<T, C> tile;
    tile.load(p, me, q.row, min(q.tokens, (int)C::TOKENS));
    for (int first = 0; first < q.tokens; first += C::TOKENS) {
        const int n = min(q.tokens - first, (int)C::TOKENS), next = first + C::TOKENS;
        __syncthreads(); // all have read the tile before
        tile.put(p, me, smem);
        __syncthreads();
        if (next < q.tokens) {
            tile.load(p, me, q.row + next, min(q.tokens - next, (int)C::TOKENS));
        }
        for (int t = 0; me.active && t < n; t++) {
            const float y = step<C>(s, smem, t, me);
            store_result(out + (size_t)(q.row + first + t) * p.ld_out, me,
                         fmaf(skip, smem.x[t][me.own() + me.apart()], y));
            keep_saves(p.io, q, q.first + first + t, [&](int state) {
                s.store(p.io.at<float>(state) + matrix, me, p.state_dim, p.head_dim);
            });
        }
    }
    if (me.active) s.store(p.io.at<float>(q.to) + matrix, me, p.state_dim, p.head_dim);
}

// Answers have one token, and the more blocks an SM has room for the better.
template <typename T> static void (*kernel_of(const msgl_ssm_call *c))(ssm_args)
{
    const bool small = c->state_dim <= recur_shape<16>::MOST;
    if (c->io.seqs->phase == MSGL_DECODE) {
        return small ? ssm_kernel<T, ssm_shape<16, 1>> : ssm_kernel<T, ssm_shape<32, 1>>;
    }
    return small ? ssm_kernel<T, ssm_shape<16, 8>> : ssm_kernel<T, ssm_shape<32, 4>>;
}

template <typename T> static void launch(msgl_exec *x, const msgl_ssm_call *c)
{
    ssm_args p = {};
    p.io = states_args_of(&c->io);
    p.x = c->x, p.b = c->b, p.c = c->c, p.ld_x = c->ld_x;
    p.dt = c->dt, p.ld_dt = c->ld_z;
    p.out = c->out, p.ld_out = c->ld_out;
    p.a_log = c->a_log, p.d = c->d, p.dt_bias = c->dt_bias;
    p.dt_min = c->dt_min, p.dt_max = c->dt_max, p.dt_scale = c->dt_scale;
    p.group_heads = c->heads / c->groups;
    p.head_dim = c->head_dim, p.state_dim = c->state_dim;
    p.parts = (c->head_dim + RECUR_COLUMNS - 1) / RECUR_COLUMNS;
    const dim3 grid((unsigned)(c->heads * p.parts), (unsigned)c->io.seqs->size);
    MSGL_CUDA_TRY(
        x, msgl__launch(kernel_of<T>(c), grid, dim3(RECUR_THREADS), 0, msgl__cuda_stream(x), p));
}

// Parts of a row that no norm makes: enough for a few rows to fill a GPU.
static int free_parts(const msgl_ssm_call *c)
{
    enum { LEAST = 512 }; // elements of one
    int parts = 1;
    while (c->heads % (2 * parts) == 0 && c->heads * c->head_dim / (2 * parts) >= LEAST) parts *= 2;
    return parts;
}

extern "C" void msgl__cuda_ssm(msgl_exec *x, const msgl_ssm_call *c)
{
    if (c->io.seqs->size == 0 || c->io.seqs->num_tokens == 0) return;
    if (c->state_dim > MSGL_CUDA_MAX_STATE || !aligned16(c->io.base) || c->io.stride % 16 != 0) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    MSGL_BY_DTYPE(x->act, launch, x, c);
    msgl_cuda_gate_norm rows = {};
    rows.y = c->out, rows.ld_y = c->ld_out, rows.z = c->z, rows.ld_z = c->ld_z;
    rows.dim = c->heads * c->head_dim;
    rows.groups = c->norm == MSGL_SSM_NORM_NONE ? free_parts(c) : c->norm_groups;
    rows.norm = c->norm, rows.weight = c->norm_weight, rows.eps = c->norm_eps;
    rows.z_scale = c->z_scale;
    msgl__cuda_gate_norm_rows(x, &c->io, &rows);
}
