// SPDX-License-Identifier: Apache-2.0
//
// Few answers of at most 16 query rows each (heads x tokens). Such a step is made of latencies in a
// row, so a request's keys are spread over clusters of eight blocks, which merge through each
// other's shared memory. A range of the plan is a cluster's.
//
// Of an item's keys each block has a run of whole eights. They come in tiles of 32 to a ring that
// is full from the start to the end, over the limits of items. A warp copies half of the elements
// of eight keys, and multiplies (mma.sync) what each lane has copied itself, so nothing but its own
// copies is waited for; it gives the scores to all. Each warp then makes the probabilities of all
// keys, so that none waits for another's, and multiplies by 64 columns of V. One barrier a tile
// says that scores are there, that all of the tile is, and that the tile before is done with.
//
// A block's sums of columns 64 r and on go to block r of the cluster as registers lie; there its
// warp w adds eight columns. A request of several clusters is merged by blocks of one rank, which
// meet through the L2 and take rows in turn, with one read of all partials. Plan, table and keys
// older than the step are read before the kernel before has ended.
//
// A row in shared memory is 72 pieces of 16 bytes, swizzled within 128 bytes. Which elements of a
// product's inner dimension a lane has is ours to choose: pieces 4 c + t of key and of query are
// thread t's, read as they lie.
//
// The code is short, too: a layer's attention runs it once, so it comes from memory.
// docs/internals/mla.md has the figures.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_FEW_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_FEW_CUH

#include <cuda_runtime.h>

#include "cuda/attn/fragment_sm90.cuh"
#include "cuda/attn/mla_sm90/config.cuh"
#include "cuda/attn/mla_sm90/merge.cuh"
#include "cuda/attn/mla_sm90/sight.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"

enum {
    MSGL_MLA_FEW_CLUSTER = 8, // blocks, as many as a block has warps
    MSGL_MLA_FEW_THREADS = 32 * MSGL_MLA_FEW_CLUSTER,
    MSGL_MLA_FEW_KEYS = 32, // of a tile
    MSGL_MLA_FEW_STAGES = 4,
    MSGL_MLA_FEW_PITCH = MSGL_MLA_ROW * 2,
    MSGL_MLA_FEW_PIECES = MSGL_MLA_FEW_PITCH / 16,
    MSGL_MLA_FEW_CHUNKS = MSGL_MLA_ROW / 32 / 2, // of 32 elements, of a warp's half
};

struct msgl_mla_few_smem {
    alignas(128) unsigned char kv[MSGL_MLA_FEW_STAGES][MSGL_MLA_FEW_KEYS * MSGL_MLA_FEW_PITCH];
    unsigned char q[MSGL_MLA_FEW_ROWS * MSGL_MLA_FEW_PITCH];
    float4 scores[2][8][32]; // [tiles take turns][warp that made them][lane]
    // Of the cluster's blocks: sums of this one's columns, maximum and sum of each row.
    float4 partials[MSGL_MLA_FEW_CLUSTER][8][32]; // [block][eight columns][lane]
    float2 ml[MSGL_MLA_FEW_CLUSTER][MSGL_MLA_FEW_ROWS];
    uint64_t q_full;
};

// Where a piece of a row lies: any eight rows' are in different banks, as are 4 c .. 4 c + 3 of two
// rows that follow one another.
static __device__ __forceinline__ uint32_t msgl__mla_few_at(int row, int piece)
{
    const int turn = (row & 1) << 2 | (row >> 1 & 3);
    return (uint32_t)(row * MSGL_MLA_FEW_PITCH + (piece ^ turn) * 16);
}

// Where a lane's pieces first, first + 4, first + 8 ... of a row lie.
struct msgl_mla_few_lane {
    uint32_t even, odd;

    __device__ __forceinline__ msgl_mla_few_lane(int row, int first)
        : even(msgl__mla_few_at(row, first)), odd(msgl__mla_few_at(row, first + 4))
    {
    }
    __device__ __forceinline__ uint32_t at(uint32_t base, int i) const
    {
        return base + (i & 1 ? odd : even) + (uint32_t)(i / 2) * 128;
    }
};

