// SPDX-License-Identifier: Apache-2.0
//
// MLA decode for Hopper: a persistent block of one loading and two computing warpgroups per SM, its
// work shared out by a plan on the device, splits of requests merged in the same launch. Body of
// the instantiation files.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_KERNEL_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_KERNEL_CUH

#include <type_traits>

#include "cuda/attn/mla_sm90/codes_consumer.cuh"
#include "cuda/attn/mla_sm90/consumer.cuh"
#include "cuda/attn/mla_sm90/launch.cuh"
#include "cuda/attn/mla_sm90/producer.cuh"
#include "cuda/attn/mla_sm90/rows16.cuh"
#include "cuda/launch.cuh"

template <msgl_mla_mode MODE, bool ROWS16>
static __device__ __forceinline__ void msgl__mla_init_barriers(msgl_mla_smem &s, bool q_box)
{
    const uint32_t come = MODE == MSGL_MLA_GATHER ? 64 : 1; // a quarter's
    const uint32_t full = ROWS16 ? MSGL_MLA_QUARTERS * come : come;
    const uint32_t empty = ROWS16 || MODE == MSGL_MLA_PAIRS ? 8 : 4;
    msgl__mbarrier_init(msgl__shared_address(&s.q_full), q_box ? 4 : 128);
    msgl__mbarrier_init(msgl__shared_address(&s.q_empty), 8);
    msgl__mbarrier_init(msgl__shared_address(&s.left), 8);
    msgl__mbarrier_init(msgl__shared_address(&s.merge), 2);
    for (int stage = 0; stage < MSGL_MLA_CODES_STAGES; stage++) {
        for (int quarter = 0; quarter < MSGL_MLA_QUARTERS; quarter++) {
            msgl__mbarrier_init(msgl__shared_address(&s.full[stage][quarter]), full);
            msgl__mbarrier_init(msgl__shared_address(&s.empty[stage][quarter]), empty);
        }
    }
    msgl__mbarrier_init_done();
}

// Query rows that no request has are zero for the whole launch.
static __device__ __forceinline__ void msgl__mla_clear_q(msgl_mla_smem &s, int rows)
{
    for (int i = rows * 8 + (int)threadIdx.x; i < MSGL_MLA_TILE * 8; i += MSGL_MLA_THREADS) {
        for (int c = 0; c < MSGL_MLA_CHUNKS; c++)
            msgl__write_shared(msgl__shared_address(s.q) + c * MSGL_MLA_CHUNK + i * 16,
                               make_uint4(0, 0, 0, 0));
    }
    msgl__fence_async_proxy();
}

template <msgl_mla_mode MODE, bool E4M3>
static __device__ __forceinline__ void msgl__mla_consume(const msgl_mla_params &p, msgl_mla_smem &s,
                                                         int range, int row_tile)
{
    using left =
        std::conditional_t<E4M3, msgl_mla_codes_consumer<0, MODE>, msgl_mla_consumer<0, MODE>>;
    using right =
        std::conditional_t<E4M3, msgl_mla_codes_consumer<1, MODE>, msgl_mla_consumer<1, MODE>>;
    if (threadIdx.x < 256)
        left(p, s, range, row_tile).run();
    else
        right(p, s, range, row_tile).run();
}

