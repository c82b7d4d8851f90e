// SPDX-License-Identifier: Apache-2.0
//
// Few answers of at most 16 query rows each (heads x tokens): made of latencies in a row, so a
// request's keys are spread over clusters of eight blocks, which merge through each other's shared
// memory. A share of the plan is a cluster's. Up to 512 keys a request is one cluster's alone and
// no part of it goes through global memory.
//
// Of an item's keys each block has a run of whole eights, taken 64 at a time: each of its eight
// warps copies eight of them and multiplies them by q, which it has in registers, and gives the
// scores to all. Each makes the probabilities of all keys, so that none waits for another's, and
// multiplies by 64 columns of V. A block's sums of columns 64 r and on go to block r of the cluster
// as registers lie; there its warp w adds eight columns. Plan, table and keys older than the step
// are read before the kernel before has ended.
//
// A row in shared memory is 72 pieces of 16 bytes, swizzled within 128 bytes. Which elements of a
// product's inner dimension a lane has is ours to choose: pieces 4 c + t of key and of query are
// thread t's, read as they lie.
#ifndef MSGL_KERNEL_CUDA_ATTN_MLA_SM90_FEW_CUH
#define MSGL_KERNEL_CUDA_ATTN_MLA_SM90_FEW_CUH

#include <cuda_runtime.h>

#include "kernel/cuda/attn/fragment_sm90.cuh"
#include "kernel/cuda/attn/mla_sm90/config.cuh"
#include "kernel/cuda/attn/mla_sm90/merge.cuh"
#include "kernel/cuda/attn/mla_sm90/sight.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ptx/copy.cuh"
#include "kernel/cuda/ptx/mma.cuh"

enum {
    MSGL_MLA_FEW_CLUSTER = 8, // blocks, as many as a block has warps
    MSGL_MLA_FEW_THREADS = 32 * MSGL_MLA_FEW_CLUSTER,
    MSGL_MLA_FEW_PITCH = MSGL_MLA_ROW * 2,
    MSGL_MLA_FEW_PIECES = MSGL_MLA_FEW_PITCH / 16,
    MSGL_MLA_FEW_STAGES = 2,
};

struct msgl_mla_few_smem {
    alignas(128) unsigned char kv[MSGL_MLA_FEW_STAGES][MSGL_MLA_TILE * MSGL_MLA_FEW_PITCH];
    unsigned char q[MSGL_MLA_FEW_ROWS * MSGL_MLA_FEW_PITCH];
    float4 scores[2][8][32]; // [tiles take turns][eight keys][lane]
    // Of the cluster's blocks: sums of this one's columns, maximum and sum of each row.
    float4 parts[MSGL_MLA_FEW_CLUSTER][8][32]; // [block][eight columns][lane]
    float2 ml[MSGL_MLA_FEW_CLUSTER][MSGL_MLA_FEW_ROWS];
};

// Where a piece of a row lies: any eight rows' are in different banks, as are 4 c .. 4 c + 3 of two
// rows that follow one another.
static __device__ __forceinline__ uint32_t msgl__mla_few_at(int row, int piece)
{
    const int turn = (row & 1) << 2 | (row >> 1 & 3);
    return (uint32_t)(row * MSGL_MLA_FEW_PITCH + (piece ^ turn) * 16);
}

// A row of a unit in parts or whole: its maximum of raw scores, its sum of probabilities.
struct msgl_mla_few_rows {
    float max[2], sum[2]; // of rows lane / 4 and lane / 4 + 8
};

struct msgl_mla_few {
    const msgl_mla_params &p;
    msgl_mla_few_smem &smem;
    const int share, rank, lane, warp;
    int from, to, old; // this block's keys of the item; those below `old` are older than the step
    int busy;          // blocks of the cluster that have keys of the item
    bool waited;       // for the kernel before
    const int32_t *table; // of the item's request
    msgl_mla_sight sight;
    msgl_fa_rows<MSGL_MLA_TILE> rows;    // the same in all warps
    uint32_t q[MSGL_MLA_ROW / 32][2][4]; // [32 elements][row][two of a piece's eight]
    float o[32];                         // [eight columns][4]

    __device__ __forceinline__ msgl_mla_few(const msgl_mla_params &params, msgl_mla_few_smem &s,
                                            int cluster)
        : p(params), smem(s), share(cluster), rank((int)msgl__cluster_rank()),
          lane(threadIdx.x & 31), warp(threadIdx.x >> 5), waited(false)
    {
    }

