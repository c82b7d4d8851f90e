// SPDX-License-Identifier: Apache-2.0
//
// Ling and Ring (Bailing): q, k and v in one tensor, experts with some that every token has; the
// second generation has norms of q and K heads, heads that rotate in part, and DeepSeek-V3's
// router.
#include "models/archs.h"
#include "models/decoder_experts.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.qkv = "attention.query_key_value";
    d->names.out = "attention.dense";
    d->names.q_norm = "attention.query_layernorm";
    d->names.k_norm = "attention.key_layernorm";
    d->names.shared = "mlp.shared_experts";
    d->names.shared_gate = NULL;
    d->qkv_bias = msgl__json_bool_or(r, "use_qkv_bias", false);
    d->o_bias = msgl__json_bool_or(r, "use_bias", false);
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    const int32_t each = msgl__json_int_or(r, "moe_shared_expert_intermediate_size", 1,
                                           MSGL_MAX_INTERMEDIATE, d->moe_intermediate_size);
    msgl__decoder_read_shared_experts(r, c, "num_shared_experts", 0, each);
    msgl__decoder_read_dense_layers(r, c, 0);
}

static void configure_2(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure(r, c);
    if (r->status != 0) return;
    d->qk_norm = msgl__json_bool_or(r, "use_qk_norm", true) ? MSGL_QK_NORM_HEAD : MSGL_QK_NORM_NONE;
    d->router.scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 1);
    msgl__decoder_read_sigmoids(r, c, true);
    d->names.correction = "mlp.gate.expert_bias";
}

#define EMBEDDINGS                                                                                 \
    {                                                                                              \
        "model.embed_tokens.", "model.word_embeddings."                                            \
    }

const msgl_arch msgl__arch_bailing = {
    .name = "BailingMoeForCausalLM",
    .family = &msgl__decoder_family,
    .renamed = {EMBEDDINGS},
    .fixed = {{"norm_head", 0}, {"norm_softmax", 0}},
    .configure = configure,
};

const msgl_arch msgl__arch_bailing_2 = {
    .name = "BailingMoeV2ForCausalLM",
    .family = &msgl__decoder_family,
    .rotary_factor = 1,
    .ignores_layers_behind = true,
    .renamed = {EMBEDDINGS},
    .fixed = {{"norm_head", 0}, {"norm_softmax", 0}},
    .configure = configure_2,
};
