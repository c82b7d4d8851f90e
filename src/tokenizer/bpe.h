// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding of one pre-token, and the table of merges.
#ifndef MSGL_TOKENIZER_BPE_H
#define MSGL_TOKENIZER_BPE_H

#include "tokenizer/internal.h"

// Appends the ids of one pre-token to *out: raw bytes in byte_mode, UTF-8 text otherwise. n > 0.
// MSGL_ENOMEM, or MSGL_ELIMIT once out->len would pass ws->id_limit.
int msgl__bpe_encode(const msgl_bpe *bpe, msgl_tok_ws *ws, const char *p, size_t n, msgl_ids *out);

static inline uint64_t msgl__merge_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline size_t msgl__merge_slot(uint64_t key, unsigned bits)
{
    return (size_t)((key ^ key >> 29) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits));
}

// The merge of two adjacent symbols, NULL: none.
static inline const msgl_merge *msgl__merge_find(const msgl_bpe *bpe, int32_t left, int32_t right)
{
    const uint64_t key = msgl__merge_key(left, right);
    const size_t mask = ((size_t)1 << bpe->merge_bits) - 1;
    for (size_t i = msgl__merge_slot(key, bpe->merge_bits);; i = (i + 1) & mask) {
        const msgl_merge *m = &bpe->merges[i];
        if (m->key == key) return m;
        if (m->key == UINT64_MAX) return NULL;
    }
}

#endif
