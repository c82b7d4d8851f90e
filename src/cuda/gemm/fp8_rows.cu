// SPDX-License-Identifier: Apache-2.0
//
// A block has a row, whose values stay in registers between the norm's sum, the largest magnitude
// and the codes, or, of many rows of which each group is by itself, some of their pieces. A thread
// has pieces of eight columns as codes_row.h orders them: sixteen neighbours have a group of 128.
#include "cuda/gemm/fp8_rows.h"

#include "cuda/device.cuh"
#include "cuda/gemm/fp8_rows.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/copy_row.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/vec8.cuh"

enum {
    MOST_THREADS = 768,
    MOST_PIECES = 8,
    LANES = MSGL_FP8_GROUP / 8,
    FLAT = 4, // pieces of a thread that needs no whole row
    FLAT_THREADS = 256,
    FLAT_LEAST = 256, // rows: fewer are quantised by blocks of a row each
};

static_assert(MSGL_FP8_MOST_COLUMNS == 8 * MOST_PIECES * MOST_THREADS,
              "all of a row is in registers");

struct quantise_args {
    const void *in;
    size_t ld_in;
    const float *norm;
    float eps;
    bool gated, by_row;
    msgl_activation activation;
    int k;
    uint8_t *codes;
    float *scales;
    int pitch;
};

// Columns 2 t, 2 t + 1 and those 8, 16 and 24 further on, of the 32 that a piece is of, t = piece %
// 4. Each of the four threads of the 32 has read eight neighbours, and they exchange pairs: a 4 x 4
// transpose. All lanes.
template <typename T>
static __device__ __forceinline__ void order_piece(const uint4 read, float v[4][2], T)
{
    const int t = threadIdx.x % 4;
    uint32_t w[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & d) continue;
            const bool upper = (t & d) != 0;
            const uint32_t got = __shfl_xor_sync(MSGL_FULL_MASK, upper ? w[i] : w[i + d], d);
            (upper ? w[i] : w[i + d]) = got;
        }
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const float2 two = msgl__unpack_two(w[q], T());
        v[q][0] = two.x, v[q][1] = two.y;
    }
}

// Those of piece `piece` of a row; `there` is the same in all four threads.
template <typename T>
static __device__ __forceinline__ void load_piece(const T *row, int piece, bool there,
                                                  float v[4][2])
{
    order_piece(there ? __ldcg((const uint4 *)row + piece) : make_uint4(0, 0, 0, 0), v, T());
}

// A piece's codes; by: what its values are multiplied by.
static __device__ __forceinline__ void store_piece(const quantise_args &a, int row, int piece,
                                                   const float v[4][2], float by)
{
    uint32_t half[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        half[h] = fp8_pack(v[2 * h][0] * by, v[2 * h][1] * by, v[2 * h + 1][0] * by,
                           v[2 * h + 1][1] * by);
    }
    *(uint2 *)(a.codes + (size_t)row * a.k + 8 * (size_t)piece) = make_uint2(half[0], half[1]);
}

// Where the scale of a group of a row is.
static __device__ __forceinline__ size_t scale_place(const quantise_args &a, int row, int group)
{
    const size_t fours = (size_t)a.pitch, at = (size_t)group;
    return row < a.pitch ? at * fours + row
                         : (size_t)(a.k / MSGL_FP8_GROUP) * fours + at * 4 + row - fours;
}

// The largest magnitude of a group, in all of its threads, of which this one has a piece.
static __device__ __forceinline__ float of_group(const float v[4][2])
{
    float largest = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fp8_larger(largest, v[j / 2][j % 2]);
    for (int d = 1; d < LANES; d *= 2) {
        largest = fp8_larger(largest, __shfl_xor_sync(MSGL_FULL_MASK, largest, d));
    }
    return largest;
}

// The block's sum, or its largest value.
template <bool LARGEST> static __device__ __forceinline__ float of_block(float v, float *shared)
{
    const int lane = threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int i = 0; i < 2; i++) {
        for (int d = 16; d > 0; d /= 2) {
            const float other = __shfl_xor_sync(MSGL_FULL_MASK, v, d);
            v = LARGEST ? fp8_larger(v, other) : v + other;
        }
        if (i == 1) break;
        if (lane == 0) shared[threadIdx.x / 32] = v;
        __syncthreads();
        v = lane < warps ? shared[lane] : 0;
    }
    return v;
}

