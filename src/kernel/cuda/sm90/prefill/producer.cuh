// SPDX-License-Identifier: Apache-2.0
//
// The loading side: takes work items in the plan's order, loads their Q and, tile by tile from the
// last key to the first, K and V into one ring in the order in which the consumers need them:
// K(n), K(n-1), V(n), K(n-2), V(n-1), ..., V(first).
#ifndef MSGL_KERNEL_CUDA_SM90_PREFILL_PRODUCER_CUH
#define MSGL_KERNEL_CUDA_SM90_PREFILL_PRODUCER_CUH

#include "kernel/cuda/sm90/prefill/config.cuh"
#include "kernel/cuda/sm90/prefill/ptx.cuh"

// Every CTA walks sections upwards, so each looks on from where it was.
struct msgl_fa_cursor {
    const msgl_fa_prefill_section *sections;
    const msgl_fa_prefill_tile *tiles;
    int at;
};

static __device__ __forceinline__ msgl_fa_prefill_work msgl__fa_find_work(msgl_fa_cursor &c,
                                                                          int work)
{
    while (work >= c.sections[c.at + 1].work0) c.at++;
    const msgl_fa_prefill_section s = c.sections[c.at];
    const int i = work - s.work0, t = i / s.heads;
    msgl_fa_prefill_work w;
    w.head = s.head0 + (i - t * s.heads);
    const int4 *from = (const int4 *)&c.tiles[s.tile0 + t];
    ((int4 *)&w.tile)[0] = from[0];
    ((int4 *)&w.tile)[1] = from[1];
    return w;
}

// The last CTA to finish leaves the counters as the next launch wants them.
static __device__ __forceinline__ void msgl__fa_end_of_work(msgl_fa_prefill_plan *plan)
{
    __threadfence();
    if (atomicAdd(&plan->done, 1) == gridDim.x - 1) {
        plan->next = 0;
        plan->done = 0;
    }
}

template <class C>
static __device__ __forceinline__ void
msgl__fa_load_q(const msgl_fa_prefill_params &p, msgl_fa_prefill_smem<C> &s, int buffer,
                const msgl_fa_prefill_work &w)
{
    const uint32_t bar = msgl__smem(&s.q_full[buffer]), dst = msgl__smem(s.q[buffer]);
    const int rows = C::M / p.pack * p.pack;
    msgl__mbar_expect(bar, C::BLOCKS * rows * 128);
#pragma unroll
    for (int b = 0; b < C::BLOCKS; b++)
        msgl__tma_load(dst + b * C::M * 128, &p.q_map, bar, b * 64, w.head * p.pack, w.tile.row0);
}

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

    // First slot of this warp's box `lane` in tile n; a box without a key gets one behind the pool,
    // which TMA reads as zeros.
    __device__ __forceinline__ int slot(const msgl_fa_prefill_params &p, const int32_t *row,
                                        int klen, int n) const
    {
        const int lane = threadIdx.x & 31, pos = n * C::N + (first + lane) * rows;
        return lane < count && pos < klen ? row[pos] : p.num_slots;
    }

    __device__ __forceinline__ void load(const msgl_fa_prefill_params &p,
                                         msgl_fa_prefill_smem<C> &s, bool is_k, int kv_head,
                                         int slots)
    {
        const int lane = threadIdx.x & 31;
        const CUtensorMap *map = is_k ? &p.k_map : &p.v_map;
        const uint32_t bar = msgl__smem(&s.kv_full[ring.at]);
        uint32_t dst = msgl__smem(s.kv[ring.at]) + first * rows * 128;
        msgl__mbar_wait(msgl__smem(&s.kv_empty[ring.at]), ring.parity ^ 1);
        if (lane == 0) msgl__mbar_expect(bar, count * rows * 128 * C::BLOCKS);
        for (int i = 0; i < count; i++) {
            const int from = __shfl_sync(0xffffffff, slots, i);
            if (lane == 0) {
#pragma unroll
                for (int b = 0; b < C::BLOCKS; b++)
                    msgl__tma_load(dst + b * C::N * 128, map, bar, b * 64, kv_head, from);
            }
            dst += rows * 128;
        }
        ring.next();
    }
};

