// SPDX-License-Identifier: Apache-2.0
//
// Where results go, and merging of a unit's partial results. All blocks that have a split of a unit
// wait for each other and merge a slice of it each, so that merging takes as long as reading one
// partial. (They all run at once: a launch has no more blocks than the GPU has SMs.) The order of
// the partials is fixed. A loading warp, which has nothing else to do by then, tells the other
// blocks that this one's partials are there, and waits for theirs.
//
// A partial is the computing threads' registers as they are: per 16 rows and half of the columns,
// 32 lines of 32 float4: line j, lane i is columns 8 j + 2 (i % 4) and the next one of row i / 4,
// then those of row i / 4 + 8.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_MERGE_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_MERGE_CUH

#include "cuda/attn/fragment_sm90.cuh"
#include "cuda/attn/mla_sm90/config.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"

// Where the results of a unit's query row go.
struct msgl_mla_place {
    __nv_bfloat16 *out; // of the row
    size_t lse;
    bool valid;

    __device__ __forceinline__ msgl_mla_place(const msgl_mla_params &p, int first_row, int rows,
                                              int row)
    {
        const int at = first_row + row, token = at / p.heads, head = at - token * p.heads;
        out = p.out + (size_t)token * p.ld_out + head * MSGL_MLA_LATENT;
        lse = (size_t)at;
        valid = row < rows;
    }

    // Of a row with that maximum of raw scores and that sum of probabilities.
    __device__ __forceinline__ void store_lse(const msgl_mla_params &p, float max, float sum) const
    {
        if (p.lse != NULL && valid) p.lse[lse] = sum > 0 ? max * p.ln_scale + logf(sum) : -INFINITY;
    }
};

// Number of a partial's 16 rows.
static __device__ __forceinline__ size_t msgl__mla_partial_at(const msgl_mla_params &p, int slot,
                                                              int row_tile, int group)
{
    return (size_t)(slot * p.row_tiles + row_tile) * p.row_groups + group;
}

// A unit that several ranges have splits of.
struct msgl_mla_open {
    int first_row, rows, first_slot, first_range, num_splits;
    int32_t *counters; // partials that are there, blocks that have seen so

    __device__ __forceinline__ int slot(int split) const
    {
        return split == 0 ? first_slot : 2 * (first_range + split);
    }
};

// Those of a range: its first unit, its last one, both or none.
struct msgl_mla_opens {
    msgl_mla_open at[2];
    int count;

    __device__ __forceinline__ msgl_mla_opens(const msgl_mla_params &p, int range, int row_tile)
    {
        const msgl_mla_kv_range s = p.plan->ranges[range];
        const msgl_mla_bound from = s.from, to = s.to;
        const int last = to.tile > 0 ? to.unit : to.unit - 1;
        const bool some = from.unit < last || (from.unit == last && from.tile < to.tile) ||
                          (from.unit == last && to.unit > last);
        const bool a = some && find(p, from.unit, row_tile, &at[0]);
        const bool b = last > from.unit && find(p, last, row_tile, &at[1]);
        if (!a && b) at[0] = at[1];
        count = a + b;
    }

    static __device__ __forceinline__ bool find(const msgl_mla_params &p, int index, int row_tile,
                                                msgl_mla_open *o)
    {
        const msgl_mla_unit r = p.units[index];
        const int first = r.first_slot / 2;
        o->first_row = r.first_row;
        o->rows = r.rows;
        o->first_slot = r.first_slot;
        o->first_range = first;
        o->num_splits = r.last_range - first + 1;
        o->counters = p.counters + 2 * (first * p.row_tiles + row_tile);
        return o->num_splits > 1;
    }
};

// a if c, else b; an address of either would put both into local memory.
static __device__ __forceinline__ msgl_mla_open msgl__mla_choose(bool c, const msgl_mla_open &a,
                                                                 const msgl_mla_open &b)
{
    return {c ? a.first_row : b.first_row,   c ? a.rows : b.rows,
            c ? a.first_slot : b.first_slot, c ? a.first_range : b.first_range,
            c ? a.num_splits : b.num_splits, c ? a.counters : b.counters};
}

