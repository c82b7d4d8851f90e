// SPDX-License-Identifier: Apache-2.0
//
// What is done to activations once in a block, by warps of their own, before others multiply by
// them: sums of each group's, for zero points and minima, and of few rows what raw.cuh wants.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_PREPARE_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_PREPARE_CUH

#include "cuda/gemm/codes_sm90/shape.cuh"

// Two bf16 times a power of two.
template <typename T> static __device__ __forceinline__ uint32_t times_two(uint32_t v, float by)
{
    const uint32_t both = msgl__pack_two(by, by, T());
    const __nv_bfloat162 r = __hmul2(*(const __nv_bfloat162 *)&v, *(const __nv_bfloat162 *)&both);
    return *(const uint32_t *)&r;
}

// Activations of eight rows of in and a stage, number `eight` of the tile: multiplied by what
// raw.cuh wants, and their sums of each group times `by` left beside them.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void prepare_eight(uint32_t stage, int eight, float by)
{
    typedef codes_shape<FORM, N> shape;
    typedef codes_bits<T> raw;
    constexpr bool SCALES = shape::BY_WARP && raw::SCALED;
    constexpr int PARTS = shape::STEPS * CODES_PARTS, PER_GROUP = FORM::SPAN / 16;
    const int lane = threadIdx.x % 32;
    const uint32_t ones = msgl__pack_two(1.0f, 1.0f, T());
    const uint32_t all_ones[4] = {ones, ones, ones, ones};
    const uint32_t row = stage + shape::IN_AT + (uint32_t)((eight * 8 + lane % 8) * ROW_BYTES);
    const uint32_t sums = stage + shape::SUMS_AT + (uint32_t)(eight * 8 + lane * 2) * 4;
    uint32_t chunk[2]; // as codes_lane's in
    for (int i = 0; i < 2; i++) {
        chunk[i] = (uint32_t)(((4 * i + raw_order<FORM>(lane / 8)) ^ lane % 8) * 16);
    }
    // Chains of products that add to the same sums.
    constexpr int CHAINS = PER_GROUP < 2 ? PER_GROUP : 2;
    float sum[CHAINS][4] = {};
    const auto leave = [&](int group) {
#pragma unroll
        for (int c = 1; c < CHAINS; c++) sum[0][0] += sum[c][0], sum[0][1] += sum[c][1];
        if (lane < 4) {
            msgl__write_shared(sums + (uint32_t)(group * N * 4),
                               make_float2(sum[0][0] * by, sum[0][1] * by));
        }
#pragma unroll
        for (int i = 0; i < 4 * CHAINS; i++) sum[i / 4][i % 4] = 0;
    };
#pragma unroll
    for (int first = 0; first < PARTS; first += CODES_PARTS) {
        // All of a step's are on their way before the first is stored again.
        uint32_t b[CODES_PARTS][4];
        const uint32_t half = row + (uint32_t)(first / 2 * shape::HALF_BYTES);
#pragma unroll
        for (int p = 0; p < CODES_PARTS; p++) {
            msgl__load_matrix_4(half + (uint32_t)(p / 2 * shape::HALF_BYTES) + chunk[p % 2], b[p]);
        }
#pragma unroll
        for (int p = 0; p < CODES_PARTS; p++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int product = 2 * (first + p) + i;
                msgl__mma(sum[product % CHAINS], all_ones, b[p][2 * i], b[p][2 * i + 1], T());
                if ((product + 1) % PER_GROUP == 0) leave(product / PER_GROUP);
            }
        }
        if constexpr (SCALES) {
#pragma unroll
            for (int p = 0; p < CODES_PARTS; p++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const bool odd = raw_odd<FORM>() && i >= 2;
                    b[p][i] = times_two<T>(b[p][i], odd ? raw::IN / 16 : raw::IN);
                }
                msgl__store_matrix_4(half + (uint32_t)(p / 2 * shape::HALF_BYTES) + chunk[p % 2],
                                     b[p][0], b[p][1], b[p][2], b[p][3]);
            }
        }
    }
}

// What sums of activations are left times: of few rows what raw.cuh makes of a product, and the
// zero point where all rows of W have the same one.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ float prepared_by(const codes_args &g, const msgl_codes_row &l)
{
    if (!codes_shape<FORM, N>::BY_WARP) return 1;
    return FORM::OFFSET || g.zeros ? codes_bits<T>::BOTH : codes_bits<T>::BOTH * (float)-l.zero;
}

// The work of preparing warp `index`: the same slots of the ring in every round. Stages arrive in
// any order, and a warp that took every second one of three slots would wait for round 1 of slot 0
// as soon as slot 1 has round 0; if slot 0 has not, the parity that it waits for looks like one
// that is over, and what comes later then lacks its `ready` for ever.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void prepare_all(const codes_args &g, const msgl_codes_row &l,
                                                   codes_ring r, const line_segment &all, int index)
{
    typedef codes_shape<FORM, N> shape;
    const float by = prepared_by<T, FORM, N>(g, l);
    for (int at = all.begin; at < all.end; at++, next_slot<shape::STAGES>(r)) {
        const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
        if (r.slot % shape::PREPARERS != index) continue;
        msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
#pragma unroll 1
        for (int eight = 0; eight < N / 8; eight++) prepare_eight<T, FORM, N>(stage, eight, by);
        // What comes into the stage next is written by the asynchronous proxy.
        if constexpr (shape::BY_WARP && codes_bits<T>::SCALED) msgl__fence_async_proxy();
        __syncwarp();
        if (threadIdx.x % 32 == 0) msgl__mbarrier_arrive(r.ready + r.slot * 8);
    }
}

#endif
