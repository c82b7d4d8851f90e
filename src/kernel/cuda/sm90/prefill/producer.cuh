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
    s.work[buffer] = w;
    msgl__mbar_expect(bar, C::BLOCKS * rows * 128);
#pragma unroll
    for (int b = 0; b < C::BLOCKS; b++)
        msgl__tma_load(dst + b * C::M * 128, &p.q_map, bar, b * 64, w.head * p.pack, w.tile.row0);
}

// First slots of a tile's boxes, box i in lane i; boxes without a key get a slot behind the pool,
// which TMA reads as zeros.
template <class C>
static __device__ __forceinline__ int msgl__fa_box_slot(const msgl_fa_prefill_params &p,
                                                        const int32_t *row, int klen, int n)
{
    const int lane = threadIdx.x & 31, pos = n * C::N + lane * p.box_rows;
    return lane * p.box_rows < C::N && pos < klen ? row[pos] : p.num_slots;
}

template <class C>
static __device__ __forceinline__ void
msgl__fa_load_boxes(const msgl_fa_prefill_params &p, msgl_fa_prefill_smem<C> &s,
                    msgl_fa_ring<C::STAGES> &ring, const CUtensorMap *map, int kv_head, int slot)
{
    const int lane = threadIdx.x & 31;
    const uint32_t bar = msgl__smem(&s.kv_full[ring.at]);
    uint32_t dst = msgl__smem(s.kv[ring.at]);
    msgl__mbar_wait(msgl__smem(&s.kv_empty[ring.at]), ring.parity ^ 1);
    if (lane == 0) msgl__mbar_expect(bar, C::KV_BYTES);
    for (int i = 0; i * p.box_rows < C::N; i++) {
        const int from = __shfl_sync(0xffffffff, slot, i);
        if (lane == 0) {
#pragma unroll
            for (int b = 0; b < C::BLOCKS; b++)
                msgl__tma_load(dst + b * C::N * 128, map, bar, b * 64, kv_head, from);
        }
        dst += p.box_rows * 128;
    }
    ring.next();
}

template <class C>
static __device__ void msgl__fa_produce_boxes(const msgl_fa_prefill_params &p,
                                              msgl_fa_prefill_smem<C> &s)
{
    const int lane = threadIdx.x & 31;
    msgl_fa_ring<C::STAGES> ring;
    msgl_fa_ring<C::Q_BUFFERS> q;
    const int num_work = p.plan->num_work;
    msgl_fa_cursor cursor = {(const msgl_fa_prefill_section *)(p.plan + 1)};
    cursor.tiles = (const msgl_fa_prefill_tile *)(cursor.sections + p.plan->num_sections + 1);
    for (int work = blockIdx.x; work < num_work; q.next()) {
        int next = 0;
        if (lane == 0) next = (int)(atomicAdd(&p.plan->next, 1) + gridDim.x);
        const msgl_fa_prefill_work w = msgl__fa_find_work(cursor, work);
        const int32_t *row = p.table + w.tile.table_row * p.table_stride;
        const int kv_head = w.head / p.heads_per_kv;
        const int lo = w.tile.key_lo / C::N;
        int n = (w.tile.key_hi - 1) / C::N;
        int slot = msgl__fa_box_slot<C>(p, row, w.tile.klen, n);
        int below = n > lo ? msgl__fa_box_slot<C>(p, row, w.tile.klen, n - 1) : 0;
        msgl__mbar_wait(msgl__smem(&s.q_empty[q.at]), q.parity ^ 1);
        if (lane == 0) msgl__fa_load_q(p, s, q.at, w);
        msgl__fa_load_boxes<C>(p, s, ring, &p.k_map, kv_head, slot);
        for (; n > lo; n--) {
            const int ahead = n - 1 > lo ? msgl__fa_box_slot<C>(p, row, w.tile.klen, n - 2) : 0;
            msgl__fa_load_boxes<C>(p, s, ring, &p.k_map, kv_head, below);
            msgl__fa_load_boxes<C>(p, s, ring, &p.v_map, kv_head, slot);
            slot = below;
            below = ahead;
        }
        msgl__fa_load_boxes<C>(p, s, ring, &p.v_map, kv_head, slot);
        work = __shfl_sync(0xffffffff, next, 0);
    }
    msgl__mbar_wait(msgl__smem(&s.q_empty[q.at]), q.parity ^ 1);
    if (lane == 0) {
        s.work[q.at].tile.tokens = 0;
        msgl__mbar_arrive(msgl__smem(&s.q_full[q.at]));
        msgl__fa_end_of_work(p.plan);
    }
}

