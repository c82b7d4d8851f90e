// SPDX-License-Identifier: Apache-2.0
//
// Command R and R+ (Cohere), Command R7B and A (Cohere 2): one LayerNorm without bias in front of
// attention and feed-forward block, which stand beside each other; neighbours rotate as pairs.
#include "models/archs.h"
#include "models/decoder.h"

static void configure_both(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.ffn_norm = NULL;
    d->layer_norm = d->parallel = d->interleaved = true;
    d->rms_eps = (float)msgl__json_num_or(r, "layer_norm_eps", 0, 1, 1e-5);
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    c->logit_scale = (float)msgl__json_num_or(r, "logit_scale", 1e-6, 1e6, 0.0625);
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    configure_both(r, c);
    if (msgl__json_bool_or(r, "use_qk_norm", false)) c->decoder.qk_norm = MSGL_QK_NORM_LAYER;
}

// Only layers with a window rotate; without layer_types all but every fourth have one.
static void configure_2(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure_both(r, c);
    msgl__decoder_read_window(r, c, 4096);
    // Without one such layers rotate, and see all tokens.
    if (d->sliding_window == 0) d->sliding_window = c->max_position;
    const int32_t every = msgl__json_int_or(r, "sliding_window_pattern", 1, INT32_MAX, 4);
    if (!msgl__decoder_read_layer_types(r, c)) {
        msgl__decoder_set_all_but(c, every, MSGL_LAYER_SLIDING);
    }
    msgl__decoder_no_rope_without_window(c);
}

const msgl_arch msgl__arch_cohere = {
    .name = "CohereForCausalLM",
    .family = &msgl__decoder_family,
    .default_theta = 500000,
    .ties_by_default = true,
    .configure = configure,
};

const msgl_arch msgl__arch_cohere2 = {
    .name = "Cohere2ForCausalLM",
    .family = &msgl__decoder_family,
    .ties_by_default = true,
    .fixed = {{"use_parallel_block", 1}, {"use_gated_activation", 1}},
    .configure = configure_2,
};
