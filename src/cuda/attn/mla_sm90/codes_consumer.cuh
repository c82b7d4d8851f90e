// SPDX-License-Identifier: Apache-2.0
//
// Rows of E4M3 for up to 64 query rows (16 and fewer: rows16.cuh). Codes stay codes in shared
// memory, a ring of three tiles, and become f16 in registers, where they are the products' A
// operand: keys and columns of V are the rows of what is multiplied, query rows its columns,
//
//     S^T [64 keys, 64 rows] = K q^T,    O^T [512 columns, 64 rows] += V^T P^T,
//
// so that nothing is written to shared memory as f16 but q, once, and probabilities.
//
// As in consumer.cuh two warpgroups have half of the columns of O each; the scores of even tiles
// are computed by warpgroup 0, those of odd ones by warpgroup 1. While one makes probabilities the
// other one's products run:
//
//     warpgroup 0:  S0 | softmax 0 | left of V0      | left of V1
//     warpgroup 1:       S1        |       softmax 1 | right of V0 | right of V1
//
// A row's scores are spread over the whole warpgroup, and its maximum would cost more than its
// probabilities. But a softmax needs no maximum, only something near it: a row's base changes, to
// the maximum of a tile, where that is above it by more than MSGL_MLA_RISE (an exponent of 2).
// Mostly no row's does, which takes one vote to know.
//
// Which columns of a product the four codes in a register are is ours to choose, as in rows16.cuh:
// of K, elements 4 t .. 4 t + 3 of 16 are thread t's, so q's are put in the order in which those
// become operands; of V, elements 2 g and 2 g + 1 are rows g and g + 8 of a product.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_CODES_CONSUMER_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_CODES_CONSUMER_CUH

#include "cuda/attn/mla_sm90/codes.cuh"
#include "cuda/attn/mla_sm90/merge.cuh"
#include "cuda/attn/mla_sm90/sight.cuh"
#include "cuda/ptx/e4m3.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/wgmma.cuh"

enum { MSGL_MLA_RISE = 8 };                   // probabilities are up to 2^8 before they are divided
static const float msgl_mla_no_base = -1e30f; // of a row that has seen no key

