// SPDX-License-Identifier: Apache-2.0
//
// The loading side: takes work items in the plan's order, loads their Q and, tile by tile from the
// last key to the first, K and V into one ring in the order in which the consumers need them:
// K(n), K(n-1), V(n), K(n-2), V(n-1), ..., V(first).
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_PRODUCER_CUH
#define MSGL_CUDA_ATTN_PREFILL_SM90_PRODUCER_CUH

#include "cuda/attn/page_row.cuh"
#include "cuda/attn/prefill_sm90/config.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/e4m3.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"

// The work items of one CTA, taken in the plan's order. The number of the next one is asked for
// when an item is taken; asking earlier would leave less to balance at the end.
struct msgl_fa_queue {
    msgl_fa_prefill_plan *plan;
    const msgl_fa_prefill_section *sections;
    const msgl_fa_prefill_tile *tiles;
    int num_work, section;
    int ahead; // lane 0: number of the next item

    __device__ __forceinline__ msgl_fa_queue(msgl_fa_prefill_plan *p)
        : plan(p), sections((const msgl_fa_prefill_section *)(p + 1)),
          tiles((const msgl_fa_prefill_tile *)(sections + MSGL_FA_PREFILL_MAX_SECTIONS + 1)),
          num_work(p->num_work), section(0), ahead(blockIdx.x)
    {
    }

    // The next item, lane i its word i; all 0 if there is none. CTAs walk the sections upwards.
    __device__ __forceinline__ int take()
    {
        const int lane = threadIdx.x & 31, work = __shfl_sync(0xffffffff, ahead, 0);
        if (work >= num_work) return 0;
        if (lane == 0) ahead = (int)(atomicAdd(&plan->next, 1) + gridDim.x);
        while (work >= sections[section + 1].work0) section++;
        const msgl_fa_prefill_section s = sections[section];
        const int i = work - s.work0, t = i / s.heads;
        if (lane == MSGL_FA_WORK_WORDS - 1) return s.head0 + (i - t * s.heads);
        return lane < MSGL_FA_WORK_WORDS ? ((const int32_t *)&tiles[s.tile0 + t])[lane] : 0;
    }
};

// The last CTA to finish leaves the counters as the next launch wants them.
static __device__ __forceinline__ void msgl__fa_end_of_work(msgl_fa_prefill_plan *plan)
{
    __threadfence();
    if (atomicAdd(&plan->done, 1) == gridDim.x - 1) {
        plan->next = 0;
        plan->done = 0;
    }
}

// Where a request's keys are, by position: as the page table says, or one behind the other.
struct msgl_fa_in_order {
    int first;
    __device__ __forceinline__ int page(int pos) const
    {
        return first + pos;
    }
    __device__ __forceinline__ int slot(int page, int) const
    {
        return page;
    }
};
template <class C>
using msgl_fa_slots = std::conditional_t<C::EXPANDED, msgl_fa_in_order, msgl_page_row>;

// TMA: every warp of the producer's warpgroup loads a run of a tile's boxes.
template <class C> struct msgl_fa_boxes {
    msgl_fa_ring<C::STAGES> ring;
    int rows, first, count; // of a box; this warp's boxes

    __device__ __forceinline__ msgl_fa_boxes(const msgl_fa_prefill_params &p)
    {
        const int boxes = C::N / p.box_rows, warp = threadIdx.x >> 5;
        const int share = (boxes + 3) / 4;
        rows = p.box_rows;
        first = warp * share;
        count = max(min(share, boxes - first), 0);
    }

    __device__ __forceinline__ int position(int n) const
    {
        return n * C::N + (first + (int)(threadIdx.x & 31)) * rows;
    }

    // The page of this warp's box `lane` in tile n; -1: none of the keys [key_lo, klen) there.
    __device__ __forceinline__ int page(msgl_fa_slots<C> row, int key_lo, int klen, int n) const
    {
        const int lane = threadIdx.x & 31, pos = position(n);
        return lane < count && pos + rows > key_lo && pos < klen ? row.page(pos) : -1;
    }

    // Its first slot; of a box without keys one behind the pool, which TMA reads as zeros.
    __device__ __forceinline__ int slot(const msgl_fa_prefill_params &p, msgl_fa_slots<C> row,
                                        int page, int n) const
    {
        return page < 0 ? p.num_slots : row.slot(page, position(n));
    }

    __device__ __forceinline__ void load(const msgl_fa_prefill_params &p,
                                         msgl_fa_prefill_smem<C> &s, bool is_k, int kv_head,
                                         int slots)
    {
        const int lane = threadIdx.x & 31;
        const CUtensorMap *map = is_k ? &p.k_map : &p.v_map;
        const int blocks = is_k ? C::BLOCKS : C::V_BLOCKS;
        const uint32_t bar = msgl__shared_address(&s.kv_full[ring.at]);
        uint32_t dst = msgl__shared_address(s.kv[ring.at]) + first * rows * 128;
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&s.kv_empty[ring.at]),
                                             ring.parity ^ 1);
        if (lane == 0) msgl__mbarrier_expect(bar, count * rows * 128 * blocks);
        for (int i = 0; i < count; i++) {
            const int from = __shfl_sync(0xffffffff, slots, i);
            if (lane == 0) {
#pragma unroll
                for (int b = 0; b < C::V_BLOCKS; b++)
                    msgl__tensor_load(dst + b * C::N * 128, map, b * 64, kv_head, from, bar);
                if (C::EXPANDED && is_k)
                    msgl__tensor_load(dst + C::V_BLOCKS * C::N * 128, &p.rotary_map, 0, 0, from,
                                      bar);
            }
            dst += rows * 128;
        }
        ring.next();
    }
};

