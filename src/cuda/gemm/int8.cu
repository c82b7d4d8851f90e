// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/device.cuh"
#include "cuda/gemm/int8.h"
#include "cuda/gemm/table.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

enum { GROUP = MSGL_INT8_GROUP, WARP = 32, THREADS = 128, WARPS = THREADS / WARP };

static __host__ __device__ int groups_of(int k)
{
    return (k + GROUP - 1) / GROUP;
}

// Arguments of both kernels.
struct int8_args {
    const uint8_t *w;    // [n, groups * GROUP]
    const float *scales; // [n, groups]
    const float *bias;   // [n], or NULL
    const void *in;
    void *out;
    size_t ld_in, ld_out;
    int m, n, k, groups;
    bool accumulate, aligned; // aligned: rows of in can be read in pieces of 16 bytes
};

static const uint8_t *values_of(const msgl_weight *w)
{
    return (const uint8_t *)w->data;
}

static const float *scales_of(const msgl_weight *w)
{
    return (const float *)(values_of(w) + (size_t)w->n * groups_of(w->k) * GROUP);
}

// --- packing -----------------------------------------------------------------------------------

size_t msgl__cuda_int8_packed_size(const msgl_wformat *, int n, int k)
{
    size_t groups, bytes, padded;
    if (n < 1 || k < 1 || k > INT32_MAX - GROUP ||
        msgl__size_mul((size_t)n, (size_t)groups_of(k), &groups) != 0 ||
        msgl__size_mul(groups, GROUP + sizeof(float), &bytes) != 0 ||
        msgl__size_add(bytes, 63, &padded) != 0) {
        return 0;
    }
    return padded / 64 * 64;
}

// A warp per group, two columns a lane. values, scales: of the first row's first group.
template <typename S>
static __global__ void quantize(const S *src, size_t rows, size_t cols, uint8_t *values,
                                float *scales, int groups)
{
    const size_t parts = (cols + GROUP - 1) / GROUP;
    const size_t at = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const size_t row = at / parts, group = at % parts;
    const int lane = threadIdx.x % WARP;
    if (row >= rows) return;
    float v[2];
    uint32_t largest = 0; // |v| as bits, whose order is the floats' with infinity and NaN behind it
    for (int i = 0; i < 2; i++) {
        const size_t column = group * GROUP + (size_t)(2 * lane + i);
        v[i] = column < cols ? to_f32(src[row * cols + column]) : 0.0f;
        largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    const float most = __uint_as_float(largest);
    const bool finite = largest < 0x7f800000u, some = finite && most >= 1e-30f;
    const float inverse = some ? __fdiv_rn(127.0f, most) : 0.0f;
    uint8_t *const to = values + (row * (size_t)groups + group) * GROUP + 2 * lane;
    for (int i = 0; i < 2; i++) {
        to[i] = (uint8_t)(128 + (some ? __float2int_rn(__fmul_rn(v[i], inverse)) : 0));
    }
    if (lane > 0) return;
    scales[row * (size_t)groups + group] = some     ? __fdiv_rn(most, 127.0f)
                                           : finite ? 0.0f
                                                    : __uint_as_float(0x7fc00000u);
}

void msgl__cuda_int8_quantize(msgl_exec *x, msgl_weight *w, size_t row, size_t rows, size_t from,
                              size_t cols, const void *src, msgl_dtype src_dtype)
{
    const int groups = groups_of(w->k);
    const size_t first = row * (size_t)groups + from / GROUP;
    uint8_t *const values = (uint8_t *)w->data + first * GROUP;
    float *const scales = (float *)scales_of(w) + first;
    const size_t all = rows * ((cols + GROUP - 1) / GROUP);
    const unsigned blocks = (unsigned)((all + WARPS - 1) / WARPS);
    cudaStream_t s = msgl__cuda_stream(x);
    if (src_dtype == MSGL_F32) {
        quantize<<<blocks, THREADS, 0, s>>>((const float *)src, rows, cols, values, scales, groups);
    } else if (src_dtype == MSGL_F16) {
        quantize<<<blocks, THREADS, 0, s>>>((const __half *)src, rows, cols, values, scales,
                                            groups);
    } else {
        quantize<<<blocks, THREADS, 0, s>>>((const __nv_bfloat16 *)src, rows, cols, values, scales,
                                            groups);
    }
    MSGL_CUDA_LAUNCHED(x);
}

template <typename D>
static __global__ void gather(const uint8_t *values, const float *scales, int groups, int k,
                              const int32_t *ids, int first, int n, D *out)
{
    const int id = ids[blockIdx.x] - first;
    const bool there = (unsigned)id < (unsigned)n;
    const size_t row = (size_t)(there ? id : 0) * (size_t)groups;
    D *const to = out + (size_t)blockIdx.x * (size_t)k;
    for (int i = threadIdx.x; i < k; i += blockDim.x) {
        const float q = (float)((int)values[row * GROUP + (size_t)i] - 128);
        to[i] = D(there ? scales[row + (size_t)(i / GROUP)] * q : 0.0f);
    }
}

void msgl__cuda_int8_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                            void *out)
{
    const uint8_t *values = values_of(w);
    const float *scales = scales_of(w);
    const int groups = groups_of(w->k);
    cudaStream_t s = msgl__cuda_stream(x);
    if (rows <= 0 || x->status != 0) return;
    if (x->act == MSGL_F32) {
        gather<<<rows, 256, 0, s>>>(values, scales, groups, w->k, ids, w->first, w->n,
                                    (float *)out);
    } else if (x->act == MSGL_F16) {
        gather<<<rows, 256, 0, s>>>(values, scales, groups, w->k, ids, w->first, w->n,
                                    (__half *)out);
    } else {
        gather<<<rows, 256, 0, s>>>(values, scales, groups, w->k, ids, w->first, w->n,
                                    (__nv_bfloat16 *)out);
    }
    MSGL_CUDA_LAUNCHED(x);
}

