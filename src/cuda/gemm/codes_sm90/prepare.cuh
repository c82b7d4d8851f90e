// SPDX-License-Identifier: Apache-2.0
//
// What is done to activations once in a block, by warps of their own, before others multiply by
// them: sums of each group's, for zero points and minima, and of few rows what raw.cuh wants.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_PREPARE_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_PREPARE_CUH

#include "cuda/gemm/codes_sm90/shape.cuh"

template <typename T> static __device__ __forceinline__ uint32_t times_two(uint32_t v, float by)
{
    const uint32_t both = msgl__pack_two(by, by, T());
    const __nv_bfloat162 r = __hmul2(*(const __nv_bfloat162 *)&v, *(const __nv_bfloat162 *)&both);
    return *(const uint32_t *)&r;
}

// Activations of eight rows of in and a stage, number `eight` of the tile: multiplied by what
// raw.cuh wants, and their sums of each group left beside them.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void prepare_eight(uint32_t stage, int eight)
{
    typedef codes_shape<FORM, N> shape;
    typedef codes_raw<T> raw;
    constexpr bool SCALES = shape::BY_WARP && raw::SCALED;
    constexpr int PARTS = shape::STEPS * CODES_PARTS, PER_GROUP = FORM::SPAN / 16;
    const int lane = threadIdx.x % 32;
    const uint32_t ones = msgl__pack_two(1.0f, 1.0f, T());
    const uint32_t all_ones[4] = {ones, ones, ones, ones};
    const uint32_t row = stage + shape::IN_AT + (uint32_t)((eight * 8 + lane % 8) * ROW_BYTES);
    const uint32_t sums = stage + shape::SUMS_AT + (uint32_t)(eight * 8 + lane * 2) * 4;
    const float by = shape::BY_WARP ? raw::BOTH : 1;
    float sum[4] = {};
    const auto leave = [&](int group) {
        if (lane < 4) {
            msgl__write_shared(sums + (uint32_t)(group * N * 4),
                               make_float2(sum[0] * by, sum[1] * by));
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
        if constexpr (SCALES) {
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
        if constexpr (shape::BY_WARP && codes_raw<T>::SCALED) msgl__fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) msgl__mbarrier_arrive(r.ready + r.slot * 8);
        next_slot<shape::STAGES>(r);
    }
}

#endif
