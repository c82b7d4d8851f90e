// SPDX-License-Identifier: Apache-2.0
//
// OLMo 2: no norm before a block, one of its result; q and K are normed whole. OLMo 3: three of
// four layers have a window, and rotate without the others' scaling. OLMoE: Llama's norms, q and K
// normed whole, and experts.
#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.attn_norm = d->names.ffn_norm = NULL;
    d->names.attn_post_norm = "post_attention_layernorm";
    d->names.ffn_post_norm = "post_feedforward_layernorm";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qk_norm = MSGL_QK_NORM_ALL;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
}

const msgl_arch msgl__arch_olmo2 = {
    .name = "Olmo2ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};

// Layers of the list, or else all but every fourth.
static void configure_3(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure(r, c);
    msgl__decoder_read_window(r, c, 4096);
    if (!msgl__decoder_read_layer_types(r, c)) msgl__decoder_set_all_but(c, 4, MSGL_LAYER_SLIDING);
    msgl__decoder_rope_of_windows(c);
    for (int32_t l = 0; l < c->num_layers && d->sliding_window == 0; l++) {
        d->layer_flags[l] &= (uint16_t)~MSGL_LAYER_SLIDING;
    }
}

const msgl_arch msgl__arch_olmo3 = {
    .name = "Olmo3ForCausalLM",
    .family = &msgl__decoder_family,
    .default_theta = 5e5,
    .local_rope = true,
    .configure = configure_3,
};

static void configure_moe(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qk_norm = MSGL_QK_NORM_ALL;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->clip_qkv = (float)msgl__json_num_or(r, "clip_qkv", 1e-6, 1e6, 0);
    msgl__decoder_read_experts(r, c, "intermediate_size");
}

const msgl_arch msgl__arch_olmoe = {
    .name = "OlmoeForCausalLM",
    .family = &msgl__decoder_family,
    .only_experts = true,
    .configure = configure_moe,
};
