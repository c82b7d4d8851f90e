// SPDX-License-Identifier: Apache-2.0
//
// Family delta for heads of any dimension, any activations and both rules, a decay for all rows of
// S or one for each (Kimi Delta Attention): token by token with S in registers
// (states/recur.cuh). Convolution, gates and the norms of q and k are made a few tokens at a time,
// while the inputs of the next ones are loaded; norm and gate of the results come behind, for
// whole heads.
//
// Limits. An answer reads and writes S: of Kimi Linear's 32 heads of 128 x 128 f32 and 64 requests
// 2 x 134 MB a layer, 0.056 ms of an H200's 4.8 TB/s. A prompt's token takes 8 operations an
// element of S, 4.2 MFLOP, 0.06 us of its 67 TFLOPS in f32; S^T k has to be there before S changes,
// so that a token also takes two sums over lanes, one after the other.
#include "cuda/delta/delta.h"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/states/recur.cuh"
#include "cuda/states/states.h"
#include "kernel/pointwise.h"

struct any_args {
    states_args io;
    const void *qkv, *a, *b;
    size_t ld_qkv, ld_a, ld_b;
    void *out;
    size_t ld_out;
    const float *conv, *a_log, *dt_bias;
    bool by_channel;
    int k_heads, group_size; // group_size: v heads of a k head
    int k_dim, v_dim, channels;
    size_t ring_at; // bytes; of the convolution's inputs in a state
    int parts;      // blocks of a v head
    float q_scale;
};

// ROWS of a thread, TOKENS of a tile.
template <int R, int T> struct any_shape : recur_shape<R> {
    static const int ROWS = R, TOKENS = T;
    // Channels of a block, all of q and k and its columns of v, and those of a thread.
    static const int ALL = 2 * recur_shape<R>::MOST + RECUR_COLUMNS;
    static const int OWN = (ALL + RECUR_THREADS - 1) / RECUR_THREADS;
    static const int DECAYS = TOKENS * recur_shape<R>::MOST / RECUR_THREADS; // of a thread
};

template <class C> struct any_smem {
    float q[C::TOKENS][C::SPREAD], k[C::TOKENS][C::SPREAD], decay[C::TOKENS][C::SPREAD];
    float v[C::TOKENS][RECUR_COLUMNS];
    float q_by[C::TOKENS], k_by[C::TOKENS]; // what norms and scale multiply q and k by
    float beta[C::TOKENS];
};

// Where a block's channel c is: with k_dim 128 c 130 is element 2 of k.
struct any_channel {
    int channel, part, at; // part: 0 q, 1 k, 2 v, -1: not there; at: its element there
};

static __device__ __forceinline__ any_channel channel_of(const any_args &p, const recur_thread &me,
                                                         int c)
{
    const int k_head = me.head / p.group_size, keys = p.k_heads * p.k_dim;
    any_channel r;
    r.part = c < p.k_dim ? 0 : c < 2 * p.k_dim ? 1 : 2;
    r.at = c - r.part * p.k_dim;
    if (r.part < 2) {
        r.channel = r.part * keys + k_head * p.k_dim + r.at;
        return r;
    }
    const int column = me.part * RECUR_COLUMNS + r.at;
    r.channel = 2 * keys + me.head * p.v_dim + column;
    if (r.at >= RECUR_COLUMNS || column >= p.v_dim) r.part = -1;
    return r;
}