// Every warp of the producer's warpgroup loads N / 4 rows of each tile: as one TMA box if their
// slots follow one another, as those of small pages often do, else row by row with cp.async. A
// stage is full when all 128 threads have arrived; with cp.async they do once their copies are
// complete.
template <class C> struct msgl_fa_rows_loader {
    static constexpr int ROWS = C::GATHER_ROWS;
    msgl_fa_ring<C::STAGES> ring;

    __device__ __forceinline__ msgl_fa_rows_loader(const msgl_fa_prefill_params &)
    {
    }

    static __device__ __forceinline__ int position(int n)
    {
        return n * C::N + (int)(threadIdx.x >> 5) * ROWS + (int)(threadIdx.x & 31);
    }

    // The page of row warp * ROWS + lane of tile n; -1: none of the keys [key_lo, klen) there.
    static __device__ __forceinline__ int page(const msgl_page_row &row, int key_lo, int klen,
                                               int n)
    {
        const int lane = threadIdx.x & 31, pos = position(n);
        return lane < ROWS && pos >= key_lo && pos < klen ? row.page(pos) : -1;
    }

    // Its slot, or -1.
    static __device__ __forceinline__ int slot(const msgl_fa_prefill_params &,
                                               const msgl_page_row &row, int page, int n)
    {
        return page < 0 ? -1 : row.slot(page, position(n));
    }

    __device__ __forceinline__ void load(const msgl_fa_prefill_params &p,
                                         msgl_fa_prefill_smem<C> &s, bool is_k, int kv_head,
                                         int slots)
    {
        const int lane = threadIdx.x & 31, first = __shfl_sync(0xffffffff, slots, 0);
        const bool run = first >= 0 && (lane >= ROWS || slots == first + lane);
        const uint32_t bar = msgl__shared_address(&s.kv_full[ring.at]);
        const uint32_t dst = msgl__shared_address(s.kv[ring.at]) + (threadIdx.x >> 5) * ROWS * 128;
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&s.kv_empty[ring.at]),
                                             ring.parity ^ 1);
        if (!__all_sync(0xffffffff, run)) {
            const char *from = (const char *)(is_k ? p.k : p.v) + kv_head * p.head_dim * 2;
            load_rows(p, from, dst, slots);
            msgl__copy_async_arrive(bar);
        } else if (lane == 0) {
            load_box(is_k ? &p.k_map : &p.v_map, dst, bar, kv_head, first);
        } else {
            msgl__mbarrier_arrive(bar);
        }
        ring.next();
    }

    static __device__ __forceinline__ void load_box(const CUtensorMap *map, uint32_t dst,
                                                    uint32_t bar, int kv_head, int first)
    {
        msgl__mbarrier_expect(bar, ROWS * 128 * C::BLOCKS);
#pragma unroll
        for (int b = 0; b < C::BLOCKS; b++)
            msgl__tensor_load(dst + b * C::N * 128, map, b * 64, kv_head, first, bar);
    }

    static __device__ __forceinline__ void load_rows(const msgl_fa_prefill_params &p,
                                                     const char *from, uint32_t dst, int slots)
    {
        const int lane = threadIdx.x & 31, chunk = lane & 7, row0 = lane >> 3;
        // Rows are 4 apart, so the swizzle alternates between two columns.
        const uint32_t even = (chunk ^ row0) << 4, odd = even ^ 64;
        dst += row0 * 128;
        from += chunk * 16;
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
            const int slot = __shfl_sync(0xffffffff, slots, i * 4 + row0);
            const char *src = from + (int64_t)max(slot, 0) * p.kv_row_bytes;
            const uint32_t to = dst + i * 512 + (i & 1 ? odd : even);
#pragma unroll
            for (int b = 0; b < C::BLOCKS; b++) {
                const bool inside = b * 64 + chunk * 8 < p.head_dim;
                msgl__copy_async_16(to + b * C::N * 128, inside ? src + b * 128 : src,
                                    slot >= 0 && inside);
            }
        }
    }
};

