// SPDX-License-Identifier: Apache-2.0
//
// The fields of an index that chooses blocks of keys (kernel/index.h), as MiniMax-M3 spells them.
#include <stdio.h>

#include "models/decoder.h"

// A field of the index by its own name or, which counts, by that inside sparse_attention_config.
static int32_t index_field(msgl_json_reader *r, msgl_json_reader *section, const char *key,
                           const char *inside, int32_t lo, int32_t hi, int32_t usual)
{
    const int32_t own = msgl__json_int_or(r, key, lo, hi, usual);
    return section->obj != NULL ? msgl__json_int_or(section, inside, lo, hi, own) : own;
}

// By the name that the file has.
static void reject_index_field(msgl_json_reader *r, msgl_json_reader *section, const char *key,
                               const char *inside, const char *allowed)
{
    if (section->obj != NULL && msgl__json_get(section, inside) != NULL) {
        r = section;
        key = inside;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), allowed);
}

void msgl__decoder_read_block_index(msgl_json_reader *r, msgl_json_reader *s, msgl_model_config *c)
{
    msgl_block_index_config *b = &c->decoder.blocks;
    const int32_t heads = index_field(r, s, "index_n_heads", "sparse_num_index_heads", 1,
                                      MSGL_MAX_HEADS, c->num_kv_heads);
    b->dim = index_field(r, s, "index_head_dim", "sparse_index_dim", 1, MSGL_INDEX_MAX_DIM, 128);
    b->size =
        index_field(r, s, "index_block_size", "sparse_block_size", 1, MSGL_INDEX_MAX_TOP_K, 128);
    if (r->status != 0 || s->status != 0) return;
    b->top_k = index_field(r, s, "index_topk_blocks", "sparse_topk_blocks", 1,
                           MSGL_INDEX_MAX_TOP_K / b->size, 16);
    b->local = index_field(r, s, "index_local_blocks", "sparse_local_block", 0, b->top_k, 1);
    if (r->status != 0 || s->status != 0) return;
    char allowed[64];
    if (heads != c->num_kv_heads) {
        snprintf(allowed, sizeof allowed, "num_key_value_heads %d", (int)c->num_kv_heads);
        reject_index_field(r, s, "index_n_heads", "sparse_num_index_heads", allowed);
    } else if (b->dim < c->ropes[0].dim) {
        snprintf(allowed, sizeof allowed, "the %d dimensions of a head that rotate, or more",
                 (int)c->ropes[0].dim);
        reject_index_field(r, s, "index_head_dim", "sparse_index_dim", allowed);
    }
}
