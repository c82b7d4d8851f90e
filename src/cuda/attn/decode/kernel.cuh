// SPDX-License-Identifier: Apache-2.0
//
// Decode attention: one query token per request, K and V read once, at the speed of memory.
//
// A CTA is persistent and walks one slice of the work (split.h). Each of its warps has a ring of
// tiles of its own in shared memory, which it fills itself: no producer, no barrier between warps
// while keys stream in, and the loads of a request start while those before it are still being
// computed. A tile's V (tile.cuh) goes to registers early, so that its place is refilled before the
// softmax. With a tile's rows come the table entries of the tile that will take its place, so that
// no warp ever waits for the table.
//
// At the end of a piece the warps are merged through shared memory, in fixed order; partials of
// split items through the workspace by the CTA that arrives last, in fixed order too.
//
// Launched with programmatic dependence: the lengths, the table and the tiles without the newest
// token are older than the step's layers, so they are read while the kernel before this one still
// runs. Only q and the newest token's K and V wait for it. (The newest token's entry of the table
// is written by the step's first kernel, ops/embed.cu: an ordinary launch, so that no layer starts
// before it has ended.)
#ifndef MSGL_CUDA_ATTN_DECODE_KERNEL_CUH
#define MSGL_CUDA_ATTN_DECODE_KERNEL_CUH

#include "cuda/attn/decode/args.cuh"
#include "cuda/attn/decode/input.cuh"
#include "cuda/attn/decode/tile.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

// p of the region that the request's partials are in.
template <typename P>
static __device__ __forceinline__ P *msgl_decode_region(const msgl_decode_args &a, P *p,
                                                        int32_t req)
{
    return (P *)((char *)p + (size_t)req * a.request_stride);
}

// What a warp will load next: its walk is ahead of the computation's.
struct msgl_decode_loads {
    msgl_fa_walk walk;
    int32_t first;     // place of the request's key 0
    int32_t row_after; // of the next item's request, read ahead
    int32_t tile;      // from walk.first; negative: at the end
};

// Moves to the warp's next tile and writes to shared memory what there is to know about it: where
// it is, plus 1 if the tile has the newest token and that is in the pool; and the pages of its
// rows, which arrive with the warp's current group.
template <int HD, typename S, bool DET>
static __device__ __forceinline__ void
msgl_decode_look_up(const msgl_decode_args &a, const msgl_fa_split &split, int32_t warp,
                    int32_t lane, msgl_decode_loads *s, int32_t *slots, msgl_decode_tile *next)
{
    if (s->tile >= 0) s->tile += S::WARPS;
    while (s->tile >= s->walk.hi) {
        const int32_t req = s->walk.req, head = s->walk.head;
        if (!msgl__fa_walk_next(&split, DET, a.seqlens, &s->walk)) {
            s->tile = -1;
            break;
        }
        if (s->walk.req != req || s->walk.head != head) {
            s->first = s->row_after * a.table_stride;
            s->row_after = a.table_rows[msgl__fa_after(&split, s->walk.req)];
        }
        s->tile = s->walk.lo + warp;
    }
    if (s->tile < 0) {
        if (lane == 0) next->where = MSGL_DECODE_NO_TILE;
        return;
    }
    const int32_t tile = s->walk.first + s->tile, len = s->walk.len;
    if (lane < MSGL_FA_TILE) {
        const int32_t pos = tile * MSGL_FA_TILE + lane;
        if (pos >= msgl__fa_first_key(len, split.window) && pos < len - msgl_decode_rotates<S>(a)) {
            msgl__copy_async_4(msgl__shared_address(slots + lane),
                               a.table + msgl__paging_page(a.paging, s->first + pos));
        } else {
            slots[lane] = MSGL_DECODE_NO_SLOT;
        }
    }
    if (lane == 0) {
        const int32_t head = a.row_blocks > 1 ? s->walk.head / a.row_blocks : s->walk.head;
        const bool newest = !msgl_decode_rotates<S>(a) && (tile + 1) * MSGL_FA_TILE >= len;
        *next = {head * HD * S::EACH + newest, s->first + tile * MSGL_FA_TILE};
    }
}

