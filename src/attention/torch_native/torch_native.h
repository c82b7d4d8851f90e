// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_TORCH_NATIVE_TORCH_NATIVE_H
#define MSGL_ATTENTION_TORCH_NATIVE_TORCH_NATIVE_H

#include "attention/attention.h"

// The first key that a query at position pos sees.
static inline int32_t msgl__torch_first_key(const msgl_attn_layer *layer, int32_t pos)
{
    const int32_t from = layer->window >= 0 && pos > layer->window ? pos - layer->window : 0;
    const int32_t chunk = layer->chunk > 0 ? pos / layer->chunk * layer->chunk : 0;
    return from > chunk ? from : chunk;
}

extern const msgl_attn_desc msgl__attn_torch_native;

#endif