    __device__ __forceinline__ void begin(const msgl_mla_item &it)
    {
        const int first = it.begin * MSGL_MLA_TILE, end = min(it.end * MSGL_MLA_TILE, it.unit.len);
        const int eights = max((end - first + 7) / 8, 0);
        const int each = (eights + MSGL_MLA_FEW_CLUSTER - 1) / MSGL_MLA_FEW_CLUSTER;
        busy = each > 0 ? (eights + each - 1) / each : 0;
        from = first + 8 * each * rank;
        to = min(from + 8 * each, end);
        old = it.unit.old;
        table = p.table + (size_t)it.unit.table_row * p.table_stride;
        sight.begin(p, it.unit, lane / 4);
        rows.begin();
#pragma unroll
        for (float &x : o) x = 0;
    }

    // Keys of tile t; below 0: it is behind the last one.
    __device__ __forceinline__ int keys_of(int t) const
    {
        return min(to - from - t * MSGL_MLA_TILE, (int)MSGL_MLA_TILE);
    }

    // Queues copies of this warp's eight keys of tile t, of the step's tokens or of older ones;
    // with those of the step zeros up to the next sixteenth key, as V may not be NaN there.
    __device__ __forceinline__ void load(int t, bool fresh) const
    {
        const int filled = (keys_of(t) + 15) & ~15;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = warp * 8 + h * 4 + lane / 8, key = from + t * MSGL_MLA_TILE + row;
            const bool there = key < to;
            if (row >= filled || (there && key < old) == fresh) continue;
            const int in_page = key & p.page_mask;
            const size_t slot = there ? (size_t)(table[key - in_page] + in_page) : 0;
            const char *src = p.kv + slot * MSGL_MLA_FEW_PITCH + (lane & 7) * 16;
            const uint32_t dst = msgl__shared_address(smem.kv[t % MSGL_MLA_FEW_STAGES]) +
                                 msgl__mla_few_at(row, lane & 7);
#pragma unroll
            for (int i = 0; i < MSGL_MLA_CHUNKS; i++)
                msgl__copy_async_16(dst + i * 128, src + i * 128, there);
        }
    }

    // Queues copies of the unit's query rows; those that are none are zeros.
    __device__ __forceinline__ void load_q(const msgl_mla_unit &unit) const
    {
        const uint32_t to_q = msgl__shared_address(smem.q);
        for (int i = threadIdx.x; i < MSGL_MLA_FEW_ROWS * MSGL_MLA_FEW_PIECES;
             i += MSGL_MLA_FEW_THREADS) {
            const int row = i / MSGL_MLA_FEW_PIECES, piece = i - row * MSGL_MLA_FEW_PIECES;
            const int at = unit.first_row + min(row, unit.rows - 1), token = at / p.heads;
            const __nv_bfloat16 *src =
                p.q + (size_t)token * p.ld_q + (at - token * p.heads) * MSGL_MLA_ROW + piece * 8;
            msgl__copy_async_16(to_q + msgl__mla_few_at(row, piece), src, row < unit.rows);
        }
    }

    __device__ __forceinline__ void take_q()
    {
        const uint32_t at = msgl__shared_address(smem.q);
#pragma unroll
        for (int c = 0; c < MSGL_MLA_ROW / 32; c++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 v = msgl__read_shared<uint4>(
                    at + msgl__mla_few_at(lane / 4 + 8 * h, 4 * c + (lane & 3)));
                q[c][h][0] = v.x, q[c][h][1] = v.y, q[c][h][2] = v.z, q[c][h][3] = v.w;
            }
        }
    }

    // This warp's keys of tile t.
    __device__ __forceinline__ void score(int t)
    {
        const uint32_t from_k = msgl__shared_address(smem.kv[t % MSGL_MLA_FEW_STAGES]);
        float s[4][4] = {}; // products of four chains, so that none waits for the one before it
#pragma unroll
        for (int c = 0; c < MSGL_MLA_ROW / 32; c++) {
            const uint4 k = msgl__read_shared<uint4>(
                from_k + msgl__mla_few_at(warp * 8 + lane / 4, 4 * c + (lane & 3)));
            const uint32_t even[4] = {q[c][0][0], q[c][1][0], q[c][0][1], q[c][1][1]};
            const uint32_t odd[4] = {q[c][0][2], q[c][1][2], q[c][0][3], q[c][1][3]};
            msgl__mma(s[c % 2 * 2], even, k.x, k.y, __nv_bfloat16());
            msgl__mma(s[c % 2 * 2 + 1], odd, k.z, k.w, __nv_bfloat16());
        }
        float sum[4];
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
        smem.scores[t & 1][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }

    // o += P V of this warp's columns and tile t.
    __device__ __forceinline__ void values(int t)
    {
        const int keys = keys_of(t);
        float s[MSGL_MLA_TILE / 2], scale[2];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (8 * j < keys) v = smem.scores[t & 1][j][lane];
            s[4 * j] = v.x, s[4 * j + 1] = v.y, s[4 * j + 2] = v.z, s[4 * j + 3] = v.w;
        }
        sight.mask(p, s, from + t * MSGL_MLA_TILE);
        rows.softmax(s, scale, p.log2_scale);
        uint32_t prob[MSGL_MLA_TILE / 16][4];
        msgl__fa_to_operand<__nv_bfloat16>(s, prob);
        msgl__fa_rescale(o, scale);
        const uint32_t from_v = msgl__shared_address(smem.kv[t % MSGL_MLA_FEW_STAGES]);
#pragma unroll
        for (int k = 0; k < MSGL_MLA_TILE / 16; k++) {
            if (16 * k >= keys) break;
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                uint32_t v[4];
                msgl__load_matrix_4_transposed(
                    from_v + msgl__mla_few_at(16 * k + (lane & 15), warp * 8 + j + (lane >> 4)), v);
                msgl__mma(o + 4 * j, prob[k], v[0], v[1], __nv_bfloat16());
                msgl__mma(o + 4 * j + 4, prob[k], v[2], v[3], __nv_bfloat16());
            }
        }
    }

    // This block's keys of an item. Two tiles are on their way at first, then one.
    __device__ __forceinline__ void attend(const msgl_mla_item &it)
    {
        load(0, false);
        load(1, false);
        if (!waited) msgl__pdl_wait();
        waited = true;
        if (to <= from) return; // the whole block
        load_q(it.unit);
        load(0, true);
        msgl__copy_async_commit();
        load(1, true);
        msgl__copy_async_commit();
        for (int t = 0; keys_of(t) > 0; t++) {
            if (t == 0) {
                msgl__copy_async_wait<1>();
                __syncthreads();
                take_q();
            } else {
                msgl__copy_async_wait<0>();
                __syncwarp();
            }
            if (8 * warp < keys_of(t)) score(t);
            __syncthreads(); // all of the tile is here, the one before it is done with
            if (t > 0) {
                load(t + 1, false);
                load(t + 1, true);
                msgl__copy_async_commit();
            }
            values(t);
        }
    }

    // Hands the block's sums to the cluster and adds those of this warp's columns in `sum`, in the
    // blocks' order.
    __device__ __forceinline__ msgl_mla_few_rows exchange(float (&sum)[4])
    {
        const float total[2] = {rows.total(0), rows.total(1)};
        if (rank < busy) {
            float4 *to_parts = msgl__cluster_pointer(&smem.parts[rank][0][lane], warp);
            float2 *to_ml = msgl__cluster_pointer(&smem.ml[rank][lane / 4], warp);
#pragma unroll
            for (int j = 0; j < 8; j++)
                to_parts[j * 32] = make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
            if ((lane & 3) == 0) {
                to_ml[0] = make_float2(rows.max[0], total[0]);
                to_ml[8] = make_float2(rows.max[1], total[1]);
            }
        }
        msgl__cluster_sync();
        msgl_mla_few_rows r = {{-INFINITY, -INFINITY}, {0, 0}};
        float2 ml[MSGL_MLA_FEW_CLUSTER][2];
#pragma unroll
        for (int b = 0; b < MSGL_MLA_FEW_CLUSTER; b++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                ml[b][h] = make_float2(-INFINITY, 0);
                if (b < busy) ml[b][h] = smem.ml[b][lane / 4 + 8 * h];
                r.max[h] = fmaxf(r.max[h], ml[b][h].x);
            }
        }
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
        for (int b = 0; b < MSGL_MLA_FEW_CLUSTER; b++) {
            if (b >= busy) break;
            const float4 v = smem.parts[b][warp][lane];
            const float part[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 x = ml[b][h];
                const float by =
                    x.x == -INFINITY ? 0.f : msgl__exp2((x.x - r.max[h]) * p.log2_scale);
                r.sum[h] = fmaf(x.y, by, r.sum[h]);
                sum[2 * h] = fmaf(part[2 * h], by, sum[2 * h]);
                sum[2 * h + 1] = fmaf(part[2 * h + 1], by, sum[2 * h + 1]);
            }
        }
        return r;
    }

    // The results of a unit that this cluster has alone.
    __device__ __forceinline__ void store(const msgl_mla_unit &unit, const msgl_mla_few_rows &r,
                                          const float (&sum)[4]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const msgl_mla_place at(p, unit.first_row, unit.rows, lane / 4 + 8 * h);
            const float inverse = r.sum[h] > 0 ? p.out_scale * msgl__rcp(r.sum[h]) : 0;
            if (rank == 0 && warp == 0 && (lane & 3) == 0) at.store_lse(p, r.max[h], r.sum[h]);
            if (!at.valid) continue;
            *(uint32_t *)(at.out + rank * 64 + warp * 8 + (lane & 3) * 2) =
                msgl__pack_two(sum[2 * h] * inverse, sum[2 * h + 1] * inverse, __nv_bfloat16());
        }
    }

    // Where a part's columns of this rank lie: float4 [eight columns][lane], float2 [row].
    __device__ __forceinline__ size_t part(int slot) const
    {
        return (size_t)slot * MSGL_MLA_FEW_CLUSTER + rank;
    }

    // A part of one that other clusters have parts of too. Each rank has rows' maxima of its own.
    __device__ __forceinline__ void leave(int slot, const msgl_mla_few_rows &r,
                                          const float (&sum)[4]) const
    {
        __stcg(p.part_o + (part(slot) * 8 + warp) * 32 + lane,
               make_float4(sum[0], sum[1], sum[2], sum[3]));
        if (warp != 0 || (lane & 3) != 0) return;
        float2 *ml = p.part_ml + part(slot) * MSGL_MLA_FEW_ROWS + lane / 4;
        __stcg(ml, make_float2(r.max[0], r.sum[0]));
        __stcg(ml + 8, make_float2(r.max[1], r.sum[1]));
    }

    // Blocks of this rank tell each other that their parts are there. As msgl__mla_meet.
    __device__ __forceinline__ void meet(const msgl_mla_opens &opens) const
    {
        __syncthreads();
        if ((int)threadIdx.x < opens.count) {
            const msgl_mla_open o = msgl__mla_choose(threadIdx.x == 0, opens.at[0], opens.at[1]);
            msgl__count(o.counters);
            while (msgl__load_acquire(o.counters) < o.parts) {
            }
            if (msgl__count(o.counters + 1) == o.parts - 1) o.counters[0] = o.counters[1] = 0;
        }
        __syncthreads();
    }

    // This rank's columns of a row of a unit in parts, by a warp, two columns a lane. Its clusters
    // take the rows in turn.
    __device__ __forceinline__ void merge(const msgl_mla_open &open) const
    {
        const int row = share - open.first_share + warp * open.parts;
        if (row >= open.rows) return;
        float2 ml = make_float2(-INFINITY, 0), v[MSGL_MLA_FEW_SHARES];
        if (lane < open.parts)
            ml = __ldcg(p.part_ml + part(open.slot(lane)) * MSGL_MLA_FEW_ROWS + row);
        const int at = lane / 4 * 32 + (row & 7) * 4 + (lane & 3); // as `leave` wrote it
#pragma unroll
        for (int i = 0; i < MSGL_MLA_FEW_SHARES; i++) {
            const int n = open.slot(min(i, open.parts - 1));
            v[i] = __ldcg((const float2 *)(p.part_o + part(n) * 256 + at) + row / 8);
        }
        float max = ml.x;
        for (int x = 1; x < 32; x *= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, x));
        const float by = ml.x == -INFINITY ? 0.f : msgl__exp2((ml.x - max) * p.log2_scale);
        float total = ml.y * by, a = 0, b = 0;
        for (int x = 1; x < 32; x *= 2) total += __shfl_xor_sync(0xffffffff, total, x);