template <typename T, int PIECES>
static __global__ void __launch_bounds__(MOST_THREADS) quantise_kernel(const quantise_args a)
{
    __shared__ float sums[32], maxima[32];
    const int row = (int)blockIdx.x, pieces = a.k / 8;
    const T *const in = (const T *)a.in + (size_t)row * a.ld_in;
    float v[PIECES][4][2], sum = 0, largest[PIECES], all = 0;
    msgl__pdl_trigger();
    msgl__pdl_wait();
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int piece = i * (int)blockDim.x + (int)threadIdx.x;
        const bool there = piece < pieces;
        load_piece(in, piece, there, v[i]);
        if (!a.gated) continue;
        float up[4][2];
        load_piece(in + a.k, piece, there, up);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[i][j / 2][j % 2] = gated_by(a.activation, v[i][j / 2][j % 2], up[j / 2][j % 2]);
        }
    }
    if (a.norm != NULL) {
#pragma unroll
        for (int i = 0; i < PIECES * 8; i++) {
            const float one = v[i / 8][i % 8 / 2][i % 2];
            sum += one * one;
        }
        const float inverse = 1.0f / sqrtf(of_block<false>(sum, sums) / (float)a.k + a.eps);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const int piece = i * (int)blockDim.x + (int)threadIdx.x;
            const float *const w = a.norm + piece / 4 * 32 + piece % 4 * 2;
#pragma unroll
            for (int q = 0; q < 4 && piece < pieces; q++) {
                const float2 two = __ldg((const float2 *)(w + 8 * q));
                v[i][q][0] *= inverse * two.x, v[i][q][1] *= inverse * two.y;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        largest[i] = of_group(v[i]);
        all = fp8_larger(all, largest[i]);
    }
    if (a.by_row) all = of_block<true>(all, maxima);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int piece = i * (int)blockDim.x + (int)threadIdx.x;
        float by;
        const float scale = fp8_scale(a.by_row ? all : largest[i], &by);
        if (piece >= pieces) continue;
        store_piece(a, row, piece, v[i], by);
        if (a.by_row ? piece == 0 : piece % LANES == 0) {
            a.scales[a.by_row ? (size_t)row : scale_place(a, row, piece / LANES)] = scale;
        }
    }
}

// Rows by group without a norm, of which nothing has to know a whole row: a thread has FLAT pieces
// anywhere, which are on their way at once.
template <typename T, bool GATED>
static __global__ void __launch_bounds__(FLAT_THREADS)
    quantise_flat(const quantise_args a, int pieces)
{
    const int per = a.k / 8, first = (int)blockIdx.x * (FLAT * FLAT_THREADS) + (int)threadIdx.x;
    int row[FLAT], piece[FLAT];
    uint4 in[FLAT], up[FLAT];
    msgl__pdl_trigger();
    msgl__pdl_wait();
#pragma unroll
    for (int i = 0; i < FLAT; i++) {
        const int at = first + i * FLAT_THREADS;
        row[i] = at / per, piece[i] = at - row[i] * per;
        const T *const from = (const T *)a.in + (size_t)row[i] * a.ld_in + (size_t)(piece[i] * 8);
        const bool there = at < pieces;
        in[i] = there ? __ldcg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
        if (GATED) up[i] = there ? __ldcg((const uint4 *)(from + a.k)) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < FLAT; i++) {
        float v[4][2], u[4][2], by;
        order_piece(in[i], v, T());
        if (GATED) {
            order_piece(up[i], u, T());
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j / 2][j % 2] = gated_by(a.activation, v[j / 2][j % 2], u[j / 2][j % 2]);
            }
        }
        const float scale = fp8_scale(of_group(v), &by);
        if (first + i * FLAT_THREADS >= pieces) continue;
        store_piece(a, row[i], piece[i], v, by);
        if (piece[i] % LANES == 0) a.scales[scale_place(a, row[i], piece[i] / LANES)] = scale;
    }
}

// With all of a multiprocessor's memory shared, as the products around it want it: blocks of theirs
// may then be there at the same time (launch.cuh).
template <typename T, int PIECES>
static void launch(msgl_exec *x, const quantise_args &a, int rows, int threads)
{
    constexpr auto kernel = quantise_kernel<T, PIECES>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(16, true));
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3((unsigned)rows), dim3((unsigned)threads), 0,
                                  msgl__cuda_stream(x), a));
}

template <typename T> static void launch_flat(msgl_exec *x, const quantise_args &a, int rows)
{
    const int pieces = rows * (a.k / 8), own = FLAT * FLAT_THREADS;
    const dim3 blocks((unsigned)((pieces + own - 1) / own)), threads(FLAT_THREADS);
    if (a.gated) {
        MSGL_CUDA_TRY(x, msgl__launch(quantise_flat<T, true>, blocks, threads, 0,
                                      msgl__cuda_stream(x), a, pieces));
    } else {
        MSGL_CUDA_TRY(x, msgl__launch(quantise_flat<T, false>, blocks, threads, 0,
                                      msgl__cuda_stream(x), a, pieces));
    }
}

