// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_TRTLLM_MLA_TRTLLM_MLA_CUDA_H
#define MSGL_ATTENTION_TRTLLM_MLA_TRTLLM_MLA_CUDA_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_trtllm_mla_cuda;

#endif
