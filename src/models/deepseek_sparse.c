// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose tokens attend to the keys that an index chooses
// (kernel/index.h). In GLM-5 layers may share the choice of one before them.
#include <stdio.h>
#include <string.h>

#include "models/archs.h"
#include "models/deepseek.h"

// The index of sparse attention, of default_heads queries a token.
static void read_index(msgl_json_reader *r, msgl_model_config *c, int32_t default_heads)
{
    msgl_latent_config *l = &c->decoder.latent;
    msgl_index_config *i = &l->index;
    const char *const dim = "index_head_dim";
    i->heads = msgl__json_int_or(r, "index_n_heads", 1, MSGL_MAX_HEADS, default_heads);
    i->dim = msgl__json_int_or(r, dim, 1, MSGL_INDEX_MAX_DIM, 128);
    i->top_k = msgl__json_int_or(r, "index_topk", 1, MSGL_INDEX_MAX_TOP_K, 2048);
    if (r->status != 0) return;
    if (i->dim < l->rotary) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "qk_rope_head_dim %d or more", (int)l->rotary);
        msgl__json_reject(r, MSGL_EFORMAT, dim, msgl__json_get(r, dim), allowed);
    }
    if (l->q_rank == 0) { // index queries are made of q's latent vector
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "q_lora_rank", msgl__json_get(r, "q_lora_rank"),
                          "a number, with sparse attention");
    }
}

static void share_index(msgl_json_reader *r, msgl_model_config *c, int32_t layer, bool shares,
                        const char *key)
{
    if (shares && layer == 0) {
        msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key),
                          "an index in the first layer");
    }
    if (shares) c->decoder.layer_flags[layer] |= MSGL_LAYER_SHARES_INDEX;
}

// indexer_types: a list of "full" and "shared" by layer.
static void read_indexer_types(msgl_json_reader *r, msgl_model_config *c, const json_t *types)
{
    const char *const key = "indexer_types";
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->num_layers) {
        msgl__json_reject(r, MSGL_EFORMAT, key, types, "a list of num_hidden_layers");
        return;
    }
    for (int32_t l = 0; l < c->num_layers && r->status == 0; l++) {
        const json_t *v = json_array_get(types, (size_t)l);
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        const bool shares = strcmp(name, "shared") == 0;
        if (!shares && strcmp(name, "full") != 0) {
            msgl__json_reject(r, MSGL_EFORMAT, key, v, "full, shared");
            return;
        }
        share_index(r, c, l, shares, key);
    }
}

// Which of GLM-5's layers have an index of their own: a list, else a pattern as "FSSF", else every
// index_topk_freq-th from index_skip_topk_offset on. Example: frequency 3, offset 2: layers 0, 1,
// 4, 7 have one.
static void read_index_layers(msgl_json_reader *r, msgl_model_config *c)
{
    const char *const key = "index_topk_pattern", *pattern = msgl__json_str_or(r, key, NULL);
    const json_t *types = msgl__json_get(r, "indexer_types");
    const int32_t every = msgl__json_int_or(r, "index_topk_freq", 1, INT32_MAX, 1);
    const int32_t offset = msgl__json_int_or(r, "index_skip_topk_offset", 0, INT32_MAX, 2);
    if (types != NULL) {
        read_indexer_types(r, c, types);
        return;
    }
    const size_t n = (size_t)c->num_layers;
    if (pattern != NULL && (strlen(pattern) != n || strspn(pattern, "FS") != n)) {
        msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key),
                          "a letter F or S for each of num_hidden_layers");
        return;
    }
    for (int32_t l = 0; l < c->num_layers && r->status == 0; l++) {
        const int32_t behind = l - offset + 1 > 0 ? l - offset + 1 : 0;
        const bool shares = pattern != NULL ? pattern[l] == 'S' : behind % every != 0;
        share_index(r, c, l, shares, pattern != NULL ? key : "index_topk_freq");
    }
}

static void configure_v32(msgl_json_reader *r, msgl_model_config *c)
{
    if (msgl__deepseek_configure_sigmoids(r, c)) msgl__deepseek_read_mlp_layer_types(r, c, 3);
    if (r->status == 0) read_index(r, c, 64);
}

// GLM-5. Its index rotates neighbours, as its attention does; DeepSeek's halves.
static void configure_glm_dsa(msgl_json_reader *r, msgl_model_config *c)
{
    if (msgl__deepseek_configure_sigmoids(r, c)) msgl__deepseek_read_mlp_layer_types(r, c, 3);
    if (r->status == 0) read_index(r, c, 32);
    if (r->status != 0) return;
    c->decoder.latent.index.interleaved = true;
    read_index_layers(r, c);
}

#define SPARSE                                                                                     \
    .family = &msgl__decoder_family, .head_dim_key = "qk_rope_head_dim",                           \
    .ignores_layers_behind = true, .mtp = msgl__mtp_of_deepseek

const msgl_arch msgl__arch_deepseek_v32 = {SPARSE, .name = "DeepseekV32ForCausalLM",
                                           .configure = configure_v32};
const msgl_arch msgl__arch_glm_moe_dsa = {SPARSE, .name = "GlmMoeDsaForCausalLM",
                                          .configure = configure_glm_dsa};