// GROUP: the warpgroup. Of its scores a thread has keys 16 warp + g + 8 h of query rows 8 j + 2 t
// and the next one, as element 4 j + 2 h and the next; of its outputs columns 16 warp + 2 g + h of
// 64.
template <int GROUP, msgl_mla_mode MODE> struct msgl_mla_codes_consumer {
    typedef float scores[MSGL_MLA_TILE / 2];
    typedef float outputs[4][MSGL_MLA_TILE / 2]; // [columns / 64]
    const msgl_mla_params &p;
    msgl_mla_smem &smem;
    msgl_mla_codes_smem &area;
    const int range, row_tile;
    const int thread, lane, warp, g, t4; // of the warpgroup: thread, warp
    msgl_mla_sight sight;
    msgl_mla_phases phases; // bit 2: of q; 3: of the sums
    msgl_mla_codes_ring ring;
    float sum[MSGL_MLA_TILE / 4]; // of this thread's keys in the warpgroup's tiles, [2 j + e]

    __device__ __forceinline__ msgl_mla_codes_consumer(const msgl_mla_params &params,
                                                       msgl_mla_smem &sm, int range_, int tile)
        : p(params), smem(sm), area(msgl__mla_codes(sm)), range(range_), row_tile(tile),
          thread(threadIdx.x & 127), lane(threadIdx.x & 31), warp(threadIdx.x >> 5 & 3),
          g(lane >> 2), t4(lane & 3)
    {
    }

    __device__ __forceinline__ void sync_group() const
    {
        msgl__named_barrier_sync(MSGL_MLA_BAR_GROUP + GROUP, 128);
    }

    __device__ __forceinline__ void wait_quarter(const msgl_mla_codes_ring &at, int quarter) const
    {
        msgl__mla_wait(&smem.full[at.stage][quarter], at.parity);
    }

    // Whoever loads this quarter of the own half, 0 or 1, of a stage may do so as far as this warp
    // is concerned.
    __device__ __forceinline__ void release(const msgl_mla_codes_ring &at, int quarter) const
    {
        const uint32_t barrier = msgl__shared_address(&smem.empty[at.stage][2 * GROUP + quarter]);
        __syncwarp();
        if (MODE == MSGL_MLA_PAIRS) {
            if (lane < 2) msgl__mbarrier_arrive_at(barrier, (uint32_t)lane);
        } else if (lane == 0) {
            msgl__mbarrier_arrive(barrier);
        }
    }

    __device__ __forceinline__ uint32_t tile_at(const msgl_mla_codes_ring &at) const
    {
        return msgl__shared_address(area.tiles[at.stage]);
    }

    // s = k.q of the tile's keys, complete on return. Steps of 32 columns: of one the codes are on
    // their way while the one before becomes f16 and up to three before that are multiplied.
    __device__ __forceinline__ void score(scores &s, const msgl_mla_codes_ring &at) const
    {
        enum { STEPS = 2 * MSGL_MLA_CHUNKS };
        const uint32_t low =
            tile_at(at) + (warp * 16 + (lane & 15)) * 64 + ((lane >> 4 ^ (lane >> 1 & 3)) << 4);
        const uint32_t from[2] = {low, low ^ 32};
        const uint64_t q = msgl__wgmma_operand(msgl__shared_address(smem.q));
        uint32_t a[4][2][4], codes[2][4];
        wait_quarter(at, 0);
        msgl__load_matrix_4(from[0], codes[0]);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int next = i + 1;
            if (next % 4 == 0 && next / 4 < MSGL_MLA_QUARTERS) wait_quarter(at, next / 4);
            if (next < STEPS)
                msgl__load_matrix_4(from[next % 2] + next / 2 * MSGL_MLA_CODES, codes[next % 2]);
            if (i >= 4) msgl__wgmma_wait<3>();
#pragma unroll
            for (int n = 0; n < 4; n++) { // of 16 columns n / 2, keys 8 (n % 2) on
                uint32_t(&to)[4] = a[i % 4][n / 2], pair[2];
                msgl__e4m3_to_f16(codes[i % 2][n], pair);
                to[n % 2] = pair[0], to[n % 2 + 2] = pair[1];
            }
            msgl__wgmma_fence();
#pragma unroll
            for (int k = 0; k < 2; k++)
                msgl__wgmma_registers<false>(
                    s, a[i % 4][k], q + (i / 2 * MSGL_MLA_CHUNK + i % 2 * 64 + k * 32) / 16,
                    i + k > 0, __half());
            msgl__wgmma_commit();
        }
        msgl__wgmma_wait<0>(s);
    }

    // o += V^T P^T of this warpgroup's columns, complete on return. Steps of 32 keys of 64 columns,
    // as above.
    __device__ __forceinline__ void values(outputs &o, const msgl_mla_codes_ring &at,
                                           int which) const
    {
        enum { STEPS = 8 };
        const uint32_t from =
            tile_at(at) + GROUP * 4 * MSGL_MLA_CODES + lane * 64 + ((warp ^ (lane >> 1 & 3)) << 4);
        const uint64_t prob = msgl__wgmma_operand(msgl__shared_address(area.prob[which]));
        uint32_t a[4][2][4], codes[2][4];
        msgl__load_matrix_4_transposed(from, codes[0]);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int next = i + 1;
            if (next < STEPS)
                msgl__load_matrix_4_transposed(from + next / 2 * MSGL_MLA_CODES + next % 2 * 2048,
                                               codes[next % 2]);
            if (i >= 4) msgl__wgmma_wait<3>();
#pragma unroll
            for (int n = 0; n < 4; n++) // keys 8 n on
                msgl__e4m3_to_f16_by_element(codes[i % 2][n], a[i % 4][n / 2][n % 2 * 2],
                                             a[i % 4][n / 2][n % 2 * 2 + 1]);
            msgl__wgmma_fence();
#pragma unroll
            for (int k = 0; k < 2; k++)
                msgl__wgmma_registers<true>(o[i / 2], a[i % 4][k],
                                            prob + (i % 2 * 4096 + k * 2048) / 16, 1, __half());
            msgl__wgmma_commit();
            if (i % 4 == 3) release(at, i / 4); // the codes are in registers
        }
