// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule for one token a request. Every byte of a state is read and written once and
// little is computed, so memory is the limit. Everything of the layer between its two products is
// in here: convolution, gates, norms, recurrence.
//
// A warp has some columns of S, all 128 rows, in registers: columns do not need each other, so that
// no state goes through shared memory and warps meet only for q, k and v in front and for the norm
// behind. States, and what else is older than the step, are read before the kernel ahead has ended.
// S^T k and S^T q are summed in one tree whatever a warp's columns are: 16 sums of the rows of
// equal r % 16, halves of which are added.
#include "kernel/cuda/delta/args.cuh"
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ptx/barrier.cuh"
#include "kernel/cuda/ptx/cluster.cuh"
#include "kernel/cuda/ptx/shared.cuh"
#include "kernel/cuda/ptx/tma.cuh"

enum { DIM = MSGL_DELTA_DIM, SUMS = 16 };

// LANES lanes of a warp have a row of its columns, four each; WARPS warps; MIN_BLOCKS of an SM.
template <int LANES, int WARPS, int MIN_BLOCKS, int STREAM = 0> struct decode_shape {
    static const int COLUMNS = LANES * 4;              // of a warp
    static const int SLICES = DIM / (COLUMNS * WARPS); // blocks of a v head
    static const int GROUPS = 32 / LANES;              // rows that a warp reads at once
    static const int ROWS = DIM / GROUPS;              // of a thread: group + GROUPS * i
    static const int SUMS_HERE = SUMS / GROUPS;        // of the tree's, in a thread
    static const int PARTS = DIM / COLUMNS;            // warps of a v head
    static const int STRIDE = ROWS + 4;                // of a group's q and k: other banks
    static const bool EARLY = ROWS <= 16; // there are registers for all that can be read early
};

template <class C> struct decode_smem {
    float q[C::GROUPS * C::STRIDE], k[C::GROUPS * C::STRIDE], v[DIM];
    float decay, beta;
    float squares[C::PARTS];
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

static __device__ __forceinline__ void load_inputs(const msgl_delta_args &p, int channel, int from,
                                                   int pos, decode_inputs *in)
{
#pragma unroll
    for (int j = 0; j < 4; j++) in->taps[j] = ((const float4 *)p.conv)[channel + j];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int at = pos - 3 + i;
        in->old[i] =
            from >= 0 && at >= 0 ? *(const uint2 *)(p.ring(from, at) + channel) : make_uint2(0, 0);
    }
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

// S and q, k of this thread's rows: S decays and takes the token in; o = S^T q.
template <class C>
static __device__ __forceinline__ float4 step_state(float4 (&s)[C::ROWS], const float *q,
                                                    const float *k, float4 v, float decay,
                                                    float beta)
{
    float4 part[C::SUMS_HERE] = {};
#pragma unroll
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 k4 = *(const float4 *)(k + i);
        const float kr[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 &d = part[(i + j) % C::SUMS_HERE];
            d.x = fmaf(s[i + j].x, kr[j], d.x), d.y = fmaf(s[i + j].y, kr[j], d.y);
            d.z = fmaf(s[i + j].z, kr[j], d.z), d.w = fmaf(s[i + j].w, kr[j], d.w);
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
            float4 &t = s[i + j], &d = part[(i + j) % C::SUMS_HERE];
            t.x = fmaf(kr[j], u.x, t.x * decay), t.y = fmaf(kr[j], u.y, t.y * decay);
            t.z = fmaf(kr[j], u.z, t.z * decay), t.w = fmaf(kr[j], u.w, t.w * decay);
            d.x = fmaf(t.x, qr[j], d.x), d.y = fmaf(t.y, qr[j], d.y);
            d.z = fmaf(t.z, qr[j], d.z), d.w = fmaf(t.w, qr[j], d.w);
        }
    }
    return tree<C>(part);
}

// Sum over the v head's columns of the squares of o, four a lane, through all blocks of the head:
// neighbours first, so that it does not matter where a warp's columns end.
template <class C, int LANES>
static __device__ __forceinline__ float head_squares(decode_smem<C> &smem, float4 o, int part)
{
    float sum = fmaf(o.x, o.x, o.y * o.y) + fmaf(o.z, o.z, o.w * o.w);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(MSGL_FULL_MASK, sum, step);
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
    float parts[C::PARTS];
#pragma unroll
    for (int i = 0; i < C::PARTS; i++) parts[i] = smem.squares[i];
#pragma unroll
    for (int step = 1; step < C::PARTS; step *= 2) {
#pragma unroll
        for (int i = 0; i < C::PARTS; i += 2 * step) parts[i] += parts[i + step];
    }
    return parts[0];
}

