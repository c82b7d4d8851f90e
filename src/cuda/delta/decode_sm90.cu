// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule for one token a request. Every byte of a state is read and written once and
// little is computed, so memory is the limit. Everything of the layer between its two products is
// in here: convolution, gates, norms, recurrence.
//
// A warp has some columns of S, all 128 rows: columns do not need each other, so that warps meet
// only for q, k and v in front and for the norm behind. States, and what else is older than the
// step, are read before the kernel ahead has ended. S^T k and S^T q are summed in one tree whatever
// a warp's columns are: 16 sums of the rows of equal r % 16, halves of which are added.
//
// Few requests: two blocks have a v head, S in registers, with nothing between the loads and the
// arithmetic. Many: a block has a v head, S in shared memory, in and out by one bulk copy each:
// the memory likes 64 KB in a row better than 512 rows of 128 bytes.
#include "cuda/delta/args.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"

enum { DIM = MSGL_DELTA_DIM, WARPS = 4, SUMS = 16 };

// LANES lanes of a warp have a row of its columns, four each.
template <int LANES> struct decode_shape {
    static const int COLUMNS = LANES * 4;              // of a warp
    static const int SLICES = DIM / (COLUMNS * WARPS); // blocks of a v head
    static const int GROUPS = 32 / LANES;              // rows that a warp reads at once
    static const int ROWS = DIM / GROUPS;              // of a thread: group + GROUPS * i
    static const int SUMS_HERE = SUMS / GROUPS;        // of the tree's, in a thread
    static const int HEAD_WARPS = DIM / COLUMNS;       // warps of a v head
    static const int STRIDE = ROWS + 4;                // of a group's q and k: other banks
};

typedef decode_shape<4> decode_few;
typedef decode_shape<8> decode_many;

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

// A thread's rows of S, in registers or, ROW elements apart, in shared memory.
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

template <class C> struct decode_shared {
    float *rows;
    __device__ __forceinline__ float4 get(int i) const
    {
        return *(const float4 *)(rows + i * C::GROUPS * DIM);
    }
    __device__ __forceinline__ void put(int i, float4 v)
    {
        *(float4 *)(rows + i * C::GROUPS * DIM) = v;
    }
};

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
    const int warp = (int)threadIdx.x / 32, k_head = at.head / p.group_size;
    const int head = warp == 2 ? 2 * p.k_heads + at.head : (warp == 1) * p.k_heads + k_head;
    return head * DIM + (int)threadIdx.x % 32 * 4;
}

