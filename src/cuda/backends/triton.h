// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_BACKENDS_TRITON_H
#define MSGL_CUDA_BACKENDS_TRITON_H

#include "attention/attention.h"
#include "cuda/attn/triton.h"

// For double_sparsity, which leaves some requests' answers out and shares lists and stage buffers:
// one layer's call, and the splits of the answers, of a model with one window.
void msgl__triton_cuda_call(const msgl_attn_backend *base, const msgl_attn_layer *layer,
                            const msgl_seqs *seqs, const msgl_attn_input *in, void *out,
                            msgl_triton_call *c);
int32_t *msgl__triton_cuda_splits(const msgl_attn_backend *base);

extern const msgl_attn_desc msgl__attn_triton_cuda;

#endif
