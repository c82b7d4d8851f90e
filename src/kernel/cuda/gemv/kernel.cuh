// SPDX-License-Identifier: Apache-2.0
//
// The kernel: out[m, n] = f(in[m, k] W[n, k]^T) for m <= 16, one block per multiprocessor.
//
// Every block owns a run of outputs and computes them for all m rows, so W is read once and no
// block waits for another. Its warps split k in steps of STEP: the product of 16 rows of W with 8
// columns (the m activations) goes to the tensor cores, W as their A operand. k inside a step is
// permuted, the same way for both operands, so that a lane's share of a row is 16 contiguous bytes:
// each lane then loads exactly the bytes that it multiplies, through a queue in shared memory of
// its own, and warps meet only to add their sums, once per 16 rows, in a fixed order.
//
// W does not depend on earlier kernels: the queues fill before msgl__pdl_wait.
#ifndef MSGL_KERNEL_CUDA_GEMV_KERNEL_CUH
#define MSGL_KERNEL_CUDA_GEMV_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernel/cuda/launch.cuh"

#define GEMV_WARPS 8
#define GEMV_THREADS (GEMV_WARPS * 32)
#define GEMV_STEP 64     // elements of k that a warp takes at once
#define GEMV_PITCH 20    // floats of one column of sums: 16 rows, and banks kept apart
#define GEMV_MAX_ROWS 16 // m

typedef struct gemv_params {
    const char *w; // [rows of W, k]
    const float *bias, *norm;
    const char *in;
    char *out;
    size_t ld_in, ld_out; // elements
    float eps;
    int m, n, k; // n: outputs, which is half of W's rows when gated
    bool gated, accumulate, f32_out;
} gemv_params;

// Bytes between two activations in shared memory: whole steps, banks of neighbours kept apart.
static __host__ __device__ __forceinline__ int gemv_act_pitch(int k)
{
    return (k + GEMV_STEP - 1) / GEMV_STEP * GEMV_STEP * 2 + 64;
}

template <typename T> struct gemv_type;

template <> struct gemv_type<__nv_bfloat16> {
    static constexpr bool wide = true; // has the exponents of f32
    static __device__ __forceinline__ float2 unpack(uint32_t v)
    {
        return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
    }
    static __device__ __forceinline__ uint32_t pack(float a, float b)
    {
        const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
        return *(const uint32_t *)&v;
    }
    static __device__ __forceinline__ float load(const char *p)
    {
        return __bfloat162float(*(const __nv_bfloat16 *)p);
    }
    static __device__ __forceinline__ void store(char *p, float v)
    {
        *(__nv_bfloat16 *)p = __float2bfloat16_rn(v);
    }
    static __device__ __forceinline__ void mma(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

template <> struct gemv_type<__half> {
    static constexpr bool wide = false;
    static __device__ __forceinline__ float2 unpack(uint32_t v)
    {
        return __half22float2(*(const __half2 *)&v);
    }
    static __device__ __forceinline__ uint32_t pack(float a, float b)
    {
        const __half2 v = __floats2half2_rn(a, b);
        return *(const uint32_t *)&v;
    }
    static __device__ __forceinline__ float load(const char *p)
    {
        return __half2float(*(const __half *)p);
    }
    static __device__ __forceinline__ void store(char *p, float v)
    {
        *(__half *)p = __float2half_rn(v);
    }
    static __device__ __forceinline__ void mma(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

// Copies 16 bytes to shared memory behind the thread's back, or writes zeros there.
static __device__ __forceinline__ void gemv_copy(uint32_t shared, const void *global, bool valid)
{
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(global), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void gemv_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void gemv_arrive(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ uint4 gemv_lds(uint32_t shared)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(shared)
                 : "memory");
    return v;
}

static __device__ __forceinline__ float gemv_warp_sum(float v)
{
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// What a warp has still to load: its steps of each pass over TILES tiles of the block's outputs.
// A tile is 16 rows of W: 16 outputs, or 8 gate rows and the 8 up rows that belong to them.
template <int TILES> struct gemv_source {
    const char *at[TILES][2]; // this lane's row g and row g + 8, at the lane's share of k
    bool valid[TILES][2];
    int first, end; // outputs of the block still to come
    int step;       // of k

    __device__ __forceinline__ void seek(const gemv_params &p, int lane)
    {
#pragma unroll
        for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int o = first + lane / 4 + (p.gated ? 8 * j : 16 * j + 8 * half);
                const int row = p.gated ? o + half * p.n : o;
                valid[j][half] = o < end;
                at[j][half] = p.w + ((size_t)row * p.k + lane % 4 * 8) * 2;
            }
        }
    }

    __device__ __forceinline__ void load(const gemv_params &p, uint32_t slot, int lane, int warp,
                                         int steps)
    {
        if (first >= end) return;
        const int k = step * GEMV_STEP + lane % 4 * 8;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int piece = 0; piece < 2; piece++) {
                    gemv_copy(slot + ((j * 2 + half) * 2 + piece) * GEMV_THREADS * 16,
                              at[j][half] + ((size_t)step * GEMV_STEP + piece * 32) * 2,
                              valid[j][half] && k + piece * 32 < p.k);
                }
            }
        }
        step += GEMV_WARPS;
        if (step < steps) return;
        step = warp;
        first += TILES * (p.gated ? 8 : 16);
        seek(p, lane);
    }
};