// What a block works on.
struct decode_place {
    int request, head, slice;
    int from, to, pos;
    int save, save_end;
};

static __device__ __forceinline__ decode_place find_place(const msgl_delta_args &p, int slices)
{
    decode_place at;
    at.head = (int)blockIdx.x / slices, at.slice = (int)blockIdx.x % slices;
    at.request = (int)blockIdx.y;
    at.from = p.from[at.request], at.to = p.to[at.request];
    at.pos = p.seqlens_k[at.request] - 1;
    at.save = p.saves != NULL ? p.save_start[at.request] : 0;
    at.save_end = p.saves != NULL ? p.save_start[at.request + 1] : 0;
    return at;
}

// Warps 0, 1 and 2 have q, k and v: their first channel.
static __device__ __forceinline__ int mixed_channel(const msgl_delta_args &p,
                                                    const decode_place &at)
{
    const int warp = (int)threadIdx.x / 32, k_head = at.head / p.share;
    const int head = warp == 2 ? 2 * p.k_heads + at.head : (warp == 1) * p.k_heads + k_head;
    return head * DIM + (int)threadIdx.x % 32 * 4;
}

// q, k, v and the gates of the token into shared memory, its inputs into the states.
template <class C>
static __device__ __forceinline__ void take_token(const msgl_delta_args &p, const decode_place &at,
                                                  decode_smem<C> &smem, decode_inputs &in)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (warp < 3) {
        const int channel = mixed_channel(p, at);
        const uint2 now = *(const uint2 *)(p.qkv + (size_t)at.request * p.ld_qkv + channel);
        if (!C::EARLY) load_inputs(p, channel, at.from, at.pos, &in);
        const float4 y = mix(in, now, warp == 0 ? MSGL_DELTA_SCALE : warp == 1 ? 1.0f : 0);
        if (warp == 0) spread<C>(smem.q, lane * 4, y);
        if (warp == 1) spread<C>(smem.k, lane * 4, y);
        if (warp == 2) *(float4 *)&smem.v[lane * 4] = y;
        if (at.slice == 0 && (warp == 2 || at.head % p.share == 0)) {
            keep_inputs(p, channel, at.to, at.pos, in, now, at.from != at.to);
            for (int i = at.save; i < at.save_end; i++) {
                keep_inputs(p, channel, p.saves[i].state, at.pos, in, now, true);
            }
        }
    } else if (warp == 3 && lane == 0) {
        const size_t i = (size_t)at.request * p.ld_ab + at.head;
        smem.decay = msgl__exp2(delta_decay(to_f32(p.a[i]), p.a_log[at.head], p.dt_bias[at.head]));
        smem.beta = delta_sigmoid(to_f32(p.b[i]));
    }
}

// norm(o) norm silu(z) of four columns.
static __device__ __forceinline__ uint2 gated4(float4 o, uint2 z4, float4 norm, float squares,
                                               float eps)
{
    const float by = rsqrtf(squares / DIM + eps);
    const float4 z = unpack4(z4);
    return pack4(
        make_float4(o.x * by * norm.x * delta_silu(z.x), o.y * by * norm.y * delta_silu(z.y),
                    o.z * by * norm.z * delta_silu(z.z), o.w * by * norm.w * delta_silu(z.w)));
}