// Starts a warp's first tiles, as soon as what they need is there.
template <int HD, typename S, bool DET>
static __device__ __forceinline__ void
msgl_decode_fill(const msgl_decode_args &a, const msgl_fa_split &split, int32_t warp, int32_t lane,
                 msgl_decode_loads *loads, int32_t *slots, msgl_decode_tile *tiles, uint32_t ring)
{
#pragma unroll 1
    for (int i = 0; i < S::STAGES; i++) {
        msgl_decode_look_up<HD, S, DET>(a, split, warp, lane, loads, slots + i * MSGL_FA_TILE,
                                        tiles + i);
    }
    msgl__copy_async_commit();
    msgl__copy_async_wait<0>();
    __syncwarp();
    for (int32_t i = lane; i < S::STAGES * MSGL_FA_TILE; i += 32) {
        msgl_decode_resolve(a, slots + i, slots[i], tiles[i / MSGL_FA_TILE].place,
                            i % MSGL_FA_TILE);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < S::STAGES; i++) {
        int32_t *entries = slots + i * MSGL_FA_TILE;
        const int32_t where = tiles[i].where;
        if (where & 1) msgl__pdl_wait(); // (or there is none)
        msgl_decode_issue<HD, S::EACH, S::PITCH, true>(a, lane, entries, where,
                                                       ring + i * S::STAGE);
        __syncwarp();
        msgl_decode_look_up<HD, S, DET>(a, split, warp, lane, loads, entries, tiles + i);
        msgl__copy_async_commit();
    }
}

// Brings a piece's queries, and its newest token, to where load_q and place_newest take them from;
// without rope its queries to registers. is_fetched: the first head of each lane group is there.
template <typename T, int HD, typename S>
static __device__ __forceinline__ void
msgl_decode_bring(const msgl_decode_args &a, const msgl_fa_walk &walk, bool is_fetched,
                  int32_t lane, msgl_decode_fetched *f, char *input,
                  msgl_decode_warp<T, HD, S::ROWS> *w)
{
    if constexpr (S::ROPE) {
        if (!is_fetched) msgl_decode_fetch<T, HD>(a, walk, msgl_decode_lane_group<S>(), f);
        msgl_decode_prepare_all<T, HD, S>(a, walk, f, input);
    } else {
        msgl_decode_read_q(a, walk, lane, w);
    }
}

// The last CTA of a split item: sums the partials in order. A warp's lanes share a row.
template <typename T, int HD, int THREADS>
static __device__ __forceinline__ void
msgl_decode_merge_partials(const msgl_decode_args &a, int32_t req, const msgl_decode_head &head,
                           int32_t lane, const msgl_fa_kv_split &kv_split)
{
    const float *partial_o = msgl_decode_region(a, a.partial_o, req);
    const float2 *partial_ml = msgl_decode_region(a, a.partial_ml, req);
    const int PIECES = (HD + 63) / 64; // 64 elements per warp, the last ones may be fewer
    for (int32_t i = threadIdx.x / 32; i < head.rows * PIECES; i += THREADS / 32) {
        const int32_t row = i / PIECES, d = (i % PIECES * 32 + lane) * 2;
        float m = -INFINITY, l = 0.f;
        float2 sum = make_float2(0.f, 0.f);
        for (int32_t from = 0; from < kv_split.num_splits; from += 32) {
            const int32_t n = kv_split.num_splits - from < 32 ? kv_split.num_splits - from : 32;
            float2 ml = make_float2(-INFINITY, 0.f);
            if (lane < n) {
                ml = __ldcg(partial_ml + (size_t)msgl__fa_slot(&kv_split, from + lane) * a.rows +
                            row);
            }
            float next = ml.x;
#pragma unroll
            for (int x = 16; x > 0; x /= 2) next = fmaxf(next, __shfl_xor_sync(~0u, next, x));
            next = fmaxf(next, m);
            const float weight = msgl__exp2(ml.x - next), before = msgl__exp2(m - next);
            m = next;
            l = l * before;
            sum.x *= before;
            sum.y *= before;
            const float weighted = ml.y * weight;
#pragma unroll 8
            for (int32_t x = 0; x < n; x++) {
                const size_t at = (size_t)msgl__fa_slot(&kv_split, from + x) * a.rows + row;
                float2 o = make_float2(0.f, 0.f);
                if (d < HD) o = __ldcg((const float2 *)(partial_o + at * HD + d));
                const float y = __shfl_sync(~0u, weight, x);
                sum.x += o.x * y;
                sum.y += o.y * y;
                l += __shfl_sync(~0u, weighted, x);
            }
        }
        if (d < HD) msgl_decode_store<T, HD>(a, req, head.first + row, d, sum, m, l);
    }
}

