// SPDX-License-Identifier: Apache-2.0
//
// GPT-OSS: attention with a sink for each head and a window in every other layer, and a mixture of
// experts with biases and a clamped gate in all of them. Of the router's choice, the softmax of the
// chosen logits is that of all divided by their sum.
#include "models/archs.h"
#include "models/decoder.h"

static void set_usual_rope(msgl_rope_config *p)
{
    p->type = MSGL_ROPE_YARN;
    p->factor = 32;
    p->beta_fast = 32;
    p->beta_slow = 1;
    p->truncate = false;
    p->original_max = 4096;
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.router = "mlp.router";
    d->names.experts = NULL;
    d->names.all_by_columns = d->names.all_alternate = true;
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", true);
    d->router_bias = d->experts_bias = true;
    d->shapes[0].sinks = d->shapes[1].sinks = true;
    msgl__decoder_read_experts(r, c, "intermediate_size");
    d->router.norm_topk = true;
    d->activation = MSGL_SWIGLU_CLAMPED;
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 128);
    if (!msgl__decoder_read_layer_types(r, c)) {
        for (int32_t l = 0; l < c->num_layers; l += 2) d->layer_flags[l] |= MSGL_LAYER_SLIDING;
    }
    if (msgl__json_get(r, "rope_scaling") == NULL && msgl__json_get(r, "rope_parameters") == NULL) {
        set_usual_rope(&c->ropes[0]);
    }
}

const msgl_arch msgl__arch_gpt_oss = {
    .name = "GptOssForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 64,
    .default_theta = 150000,
    .fixed = {{"swiglu_alpha", 1.702}, {"swiglu_limit", 7}}, // the kernels' constants
    .configure = configure,
};