// A thread's part of a tile on its way, and the inputs in front of it.
template <typename T, class C> struct any_tile {
    T x[C::OWN][C::TOKENS], a[C::DECAYS], b;
    float past[C::OWN][MSGL_DELTA_TAPS - 1]; // the newest last

    __device__ __forceinline__ void begin(const any_args &p, const recur_thread &me,
                                          const states_request &q)
    {
#pragma unroll
        for (int j = 0; j < C::OWN; j++) {
            const any_channel c = channel_of(p, me, j * RECUR_THREADS + (int)threadIdx.x);
#pragma unroll
            for (int i = 0; i < MSGL_DELTA_TAPS - 1; i++) {
                const int pos = q.first - (MSGL_DELTA_TAPS - 1) + i;
                past[j][i] = 0;
                if (c.part < 0 || q.from < 0 || pos < 0) continue;
                const T *ring = (const T *)(p.io.at<char>(q.from) + p.ring_at);
                past[j][i] = to_f32(ring[(size_t)(pos % MSGL_DELTA_TAPS) * p.channels + c.channel]);
            }
        }
    }

    // n tokens from row `row` on.
    __device__ __forceinline__ void load(const any_args &p, const recur_thread &me, int row, int n)
    {
        const int tid = (int)threadIdx.x;
        const T zero = from_f32<T>(0.f);
#pragma unroll
        for (int j = 0; j < C::OWN; j++) {
            const any_channel c = channel_of(p, me, j * RECUR_THREADS + tid);
            const T *at = (const T *)p.qkv + (size_t)row * p.ld_qkv + c.channel;
#pragma unroll
            for (int t = 0; t < C::TOKENS; t++) {
                x[j][t] = c.part >= 0 && t < n ? at[(size_t)t * p.ld_qkv] : zero;
            }
        }
#pragma unroll
        for (int i = 0; i < C::DECAYS; i++) {
            const int e = i * RECUR_THREADS + tid, t = e / C::MOST, d = e % C::MOST;
            const T *at = (const T *)p.a + (size_t)(row + t) * p.ld_a;
            const int column = p.by_channel ? me.head * p.k_dim + d : me.head;
            a[i] = t < n && d < p.k_dim ? at[column] : zero;
        }
        b = tid < n ? ((const T *)p.b)[(size_t)(row + tid) * p.ld_b + me.head] : zero;
    }

    // Convolution, silu and gates of n tokens.
    __device__ __forceinline__ void put(const any_args &p, const recur_thread &me, int n,
                                        any_smem<C> &to)
    {
#pragma unroll
        for (int j = 0; j < C::OWN; j++) {
            const any_channel c = channel_of(p, me, j * RECUR_THREADS + (int)threadIdx.x);
            if (c.part < 0) continue;
            const float *w = p.conv + (size_t)c.channel * MSGL_DELTA_TAPS;
            const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
#pragma unroll
            for (int t = 0; t < C::TOKENS; t++) {
                if (t >= n) break;
                const float now = to_f32(x[j][t]);
                const float y = silu_f32(
                    fmaf(w3, now, fmaf(w2, past[j][2], fmaf(w1, past[j][1], w0 * past[j][0]))));
                past[j][0] = past[j][1], past[j][1] = past[j][2], past[j][2] = now;
                if (c.part == 2)
                    to.v[t][c.at] = y;
                else
                    (c.part == 0 ? to.q : to.k)[t][C::at(c.at)] = y;
            }
        }
        put_gates(p, me, n, to);
    }

    __device__ __forceinline__ void put_gates(const any_args &p, const recur_thread &me, int n,
                                              any_smem<C> &to) const
    {
        const int tid = (int)threadIdx.x;
        const float rate = expf(p.a_log[me.head]);
#pragma unroll
        for (int i = 0; i < C::DECAYS; i++) {
            const int e = i * RECUR_THREADS + tid, t = e / C::MOST, d = e % C::MOST;
            if (t >= n || d >= p.k_dim) continue;
            const float bias = p.dt_bias[p.by_channel ? me.head * p.k_dim + d : me.head];
            to.decay[t][C::at(d)] = expf(-rate * msgl__softplus(to_f32(a[i]) + bias));
        }
        if (tid < n) to.beta[tid] = sigmoid_f32(to_f32(b));
    }
};

// The norms of q and k of n tokens, a warp each in turn.
template <class C>
static __device__ __forceinline__ void put_norms(const any_args &p, int n, any_smem<C> &smem)
{
    const int lane = (int)threadIdx.x % 32;
    for (int i = (int)threadIdx.x / 32; i < 2 * n; i += RECUR_WARPS) {
        const int t = i / 2;
        const float *v = i % 2 == 0 ? smem.q[t] : smem.k[t];
        float sum = 0;
        for (int d = lane; d < p.k_dim; d += 32) sum = fmaf(v[C::at(d)], v[C::at(d)], sum);
        const float by = 1.0f / sqrtf(group_sum(sum, 32) + 1e-6f);
        if (lane == 0) (i % 2 == 0 ? smem.q_by : smem.k_by)[t] = i % 2 == 0 ? by * p.q_scale : by;
    }
}

