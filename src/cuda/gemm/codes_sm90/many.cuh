// SPDX-License-Identifier: Apache-2.0
//
// Products of more rows of in than few.cuh takes, by warpgroups, with operands made in registers.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_MANY_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_MANY_CUH

#include "cuda/gemm/codes_sm90/shape.cuh"
#include "cuda/ptx/wgmma.cuh"

// acc += W in^T over `n` stages of a tile from the ring's next one on. Operands are made while the
// products in front of them run, also those of the next stage.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void
multiply_group(float (&acc)[N / 2], const codes_args &g, const msgl_codes_row &l,
               const codes_lane<FORM, N> &lane, codes_ring &r, int n)
{
    typedef codes_shape<FORM, N> shape;
    static_assert(shape::STEPS == 1, "a stage is a step");
    // Products of 16 columns of a group, and of those that are started together.
    constexpr int PER_GROUP = FORM::SPAN / 16, BATCH = PER_GROUP < 4 ? PER_GROUP : 4;
    constexpr int BATCHES = CODES_STEP / 16 / BATCH;
    static_assert(BATCHES % 2 == 0, "a step's first batch has the first operands");
    codes_operand<FORM, N> w, next;
    float sum[N / 2];
    uint32_t a[2][BATCH][4];
    const auto make = [&](codes_operand<FORM, N> &of, const codes_place<FORM, N> &at, int batch) {
        const int first = batch * BATCH, group = first / PER_GROUP;
        const uint32_t zero[2] = {group_zero<T, FORM>(l, of.scales[0], group),
                                  group_zero<T, FORM>(l, of.scales[1], group)};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if ((first + i) % 2 == 0) of.load_part(lane, at, (first + i) / 2);
            of.template make<T>(zero, first + i, a[batch % 2][i]);
        }
    };
    const auto stage_of = [&](const codes_ring &of) {
        msgl__mbarrier_wait(of.full + of.slot * 8, of.phase);
        return codes_place<FORM, N>(of.stages + (uint32_t)(of.slot * shape::STAGE_BYTES), 0);
    };
    codes_place<FORM, N> at = stage_of(r);
    w.template load_scales<true>(g, l, lane, at);
    make(w, at, 0);
#pragma unroll 1
    for (int s = 0; s < n; s++) {
        const int slot = r.slot;
        const uint32_t phase = r.phase;
        codes_place<FORM, N> behind = at;
        next_slot<shape::STAGES>(r);
#pragma unroll
        for (int batch = 0; batch < BATCHES; batch++) {
            msgl__wgmma_fence();
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int step = batch * BATCH + i;
                const uint64_t b =
                    msgl__wgmma_operand(at.in + (uint32_t)(step / 4 * shape::HALF_BYTES)) +
                    2 * (step % 4);
                msgl__wgmma_registers<false>(sum, a[batch % 2][i], b, step % PER_GROUP > 0, T());
            }
            msgl__wgmma_commit();
            if (batch + 1 < BATCHES) {
                msgl__wgmma_wait<1>();
                make(w, at, batch + 1);
            } else if (s + 1 < n) {
                msgl__wgmma_wait<1>();
                behind = stage_of(r);
                next.template load_scales<true>(g, l, lane, behind);
                make(next, behind, 0);
            }
            if ((batch + 1) * BATCH % PER_GROUP > 0) continue;
            msgl__wgmma_wait<0>(sum);
            if constexpr (FORM::OFFSET) {
                if ((batch + 1) * BATCH == PER_GROUP)
                    msgl__mbarrier_wait(r.ready + slot * 8, phase);
            }
            w.scale(g, l, batch * BATCH / PER_GROUP, lane, at, sum, acc);
        }
        __syncwarp();
        release<shape::CLUSTER>(r, slot);
        w = next;
        at = behind;
    }
}

#endif
