// SPDX-License-Identifier: Apache-2.0
#include "models/compressed_config.h"

#include <stdio.h>

#include "core/attributes.h"

enum {
    SLIDING = MSGL_LAYER_SECOND_ROPE,
    HEAVY = MSGL_LAYER_COMPRESSES,
    CHOSEN = MSGL_LAYER_COMPRESSES | MSGL_LAYER_CHOOSES_WINDOWS,
};

static const char CHOSEN_NAME[] = "compressed_sparse_attention";
static const char HEAVY_NAME[] = "heavily_compressed_attention";

// compress_ratios, as hubs have it, a number for each layer and maybe more behind the last one;
// without that the first two layers have all windows' keys, and of those behind them every second
// one chooses.
static void read_ratios(msgl_json_reader *r, msgl_model_config *c)
{
    const char *const key = "compress_ratios",
                      *allowed = "a list of num_hidden_layers with 0, 4 or 128 each";
    const json_t *list = msgl__json_get(r, key);
    if (list != NULL && json_array_size(list) < (size_t)c->num_layers) {
        msgl__json_reject(r, MSGL_EFORMAT, key, list, allowed);
        return;
    }
    for (int32_t l = 0; l < c->num_layers; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        const json_int_t ratio = json_is_integer(v) ? json_integer_value(v) : -1;
        const bool chosen = list != NULL ? ratio == 4 : l >= 2 && l % 2 == 1;
        if (list != NULL && ratio != 0 && ratio != 4 && ratio != 128) {
            msgl__json_reject(r, MSGL_EUNSUPPORTED, key, v, allowed);
            return;
        }
        c->decoder.layer_flags[l] |= list != NULL && ratio == 0 ? SLIDING : chosen ? CHOSEN : HEAVY;
    }
}

static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {
        {"sliding_attention", SLIDING}, {CHOSEN_NAME, CHOSEN}, {HEAVY_NAME, HEAVY}};
    if (!msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS))) read_ratios(r, c);
}

static void read_rates(msgl_json_reader *r, msgl_compressed_config *z)
{
    msgl_json_reader rates = msgl__json_section(r, "compress_rates");
    z->chosen_rate = msgl__json_int_or(&rates, CHOSEN_NAME, 1, MSGL_COMPRESS_MAX_RATE, 4);
    z->rate = msgl__json_int_or(&rates, HEAVY_NAME, 1, MSGL_COMPRESS_MAX_RATE, 128);
    r->status = rates.status;
    z->chosen_rate =
        msgl__json_int_or(r, "compress_rate_csa", 1, MSGL_COMPRESS_MAX_RATE, z->chosen_rate);
    z->rate = msgl__json_int_or(r, "compress_rate_hca", 1, MSGL_COMPRESS_MAX_RATE, z->rate);
}

// The newer spelling has an object for each of the two rotations. In the older one rope_scaling is
// that of layers with compressed keys, whose base stands beside it.
static void read_ropes(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_json_reader section;
    const bool there = msgl__config_rope_section(r, &section);
    if (!there || json_object_get(section.obj, "compress") == NULL) {
        c->ropes[1].theta = c->ropes[0].theta;
        c->ropes[0].theta = msgl__json_num_or(r, "compress_rope_theta", 1, 1e18, 160000);
        const bool yarn = c->ropes[0].type == MSGL_ROPE_YARN;
        if (yarn && c->ropes[0].attention_factor == 0) c->ropes[0].attention_factor = 1;
    }
    if (msgl__json_get(r, "partial_rotary_factor") == NULL) {
        const int32_t usual = c->ropes[0].dim;
        c->ropes[0].dim = msgl__json_int_or(r, "qk_rope_head_dim", 2, c->head_dim, usual);
        c->ropes[1].dim = c->ropes[0].dim;
    }
    if (r->status != 0) return;
    if (c->ropes[0].dim % 2 != 0 || c->ropes[0].dim > c->decoder.compressed.index.dim) {
        msgl__json_reject(r, MSGL_EFORMAT, "qk_rope_head_dim",
                          msgl__json_get(r, "qk_rope_head_dim"),
                          "an even number, no more than index_head_dim");
    } else if (c->ropes[0].type == MSGL_ROPE_DYNAMIC || c->ropes[0].type == MSGL_ROPE_LONGROPE) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "rope_type", NULL,
                          "a scaling that does not depend on the prompt");
    }
}

static void read_attention(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_compressed_config *z = &c->decoder.compressed;
    char allowed[64];
    c->num_kv_heads = 1; // whatever the field's default is
    z->q_rank = msgl__json_int_or(r, "q_lora_rank", 1, MSGL_MAX_HIDDEN, 1024);
    z->groups = msgl__json_int_or(r, "o_groups", 1, c->num_heads, 8);
    z->out_rank = msgl__json_int_or(r, "o_lora_rank", 1, MSGL_MAX_HIDDEN, 1024);
    z->index.heads = msgl__json_int_or(r, "index_n_heads", 1, MSGL_MAX_HEADS, 64);
    z->index.dim = msgl__json_int_or(r, "index_head_dim", 1, MSGL_INDEX_MAX_DIM, 128);
    z->index.top_k = msgl__json_int_or(r, "index_topk", 1, MSGL_INDEX_MAX_TOP_K, 512);
    c->decoder.sliding_window = msgl__json_int_or(r, "sliding_window", 1, 1 << 16, 128);
    read_rates(r, z);
    if (r->status != 0) return;
    if (c->head_dim % 8 != 0 || c->head_dim > MSGL_ATTN_MAX_LATENT) {
        snprintf(allowed, sizeof allowed, "a multiple of 8 up to %d", MSGL_ATTN_MAX_LATENT);
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "head_dim", msgl__json_get(r, "head_dim"), allowed);
    } else if (c->num_heads % z->groups != 0) {
        snprintf(allowed, sizeof allowed, "a divisor of num_attention_heads %d", (int)c->num_heads);
        msgl__json_reject(r, MSGL_EFORMAT, "o_groups", msgl__json_get(r, "o_groups"), allowed);
    }
}

void msgl__decoder_read_compressed(msgl_json_reader *r, msgl_model_config *c)
{
    read_attention(r, c);
    if (r->status == 0) read_ropes(r, c);
    if (r->status == 0) read_layers(r, c);
}