// Merges the warps and stores the result, or the partial of a split item.
template <typename T, int HD, int ROWS, typename S, bool DET>
static __device__ __forceinline__ void
msgl_decode_finish(const msgl_decode_args &a, const msgl_fa_split &split, const msgl_fa_walk &walk,
                   int32_t warp, int32_t lane, float *merge, float2 *ml, int32_t *flag,
                   msgl_decode_warp<T, HD, ROWS> *w)
{
    const int WARPS = S::WARPS, ROWS_EACH = S::PASS_ROWS;
    const msgl_decode_head head = msgl_decode_find_head(a, walk.head);
    const bool whole = walk.lo == 0 && walk.hi == walk.tiles;
    msgl_decode_sum(w);
    __syncthreads(); // the piece before has been read
    msgl_decode_put_ml(*w, lane, ml + warp * ROWS);
#pragma unroll
    for (int pass = 0; pass < ROWS / ROWS_EACH; pass++) {
        if (pass * ROWS_EACH >= head.rows) break;
        if (pass > 0) __syncthreads();
        msgl_decode_put_rows<ROWS_EACH, S::MERGE_PITCH>(*w, pass * ROWS_EACH / 8,
                                                        pass * ROWS_EACH % 8, lane,
                                                        merge + warp * ROWS_EACH * S::MERGE_PITCH);
        __syncthreads();
        for (int32_t i = threadIdx.x; i < ROWS_EACH * (HD / 2); i += S::THREADS) {
            const int32_t d = i % (HD / 2) * 2, r = i / (HD / 2), row = pass * ROWS_EACH + r;
            if (row >= head.rows) break;
            float2 each[WARPS];
            float m = -INFINITY, l = 0.f;
#pragma unroll
            for (int x = 0; x < WARPS; x++) {
                each[x] = ml[x * ROWS + row];
                m = fmaxf(m, each[x].x);
            }
            float2 sum = make_float2(0.f, 0.f);
#pragma unroll
            for (int x = 0; x < WARPS; x++) {
                const float y = msgl__exp2(each[x].x - m);
                const float2 o =
                    *(const float2 *)(merge + (x * ROWS_EACH + r) * S::MERGE_PITCH + d);
                sum.x += o.x * y;
                sum.y += o.y * y;
                l += each[x].y * y;
            }
            if (whole) {
                msgl_decode_store<T, HD>(a, walk.req, head.first + row, d, sum, m, l);
            } else {
                const msgl_fa_kv_split kv_split = msgl__fa_kv_split(&split, DET, &walk);
                const size_t at = (size_t)msgl__fa_slot(&kv_split, kv_split.split) * a.rows + row;
                *(float2 *)(msgl_decode_region(a, a.partial_o, walk.req) + at * HD + d) = sum;
                if (d == 0) msgl_decode_region(a, a.partial_ml, walk.req)[at] = make_float2(m, l);
            }
        }
    }
    if (!whole) {
        const msgl_fa_kv_split kv_split = msgl__fa_kv_split(&split, DET, &walk);
        __syncthreads();
        if (threadIdx.x == 0) {
            int32_t *counter = msgl_decode_region(a, a.counters, walk.req) + kv_split.counter;
            *flag = msgl__count(counter) == kv_split.num_splits - 1;
            if (*flag) *counter = 0;
        }
        __syncthreads();
        if (*flag) {
            msgl_decode_merge_partials<T, HD, S::THREADS>(a, walk.req, head, lane, kv_split);
        }
    }
}

