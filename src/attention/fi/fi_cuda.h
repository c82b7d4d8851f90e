// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_FI_FI_CUDA_H
#define MSGL_ATTENTION_FI_FI_CUDA_H

#include "attention/cuda_call.h"
#include "attention/fi/cuda/api.h"

// New tokens per request, on average, from which FlashInfer's Hopper kernels win.
enum { MSGL_FI_HOPPER_TOKENS = 512 };

static inline bool msgl__fi_hopper_wins(const msgl_seqs *seqs)
{
    return seqs->num_tokens >= (int64_t)MSGL_FI_HOPPER_TOKENS * seqs->size;
}

// The plug-in's table; NULL sets *err.
const msgl_fi_api *msgl__fi_open(msgl_err *err);

extern const msgl_attn_desc msgl__attn_fi_cuda, msgl__attn_flashinfer_cuda;

#endif