// A warp has half of the elements, 32 of them 4 pieces, of eight keys of a tile; a lane every
// fourth piece of one key.
static __device__ __forceinline__ int msgl__mla_few_first(void)
{
    return ((int)threadIdx.x >> 7) * (4 * MSGL_MLA_FEW_CHUNKS) + ((int)threadIdx.x & 3);
}
static __device__ __forceinline__ int msgl__mla_few_row(void)
{
    return (int)threadIdx.x % 128 / 4;
}

// What a block has of an item: keys [from, to).
struct msgl_mla_few_range {
    int from, to;
    int busy; // blocks of the cluster that have keys

    __device__ __forceinline__ void take(const msgl_mla_item &it, int rank)
    {
        const int first = it.begin * MSGL_MLA_TILE, end = min(it.end * MSGL_MLA_TILE, it.unit.len);
        const int eights = max((end - first + 7) / 8, 0);
        const int each = (eights + MSGL_MLA_FEW_CLUSTER - 1) / MSGL_MLA_FEW_CLUSTER;
        busy = each > 0 ? (eights + each - 1) / each : 0;
        from = first + 8 * each * rank;
        to = min(from + 8 * each, end);
    }
};

// Tiles in the order in which they are asked for, ahead of what is computed.
struct msgl_mla_few_asker {
    enum kind { OLD, FRESH, ALL };

    const msgl_mla_params &p;
    msgl_mla_few_smem &smem;
    msgl_mla_walk walk;
    const int rank, row;
    const msgl_mla_few_lane place;
    msgl_page_row table; // of the item's request
    int from, to, old;   // keys that are left of the item; keys older than the step
    int32_t page;        // of this lane's key of the next tile, if there is one
    uint32_t count;      // tiles before

    __device__ __forceinline__ msgl_mla_few_asker(const msgl_mla_params &params,
                                                  msgl_mla_few_smem &s, int range, int rank_)
        : p(params), smem(s), walk(params, range), rank(rank_), row(msgl__mla_few_row()),
          place(row, msgl__mla_few_first()), from(0), to(0), page(0), count(0)
    {
        find();
    }

    // The next item that has keys for this block, if none are left. Then asks for the page, which
    // nothing waits for until the next tile.
    __device__ __forceinline__ void find()
    {
        while (from >= to && walk.more()) {
            const msgl_mla_item it = walk.take();
            msgl_mla_few_range r;
            r.take(it, rank);
            from = r.from, to = r.to, old = it.unit.old;
            table = msgl__page_row(p, it.unit.table_row);
        }
        const int key = from + row;
        if (key < to) page = table.page(key);
    }

    // Queues copies of the next tile: its half of this warp's keys. With keys of the step zeros up
    // to the next sixteenth one, as V may not be NaN there.
    template <kind KIND> __device__ __forceinline__ void ask()
    {
        if (from >= to) return;
        const int filled = (min(to - from, (int)MSGL_MLA_FEW_KEYS) + 15) & ~15;
        const int key = from + row;
        const bool there = key < to, is_old = there && key < old;
        if (row < filled && (KIND == ALL || is_old == (KIND == OLD))) {
            const int slot = there ? table.slot(page, key) : 0;
            const char *src = p.kv + (size_t)slot * MSGL_MLA_FEW_PITCH + msgl__mla_few_first() * 16;
            const uint32_t stage = msgl__shared_address(smem.kv[count % MSGL_MLA_FEW_STAGES]);
#pragma unroll
            for (int i = 0; i < MSGL_MLA_FEW_CHUNKS; i++)
                msgl__copy_async_16(place.at(stage, i), src + i * 64, there);
        }
        from += MSGL_MLA_FEW_KEYS;
        count++;
        find();
    }
};

// A row's maximum of raw scores and its sum of probabilities: of rows lane / 4 and lane / 4 + 8.
struct msgl_mla_few_rows {
    float max[2], sum[2];
};

struct msgl_mla_few {
    const msgl_mla_params &p;
    msgl_mla_few_smem &smem;
    const int range, rank, lane, warp;
    msgl_mla_few_range keys;
    uint32_t count, q_phase; // tiles before; of q_full
    msgl_mla_sight sight;
    msgl_fa_rows<MSGL_MLA_FEW_KEYS> rows;  // the same in all warps
    uint32_t q[MSGL_MLA_FEW_CHUNKS][2][4]; // [32 elements][half of a piece], as products take it
    float o[32];                           // [eight columns][4]

