// SPDX-License-Identifier: Apache-2.0
#include "cuda/backends/torch_blocks.h"

#include "core/round.h"

static int32_t keys_of(int32_t pos, const msgl_torch_block *b)
{
    return (int32_t)msgl__round_up((size_t)(pos + b->tokens), MSGL_NATIVE_KEYS) - b->first_key;
}

msgl_torch_block msgl__torch_block(const msgl_attn_layer *layer, int32_t pos, int32_t left,
                                   size_t room)
{
    const int32_t first = msgl__torch_first_key(layer, pos);
    msgl_torch_block b = {.tokens = left < MSGL_TORCH_ROWS ? left : MSGL_TORCH_ROWS,
                          .first_key = first - first % MSGL_NATIVE_KEYS};
    b.keys = keys_of(pos, &b);
    while (b.tokens > 1 && (size_t)b.tokens * (size_t)b.keys > room) {
        b.tokens = (b.tokens + 1) / 2;
        b.keys = keys_of(pos, &b);
    }
    return b;
}
