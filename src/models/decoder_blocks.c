// SPDX-License-Identifier: Apache-2.0
//
// The fields of an index that chooses blocks of keys (kernel/index.h), as MiniMax-M3 and as
// Qwen4-Exp spell them.
#include <stdio.h>

#include "core/attributes.h"
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

void msgl__decoder_read_mean_index(msgl_json_reader *r, msgl_model_config *c)
{
    static const char *const KEYS[] = {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim",
                                       "indexer_budget", "indexer_compress_ratio"};
    msgl_block_index_config *b = &c->decoder.blocks;
    size_t given = 0;
    for (size_t i = 0; i < MSGL_COUNT(KEYS); i++) given += msgl__json_get(r, KEYS[i]) != NULL;
    if (given == 0) {
        msgl__decoder_clear_layers(c, MSGL_LAYER_CHOOSES_BLOCKS);
        return;
    }
    const int32_t rotate = c->ropes[0].dim > 1 ? c->ropes[0].dim : 1;
    b->mean_queries = msgl__json_int(r, KEYS[0], 1, MSGL_MAX_HEADS);
    (void)msgl__json_int(r, KEYS[1], 1, 1);
    b->dim = msgl__json_int(r, KEYS[2], rotate, MSGL_INDEX_MAX_DIM);
    const int32_t budget = msgl__json_int(r, KEYS[3], 1, MSGL_INDEX_MAX_TOP_K / 2);
    b->size = msgl__json_int(r, KEYS[4], 1, budget > 1 ? budget : 1);
    if (r->status != 0) return;
    b->top_k = budget / b->size;
    b->qk = "self_attn.indexer.index_qk_proj";
    b->q_norm = "self_attn.indexer.q_layernorm";
    b->k_norm = "self_attn.indexer.k_layernorm";
    if (budget % b->size != 0) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "a multiple of indexer_compress_ratio %d", (int)b->size);
        msgl__json_reject(r, MSGL_EFORMAT, KEYS[3], msgl__json_get(r, KEYS[3]), allowed);
    } else if (msgl__rope_per_request(&c->ropes[0])) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, KEYS[0], msgl__json_get(r, KEYS[0]),
                          "null, with a rope scaling that depends on the prompt's length");
    }
}