    __device__ __forceinline__ msgl_mla_few(const msgl_mla_params &params, msgl_mla_few_smem &s,
                                            int cluster)
        : p(params), smem(s), range(cluster), rank((int)msgl__cluster_rank()),
          lane(threadIdx.x & 31), warp(threadIdx.x >> 5), count(0), q_phase(0)
    {
    }

    // Queues copies of a unit's query rows; those that are none are zeros.
    __device__ __forceinline__ void load_q(const msgl_mla_unit &unit) const
    {
        const uint32_t to = msgl__shared_address(smem.q);
        for (int i = threadIdx.x; i < MSGL_MLA_FEW_ROWS * MSGL_MLA_FEW_PIECES;
             i += MSGL_MLA_FEW_THREADS) {
            const int row = i / MSGL_MLA_FEW_PIECES, piece = i - row * MSGL_MLA_FEW_PIECES;
            const int at = unit.first_row + min(row, unit.rows - 1), token = at / p.heads;
            const __nv_bfloat16 *src =
                p.q + (size_t)token * p.ld_q + (at - token * p.heads) * MSGL_MLA_ROW + piece * 8;
            msgl__copy_async_16(to + msgl__mla_few_at(row, piece), src, row < unit.rows);
        }
        msgl__copy_async_arrive(msgl__shared_address(&smem.q_full));
    }

    __device__ __forceinline__ void wait_q()
    {
        msgl__mla_wait(&smem.q_full, q_phase);
        q_phase ^= 1;
    }

