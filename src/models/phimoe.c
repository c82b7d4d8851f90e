// SPDX-License-Identifier: Apache-2.0
//
// Phi-3.5-MoE and GRIN-MoE: LayerNorms with biases, two experts a token by SparseMixer, which may
// have biases in attention and a bias of logits.
#include "models/archs.h"
#include "models/decoder.h"

// LongRoPE's factor of cosines and sines is given for short and for long prompts. All published
// folders have one for both.
static void read_scale(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_json_reader sub;
    if (c->ropes[0].type != MSGL_ROPE_LONGROPE || !msgl__config_rope_section(r, &sub)) return;
    const double scale = msgl__json_num_or(&sub, "short_mscale", 1e-6, 1e6, 1);
    if (msgl__json_num_or(&sub, "long_mscale", 1e-6, 1e6, 1) != scale) {
        msgl__json_reject(&sub, MSGL_EUNSUPPORTED, "long_mscale",
                          msgl__json_get(&sub, "long_mscale"), "what short_mscale is");
    }
    c->ropes[0].attention_factor = scale;
    if (r->status == 0) r->status = sub.status;
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.router = "block_sparse_moe.gate";
    d->names.all_router = "mlp.router";
    d->names.experts = "block_sparse_moe.experts";
    d->names.gate = "w1";
    d->names.up = "w3";
    d->names.down = "w2";
    d->layer_norm = d->norm_bias = true;
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->head_bias = msgl__json_bool_or(r, "lm_head_bias", false);
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 0);
    msgl__decoder_slide(c, 0);
    msgl__decoder_read_experts(r, c, "intermediate_size");
    d->router.scoring = MSGL_SCORE_SPARSEMIXER;
    d->router.norm_topk = false;
    d->router.spread = 2 * (float)msgl__json_num_or(r, "router_jitter_noise", 0, 1, 0.01);
    read_scale(r, c);
}

const msgl_arch msgl__arch_phimoe = {
    .name = "PhimoeForCausalLM",
    .other_name = "PhiMoEForCausalLM", // as hubs call it
    .family = &msgl__decoder_family,
    .default_theta = 1e6,
    .only_experts = true,
    .configure = configure,
};
