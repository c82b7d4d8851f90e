// SPDX-License-Identifier: Apache-2.0
//
// The computing side of bf16 (of E4M3: codes_consumer.cuh): two warpgroups for one tile of 64 query
// rows. Each has half of the 512 output columns in registers (64 x 256, all that fits), so both
// need all probabilities; the scores are computed once: even tiles of keys by warpgroup 0, odd ones
// by warpgroup 1, which hand each other their probabilities and maxima through shared memory. While
// one computes a softmax, the other's products run:
//
//     warpgroup 0:  S0 | softmax 0 | left of V0  |           left of V1
//     warpgroup 1:  S1             | right of V0, softmax 1 | right of V1
//
// (the order of "seesaw" scheduling in FlashMLA's description of its kernel, with the second
// warpgroup taking the tiles in order). A quarter of a tile is released as soon as its warpgroup
// has multiplied by the columns of V in it; by then both have done with its keys.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_CONSUMER_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_CONSUMER_CUH

#include "cuda/attn/fragment_sm90.cuh"
#include "cuda/attn/mla_sm90/config.cuh"
#include "cuda/attn/mla_sm90/merge.cuh"
#include "cuda/attn/mla_sm90/sight.cuh"
#include "cuda/ptx/wgmma.cuh"

typedef uint32_t msgl_mla_prob[MSGL_MLA_TILE / 16][4];
typedef float msgl_mla_scores[MSGL_MLA_TILE / 2];
typedef float msgl_mla_sums[2][MSGL_MLA_HALF_SUMS / 2]; // of 128 columns each

