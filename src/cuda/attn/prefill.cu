// SPDX-License-Identifier: Apache-2.0
extern "C" {
#include "cuda/attn/prefill.h"
}

#include "cuda/attn/prefill_sm80.h"
#include "cuda/attn/tree_sm80.h"
#include "cuda/attn/prefill_sm90.h"
#include "cuda/attn/reference.h"
#include "cuda/launch.cuh"

extern "C" int msgl__cuda_fa_prefill(const msgl_cuda_attn_call *c, void *stream)
{
    msgl_gpu gpu;
    const cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    const bool takes = !c->e4m3 || msgl__fa_prefill_takes_e4m3(c);
    return gpu.major == 9 && takes ? msgl__cuda_fa_prefill_sm90(c, stream)
                                   : msgl__cuda_fa_prefill_sm80(c, stream);
}

extern "C" int msgl__cuda_attn_tree(const msgl_cuda_attn_call *c, const uint64_t *tree,
                                    void *stream)
{
    const int code = msgl__cuda_fa_tree_sm80(c, tree, stream);
    return code == cudaErrorNotSupported ? msgl__cuda_attn_reference_tree(c, tree, stream) : code;
}
