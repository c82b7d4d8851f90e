// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_TRTLLM_TRTLLM_CUDA_H
#define MSGL_ATTENTION_TRTLLM_TRTLLM_CUDA_H

#include "attention/cuda_call.h"

extern const msgl_attn_desc msgl__attn_trtllm_cuda,
    msgl__attn_trtllm_mha_cuda; // metadata: msgl_cuda_batch, its own or fa's

#endif
