// SPDX-License-Identifier: Apache-2.0
//
// The computing side: each of two warpgroups holds 64 rows of a tile, with scores, probabilities
// and output in registers. While one warpgroup's matrix products run, the other does its softmax,
// and within a warpgroup the next scores are already being computed while the last probabilities
// meet V.
//
// A row's result depends on its own keys only: tiles of keys start at multiples of N, a tile
// without a visible key leaves maximum, sum and output exactly as they were.
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_CONSUMER_CUH
#define MSGL_CUDA_ATTN_PREFILL_SM90_CONSUMER_CUH

#include "cuda/attn/fragment_sm90.cuh"
#include "cuda/attn/prefill_sm90/config.cuh"
#include "cuda/attn/prefill_sm90/dual.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/e4m3.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/wgmma.cuh"

enum { MSGL_FA_BAR_GROUP = 1 }; // named barriers, + warpgroup

template <class C> struct msgl_fa_consumer {
    const msgl_fa_prefill_params &p;
    msgl_fa_prefill_smem<C> &smem;
    const int group; // warpgroup: 0 or 1
    const int row;   // this thread's first row of the tile
    msgl_fa_ring<C::STAGES> ring;
    msgl_fa_rows<C::N> rows;
    msgl_fa_ring<C::Q_BUFFERS> q;
    // Of the current tile of queries:
    int row0, tokens, head; // where its results go
    int pos[2];             // positions of the two rows
    int first_pos, top_pos; // of the warpgroup
    int tail, tail_end;     // keys behind the request's end that V's last box brought along
    // Dual, of the current item:
    int key_lo;        // its first key
    bool again, holds; // it goes on with the rows of the one before; the next one does

    __device__ __forceinline__ void release(int stage)
    {
        __syncwarp();
        if ((threadIdx.x & 31) == 0)
            msgl__mbarrier_arrive(msgl__shared_address(&smem.kv_empty[stage]));
    }

    __device__ __forceinline__ void wait_full() const
    {
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&smem.kv_full[ring.at]),
                                             ring.parity);
        // cp.async wrote through the generic proxy. The fence is on this side since the producer
        // would wait in it for its later copies too.
        if (C::GATHER && !C::E4M3) msgl__fence_async_proxy();
    }

    // The warp's 16 rows of Q as A operands, if they stay in registers.
    __device__ __forceinline__ void load_q(uint32_t (&a)[C::HD / 16][4], const unsigned char *q)
    {
        if (!C::Q_REGISTERS) return;
        const int lane = threadIdx.x & 31,
                  r = group * 64 + (threadIdx.x / 32 & 3) * 16 + (lane & 15);
        const uint32_t at = msgl__shared_address(q) + r * 128;
#pragma unroll
        for (int k = 0; k < C::HD / 16; k++) {
            msgl__load_matrix_4(
                at + k / 4 * C::M * 128 + ((k % 4 * 2 + (lane >> 4)) ^ (r & 7)) * 16, a[k]);
#pragma unroll
            for (int i = 0; C::E4M3 && i < 4; i++) a[k][i] = msgl__bf16_to_f16(a[k][i]);
        }
    }

    __device__ __forceinline__ void scores(float (&s)[C::N / 2], uint32_t (&q)[C::HD / 16][4],
                                           uint32_t q_at)
    {
        const uint64_t a = msgl__wgmma_operand(q_at + group * 64 * 128, 16);
        const uint64_t b = msgl__wgmma_operand(msgl__shared_address(smem.kv[ring.at]), 16);
        msgl__wgmma_fence();
#pragma unroll
        for (int k = 0; k < C::HD / 16; k++) {
            const uint64_t bk = b + (k / 4 * C::N * 128 + k % 4 * 32) / 16;
            if constexpr (C::Q_REGISTERS)
                msgl__wgmma_registers<false>(s, q[k], bk, k > 0, typename C::Product());
            else
                msgl__wgmma(s, a + (k / 4 * C::M * 128 + k % 4 * 32) / 16, bk, k > 0,
                            typename C::Product());
        }
        msgl__wgmma_commit();
    }

    __device__ __forceinline__ void values(float (&o)[C::HD_V / 2], uint32_t (&prob)[C::N / 16][4],
                                           int add)
    {
        const uint64_t b = msgl__wgmma_operand(msgl__shared_address(smem.kv[ring.at]), C::N * 128);
        msgl__wgmma_fence();
#pragma unroll
        for (int k = 0; k < C::N / 16; k++)
            msgl__wgmma_registers<true>(o, prob[k], b + k * 2048 / 16, k > 0 ? 1 : add,
                                        typename C::Product());
        msgl__wgmma_commit();
    }

    // Rows of V behind the request's end may hold anything, also NaN, which a probability of 0
    // does not cancel. Both warpgroups write the same zeros, each before its own use.
    __device__ __forceinline__ void clear_tail(int n)
    {
        if (C::GATHER || tail_end <= tail || n != tail / C::N) return;
        const uint32_t at = msgl__shared_address(smem.kv[ring.at]);
        const int first = tail - n * C::N, chunks = (tail_end - tail) * 8;
        for (int i = threadIdx.x & 127; i < chunks * C::V_BLOCKS; i += 128) {
            const int b = i / chunks, c = i - b * chunks;
            msgl__write_shared(at + (b * C::N + first) * 128 + c * 16, make_uint4(0, 0, 0, 0));
        }
        msgl__fence_async_proxy();
        msgl__named_barrier_sync(MSGL_FA_BAR_GROUP + group, 128);
    }

    __device__ __forceinline__ void mask(float (&s)[C::N / 2], int n)
    {
        const int base = n * C::N;
        if (C::SOFTCAP) {
#pragma unroll
            for (int e = 0; e < C::N / 2; e++)
                s[e] = 1.f - 2.f * msgl__rcp(msgl__exp2(s[e] * p.cap_scale) + 1.f);
        }
        const int lane_key = base + 2 * (threadIdx.x & 3);
        if (base + C::N - 1 > first_pos) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int last = pos[h] - lane_key;
#pragma unroll
                for (int j = 0; j < C::N / 8; j++) {
                    if (8 * j > last) s[4 * j + 2 * h] = -INFINITY;
                    if (8 * j + 1 > last) s[4 * j + 2 * h + 1] = -INFINITY;
                }
            }
        }
        if constexpr (C::DUAL) {
            if (base >= key_lo) return;
            const int first = key_lo - lane_key;
#pragma unroll
            for (int j = 0; j < C::N / 8; j++) {
                if (8 * j < first) s[4 * j] = s[4 * j + 2] = -INFINITY;
                if (8 * j + 1 < first) s[4 * j + 1] = s[4 * j + 3] = -INFINITY;
            }
        } else if (p.window >= 0 && base < top_pos - p.window) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int first = pos[h] - p.window - lane_key;