template <typename T> static void quantise(msgl_exec *x, const quantise_args &a, int rows)
{
    const int pieces = a.k / 8, most = MOST_THREADS;
    const bool counts = (int64_t)rows * pieces <= INT32_MAX - FLAT * FLAT_THREADS;
    if (a.norm == NULL && !a.by_row && rows >= FLAT_LEAST && counts) {
        launch_flat<T>(x, a, rows);
        return;
    }
    const int threads = pieces < most ? (pieces + 31) / 32 * 32 : most;
    const int each = (pieces + threads - 1) / threads;
    if (each > 4) {
        launch<T, MOST_PIECES>(x, a, rows, threads);
    } else if (each > 2) {
        launch<T, 4>(x, a, rows, threads);
    } else if (each > 1) {
        launch<T, 2>(x, a, rows, threads);
    } else {
        launch<T, 1>(x, a, rows, threads);
    }
}

extern "C" size_t msgl__fp8_rows_bytes(int32_t m, int32_t k)
{
    return (size_t)m * (size_t)k + (size_t)(k / MSGL_FP8_GROUP) * (size_t)(m + 3) * sizeof(float);
}

extern "C" msgl_fp8_rows msgl__fp8_rows_together(void *memory, int32_t m, int32_t k)
{
    msgl_fp8_rows r = {m, k, false};
    r.codes = (uint8_t *)memory;
    r.scales = (float *)(r.codes + (size_t)m * (size_t)k);
    r.pitch = (m + 3) / 4 * 4;
    return r;
}

extern "C" msgl_fp8_rows msgl__fp8_rows_at(void *memory, int32_t m, int32_t k, bool by_row)
{
    msgl_fp8_rows r = msgl__fp8_rows_together(memory, m, k);
    r.by_row = by_row;
    if (m > MSGL_FP8_FEW_ROWS) r.pitch = m / 4 * 4;
    return r;
}

extern "C" msgl_fp8_rows msgl__fp8_rows_rest(const msgl_fp8_rows *r)
{
    msgl_fp8_rows rest = *r;
    rest.m = r->m - r->pitch;
    rest.codes += (size_t)r->pitch * (size_t)r->k;
    rest.scales += (size_t)(r->k / MSGL_FP8_GROUP) * (size_t)r->pitch;
    rest.pitch = 4;
    return rest;
}

extern "C" void msgl__cuda_quantise_rows(msgl_exec *x, const msgl_fp8_source *from,
                                         const msgl_fp8_rows *to)
{
    const quantise_args a = {from->in,    from->ld_in, from->norm,       from->norm_eps,
                             from->gated, to->by_row,  from->activation, to->k,
                             to->codes,   to->scales,  to->pitch};
    if (x->act == MSGL_F16) {
        quantise<__half>(x, a, to->m);
    } else {
        quantise<__nv_bfloat16>(x, a, to->m);
    }
}

// --- rows by index -------------------------------------------------------------------------------

static __global__ void __launch_bounds__(MSGL_COPYING_WARPS * 32)
    gather_coded(const msgl_fp8_rows from, const int32_t *index, int per, const msgl_fp8_rows to)
{
    const int row = (int)blockIdx.x * MSGL_COPYING_WARPS + (int)threadIdx.x / 32;
    const int lane = threadIdx.x % 32, groups = to.k / MSGL_FP8_GROUP;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (row >= to.m) return;
    const int source = __ldcg(index + row) / per;
    msgl__copy_row((const uint4 *)(from.codes + (size_t)source * (size_t)from.k),
                   (uint4 *)(to.codes + (size_t)row * (size_t)to.k), to.k / 16);
    for (int g = lane; g < groups; g += 32) {
        to.scales[(size_t)g * (size_t)to.pitch + row] =
            __ldcg(from.scales + (size_t)g * (size_t)from.pitch + source);
    }
}

extern "C" void msgl__cuda_gather_coded(msgl_exec *x, const msgl_fp8_rows *from,
                                        const int32_t *index, int32_t per, const msgl_fp8_rows *to)
{
    const unsigned blocks = (unsigned)((to->m + MSGL_COPYING_WARPS - 1) / MSGL_COPYING_WARPS);
    MSGL_CUDA_TRY(x, msgl__launch(gather_coded, dim3(blocks), dim3(MSGL_COPYING_WARPS * 32), 0,
                                  msgl__cuda_stream(x), *from, index, per, *to));
}