// Where a slice starts.
struct msgl_decode_place {
    int32_t head, req, base, len, table_row; // base: from the head's start
};

// Sums up the line and finds the request in which slice `slice` starts.
template <int THREADS>
static __device__ __forceinline__ void
msgl_decode_find_place(const msgl_decode_args &a, int32_t slice, msgl_fa_split *split,
                       int32_t *sums, msgl_decode_place *place)
{
    const int32_t tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int32_t each = (split->batch + THREADS - 1) / THREADS;
    const int32_t first = tid * each;
    int32_t own = 0, row = 0;
    if (first < split->batch) row = a.table_rows[first];
    for (int32_t i = first; i < first + each && i < split->batch; i++) {
        own += msgl__fa_units(split, a.seqlens[i]);
    }
    int32_t upto = own; // inclusive sum
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int32_t other = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += other;
    }
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    int32_t units = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        if (i == warp) upto += units;
        units += sums[i];
    }
    msgl__fa_split_set(split, units, gridDim.x, a.min_units);
    const int32_t cut = msgl__fa_cut(split, slice), head = cut / units;
    const int32_t begin = cut - head * units;
    if (begin >= upto - own && begin < upto) {
        msgl_decode_place p = {head, first, upto - own, a.seqlens[first], row};
        for (;;) {
            const int32_t n = msgl__fa_units(split, p.len);
            if (begin < p.base + n) break;
            p.base += n;
            p.len = a.seqlens[++p.req];
            p.table_row = a.table_rows[p.req];
        }
        *place = p;
    }
    __syncthreads();
}