#pragma unroll
                for (int j = 0; j < C::N / 8; j++) {
                    if (8 * j < first) s[4 * j + 2 * h] = -INFINITY;
                    if (8 * j + 1 < first) s[4 * j + 2 * h + 1] = -INFINITY;
                }
            }
        }
    }

    // Normalises and stores the thread's rows: a quad's four threads exchange words so that each
    // stores 16 bytes of 64 consecutive ones.
    __device__ __forceinline__ void store(float (&o)[C::HD_V / 2])
    {
        const int t = threadIdx.x & 3;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = rows.total(h);
            const int r = row + 8 * h, token = token_of(r);
            const int q_head = head * p.pack + (r - token * p.pack);
            float all = sum;
            if (p.sinks) all += msgl__attn_sink(p.sinks[q_head], rows.max[h] * p.log2_scale);
            const float inverse = sum > 0 ? p.out_scale * msgl__rcp(all) : 0;
            // (A branch around the stores would have the next scores wait.)
            const bool valid = token < tokens && !(C::DUAL && holds);
            const int64_t at = row0 + token;
            typename C::T *out = (typename C::T *)p.out + at * p.ld_out + q_head * p.head_dim;
            msgl__fa_store_row(out, o, h, inverse, valid, p.head_dim);
            if (p.lse && valid && t == 0)
                p.lse[at * p.num_q_heads + q_head] =
                    sum > 0 ? rows.max[h] * p.ln_scale + logf(sum) : -INFINITY;
        }
    }

    // row / pack
    __device__ __forceinline__ int token_of(int r) const
    {
        return r * p.pack_inverse >> 16;
    }

    __device__ __forceinline__ void set_rows(const msgl_fa_prefill_work &w)
    {
        const msgl_fa_prefill_tile &t = w.tile;
        row0 = t.row0;
        tokens = t.tokens;
        head = w.head;
        pos[0] = t.pos0 + token_of(row);
        pos[1] = t.pos0 + token_of(row + 8);
        first_pos = t.pos0 + token_of(group * 64);
        top_pos = t.pos0 + min(tokens - 1, token_of(group * 64 + 63));
        tail = t.klen;
        tail_end = min((t.klen + p.box_rows - 1) & -p.box_rows, (t.klen + C::N - 1) & -C::N);
        if constexpr (C::DUAL) {
            key_lo = t.key_lo;
            again = (t.turn & MSGL_FA_DUAL_QUERY) != 0;
            holds = (t.turn & MSGL_FA_DUAL_MORE) != 0;
            if (!again) {
                rows.begin();
            } else { // all rows see all of the item's keys
                pos[0] = pos[1] = first_pos = t.key_hi - 1;
            }
        } else {
            rows.begin();
        }
    }

    // Waits for the next tile of queries; false: there is none.
    __device__ __forceinline__ bool wait_tile()
    {
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&smem.work_full[q.at]), q.parity);
        if (smem.work[q.at].tile.tokens == 0) return false;
        msgl__mbarrier_wait<MSGL_FA_WAIT_NS>(msgl__shared_address(&smem.q_full[q.at]), q.parity);
        return true;
    }

    __device__ __forceinline__ void release_tile()
    {
        msgl__mbarrier_arrive(msgl__shared_address(&smem.q_empty[q.at]));
        q.next();
    }

    // All tiles, one after the other: a tile's first scores are computed while the one before is
    // stored.
    __device__ __forceinline__ void run()
    {
        float s[C::N / 2], o[C::HD_V / 2], scale[2];
        uint32_t prob[C::N / 16][4], qa[C::HD / 16][4];
        if (!wait_tile()) return;
        load_q(qa, smem.q[q.at]);
        wait_full();
        scores(s, qa, msgl__shared_address(smem.q[q.at]));
        msgl__wgmma_wait<0>(s);
        for (;;) {
            const msgl_fa_prefill_work &w = smem.work[q.at];
            set_rows(w);
            const int lo = w.tile.key_lo / C::N;
            int n = (w.tile.key_hi - 1) / C::N;
            release(ring.at);
            ring.next();
            mask(s, n);
            rows.softmax(s, scale, p.log2_scale);
            if (C::DUAL && again) msgl__fa_rescale(o, scale);
            msgl__fa_to_operand<typename C::Product>(s, prob);
            int add = C::DUAL && again;
            wait_full(); // K(n - 1), or V(n) if there is none
            for (; n > lo; n--) {
                const int k_stage = ring.at;
                scores(s, qa, msgl__shared_address(smem.q[q.at]));
                ring.next();
                wait_full();
                clear_tail(n);
                values(o, prob, add);
                add = 1;
                msgl__wgmma_wait<1>(s);
                release(k_stage);
                mask(s, n - 1);
                rows.softmax(s, scale, p.log2_scale);
                // Waiting for the next stage here keeps the compiler from waiting for the products
                // with V before the softmax: it moves that wait up as far as the block goes.
                const int v_stage = ring.at;
                ring.next();
                wait_full();
                msgl__wgmma_wait<0>(o);
                release(v_stage);
                msgl__fa_rescale(o, scale);
                msgl__fa_to_operand<typename C::Product>(s, prob);
            }
            release_tile();
            const int v_stage = ring.at;
            clear_tail(n);
            if (!wait_tile()) {
                values(o, prob, add);
                msgl__wgmma_wait<0>(o);
                release(v_stage);
                store(o);
                return;
            }
            load_q(qa, smem.q[q.at]);
            values(o, prob, add);
            ring.next();
            wait_full();
            scores(s, qa, msgl__shared_address(smem.q[q.at]));
            msgl__wgmma_wait<1>(o);
            release(v_stage);
            store(o);
            msgl__wgmma_wait<0>(s);
        }
    }
};

template <class C>
static __device__ __forceinline__ void msgl__fa_consume(const msgl_fa_prefill_params &p,
                                                        msgl_fa_prefill_smem<C> &s)
{
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 & 3;
    const int row = group * 64 + warp * 16 + (threadIdx.x & 31) / 4;
    msgl_fa_consumer<C> c = {p, s, group, row};
    c.run();
}

#endif