// cp.async: every warp of the producer's warpgroup loads N / 4 rows of each tile.
template <class C> struct msgl_fa_gather {
    static constexpr int ROWS = C::N / 4;
    msgl_fa_ring<C::STAGES> ring;
    int pending = -1; // stage whose copies are issued but not announced

    // Announces the pending stage; its copies are the last but `Later` groups.
    template <int Later> __device__ __forceinline__ void announce(msgl_fa_prefill_smem<C> &s)
    {
        if (pending < 0) return;
        msgl__cp_async_wait<Later>();
        msgl__async_proxy_fence();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) msgl__mbar_arrive(msgl__smem(&s.kv_full[pending]));
    }

    // Slot of row warp * ROWS + lane of tile n; -1: no key there.
    static __device__ __forceinline__ int slot(const int32_t *row, int klen, int n)
    {
        const int lane = threadIdx.x & 31;
        const int pos = n * C::N + (threadIdx.x >> 5) * ROWS + lane;
        return lane < ROWS && pos < klen ? row[pos] : -1;
    }

    __device__ __forceinline__ void load(const msgl_fa_prefill_params &p,
                                         msgl_fa_prefill_smem<C> &s, const void *base, int slots)
    {
        const int lane = threadIdx.x & 31, chunk = lane & 7;
        const int row0 = (threadIdx.x >> 5) * ROWS + (lane >> 3);
        msgl__mbar_wait(msgl__smem(&s.kv_empty[ring.at]), ring.parity ^ 1);
        const uint32_t dst = msgl__smem(s.kv[ring.at]);
        const typename C::T *from = (const typename C::T *)base + chunk * 8;
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
            const int slot = __shfl_sync(0xffffffff, slots, i * 4 + (lane >> 3));
            const typename C::T *src = from + slot * p.ld_kv;
            const int row = row0 + i * 4;
            const uint32_t to = dst + row * 128 + ((chunk ^ (row & 7)) << 4);
#pragma unroll
            for (int b = 0; b < C::BLOCKS; b++) {
                const bool valid = slot >= 0 && b * 64 + chunk * 8 < p.head_dim;
                msgl__cp_async16(to + b * C::N * 128, valid ? src + b * 64 : base, valid);
            }
        }
        msgl__cp_async_commit();
        announce<1>(s);
        pending = ring.at;
        ring.next();
    }
};

template <class C>
static __device__ void msgl__fa_produce_rows(const msgl_fa_prefill_params &p,
                                             msgl_fa_prefill_smem<C> &s)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    msgl_fa_gather<C> g;
    msgl_fa_ring<C::Q_BUFFERS> q;
    const int num_work = p.plan->num_work;
    msgl_fa_cursor cursor = {(const msgl_fa_prefill_section *)(p.plan + 1)};
    cursor.tiles = (const msgl_fa_prefill_tile *)(cursor.sections + p.plan->num_sections + 1);
    int work = blockIdx.x;
    for (;; q.next()) {
        // Warp 0 takes the item; the others learn of it with Q, as the consumers do.
        msgl_fa_prefill_work w;
        int next = 0;
        if (warp == 0) {
            if (work < num_work) {
                if (lane == 0) next = (int)(atomicAdd(&p.plan->next, 1) + gridDim.x);
                w = msgl__fa_find_work(cursor, work);
            } else {
                w.tile.tokens = 0;
            }
            msgl__mbar_wait(msgl__smem(&s.q_empty[q.at]), q.parity ^ 1);
            if (lane == 0) {
                if (w.tile.tokens) {
                    msgl__fa_load_q(p, s, q.at, w);
                } else {
                    s.work[q.at].tile.tokens = 0;
                    msgl__mbar_arrive(msgl__smem(&s.q_full[q.at]));
                    msgl__fa_end_of_work(p.plan);
                }
            }
        } else {
            msgl__mbar_wait(msgl__smem(&s.q_full[q.at]), q.parity);
            w = s.work[q.at];
            __syncwarp();
            if (lane == 0) msgl__mbar_arrive(msgl__smem(&s.q_empty[q.at]));
        }
        if (w.tile.tokens == 0) break;
        const int32_t *row = p.table + w.tile.table_row * p.table_stride;
        const int64_t head_at = (int64_t)(w.head / p.heads_per_kv) * p.head_dim;
        const typename C::T *k = (const typename C::T *)p.k + head_at;
        const typename C::T *v = (const typename C::T *)p.v + head_at;
        const int lo = w.tile.key_lo / C::N, klen = w.tile.klen;
        int n = (w.tile.key_hi - 1) / C::N;
        int slots = g.slot(row, klen, n);
        int below = n > lo ? g.slot(row, klen, n - 1) : 0;
        g.load(p, s, k, slots);
        for (; n > lo; n--) {
            const int ahead = n - 1 > lo ? g.slot(row, klen, n - 2) : 0;
            g.load(p, s, k, below);
            g.load(p, s, v, slots);
            slots = below;
            below = ahead;
        }
        g.load(p, s, v, slots);
        work = __shfl_sync(0xffffffff, next, 0);
    }
    g.template announce<0>(s);
}

#endif
