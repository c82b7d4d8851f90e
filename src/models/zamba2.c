// SPDX-License-Identifier: Apache-2.0
//
// Zamba2: Mamba-2 in every layer, in some of them ("hybrid") behind a block of attention and
// feed-forward whose weights they share in turn (models/decoder_shared.c).
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/decoder.h"
#include "models/mamba_config.h"

static const msgl_mamba_keys KEYS = {
    .heads = {"n_mamba_heads", 8},
    .groups = {"mamba_ngroups", 1},
    .head_dim = {"mamba_headdim", 0},
    .state_dim = {"mamba_d_state", 64},
    .taps = {"mamba_d_conv", 4},
    .expand = {"mamba_expand", 2},
    .conv_bias = "use_conv_bias",
    .proj_bias = "add_bias_linear",
    .own_silu = true,
};

enum { LONG_CONTEXT = 16384 };

// Of the class, whatever rms_norm_eps is.
static const float GATED_NORM_EPS = 1e-5f;

static void read_mamba(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_mamba_config *m = &c->decoder.mamba;
    msgl__mamba_read(r, c, &KEYS);
    m->conv_bias = true; // in the class, whatever use_conv_bias is
    m->dt_min = (float)msgl__json_num_or(r, "time_step_min", 0, 1e6, 0.001);
    m->dt_max = FLT_MAX;
    m->norm_eps = GATED_NORM_EPS;
}

// As hubs have them and as transformers 5 writes them.
static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    enum { ALONE = MSGL_LAYER_RECURRENT | MSGL_LAYER_NO_FFN };
    static const msgl_layer_kind KINDS[] = {
        {"mamba", ALONE}, {"linear_attention", ALONE}, {"hybrid", MSGL_LAYER_NO_FFN}};
    if (!msgl__decoder_read_kinds(r, c, "layers_block_type", KINDS, MSGL_COUNT(KINDS)) &&
        !msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS))) {
        msgl__json_reject(r, MSGL_EFORMAT, "layers_block_type", NULL,
                          "a list of num_hidden_layers");
    }
}

static void read_blocks(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_shared_block_config *b = &c->decoder.shared_blocks;
    const char *const key = "num_mem_blocks";
    int32_t hybrid = 0;
    for (int32_t l = 0; l < c->num_layers; l++) {
        hybrid += !msgl__layer_has(&c->decoder, l, MSGL_LAYER_RECURRENT);
    }
    b->num = msgl__json_int_or(r, key, 1, MSGL_MAX_LAYERS, 1);
    b->mlp_rank = msgl__json_int_or(r, "adapter_rank", 1, MSGL_MAX_HIDDEN, 128);
    if (msgl__json_bool_or(r, "use_shared_attention_adapter", false)) b->qkv_rank = b->mlp_rank;
    if (r->status != 0) return;
    if (hybrid == 0) {
        msgl__json_reject(r, MSGL_EFORMAT, "layers_block_type",
                          msgl__json_get(r, "layers_block_type"), "one hybrid layer or more");
        return;
    }
    if (b->num <= hybrid) return;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "up to %d, the number of hybrid layers", (int)hybrid);
    msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key), allowed);
}

// Attention reads the stream and the embeddings, and its heads together are as wide as both.
static void read_attention(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t wide = 2 * c->hidden_size;
    if (wide % c->num_heads != 0 || wide / c->num_heads > MSGL_MAX_HEAD_DIM) {
        msgl__json_reject(r, MSGL_EFORMAT, "num_attention_heads",
                          msgl__json_get(r, "num_attention_heads"),
                          "a divisor of 2 hidden_size, of heads of up to 1024");
        return;
    }
    c->head_dim = c->ropes[0].dim = wide / c->num_heads;
    c->decoder.attn_scale = 1 / sqrtf((float)c->head_dim / 2);
    if (!msgl__json_bool_or(r, "use_mem_rope", false)) c->ropes[0].type = MSGL_ROPE_NONE;
}

static void refuse(msgl_json_reader *r, const char *key, const char *allowed)
{
    if (r->status != 0) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), allowed);
}

// What the class has beside what released models use, and nothing here was compared with. Low-rank
// parts of K and V are as wide as q's in it; without tied words it shares no blocks either.
static void refuse_others(msgl_json_reader *r, const msgl_model_config *c)
{
    msgl_json_reader rope;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "num_attention_heads %d", (int)c->num_heads);
    if (c->num_kv_heads != c->num_heads) refuse(r, "num_key_value_heads", allowed);
    if (!c->tie_embeddings) refuse(r, "tie_word_embeddings", "true");
    if (c->ropes[0].type == MSGL_ROPE_DEFAULT || c->ropes[0].type == MSGL_ROPE_NONE) return;
    (void)msgl__config_rope_section(r, &rope);
    refuse(r, rope.section, "a rotation without scaling");
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.norm = "final_layernorm";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->mlp_bias = msgl__json_bool_or(r, "add_bias_linear", false);
    d->intermediate_size =
        msgl__json_int_or(r, "intermediate_size", 1, MSGL_MAX_INTERMEDIATE, 4 * c->hidden_size);
    // All that it changes.
    if (msgl__json_bool_or(r, "use_long_context", false)) c->max_position = LONG_CONTEXT;
    read_attention(r, c);
    if (r->status == 0) refuse_others(r, c);
    if (r->status == 0) read_mamba(r, c);
    if (r->status == 0) read_layers(r, c);
    if (r->status == 0) read_blocks(r, c);
}

const msgl_arch msgl__arch_zamba2 = {
    .name = "Zamba2ForCausalLM",
    .family = &msgl__decoder_family,
    .default_activation = "gelu",
    .gelu_is_erf = true,
    .own_width = true,
    .ties_by_default = true,
    .configure = configure,
};
