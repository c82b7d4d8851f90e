// SPDX-License-Identifier: Apache-2.0
//
// Gemma 1: Llama with norms that multiply by 1 + weight, a gate by GELU and embeddings times
// sqrt(hidden_size). Gemma 2 and 3: also norms behind every block, windows in some layers. Gemma 2
// caps scores and logits; Gemma 3 norms q and k, and rotates layers with a window by angles of
// their own.
#include <math.h>

#include "core/dtype.h"
#include "models/archs.h"
#include "models/decoder.h"

static float positive_or_none(msgl_json_reader *r, const char *key, double usual)
{
    // null turns it off; a config without the field has what the model was made with.
    const bool absent = json_object_get(r->obj, key) == NULL;
    return (float)msgl__json_num_or(r, key, 1e-3, 1e6, absent ? usual : 0);
}

static void configure_1(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->norm_plus_one = true;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->embed_scale = sqrtf((float)c->hidden_size);
    d->rounds_embed_scale = true;
    if (msgl__json_bool_or(r, "use_bidirectional_attention", false)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "use_bidirectional_attention",
                          msgl__json_get(r, "use_bidirectional_attention"), "false");
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure_1(r, c);
    d->names.attn_post_norm = "post_attention_layernorm";
    d->names.ffn_norm = "pre_feedforward_layernorm";
    d->names.ffn_post_norm = "post_feedforward_layernorm";
    d->attn_scale = 1 / sqrtf((float)msgl__json_num_or(r, "query_pre_attn_scalar", 1, 1e6, 256));
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 4096);
}

static void configure_2(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    c->decoder.attn_softcap = positive_or_none(r, "attn_logit_softcapping", 50);
    c->logit_cap = positive_or_none(r, "final_logit_softcapping", 30);
    if (msgl__decoder_read_layer_types(r, c)) return;
    for (int32_t l = 0; l < c->num_layers; l += 2) c->decoder.layer_flags[l] |= MSGL_LAYER_SLIDING;
}

// Of every `pattern` layers the last has no window.
static void configure_3(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure(r, c);
    d->qk_norm = MSGL_QK_NORM_HEAD;
    const int32_t pattern = msgl__json_int_or(r, "sliding_window_pattern", 1, INT32_MAX, 6);
    if (!msgl__decoder_read_layer_types(r, c)) {
        msgl__decoder_set_all_but(c, pattern, MSGL_LAYER_SLIDING);
    }
    msgl__decoder_rope_of_windows(c);
}

static void configure_3_text(msgl_json_reader *r, msgl_model_config *c)
{
    configure_3(r, c);
    c->logit_cap = positive_or_none(r, "final_logit_softcapping", 0);
}

// The text half of a model that also sees; its other tensors are left.
static void configure_3_vision(msgl_json_reader *r, msgl_model_config *c)
{
    configure_3(r, c);
    c->decoder.names.prefix = "language_model.model.";
    c->decoder.names.head = "language_model.lm_head";
}

#define GEMMA_1                                                                                    \
    .family = &msgl__decoder_family, .default_head_dim = 256, .ties_by_default = true,             \
    .default_activation = "gelu_pytorch_tanh"
#define GEMMA GEMMA_1, .activation_key = "hidden_activation"
#define GEMMA_3 GEMMA, .default_theta = 1e6, .local_rope = true, .local_theta = 10000

const msgl_arch msgl__arch_gemma = {
    GEMMA_1,
    .name = "GemmaForCausalLM",
    .gelu_is_tanh = true,
    .configure = configure_1,
};

const msgl_arch msgl__arch_gemma2 = {
    GEMMA,
    .name = "Gemma2ForCausalLM",
    .configure = configure_2,
};

const msgl_arch msgl__arch_gemma3 = {
    GEMMA_3,
    .name = "Gemma3ForCausalLM",
    .configure = configure_3_text,
};

const msgl_arch msgl__arch_gemma3_vision = {
    GEMMA_3,
    .name = "Gemma3ForConditionalGeneration",
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
                     " \"num_hidden_layers\": 26, \"num_attention_heads\": 8,"
                     " \"num_key_value_heads\": 4, \"max_position_embeddings\": 131072}",
    .ignored = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                "model.multi_modal_projector."},
    // As transformers 5 has them in memory, and writes them with save_original_format=False.
    .renamed = {{"language_model.model.", "model.language_model."},
                {"language_model.lm_head.", "lm_head."}},
    .configure = configure_3_vision,
};
