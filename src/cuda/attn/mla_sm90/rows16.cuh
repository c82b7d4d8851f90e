// SPDX-License-Identifier: Apache-2.0
//
// Rows of E4M3 for at most 16 query rows (answers of up to 16 heads), which memory bounds: codes
// stay codes in shared memory and become f16 in registers. A warpgroup's products would have 64
// query rows, and its operands in shared memory as f16 (producer.cuh), which takes longer than the
// codes do to come.
//
// The block is that of kernel.cuh: four loading warps fill a ring of four tiles. Of eight computing
// warps, which keep all of q in registers, each multiplies by eight keys of a tile and gives the
// scores to all; each then makes the probabilities of all keys, and multiplies by 64 columns of V.
// The next tile's scores are computed first, so that a tile needs one barrier.
//
// Which columns of a product the four codes in a register are is ours to choose, as in
// attn/rows16.cuh: of K, elements 4 t .. 4 t + 3 of 16 are thread t's; of V, elements 2 g and 2 g +
// 1 are column g of two products.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_ROWS16_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_ROWS16_CUH

#include "cuda/attn/fragment_sm90.cuh"
#include "cuda/attn/mla_sm90/config.cuh"
#include "cuda/attn/mla_sm90/merge.cuh"
#include "cuda/attn/mla_sm90/producer.cuh"
#include "cuda/attn/mla_sm90/sight.cuh"
#include "cuda/ptx/e4m3.cuh"
#include "cuda/ptx/mma.cuh"

enum {
    MSGL_MLA_ROWS16_STAGES = 4, // as many as MSGL_MLA_QUARTERS: barriers
    MSGL_MLA_ROWS16_STAGE = MSGL_MLA_CHUNKS * MSGL_MLA_CODES,
    MSGL_MLA_ROWS16_LOADER_REGISTERS = 40,
    MSGL_MLA_ROWS16_COMPUTE_REGISTERS = 232,
};
static_assert((int)MSGL_MLA_ROWS16_STAGES <= (int)MSGL_MLA_QUARTERS, "a tile of f16's barriers");
static_assert((int)MSGL_MLA_ROWS16_STAGES * (int)MSGL_MLA_ROWS16_STAGE <=
                  2 * (int)MSGL_MLA_TILE_BYTES,
              "where two tiles of f16 are");

// The ring, from either side.
struct msgl_mla_ring {
    msgl_mla_smem &s;
    uint32_t count; // tiles before

    __device__ __forceinline__ msgl_mla_ring(msgl_mla_smem &smem) : s(smem), count(0)
    {
    }

    __device__ __forceinline__ uint32_t stage() const
    {
        return count % MSGL_MLA_ROWS16_STAGES;
    }
    __device__ __forceinline__ uint32_t parity() const
    {
        return count / MSGL_MLA_ROWS16_STAGES & 1;
    }
    __device__ __forceinline__ uint32_t codes() const
    {
        return msgl__shared_address(s.kv[0]) + stage() * MSGL_MLA_ROWS16_STAGE;
    }
    __device__ __forceinline__ uint32_t full() const
    {
        return msgl__shared_address(&s.full[0][stage()]);
    }
    __device__ __forceinline__ void wait_empty() const
    {
        msgl__mla_wait(&s.empty[0][stage()], parity() ^ 1);
    }
    __device__ __forceinline__ void wait_full() const
    {
        msgl__mla_wait(&s.full[0][stage()], parity());
    }
};

template <msgl_mla_mode MODE> struct msgl_mla_rows16_producer : msgl_mla_producer<MODE, true> {
    using base = msgl_mla_producer<MODE, true>;
    msgl_mla_ring ring;

    __device__ __forceinline__ msgl_mla_rows16_producer(const msgl_mla_params &params,
                                                        msgl_mla_smem &smem)
        : base(params, smem, 0), ring(smem)
    {
    }

    // As msgl_mla_producer::load.
    __device__ __forceinline__ void load(const msgl_mla_item &it, bool first)
    {
        this->row = msgl__page_row(this->p, it.unit.table_row);
        this->len = it.unit.len;
        auto now = this->look_up(it.begin), next = this->look_up(it.begin + 1);
        this->resolve(&now, it.begin), this->resolve(&next, it.begin + 1);
        bool wait = first, has_q = false;
        for (int t = it.begin; t < it.end; t++) {
            const bool old = (t + 1) * MSGL_MLA_TILE <= it.unit.old;
            // A stage is free again once q is there.
            if (wait && (!old || t == it.begin + MSGL_MLA_ROWS16_STAGES))
                msgl__pdl_wait(), wait = false;
            if (!wait && !has_q) this->load_q(it), has_q = true;
            auto after = this->look_up(t + 2);
            ring.wait_empty();
            this->load_quarter(ring.codes() + this->chunk * MSGL_MLA_CODES, MSGL_MLA_CODES,
                               ring.full(), now);
            ring.count++;
            this->resolve(&after, t + 2);
            now = next, next = after;
        }
        if (wait) msgl__pdl_wait();
        if (!has_q) this->load_q(it);
    }
};