// The same of E4M3: cp.async brings a tile's codes to where the thread that asked for them makes
// f16 of them, once the next tile's are on their way. With chunk = lane % CHUNKS a lane has 16
// columns of every ROWS_AT_ONCE-th row.
template <class C> struct msgl_fa_e4m3_loader {
    static constexpr int ROWS = C::GATHER_ROWS;
    static constexpr int CHUNKS = C::HD / 16; // of 16 codes, in a row
    static constexpr int ROWS_AT_ONCE = 32 / CHUNKS;
    static constexpr int LOADS = ROWS / ROWS_AT_ONCE;
    static constexpr int BATCH = 4; // reads of shared memory in flight
    static_assert(LOADS % BATCH == 0, "whole batches");
    msgl_fa_ring<C::STAGES> ring;
    int parity; // of the tile to come: where its codes go
    bool waits; // the tile before has not been converted yet

    __device__ __forceinline__ msgl_fa_e4m3_loader(const msgl_fa_prefill_params &)
        : parity(0), waits(false)
    {
    }

    static __device__ __forceinline__ int page(const msgl_page_row &row, int key_lo, int klen,
                                               int n)
    {
        return msgl_fa_rows_loader<C>::page(row, key_lo, klen, n);
    }

    static __device__ __forceinline__ int slot(const msgl_fa_prefill_params &p,
                                               const msgl_page_row &row, int page, int n)
    {
        return msgl_fa_rows_loader<C>::slot(p, row, page, n);
    }

    __device__ __forceinline__ void load(const msgl_fa_prefill_params &p,
                                         msgl_fa_prefill_smem<C> &s, bool is_k, int kv_head,
                                         int slots)
    {
        const int lane = threadIdx.x & 31, column = lane % CHUNKS * 16;
        const bool inside = column < p.head_dim;
        const char *from =
            (const char *)(is_k ? p.k : p.v) + kv_head * p.head_dim + (inside ? column : 0);
        const uint32_t to = msgl__shared_address(s.codes[parity]) + threadIdx.x * 16;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int slot = __shfl_sync(0xffffffff, slots, i * ROWS_AT_ONCE + lane / CHUNKS);
            msgl__copy_async_16(to + i * 2048, from + (int64_t)max(slot, 0) * p.kv_row_bytes,
                                slot >= 0 && inside);
        }
        msgl__copy_async_commit();
        parity ^= 1;
        if (waits) {
            msgl__copy_async_wait<1>();
            convert(s, parity);
        }
        waits = true;
    }

    // The last tile.
    __device__ __forceinline__ void finish(msgl_fa_prefill_smem<C> &s)
    {
        msgl__copy_async_wait<0>();
        if (waits) convert(s, parity ^ 1);
    }

    // A lane's 16 codes become two pieces of a block's swizzled row. Lanes of the second one of two
    // blocks, which share the banks, begin with the other piece.
    __device__ __forceinline__ void convert(msgl_fa_prefill_smem<C> &s, int which)
    {
        const int lane = threadIdx.x & 31, chunk = lane % CHUNKS, row0 = lane / CHUNKS;
        const int piece = chunk % 4 * 2;
        const bool swap = chunk >= 4;
        const uint32_t from = msgl__shared_address(s.codes[which]) + threadIdx.x * 16;
        const uint32_t to = msgl__shared_address(s.kv[ring.at]) +
                            ((threadIdx.x >> 5) * ROWS + chunk / 4 * C::N + row0) * 128;
        const uint32_t first = ((piece + swap) ^ row0) << 4;
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&s.kv_empty[ring.at]),
                                             ring.parity ^ 1);
