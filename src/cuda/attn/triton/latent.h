// SPDX-License-Identifier: Apache-2.0
//
// What decode.cu and extend.cu leave to latent.cu: layers whose V lies in K.
#ifndef MSGL_CUDA_ATTN_TRITON_LATENT_H
#define MSGL_CUDA_ATTN_TRITON_LATENT_H

#include "cuda/attn/triton.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline bool msgl__triton_is_latent(const msgl_triton_call *c)
{
    return c->attn.v == c->attn.k;
}

// Stage 1 of answers, and chunks; as their callers in triton.h.
int msgl__triton_latent_stage1(const msgl_triton_call *c, void *stream);
int msgl__triton_latent_extend(const msgl_triton_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
