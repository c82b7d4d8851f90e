// SPDX-License-Identifier: Apache-2.0
//
// Gemma 4: as Gemma 3 a norm before and behind every block, and windows in most layers, but with
// scores that are not scaled, norms of V, and one number that the stream is multiplied by behind
// each layer. Layers that see all tokens have wider heads, of which some pairs rotate, and maybe
// fewer of K, whose product is V's, too. Small models have embeddings for each layer and last
// layers without K and V (E2B, E4B); others have experts beside the dense block (26B-A4B).
#include <math.h>

#include "models/archs.h"
#include "models/decoder.h"

// per_layer_config, or the two fields that hubs have in its place.
static void read_shapes(msgl_json_reader *r, msgl_model_config *c)
{
    const bool k_is_v = msgl__json_bool_or(r, "attention_k_eq_v", false);
    msgl_attn_shape *full = &c->decoder.shapes[0], *sliding = &c->decoder.shapes[1];
    full->head_dim = sliding->head_dim = c->head_dim;
    full->num_kv_heads = sliding->num_kv_heads = c->num_kv_heads;
    full->k_is_v = k_is_v;
    if (!msgl__decoder_read_shapes(r, c)) {
        full->head_dim = msgl__json_int_or(r, "global_head_dim", 2, MSGL_MAX_HEAD_DIM, 512);
        const int32_t heads =
            msgl__json_int_or(r, "num_global_key_value_heads", 1, MSGL_MAX_HEADS, 0);
        if (k_is_v && heads > 0) full->num_kv_heads = heads;
    }
    for (int i = 0; i < 2 && r->status == 0; i++) {
        const msgl_attn_shape *s = &c->decoder.shapes[i];
        if (s->head_dim % 2 == 0 && c->num_heads % s->num_kv_heads == 0) continue;
        msgl__json_reject(r, MSGL_EFORMAT, i == 0 ? "global_head_dim" : "head_dim", NULL,
                          "an even number, beside key-value heads that divide "
                          "num_attention_heads");
    }
}

static void read_ropes(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_rope_config *full = &c->ropes[0];
    if (msgl__json_get(r, "rope_parameters") == NULL) {
        full->type = MSGL_ROPE_PROPORTIONAL;
        full->share = 0.25;
    }
    // The share is of the layer's own heads.
    if (full->dim == c->head_dim) full->dim = c->decoder.shapes[0].head_dim;
    c->ropes[1].dim = c->decoder.shapes[1].head_dim;
}

static void read_shared(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    const char *const field = "num_kv_shared_layers";
    d->shared_kv_layers = msgl__json_int_or(r, field, 0, c->num_layers - 1, 0);
    d->wide_shared_mlp = msgl__json_bool_or(r, "use_double_wide_mlp", false);
    for (int32_t l = 0; l < c->num_layers && r->status == 0; l++) {
        if (msgl__kv_owner(c, l) >= 0) continue;
        msgl__json_reject(r, MSGL_EFORMAT, field, msgl__json_get(r, field),
                          "so many that a layer of each kind in layer_types is before them");
    }
}

static void read_experts(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    msgl_decoder_names *n = &d->names;
    if (!msgl__json_bool_or(r, "enable_moe_block", false)) return;
    n->router = "router.proj";
    n->router_norm = "router.scale";
    n->choice_scale = "router.per_expert_scale";
    n->experts = NULL;
    n->all_gate_up = "experts.gate_up_proj";
    n->all_down = "experts.down_proj";
    n->mlp_post_norm = "post_feedforward_layernorm_1";
    n->moe_norm = "pre_feedforward_layernorm_2";
    n->moe_post_norm = "post_feedforward_layernorm_2";
    d->num_experts = msgl__json_int(r, "num_experts", 1, MSGL_MAX_EXPERTS);
    d->router.scale = 1;
    d->router.top_k = msgl__json_int(r, "top_k_experts", 1, msgl__max_top_k(d));
    d->router.norm_topk = true;
    d->moe_intermediate_size = msgl__json_int(r, "moe_intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    msgl__decoder_set_layers(c, 0, MSGL_LAYER_SPARSE);
}

static void read_per_layer(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    const char *const field = "vocab_size_per_layer_input";
    d->per_layer_dim =
        msgl__json_int_or(r, "hidden_size_per_layer_input", 0, MSGL_MAX_HEAD_DIM, 256);
    d->per_layer_vocab = msgl__json_int_or(r, field, 1, MSGL_MAX_VOCAB, 262144);
    if (r->status != 0 || d->per_layer_dim == 0 || d->per_layer_vocab >= c->vocab_size) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, field, msgl__json_get(r, field), "vocab_size or more");
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.attn_post_norm = "post_attention_layernorm";
    d->names.ffn_norm = "pre_feedforward_layernorm";
    d->names.ffn_post_norm = "post_feedforward_layernorm";
    d->names.layer_scale = "layer_scalar";
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->v_norm = true;
    d->attn_scale = 1;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->embed_scale = sqrtf((float)c->hidden_size);
    d->rounds_embed_scale = true;
    c->logit_cap = (float)msgl__json_num_or(r, "final_logit_softcapping", 1e-3, 1e6, 0);
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 512);
    if (!msgl__decoder_read_layer_types(r, c)) msgl__decoder_set_all_but(c, 6, MSGL_LAYER_SLIDING);
    // The last layer sees all tokens, whatever the list says, as in transformers.
    d->layer_flags[c->num_layers - 1] &= (uint16_t)~MSGL_LAYER_SLIDING;
    msgl__decoder_rope_of_windows(c);
    msgl__json_only(r, "use_bidirectional_attention", "vision");
    if (r->status == 0) read_shapes(r, c);
    if (r->status == 0) read_ropes(r, c);
    if (r->status == 0) read_shared(r, c);
    if (r->status == 0) read_experts(r, c);
    if (r->status == 0) read_per_layer(r, c);
}

// The text half of a model that also sees and hears; its other tensors are left.
static void configure_conditional(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    c->decoder.names.prefix = "model.language_model.";
}

#define GEMMA4                                                                                     \
    .family = &msgl__decoder_family, .default_head_dim = 256, .ties_by_default = true,             \
    .activation_key = "hidden_activation", .default_activation = "gelu_pytorch_tanh",              \
    .default_theta = 1e6, .local_rope = true, .local_theta = 10000

const msgl_arch msgl__arch_gemma4 = {
    GEMMA4,
    .name = "Gemma4ForCausalLM",
    .configure = configure,
};

const msgl_arch msgl__arch_gemma4_conditional = {
    GEMMA4,
    .name = "Gemma4ForConditionalGeneration",
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 262144, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
                     " \"num_hidden_layers\": 30, \"num_attention_heads\": 8,"
                     " \"num_key_value_heads\": 4, \"max_position_embeddings\": 131072}",
    .ignored = {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
                "model.embed_audio."},
    .configure = configure_conditional,
};
