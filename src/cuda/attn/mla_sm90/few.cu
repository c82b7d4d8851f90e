// SPDX-License-Identifier: Apache-2.0
#include "cuda/attn/mla_sm90/few.cuh"

#include "cuda/attn/mla_sm90/launch.cuh"

static __global__ void __launch_bounds__(MSGL_MLA_FEW_THREADS, 1)
    few_kernel(const __grid_constant__ msgl_mla_params p)
{
    extern __shared__ __align__(128) unsigned char few_smem[];
    msgl_mla_few_smem &s = *(msgl_mla_few_smem *)few_smem;
    if (threadIdx.x == 0) {
        msgl__mbarrier_init(msgl__shared_address(&s.q_full), MSGL_MLA_FEW_THREADS);
        msgl__mbarrier_init_done();
    }
    __syncthreads();
    msgl__pdl_trigger();
    msgl_mla_few(p, s, blockIdx.x / MSGL_MLA_FEW_CLUSTER).run();
}

// Asked once per device.
cudaError_t msgl__mla_few_ranges(const msgl_gpu *gpu, int *ranges)
{
    static std::atomic<int> known[MSGL_MAX_GPUS];
    const bool keeps = gpu->ordinal < MSGL_MAX_GPUS;
    *ranges = keeps ? known[gpu->ordinal].load(std::memory_order_relaxed) : 0;
    if (*ranges > 0) return cudaSuccess;
    cudaError_t code = msgl__allow_shared<few_kernel>(sizeof(msgl_mla_few_smem));
    if (code != cudaSuccess) return code;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = MSGL_MLA_FEW_CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(MSGL_MLA_FEW_CLUSTER * MSGL_MLA_FEW_RANGES);
    config.blockDim = dim3(MSGL_MLA_FEW_THREADS);
    config.dynamicSmemBytes = sizeof(msgl_mla_few_smem);
    config.attrs = &cluster;
    config.numAttrs = 1;
    code = cudaOccupancyMaxActiveClusters(ranges, few_kernel, &config);
    if (code != cudaSuccess) return code;
    if (*ranges > MSGL_MLA_FEW_RANGES) *ranges = MSGL_MLA_FEW_RANGES;
    if (keeps) known[gpu->ordinal].store(*ranges, std::memory_order_relaxed);
    return cudaSuccess;
}

cudaError_t msgl__mla_few_launch(msgl_mla_params p, int ranges, cudaStream_t stream)
{
    p.row_tiles = MSGL_MLA_FEW_CLUSTER; // for msgl_mla_opens: counters of each rank
    const size_t bytes = sizeof(msgl_mla_few_smem);
    const cudaError_t code = msgl__allow_shared<few_kernel>(bytes);
    if (code != cudaSuccess) return code;
    return msgl__launch_clusters(few_kernel, dim3(MSGL_MLA_FEW_CLUSTER),
                                 dim3((unsigned)(ranges * MSGL_MLA_FEW_CLUSTER)),
                                 dim3(MSGL_MLA_FEW_THREADS), bytes, stream, p);
}
