// SPDX-License-Identifier: Apache-2.0
//
// A block has a row, whose values stay in registers between the norm's sum, the largest magnitude
// and the codes. A thread has pieces of eight columns as codes_row.h orders them: sixteen
// neighbours have a group of 128.
#include "cuda/gemm/fp8_rows.h"

#include "cuda/device.cuh"
#include "cuda/gemm/fp8_rows.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/vec8.cuh"

enum { MOST_THREADS = 768, MOST_PIECES = 8, LANES = MSGL_FP8_GROUP / 8 };

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
    const int32_t *rows;
    int rows_per;
};

// Columns 2 t, 2 t + 1 and those 8, 16 and 24 further on, of the 32 that piece `piece` is of, t =
// piece % 4. Each of the four threads of the 32 reads eight neighbours, and they exchange pairs: a
// 4 x 4 transpose. All lanes; `there` is the same in all four.
template <typename T>
static __device__ __forceinline__ void load_piece(const T *row, int piece, bool there,
                                                  float v[4][2])
{
    const int t = threadIdx.x % 4;
    const uint4 read = there ? __ldcg((const uint4 *)row + piece) : make_uint4(0, 0, 0, 0);
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

static __device__ __forceinline__ float gate_by(msgl_activation f, float gate, float up)
{
    return f == MSGL_SILU        ? gated<MSGL_SILU>(gate, up)
           : f == MSGL_GELU_TANH ? gated<MSGL_GELU_TANH>(gate, up)
                                 : gated<MSGL_SWIGLU_CLAMPED>(gate, up);
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
    float v[PIECES][4][2], sum = 0, largest[PIECES], all = 0;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int from = a.rows == NULL ? row : __ldcg(a.rows + row) / a.rows_per;
    const T *const in = (const T *)a.in + (size_t)from * a.ld_in;
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
            v[i][j / 2][j % 2] = gate_by(a.activation, v[i][j / 2][j % 2], up[j / 2][j % 2]);
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
        largest[i] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) largest[i] = fp8_larger(largest[i], v[i][j / 2][j % 2]);
        for (int d = 1; d < LANES; d *= 2) {
            largest[i] = fp8_larger(largest[i], __shfl_xor_sync(MSGL_FULL_MASK, largest[i], d));
        }
        all = fp8_larger(all, largest[i]);
    }
    if (a.by_row) all = of_block<true>(all, maxima);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int piece = i * (int)blockDim.x + (int)threadIdx.x;
        float by;
        const float scale = fp8_scale(a.by_row ? all : largest[i], &by);
        if (piece >= pieces) continue;
        uint32_t half[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            half[h] = fp8_pack(v[i][2 * h][0] * by, v[i][2 * h][1] * by, v[i][2 * h + 1][0] * by,
                               v[i][2 * h + 1][1] * by);
        }
        *(uint2 *)(a.codes + (size_t)row * a.k + 8 * (size_t)piece) = make_uint2(half[0], half[1]);
        if (a.by_row ? piece == 0 : piece % LANES == 0) {
            const size_t group = (size_t)(piece / LANES), fours = (size_t)a.pitch;
            const size_t at =
                row < a.pitch ? group * fours + row
                              : (size_t)(a.k / MSGL_FP8_GROUP) * fours + group * 4 + row - fours;
            a.scales[a.by_row ? (size_t)row : at] = scale;
        }
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

template <typename T> static void quantise(msgl_exec *x, const quantise_args &a, int rows)
{
    const int pieces = a.k / 8, most = MOST_THREADS;
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
    const quantise_args a = {from->in,      from->ld_in, from->norm,       from->norm_eps,
                             from->gated,   to->by_row,  from->activation, to->k,
                             to->codes,     to->scales,  to->pitch,        from->rows,
                             from->rows_per};
    if (x->act == MSGL_F16) {
        quantise<__half>(x, a, to->m);
    } else {
        quantise<__nv_bfloat16>(x, a, to->m);
    }
}
