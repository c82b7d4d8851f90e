// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose tokens attend to the keys that an index chooses
// (kernel/index.h). In GLM-5 layers may share the choice of one before them.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
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

// Which of GLM-5's layers have an index of their own: a list, else a pattern as "FSSF", else every
// index_topk_freq-th from index_skip_topk_offset on. Example: frequency 3, offset 2: layers 0, 1,
// 4, 7 have one.
static void read_index_layers(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {{"full", 0}, {"shared", MSGL_LAYER_SHARES_INDEX}};
    const char *key = "index_topk_pattern", *pattern = msgl__json_str_or(r, key, NULL);
    const int32_t every = msgl__json_int_or(r, "index_topk_freq", 1, INT32_MAX, 1);
    const int32_t offset = msgl__json_int_or(r, "index_skip_topk_offset", 0, INT32_MAX, 2);
    const size_t n = (size_t)c->num_layers;
    if (msgl__decoder_read_kinds(r, c, "indexer_types", KINDS, MSGL_COUNT(KINDS))) {
        key = "indexer_types";
    } else if (pattern != NULL && (strlen(pattern) != n || strspn(pattern, "FS") != n)) {
        msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key),
                          "a letter F or S for each of num_hidden_layers");
        return;
    } else {
        if (pattern == NULL) key = "index_topk_freq";
        for (int32_t l = 0; l < c->num_layers; l++) {
            const int32_t behind = l - offset + 1 > 0 ? l - offset + 1 : 0;
            const bool shares = pattern != NULL ? pattern[l] == 'S' : behind % every != 0;
            if (shares) c->decoder.layer_flags[l] |= MSGL_LAYER_SHARES_INDEX;
        }
    }
    if (msgl__layer_has(&c->decoder, 0, MSGL_LAYER_SHARES_INDEX)) {
        msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key),
                          "an index in the first layer");
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

const msgl_arch msgl__arch_deepseek_v32 = {MSGL_DEEPSEEK, .name = "DeepseekV32ForCausalLM",
                                           .configure = configure_v32};
const msgl_arch msgl__arch_glm_moe_dsa = {MSGL_DEEPSEEK, .name = "GlmMoeDsaForCausalLM",
                                          .configure = configure_glm_dsa};