// --- a few rows --------------------------------------------------------------------------------

enum { FEATURES = 2, ROWS = 8, PIECE = 16 }; // of a warp; of a launch; columns a lane reads at once

// A float whose lowest byte is u has the value 2^23 + u: exact, and no conversion.
static __device__ __forceinline__ void expand(uint32_t four, float v[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7540u + i)) - 8388736.0f;
    }
}

static __device__ __forceinline__ void expand_16(uint4 q, float v[PIECE])
{
    expand(q.x, v);
    expand(q.y, v + 4);
    expand(q.z, v + 8);
    expand(q.w, v + 12);
}

// 16 elements of a row that has `left` of them from p on; zeros behind its end.
static __device__ __forceinline__ void load_16(const float *p, int left, bool, float v[PIECE])
{
#pragma unroll
    for (int i = 0; i < PIECE; i++) v[i] = i < left ? p[i] : 0.0f;
}

template <typename T>
static __device__ __forceinline__ void load_16(const T *p, int left, bool aligned, float v[PIECE])
{
    if (!aligned || left < PIECE) {
#pragma unroll
        for (int i = 0; i < PIECE; i++) v[i] = i < left ? to_f32(p[i]) : 0.0f;
        return;
    }
    const uint4 a = ((const uint4 *)p)[0], b = ((const uint4 *)p)[1];
    const uint32_t pairs[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 two = msgl__unpack_two(pairs[i], T());
        v[2 * i] = two.x;
        v[2 * i + 1] = two.y;
    }
}

template <typename O>
static __device__ __forceinline__ void put(const int8_args &a, int row, int column, float v)
{
    O *const to = (O *)a.out + (size_t)row * a.ld_out + column;
    if (a.bias != NULL) v += a.bias[column];
    if (a.accumulate) v += to_f32(*to);
    *to = O(v);
}

