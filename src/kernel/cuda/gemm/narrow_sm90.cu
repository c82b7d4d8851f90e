// SPDX-License-Identifier: Apache-2.0
//
// Products of 17 to 256 rows with weights of a few megabytes, on Hopper: out^T = W in^T, so that
// the weights' rows fill the 64 of a warpgroup's product and m is its other side. One block makes
// 64 or 128 rows of W times all m rows of in over one part of k; the blocks of a cluster share the
// outputs and split k, and add their sums through each other's shared memory, in the order of k.
// What comes before (RMS norm) and behind (bias, silu, residual) is done on the way. At this size
// the time between kernels counts: the weights are on their way before the kernel in front ends.
//
// RMS norm: the norm's weight goes into `in` in shared memory, before the product; the row's scale
// needs the whole row and is applied to the sums. docs/internals/gemm.md has the figures.
#include "kernel/cuda/gemm/narrow_sm90.h"

#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemm/mma.cuh"
#include "kernel/cuda/gemm/tensor_map.cuh"
#include "kernel/cuda/gemm/wgmma.cuh"
#include "kernel/cuda/launch.cuh"

enum {
    BK = 64,
    ROW_BYTES = BK * 2,
    GROUP = 128, // threads of a warpgroup
    MAX_STAGES = 8,
    MAX_SPLITS = 8,
    MAX_ROWS = 256, // m
    PAD = 4,        // floats behind a row of sums: keeps banks apart
};

typedef struct narrow_args {
    int32_t m, n, k; // n: outputs, which is half of W's rows when gated
    int32_t stages;
    const float *bias, *norm;
    float eps;
    bool gated, accumulate, f32_out;
    void *out;
    size_t ld_out;
} narrow_args;

template <int GROUPS, int N> struct narrow_shape {
    static constexpr int ROWS = GROUPS * 64; // of W
    static constexpr int W_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = W_BYTES + N * ROW_BYTES;
    static constexpr int PITCH = ROWS + PAD, SUMS_BYTES = N * PITCH * 4;
    static constexpr int THREADS = GROUPS * GROUP + 32;
    static constexpr int SMALL_BYTES =
        MAX_STAGES * 16 + N * 4 + 1024; // barriers, squares, alignment
};

template <typename T> static __device__ __forceinline__ uint32_t two_of(float a, float b);
template <> __device__ __forceinline__ uint32_t two_of<__nv_bfloat16>(float a, float b)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(const uint32_t *)&v;
}
template <> __device__ __forceinline__ uint32_t two_of<__half>(float a, float b)
{
    const __half2 v = __floats2half2_rn(a, b);
    return *(const uint32_t *)&v;
}

static __device__ __forceinline__ float2 both_of(uint32_t v, __nv_bfloat16)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
static __device__ __forceinline__ float2 both_of(uint32_t v, __half)
{
    return __half22float2(*(const __half2 *)&v);
}

static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// One warp's loads. Of W's tile, the second half of the rows follows the first, or is the up rows
// of the same outputs.
template <typename SHAPE>
static __device__ __forceinline__ void
narrow_load(const narrow_args &g, const CUtensorMap *map_in, const CUtensorMap *map_w, int tile,
            int first, int last, uint32_t stages, uint32_t full, uint32_t empty)
{
    constexpr int HALF = SHAPE::ROWS / 2;
    const int row0 = g.gated ? tile * HALF : tile * SHAPE::ROWS;
    const int row1 = g.gated ? g.n + row0 : row0 + HALF;
    const int ahead = last - first < g.stages ? last - first : g.stages;
    msgl__tensor_prefetch(map_in);
    for (int i = 0; i < ahead; i++) {
        const uint32_t at = stages + (uint32_t)(i * SHAPE::STAGE_BYTES), done = full + i * 8;
        msgl__barrier_expect(done, SHAPE::STAGE_BYTES);
        msgl__tensor_load(at, map_w, (first + i) * BK, row0, done);
        msgl__tensor_load(at + SHAPE::W_BYTES / 2, map_w, (first + i) * BK, row1, done);
    }
    msgl__pdl_wait();
    for (int i = 0; i < ahead; i++) {
        const uint32_t at = stages + (uint32_t)(i * SHAPE::STAGE_BYTES);
        msgl__tensor_load(at + SHAPE::W_BYTES, map_in, (first + i) * BK, 0, full + i * 8);
    }
    int slot = 0;
    uint32_t phase = 0;
    for (int s = first + ahead; s < last; s++) {
        const uint32_t at = stages + (uint32_t)(slot * SHAPE::STAGE_BYTES), done = full + slot * 8;
        msgl__barrier_wait(empty + slot * 8, phase);
        msgl__barrier_expect(done, SHAPE::STAGE_BYTES);
        msgl__tensor_load(at, map_w, s * BK, row0, done);
        msgl__tensor_load(at + SHAPE::W_BYTES / 2, map_w, s * BK, row1, done);
        msgl__tensor_load(at + SHAPE::W_BYTES, map_in, s * BK, 0, done);
        if (++slot == g.stages) {
            slot = 0;
            phase ^= 1;
        }
    }
}

