// SPDX-License-Identifier: Apache-2.0
//
// How a request's queries become blocks whose scores fit into torch_native's workspace.
#ifndef MSGL_CUDA_BACKENDS_TORCH_BLOCKS_H
#define MSGL_CUDA_BACKENDS_TORCH_BLOCKS_H

#include "attention/torch_native/torch_native.h"
#include "cuda/attn/native.h"

// The next tokens of a request, and the columns of their scores, keys [first_key,
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