template <int LANES, int WARPS, int MIN_BLOCKS, int STREAM>
static __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    delta_decode(const __grid_constant__ msgl_delta_args p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    typedef decode_shape<LANES, WARPS, MIN_BLOCKS> C;
    __shared__ __align__(16) decode_smem<C> smem;
    msgl__pdl_trigger();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const decode_place at = find_place(p, C::SLICES);
    const int part = at.slice * WARPS + warp;
    const int column = part * C::COLUMNS + lane % LANES * 4, group = lane / LANES;
    const size_t row = (size_t)at.request;
    msgl_delta_act *const out = p.out + row * p.ld_out + at.head * DIM + column;
    if (at.to < 0) { // all blocks of the head
        msgl__pdl_wait();
        if (group == 0) *(uint2 *)out = make_uint2(0, 0);
        return;
    }
    if (C::SLICES > 1) msgl__cluster_arrive(); // all have begun where one writes to another
    const size_t place = (size_t)group * DIM + column;
    float4 s[C::ROWS];
    if (at.from >= 0) {
        const float *from = p.matrix(at.from, at.head) + place;
#pragma unroll
        for (int i = 0; i < C::ROWS; i++) {
            s[i] = STREAM & 1 ? __ldcs((const float4 *)(from + i * C::GROUPS * DIM))
                              : *(const float4 *)(from + i * C::GROUPS * DIM);
        }
    } else {
#pragma unroll
        for (int i = 0; i < C::ROWS; i++) s[i] = make_float4(0, 0, 0, 0);
    }
    const float4 norm = *(const float4 *)(p.norm + column);
    decode_inputs in;
    if (C::EARLY && warp < 3) load_inputs(p, mixed_channel(p, at), at.from, at.pos, &in);
    msgl__pdl_wait();
    const uint2 z = *(const uint2 *)(p.z + row * p.ld_z + at.head * DIM + column);
    take_token<C>(p, at, smem, in);
    __syncthreads();
    const float4 o = step_state<C>(s, smem.q + group * C::STRIDE, smem.k + group * C::STRIDE,
                                   *(const float4 *)&smem.v[column], smem.decay, smem.beta);
    for (int i = at.save; i <= at.save_end; i++) {
        float *to = p.matrix(i < at.save_end ? p.saves[i].state : at.to, at.head) + place;
#pragma unroll
        for (int r = 0; r < C::ROWS; r++) {
            if (STREAM & 2)
                __stcs((float4 *)(to + r * C::GROUPS * DIM), s[r]);
            else
                *(float4 *)(to + r * C::GROUPS * DIM) = s[r];
        }
    }
    if (C::SLICES > 1) msgl__cluster_wait();
    const float squares = head_squares<C, LANES>(smem, o, part);
    if (group == 0) *(uint2 *)out = gated4(o, z, norm, squares, p.norm_eps);
#endif
}