// in *= norm weight, in place, for the 64 columns from k0; squares += in^2. A thread has 8 columns
// of every 16 * GROUPS-th row.
template <typename T, int GROUPS, int N>
static __device__ __forceinline__ void narrow_norm(const narrow_args &g, uint32_t in, int k0,
                                                   float squares[N / (16 * GROUPS)])
{
    const int chunk = threadIdx.x % 8, k = k0 + chunk * 8;
    float w[8] = {};
    if (k < g.k) {
        const float4 a = __ldg((const float4 *)(g.norm + k)),
                     b = __ldg((const float4 *)(g.norm + k + 4));
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    }
#pragma unroll
    for (int i = 0; i < N / (16 * GROUPS); i++) {
        const int row = threadIdx.x / 8 + i * 16 * GROUPS;
        const uint32_t at = in + (uint32_t)(row * ROW_BYTES + ((chunk ^ (row % 8)) << 4));
        uint32_t v[4];
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(at));
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const float2 f = both_of(v[p], T());
            squares[i] += f.x * f.x + f.y * f.y;
            v[p] = two_of<T>(f.x * w[2 * p], f.y * w[2 * p + 1]);
        }
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(v[0]), "r"(v[1]),
                     "r"(v[2]), "r"(v[3])
                     : "memory");
    }
}

// Four outputs of row t from the sums of all parts of k.
template <typename T, typename SHAPE, bool NORM>
static __device__ __forceinline__ void narrow_finish(const narrow_args &g, uint32_t sums,
                                                     uint32_t squares, int splits, int t, int c,
                                                     int column)
{
    float4 part[MAX_SPLITS], up[MAX_SPLITS];
    float square[MAX_SPLITS];
    const uint32_t at = sums + (uint32_t)(t * SHAPE::PITCH + c) * 4;
#pragma unroll
    for (int p = 0; p < MAX_SPLITS; p++) {
        if (p >= splits) break;
        part[p] = msgl__cluster_load(at, (uint32_t)p);
        if (g.gated) up[p] = msgl__cluster_load(at + SHAPE::ROWS / 2 * 4, (uint32_t)p);
        if (NORM) square[p] = msgl__cluster_load_1(squares + (uint32_t)t * 4, (uint32_t)p);
    }
#pragma unroll
    for (int p = 1; p < MAX_SPLITS; p++) {
        if (p >= splits) break;
        part[0] = plus(part[0], part[p]);
        if (g.gated) up[0] = plus(up[0], up[p]);
        if (NORM) square[0] += square[p];
    }
    const float scale = NORM ? rsqrtf(square[0] / (float)g.k + g.eps) : 1.0f;
    float v[4] = {part[0].x, part[0].y, part[0].z, part[0].w};
    float u[4] = {up[0].x, up[0].y, up[0].z, up[0].w};
    T *out = (T *)g.out + (size_t)t * g.ld_out + column;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] *= scale;
        if (g.bias != NULL) v[i] += __ldg(g.bias + column + i);
        if (g.gated) {
            u[i] *= scale;
            if (g.bias != NULL) u[i] += __ldg(g.bias + g.n + column + i);
            v[i] = msgl__silu(v[i]) * u[i];
        }
    }
    if (g.f32_out) {
        *(float4 *)((float *)g.out + (size_t)t * g.ld_out + column) =
            make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    if (g.accumulate) {
        const uint2 old = *(const uint2 *)out;
        const float2 a = both_of(old.x, T()), b = both_of(old.y, T());
        v[0] += a.x, v[1] += a.y, v[2] += b.x, v[3] += b.y;
    }
    *(uint2 *)out = make_uint2(two_of<T>(v[0], v[1]), two_of<T>(v[2], v[3]));
}