#pragma unroll
        for (int i = 0; i < MSGL_MLA_FEW_SHARES; i++) {
            const float y = __shfl_sync(0xffffffff, by, i); // 0 behind the last part
            a = fmaf(v[i].x, y, a);
            b = fmaf(v[i].y, y, b);
        }
        const msgl_mla_place to_row(p, open.first_row, open.rows, row);
        const float inverse = total > 0 ? p.out_scale * msgl__rcp(total) : 0;
        if (rank == 0 && lane == 0) to_row.store_lse(p, max, total);
        *(uint32_t *)(to_row.out + rank * 64 + lane * 2) =
            msgl__pack_two(a * inverse, b * inverse, __nv_bfloat16());
    }

    __device__ __forceinline__ void run()
    {
        msgl_mla_walk walk(p, share);
        while (walk.more()) {
            const msgl_mla_item it = walk.take();
            begin(it);
            attend(it);
            float sum[4];
            const msgl_mla_few_rows r = exchange(sum);
            if (it.unit.first_slot / 2 == it.unit.last_share)
                store(it.unit, r, sum);
            else
                leave(2 * share + (it.index != walk.from.unit), r, sum);
            if (walk.more()) msgl__cluster_sync(); // all have read
        }
        if (!waited) msgl__pdl_wait();
        const msgl_mla_opens opens(p, share, rank);
        if (opens.count == 0) return;
        meet(opens);
        merge(opens.at[0]);
        if (opens.count == 2) merge(opens.at[1]);
    }
};

#endif
