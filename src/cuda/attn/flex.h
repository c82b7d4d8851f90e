// SPDX-License-Identifier: Apache-2.0
//
// Attention by mask and score functions over block masks, as kernel/attn_flex.h describes them, for
// any GPU from sm_80 on.
#ifndef MSGL_CUDA_ATTN_FLEX_H
#define MSGL_CUDA_ATTN_FLEX_H

#include "cuda/attn/call.h"
#include "kernel/attn_flex.h"

typedef struct msgl_cuda_flex_call {
    msgl_cuda_attn_call attn; // but for softcap and window
    msgl_attn_mods mods;
    const uint64_t *tree; // [total_q] msgl_seqs' words, or NULL
    // [total_q / MSGL_FLEX_BLOCK + batch, lists_ld] as in msgl_flex_call; the blocks of a request
    // behind those of the one before it.
    int32_t *lists;
    size_t lists_ld;
} msgl_cuda_flex_call;

#ifdef __cplusplus
extern "C" {
#endif

// Queue a step's lists, and one layer's attention by them, on `stream`. bf16 and f16, head_dim a
// multiple of 8 up to 256; the lists need of attn only the requests. Return a cudaError_t.
int msgl__cuda_flex_lists(const msgl_cuda_flex_call *c, void *stream);
int msgl__cuda_flex_attend(const msgl_cuda_flex_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
