// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_TRTLLM_H
#define MSGL_CUDA_BACKENDS_TRTLLM_H

#include "cuda/backends/call.h"

extern const msgl_attn_desc msgl__attn_trtllm_cuda,
    msgl__attn_trtllm_mha_cuda; // metadata: msgl_cuda_batch, its own or fa's

#endif