// Lane l has columns 16 l and up of every 512; four lanes share a group.
template <typename T, typename O, int M>
static __global__ void __launch_bounds__(THREADS) few_rows(const int8_args a)
{
    const int lane = threadIdx.x % WARP;
    const int first = (blockIdx.x * WARPS + threadIdx.x / WARP) * FEATURES;
    const int width = a.groups * GROUP;
    float acc[FEATURES][M] = {};
    if (first >= a.n) return;
#pragma unroll 2
    for (int at = lane * PIECE; at < width; at += WARP * PIECE) {
        float w[FEATURES][PIECE], scale[FEATURES];
#pragma unroll
        for (int f = 0; f < FEATURES; f++) {
            const size_t feature = (size_t)min(first + f, a.n - 1);
            expand_16(__ldcs((const uint4 *)(a.w + feature * (size_t)width + at)), w[f]);
            scale[f] = a.scales[feature * (size_t)a.groups + at / GROUP];
        }
#pragma unroll
        for (int r = 0; r < M; r++) {
            float v[PIECE];
            const T *const row = (const T *)a.in + (size_t)min(r, a.m - 1) * a.ld_in;
            load_16(row + at, a.k - at, a.aligned, v);
#pragma unroll
            for (int f = 0; f < FEATURES; f++) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < PIECE; i++) sum = fmaf(w[f][i], v[i], sum);
                acc[f][r] = fmaf(scale[f], sum, acc[f][r]);
            }
        }
    }
#pragma unroll
    for (int f = 0; f < FEATURES; f++) {
#pragma unroll
        for (int r = 0; r < M; r++) {
            float v = acc[f][r];
#pragma unroll
            for (int o = WARP / 2; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
            if (lane == 0 && r < a.m && first + f < a.n) put<O>(a, r, first + f, v);
        }
    }
}

template <typename T, typename O> static void launch_rows(msgl_exec *x, const int8_args &all)
{
    const unsigned blocks = (unsigned)((all.n + WARPS * FEATURES - 1) / (WARPS * FEATURES));
    cudaStream_t s = msgl__cuda_stream(x);
    for (int row = 0; row < all.m; row += ROWS) {
        int8_args a = all;
        a.in = (const T *)all.in + (size_t)row * all.ld_in;
        a.out = (O *)all.out + (size_t)row * all.ld_out;
        a.m = all.m - row < ROWS ? all.m - row : ROWS;
        if (a.m == 1) {
            few_rows<T, O, 1><<<blocks, THREADS, 0, s>>>(a);
        } else if (a.m == 2) {
            few_rows<T, O, 2><<<blocks, THREADS, 0, s>>>(a);
        } else if (a.m <= 4) {
            few_rows<T, O, 4><<<blocks, THREADS, 0, s>>>(a);
        } else {
            few_rows<T, O, ROWS><<<blocks, THREADS, 0, s>>>(a);
        }
    }
    MSGL_CUDA_LAUNCHED(x);
}

// --- tiles -------------------------------------------------------------------------------------

// A block has 64 rows and 64 features, a warp 32 and 32. A stage is one group: rows of activations,
// of bytes, and the features' scales.
enum {
    TILE = 64,
    MI = 2, // 16 rows each
    NI = 4, // 8 features each
    STAGES = 3,
    A_BYTES = TILE * GROUP * 2,
    B_BYTES = TILE * GROUP,
    STAGE_BYTES = A_BYTES + B_BYTES + TILE * (int)sizeof(float),
};

// Where 16 bytes, piece c of 8, of a row of activations lie: rows of 128 bytes permute their
// pieces, so that eight rows' equal pieces are in different banks.
static __device__ __forceinline__ uint32_t piece_at(int row, int c)
{
    return (uint32_t)(row * GROUP * 2 + ((c ^ (row & 7)) << 4));
}

template <typename T>
static __device__ __forceinline__ void load_stage(const int8_args &a, int row0, int feature0,
                                                  int group, uint32_t to)
{
    const T *const in = (const T *)a.in;
    const int k = group * GROUP;
#pragma unroll
    for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
        const int row = row0 + i / 8, column = k + i % 8 * 8;
        const bool there = row < a.m && column < a.k;
        msgl__copy_async_16(to + piece_at(i / 8, i % 8),
                            there ? in + (size_t)row * a.ld_in + column : in, there);
    }