template <typename T, int GROUPS, int N, bool NORM>
__global__ void __launch_bounds__(GROUPS *GROUP + 32, 1)
    narrow_sm90(const __grid_constant__ narrow_args g, const __grid_constant__ CUtensorMap map_in,
                const __grid_constant__ CUtensorMap map_w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef narrow_shape<GROUPS, N> shape;
    extern __shared__ unsigned char unaligned[];
    const uint32_t stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    const uint32_t ring = (uint32_t)(g.stages * shape::STAGE_BYTES);
    const uint32_t full = stages + (ring > shape::SUMS_BYTES ? ring : shape::SUMS_BYTES);
    const uint32_t empty = full + MAX_STAGES * 8, squares = empty + MAX_STAGES * 8;
    const uint32_t rank = msgl__cluster_rank(), splits = msgl__cluster_size();
    const int tile = (int)(blockIdx.x / splits), steps = (g.k + BK - 1) / BK;
    const int first = steps * (int)rank / (int)splits, last = steps * (int)(rank + 1) / (int)splits;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < g.stages; i++) {
            msgl__barrier_init(full + i * 8, 1);
            msgl__barrier_init(empty + i * 8, GROUPS * GROUP / 32);
        }
        msgl__barrier_init_done();
    }
    __syncthreads();
    msgl__pdl_trigger();
    if (group == GROUPS) {
        if (lane == 0)
            narrow_load<shape>(g, &map_in, &map_w, tile, first, last, stages, full, empty);
        __syncwarp();
        msgl__cluster_sync();
    } else {
        float acc[N / 2], square[N / (16 * GROUPS)] = {};
        int slot = 0, before = 0;
        uint32_t phase = 0;
        for (int s = first; s < last; s++) {
            const uint32_t at = stages + (uint32_t)(slot * shape::STAGE_BYTES);
            msgl__barrier_wait(full + slot * 8, phase);
            if (NORM) {
                narrow_norm<T, GROUPS, N>(g, at + shape::W_BYTES, s * BK, square);
                msgl__fence_shared();
                msgl__barrier_group(1, GROUPS * GROUP);
            }
            const uint64_t a = msgl__wgmma_operand(at + (uint32_t)(group * 64 * ROW_BYTES));
            const uint64_t b = msgl__wgmma_operand(at + shape::W_BYTES);
            msgl__wgmma_begin();
#pragma unroll
            for (int i = 0; i < BK / 16; i++) {
                msgl__wgmma(acc, a + 2 * i, b + 2 * i, s > first || i > 0, T());
            }
            msgl__wgmma_commit();
            msgl__wgmma_wait<1>();
            if (s > first && lane == 0) msgl__barrier_arrive(empty + before * 8, rank);
            before = slot;
            if (++slot == g.stages) {
                slot = 0;
                phase ^= 1;
            }
        }
        msgl__wgmma_wait<0>();
        msgl__barrier_group(1, GROUPS * GROUP); // the stages become the sums' place
        const uint32_t mine = stages + (uint32_t)(group * 64 + warp % 4 * 16 + lane / 4) * 4 +
                              (uint32_t)(lane % 4 * 2 * shape::PITCH) * 4;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int t = i / 4 * 8 + i % 2, row = i % 4 / 2 * 8;
            asm volatile(
                "st.shared.f32 [%0], %1;\n" ::"r"(mine + (uint32_t)(t * shape::PITCH + row) * 4),
                "f"(acc[i])
                : "memory");
        }
        if (NORM) {
#pragma unroll
            for (int i = 0; i < N / (16 * GROUPS); i++) {
                for (int d = 1; d < 8; d *= 2) {
                    square[i] += __shfl_xor_sync(0xffffffffu, square[i], d);
                }
                const int row = threadIdx.x / 8 + i * 16 * GROUPS;
                if (threadIdx.x % 8 == 0) {
                    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(squares + row * 4),
                                 "f"(square[i])
                                 : "memory");
                }
            }
        }
        msgl__pdl_wait();
        msgl__cluster_sync();
        const int columns = g.gated ? shape::ROWS / 2 : shape::ROWS, fours = columns / 4;
        const int rows = (g.m - (int)rank + (int)splits - 1) / (int)splits;
        for (int i = threadIdx.x; i < rows * fours; i += GROUPS * GROUP) {
            const int t = (int)rank + i / fours * (int)splits, c = i % fours * 4;
            const int column = tile * columns + c;
            if (column < g.n) {
                narrow_finish<T, shape, NORM>(g, stages, squares, (int)splits, t, c, column);
            }
        }
    }
    msgl__cluster_meet(); // others may still read this block's sums
#endif
}