// cp.async: every warp of the producer's warpgroup loads N / 4 rows of each tile; a stage is full
// when the copies of all 128 threads have arrived.
template <class C> struct msgl_fa_rows_loader {
    static constexpr int ROWS = C::N / 4;
    msgl_fa_ring<C::STAGES> ring;

    __device__ __forceinline__ msgl_fa_rows_loader(const msgl_fa_prefill_params &)
    {
    }

    // Slot of row warp * ROWS + lane of tile n; -1: no key there.
    __device__ __forceinline__ int slot(const msgl_fa_prefill_params &, const int32_t *row,
                                        int klen, int n) const
    {
        const int lane = threadIdx.x & 31;
        const int pos = n * C::N + (threadIdx.x >> 5) * ROWS + lane;
        return lane < ROWS && pos < klen ? row[pos] : -1;
    }

    __device__ __forceinline__ void load(const msgl_fa_prefill_params &p,
                                         msgl_fa_prefill_smem<C> &s, bool is_k, int kv_head,
                                         int slots)
    {
        const int lane = threadIdx.x & 31, chunk = lane & 7;
        const int row0 = (threadIdx.x >> 5) * ROWS + (lane >> 3);
        int from[ROWS / 4];
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++)
            from[i] = __shfl_sync(0xffffffff, slots, i * 4 + (lane >> 3));
        const char *column = (const char *)(is_k ? p.k : p.v) + kv_head * p.head_dim * 2 + chunk * 16;
        // Rows are 4 apart, so the swizzle alternates between two columns.
        const uint32_t dst = msgl__smem(s.kv[ring.at]) + row0 * 128;
        const uint32_t even = (chunk ^ (row0 & 7)) << 4, odd = even ^ 64;
        msgl__mbar_wait(msgl__smem(&s.kv_empty[ring.at]), ring.parity ^ 1);
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
            const char *src = column + (int64_t)max(from[i], 0) * p.kv_row_bytes;
            const uint32_t to = dst + i * 512 + (i & 1 ? odd : even);
#pragma unroll
            for (int b = 0; b < C::BLOCKS; b++) {
                const bool inside = b * 64 + chunk * 8 < p.head_dim;
                msgl__cp_async16(to + b * C::N * 128, inside ? src + b * 128 : src,
                                 from[i] >= 0 && inside);
            }
        }
        msgl__cp_async_arrive(msgl__smem(&s.kv_full[ring.at]));
        ring.next();
    }
};

template <class C, class Loader>
static __device__ __forceinline__ void msgl__fa_produce(const msgl_fa_prefill_params &p,
                                                        msgl_fa_prefill_smem<C> &s)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    Loader load(p);
    msgl_fa_ring<C::Q_BUFFERS> q;
    const int num_work = p.plan->num_work;
    msgl_fa_cursor cursor = {(const msgl_fa_prefill_section *)(p.plan + 1)};
    cursor.tiles = (const msgl_fa_prefill_tile *)(cursor.sections + p.plan->num_sections + 1);
    int work = blockIdx.x;
    for (;; q.next()) {
        // Warp 0 takes the item and tells the others.
        msgl_fa_prefill_work w;
        int next = 0;
        if (warp == 0) {
            w.tile.tokens = 0;
            if (work < num_work) {
                if (lane == 0) next = (int)(atomicAdd(&p.plan->next, 1) + gridDim.x);
                w = msgl__fa_find_work(cursor, work);
            }
            msgl__mbar_wait(msgl__smem(&s.q_empty[q.at]), q.parity ^ 1);
            if (lane == 0) {
                s.work[q.at] = w;
                msgl__mbar_arrive(msgl__smem(&s.work_full[q.at]));
                if (w.tile.tokens) msgl__fa_load_q(p, s, q.at, w);
                else msgl__mbar_arrive(msgl__smem(&s.q_full[q.at]));
            }
        } else {
            msgl__mbar_wait(msgl__smem(&s.work_full[q.at]), q.parity);
            w = s.work[q.at];
            __syncwarp();
            if (lane == 0) msgl__mbar_arrive(msgl__smem(&s.q_empty[q.at]));
        }
        if (w.tile.tokens == 0) break;
        const int32_t *row = p.table + w.tile.table_row * p.table_stride;
        const int kv_head = w.head / p.heads_per_kv;
        const int lo = w.tile.key_lo / C::N, klen = w.tile.klen;
        int n = (w.tile.key_hi - 1) / C::N;
        int slots = load.slot(p, row, klen, n);
        int below = n > lo ? load.slot(p, row, klen, n - 1) : 0;
        load.load(p, s, true, kv_head, slots);
        for (; n > lo; n--) {
            const int ahead = n - 1 > lo ? load.slot(p, row, klen, n - 2) : 0;
            load.load(p, s, true, kv_head, below);
            load.load(p, s, false, kv_head, slots);
            slots = below;
            below = ahead;
        }
        load.load(p, s, false, kv_head, slots);
        work = __shfl_sync(0xffffffff, next, 0);
    }
    if (C::GATHER) msgl__cp_async_wait_all();
    if (threadIdx.x == 0) msgl__fa_end_of_work(p.plan);
}

#endif