#pragma unroll
    for (int i = threadIdx.x; i < TILE * 4; i += THREADS) {
        const size_t feature = (size_t)min(feature0 + i / 4, a.n - 1);
        msgl__copy_async_16(to + A_BYTES + (uint32_t)i * 16,
                            a.w + (feature * (size_t)a.groups + (size_t)group) * GROUP + i % 4 * 16,
                            true);
    }
    if (threadIdx.x < TILE) {
        const size_t feature = (size_t)min(feature0 + (int)threadIdx.x, a.n - 1);
        msgl__copy_async_4(to + A_BYTES + B_BYTES + threadIdx.x * 4,
                           a.scales + feature * (size_t)a.groups + group);
    }
}

static __device__ __forceinline__ uint32_t word_of(const uint4 v[2], int i)
{
    const uint4 &u = v[i / 4];
    return i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w;
}

// One group of a warp's 32 x 32. Which columns of the group a product of 16 takes does not matter
// to the sum: lane c of four takes columns 16 c to 16 c + 15, four for each of four products, so
// that it reads its part of a row at once.
template <typename T>
static __device__ __forceinline__ void multiply(uint32_t stage, int row0, int feature0,
                                                float acc[MI][NI][4])
{
    const int lane = threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    uint4 rows[MI][2][2]; // 16 elements of rows g and g + 8
    float sum[MI][NI][4] = {};
#pragma unroll
    for (int i = 0; i < MI * 4; i++) {
        const int row = row0 + i / 2 * 8 + g;
        rows[i / 4][i / 2 % 2][i % 2] =
            msgl__read_shared<uint4>(stage + piece_at(row, 2 * c + i % 2));
    }
#pragma unroll
    for (int ni = 0; ni < NI; ni++) {
        const int feature = feature0 + ni * 8;
        const uint4 q =
            msgl__read_shared<uint4>(stage + A_BYTES + (uint32_t)((feature + g) * GROUP + c * 16));
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            float v[4];
            expand(words[s], v); // integers of at most 127: exact in either type
            const uint32_t b0 = msgl__pack_two(v[0], v[1], T());
            const uint32_t b1 = msgl__pack_two(v[2], v[3], T());
#pragma unroll
            for (int mi = 0; mi < MI; mi++) {
                const uint32_t fa[4] = {word_of(rows[mi][0], 2 * s), word_of(rows[mi][1], 2 * s),
                                        word_of(rows[mi][0], 2 * s + 1),
                                        word_of(rows[mi][1], 2 * s + 1)};
                msgl__mma(sum[mi][ni], fa, b0, b1, T());
            }
        }
        const float2 scale =
            msgl__read_shared<float2>(stage + A_BYTES + B_BYTES + (uint32_t)(feature + 2 * c) * 4);
#pragma unroll
        for (int mi = 0; mi < MI; mi++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                acc[mi][ni][i] =
                    fmaf(sum[mi][ni][i], i % 2 == 0 ? scale.x : scale.y, acc[mi][ni][i]);
            }
        }
    }
}

template <typename T, typename O>
static __global__ void __launch_bounds__(THREADS) tiles(const int8_args a)
{
    __shared__ __align__(128) unsigned char memory[STAGES * STAGE_BYTES];
    const uint32_t base = msgl__shared_address(memory);
    const int row0 = blockIdx.y * TILE, feature0 = blockIdx.x * TILE;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int warp_row = warp / 2 * (TILE / 2), warp_feature = warp % 2 * (TILE / 2);
    float acc[MI][NI][4] = {};
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < a.groups) load_stage<T>(a, row0, feature0, s, base + (uint32_t)(s * STAGE_BYTES));
        msgl__copy_async_commit();
    }
    for (int group = 0; group < a.groups; group++) {
        msgl__copy_async_wait<STAGES - 2>();
        __syncthreads(); // the group has arrived, and all have left the stage that is loaded now
        const int next = group + STAGES - 1;
        if (next < a.groups) {
            load_stage<T>(a, row0, feature0, next, base + (uint32_t)(next % STAGES * STAGE_BYTES));
        }
        msgl__copy_async_commit();
        multiply<T>(base + (uint32_t)(group % STAGES * STAGE_BYTES), warp_row, warp_feature, acc);
    }