// S decays and takes token t of the tile in; S^T q of the thread's column.
template <class C>
static __device__ __forceinline__ float step(recur_state<C::ROWS> &s, const any_smem<C> &smem,
                                             int t, const recur_thread &me)
{
    const int group = me.group * C::STRIDE;
    const float *q = smem.q[t] + group, *k = smem.k[t] + group, *decay = smem.decay[t] + group;
    const float k_by = smem.k_by[t], q_by = smem.q_by[t], beta = smem.beta[t] * k_by;
    float4 had = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 k4 = *(const float4 *)(k + i), g4 = *(const float4 *)(decay + i);
        const float kr[4] = {k4.x, k4.y, k4.z, k4.w}, gr[4] = {g4.x, g4.y, g4.z, g4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 v = s.rows[i + j];
            const float seen = gr[j] * kr[j];
            had.x = fmaf(v.x, seen, had.x), had.y = fmaf(v.y, seen, had.y);
            had.z = fmaf(v.z, seen, had.z), had.w = fmaf(v.w, seen, had.w);
        }
    }
    had = sum_rows(had);
    const float4 v = *(const float4 *)&smem.v[t][me.own()];
    const float4 u = make_float4(beta * fmaf(-k_by, had.x, v.x), beta * fmaf(-k_by, had.y, v.y),
                                 beta * fmaf(-k_by, had.z, v.z), beta * fmaf(-k_by, had.w, v.w));
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 k4 = *(const float4 *)(k + i), g4 = *(const float4 *)(decay + i);
        const float4 q4 = *(const float4 *)(q + i);
        const float kr[4] = {k4.x, k4.y, k4.z, k4.w}, gr[4] = {g4.x, g4.y, g4.z, g4.w};
        const float qr[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 &r = s.rows[i + j];
            r.x = fmaf(kr[j], u.x, r.x * gr[j]), r.y = fmaf(kr[j], u.y, r.y * gr[j]);
            r.z = fmaf(kr[j], u.z, r.z * gr[j]), r.w = fmaf(kr[j], u.w, r.w * gr[j]);
            o.x = fmaf(r.x, qr[j], o.x), o.y = fmaf(r.y, qr[j], o.y);
            o.z = fmaf(r.z, qr[j], o.z), o.w = fmaf(r.w, qr[j], o.w);
        }
    }
    return q_by * sum_rows_apart(o, me);
}

// q, k and decays of rows that are not there are never written but here.
template <class C> static __device__ __forceinline__ void clear(any_smem<C> &smem)
{
    float *const all = (float *)&smem;
    for (int i = (int)threadIdx.x; i < (int)(sizeof smem / 4); i += RECUR_THREADS) all[i] = 0;
}

// Grid: parts of v heads, requests.
template <typename T, class C>
static __global__ void __launch_bounds__(RECUR_THREADS)
    delta_any(const __grid_constant__ any_args p)
{
    __shared__ __align__(16) any_smem<C> smem;
    msgl__pdl_trigger();
    const recur_thread me(p.parts, p.v_dim);
    states_request q = request_of(p.io, (int)blockIdx.y);
    const size_t matrix = (size_t)me.head * p.k_dim * p.v_dim;
    T *const out = (T *)p.out + (size_t)me.head * p.v_dim;
    if (q.to < 0) {
        msgl__pdl_wait();
        clear_results(out, p.ld_out, q, me);
        return;
    }
    recur_state<C::ROWS> s; // as what is in front of the tile, older than the step
    s.load(me.active && q.from >= 0 ? p.io.at<float>(q.from) + matrix : NULL, me, p.k_dim, p.v_dim);
    any_tile<T, C> tile;
    tile.begin(p, me, q);
    clear(smem);
    msgl__pdl_wait();
    tile.load(p, me, q.row, min(q.tokens, (int)C::TOKENS));
    for (int first = 0; first < q.tokens; first += C::TOKENS) {
        const int n = min(q.tokens - first, (int)C::TOKENS);
        __syncthreads(); // all have read the tile before
        tile.put(p, me, n, smem);
        __syncthreads();
        put_norms(p, n, smem);
        __syncthreads();
        if (first + C::TOKENS < q.tokens) {
            tile.load(p, me, q.row + first + C::TOKENS,
                      min(q.tokens - first - C::TOKENS, (int)C::TOKENS));
        }
        for (int t = 0; me.active && t < n; t++) {
            store_result(out + (size_t)(q.row + first + t) * p.ld_out, me, step<C>(s, smem, t, me));
            keep_saves(p.io, q, q.first + first + t, [&](int state) {
                s.store(p.io.at<float>(state) + matrix, me, p.k_dim, p.v_dim);
            });
        }
    }
    if (me.active) s.store(p.io.at<float>(q.to) + matrix, me, p.k_dim, p.v_dim);
}