// GROUP: the warpgroup.
template <int GROUP, msgl_mla_mode MODE> struct msgl_mla_consumer {
    const msgl_mla_params &p;
    msgl_mla_smem &smem;
    const int range, row_tile;
    const int lane, warp, row; // row: the thread's first one of the tile
    msgl_mla_sight sight;
    msgl_mla_phases phases; // of the stages; bit 2: of q
    msgl_fa_rows<MSGL_MLA_TILE> rows;
    float scale[2]; // of what is in o when the next product is added

    __device__ __forceinline__ msgl_mla_consumer(const msgl_mla_params &params, msgl_mla_smem &sm,
                                                 int range_, int tile)
        : p(params), smem(sm), range(range_), row_tile(tile), lane(threadIdx.x & 31),
          warp(threadIdx.x >> 5 & 3), row(warp * 16 + lane / 4)
    {
    }

    __device__ __forceinline__ void wait_quarter(int stage, int quarter) const
    {
        msgl__mla_wait(&smem.full[stage][quarter], phases.of(stage));
        // cp.async writes through the generic proxy. The fence is on this side since a loader would
        // wait in it for its later copies too.
        if (MODE == MSGL_MLA_GATHER) msgl__fence_async_proxy();
    }

    // Both quarters of the own half, of a tile whose scores the other warpgroup has computed.
    __device__ __forceinline__ void wait_half(int stage) const
    {
        msgl__mla_wait(&smem.full[stage][2 * GROUP], phases.of(stage));
        wait_quarter(stage, 2 * GROUP + 1);
    }

    // Whoever loads this quarter of the own half, 0 or 1, of a stage may do so as far as this warp
    // is concerned.
    __device__ __forceinline__ void release(int stage, int quarter) const
    {
        const uint32_t barrier = msgl__shared_address(&smem.empty[stage][2 * GROUP + quarter]);
        __syncwarp();
        if (MODE == MSGL_MLA_PAIRS) {
            if (lane < 2) msgl__mbarrier_arrive_at(barrier, (uint32_t)lane);
        } else if (lane == 0) {
            msgl__mbarrier_arrive(barrier);
        }
    }

    __device__ __forceinline__ void release_q() const
    {
        __syncwarp();
        if (lane == 0) msgl__mbarrier_arrive(msgl__shared_address(&smem.q_empty));
    }

    // s = q.k of a stage's keys, complete on return.
    __device__ __forceinline__ void scores(msgl_mla_scores &s, int stage)
    {
        const uint64_t a = msgl__wgmma_operand(msgl__shared_address(smem.q));
        const uint64_t b = msgl__wgmma_operand(msgl__shared_address(smem.kv[stage]));
        wait_quarter(stage, 0);
        msgl__wgmma_fence();
#pragma unroll
        for (int k = 0; k < MSGL_MLA_ROW / 16; k++) {
            if (k == 8 || k == 16 || k == 24) {
                msgl__wgmma_commit();
                wait_quarter(stage, k / 8);
                msgl__wgmma_fence();
            }
            const int at = (k / 4 * MSGL_MLA_CHUNK + k % 4 * 32) / 16;
            msgl__wgmma(s, a + at, b + at, k > 0, __nv_bfloat16());
        }
        msgl__wgmma_commit();
        msgl__wgmma_wait<0>(s);
    }

    // Starts o += P V of this warpgroup's half of a stage's rows.
    __device__ __forceinline__ void values(msgl_mla_sums &o, msgl_mla_prob &prob, int stage)
    {
        msgl__wgmma_fence();
#pragma unroll
        for (int quarter = 0; quarter < 2; quarter++) {
            const unsigned char *from = smem.kv[stage] + (GROUP * 4 + quarter * 2) * MSGL_MLA_CHUNK;
            const uint64_t b = msgl__wgmma_operand(msgl__shared_address(from), MSGL_MLA_CHUNK);
#pragma unroll
            for (int k = 0; k < MSGL_MLA_TILE / 16; k++)
                msgl__wgmma_registers<true>(o[quarter], prob[k], b + k * 2048 / 16, 1,
                                            __nv_bfloat16());
            msgl__wgmma_commit();
        }
    }

    // Waits for that, and the stage is not needed any more.
    __device__ __forceinline__ void finish_values(msgl_mla_sums &o, int stage)
    {
        msgl__wgmma_wait<1>(o[0]);
        release(stage, 0);
        msgl__wgmma_wait<0>(o[1]);
        release(stage, 1);
        phases.flip(stage);
    }

    __device__ __forceinline__ void rescale(msgl_mla_sums &o) const
    {
        msgl__fa_rescale(o[0], scale);
        msgl__fa_rescale(o[1], scale);
    }

    // Rows of V behind the unit's last key may hold anything, also NaN, which a probability of 0
    // does not cancel. Each warpgroup clears its half before its use of it. (The other one's scores
    // may see either: those keys' scores are masked.)
    __device__ __forceinline__ void clear_tail(int stage, int tile, int len) const
    {
        const int first = len - tile * MSGL_MLA_TILE;
        if (MODE == MSGL_MLA_GATHER || first >= MSGL_MLA_TILE)
            return; // there they are zero already
        const uint32_t at = msgl__shared_address(smem.kv[stage] + GROUP * 4 * MSGL_MLA_CHUNK);
        const int pieces = (MSGL_MLA_TILE - first) * 8; // of a chunk
        for (int i = threadIdx.x & 127; i < pieces; i += 128) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                msgl__write_shared(at + c * MSGL_MLA_CHUNK + first * 128 + i * 16,
                                   make_uint4(0, 0, 0, 0));
        }
        msgl__fence_async_proxy();
        msgl__named_barrier_sync(MSGL_MLA_BAR_GROUP + GROUP, 128);
    }

    // Hands the own tile's probabilities and maxima to the other warpgroup's thread of this place.
    __device__ __forceinline__ void hand_over(const msgl_mla_prob &prob)
    {
#pragma unroll
        for (int k = 0; k < MSGL_MLA_TILE / 16; k++)
            smem.prob[k * 128 + (threadIdx.x & 127)] =
                make_uint4(prob[k][0], prob[k][1], prob[k][2], prob[k][3]);
        if ((lane & 3) == 0) {
            smem.max[GROUP][row] = rows.max[0];
            smem.max[GROUP][row + 8] = rows.max[1];
        }
        msgl__named_barrier_arrive(GROUP ? MSGL_MLA_BAR_SECOND : MSGL_MLA_BAR_FIRST, 256);
    }

    // Waits for the other's.
    __device__ __forceinline__ void take_over(msgl_mla_prob &prob)
    {
        msgl__named_barrier_sync(GROUP ? MSGL_MLA_BAR_FIRST : MSGL_MLA_BAR_SECOND, 256);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float m = smem.max[!GROUP][row + 8 * h];
            const float base = m == -INFINITY ? 0.f : m;
            scale[h] = msgl__exp2((rows.max[h] - base) * p.log2_scale);
            rows.max[h] = m;
            rows.sum[h] *= scale[h];
        }