static __device__ __forceinline__ void load_inputs(const msgl_delta_args &p, const decode_place &at,
                                                   decode_inputs *in)
{
    if (threadIdx.x / 32 == WARPS - 1) return; // it has the gates
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

// q, k, v and the gates of the token into shared memory, its inputs into the states.
template <class C>
static __device__ __forceinline__ void take_token(const msgl_delta_args &p, const decode_place &at,
                                                  decode_smem<C> &smem, decode_inputs &in)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (warp < 3) {
        const int channel = mixed_channel(p, at);
        const uint2 now = *(const uint2 *)(p.qkv + (size_t)at.request * p.ld_qkv + channel);
        const float4 y = mix(in, now, warp == 0 ? MSGL_DELTA_SCALE : warp == 1 ? 1.0f : 0);
        if (warp == 0) spread<C>(smem.q, lane * 4, y);
        if (warp == 1) spread<C>(smem.k, lane * 4, y);
        if (warp == 2) *(float4 *)&smem.v[lane * 4] = y;
        if (at.slice == 0 && (warp == 2 || at.head % p.group_size == 0)) {
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

// Of this thread: four columns, and the first of its rows.
template <class C> struct decode_thread {
    int part, column, group; // part: its warp, of the head's
    __device__ __forceinline__ explicit decode_thread(const decode_place &at)
    {
        const int lane = (int)threadIdx.x % 32, lanes = C::COLUMNS / 4;
        part = at.slice * WARPS + (int)threadIdx.x / 32;
        column = part * C::COLUMNS + lane % lanes * 4;
        group = lane / lanes;
    }
};

static __global__ void __launch_bounds__(WARPS * 32, 4)
    delta_decode_few(const __grid_constant__ msgl_delta_args p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    typedef decode_few C;
    __shared__ __align__(16) decode_smem<C> smem;
    msgl__pdl_trigger();
    const decode_place at = find_place(p, C::SLICES);
    const decode_thread<C> me(at);
    const size_t row = (size_t)at.request, place = (size_t)me.group * DIM + me.column;
    msgl_delta_act *const out = p.out + row * p.ld_out + at.head * DIM + me.column;
    if (at.to < 0) { // all blocks of the head
        msgl__pdl_wait();
        if (me.group == 0) *(uint2 *)out = make_uint2(0, 0);
        return;
    }
    msgl__cluster_arrive(); // all have begun where one writes to another
    decode_registers<C> s;
    const float *const from = at.from >= 0 ? p.matrix(at.from, at.head) + place : NULL;
#pragma unroll
    for (int i = 0; i < C::ROWS; i++) {
        s.rows[i] =
            from != NULL ? *(const float4 *)(from + i * C::GROUPS * DIM) : make_float4(0, 0, 0, 0);
    }
    const float4 norm = *(const float4 *)(p.norm + me.column);
    decode_inputs in;
    load_inputs(p, at, &in);
    msgl__pdl_wait();
    const uint2 z = *(const uint2 *)(p.z + row * p.ld_z + at.head * DIM + me.column);
    take_token<C>(p, at, smem, in);
    __syncthreads();
    const float4 o = step_state<C>(s, smem.q + me.group * C::STRIDE, smem.k + me.group * C::STRIDE,
                                   *(const float4 *)&smem.v[me.column], smem.decay, smem.beta);
    for (int i = at.save; i <= at.save_end; i++) {
        float *to = p.matrix(i < at.save_end ? p.saves[i].state : at.to, at.head) + place;
#pragma unroll
        for (int r = 0; r < C::ROWS; r++) *(float4 *)(to + r * C::GROUPS * DIM) = s.rows[r];
    }
    msgl__cluster_wait();
    const float squares = head_squares<C>(smem, o, me.part);
    if (me.group == 0) *(uint2 *)out = gated4(o, z, norm, squares, p.norm_eps);
#endif
}

struct decode_many_smem {
    float s[DIM * DIM];
    decode_smem<decode_many> token;
    uint64_t full;
};

static __global__ void __launch_bounds__(WARPS * 32, 2)
    delta_decode_many(const __grid_constant__ msgl_delta_args p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    typedef decode_many C;
    extern __shared__ __align__(128) unsigned char raw[];
    decode_many_smem &smem = *(decode_many_smem *)raw;
    const uint32_t full = msgl__shared_address(&smem.full), bytes = sizeof smem.s;
    msgl__pdl_trigger();
    const decode_place at = find_place(p, C::SLICES);
    const decode_thread<C> me(at);
    const size_t row = (size_t)at.request;
    msgl_delta_act *const out = p.out + row * p.ld_out + at.head * DIM + me.column;
    if (at.to < 0) {
        msgl__pdl_wait();
        if (me.group == 0) *(uint2 *)out = make_uint2(0, 0);
        return;
    }
    if (at.from < 0) {
        for (int i = (int)threadIdx.x; i < DIM * DIM / 4; i += WARPS * 32) {
            ((float4 *)smem.s)[i] = make_float4(0, 0, 0, 0);
        }
    } else {
        if (threadIdx.x == 0) {
            msgl__mbarrier_init(full, 1);
            msgl__mbarrier_init_done();
        }
        __syncthreads(); // for racecheck, to which one thread's two lines above and below race
        if (threadIdx.x == 0) {
            msgl__mbarrier_expect(full, bytes);
            msgl__bulk_load(msgl__shared_address(smem.s), p.matrix(at.from, at.head), bytes, full);
        }
    }
    const float4 norm = *(const float4 *)(p.norm + me.column);
    decode_inputs in;
    load_inputs(p, at, &in);
    msgl__pdl_wait();
    const uint2 z = *(const uint2 *)(p.z + row * p.ld_z + at.head * DIM + me.column);
    take_token<C>(p, at, smem.token, in);
    __syncthreads();
    if (at.from >= 0) msgl__mbarrier_wait(full, 0);
    decode_shared<C> s = {smem.s + me.group * DIM + me.column};
    const float4 o =
        step_state<C>(s, smem.token.q + me.group * C::STRIDE, smem.token.k + me.group * C::STRIDE,
                      *(const float4 *)&smem.token.v[me.column], smem.token.decay, smem.token.beta);
    msgl__fence_async_proxy();
    const float squares = head_squares<C>(smem.token, o, me.part); // and all have written S
    if (threadIdx.x == 0) {
        for (int i = at.save; i <= at.save_end; i++) {
            msgl__bulk_store(p.matrix(i < at.save_end ? p.saves[i].state : at.to, at.head),
                             msgl__shared_address(smem.s), bytes);
        }
        msgl__tensor_store_commit();
    }
    if (me.group == 0) *(uint2 *)out = gated4(o, z, norm, squares, p.norm_eps);
    if (threadIdx.x == 0) msgl__tensor_store_read<0>();
#endif
}

static cudaError_t launch_few(const msgl_delta_args &p, cudaStream_t stream)
{
    return msgl__launch_clusters(delta_decode_few, dim3(decode_few::SLICES),
                                 dim3(p.v_heads * decode_few::SLICES, p.size), dim3(WARPS * 32), 0,
                                 stream, p);
}

static cudaError_t launch_many(const msgl_delta_args &p, cudaStream_t stream)
{
    // So many that two blocks share an SM: with three the memory has more to do at once and is 1%
    // slower.
    const size_t bytes = sizeof(decode_many_smem) + (32 << 10);
    const cudaError_t code = msgl__allow_shared<delta_decode_many>(bytes, true);
    if (code != cudaSuccess) return code;
    return msgl__launch(delta_decode_many, dim3(p.v_heads, p.size), dim3(WARPS * 32), bytes, stream,
                        p);
}

extern "C" void msgl__cuda_delta_decode(msgl_exec *x, const msgl_delta_call *c, int slices)
{
    msgl_delta_args p;
    if (c->seqs->size == 0 || !msgl__delta_args(x, c, &p)) return;
    const cudaStream_t stream = msgl__cuda_stream(x);
    if (slices == 0) slices = p.size * p.v_heads <= 4 * msgl__cuda_device(x)->sm_count ? 2 : 1;
    MSGL_CUDA_TRY(x, slices == 2 ? launch_few(p, stream) : launch_many(p, stream));
}