#pragma unroll
        for (int i = 0; i < LOADS; i += BATCH) {
            uint4 codes[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                codes[j] = msgl__read_shared<uint4>(from + (i + j) * 2048);
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                // ROWS_AT_ONCE is 4 or 8, so every second row may differ in the swizzle's third
                // bit.
                const uint32_t at = first ^ ((i + j) * ROWS_AT_ONCE & 4) << 4;
                const uint32_t row = to + (i + j) * ROWS_AT_ONCE * 128;
                const uint4 c = codes[j];
                msgl__write_shared(row + at,
                                   msgl__eight_to_f16(swap ? c.z : c.x, swap ? c.w : c.y));
                msgl__write_shared(row + (at ^ 16),
                                   msgl__eight_to_f16(swap ? c.x : c.z, swap ? c.y : c.w));
            }
        }
        msgl__fence_async_proxy();
        msgl__mbarrier_arrive(msgl__shared_address(&s.kv_full[ring.at]));
        ring.next();
    }
};

// One warp of the producer's warpgroup.
template <class C, class Loader> struct msgl_fa_producer {
    const msgl_fa_prefill_params &p;
    msgl_fa_prefill_smem<C> &s;
    Loader loader;
    msgl_fa_ring<C::Q_BUFFERS> q;
    msgl_fa_queue queue;
    // Of the current item:
    int lo, hi, kv_head; // key tiles [lo, hi]; hi < 0: no item
    int key_lo, klen;    // slots of other keys may be another request's
    msgl_fa_slots<C> row;
    int pages, below; // of tile hi and of the one before it

    __device__ __forceinline__ msgl_fa_producer(const msgl_fa_prefill_params &params,
                                                msgl_fa_prefill_smem<C> &smem)
        : p(params), s(smem), loader(params), queue(params.plan)
    {
    }

    __device__ __forceinline__ void load_q(const msgl_fa_prefill_work &w)
    {
        const uint32_t bar = msgl__shared_address(&s.q_full[q.at]),
                       dst = msgl__shared_address(s.q[q.at]);
        msgl__mbarrier_expect(bar, C::BLOCKS * (C::M / p.pack * p.pack) * 128);
#pragma unroll
        for (int b = 0; b < C::BLOCKS; b++)
            msgl__tensor_load(dst + b * C::M * 128, &p.q_map, b * 64, w.head * p.pack, w.tile.row0,
                              bar);
    }

    // Warp 0: takes the next item and tells everyone.
    __device__ __forceinline__ void announce()
    {
        const int lane = threadIdx.x & 31, word = queue.take();
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&s.q_empty[q.at]), q.parity ^ 1);
        if (lane < MSGL_FA_WORK_WORDS) {
            ((int32_t *)&s.work[q.at])[lane] = word;
            msgl__mbarrier_arrive(msgl__shared_address(&s.work_full[q.at]));
        }
        __syncwarp();
    }

    // Makes the next item the current one. Its Q and its first pages are under way on return.
    __device__ __forceinline__ void advance()
    {
        if (threadIdx.x < 32) announce();
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&s.work_full[q.at]), q.parity);
        const msgl_fa_prefill_work w = s.work[q.at];
        if (threadIdx.x == 0 && w.tile.tokens) load_q(w);
        msgl__mbarrier_arrive(msgl__shared_address(&s.q_empty[q.at]));
        q.next();
        hi = w.tile.tokens ? (w.tile.key_hi - 1) / C::N : -1;
        if (hi < 0) return;
        key_lo = w.tile.key_lo;
        lo = key_lo / C::N;
        klen = w.tile.klen;
        kv_head = w.head / p.heads_per_kv;
        if constexpr (C::EXPANDED)
            row = {w.tile.table_row};
        else
            row = msgl__page_row(p, w.tile.table_row);
        pages = loader.page(row, key_lo, klen, hi);
        below = hi > lo ? loader.page(row, key_lo, klen, hi - 1) : -1;
    }

    __device__ __forceinline__ void load(bool is_k, int page, int n)
    {
        loader.load(p, s, is_k, kv_head, loader.slot(p, row, page, n));
    }

    __device__ __forceinline__ void run()
    {
        for (advance(); hi >= 0;) {
            load(true, pages, hi);
            for (int n = hi; n > lo; n--) {
                const int ahead = n - 1 > lo ? loader.page(row, key_lo, klen, n - 2) : -1;
                load(true, below, n - 1);
                load(false, pages, n);
                pages = below;
                below = ahead;
            }
            // The next item's Q and pages are asked for before the wait for the last V's stage,
            // unless there is only one buffer: the consumers leave it with the last V.
            const int last = loader.slot(p, row, pages, lo), last_head = kv_head;
            if (C::Q_BUFFERS > 1) advance();
            loader.load(p, s, false, last_head, last);
            if (C::Q_BUFFERS == 1) advance();
        }
        if constexpr (C::E4M3) loader.finish(s);
        if (C::GATHER) msgl__copy_async_wait_all();
        if (threadIdx.x == 0) msgl__fa_end_of_work(p.plan);
    }
};

#endif