template <msgl_mla_mode MODE, bool E4M3, bool ROWS16>
__global__ void __launch_bounds__(MSGL_MLA_THREADS, 1)
    msgl__mla_kernel(const __grid_constant__ msgl_mla_params p)
{
    extern __shared__ unsigned char raw[];
    const uint32_t base = msgl__shared_address(raw);
    msgl_mla_smem &s = *(msgl_mla_smem *)(raw + ((base + 1023) / 1024 * 1024 - base));
    const int range = blockIdx.x / p.row_tiles, row_tile = blockIdx.x - range * p.row_tiles;
    if (threadIdx.x == 0) {
        msgl__mla_init_barriers<MODE, ROWS16>(s, p.q_box_rows > 0);
        msgl__tensor_prefetch(&p.kv_map);
    }
    msgl__mla_clear_q(s, p.rows - row_tile * MSGL_MLA_TILE);
    if (MODE == MSGL_MLA_PAIRS)
        msgl__cluster_sync();
    else
        __syncthreads();
    msgl__pdl_trigger();
    if (threadIdx.x < 128) {
        if constexpr (ROWS16) {
            msgl__registers_down<MSGL_MLA_ROWS16_LOADER_REGISTERS>();
            msgl__mla_load_range(msgl_mla_rows16_producer<MODE>(p, s), range);
        } else if constexpr (E4M3) {
            msgl__registers_down<MSGL_MLA_CODES_LOADER_REGISTERS>();
            msgl__mla_load_range(msgl_mla_codes_producer<MODE>(p, s, row_tile), range);
        } else {
            msgl__registers_down<MSGL_MLA_LOADER_REGISTERS>();
            msgl__mla_load_range(msgl_mla_producer<MODE, false>(p, s, row_tile), range);
        }
        __syncwarp();
        if (MODE == MSGL_MLA_PAIRS) msgl__cluster_arrive_done();
        if (threadIdx.x < 32) msgl__mla_meet(p, s, range, row_tile);
    } else {
        constexpr int REGISTERS = ROWS16 ? MSGL_MLA_ROWS16_COMPUTE_REGISTERS
                                  : E4M3 ? MSGL_MLA_CODES_COMPUTE_REGISTERS
                                         : MSGL_MLA_COMPUTE_REGISTERS;
        msgl__registers_up<REGISTERS>();
        msgl__pdl_wait();
        if constexpr (ROWS16)
            msgl_mla_rows16_consumer<MODE>(p, s, range).run();
        else
            msgl__mla_consume<MODE, E4M3>(p, s, range, row_tile);
        msgl_mla_merger(p, s, range, row_tile).run();
    }
    // The other block of the pair may still report, here, what it has used.
    __syncwarp();
    if (MODE == MSGL_MLA_PAIRS) msgl__cluster_wait();
}

template <msgl_mla_mode MODE, bool E4M3, bool ROWS16 = false>
static cudaError_t msgl__mla_start(const msgl_mla_params &p, int ctas, cudaStream_t stream)
{
    constexpr auto kernel = msgl__mla_kernel<MODE, E4M3, ROWS16>;
    const size_t bytes = sizeof(msgl_mla_smem) + 1024;
    const cudaError_t code = msgl__allow_shared<kernel>(bytes);
    if (code != cudaSuccess) return code;
    const dim3 grid((unsigned)ctas), block(MSGL_MLA_THREADS);
    if (MODE == MSGL_MLA_PAIRS)
        return msgl__launch_clusters(kernel, dim3(2), grid, block, bytes, stream, p);
    return msgl__launch(kernel, grid, block, bytes, stream, p);
}

template <bool E4M3>
cudaError_t msgl__mla_launch(const msgl_mla_params &p, msgl_mla_mode mode, int ctas,
                             cudaStream_t stream)
{
    if constexpr (E4M3) {
        if (p.rows16 && mode == MSGL_MLA_GATHER)
            return msgl__mla_start<MSGL_MLA_GATHER, true, true>(p, ctas, stream);
        if (p.rows16) return msgl__mla_start<MSGL_MLA_BOXES, true, true>(p, ctas, stream);
    }
    if (mode == MSGL_MLA_GATHER) return msgl__mla_start<MSGL_MLA_GATHER, E4M3>(p, ctas, stream);
    return mode == MSGL_MLA_PAIRS ? msgl__mla_start<MSGL_MLA_PAIRS, E4M3>(p, ctas, stream)
                                  : msgl__mla_start<MSGL_MLA_BOXES, E4M3>(p, ctas, stream);
}

#endif
