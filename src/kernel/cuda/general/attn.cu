// SPDX-License-Identifier: Apache-2.0
extern "C" {
#include "kernel/cuda/general/attn.h"
}

#include <cuda_runtime.h>

#include "kernel/cuda/sm80/prefill.h"
#include "kernel/cuda/sm90/prefill/fa_prefill.h"

extern "C" int msgl__cuda_fa_prefill(const msgl_cuda_attn_call *c, void *stream)
{
    int device, major;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess) {
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    }
    if (e != cudaSuccess) return e;
    return major == 9 ? msgl__cuda_fa_prefill_sm90(c, stream)
                      : msgl__cuda_fa_prefill_sm80(c, stream);
}