// By a thread whose block's partial of a unit is in memory: tells the others, and waits for theirs.
static __device__ __forceinline__ void msgl__mla_wait_partials(const msgl_mla_open &o)
{
    msgl__count(o.counters);
    while (msgl__load_acquire(o.counters) < o.num_splits) {
    }
}

// Behind that wait. The last one leaves the counters as the next launch wants them.
static __device__ __forceinline__ void msgl__mla_seen_partials(const msgl_mla_open &o)
{
    if (msgl__count(o.counters + 1) == o.num_splits - 1) o.counters[0] = o.counters[1] = 0;
}

// By one loading warp: once this block's partials are in memory, tells the others, waits for
// theirs, and tells the computing warps. The last one leaves the counters as the next launch wants
// them.
static __device__ __forceinline__ void msgl__mla_meet(const msgl_mla_params &p, msgl_mla_smem &s,
                                                      int range, int row_tile)
{
    const msgl_mla_opens opens(p, range, row_tile);
    const int lane = threadIdx.x & 31;
    if (opens.count == 0 || lane >= 2) return;
    if (lane < opens.count) {
        const msgl_mla_open o = msgl__mla_choose(lane == 0, opens.at[0], opens.at[1]);
        msgl__mla_wait(&s.left, 0);
        msgl__mla_wait_partials(o);
        msgl__mbarrier_arrive(msgl__shared_address(&s.merge));
        msgl__mla_seen_partials(o);
    } else {
        msgl__mbarrier_arrive(msgl__shared_address(&s.merge));
    }
}

// What the eight computing warps do of it.
struct msgl_mla_merger {
    const msgl_mla_params &p;
    msgl_mla_smem &smem;
    const int range, row_tile;
    const int thread, lane, warp;
    enum { WARPS = 8 };

    __device__ __forceinline__ msgl_mla_merger(const msgl_mla_params &params, msgl_mla_smem &s,
                                               int range_, int tile)
        : p(params), smem(s), range(range_), row_tile(tile), thread(threadIdx.x - 128),
          lane(threadIdx.x & 31), warp((threadIdx.x >> 5) - 4)
    {
    }

