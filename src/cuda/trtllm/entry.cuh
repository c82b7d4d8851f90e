// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_TRTLLM_ENTRY_CUH
#define MSGL_CUDA_TRTLLM_ENTRY_CUH

#include <cuda_runtime.h>

extern "C" {
#include "cuda/trtllm/api.h"
}

typedef struct msgl_xqa_entry {
    msgl_dtype dtype;
    int32_t head_dim, group, page_size;
    int (*prepare)(uint32_t *shared_bytes);
    int (*launch)(const msgl_xqa_call *c, int32_t splits, cudaStream_t stream);
} msgl_xqa_entry;

extern const msgl_xqa_entry msgl__xqa_entries[];
extern const int msgl__xqa_num_entries;

#endif