// Activations, normalised if asked, to shared memory. With the exponents of f32 a row's scale is
// left to the end, since it needs the whole row: part[row][warp of that row] gets sums of squares.
template <typename T>
static __device__ __forceinline__ void gemv_stage(const gemv_params &p, char *act, float *part,
                                                  int warps_per_row)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = gemv_act_pitch(p.k);
    const int groups = (p.k + GEMV_STEP - 1) / GEMV_STEP * (GEMV_STEP / 8), valid = p.k / 8;
    const int sub = warp % warps_per_row, stride = warps_per_row * 32;
    for (int row = warp / warps_per_row; row < p.m; row += GEMV_WARPS / warps_per_row) {
        const uint4 *src = (const uint4 *)(p.in + (size_t)row * p.ld_in * 2);
        uint4 *dst = (uint4 *)(act + (size_t)row * pitch);
        float scale = 1, sum = 0;
        if (p.norm != NULL && !gemv_type<T>::wide) {
            for (int c = lane; c < valid; c += 32) {
                const uint4 v = __ldcg(src + c);
                const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 f = gemv_type<T>::unpack(u[i]);
                    sum += f.x * f.x + f.y * f.y;
                }
            }
            scale = rsqrtf(gemv_warp_sum(sum) / (float)p.k + p.eps);
        }
        constexpr int BATCH = 4; // loads in flight
        for (int c0 = sub * 32 + lane; c0 < groups; c0 += BATCH * stride) {
            uint4 v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int c = c0 + b * stride;
                v[b] = c < valid ? __ldcg(src + c) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int c = c0 + b * stride;
                if (c >= groups) break;
                if (p.norm != NULL && c < valid) {
                    const float4 g0 = __ldg((const float4 *)p.norm + 2 * c);
                    const float4 g1 = __ldg((const float4 *)p.norm + 2 * c + 1);
                    const float g[8] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
                    uint32_t u[4] = {v[b].x, v[b].y, v[b].z, v[b].w};
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float2 f = gemv_type<T>::unpack(u[i]);
                        if (gemv_type<T>::wide) sum += f.x * f.x + f.y * f.y;
                        u[i] =
                            gemv_type<T>::pack(f.x * scale * g[2 * i], f.y * scale * g[2 * i + 1]);
                    }
                    v[b] = make_uint4(u[0], u[1], u[2], u[3]);
                }
                dst[c] = v[b];
            }
        }
        if (p.norm != NULL && gemv_type<T>::wide) {
            sum = gemv_warp_sum(sum);
            if (lane == 0) part[row * GEMV_WARPS + sub] = sum;
        }
    }
}

// One output's sum over the warps, in their order.
static __device__ __forceinline__ float gemv_total(const float *sums, int columns, int column,
                                                   int row)
{
    float v = 0;
#pragma unroll
    for (int w = 0; w < GEMV_WARPS; w++) v += sums[(w * columns + column) * GEMV_PITCH + row];
    return v;
}

