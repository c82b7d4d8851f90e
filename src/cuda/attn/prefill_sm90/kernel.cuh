// SPDX-License-Identifier: Apache-2.0
//
// Prefill attention for Hopper: a persistent CTA of one loading and two computing warpgroups.
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_KERNEL_CUH
#define MSGL_CUDA_ATTN_PREFILL_SM90_KERNEL_CUH

#include "cuda/attn/prefill_sm90/consumer.cuh"
#include "cuda/attn/prefill_sm90/producer.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

template <class C>
static __device__ __forceinline__ void msgl__fa_init_barriers(msgl_fa_prefill_smem<C> &s,
                                                              int loaders)
{
    const int warps = 4 * C::CONSUMERS;
    for (int i = 0; i < C::Q_BUFFERS; i++) {
        msgl__mbarrier_init(msgl__shared_address(&s.work_full[i]), MSGL_FA_WORK_WORDS);
        msgl__mbarrier_init(msgl__shared_address(&s.q_full[i]), 1);
        msgl__mbarrier_init(msgl__shared_address(&s.q_empty[i]), 32 * (warps + loaders));
    }
    for (int i = 0; i < C::STAGES; i++) {
        msgl__mbarrier_init(msgl__shared_address(&s.kv_full[i]), C::GATHER ? 128 : loaders);
        msgl__mbarrier_init(msgl__shared_address(&s.kv_empty[i]), warps);
    }
    msgl__mbarrier_init_done();
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    msgl__fa_prefill_kernel(const __grid_constant__ msgl_fa_prefill_params p)
{
    extern __shared__ unsigned char raw[];
    const uint32_t base = msgl__shared_address(raw);
    msgl_fa_prefill_smem<C> &s =
        *(msgl_fa_prefill_smem<C> *)(raw + ((base + 1023) / 1024 * 1024 - base));
    // Warps that load K and V: TMA needs no more than a tile has boxes.
    const int loaders = C::GATHER ? 4 : min(4, C::N / p.box_rows);
    if (threadIdx.x == 0) {
        msgl__fa_init_barriers<C>(s, loaders);
        msgl__tensor_prefetch(&p.q_map);
        if (!C::E4M3) msgl__tensor_prefetch(&p.k_map);
        if (!C::E4M3) msgl__tensor_prefetch(&p.v_map);
    }
    __syncthreads();
    msgl__pdl_trigger();
    if (!p.second) msgl__pdl_wait();
    if (threadIdx.x < 128) {
        msgl__registers_down<C::PRODUCER_REGISTERS>();
        if constexpr (C::E4M3) {
            msgl_fa_producer<C, msgl_fa_e4m3_loader<C>>(p, s).run();
        } else if constexpr (C::GATHER) {
            msgl_fa_producer<C, msgl_fa_rows_loader<C>>(p, s).run();
        } else if (threadIdx.x < loaders * 32) {
            msgl_fa_producer<C, msgl_fa_boxes<C>>(p, s).run();
        }
    } else {
        msgl__registers_up<C::CONSUMER_REGISTERS>();
        msgl__fa_consume<C>(p, s);
    }
    if (p.second) msgl__pdl_wait(); // who waits for this kernel waits for the first one too
}

#endif