    // Maxima and sums of all partials' rows to shared memory: [split][row]. By `threads` threads, t
    // of them.
    __device__ __forceinline__ void gather(const msgl_mla_open &o, float2 *ml, int t,
                                           int threads) const
    {
        enum { BATCH = 8 };
        const int rows = 16 * p.row_groups, all = o.num_splits * rows;
        for (int from = t; from < all; from += BATCH * threads) {
            float2 v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int i = min(from + b * threads, all - 1), split = i / rows,
                          r = i - split * rows;
                const size_t block = msgl__mla_partial_at(p, o.slot(split), row_tile, r / 16);
                v[b] = __ldcg(p.partial_ml + block * 16 + r % 16);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int i = from + b * threads, split = i / rows, r = i - split * rows;
                if (i < all) ml[split * MSGL_MLA_TILE + r] = v[b];
            }
        }
    }

    // In the place of each maximum what the partial's row is to be multiplied by; behind the
    // partials, the inverse of each row's sum, and where the row goes (in 16 bytes; -1: nowhere).
    __device__ __forceinline__ void weigh(const msgl_mla_open &o, float2 *ml, int t,
                                          int threads) const
    {
        const int groups = p.row_groups == 3 ? 4 : p.row_groups;
        const int per_row = threads / (16 * groups);
        const int r = t / per_row, first = t & (per_row - 1);
        if (r >= p.row_groups * 16) return; // whole warps
        float max = -INFINITY, sum = 0;
        for (int i = first; i < o.num_splits; i += per_row)
            max = fmaxf(max, ml[i * MSGL_MLA_TILE + r].x);
        for (int x = 1; x < per_row; x *= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, x));
        for (int i = first; i < o.num_splits; i += per_row) {
            float2 &v = ml[i * MSGL_MLA_TILE + r];
            v.x = v.x == -INFINITY ? 0.f : msgl__exp2((v.x - max) * p.log2_scale);
            sum = fmaf(v.x, v.y, sum);
        }
        for (int x = 1; x < per_row; x *= 2) sum += __shfl_xor_sync(0xffffffff, sum, x);
        if (first != 0) return;
        const msgl_mla_place at(p, o.first_row, o.rows, row_tile * MSGL_MLA_TILE + r);
        const int64_t place = at.valid ? (at.out - p.out) / 8 : -1;
        ml[o.num_splits * MSGL_MLA_TILE + r] =
            make_float2(sum > 0 ? p.out_scale * msgl__rcp(sum) : 0, __int_as_float((int)place));
        if (range == o.first_range) at.store_lse(p, max, sum);
    }

    // Where row r's results go: [512], or NULL if it is no row of the unit; times *inverse.
    __device__ __forceinline__ __nv_bfloat16 *place(const msgl_mla_open &o, const float2 *ml, int r,
                                                    float *inverse) const
    {
        const float2 v = ml[o.num_splits * MSGL_MLA_TILE + r];
        const int at = __float_as_int(v.y);
        *inverse = v.x;
        return at < 0 ? NULL : p.out + (int64_t)at * 8;
    }

    // This lane's values of COUNT lines (RUN from `line` on, RUN from line + skip on, ...), over
    // partials from, from + step, ... All reads of SPLITS partials are on their way at a time; what
    // is behind the last line or partial is read elsewhere and does not count.
    template <int COUNT, int RUN, int SPLITS>
    __device__ __forceinline__ void add(const msgl_mla_open &o, const float2 *ml, int line,
                                        int skip, int from, int step, float4 (&sum)[COUNT]) const
    {
        const int lines = p.row_groups * 64;
        for (float4 &v : sum) v = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int i = from; i < o.num_splits; i += SPLITS * step) {
            float4 v[SPLITS][COUNT];
#pragma unroll
            for (int n = 0; n < SPLITS; n++) {
                const int split = min(i + n * step, o.num_splits - 1);
                const float4 *at =
                    p.partial_o + msgl__mla_partial_at(p, o.slot(split), row_tile, 0) *
                                      (16 * MSGL_MLA_LATENT / 4);
#pragma unroll
                for (int b = 0; b < COUNT; b++) {
                    const int l = min(line + b / RUN * skip + b % RUN, lines - 1);
                    v[n][b] = __ldcg(at + l * 32 + lane);
                }
            }
#pragma unroll
            for (int n = 0; n < SPLITS; n++) {
                const int split = i + n * step;
                if (split >= o.num_splits) break;
#pragma unroll
                for (int b = 0; b < COUNT; b++) {
                    const int l = min(line + b / RUN * skip + b % RUN, lines - 1);
                    const int r = l / 64 * 16 + lane / 4;
                    const float x = ml[split * MSGL_MLA_TILE + r].x;
                    const float y = ml[split * MSGL_MLA_TILE + r + 8].x;
                    sum[b].x = fmaf(v[n][b].x, x, sum[b].x);
                    sum[b].y = fmaf(v[n][b].y, x, sum[b].y);
                    sum[b].z = fmaf(v[n][b].z, y, sum[b].z);
                    sum[b].w = fmaf(v[n][b].w, y, sum[b].w);
                }
            }
        }
    }

    // Four lines, from `line` on (a multiple of four).
    __device__ __forceinline__ void store_run(const msgl_mla_open &o, const float2 *ml, int line,
                                              const float4 *v) const
    {
        float sums[16];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            sums[4 * b] = v[b].x, sums[4 * b + 1] = v[b].y;
            sums[4 * b + 2] = v[b].z, sums[4 * b + 3] = v[b].w;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float inverse;
            __nv_bfloat16 *to = place(o, ml, line / 64 * 16 + lane / 4 + 8 * h, &inverse);
            msgl__fa_store_row(to + line % 64 * 8, sums, h, inverse, to != NULL, 32);
        }
    }

    __device__ __forceinline__ void store_line(const msgl_mla_open &o, const float2 *ml, int line,
                                               const float4 &v) const
    {
        const int r = line / 64 * 16 + lane / 4, column = line % 64 * 8 + 2 * (lane & 3);
        float a, b;
        __nv_bfloat16 *first = place(o, ml, r, &a), *second = place(o, ml, r + 8, &b);
        const __nv_bfloat16 t = {};
        if (first != NULL) *(uint32_t *)(first + column) = msgl__pack_two(v.x * a, v.y * a, t);
        if (second != NULL) *(uint32_t *)(second + column) = msgl__pack_two(v.z * b, v.w * b, t);
    }

    // This block's slice of a unit with few splits: runs of four lines own, own + num_splits, ...
    __device__ __forceinline__ void slice_runs(const msgl_mla_open &o, const float2 *ml) const
    {
        const int lines = p.row_groups * 64, skip = 4 * WARPS * o.num_splits;
        float4 v[8];
#pragma unroll 1
        for (int line = 4 * (range - o.first_range + warp * o.num_splits); line < lines;
             line += 2 * skip) {
            add<8, 4, 2>(o, ml, line, skip, 0, 1, v);
            store_run(o, ml, line, v);
            if (line + skip < lines) store_run(o, ml, line + skip, v + 4);
        }
    }

    // Of one with many: lines own, own + num_splits, ..., of which every warp adds some partials.
    // Those sums are added where they lie in shared memory.
    __device__ __forceinline__ void slice_lines(const msgl_mla_open &o, const float2 *ml) const
    {
        const int lines = p.row_groups * 64, own = range - o.first_range;
        enum { BATCH = 4 };
        float4 v[BATCH], *sums = (float4 *)smem.kv[1];    // [line][warp][lane]
        msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256); // an earlier unit's are read
