// SPDX-License-Identifier: Apache-2.0
//
// A product a head (msgl_heads_call). 16-bit weights and activations: many rows by cuBLASLt, unless
// deterministic, else by mma.sync, a block for a tile of one head's result, with tiles of 16 rows
// where there are few and of 64 where there are more; anything else a thread an element. k of
// latent attention is 128 and 512, one or four steps of 128: of few rows all weights are asked for
// before the kernel waits for the one in front, of more rows a step ahead (of DeepSeek-V4's groups
// of heads it is 4,096). Weights that are not plain become values in scratch first, of all heads at
// once: there are few of them.
#include "cuda/device.cuh"
#include "cuda/gemm/expand.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/grouped.cuh"
#include "cuda/gemm/lt.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    WARPS = 4,
    STEP = 128,       // of k
    UNITS = STEP / 8, // of 16 bytes in a row of a stage
    FEW_STAGES = 5,
    STAGES = 2,
    FEW_ROWS = 32, // up to which tiles are small
    // From which the library is asked: its choice takes the host tens of microseconds.
    MANY_ROWS = 512,
};

struct heads_args {
    const void *w; // [heads] of [n, k], w_stride elements apart
    size_t w_stride;
    int n, k, m;
    const void *in;
    size_t ld_in, head_in;
    void *out;
    size_t ld_out, head_out;
    bool pairs;    // two neighbours of a result can be stored at once
    bool expanded; // the kernel in front has written the weights
};

// Where 16 bytes of a row lie: no two of eight rows in the same banks.
static __device__ __forceinline__ uint32_t unit_at(int row, int unit)
{
    return (uint32_t)(row * UNITS + (unit ^ (row & 7))) * 16;
}

// Rows [first, first + ROWS) of a matrix of `rows` rows, elements [k0, k0 + STEP) of each; zeros
// beyond rows and k.
template <typename T, int ROWS>
static __device__ __forceinline__ void load_tile(uint32_t to, const T *from, size_t ld, int first,
                                                 int rows, int k0, int k)
{
    for (int i = (int)threadIdx.x; i < ROWS * UNITS; i += WARPS * 32) {
        const int row = i / UNITS, unit = i % UNITS, at = k0 + unit * 8;
        const bool there = first + row < rows && at < k;
        const T *src = there ? from + (size_t)(first + row) * ld + at : from;
        msgl__copy_async_16(to + unit_at(row, unit), src, there);
    }
}

template <typename T>
static __device__ __forceinline__ void store_two(const heads_args &a, int row, int col, float u,
                                                 float v)
{
    if (row >= a.m) return;
    T *to = (T *)a.out + (size_t)row * a.ld_out + (size_t)blockIdx.z * a.head_out + col;
    if (a.pairs && col + 1 < a.n) {
        *(uint32_t *)to = msgl__pack_two(u, v, T());
        return;
    }
    if (col < a.n) to[0] = from_f32<T>(u);
    if (col + 1 < a.n) to[1] = from_f32<T>(v);
}

