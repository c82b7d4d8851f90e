// SPDX-License-Identifier: Apache-2.0
//
// Which keys torch_native's queries see, and how a request's queries become blocks whose scores fit
// into a workspace.
#ifndef MSGL_ATTENTION_TORCH_NATIVE_BLOCKS_H
#define MSGL_ATTENTION_TORCH_NATIVE_BLOCKS_H

#include "attention/attention.h"
#include "kernel/cuda/attn/native.h"

// The first key that a query at position pos sees.
static inline int32_t msgl__torch_first_key(const msgl_attn_layer *layer, int32_t pos)
{
    const int32_t from = layer->window >= 0 && pos > layer->window ? pos - layer->window : 0;
    const int32_t chunk = layer->chunk > 0 ? pos / layer->chunk * layer->chunk : 0;
    return from > chunk ? from : chunk;
}

// On a GPU: the next tokens of a request, and the columns of their scores, keys [first_key,
// first_key + keys), both multiples of MSGL_NATIVE_KEYS. They are all that the queries see, and the
// last ones may be behind the request's end.
typedef struct msgl_torch_block {
    int32_t tokens, first_key, keys;
} msgl_torch_block;

enum { MSGL_TORCH_ROWS = 256 }; // most tokens of a block

// Of the `left` >= 1 tokens from position pos on, as many as have room: tokens * keys <= room,
// which is at least the request's length, rounded up to MSGL_NATIVE_KEYS.
msgl_torch_block msgl__torch_block(const msgl_attn_layer *layer, int32_t pos, int32_t left,
                                   size_t room);

#endif