template <typename T>
static __device__ __forceinline__ void gemv_finish(const gemv_params &p, float v, float up,
                                                   float scale, int column, int o, float old)
{
    v *= scale;
    if (p.bias != NULL) v += __ldg(p.bias + o);
    if (p.gated) {
        up *= scale;
        if (p.bias != NULL) up += __ldg(p.bias + p.n + o);
        v = __fdividef(v, 1.0f + __expf(-v)) * up;
    }
    const size_t at = column * p.ld_out + o;
    if (p.f32_out) {
        ((float *)p.out)[at] = v;
    } else {
        gemv_type<T>::store(p.out + at * 2, v + old);
    }
}

// This lane's share of the activations of one step, to the queue (STREAM).
template <int NB>
static __device__ __forceinline__ void gemv_load_act(const gemv_params &p, uint32_t slot, int lane,
                                                     int step)
{
    const int k = step * GEMV_STEP + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < NB * 2; i++) {
        const int column = i / 2 * 8 + lane / 4, at = k + i % 2 * 32;
        gemv_copy(slot + i * GEMV_THREADS * 16, p.in + (column * p.ld_in + at) * 2,
                  column < p.m && at < p.k);
    }
}

// COLUMNS: 8 or 16, at least m. DEPTH: steps of the queue. STREAM: activations, too many for shared
// memory, pass through the queue; no norm then. Shared memory: the queue, the warps' sums (twice),
// sums of squares, activations.
template <typename T, int COLUMNS, int TILES, int DEPTH, bool STREAM>
static __global__ void __launch_bounds__(GEMV_THREADS, 1)
    gemv_kernel(const __grid_constant__ gemv_params p, int warps_per_row)
{
    constexpr int NB = COLUMNS / 8, PIECES = TILES * 4 + (STREAM ? NB * 2 : 0);
    constexpr int SLOT = PIECES * GEMV_THREADS * 16, ACT = TILES * 4 * GEMV_THREADS * 16;
    constexpr int SUMS = GEMV_WARPS * COLUMNS * GEMV_PITCH;
    extern __shared__ __align__(128) char shared[];
    float *const sums = (float *)(shared + DEPTH * SLOT);
    float *const part = sums + 2 * SUMS;
    char *const act = (char *)(part + GEMV_MAX_ROWS * GEMV_WARPS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int steps = (p.k + GEMV_STEP - 1) / GEMV_STEP;
    const int tile = p.gated ? 8 : 16;

    msgl__pdl_trigger();
    gemv_source<TILES> source;
    const int begin = (int)((int64_t)p.n * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)p.n * (blockIdx.x + 1) / gridDim.x);
    source.first = warp < steps ? begin : end;
    source.end = end;
    source.step = warp;
    source.seek(p, lane);
    const uint32_t queue = (uint32_t)__cvta_generic_to_shared(shared) + threadIdx.x * 16;
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        source.load(p, queue + d * SLOT, lane, warp, steps);
        gemv_commit();
    }
    if (p.norm != NULL) {
        for (int i = threadIdx.x * 32; i < p.k; i += GEMV_THREADS * 32) {
            asm volatile("prefetch.global.L1 [%0];" ::"l"(p.norm + i));
        }
    }
    msgl__pdl_wait();
    if (STREAM) {
        const int mine = (steps - warp + GEMV_WARPS - 1) / GEMV_WARPS;
        for (int d = 0; d < DEPTH && mine > 0; d++) {
            gemv_load_act<NB>(p, queue + d * SLOT + ACT, lane, warp + d % mine * GEMV_WARPS);
        }
        gemv_commit();
        gemv_arrive<0>(); // the loop counts on one group per step
    } else {
        gemv_stage<T>(p, act, part, warps_per_row);
        __syncthreads();
    }

    // The output that this thread finishes in each tile.
    const int my_row = p.gated ? threadIdx.x % 8 : threadIdx.x % 16;
    const int my_column = p.gated ? threadIdx.x / 8 : threadIdx.x / 16;
    float scale = 1;
    if (p.norm != NULL && gemv_type<T>::wide && my_column < p.m) {
        float sum = 0;
        for (int w = 0; w < warps_per_row; w++) sum += part[my_column * GEMV_WARPS + w];
        scale = rsqrtf(sum / (float)p.k + p.eps);
    }
    const uint32_t b_lane =
        (uint32_t)__cvta_generic_to_shared(act) + lane / 4 * gemv_act_pitch(p.k) + lane % 4 * 16;
    int slot = 0, parity = 0;
    for (int first = begin; first < end; first += TILES * tile) {
        float old[TILES];
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int o = first + j * tile + my_row;
            const bool mine = p.accumulate && my_column < p.m && o < end;
            old[j] = mine ? gemv_type<T>::load(p.out + (my_column * p.ld_out + o) * 2) : 0;
        }
        float acc[TILES][NB][4] = {};
        for (int step = warp; step < steps; step += GEMV_WARPS) {
            uint4 a[TILES][2][2], b[NB][2];
#pragma unroll
            for (int i = 0; i < NB; i++) {
#pragma unroll
                for (int piece = 0; piece < 2; piece++) {
                    b[i][piece] = make_uint4(0, 0, 0, 0);
                    if (!STREAM && i * 8 + lane / 4 < p.m) {
                        b[i][piece] = gemv_lds(b_lane + i * 8 * gemv_act_pitch(p.k) +
                                               step * GEMV_STEP * 2 + piece * 64);
                    }
                }
            }
            gemv_arrive<DEPTH - 1>();
            if (STREAM) {
#pragma unroll
                for (int i = 0; i < NB * 2; i++) {
                    b[i / 2][i % 2] = gemv_lds(queue + slot * SLOT + ACT + i * GEMV_THREADS * 16);
                }
            }
#pragma unroll
            for (int j = 0; j < TILES; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[j][i / 2][i % 2] =
                        gemv_lds(queue + slot * SLOT + (j * 4 + i) * GEMV_THREADS * 16);
                }
            }