// blockIdx: x columns, y rows, z head.
template <typename T, int TM, int TN, int RING>
static __global__ void __launch_bounds__(WARPS * 32) heads_kernel(const heads_args a)
{
    constexpr int ACROSS = WARPS / (TM / 16), COLS = TN / ACROSS, TILES = COLS / 8; // of a warp
    constexpr uint32_t A_BYTES = TM * STEP * 2, B_BYTES = TN * STEP * 2;
    constexpr int AHEAD = RING - 1;
    extern __shared__ __align__(128) char shared[];
    const uint32_t base = msgl__shared_address(shared);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row0 = (int)blockIdx.y * TM, col0 = (int)blockIdx.x * TN;
    const T *in = (const T *)a.in + (size_t)blockIdx.z * a.head_in;
    const T *w = (const T *)a.w + (size_t)blockIdx.z * a.w_stride;
    const int steps = (a.k + STEP - 1) / STEP;
    float acc[TILES][4] = {};
    msgl__pdl_trigger();
    // Other weights are no earlier kernel's.
    if (a.expanded) msgl__pdl_wait();
#pragma unroll 1
    for (int s = 0; s < AHEAD && s < steps; s++) {
        const uint32_t to = base + (uint32_t)s * (A_BYTES + B_BYTES) + A_BYTES;
        load_tile<T, TN>(to, w, (size_t)a.k, col0, a.n, s * STEP, a.k);
    }
    msgl__pdl_wait();
#pragma unroll 1
    for (int s = 0; s < AHEAD; s++) {
        const uint32_t to = base + (uint32_t)s * (A_BYTES + B_BYTES);
        if (s < steps) load_tile<T, TM>(to, in, a.ld_in, row0, a.m, s * STEP, a.k);
        msgl__copy_async_commit();
    }
    for (int step = 0; step < steps; step++) {
        const uint32_t stage = base + (uint32_t)(step % RING) * (A_BYTES + B_BYTES);
        const int later = step + AHEAD;
        if (later < steps) {
            const uint32_t next = base + (uint32_t)(later % RING) * (A_BYTES + B_BYTES);
            load_tile<T, TM>(next, in, a.ld_in, row0, a.m, later * STEP, a.k);
            load_tile<T, TN>(next + A_BYTES, w, (size_t)a.k, col0, a.n, later * STEP, a.k);
        }
        msgl__copy_async_commit();
        msgl__copy_async_wait<AHEAD>();
        __syncthreads();
        const int row = warp / ACROSS * 16, col = warp % ACROSS * COLS;
#pragma unroll
        for (int k = 0; k < STEP / 16; k += 2) {
            uint32_t x[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int unit = 2 * (k + i) + lane / 16;
                msgl__load_matrix_4(stage + unit_at(row + lane % 16, unit), x[i]);
            }
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint32_t b[4]; // of both steps of 16
                msgl__load_matrix_4(
                    stage + A_BYTES + unit_at(col + n * 8 + lane % 8, 2 * k + lane / 8), b);
                msgl__mma(acc[n], x[0], b[0], b[1], T());
                msgl__mma(acc[n], x[1], b[2], b[3], T());
            }
        }
        __syncthreads();
    }
    const int row = row0 + warp / ACROSS * 16 + lane / 4;
    const int col = col0 + warp % ACROSS * COLS + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        store_two<T>(a, row, col + n * 8, acc[n][0], acc[n][1]);
        store_two<T>(a, row + 8, col + n * 8, acc[n][2], acc[n][3]);
    }
}

// Any dtype and alignment.
template <typename T> static __global__ void any_kernel(const heads_args a)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int col = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (col >= a.n) return;
    const T *w = (const T *)a.w + (size_t)blockIdx.z * a.w_stride + (size_t)col * (size_t)a.k;
    const T *in = (const T *)a.in + (size_t)blockIdx.y * a.ld_in + (size_t)blockIdx.z * a.head_in;
    float sum = 0;
    for (int i = 0; i < a.k; i++) sum += to_f32(in[i]) * to_f32(w[i]);
    ((T *)a.out)[(size_t)blockIdx.y * a.ld_out + (size_t)blockIdx.z * a.head_out + col] =
        from_f32<T>(sum);
}

template <typename T, int TM, int TN, int RING>
static void launch_tiles(msgl_exec *x, const heads_args *a, int heads)
{
    const int steps = (a->k + STEP - 1) / STEP;
    const size_t bytes = (size_t)(steps < RING ? steps : RING) * (TM + TN) * STEP * 2;
    const dim3 grid((unsigned)((a->n + TN - 1) / TN), (unsigned)((a->m + TM - 1) / TM),
                    (unsigned)heads);
    MSGL_CUDA_TRY(x, (msgl__allow_shared<heads_kernel<T, TM, TN, RING>>(bytes)));
    MSGL_CUDA_TRY(x, msgl__launch(heads_kernel<T, TM, TN, RING>, grid, dim3(WARPS * 32), bytes,
                                  msgl__cuda_stream(x), *a));
}

template <typename T> static void launch_any(msgl_exec *x, const heads_args *a, int heads)
{
    const dim3 grid((unsigned)((a->n + 127) / 128), (unsigned)a->m, (unsigned)heads);
    MSGL_CUDA_TRY(x, msgl__launch(any_kernel<T>, grid, dim3(128), 0, msgl__cuda_stream(x), *a));
}

template <typename T> static void launch_halves(msgl_exec *x, const heads_args *a, int heads)
{
    // The tile is the rows' alone: a row's sums run over k in the same order in both.
    if (a->m <= FEW_ROWS) {
        launch_tiles<T, 16, 32, FEW_STAGES>(x, a, heads);
    } else {
        launch_tiles<T, 64, 64, STAGES>(x, a, heads);
    }
}