#pragma unroll 1
        for (int i = 0; own + i * o.num_splits < lines; i += BATCH) {
            add<BATCH, 1, 4>(o, ml, own + i * o.num_splits, o.num_splits, warp, WARPS, v);
#pragma unroll
            for (int b = 0; b < BATCH; b++) sums[((i + b) * WARPS + warp) * 32 + lane] = v[b];
        }
        msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256);
#pragma unroll 1
        for (int i = warp; own + i * o.num_splits < lines; i += WARPS) {
            float4 sum = sums[i * WARPS * 32 + lane];
            for (int w = 1; w < WARPS; w++) {
                const float4 x = sums[(i * WARPS + w) * 32 + lane];
                sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
            }
            store_line(o, ml, own + i * o.num_splits, sum);
        }
    }

    __device__ __forceinline__ void slice(const msgl_mla_open &o, const float2 *ml) const
    {
        if (o.num_splits <= 4 * p.row_groups)
            slice_runs(o, ml);
        else
            slice_lines(o, ml);
    }

    // Behind this warp's last partial.
    __device__ __forceinline__ void run() const
    {
        const msgl_mla_opens opens(p, range, row_tile);
        if (opens.count == 0) return;
        __syncwarp();
        if (lane == 0) msgl__mbarrier_arrive(msgl__shared_address(&smem.left));
        msgl__mla_wait(&smem.merge, 0);
        // Each warpgroup has a unit, or both have half of one.
        float2 *first = (float2 *)smem.kv[0];
        float2 *second = first + (opens.at[0].num_splits + 1) * MSGL_MLA_TILE;
        const bool two = opens.count == 2, other = two && thread >= 128;
        const msgl_mla_open mine = msgl__mla_choose(other, opens.at[1], opens.at[0]);
        float2 *ml = other ? second : first;
        const int t = two ? thread & 127 : thread, threads = two ? 128 : 256;
        gather(mine, ml, t, threads);
        msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256);
        weigh(mine, ml, t, threads);
        msgl__named_barrier_sync(MSGL_MLA_BAR_BOTH, 256);
        slice(opens.at[0], first);
        if (opens.count == 2) slice(opens.at[1], second);
    }
};

#endif
