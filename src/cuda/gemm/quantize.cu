// SPDX-License-Identifier: Apache-2.0
//
// A warp takes a group of columns, lane i columns i and 32 + i of it, and puts codes together to
// the words of codes_row.h by exchanging them.
#include "cuda/gemm/quantize.h"

#include "cuda/device.cuh"
#include "cuda/gemm/codes_row.h"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"

enum { WARP = 32, THREADS = 128, WARPS = THREADS / WARP, PART = 32 };

// Of |v|, whose order is the floats' with infinity and NaN behind it.
static __device__ __forceinline__ uint32_t magnitude(float v)
{
    return __float_as_uint(v) & 0x7fffffffu;
}

static const uint32_t INFINITE = 0x7f800000u;

// A rule: bits of a code, parts of 32 columns of a group, the type of its number, and what a lane's
// values become.
struct int8_rule {
    static constexpr int BITS = 8, PARTS = 2;
    typedef float number;

    static __device__ __forceinline__ float round(const float (&v)[2], uint32_t (&codes)[2])
    {
        const uint32_t both = max(magnitude(v[0]), magnitude(v[1]));
        const uint32_t largest = (uint32_t)__reduce_max_sync(MSGL_FULL_MASK, both);
        const float most = __uint_as_float(largest);
        const bool finite = largest < INFINITE, some = finite && most >= 1e-30f;
        const float inverse = some ? __fdiv_rn(127.0f, most) : 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            codes[i] = (uint32_t)(128 + (some ? (int)rintf(__fmul_rn(v[i], inverse)) : 0));
        }
        if (!finite) return __uint_as_float(0x7fc00000u);
        return some ? __fdiv_rn(most, 127.0f) : 0.0f;
    }
};

struct q4_rule {
    static constexpr int BITS = 4, PARTS = 1;
    typedef __half number;

    static __device__ __forceinline__ __half round(const float (&v)[1], uint32_t (&codes)[1])
    {
        const uint32_t largest = (uint32_t)__reduce_max_sync(MSGL_FULL_MASK, magnitude(v[0]));
        const uint32_t who = __ballot_sync(MSGL_FULL_MASK, magnitude(v[0]) == largest);
        const float most = __shfl_sync(MSGL_FULL_MASK, v[0], __ffs((int)who) - 1);
        const float d = largest < INFINITE ? most / -8 : __uint_as_float(0x7fc00000u);
        const __half stored = __float2half_rn(d);
        const bool none = __half2float(stored) == 0;
        const float code = none ? 8 : rintf(__fadd_rn(__fdiv_rn(v[0], d), 8));
        codes[0] = code > 0 ? code < 15 ? (uint32_t)code : 15 : 0; // of NaN 0
        return stored;
    }
};

// Codes of 32 columns, a lane each, to `to`: a word is put together by the lanes whose codes it
// has, of which the first writes it.
template <int BITS> static __device__ __forceinline__ void put_part(uint32_t *to, uint32_t code)
{
    static_assert(BITS == 8 || BITS == 4, "one plane");
    const int lane = threadIdx.x % WARP, q = lane / 8, t = lane / 2 % 4, odd = lane % 2;
    uint32_t word = code << (16 * odd + BITS * (BITS == 8 ? q % 2 : q));
    word |= __shfl_xor_sync(MSGL_FULL_MASK, word, 1);
    word |= __shfl_xor_sync(MSGL_FULL_MASK, word, 8);
    if (BITS == 4) word |= __shfl_xor_sync(MSGL_FULL_MASK, word, 16);
    const bool first = odd == 0 && (BITS == 8 ? q % 2 : q) == 0;
    if (first) to[BITS == 8 ? 2 * t + q / 2 : t] = word;
}

// Rows of a weight, from one of its groups on.
struct quantized_rows {
    uint8_t *codes, *scales; // the weight's
    uint32_t n, row, group;
};

template <typename S, typename RULE>
static __global__ void __launch_bounds__(THREADS)
    quantize(const S *src, size_t rows, size_t cols, const quantized_rows to,
             const __grid_constant__ msgl_codes_row l)
{
    constexpr int COLUMNS = RULE::PARTS * PART;
    const size_t groups = (cols + COLUMNS - 1) / COLUMNS;
    const size_t at = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const size_t row = at / groups, group = at % groups, r = to.row + row, g = to.group + group;
    const int lane = threadIdx.x % WARP;
    if (row >= rows) return;
    float v[RULE::PARTS];
    uint32_t codes[RULE::PARTS];
#pragma unroll
    for (int p = 0; p < RULE::PARTS; p++) {
        const size_t column = group * COLUMNS + (size_t)(p * PART + lane);
        v[p] = column < cols ? to_f32(src[row * cols + column]) : 0.0f;
    }
    const typename RULE::number scale = RULE::round(v, codes);
#pragma unroll
    for (int p = 0; p < RULE::PARTS; p++) {
        const size_t part = g * RULE::PARTS + (size_t)p;
        if (part * PART >= (size_t)l.k) break; // of all lanes
        uint8_t *const piece = to.codes + r * l.codes + part * (PART / 8 * RULE::BITS);
        put_part<RULE::BITS>((uint32_t *)piece, codes[p]);
    }
    if (lane == 0) ((typename RULE::number *)to.scales)[g * to.n + r] = scale;
}

template <typename S, typename RULE>
static void launch_rule(msgl_exec *x, const void *src, size_t rows, size_t cols,
                        const quantized_rows &to, const msgl_codes_row &l)
{
    const size_t groups = (cols + RULE::PARTS * PART - 1) / (RULE::PARTS * PART);
    const dim3 grid((unsigned)((rows * groups + WARPS - 1) / WARPS));
    MSGL_CUDA_TRY(x,
                  msgl__launch_in_order(quantize<S, RULE>, grid, dim3(THREADS), 0,
                                        msgl__cuda_stream(x), (const S *)src, rows, cols, to, l));
}

template <typename S>
static void launch(msgl_exec *x, const void *src, size_t rows, size_t cols,
                   const quantized_rows &to, const msgl_codes_row &l)
{
    if (l.bits == q4_rule::BITS) {
        launch_rule<S, q4_rule>(x, src, rows, cols, to, l);
    } else {
        launch_rule<S, int8_rule>(x, src, rows, cols, to, l);
    }
}

void msgl__cuda_quantize(msgl_exec *x, const msgl_weight *w, size_t row, size_t rows, size_t from,
                         size_t cols, const void *src, msgl_dtype src_dtype)
{
    const msgl_wformat *f = w->format;
    msgl_codes_row l;
    if (!msgl__codes_row_of(f->blocks, msgl__codes_row_places(f, w->k), &l)) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    uint8_t *const codes = (uint8_t *)w->data;
    const quantized_rows to = {codes, codes + (size_t)w->n * l.codes, (uint32_t)w->n, (uint32_t)row,
                               (uint32_t)(from / (size_t)l.span)};
    MSGL_BY_DTYPE(src_dtype, launch, x, src, rows, cols, to, l);
}
