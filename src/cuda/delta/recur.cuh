// SPDX-License-Identifier: Apache-2.0
//
// The recurrence of one token, as the kernels for answers (decode_sm90.cu) and for answers with
// drafts (rows_sm90.cu) have it, so that both leave the same bits.
//
// A warp has some columns of S, all 128 rows: columns do not need each other, so that warps meet
// only for q, k and v in front and for the norm behind. S^T k and S^T q are summed in one tree
// whatever a warp's columns are: 16 sums of the rows of equal r % 16, halves of which are added.
#ifndef MSGL_CUDA_DELTA_RECUR_CUH
#define MSGL_CUDA_DELTA_RECUR_CUH

#include "cuda/delta/args.cuh"
#include "cuda/ptx/cluster.cuh"

enum { DIM = MSGL_DELTA_DIM, SUMS = 16 };

// LANES lanes of a warp have a row of its columns, four each; a block has BLOCK_WARPS warps.
template <int LANES, int BLOCK_WARPS> struct decode_shape {
    static const int WARPS = BLOCK_WARPS;
    static const int THREADS = WARPS * 32;
    static const int COLUMNS = LANES * 4;              // of a warp
    static const int SLICES = DIM / (COLUMNS * WARPS); // blocks of a v head
    static const int GROUPS = 32 / LANES;              // rows that a warp reads at once
    static const int ROWS = DIM / GROUPS;              // of a thread: group + GROUPS * i
    static const int SUMS_HERE = SUMS / GROUPS;        // of the tree's, in a thread
    static const int HEAD_WARPS = DIM / COLUMNS;       // warps of a v head
    static const int STRIDE = ROWS + 4;                // of a group's q and k: other banks
};

template <class C> struct decode_smem {
    float q[C::GROUPS * C::STRIDE], k[C::GROUPS * C::STRIDE], v[DIM];
    float decay, beta;
    float squares[C::HEAD_WARPS];
};

// One of q, k and v by a warp: four channels a lane.
struct decode_inputs {
    float4 taps[4];
    uint2 old[3];
};

static __device__ __forceinline__ float4 unpack4(uint2 v)
{
    const float2 lo = msgl__unpack_two(v.x, msgl_delta_act());
    const float2 hi = msgl__unpack_two(v.y, msgl_delta_act());
    return make_float4(lo.x, lo.y, hi.x, hi.y);
}

static __device__ __forceinline__ uint2 pack4(float4 v)
{
    return make_uint2(msgl__pack_two(v.x, v.y, msgl_delta_act()),
                      msgl__pack_two(v.z, v.w, msgl_delta_act()));
}

// Convolution, silu and, for q and k (scale > 0), the norm.
static __device__ __forceinline__ float4 mix(const decode_inputs &in, uint2 now, float scale)
{
    const float4 x0 = unpack4(in.old[0]), x1 = unpack4(in.old[1]), x2 = unpack4(in.old[2]);
    const float4 x3 = unpack4(now);
    float4 y = make_float4(delta_conv(in.taps[0], x0.x, x1.x, x2.x, x3.x),
                           delta_conv(in.taps[1], x0.y, x1.y, x2.y, x3.y),
                           delta_conv(in.taps[2], x0.z, x1.z, x2.z, x3.z),
                           delta_conv(in.taps[3], x0.w, x1.w, x2.w, x3.w));
    if (scale > 0) {
        const float sum = group_sum(fmaf(y.x, y.x, y.y * y.y) + fmaf(y.z, y.z, y.w * y.w), 32);
        const float by = scale * rsqrtf(sum + 1e-6f);
        y.x *= by, y.y *= by, y.z *= by, y.w *= by;
    }
    return y;
}

// The inputs' rows into a state, `all` of them or the token's alone.
static __device__ __forceinline__ void keep_inputs(const msgl_delta_args &p, int channel, int state,
                                                   int pos, const decode_inputs &in, uint2 now,
                                                   bool all)
{
    *(uint2 *)(p.ring(state, pos) + channel) = now;
#pragma unroll
    for (int i = 0; all && i < 3; i++) {
        *(uint2 *)(p.ring(state, pos + 1 + i) + channel) = in.old[i]; // position pos - 3 + i
    }
}

// Four values of channel `at` of q or k to where the threads that have these rows look for them.
template <class C> static __device__ __forceinline__ void spread(float *rows, int at, float4 y)
{
    const float v[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        rows[(at + j) % C::GROUPS * C::STRIDE + (at + j) / C::GROUPS] = v[j];
    }
}

// The tree of a column's sum: the thread's own, then other lanes'.
template <class C> static __device__ __forceinline__ float4 tree(float4 (&part)[C::SUMS_HERE])
{
#pragma unroll
    for (int half = C::SUMS_HERE / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) {
            part[i].x += part[i + half].x, part[i].y += part[i + half].y;
            part[i].z += part[i + half].z, part[i].w += part[i + half].w;
        }
    }
    float4 v = part[0];