#pragma unroll
    for (int i = 0; i < MI * NI * 4; i++) {
        const int mi = i / (NI * 4), ni = i / 4 % NI, j = i % 4;
        const int row = row0 + warp_row + mi * 16 + j / 2 * 8 + lane / 4;
        const int feature = feature0 + warp_feature + ni * 8 + lane % 4 * 2 + j % 2;
        if (row < a.m && feature < a.n) put<O>(a, row, feature, acc[mi][ni][j]);
    }
}

template <typename T, typename O> static void launch_tiles(msgl_exec *x, const int8_args &all)
{
    enum { MOST_ROWS = 65535 * TILE }; // of a grid
    for (int row = 0; row < all.m; row += MOST_ROWS) {
        int8_args a = all;
        a.in = (const T *)all.in + (size_t)row * all.ld_in;
        a.out = (O *)all.out + (size_t)row * all.ld_out;
        a.m = all.m - row < MOST_ROWS ? all.m - row : MOST_ROWS;
        const dim3 grid((unsigned)((a.n + TILE - 1) / TILE), (unsigned)((a.m + TILE - 1) / TILE));
        tiles<T, O><<<grid, THREADS, 0, msgl__cuda_stream(x)>>>(a);
    }
    MSGL_CUDA_LAUNCHED(x);
}

// --- calls -------------------------------------------------------------------------------------

static int8_args args_of(const msgl_linear_call *c)
{
    int8_args a = {};
    a.w = values_of(c->w);
    a.scales = scales_of(c->w);
    a.bias = c->bias;
    a.in = c->in;
    a.ld_in = c->ld_in;
    a.out = c->out;
    a.ld_out = c->ld_out;
    a.m = c->m;
    a.n = c->w->n;
    a.k = c->w->k;
    a.groups = groups_of(a.k);
    a.accumulate = c->accumulate;
    a.aligned = (uintptr_t)c->in % 16 == 0 && c->ld_in % 8 == 0;
    return a;
}

static bool is_int8(const msgl_linear_call *c)
{
    return c->w->format->id == MSGL_W_INT8;
}

bool msgl__cuda_int8_rows_can(const msgl_exec *, const msgl_linear_call *c)
{
    return is_int8(c);
}

bool msgl__cuda_int8_tiles_can(const msgl_exec *x, const msgl_linear_call *c)
{
    // Behind a norm the input is dense, in scratch.
    const bool aligned = c->norm != NULL || ((uintptr_t)c->in % 16 == 0 && c->ld_in % 8 == 0);
    return is_int8(c) && x->act != MSGL_F32 && c->w->k % 8 == 0 && aligned;
}

template <typename T> static void launch(msgl_exec *x, const int8_args &a, bool f32_out, bool tiled)
{
    if constexpr (sizeof(T) == 2) {
        if (tiled) {
            f32_out ? launch_tiles<T, float>(x, a) : launch_tiles<T, T>(x, a);
            return;
        }
    }
    f32_out ? launch_rows<T, float>(x, a) : launch_rows<T, T>(x, a);
}

// Norm, product, gate: one kernel each.
static bool run(msgl_exec *x, const msgl_linear_call *c, bool tiled)
{
    msgl_linear_call normed;
    if (!msgl__cuda_norm_first(x, c, &normed)) return false;
    if (c->gated) {
        const size_t bytes = (size_t)c->m * (size_t)c->w->n * msgl__dtype_size(x->act);
        normed.out = msgl__arena_alloc(x->scratch, bytes);
        normed.ld_out = (size_t)c->w->n;
        if (normed.out == NULL) {
            x->status = MSGL_ENOMEM;
            return false;
        }
    }
    const int8_args a = args_of(&normed);
    if (x->act == MSGL_F32) {
        launch<float>(x, a, true, false);
    } else if (x->act == MSGL_F16) {
        launch<__half>(x, a, c->f32_out, tiled);
    } else {
        launch<__nv_bfloat16>(x, a, c->f32_out, tiled);
    }
    if (c->gated) msgl__cuda_gate_product(x, c, normed.out);
    return true;
}

bool msgl__cuda_int8_rows(msgl_exec *x, const msgl_linear_call *c)
{
    return run(x, c, false);
}

bool msgl__cuda_int8_tiles(msgl_exec *x, const msgl_linear_call *c)
{
    return run(x, c, true);
}