template <typename T, int GROUPS, int N, bool NORM>
static void launch(msgl_exec *x, narrow_args g, const CUtensorMap maps[2], int splits)
{
    typedef narrow_shape<GROUPS, N> shape;
    enum { LIMIT = 227 << 10, SHARE = 112 << 10 }; // of a block; of one of two on a multiprocessor
    const int columns = g.gated ? shape::ROWS / 2 : shape::ROWS;
    const int tiles = (g.n + columns - 1) / columns, steps = (g.k + BK - 1) / BK;
    const int needed = (steps + splits - 1) / splits;
    const int room = (SHARE - shape::SMALL_BYTES) / shape::STAGE_BYTES;
    g.stages = room >= 3 ? room : (LIMIT - shape::SMALL_BYTES) / shape::STAGE_BYTES;
    if (g.stages > MAX_STAGES) g.stages = MAX_STAGES;
    if (g.stages > needed) g.stages = needed;
    int bytes = g.stages * shape::STAGE_BYTES;
    if (bytes < shape::SUMS_BYTES) bytes = shape::SUMS_BYTES;
    bytes += shape::SMALL_BYTES;
    const auto kernel = narrow_sm90<T, GROUPS, N, NORM>;
    MSGL_CUDA_TRY(x,
                  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)splits;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(tiles * splits));
    config.blockDim = dim3(shape::THREADS);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = msgl__cuda_stream(x);
    config.attrs = attributes;
    config.numAttrs = 2;
    MSGL_CUDA_TRY(x, cudaLaunchKernelEx(&config, kernel, g, maps[0], maps[1]));
}

template <typename T, int GROUPS>
static void launch_rows(msgl_exec *x, const narrow_args &g, const CUtensorMap maps[2], int splits)
{
    const bool norm = g.norm != NULL;
    if (g.m <= 32) {
        norm ? launch<T, GROUPS, 32, true>(x, g, maps, splits)
             : launch<T, GROUPS, 32, false>(x, g, maps, splits);
    } else if (g.m <= 64) {
        norm ? launch<T, GROUPS, 64, true>(x, g, maps, splits)
             : launch<T, GROUPS, 64, false>(x, g, maps, splits);
    } else if (g.m <= 128) {
        norm ? launch<T, GROUPS, 128, true>(x, g, maps, splits)
             : launch<T, GROUPS, 128, false>(x, g, maps, splits);
    } else {
        norm ? launch<T, GROUPS, 256, true>(x, g, maps, splits)
             : launch<T, GROUPS, 256, false>(x, g, maps, splits);
    }
}

// As many parts of k as give every multiprocessor a block.
static bool make_plan(const msgl_cuda_device *d, const msgl_linear_call *c, msgl_narrow_plan *plan)
{
    const size_t bytes = (size_t)c->w->n * c->w->k * 2;
    if (bytes > (size_t)24 << 20) return false; // the library's kernels read these as fast
    plan->groups = c->m <= 64 ? 1 : 2;
    const int tiles = (c->w->n + plan->groups * 64 - 1) / (plan->groups * 64);
    const int steps = (c->w->k + BK - 1) / BK;
    plan->splits = d->sm_count / tiles;
    if (plan->splits > MAX_SPLITS) plan->splits = MAX_SPLITS;
    if (plan->splits > steps / 2) plan->splits = steps / 2;
    if (plan->splits < 1) plan->splits = 1;
    return true;
}

bool msgl__cuda_narrow_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_narrow_plan *plan)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits =
        (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)w->data | (uintptr_t)c->norm;
    if (x->device->capability != 90 || w->dtype == MSGL_F32 || c->m < 1 || c->m > MAX_ROWS ||
        bits % 16 != 0 || w->k % 8 != 0 || w->n % (c->gated ? 16 : 8) != 0 || c->ld_in % 8 != 0 ||
        c->ld_out % 8 != 0) {
        return false;
    }
    // in * weight would leave f16's range where the normalised value does not.
    if (c->norm != NULL && w->dtype == MSGL_F16) return false;
    msgl_narrow_plan own;
    if (plan == NULL && !make_plan(msgl__cuda_device(x), c, &own)) return false;
    if (plan == NULL) plan = &own;
    narrow_args g = {};
    g.m = c->m;
    g.n = c->gated ? w->n / 2 : w->n;
    g.k = w->k;
    g.bias = c->bias;
    g.norm = c->norm;
    g.eps = c->norm_eps;
    g.gated = c->gated;
    g.accumulate = c->accumulate;
    g.f32_out = c->f32_out;
    g.out = c->out;
    g.ld_out = c->ld_out;
    const int box = c->m <= 32 ? 32 : c->m <= 64 ? 64 : c->m <= 128 ? 128 : 256;
    CUtensorMap maps[2];
    if (!msgl__tensor_map(&maps[0], w->dtype, c->in, c->m, w->k, c->ld_in, box) ||
        !msgl__tensor_map(&maps[1], w->dtype, w->data, w->n, w->k, (size_t)w->k,
                          plan->groups * 32)) {
        return false;
    }
    if (w->dtype == MSGL_F16) {
        plan->groups == 1 ? launch_rows<__half, 1>(x, g, maps, plan->splits)
                          : launch_rows<__half, 2>(x, g, maps, plan->splits);
    } else {
        plan->groups == 1 ? launch_rows<__nv_bfloat16, 1>(x, g, maps, plan->splits)
                          : launch_rows<__nv_bfloat16, 2>(x, g, maps, plan->splits);
    }
    return true;
}