#pragma unroll
    for (int step = 16; step >= 32 / C::GROUPS; step /= 2) {
        v.x += __shfl_xor_sync(MSGL_FULL_MASK, v.x, step);
        v.y += __shfl_xor_sync(MSGL_FULL_MASK, v.y, step);
        v.z += __shfl_xor_sync(MSGL_FULL_MASK, v.z, step);
        v.w += __shfl_xor_sync(MSGL_FULL_MASK, v.w, step);
    }
    return v;
}

// A thread's rows of S.
template <class C> struct decode_registers {
    float4 rows[C::ROWS];
    __device__ __forceinline__ float4 get(int i) const
    {
        return rows[i];
    }
    __device__ __forceinline__ void put(int i, float4 v)
    {
        rows[i] = v;
    }
};

// Between registers and a matrix in memory, from the thread's first element on; NULL: zeros.
template <class C>
static __device__ __forceinline__ void load_rows(decode_registers<C> &s, const float *from)
{
#pragma unroll
    for (int i = 0; i < C::ROWS; i++) {
        s.rows[i] =
            from != NULL ? *(const float4 *)(from + i * C::GROUPS * DIM) : make_float4(0, 0, 0, 0);
    }
}

template <class C>
static __device__ __forceinline__ void store_rows(const decode_registers<C> &s, float *to)
{
#pragma unroll
    for (int i = 0; i < C::ROWS; i++) *(float4 *)(to + i * C::GROUPS * DIM) = s.rows[i];
}

// S decays and takes the token in; o = S^T q. q and k: of the thread's rows.
template <class C, class S>
static __device__ __forceinline__ float4 step_state(S &s, const float *q, const float *k, float4 v,
                                                    float decay, float beta)
{
    float4 part[C::SUMS_HERE] = {};
#pragma unroll
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 k4 = *(const float4 *)(k + i);
        const float kr[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 t = s.get(i + j);
            float4 &d = part[j % C::SUMS_HERE];
            d.x = fmaf(t.x, kr[j], d.x), d.y = fmaf(t.y, kr[j], d.y);
            d.z = fmaf(t.z, kr[j], d.z), d.w = fmaf(t.w, kr[j], d.w);
        }
    }
    const float4 had = tree<C>(part);
    const float4 u = make_float4(beta * fmaf(-decay, had.x, v.x), beta * fmaf(-decay, had.y, v.y),
                                 beta * fmaf(-decay, had.z, v.z), beta * fmaf(-decay, had.w, v.w));
#pragma unroll
    for (int i = 0; i < C::SUMS_HERE; i++) part[i] = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 k4 = *(const float4 *)(k + i), q4 = *(const float4 *)(q + i);
        const float kr[4] = {k4.x, k4.y, k4.z, k4.w}, qr[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 t = s.get(i + j);
            float4 &d = part[j % C::SUMS_HERE];
            t.x = fmaf(kr[j], u.x, t.x * decay), t.y = fmaf(kr[j], u.y, t.y * decay);
            t.z = fmaf(kr[j], u.z, t.z * decay), t.w = fmaf(kr[j], u.w, t.w * decay);
            d.x = fmaf(t.x, qr[j], d.x), d.y = fmaf(t.y, qr[j], d.y);
            d.z = fmaf(t.z, qr[j], d.z), d.w = fmaf(t.w, qr[j], d.w);
            s.put(i + j, t);
        }
    }
    return tree<C>(part);
}

// Sum over the v head's columns of the squares of o, four a lane, through all blocks of the head:
// neighbours first, so that it does not matter where a warp's columns end.
template <class C>
static __device__ __forceinline__ float head_squares(decode_smem<C> &smem, float4 o, int part)
{
    float sum = fmaf(o.x, o.x, o.y * o.y) + fmaf(o.z, o.z, o.w * o.w);
#pragma unroll
    for (int step = 1; step < C::COLUMNS / 4; step *= 2)
        sum += __shfl_xor_sync(MSGL_FULL_MASK, sum, step);
    if (threadIdx.x % 32 == 0) {
        for (int r = 0; r < C::SLICES; r++) {
            float *to = &smem.squares[part];
            *(C::SLICES > 1 ? msgl__cluster_pointer(to, r) : to) = sum;
        }
    }
    if (C::SLICES > 1)
        msgl__cluster_sync();
    else
        __syncthreads();
    float sums[C::HEAD_WARPS];
#pragma unroll
    for (int i = 0; i < C::HEAD_WARPS; i++) sums[i] = smem.squares[i];
#pragma unroll
    for (int step = 1; step < C::HEAD_WARPS; step *= 2) {
#pragma unroll
        for (int i = 0; i < C::HEAD_WARPS; i += 2 * step) sums[i] += sums[i + step];
    }
    return sums[0];
}