#pragma unroll
        for (int c = 0; c < 4; c++) msgl__wgmma_wait<0>(o[c]);
    }

    // Scores of keys that a row does not see.
    __device__ __forceinline__ void mask(scores &s, int first_key) const
    {
        if (first_key + MSGL_MLA_TILE <= sight.sure_end) return;
        const int key = warp * 16 + g; // and 8 on, of the tile
#pragma unroll
        for (int i = 0; i < MSGL_MLA_TILE / 4; i++) {
            float *of_row = s + i / 2 * 4 + i % 2;
            const int end = area.ends[i / 2 * 8 + t4 * 2 + i % 2];
            bool seen[2];
            if (p.tree != NULL) {
                const uint64_t path = sight.path(p, end, first_key) >> key;
                seen[0] = path & 1, seen[1] = path >> 8 & 1;
            } else {
                seen[0] = first_key + key < end, seen[1] = first_key + key + 8 < end;
            }
            if (!seen[0]) of_row[0] = -INFINITY;
            if (!seen[1]) of_row[2] = -INFINITY;
        }
    }

    __device__ __forceinline__ float2 of_rows(const float *rows, int j) const
    {
        return *(const float2 *)(rows + 8 * j + 2 * t4);
    }

    // New bases for rows whose scores are too far above theirs.
    __device__ __forceinline__ void raise(const scores &s)
    {
#pragma unroll
        for (int i = 0; i < MSGL_MLA_TILE / 4; i++) {
            const float *of_row = s + i / 2 * 4 + i % 2;
            float m = fmaxf(of_row[0], of_row[2]);
#pragma unroll
            for (int x = 4; x < 32; x *= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, x));
            if (g == 0) area.most[GROUP][warp][i / 2 * 8 + t4 * 2 + i % 2] = m;
        }
        sync_group();
        if (thread < MSGL_MLA_TILE) {
            const float(&most)[4][MSGL_MLA_TILE] = area.most[GROUP];
            const float m = fmaxf(fmaxf(most[0][thread], most[1][thread]),
                                  fmaxf(most[2][thread], most[3][thread]));
            const float old = area.base[thread];
            float scale = 1;
            if (fmaf(m, p.log2_scale, -old) > MSGL_MLA_RISE) {
                const float base = m * p.log2_scale;
                scale = msgl__exp2(old - base);
                area.base[thread] = base;
                area.peak[thread] = m;
            }
            area.scale[GROUP][thread] = scale;
        }
        sync_group();
        rescale_sums(GROUP);
    }

    __device__ __forceinline__ void rescale_sums(int which)
    {
#pragma unroll
        for (int j = 0; j < MSGL_MLA_TILE / 8; j++) {
            const float2 scale = of_rows(area.scale[which], j);
            sum[2 * j] *= scale.x, sum[2 * j + 1] *= scale.y;
        }
    }

    __device__ __forceinline__ void rescale(outputs &o, int which) const
    {
#pragma unroll
        for (int j = 0; j < MSGL_MLA_TILE / 8; j++) {
            const float2 scale = of_rows(area.scale[which], j);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                o[c][4 * j] *= scale.x, o[c][4 * j + 2] *= scale.x;
                o[c][4 * j + 1] *= scale.y, o[c][4 * j + 3] *= scale.y;
            }
        }
    }

    // Probabilities of the own tile to shared memory; added: the sums with them. Whether a score is
    // too far above its row's base, by which they may be anything.
    __device__ __forceinline__ bool weigh(const scores &s, float (&added)[MSGL_MLA_TILE / 4]) const
    {
        const uint32_t key = msgl__shared_address(area.prob[GROUP]) + (warp * 16 + g) * 128;
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < MSGL_MLA_TILE / 8; j++) {
            const float2 base = of_rows(area.base, j);
            float x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = fmaf(s[4 * j + i], p.log2_scale, i % 2 ? -base.y : -base.x);
                top = fmaxf(top, x[i]);
                x[i] = msgl__exp2(x[i]);
            }
            added[2 * j] = sum[2 * j] + (x[0] + x[2]);
            added[2 * j + 1] = sum[2 * j + 1] + (x[1] + x[3]);
            const uint32_t to = key + ((j ^ g) << 4) + t4 * 4;
            msgl__write_shared(to, msgl__pack_two(x[0], x[1], __half()));
            msgl__write_shared(to + 1024, msgl__pack_two(x[2], x[3], __half()));
        }
        msgl__fence_async_proxy();
        return top > MSGL_MLA_RISE;
    }

    // The same for both warpgroups, with new bases where that is so; whether there are any. fresh:
    // there is no base yet.
    __device__ __forceinline__ bool softmax(scores &s, int first_key, bool fresh)
    {
        float added[MSGL_MLA_TILE / 4];
        mask(s, first_key);
        bool changed = fresh;
        if (!fresh) {
            const bool above = weigh(s, added);
            changed = msgl__named_barrier_any(MSGL_MLA_BAR_GROUP + GROUP, 128, above);
        }
        if (changed) {
            raise(s);
            weigh(s, added);
            sync_group();
        }
        if (thread == 0) area.changed[GROUP] = changed;
        msgl__named_barrier_arrive(GROUP ? MSGL_MLA_BAR_SECOND : MSGL_MLA_BAR_FIRST, 256);
#pragma unroll
        for (int i = 0; i < MSGL_MLA_TILE / 4; i++) sum[i] = added[i];
        return changed;
    }

    // Codes of V behind the unit's last key may be NaN's, which a probability of 0 does not cancel.
    // Each warpgroup clears its half before its use of it; both have done with the tile's scores.
    __device__ __forceinline__ void clear_tail(const msgl_mla_codes_ring &at, int tile,
                                               int len) const
    {
        const int first = len - tile * MSGL_MLA_TILE;
        if (MODE == MSGL_MLA_GATHER || first >= MSGL_MLA_TILE)
            return; // there they are zero already
        const uint32_t to = tile_at(at) + GROUP * 4 * MSGL_MLA_CODES;
        for (int i = first * 4 + thread; i < MSGL_MLA_TILE * 4; i += 128) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                msgl__write_shared(to + c * MSGL_MLA_CODES + i * 16, make_uint4(0, 0, 0, 0));
        }
        msgl__fence_async_proxy(); // which writes the next tile there
        sync_group();
    }

    // changed: whether there are new bases since the tile before.
    __device__ __forceinline__ void add(outputs &o, const msgl_mla_codes_ring &at, int which,
                                        bool changed, int tile, int len) const
    {
        if (changed) rescale(o, which);
        clear_tail(at, tile, len);
        values(o, at, which);
    }

    __device__ __forceinline__ void release_q() const
    {
        __syncwarp();
        if (lane == 0) msgl__mbarrier_arrive(msgl__shared_address(&smem.q_empty));
    }

    // Tiles t and, if there is one before `end`, t + 1, by warpgroup 0.
    __device__ __forceinline__ void left(outputs &o, int t, const msgl_mla_item &it)
    {
        const msgl_mla_codes_ring even = ring;
        scores s;
        score(s, even);
        if (t + 2 >= it.end) release_q();
        if (t > it.begin) msgl__named_barrier_sync(MSGL_MLA_BAR_USED, 256);
        const bool raised = softmax(s, t * MSGL_MLA_TILE, t == it.begin);
        add(o, even, 0, raised, t, it.unit.len);
        ring.next();
        if (t + 1 == it.end) return;
        const msgl_mla_codes_ring odd = ring;
        msgl__named_barrier_sync(MSGL_MLA_BAR_SECOND, 256);
        const bool changed = area.changed[1];
        if (changed) rescale_sums(1);
        wait_quarter(odd, 0);
        wait_quarter(odd, 1);
        add(o, odd, 1, changed, t + 1, it.unit.len);
        ring.next();
    }

    // The same by warpgroup 1.
    __device__ __forceinline__ void right(outputs &o, int t, const msgl_mla_item &it)
    {
        const msgl_mla_codes_ring even = ring;
        ring.next();
        const msgl_mla_codes_ring odd = ring;
        const bool both = t + 1 < it.end;
        scores s;
        if (both) score(s, odd);
        if (t + 2 >= it.end) release_q();
        msgl__named_barrier_sync(MSGL_MLA_BAR_FIRST, 256);
        const bool changed = area.changed[0];
        if (changed) rescale_sums(0);
        const bool raised = both && softmax(s, (t + 1) * MSGL_MLA_TILE, false);
        wait_quarter(even, 2);
        wait_quarter(even, 3);
        add(o, even, 0, changed, t, it.unit.len);
        if (t + 2 < it.end) msgl__named_barrier_arrive(MSGL_MLA_BAR_USED, 256);
        if (!both) return;
        add(o, odd, 1, raised, t + 1, it.unit.len);
        ring.next();
    }

    // The item's query rows to f16, in the order that codes in registers have: elements 0, 1, 4, 5,
    // 8, 9, 12, 13 of 16 before the others. Both warpgroups share them.
    __device__ __forceinline__ void convert_q(const msgl_mla_item &it) const
    {
        const int rows = min(it.unit.rows - row_tile * MSGL_MLA_TILE, (int)MSGL_MLA_TILE);
        for (int i = GROUP * 128 + thread; i < rows * 4; i += 256) { // 16 elements of a chunk
            const int r = i >> 2;
            const uint32_t at =
                msgl__shared_address(smem.q) + r * 128 + (i & 3) * 32 + ((r & 1) << 4);
#pragma unroll
            for (int c = 0; c < MSGL_MLA_CHUNKS; c++) {
                const uint32_t lo = at + c * MSGL_MLA_CHUNK, hi = lo ^ 16;
                const uint4 a = msgl__read_shared<uint4>(lo), b = msgl__read_shared<uint4>(hi);
                msgl__write_shared(lo, make_uint4(msgl__bf16_to_f16(a.x), msgl__bf16_to_f16(a.z),
                                                  msgl__bf16_to_f16(b.x), msgl__bf16_to_f16(b.z)));
                msgl__write_shared(hi, make_uint4(msgl__bf16_to_f16(a.y), msgl__bf16_to_f16(a.w),
                                                  msgl__bf16_to_f16(b.y), msgl__bf16_to_f16(b.w)));
            }
        }
        msgl__fence_async_proxy();
        msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256);
    }

    // That the item's first key has not come yet. (What stands by row is thread `row`'s of
    // warpgroup 0, which also reads it at the end.)
    __device__ __forceinline__ void begin(const msgl_mla_item &it, outputs &o)
    {
        sight.begin(p, it.unit);
        if (GROUP == 0 && thread < MSGL_MLA_TILE) {
            area.ends[thread] = sight.end(p, it.unit, row_tile * MSGL_MLA_TILE + thread);
            area.base[thread] = msgl_mla_no_base;
            area.peak[thread] = -INFINITY;
        }
#pragma unroll
        for (float &x : sum) x = 0;
#pragma unroll
        for (int i = 0; i < MSGL_MLA_TILE / 2; i++) o[0][i] = o[1][i] = o[2][i] = o[3][i] = 0;
    }

    // Sums over all keys, of row `thread` of the first threads of each warpgroup.
    __device__ __forceinline__ float total()
    {
        float(&sums)[2][4][MSGL_MLA_TILE] = area.sums[phases.of(3)];
        phases.flip(3);
#pragma unroll
        for (int i = 0; i < MSGL_MLA_TILE / 4; i++) {
            float x = sum[i];
#pragma unroll
            for (int n = 4; n < 32; n *= 2) x += __shfl_xor_sync(0xffffffff, x, n);
            if (g == 0) sums[GROUP][warp][i / 2 * 8 + t4 * 2 + i % 2] = x;
        }
        msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256);
        float all = 0;
        if (thread < MSGL_MLA_TILE) {
#pragma unroll
            for (int i = 0; i < 8; i++) all += sums[i / 4][i % 4][thread];
        }
        return all;
    }

    // The results of a unit that this range has alone.
    __device__ __forceinline__ void store(const msgl_mla_item &it, const outputs &o,
                                          float total) const
    {
        if (thread < MSGL_MLA_TILE) {
            const msgl_mla_place at(p, it.unit.first_row, it.unit.rows,
                                    row_tile * MSGL_MLA_TILE + thread);
            const int64_t place = at.valid ? (at.out - p.out) / 8 : -1;
            area.to[GROUP][thread] = make_float2(total > 0 ? p.out_scale * msgl__rcp(total) : 0,
                                                 __int_as_float((int)place));
            if (GROUP == 0) at.store_lse(p, area.peak[thread], total);
        }
        sync_group();
#pragma unroll
        for (int i = 0; i < MSGL_MLA_TILE / 4; i++) {
            const float2 to = area.to[GROUP][i / 2 * 8 + t4 * 2 + i % 2];
            const int place = __float_as_int(to.y);
            if (place < 0) continue;
            __nv_bfloat16 *out = p.out + (int64_t)place * 8 + GROUP * 256 + warp * 16 + g * 2;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float *v = o[c] + i / 2 * 4 + i % 2;
                *(uint32_t *)(out + c * 64) =
                    msgl__pack_two(v[0] * to.x, v[2] * to.x, __nv_bfloat16());
            }
        }
    }

    // A split of one that others have splits of too, as msgl_mla_merger reads it.
    __device__ __forceinline__ void leave(int slot, const outputs &o, float total) const
    {
        const size_t block = msgl__mla_partial_at(p, slot, row_tile, 0);
        float4 *to = p.partial_o + block * (16 * MSGL_MLA_LATENT / 4) +
                     (GROUP * 32 + warp * 2 + (g >> 2)) * 32 + t4 * 8 + (g & 3);
#pragma unroll
        for (int group = 0; group < MSGL_MLA_TILE / 16; group++) { // of 16 rows
            if (group >= p.row_groups) break;
#pragma unroll
            for (int i = 0; i < 8; i++) { // row 2 t + e, of 64 columns c
                const int c = i / 2, e = i % 2;
                const float *v = o[c] + group * 8 + e;
                __stcg(to + group * (16 * MSGL_MLA_LATENT / 4) + c * 8 * 32 + e * 4,
                       make_float4(v[0], v[2], v[4], v[6]));
            }
        }
        if (GROUP == 0 && thread < p.row_groups * 16)
            __stcg(p.partial_ml + block * 16 + thread, make_float2(area.peak[thread], total));
    }

    __device__ __forceinline__ void run()
    {
        outputs o;
        msgl_mla_walk walk(p, range);
        while (walk.more()) {
            const msgl_mla_item it = walk.take();
            begin(it, o);
            if (it.begin < it.end) {
                msgl__mla_wait(&smem.q_full, phases.of(2));
                phases.flip(2);
                convert_q(it);
            }
            for (int t = it.begin; t < it.end; t += 2) {
                if (GROUP == 0)
                    left(o, t, it);
                else
                    right(o, t, it);
            }
            const float all = total();
            if (it.unit.first_slot / 2 == it.unit.last_range)
                store(it, o, all);
            else
                leave(2 * range + (it.index != walk.from.unit), o, all);
        }
        __syncwarp();
        if (MODE == MSGL_MLA_PAIRS) msgl__cluster_arrive_done();
    }
};

#endif
