// SPDX-License-Identifier: Apache-2.0
extern "C" {
#include "kernel/cuda/general/attn.h"
}

#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/sm80/prefill.h"
#include "kernel/cuda/sm90/prefill/fa_prefill.h"

extern "C" int msgl__cuda_fa_prefill(const msgl_cuda_attn_call *c, void *stream)
{
    msgl_gpu gpu;
    const cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    return gpu.major == 9 ? msgl__cuda_fa_prefill_sm90(c, stream)
                          : msgl__cuda_fa_prefill_sm80(c, stream);
}