// By the library, as a batch of products; false: it cannot. w: of the first head.
static bool run_library(msgl_exec *x, const msgl_heads_call *c, const msgl_weight *w, size_t stride)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    msgl_gemm_product p = {};
    p.w = w;
    p.in = c->in;
    p.out = c->out;
    p.ld_in = c->ld_in;
    p.ld_out = c->ld_out;
    p.m = c->m;
    p.out_type = x->act;
    const msgl_gemm_key key = msgl__cuda_gemm_key(d, &p);
    msgl_gemm_desc desc;
    cublasLtMatmulHeuristicResult_t first;
    return msgl__cuda_gemm_describe(&p, &desc) == CUBLAS_STATUS_SUCCESS &&
           msgl__cuda_gemm_batch(&desc.w, c->heads, stride) &&
           msgl__cuda_gemm_batch(&desc.in, c->heads, c->head_in) &&
           msgl__cuda_gemm_batch(&desc.out, c->heads, c->head_out) &&
           msgl__cuda_gemm_propose(d, &key, &desc, 1, &first) == 1 &&
           msgl__cuda_gemm_launch(d, &p, &desc, &first.algo) == CUBLAS_STATUS_SUCCESS;
}

static bool aligned(const void *p, size_t a, size_t b, size_t to)
{
    return (uintptr_t)p % to == 0 && a % to == 0 && b % to == 0;
}

// The first head's weight as values, and the elements to the next one's; 0: there are none.
static size_t expand_heads(msgl_exec *x, const msgl_heads_call *c, msgl_weight *first)
{
    const size_t stride = (size_t)c->w->n * (size_t)c->w->k;
    *first = {&msgl__cuda_formats[x->act], c->w->n, c->w->k, NULL};
    first->data =
        msgl__arena_alloc(x->scratch, (size_t)c->heads * stride * msgl__dtype_size(x->act));
    if (first->data == NULL) {
        x->status = MSGL_ENOMEM;
        return 0;
    }
    const msgl_expand_call all = {.w = c->w,
                                  .num = c->heads,
                                  .row = 0,
                                  .rows = c->w->n,
                                  .offsets = NULL,
                                  .out = first->data,
                                  .out_stride = stride};
    msgl__cuda_expand(x, &all);
    return x->status == 0 ? stride : 0;
}

static void run_heads(msgl_exec *x, const msgl_heads_call *c)
{
    const size_t size = msgl__dtype_size(x->act);
    const bool plain = msgl__experts_are(c->w, c->heads, x->act);
    msgl_weight w = c->w[0]; // of the first head
    heads_args a = {.w = NULL,
                    .w_stride =
                        plain ? msgl__expert_stride(c->w, c->heads) : expand_heads(x, c, &w),
                    .n = w.n,
                    .k = w.k,
                    .m = c->m,
                    .in = c->in,
                    .ld_in = c->ld_in,
                    .head_in = c->head_in,
                    .out = c->out,
                    .ld_out = c->ld_out,
                    .head_out = c->head_out};
    a.w = w.data;
    a.expanded = !plain;
    if (a.w_stride == 0) {
        if (x->status == 0) x->status = MSGL_EUNSUPPORTED;
        return;
    }
    a.pairs = size == 2 && aligned(c->out, c->ld_out * size, c->head_out * size, 4);
    const bool tiles = size == 2 && w.k % 8 == 0 &&
                       aligned(c->in, c->ld_in * size, c->head_in * size, 16) &&
                       aligned(w.data, a.w_stride * size, 16, 16);
    const bool many = tiles && c->m >= MANY_ROWS && !msgl__cuda_device(x)->deterministic &&
                      aligned(c->out, c->ld_out * size, c->head_out * size, 16);
    if (many && run_library(x, c, &w, a.w_stride)) return;
    if (!tiles) {
        MSGL_BY_DTYPE(x->act, launch_any, x, &a, c->heads);
    } else if (x->act == MSGL_BF16) {
        launch_halves<__nv_bfloat16>(x, &a, c->heads);
    } else {
        launch_halves<__half>(x, &a, c->heads);
    }
}

void msgl__cuda_heads(msgl_exec *x, const msgl_heads_call *c)
{
    const size_t used = x->scratch->used;
    if (c->m > 0 && c->heads > 0 && x->status == 0) run_heads(x, c);
    x->scratch->used = used;
}

size_t msgl__cuda_heads_scratch(const msgl_heads_call *c, msgl_dtype act)
{
    if (msgl__experts_are(c->w, c->heads, act)) return 0;
    return (size_t)c->heads * (size_t)c->w->n * (size_t)c->w->k * msgl__dtype_size(act) + 64;
}
