// SPDX-License-Identifier: Apache-2.0
//
// Products of few rows of in: each warp multiplies its 16 rows of W for itself, whose sums nobody
// has to wait for. Codes are operands as they lie (raw.cuh): what has to be done to activations for
// that is done once in a block, by a warp of its own.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_FEW_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_FEW_CUH

#include "cuda/gemm/codes_sm90/raw.cuh"
#include "cuda/gemm/codes_sm90/shape.cuh"

template <typename T> static __device__ __forceinline__ uint32_t times_two(uint32_t v, float by)
{
    const uint32_t both = msgl__pack_two(by, by, T());
    const __nv_bfloat162 r = __hmul2(*(const __nv_bfloat162 *)&v, *(const __nv_bfloat162 *)&both);
    return *(const uint32_t *)&r;
}

// Chains of sums, since a product waits for the one in front that adds to the same ones; of f16,
// which cannot be divided by 16 before, also where the second ones are 16 times too large.
template <typename T, typename FORM, int N> struct codes_chains {
    static constexpr int PER_GROUP = FORM::SPAN / 16; // products of 16 columns
    static constexpr bool APART = raw_odd<FORM>() && !codes_raw<T>::SCALED;
    static constexpr int CHAINS = APART || (PER_GROUP >= 4 && N <= 16) ? 2 : 1;
};

// Activations of eight rows of in and a stage, number `eight` of the tile: multiplied by what
// raw.cuh wants, and their sums of each group left beside them.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void prepare_eight(uint32_t stage, int eight)
{
    typedef codes_shape<FORM, N> shape;
    typedef codes_raw<T> raw;
    constexpr int PARTS = shape::STEPS * CODES_PARTS, PER_GROUP = FORM::SPAN / 16;
    const int lane = threadIdx.x % 32;
    const uint32_t ones = msgl__pack_two(1.0f, 1.0f, T());
    const uint32_t all_ones[4] = {ones, ones, ones, ones};
    const uint32_t row = stage + shape::IN_AT + (uint32_t)((eight * 8 + lane % 8) * ROW_BYTES);
    const uint32_t sums = stage + shape::SUMS_AT + (uint32_t)(eight * 8 + lane * 2) * 4;
    float sum[4] = {};
    const auto leave = [&](int group) {
        if (lane < 4) {
            msgl__write_shared(sums + (uint32_t)(group * N * 4),
                               make_float2(sum[0] * raw::BOTH, sum[1] * raw::BOTH));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = 0;
    };
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        uint32_t b[4];
        const uint32_t at = row + (uint32_t)(p / 2 * shape::HALF_BYTES) +
                            (uint32_t)(((p % 2 * 4 + raw_order<FORM>(lane / 8)) ^ lane % 8) * 16);
        msgl__load_matrix_4(at, b);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            msgl__mma(sum, all_ones, b[2 * i], b[2 * i + 1], T());
            if ((2 * p + i + 1) % PER_GROUP == 0) leave((2 * p + i) / PER_GROUP);
        }
        if constexpr (raw::SCALED) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                b[i] = times_two<T>(b[i], raw_odd<FORM>() && i >= 2 ? raw::IN / 16 : raw::IN);
            }
            msgl__store_matrix_4(at, b[0], b[1], b[2], b[3]);
        }
    }
}

// The work of preparing warp `index`: of all stages of the segment.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void prepare_all(codes_ring r, const line_segment &all, int index)
{
    typedef codes_shape<FORM, N> shape;
    for (int at = all.begin; at < all.end; at++) {
        const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
        msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
#pragma unroll 1
        for (int eight = index; eight < N / 8; eight += shape::PREPARERS) {
            prepare_eight<T, FORM, N>(stage, eight);
        }
        // What comes into the stage next is written by the asynchronous proxy.
        if constexpr (codes_raw<T>::SCALED) msgl__fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) msgl__mbarrier_arrive(r.ready + r.slot * 8);
        next_slot<shape::STAGES>(r);
    }
}