// The same with S in shared memory, by bulk copies.
template <class C>
static __device__ __forceinline__ float4 step_shared(float *s, const float *q, const float *k,
                                                     float4 v, float decay, float beta)
{
    float4 part[C::SUMS_HERE] = {};
#pragma unroll 8
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 k4 = *(const float4 *)(k + i);
        const float kr[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 t = *(const float4 *)(s + (i + j) * C::GROUPS * DIM);
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
#pragma unroll 8
    for (int i = 0; i < C::ROWS; i += 4) {
        const float4 k4 = *(const float4 *)(k + i), q4 = *(const float4 *)(q + i);
        const float kr[4] = {k4.x, k4.y, k4.z, k4.w}, qr[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 t = *(const float4 *)(s + (i + j) * C::GROUPS * DIM);
            float4 &d = part[j % C::SUMS_HERE];
            t.x = fmaf(kr[j], u.x, t.x * decay), t.y = fmaf(kr[j], u.y, t.y * decay);
            t.z = fmaf(kr[j], u.z, t.z * decay), t.w = fmaf(kr[j], u.w, t.w * decay);
            d.x = fmaf(t.x, qr[j], d.x), d.y = fmaf(t.y, qr[j], d.y);
            d.z = fmaf(t.z, qr[j], d.z), d.w = fmaf(t.w, qr[j], d.w);
            *(float4 *)(s + (i + j) * C::GROUPS * DIM) = t;
        }
    }
    return tree<C>(part);
}

template <class C> struct decode_bulk_smem {
    float s[DIM * DIM];
    decode_smem<C> token;
    uint64_t full;
};

typedef decode_shape<8, 4, 3> decode_bulk_shape;

static __global__ void __launch_bounds__(128, 3)
    delta_decode_bulk(const __grid_constant__ msgl_delta_args p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    typedef decode_bulk_shape C;
    extern __shared__ __align__(128) unsigned char raw[];
    decode_bulk_smem<C> &smem = *(decode_bulk_smem<C> *)raw;
    const uint32_t full = msgl__shared_address(&smem.full), bytes = sizeof smem.s;
    msgl__pdl_trigger();
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
    const decode_place at = find_place(p, 1);
    const int column = warp * C::COLUMNS + lane % 8 * 4, group = lane / 8;
    const size_t row = (size_t)at.request;
    msgl_delta_act *const out = p.out + row * p.ld_out + at.head * DIM + column;
    if (at.to < 0) {
        msgl__pdl_wait();
        if (group == 0) *(uint2 *)out = make_uint2(0, 0);
        return;
    }
    if (at.from < 0) {
        for (int i = tid; i < DIM * DIM / 4; i += 128)
            ((float4 *)smem.s)[i] = make_float4(0, 0, 0, 0);
    } else if (tid == 0) {
        msgl__mbarrier_init(full, 1);
        msgl__mbarrier_init_done();
        msgl__mbarrier_expect(full, bytes);
        msgl__bulk_load(msgl__shared_address(smem.s), p.matrix(at.from, at.head), bytes, full);
    }
    const float4 norm = *(const float4 *)(p.norm + column);
    decode_inputs in;
    msgl__pdl_wait();
    const uint2 z = *(const uint2 *)(p.z + row * p.ld_z + at.head * DIM + column);
    take_token<C>(p, at, smem.token, in);
    __syncthreads();
    if (at.from >= 0) msgl__mbarrier_wait(full, 0);
    const float4 o =
        step_shared<C>(smem.s + group * DIM + column, smem.token.q + group * C::STRIDE,
                       smem.token.k + group * C::STRIDE, *(const float4 *)&smem.token.v[column],
                       smem.token.decay, smem.token.beta);
    msgl__fence_async_proxy();
    const float squares = head_squares<C, 8>(smem.token, o, warp); // and all have written S
    if (tid == 0) {
        for (int i = at.save; i <= at.save_end; i++) {
            msgl__bulk_store(p.matrix(i < at.save_end ? p.saves[i].state : at.to, at.head),
                             msgl__shared_address(smem.s), bytes);
        }
        msgl__tensor_store_commit();
    }
    if (group == 0) *(uint2 *)out = gated4(o, z, norm, squares, p.norm_eps);
    if (tid == 0) msgl__tensor_store_read<0>();
#endif
}

static cudaError_t launch_bulk(const msgl_delta_args &p, cudaStream_t stream)
{
    const size_t bytes = sizeof(decode_bulk_smem<decode_bulk_shape>);
    const cudaError_t code = msgl__allow_shared<delta_decode_bulk>(bytes, true);
    if (code != cudaSuccess) return code;
    return msgl__launch(delta_decode_bulk, dim3(p.v_heads, p.size), dim3(128), bytes, stream, p);
}

template <int LANES, int WARPS, int MIN_BLOCKS, int STREAM = 0>
static cudaError_t launch(const msgl_delta_args &p, cudaStream_t stream)
{
    typedef decode_shape<LANES, WARPS, MIN_BLOCKS> C;
    const dim3 grid(p.v_heads * C::SLICES, p.size), block(WARPS * 32);
    if (C::SLICES == 1) {
        return msgl__launch(delta_decode<LANES, WARPS, MIN_BLOCKS, STREAM>, grid, block, 0, stream,
                            p);
    }
    return msgl__launch_clusters(delta_decode<LANES, WARPS, MIN_BLOCKS, STREAM>, dim3(C::SLICES),
                                 grid, block, 0, stream, p);
}

extern "C" void msgl__cuda_delta_decode(msgl_exec *x, const msgl_delta_call *c, int slices)
{
    msgl_delta_args p;
    if (c->seqs->size == 0 || !msgl__delta_args(x, c, &p)) return;
    const cudaStream_t stream = msgl__cuda_stream(x);
    if (slices == 0) slices = p.size * p.v_heads <= 2 * msgl__cuda_device(x)->sm_count ? 4 : 1;
    if (slices == 4)
        MSGL_CUDA_TRY(x, (launch<2, 4, 5>(p, stream)));
    else if (slices == 2)
        MSGL_CUDA_TRY(x, (launch<4, 4, 4>(p, stream)));
    else if (slices == 3)
        MSGL_CUDA_TRY(x, (launch<4, 8, 2, 3>(p, stream)));
    else if (slices == 5)
        MSGL_CUDA_TRY(x, (launch<8, 4, 2>(p, stream)));
    else if (slices == 6)
        MSGL_CUDA_TRY(x, (launch<4, 8, 2, 1>(p, stream)));
    else if (slices == 7)
        MSGL_CUDA_TRY(x, launch_bulk(p, stream));
    else
        MSGL_CUDA_TRY(x, (launch<4, 8, 2>(p, stream)));
}
