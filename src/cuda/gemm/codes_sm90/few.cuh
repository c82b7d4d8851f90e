// SPDX-License-Identifier: Apache-2.0
//
// Products of few rows of in: each warp multiplies its 16 rows of W for itself, whose sums nobody
// has to wait for. Codes are operands as they lie (raw.cuh): what has to be done to activations for
// that is done once in a block (prepare.cuh).
#ifndef MSGL_CUDA_GEMM_CODES_SM90_FEW_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_FEW_CUH

#include "cuda/gemm/codes_sm90/shape.cuh"

// Chains of sums, since a product waits for the one in front that adds to the same ones; of f16,
// which cannot be divided by 16 before, also where the second ones are 16 times too large.
template <typename T, typename FORM> struct codes_chains {
    static constexpr int PER_GROUP = FORM::SPAN / 16; // products of 16 columns
    static constexpr bool APART = raw_odd<FORM>() && !codes_bits<T>::SCALED;
    static constexpr int CHAINS = APART || PER_GROUP >= 4 ? 2 : 1;
};

// What sums are multiplied by at last, with the factor of all scales where nothing else is added.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ float few_factor(const codes_args &g)
{
    if (!codes_shape<FORM, N>::BY_WARP) return 1;
    if (!raw_integers<FORM>()) return g.factor;
    return FORM::KIND == CODES_MIN ? codes_bits<T>::BACK : codes_bits<T>::BACK * g.factor;
}

// A step of a tile, whose codes and activations have arrived: acc += W in^T over its columns, times
// codes_bits::BOTH. ZEROS: each row of W has zero points of its own.
template <typename T, typename FORM, int N, bool ZEROS>
static __device__ __forceinline__ void
multiply_step(float (&acc)[N / 2], const codes_args &g, const msgl_codes_row &l,
              const codes_lane<FORM, N> &lane, const codes_operand<FORM, N> &w,
              const codes_place<FORM, N> &at)
{
    typedef codes_shape<FORM, N> shape;
    typedef codes_chains<T, FORM> chains;
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
            float zero[2] = {1, 1};
            if constexpr (ZEROS) {
                zero[0] = raw_zero(l, w.scales[0], group);
                zero[1] = raw_zero(l, w.scales[1], group);
            }
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                float2 v = make_float2(0, 0);
                if constexpr (shape::PREPARERS > 0) {
                    v = msgl__read_shared<float2>(at.sums + lane.sums +
                                                  (uint32_t)((group * N + j * 8) * 4));
                }
                in_sum[2 * j] = v.x, in_sum[2 * j + 1] = v.y;
            }
#pragma unroll
            for (int s = 0; s < N / 2; s++) {
                sum[0][s] = FORM::OFFSET ? 0 : zero[s / 2 % 2] * in_sum[s / 4 * 2 + s % 2];
                if constexpr (CHAINS > 1) sum[1][s] = 0;
            }
        }
        const int first = raw_order<FORM>(2 * i), second = raw_order<FORM>(2 * i + 1);
        const uint32_t a[4] = {raw_pair<T, FORM>(w.low[0][p], w.high[0][p], first),
                               raw_pair<T, FORM>(w.low[1][p], w.high[1][p], first),
                               raw_pair<T, FORM>(w.low[0][p], w.high[0][p], second),
                               raw_pair<T, FORM>(w.low[1][p], w.high[1][p], second)};
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            msgl__mma(sum[i % CHAINS] + 4 * j, a, b[j][2 * i], b[j][2 * i + 1], T());
        }
        if ((step + 1) % PER_GROUP > 0) continue;
        const float factor = FORM::KIND == CODES_MIN ? g.factor : 1;
        const float scale[2] = {group_scale<FORM>(l, factor, w.scales[0], group),
                                group_scale<FORM>(l, factor, w.scales[1], group)};
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

// `n` stages of a tile from the ring's next one on. Codes are read before the activations are
// ready, those of all steps where there are registers for them.
template <typename T, typename FORM, int N, bool ZEROS>
static __device__ __forceinline__ void
multiply_few(float (&acc)[N / 2], const codes_args &g, const msgl_codes_row &l,
             const codes_lane<FORM, N> &lane, codes_ring &r, int n)
{
    typedef codes_shape<FORM, N> shape;
    constexpr int AT_ONCE = FORM::GROUPS == 1 ? shape::STEPS : 1;
#pragma unroll 1
    for (int s = 0; s < n; s++) {
        const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
        msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
#pragma unroll 1
        for (int first = 0; first < shape::STEPS; first += AT_ONCE) {
            codes_operand<FORM, N> w[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const codes_place<FORM, N> at(stage, first + i);
#pragma unroll
                for (int p = 0; p < CODES_PARTS; p++) w[i].load_part(lane, at, p);
            }
            if (shape::PREPARERS > 0 && first == 0) {
                msgl__mbarrier_wait(r.ready + r.slot * 8, r.phase);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const codes_place<FORM, N> at(stage, first + i);
                w[i].template load_scales<ZEROS>(g, l, lane, at);
                multiply_step<T, FORM, N, ZEROS>(acc, g, l, lane, w[i], at);
            }
        }
        __syncwarp();
        release<shape::CLUSTER>(r, r.slot);
        next_slot<shape::STAGES>(r);
    }
}

#endif