#pragma unroll
            for (int j = 0; j < TILES; j++) {
#pragma unroll
                for (int i = 0; i < NB; i++) {
#pragma unroll
                    for (int piece = 0; piece < 2; piece++) {
                        const uint4 r0 = a[j][0][piece], r8 = a[j][1][piece], c = b[i][piece];
                        gemv_type<T>::mma(acc[j][i], r0.x, r8.x, r0.y, r8.y, c.x, c.y);
                        gemv_type<T>::mma(acc[j][i], r0.z, r8.z, r0.w, r8.w, c.z, c.w);
                    }
                }
            }
            if (STREAM && source.first < end) {
                gemv_load_act<NB>(p, queue + slot * SLOT + ACT, lane, source.step);
            }
            source.load(p, queue + slot * SLOT, lane, warp, steps);
            gemv_commit();
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
        }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float *const mine = sums + parity * SUMS;
#pragma unroll
            for (int i = 0; i < NB; i++) {
                float *const d =
                    mine + (warp * COLUMNS + i * 8 + lane % 4 * 2) * GEMV_PITCH + lane / 4;
                d[0] = acc[j][i][0];
                d[GEMV_PITCH] = acc[j][i][1];
                d[8] = acc[j][i][2];
                d[GEMV_PITCH + 8] = acc[j][i][3];
            }
            __syncthreads();
            const int o = first + j * tile + my_row;
            if (my_column < p.m && o < end) {
                const float v = gemv_total(mine, COLUMNS, my_column, my_row);
                const float up = p.gated ? gemv_total(mine, COLUMNS, my_column, my_row + 8) : 0;
                gemv_finish<T>(p, v, up, scale, my_column, o, old[j]);
            }
            parity ^= 1; // the other half is free: all passed the barrier after reading it
        }
    }
}

template <int COLUMNS, int TILES, int DEPTH, bool STREAM> static size_t gemv_shared(int m, int k)
{
    const size_t slot = (TILES * 4 + (STREAM ? COLUMNS / 8 * 2 : 0)) * GEMV_THREADS * 16;
    return DEPTH * slot + 2 * GEMV_WARPS * COLUMNS * GEMV_PITCH * sizeof(float) +
           GEMV_MAX_ROWS * GEMV_WARPS * sizeof(float) +
           (STREAM ? 0 : (size_t)m * gemv_act_pitch(k));
}

#endif