template <msgl_mla_mode MODE> struct msgl_mla_rows16_consumer {
    const msgl_mla_params &p;
    msgl_mla_smem &smem;
    const int range, lane, warp; // warp: of the eight
    msgl_mla_ring ring;
    msgl_mla_phases phase; // bit 0: of q
    msgl_mla_sight sight;
    msgl_fa_rows<MSGL_MLA_TILE> rows; // the same in all warps
    uint32_t q[MSGL_MLA_ROW / 16][4];
    float o[32]; // [column of eight, as above][4]

    __device__ __forceinline__ msgl_mla_rows16_consumer(const msgl_mla_params &params,
                                                        msgl_mla_smem &sm, int range_)
        : p(params), smem(sm), range(range_), lane(threadIdx.x & 31), warp((threadIdx.x >> 5) - 4),
          ring(sm)
    {
    }

    // The item's query rows to registers, as f16.
    __device__ __forceinline__ void take_q()
    {
        const int g = lane / 4, t = lane & 3;
        const uint32_t at = msgl__shared_address(smem.q) + g * 128 + (t & 1) * 8;
        msgl__mla_wait(&smem.q_full, phase.of(0));
        phase.flip(0);
#pragma unroll
        for (int k = 0; k < MSGL_MLA_ROW / 16; k++) {
            const int piece = (k % 4 * 2 + (t >> 1)) ^ g;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 v =
                    msgl__read_shared<float2>(at + k / 4 * MSGL_MLA_CHUNK + h * 1024 + piece * 16);
                q[k][h] = msgl__bf16_to_f16(__float_as_uint(v.x));
                q[k][2 + h] = msgl__bf16_to_f16(__float_as_uint(v.y));
            }
        }
        __syncwarp();
        if (lane == 0) msgl__mbarrier_arrive(msgl__shared_address(&smem.q_empty));
    }

    // Where this lane has scores of a stage's tile, 512 bytes a warp; tiles take turns.
    __device__ __forceinline__ uint32_t scores_at(uint32_t stage) const
    {
        return msgl__shared_address(smem.prob) + stage % 2 * 4096 + lane * 16;
    }

    // This warp's keys of the ring's next tile.
    __device__ __forceinline__ void score()
    {
        const uint32_t to = scores_at(ring.stage()) + warp * 512;
        const uint32_t from =
            ring.codes() + (warp * 8 + (lane & 7)) * 64 + ((lane >> 3 ^ (lane >> 1 & 3)) << 4);
        float s[4][4] = {}; // products of four chains, so that none waits for the one before it
        ring.wait_full();
        ring.count++;
#pragma unroll
        for (int c = 0; c < MSGL_MLA_CHUNKS; c++) {
            uint32_t codes[4];
            msgl__load_matrix_4(from + c * MSGL_MLA_CODES, codes);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t k[2];
                msgl__e4m3_to_f16(codes[i], k);
                msgl__mma(s[i], q[4 * c + i], k[0], k[1], __half());
            }
        }
        float sum[4];
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
        msgl__write_shared(to, make_float4(sum[0], sum[1], sum[2], sum[3]));
    }

    // Rows of V behind the unit's last key may hold anything, also NaN, which a probability of 0
    // does not cancel. Each warp clears its columns before its use of them.
    __device__ __forceinline__ void clear_tail(uint32_t codes, int tile, int len) const
    {
        const int first = len - tile * MSGL_MLA_TILE;
        if (first >= MSGL_MLA_TILE) return;
        for (int i = first * 4 + lane; i < MSGL_MLA_TILE * 4; i += 32)
            msgl__write_shared(codes + warp * MSGL_MLA_CODES + i * 16, make_uint4(0, 0, 0, 0));
        msgl__fence_async_proxy(); // which writes the next tile there
        __syncwarp();
    }

    // o += P V of this warp's columns.
    __device__ __forceinline__ void values(uint32_t codes, const uint32_t (&prob)[4][4])
    {
        const uint32_t from =
            codes + warp * MSGL_MLA_CODES + (lane & 15) * 64 + ((lane >> 4 ^ (lane >> 1 & 3)) << 4);
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t r[4];
                msgl__load_matrix_4_transposed((from + k * 1024) ^ (half * 32), r);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t even[2], odd[2]; // of keys 2 t, 2 t + 1, and of those plus 8
                    msgl__e4m3_to_f16_by_element(r[2 * i], even[0], odd[0]);
                    msgl__e4m3_to_f16_by_element(r[2 * i + 1], even[1], odd[1]);
                    float *to = o + (half * 2 + i) * 8;
                    msgl__mma(to, prob[k], even[0], even[1], __half());
                    msgl__mma(to + 4, prob[k], odd[0], odd[1], __half());
                }
            }
        }
    }

    // An item's tiles, the first of which is the ring's next.
    __device__ __forceinline__ void tiles(const msgl_mla_item &it)
    {
        for (int t = it.begin; t < it.end; t++) {
            const uint32_t stage = ring.stage(), codes = ring.codes();
            score();
            msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256);
            float s[MSGL_MLA_TILE / 2], scale[2];
#pragma unroll
            for (int j = 0; j < MSGL_MLA_TILE / 8; j++) {
                const float4 v = msgl__read_shared<float4>(scores_at(stage) + j * 512);
                s[4 * j] = v.x, s[4 * j + 1] = v.y, s[4 * j + 2] = v.z, s[4 * j + 3] = v.w;
            }
            sight.mask(p, s, t * MSGL_MLA_TILE);
            rows.softmax(s, scale, p.log2_scale);
            uint32_t prob[MSGL_MLA_TILE / 16][4];
            msgl__fa_to_operand<__half>(s, prob);
            msgl__fa_rescale(o, scale);
            // (Copied row by row they are zero already.)
            if constexpr (MODE == MSGL_MLA_BOXES) clear_tail(codes, t, it.unit.len);
            values(codes, prob);
            __syncwarp();
            if (lane == 0) msgl__mbarrier_arrive(msgl__shared_address(&smem.empty[0][stage]));
        }
    }

    // The results of a unit that this range has alone.
    __device__ __forceinline__ void store(const msgl_mla_item &it, const float (&total)[2]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const msgl_mla_place at(p, it.unit.first_row, it.unit.rows, lane / 4 + 8 * h);
            const float inverse = total[h] > 0 ? p.out_scale * msgl__rcp(total[h]) : 0;
            if (warp == 0 && (lane & 3) == 0) at.store_lse(p, rows.max[h], total[h]);
            if (!at.valid) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *v = o + 8 * i + 2 * h;
                *(uint2 *)(at.out + warp * 64 + i * 16 + (lane & 3) * 4) =
                    make_uint2(msgl__pack_two(v[0] * inverse, v[4] * inverse, __nv_bfloat16()),
                               msgl__pack_two(v[1] * inverse, v[5] * inverse, __nv_bfloat16()));
            }
        }
    }

    // A split of one that others have splits of too, as msgl_mla_merger reads it: lines of eight
    // columns, two of both rows a lane.
    __device__ __forceinline__ void leave(int slot, const float (&total)[2]) const
    {
        const int t = lane & 3;
        const size_t block = msgl__mla_partial_at(p, slot, 0, 0);
        float4 *to = p.partial_o + block * (16 * MSGL_MLA_LATENT / 4) + (warp * 8 + (t >> 1)) * 32 +
                     lane / 4 * 4 + (t & 1) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *v = o + 8 * i;
            __stcg(to + i * 64, make_float4(v[0], v[4], v[2], v[6]));
            __stcg(to + i * 64 + 1, make_float4(v[1], v[5], v[3], v[7]));
        }
        if (warp == 0 && t == 0) {
            float2 *ml = p.partial_ml + block * 16 + lane / 4;
            __stcg(ml, make_float2(rows.max[0], total[0]));
            __stcg(ml + 8, make_float2(rows.max[1], total[1]));
        }
    }

    __device__ __forceinline__ void run()
    {
        msgl_mla_walk walk(p, range);
        while (walk.more()) {
            const msgl_mla_item it = walk.take();
            sight.begin(p, it.unit, lane / 4);
            rows.begin();
#pragma unroll
            for (float &x : o) x = 0;
            if (it.begin < it.end) {
                take_q();
                tiles(it);
            }
            const float total[2] = {rows.total(0), rows.total(1)};
            if (it.unit.first_slot / 2 == it.unit.last_range)
                store(it, total);
            else
                leave(2 * range + (it.index != walk.from.unit), total);
        }
    }
};

#endif
