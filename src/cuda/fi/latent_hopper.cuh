// SPDX-License-Identifier: Apache-2.0
//
// The same with WGMMA.
#ifndef MSGL_CUDA_FI_LATENT_HOPPER_CUH
#define MSGL_CUDA_FI_LATENT_HOPPER_CUH

#include "cuda/fi/latent.cuh"

#include <flashinfer/attention/mla_hopper.cuh>

template <typename T, uint32_t ROW, typename>
static int msgl_fi_latent_hopper_run(const msgl_fi_run_call *c, cudaStream_t stream)
{
    using namespace flashinfer;
    MLAPlanInfo info;
    const auto p = msgl_fi_latent_params<T, ROW>(c, &info);
    return mla::BatchMLAPageAttentionHopper<MaskMode::kCausal, MSGL_FI_LATENT_DIM,
                                            ROW - MSGL_FI_LATENT_DIM>(
        p, (uint32_t)info.num_blks_x, (uint32_t)info.num_blks_y, stream);
}

#endif
