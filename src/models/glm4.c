// SPDX-License-Identifier: Apache-2.0
//
// GLM-4 (0414 and Z1): norms before and behind every block; half of a head rotates, as pairs of
// neighbours; gate and up in one tensor. GLM-4.5 to 4.7: Llama's norms and halves, first some dense
// layers, then DeepSeek-V3's experts.
#include "models/archs.h"
#include "models/decoder_experts.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.attn_post_norm = "post_self_attn_layernorm";
    d->names.ffn_post_norm = "post_mlp_layernorm";
    d->names.gate_up = "mlp.gate_up_proj";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1.5625e-7);
    d->qkv_bias = msgl__json_bool_or(r, "attention_bias", true);
    d->interleaved = true;
}

const msgl_arch msgl__arch_glm4 = {
    .name = "Glm4ForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .rotary_factor = 0.5,
    .configure = configure,
};

static void configure_moe(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = msgl__json_bool_or(r, "attention_bias", false);
    if (msgl__json_bool_or(r, "use_qk_norm", false)) d->qk_norm = MSGL_QK_NORM_HEAD;
    msgl__decoder_read_routed_experts(r, c);
    msgl__decoder_read_sigmoids(r, c, true);
    msgl__decoder_read_dense_layers(r, c, 1);
}

const msgl_arch msgl__arch_glm4_moe = {
    .name = "Glm4MoeForCausalLM",
    .family = &msgl__decoder_family,
    .rotary_factor = 0.5,
    .ignores_layers_behind = true,
    .mtp = msgl__mtp_of_deepseek,
    .configure = configure_moe,
};