// Answers have one token, and the more blocks an SM has room for the better.
template <typename T> static void (*kernel_of(const msgl_delta_call *c))(any_args)
{
    const bool small = c->k_dim <= recur_shape<16>::MOST;
    if (c->io.seqs->phase == MSGL_DECODE) {
        return small ? delta_any<T, any_shape<16, 1>> : delta_any<T, any_shape<32, 1>>;
    }
    return small ? delta_any<T, any_shape<16, 4>> : delta_any<T, any_shape<32, 2>>;
}

template <typename T> static void launch(msgl_exec *x, const msgl_delta_call *c)
{
    any_args p = {};
    p.io = states_args_of(&c->io);
    p.qkv = c->qkv, p.a = c->a, p.b = c->b;
    p.ld_qkv = c->ld_qkv, p.ld_a = c->ld_a, p.ld_b = c->ld_b;
    p.out = c->out, p.ld_out = c->ld_out;
    p.conv = c->conv, p.a_log = c->a_log, p.dt_bias = c->dt_bias, p.by_channel = c->by_channel;
    p.k_heads = c->k_heads, p.group_size = c->v_heads / c->k_heads;
    p.k_dim = c->k_dim, p.v_dim = c->v_dim, p.channels = msgl__delta_channels(c);
    p.ring_at = msgl__delta_matrix_bytes(c);
    p.parts = (c->v_dim + RECUR_COLUMNS - 1) / RECUR_COLUMNS;
    p.q_scale = 1.0f / sqrtf((float)c->k_dim);
    const dim3 grid((unsigned)(c->v_heads * p.parts), (unsigned)c->io.seqs->size);
    MSGL_CUDA_TRY(
        x, msgl__launch(kernel_of<T>(c), grid, dim3(RECUR_THREADS), 0, msgl__cuda_stream(x), p));
}

// The convolution's inputs, which are those of family conv.
static void keep_inputs(msgl_exec *x, const msgl_delta_call *c)
{
    msgl_conv_call conv = {};
    conv.io = c->io;
    conv.io.base = (char *)c->io.base + msgl__delta_matrix_bytes(c);
    conv.channels = msgl__delta_channels(c), conv.taps = MSGL_DELTA_TAPS;
    conv.in = c->qkv, conv.ld_in = c->ld_qkv;
    msgl__cuda_conv_keep(x, &conv);
}

extern "C" void msgl__cuda_delta_any(msgl_exec *x, const msgl_delta_call *c)
{
    if (c->io.seqs->size == 0 || c->io.seqs->num_tokens == 0) return;
    if (c->k_dim > MSGL_DELTA_MAX_DIM || !aligned16(c->io.base) || c->io.stride % 16 != 0) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    MSGL_BY_DTYPE(x->act, launch, x, c);
    keep_inputs(x, c);
    msgl_cuda_gate_norm rows = {};
    rows.y = c->out, rows.ld_y = c->ld_out, rows.z = c->z, rows.ld_z = c->ld_z;
    rows.dim = c->v_heads * c->v_dim, rows.groups = c->v_heads;
    rows.norm = MSGL_SSM_NORM_FIRST, rows.weight = c->norm, rows.same_weight = true;
    rows.eps = c->norm_eps, rows.z_scale = 1, rows.sigmoid = c->sigmoid_gate;
    msgl__cuda_gate_norm_rows(x, &c->io, &rows);
}