    // This warp's half of q to registers.
    __device__ __forceinline__ void take_q()
    {
        const uint32_t from = msgl__shared_address(smem.q);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const msgl_mla_few_lane place(lane / 4 + 8 * h, msgl__mla_few_first());
#pragma unroll
            for (int i = 0; i < MSGL_MLA_FEW_CHUNKS; i++) {
                const uint4 v = msgl__read_shared<uint4>(place.at(from, i));
                q[i][0][h] = v.x, q[i][0][2 + h] = v.y;
                q[i][1][h] = v.z, q[i][1][2 + h] = v.w;
            }
        }
    }

    // What this warp's half of the elements adds to the scores of eight keys.
    __device__ __forceinline__ void score(uint32_t stage, const msgl_mla_few_lane &place)
    {
        float s[4][4] = {}; // products of four chains, so that none waits for the one before it
#pragma unroll
        for (int i = 0; i < MSGL_MLA_FEW_CHUNKS; i++) {
            const uint4 k = msgl__read_shared<uint4>(place.at(stage, i));
            msgl__mma(s[i % 2 * 2], q[i][0], k.x, k.y, __nv_bfloat16());
            msgl__mma(s[i % 2 * 2 + 1], q[i][1], k.z, k.w, __nv_bfloat16());
        }
        float sum[4];
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
        smem.scores[count & 1][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }

    // o += P V of this warp's columns and `n` keys, the first of which is `base`.
    __device__ __forceinline__ void values(uint32_t stage, int base, int n)
    {
        float s[MSGL_MLA_FEW_KEYS / 2], scale[2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const auto &scores = smem.scores[count & 1];
            float4 a = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            float4 b = make_float4(0, 0, 0, 0);
            if (8 * j < n) a = scores[j][lane], b = scores[4 + j][lane];
            s[4 * j] = a.x + b.x, s[4 * j + 1] = a.y + b.y;
            s[4 * j + 2] = a.z + b.z, s[4 * j + 3] = a.w + b.w;
        }
        sight.mask(p, s, base);
        rows.softmax(s, scale, p.log2_scale);
        uint32_t prob[MSGL_MLA_FEW_KEYS / 16][4];
        msgl__fa_to_operand<__nv_bfloat16>(s, prob);
        msgl__fa_rescale(o, scale);
        // Eights of columns j and j + 1; the swizzle of a row is the same sixteen rows on.
        const uint32_t from = stage + msgl__mla_few_at(lane & 15, warp * 8 + (lane >> 4));
#pragma unroll
        for (int k = 0; k < MSGL_MLA_FEW_KEYS / 16; k++) {
            if (16 * k >= n) break;
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                uint32_t v[4];
                msgl__load_matrix_4_transposed((from ^ (j * 16)) + k * 16 * MSGL_MLA_FEW_PITCH, v);
                msgl__mma(o + 4 * j, prob[k], v[0], v[1], __nv_bfloat16());
                msgl__mma(o + 4 * j + 4, prob[k], v[2], v[3], __nv_bfloat16());
            }
        }
    }

    // This block's keys of an item. more: an item follows, of unit `next`.
    __device__ __forceinline__ void attend(const msgl_mla_item &it, msgl_mla_few_asker &asker,
                                           bool more, const msgl_mla_unit &next)
    {
        keys.take(it, rank);
        sight.begin(p, it.unit, lane / 4);
        rows.begin();
#pragma unroll
        for (float &x : o) x = 0;
        wait_q();
        if (keys.from < keys.to)
            take_q();
        else if (more) // nobody reads this one's
            load_q(next);
#pragma unroll 1
        for (int base = keys.from; base < keys.to; base += MSGL_MLA_FEW_KEYS) {
            const int n = min(keys.to - base, (int)MSGL_MLA_FEW_KEYS);
            const uint32_t stage = msgl__shared_address(smem.kv[count % MSGL_MLA_FEW_STAGES]);
            msgl__copy_async_wait<MSGL_MLA_FEW_STAGES - 2>();
            if (8 * (warp & 3) < n) score(stage, asker.place);
            __syncthreads();
            if (more && base == keys.from) load_q(next); // all have taken this one's
            if (count > 0) {
                asker.ask<msgl_mla_few_asker::ALL>();
                msgl__copy_async_commit();
            }
            values(stage, base, n);
            count++;
        }
    }

    // Hands the block's sums to the cluster and adds those of this warp's columns in `sum`, in the
    // blocks' order.
    __device__ __forceinline__ msgl_mla_few_rows exchange(float (&sum)[4])
    {
        const float total[2] = {rows.total(0), rows.total(1)};
        if (rank < keys.busy) {
            float4 *partials = msgl__cluster_pointer(&smem.partials[rank][0][lane], warp);
            float2 *ml = msgl__cluster_pointer(&smem.ml[rank][lane / 4], warp);
#pragma unroll
            for (int j = 0; j < 8; j++)
                partials[j * 32] = make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
            if ((lane & 3) == 0) {
                ml[0] = make_float2(rows.max[0], total[0]);
                ml[8] = make_float2(rows.max[1], total[1]);
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
                if (b < keys.busy) ml[b][h] = smem.ml[b][lane / 4 + 8 * h];
                r.max[h] = fmaxf(r.max[h], ml[b][h].x);
            }
        }
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
        for (int b = 0; b < MSGL_MLA_FEW_CLUSTER; b++) {
            if (b >= keys.busy) break;
            const float4 v = smem.partials[b][warp][lane];
            const float partial[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 x = ml[b][h];
                const float by =
                    x.x == -INFINITY ? 0.f : msgl__exp2((x.x - r.max[h]) * p.log2_scale);
                r.sum[h] = fmaf(x.y, by, r.sum[h]);
                sum[2 * h] = fmaf(partial[2 * h], by, sum[2 * h]);
                sum[2 * h + 1] = fmaf(partial[2 * h + 1], by, sum[2 * h + 1]);
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

    // Where a partial's columns of this rank lie: float4 [eight columns][lane], float2 [row].
    __device__ __forceinline__ size_t partial_at(int slot) const
    {
        return (size_t)slot * MSGL_MLA_FEW_CLUSTER + rank;
    }

    // A split of one that other clusters have splits of too. Each rank has rows' maxima of its own.
    __device__ __forceinline__ void leave(int slot, const msgl_mla_few_rows &r,
                                          const float (&sum)[4]) const
    {
        __stcg(p.partial_o + (partial_at(slot) * 8 + warp) * 32 + lane,
               make_float4(sum[0], sum[1], sum[2], sum[3]));
        if (warp != 0 || (lane & 3) != 0) return;
        float2 *ml = p.partial_ml + partial_at(slot) * MSGL_MLA_FEW_ROWS + lane / 4;
        __stcg(ml, make_float2(r.max[0], r.sum[0]));
        __stcg(ml + 8, make_float2(r.max[1], r.sum[1]));
    }

    // Blocks of this rank tell each other that their partials are there.
    __device__ __forceinline__ void meet(const msgl_mla_opens &opens) const
    {
        __syncthreads();
        if ((int)threadIdx.x < opens.count) {
            const msgl_mla_open o = msgl__mla_choose(threadIdx.x == 0, opens.at[0], opens.at[1]);
            msgl__mla_wait_partials(o);
            msgl__mla_seen_partials(o);
        }
        __syncthreads();
    }

    // This rank's columns of a row of a unit in several splits, by a warp, two columns a lane. Its
    // clusters take the rows in turn.
    __device__ __forceinline__ void merge(const msgl_mla_open &open) const
    {
        const int row = range - open.first_range + warp * open.num_splits;
        if (row >= open.rows) return;
        float2 ml = make_float2(-INFINITY, 0), v[MSGL_MLA_FEW_RANGES];
        if (lane < open.num_splits)
            ml = __ldcg(p.partial_ml + partial_at(open.slot(lane)) * MSGL_MLA_FEW_ROWS + row);
        const int at = lane / 4 * 32 + (row & 7) * 4 + (lane & 3); // as `leave` wrote it
#pragma unroll
        for (int i = 0; i < MSGL_MLA_FEW_RANGES; i++) {
            const int n = open.slot(min(i, open.num_splits - 1));
            v[i] = __ldcg((const float2 *)(p.partial_o + partial_at(n) * 256 + at) + row / 8);
        }
        float max = ml.x;
        for (int x = 1; x < 32; x *= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, x));
        const float by = ml.x == -INFINITY ? 0.f : msgl__exp2((ml.x - max) * p.log2_scale);
        float total = ml.y * by, a = 0, b = 0;
        for (int x = 1; x < 32; x *= 2) total += __shfl_xor_sync(0xffffffff, total, x);
#pragma unroll
        for (int i = 0; i < MSGL_MLA_FEW_RANGES; i++) {
            const float y = __shfl_sync(0xffffffff, by, i); // 0 behind the last split
            a = fmaf(v[i].x, y, a);
            b = fmaf(v[i].y, y, b);
        }
        const msgl_mla_place to(p, open.first_row, open.rows, row);
        const float inverse = total > 0 ? p.out_scale * msgl__rcp(total) : 0;
        if (rank == 0 && lane == 0) to.store_lse(p, max, total);
        *(uint32_t *)(to.out + rank * 64 + lane * 2) =
            msgl__pack_two(a * inverse, b * inverse, __nv_bfloat16());
    }

    // The ring's first tiles and the first unit's q. Keys older than the step do not wait.
    __device__ __forceinline__ void begin(msgl_mla_few_asker &asker,
                                          const msgl_mla_walk &walk) const
    {
        msgl_mla_few_asker old = asker;
#pragma unroll 1
        for (int i = 0; i < MSGL_MLA_FEW_STAGES; i++) old.ask<msgl_mla_few_asker::OLD>();
        msgl__pdl_wait();
        if (walk.more()) load_q(walk.ahead);
#pragma unroll 1
        for (int i = 0; i < MSGL_MLA_FEW_STAGES; i++) {
            asker.ask<msgl_mla_few_asker::FRESH>();
            msgl__copy_async_commit();
        }
    }

    __device__ __forceinline__ void run()
    {
        msgl_mla_walk walk(p, range);
        msgl_mla_few_asker asker(p, smem, range, rank);
        begin(asker, walk);
        while (walk.more()) {
            const msgl_mla_item it = walk.take();
            attend(it, asker, walk.more(), walk.ahead);
            float sum[4];
            const msgl_mla_few_rows r = exchange(sum);
            if (it.unit.first_slot / 2 == it.unit.last_range)
                store(it.unit, r, sum);
            else
                leave(2 * range + (it.index != walk.from.unit), r, sum);
            if (walk.more()) msgl__cluster_sync(); // all have read
        }
        msgl__copy_async_wait_all();
        const msgl_mla_opens opens(p, range, rank);
        if (opens.count == 0) return;
        meet(opens);
        merge(opens.at[0]);
        if (opens.count == 2) merge(opens.at[1]);
    }
};

#endif