template <typename T, int HD, int ROWS, bool LARGE, bool PAIR, bool ROPE, bool DET>
__global__ __launch_bounds__(
    msgl_decode_shape<HD, ROWS, LARGE, PAIR, ROPE, msgl_decode_types<T>::BYTES>::THREADS,
    PAIR ? 2 : 1) void msgl_decode_kernel(const __grid_constant__ msgl_decode_args a)
{
    typedef msgl_decode_shape<HD, ROWS, LARGE, PAIR, ROPE, msgl_decode_types<T>::BYTES> S;
    const int WARPS = S::WARPS, STAGES = S::STAGES;
    if (LARGE != MSGL_DECODE_LARGE) return; // never launched here
    extern __shared__ __align__(128) char smem[];
    __shared__ int32_t sums[WARPS + 1];
    __shared__ msgl_decode_place place;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (!a.first) msgl__pdl_trigger();
    msgl_fa_split split = a.split;
    msgl_decode_find_place<S::THREADS>(a, blockIdx.x, &split, sums, &place);
    if (blockIdx.x >= split.slices) {
        msgl__pdl_wait();
        return;
    }
    const uint32_t ring = msgl__shared_address(smem) + warp * S::RING;
    float *merge = (float *)(smem + WARPS * S::RING);
    float2 *ml = (float2 *)(smem + WARPS * S::RING + S::MERGE);
    char *inputs = smem + WARPS * S::RING + S::MERGE + S::SUMS, *input = inputs;

    msgl_fa_walk walk;
    msgl__fa_walk_start(&split, a.seqlens, blockIdx.x, place.head, place.req,
                        place.head * split.head_units + place.base, place.len, &walk);
    msgl_decode_loads loads;
    loads.walk = walk;
    loads.first = place.table_row * a.table_stride;
    loads.row_after = a.table_rows[msgl__fa_after(&split, place.req)];
    loads.tile = 0;
    int32_t *slots = (int32_t *)(inputs + 2 * S::INPUT);
    msgl_decode_tile *tiles = (msgl_decode_tile *)(slots + S::SLOTS) + warp * STAGES;
    slots += warp * STAGES * MSGL_FA_TILE;
    msgl_decode_fill<HD, S, DET>(a, split, warp, lane, &loads, slots, tiles, ring);
    if constexpr (ROPE) msgl_decode_prefetch_weights<HD>(a);
    msgl__pdl_wait();
    if (a.first) msgl__pdl_trigger();

    const bool early = HD <= 128; // enough registers for a tile's V and the next piece's input
    int32_t at = 0;               // stage
    msgl_decode_warp<T, HD, ROWS> w;
    msgl_decode_fetched fetched;
    bool more = msgl__fa_walk_next(&split, DET, a.seqlens, &walk);
    if (more) msgl_decode_bring<T, HD, S>(a, walk, false, lane, &fetched, input, &w);
    if constexpr (ROPE) __syncthreads();
    while (more) {
        if constexpr (ROPE) msgl_decode_load_q<T, HD, ROWS, S::INPUT_PITCH>(input, lane, &w);
        // What the next piece needs of its new token is read while this one is computed, where
        // registers allow.
        msgl_fa_walk next = walk;
        more = msgl__fa_walk_next(&split, DET, a.seqlens, &next);
        if constexpr (ROPE && early) {
            if (more) msgl_decode_fetch<T, HD>(a, next, msgl_decode_lane_group<S>(), &fetched);
        }
        msgl_decode_reset(&w);
        const int32_t len = walk.len, begin = msgl__fa_first_key(len, split.window);
        for (int32_t tile = walk.lo + warp; tile < walk.hi; tile += WARPS) {
            msgl__copy_async_wait<STAGES - 1>();
            __syncwarp();
            const uint32_t stage = ring + at * S::STAGE;
            int32_t *entries = slots + at * MSGL_FA_TILE;
            // Of the tile that will take this one's place.
            const int32_t page = entries[lane % MSGL_FA_TILE], place = tiles[at].place;
            if (msgl_decode_rotates<S>(a) && tile == walk.tiles - 1) {
                msgl_decode_place_newest<HD, S>(smem + (stage - msgl__shared_address(smem)), input,
                                                (len - 1) % MSGL_FA_TILE, lane);
            }
            float s[2][ROWS / 8][4];
            msgl_decode_scores<T, HD, ROWS, S::PITCH>(stage, lane, w, s);
            if (lane < MSGL_FA_TILE) msgl_decode_resolve(a, entries + lane, page, place, lane);
            const uint32_t v_at = msgl_decode_v_at<S::PITCH>(stage, lane);
            uint32_t p[ROWS / 8][2];
            msgl_decode_v<T, HD> v;
            // Once all lanes have read the stage, the next tile goes there; once they have read
            // its table entries, those of the tile after it.
            const auto refill = [&] {
                __syncwarp();
                msgl_decode_issue<HD, S::EACH, S::PITCH, true>(a, lane, entries, tiles[at].where,
                                                               stage);
                __syncwarp();
                msgl_decode_look_up<HD, S, DET>(a, split, warp, lane, &loads, entries, tiles + at);
                msgl__copy_async_commit();
            };
            if (early) {
                msgl_decode_load_v<T, HD>(v_at, &v);
                refill();
            }
            msgl_decode_softmax(a, s, lane, (walk.first + tile) * MSGL_FA_TILE, begin, len, &w, p);
#pragma unroll
            for (int db = 0; db < HD / 16; db++) {
                const int i = db * msgl_decode_types<T>::BYTES / 2;
                const bool has = early || (db * msgl_decode_types<T>::BYTES) % 2 != 0;
                if (!has) msgl__load_matrix_4_transposed(v_at + i * 32, v.r[i]);
                uint32_t fragment[4];
                msgl_decode_fragment<T>(v.r[i], db, fragment);
                msgl_decode_pv(fragment, db, p, &w);
            }
            if (!early) refill();
            at = at == STAGES - 1 ? 0 : at + 1;
        }
        // Into the other half: no warp reads that before the barriers of the end.
        input = inputs + (input == inputs ? S::INPUT : 0);
        if (more) msgl_decode_bring<T, HD, S>(a, next, early, lane, &fetched, input, &w);
        msgl_decode_finish<T, HD, ROWS, S, DET>(a, split, walk, warp, lane, merge, ml, sums + WARPS,
                                                &w);
        walk = next;
    }
}

#endif