// A step of a tile, whose codes and activations have arrived: acc += W in^T over its columns, times
// codes_raw::BOTH.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void
multiply_step(float (&acc)[N / 2], const codes_args &g, const msgl_codes_row &l,
              const codes_lane<FORM, N> &lane, const codes_operand<FORM, N> &w,
              const codes_place<FORM, N> &at)
{
    typedef codes_shape<FORM, N> shape;
    typedef codes_chains<T, FORM, N> chains;
    constexpr int PER_GROUP = chains::PER_GROUP, CHAINS = chains::CHAINS;
    float sum[CHAINS][N / 2], in_sum[N / 4];
    uint32_t b[N / 8][4];
#pragma unroll
    for (int step = 0; step < CODES_STEP / 16; step++) {
        const int group = step / PER_GROUP, p = step / 2, i = step % 2;
        if (i == 0) {
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                msgl__load_matrix_4(at.in + lane.in[p % 2] +
                                        (uint32_t)(p / 2 * shape::HALF_BYTES + j * 8 * ROW_BYTES),
                                    b[j]);
            }
        }
        if (step % PER_GROUP == 0) {
            const float zero[2] = {raw_zero<FORM>(l, w.scales[0], group),
                                   raw_zero<FORM>(l, w.scales[1], group)};
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float2 v = msgl__read_shared<float2>(at.sums + lane.sums +
                                                           (uint32_t)((group * N + j * 8) * 4));
                in_sum[2 * j] = v.x, in_sum[2 * j + 1] = v.y;
            }
#pragma unroll
            for (int s = 0; s < N / 2; s++) {
                sum[0][s] = FORM::OFFSET ? 0 : zero[s / 2 % 2] * in_sum[s / 4 * 2 + s % 2];
                if constexpr (CHAINS > 1) sum[1][s] = 0;
            }
        }
        const int first = raw_order<FORM>(2 * i), second = raw_order<FORM>(2 * i + 1);
        const uint32_t a[4] = {raw_pair<FORM>(w.low[0][p], w.high[0][p], first),
                               raw_pair<FORM>(w.low[1][p], w.high[1][p], first),
                               raw_pair<FORM>(w.low[0][p], w.high[0][p], second),
                               raw_pair<FORM>(w.low[1][p], w.high[1][p], second)};
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            msgl__mma(sum[i % CHAINS] + 4 * j, a, b[j][2 * i], b[j][2 * i + 1], T());
        }
        if ((step + 1) % PER_GROUP > 0) continue;
        const float scale[2] = {group_scale<FORM>(l, g.factor, w.scales[0], group),
                                group_scale<FORM>(l, g.factor, w.scales[1], group)};
        float offset[2] = {};
        if constexpr (FORM::OFFSET) {
            offset[0] = group_offset<FORM>(l, w.scales[0], group, scale[0]);
            offset[1] = group_offset<FORM>(l, w.scales[1], group, scale[1]);
        }
#pragma unroll
        for (int s = 0; s < N / 2; s++) {
            float v = sum[0][s];
            if constexpr (CHAINS > 1) v = fmaf(sum[1][s], chains::APART ? 0.0625f : 1.0f, v);
            acc[s] = fmaf(scale[s / 2 % 2], v, acc[s]);
            if constexpr (FORM::OFFSET) {
                acc[s] = fmaf(offset[s / 2 % 2], in_sum[s / 4 * 2 + s % 2], acc[s]);
            }
        }
    }
}

// `n` stages of a tile from the ring's next one on. A step's codes are read before the activations
// are ready.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void
multiply_few(float (&acc)[N / 2], const codes_args &g, const msgl_codes_row &l,
             const codes_lane<FORM, N> &lane, codes_ring &r, int n)
{
    typedef codes_shape<FORM, N> shape;
#pragma unroll 1
    for (int s = 0; s < n; s++) {
        const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
        msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
#pragma unroll 1
        for (int step = 0; step < shape::STEPS; step++) {
            const codes_place<FORM, N> at(stage, step);
            codes_operand<FORM, N> w;
#pragma unroll
            for (int p = 0; p < CODES_PARTS; p++) w.load_part(lane, at, p);
            w.load_scales(g, l, lane, at);
            if (step == 0) msgl__mbarrier_wait(r.ready + r.slot * 8, r.phase);
            multiply_step<T, FORM, N>(acc, g, l, lane, w, at);
        }
        __syncwarp();
        release<shape::CLUSTER>(r, r.slot);
        next_slot<shape::STAGES>(r);
    }
}

#endif