#pragma unroll
        for (int k = 0; k < MSGL_MLA_TILE / 16; k++) {
            const uint4 v = smem.prob[k * 128 + (threadIdx.x & 127)];
            prob[k][0] = v.x, prob[k][1] = v.y, prob[k][2] = v.z, prob[k][3] = v.w;
        }
    }

    // Tiles t and, if there is one before `end`, t + 1, by warpgroup 0.
    __device__ __forceinline__ void left(msgl_mla_sums &o, int t, int end, int len)
    {
        msgl_mla_scores s;
        msgl_mla_prob prob;
        scores(s, 0);
        if (t + 2 >= end) release_q();
        sight.mask(p, s, t * MSGL_MLA_TILE);
        rows.softmax(s, scale, p.log2_scale);
        msgl__fa_to_operand<__nv_bfloat16>(s, prob);
        hand_over(prob);
        rescale(o);
        clear_tail(0, t, len);
        values(o, prob, 0);
        finish_values(o, 0);
        if (t + 1 == end) return;
        take_over(prob);
        rescale(o);
        wait_half(1);
        clear_tail(1, t + 1, len);
        values(o, prob, 1);
        finish_values(o, 1);
    }

    // The same by warpgroup 1.
    __device__ __forceinline__ void right(msgl_mla_sums &o, int t, int end, int len)
    {
        msgl_mla_prob even;
        if (t + 1 < end) {
            msgl_mla_scores s;
            msgl_mla_prob odd;
            scores(s, 1);
            if (t + 2 == end) release_q();
            take_over(even);
            rescale(o);
            wait_half(0);
            clear_tail(0, t, len);
            values(o, even, 0);
            sight.mask(p, s, (t + 1) * MSGL_MLA_TILE);
            rows.softmax(s, scale, p.log2_scale);
            msgl__fa_to_operand<__nv_bfloat16>(s, odd);
            // Over for long. But ptxas moves the next wait up as far as its block goes, before the
            // softmax.
            wait_half(1);
            finish_values(o, 0);
            hand_over(odd);
            rescale(o);
            clear_tail(1, t + 1, len);
            values(o, odd, 1);
            finish_values(o, 1);
        } else {
            release_q();
            take_over(even);
            rescale(o);
            wait_half(0);
            clear_tail(0, t, len);
            values(o, even, 0);
            finish_values(o, 0);
        }
    }

    // The item's rows of this thread, and that their first key has not come yet.
    __device__ __forceinline__ void begin(const msgl_mla_item &it, msgl_mla_sums &o)
    {
        sight.begin(p, it.unit, row_tile * MSGL_MLA_TILE + row);
        rows.begin();
#pragma unroll
        for (int i = 0; i < MSGL_MLA_HALF_SUMS / 2; i++) o[0][i] = o[1][i] = 0;
    }

    // Sums of the thread's rows over both warpgroups' tiles.
    __device__ __forceinline__ void totals(float (&total)[2])
    {
        float(&sums)[2][MSGL_MLA_TILE] = smem.sum[phases.of(3)];
        phases.flip(3);
        const float own[2] = {rows.total(0), rows.total(1)};
        if ((lane & 3) == 0) sums[GROUP][row] = own[0], sums[GROUP][row + 8] = own[1];
        msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256);
        total[0] = sums[0][row] + sums[1][row];
        total[1] = sums[0][row + 8] + sums[1][row + 8];
    }

    // The results of a unit that this range has alone.
    __device__ __forceinline__ void store(const msgl_mla_item &it, const msgl_mla_sums &o,
                                          const float (&total)[2]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const msgl_mla_place at(p, it.unit.first_row, it.unit.rows,
                                    row_tile * MSGL_MLA_TILE + row + 8 * h);
            const float inverse = total[h] > 0 ? p.out_scale * msgl__rcp(total[h]) : 0;
#pragma unroll
            for (int quarter = 0; quarter < 2; quarter++)
                msgl__fa_store_row(at.out + (2 * GROUP + quarter) * 128, o[quarter], h, inverse,
                                   at.valid, 128);
            if (GROUP == 0 && (lane & 3) == 0) at.store_lse(p, rows.max[h], total[h]);
        }
    }

    // A split of one that others have splits of too.
    __device__ __forceinline__ void leave(int slot, const msgl_mla_sums &o,
                                          const float (&total)[2]) const
    {
        if (warp < p.row_groups) {
            const size_t block = msgl__mla_partial_at(p, slot, row_tile, warp);
            float4 *to = p.partial_o + block * (16 * MSGL_MLA_LATENT / 4) +
                         GROUP * (16 * MSGL_MLA_LATENT / 8) + lane;
#pragma unroll
            for (int i = 0; i < MSGL_MLA_HALF_SUMS / 4; i++) {
                const float *v = &o[i / 16][i % 16 * 4];
                __stcg(to + i * 32, make_float4(v[0], v[1], v[2], v[3]));
            }
            if (GROUP == 0 && (lane & 3) == 0) {
                float2 *ml = p.partial_ml + block * 16 + lane / 4;
                __stcg(ml, make_float2(rows.max[0], total[0]));
                __stcg(ml + 8, make_float2(rows.max[1], total[1]));
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        msgl_mla_sums o;
        msgl_mla_walk walk(p, range);
        while (walk.more()) {
            const msgl_mla_item it = walk.take();
            begin(it, o);
            const bool any = it.begin < it.end;
            if (any) {
                msgl__mla_wait(&smem.q_full, phases.of(2));
                phases.flip(2);
                msgl__fence_async_proxy(); // it may come by cp.async
            }
            for (int t = it.begin; t < it.end; t += 2) {
                if (GROUP == 0)
                    left(o, t, it.end, it.unit.len);
                else
                    right(o, t, it.end, it.unit.len);
            }
            float total[2];
            totals(total);
            if (it.unit.first_slot / 2 == it.unit.last_range)
                store(it, o, total);
            else
                leave(2 * range + (it.index != walk.from.unit), o, total);
        }
        __syncwarp();
        if (MODE == MSGL_MLA_PAIRS) msgl__cluster_arrive_done();
    }
};

#endif