// What a block works on.
struct decode_place {
    int request, head, slice;
    int row; // of the step
    int from, to, pos;
    int save, save_end;
};

// Of the request's last `tokens` tokens the first, in its `row` of the step.
static __device__ __forceinline__ decode_place find_place(const msgl_delta_args &p, int slices,
                                                          int row, int tokens)
{
    decode_place at;
    at.head = (int)blockIdx.x / slices, at.slice = (int)blockIdx.x % slices;
    at.request = (int)blockIdx.y;
    at.row = row;
    at.from = p.from[at.request], at.to = p.to[at.request];
    at.pos = p.seqlens_k[at.request] - tokens;
    at.save = p.saves != NULL ? p.save_start[at.request] : 0;
    at.save_end = p.saves != NULL ? p.save_start[at.request + 1] : 0;
    return at;
}

// Warps 0, 1 and 2 have q, k and v: their first channel.
static __device__ __forceinline__ int mixed_channel(const msgl_delta_args &p,
                                                    const decode_place &at)
{
    const int warp = (int)threadIdx.x / 32, k_head = at.head / p.group_size;
    const int head = warp == 2 ? 2 * p.k_heads + at.head : (warp == 1) * p.k_heads + k_head;
    return head * DIM + (int)threadIdx.x % 32 * 4;
}

template <class C>
static __device__ __forceinline__ void load_inputs(const msgl_delta_args &p, const decode_place &at,
                                                   decode_inputs *in)
{
    const int warp = (int)threadIdx.x / 32;
    if (warp == 3 || (C::WARPS > 4 && warp > 3)) return; // the fourth has the gates
    const int channel = mixed_channel(p, at);
#pragma unroll
    for (int j = 0; j < 4; j++) in->taps[j] = ((const float4 *)p.conv)[channel + j];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int pos = at.pos - 3 + i;
        in->old[i] = at.from >= 0 && pos >= 0 ? *(const uint2 *)(p.ring(at.from, pos) + channel)
                                              : make_uint2(0, 0);
    }
}

// q, k, v and the gates of the token into shared memory, KEEP: its inputs into the states. Its
// input of the thread's channels; of the warp that has the gates: zeros.
template <class C, bool KEEP>
static __device__ __forceinline__ uint2 take_token(const msgl_delta_args &p, const decode_place &at,
                                                   decode_smem<C> &smem, const decode_inputs &in)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint2 now = make_uint2(0, 0);
    if (warp < 3) {
        const int channel = mixed_channel(p, at);
        now = *(const uint2 *)(p.qkv + (size_t)at.row * p.ld_qkv + channel);
        const float4 y = mix(in, now, warp == 0 ? MSGL_DELTA_SCALE : warp == 1 ? 1.0f : 0);
        if (warp == 0) spread<C>(smem.q, lane * 4, y);
        if (warp == 1) spread<C>(smem.k, lane * 4, y);
        if (warp == 2) *(float4 *)&smem.v[lane * 4] = y;
        if (KEEP && at.slice == 0 && (warp == 2 || at.head % p.group_size == 0)) {
            keep_inputs(p, channel, at.to, at.pos, in, now, at.from != at.to);
            for (int i = at.save; i < at.save_end; i++) {
                keep_inputs(p, channel, p.saves[i].state, at.pos, in, now, true);
            }
        }
    } else if (warp == 3 && lane == 0) {
        const size_t i = (size_t)at.row * p.ld_ab + at.head;
        smem.decay = msgl__exp2(delta_decay(to_f32(p.a[i]), p.a_log[at.head], p.dt_bias[at.head]));
        smem.beta = delta_sigmoid(to_f32(p.b[i]));
    }
    return now;
}

// norm(o) norm gate(z) of four columns.
static __device__ __forceinline__ uint2 gated4(float4 o, uint2 z4, float4 norm, float squares,
                                               float eps, bool sigmoid)
{
    const float by = rsqrtf(squares / DIM + eps);
    const float4 z = unpack4(z4);
    return pack4(make_float4(o.x * by * norm.x * delta_gate(z.x, sigmoid),
                             o.y * by * norm.y * delta_gate(z.y, sigmoid),
                             o.z * by * norm.z * delta_gate(z.z, sigmoid),
                             o.w * by * norm.w * delta_gate(z.w, sigmoid)));
}

// Of this thread: four columns, and the first of its rows.
template <class C> struct decode_thread {
    int part, column, group; // part: its warp, of the head's
    __device__ __forceinline__ explicit decode_thread(const decode_place &at)
    {
        const int lane = (int)threadIdx.x % 32, lanes = C::COLUMNS / 4;
        part = at.slice * C::WARPS + (int)threadIdx.x / 32;
        column = part * C::COLUMNS + lane % lanes * 4;
        group = lane / lanes;
    }
};

#endif
