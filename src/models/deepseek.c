// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V2 and V3, and models of their form (Kimi-K2 is a DeepseekV3ForCausalLM, GLM-4.7-Flash
// and Kimi-K2.5 have names of their own): multi-head latent attention, first some dense layers,
// then experts with some that every token has.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/archs.h"
#include "models/decoder_experts.h"
#include "models/deepseek.h"

// The softmax's scale: yarn raises it by the square of the factor that its rotation would have had
// (Peng et al. 2023, section 3.4, as DeepSeek's own code has it).
static float attn_scale(const msgl_model_config *c)
{
    const msgl_latent_config *l = &c->decoder.latent;
    const msgl_rope_config *rope = &c->ropes[0];
    double mscale = 1;
    if (rope->type == MSGL_ROPE_YARN && rope->mscale_all_dim > 0 && rope->factor > 1) {
        mscale = 0.1 * rope->mscale_all_dim * log(rope->factor) + 1;
    }
    return (float)(mscale * mscale / sqrt((double)(l->nope + l->rotary)));
}

void msgl__decoder_read_latent(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_latent_config *l = &c->decoder.latent;
    l->rank = msgl__json_int(r, "kv_lora_rank", 8, MSGL_ATTN_MAX_LATENT);
    l->q_rank = msgl__json_int_or(r, "q_lora_rank", 1, MSGL_MAX_HIDDEN, 0);
    l->nope = msgl__json_int(r, "qk_nope_head_dim", 1, MSGL_MAX_HEAD_DIM);
    l->v_dim = msgl__json_int(r, "v_head_dim", 1, MSGL_MAX_HEAD_DIM);
    l->rotary = c->head_dim;
    if (r->status != 0) return;
    if (l->rank % 8 != 0 || (l->rank + l->rotary) % 8 != 0 ||
        l->rank + l->rotary > MSGL_ATTN_MAX_LATENT) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "kv_lora_rank", msgl__json_get(r, "kv_lora_rank"),
                          "a multiple of 8, as is its sum with qk_rope_head_dim, of up to 576");
    }
}

void msgl__deepseek_read_mlp_layer_types(msgl_json_reader *r, msgl_model_config *c, int32_t usual)
{
    if (!msgl__decoder_read_mlp_layer_types(r, c)) msgl__decoder_read_dense_layers(r, c, usual);
}

// What all of them have; false: nothing is to be said about experts.
static bool configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    d->interleaved = msgl__json_bool_or(r, "rope_interleave", true);
    msgl__decoder_read_latent(r, c);
    if (r->status != 0) return false;
    d->attn_scale = attn_scale(c);
    if (msgl__json_get(r, "n_routed_experts") == NULL) return false;
    msgl__decoder_read_routed_experts(r, c);
    return r->status == 0;
}

static void read_method(msgl_json_reader *r, const char *const methods[2])
{
    const char *key = "topk_method", *method = msgl__json_str_or(r, key, methods[0]);
    if (strcmp(method, methods[0]) == 0 || strcmp(method, methods[1]) == 0) return;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "%s%s%s", methods[0], methods[0] != methods[1] ? ", " : "",
             methods[0] != methods[1] ? methods[1] : "");
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), allowed);
}

// V2: the softmax's values, and groups by their best expert. norm_topk_prob is not looked at, as in
// transformers.
static void configure_v2(msgl_json_reader *r, msgl_model_config *c)
{
    static const char *const METHODS[] = {"greedy", "group_limited_greedy"};
    msgl_router *router = &c->decoder.router;
    if (!configure(r, c)) return;
    read_method(r, METHODS);
    msgl__decoder_read_dense_layers(r, c, 0);
    router->norm_topk = false;
    if (strcmp(msgl__json_str_or(r, "topk_method", METHODS[0]), METHODS[1]) == 0) {
        msgl__decoder_read_groups(r, c, "n_group");
    }
}

bool msgl__deepseek_configure_sigmoids(msgl_json_reader *r, msgl_model_config *c)
{
    static const char *const METHODS[] = {"noaux_tc", "noaux_tc"};
    if (!configure(r, c)) return false;
    read_method(r, METHODS);
    msgl__decoder_read_sigmoids(r, c, true);
    return true;
}

static void configure_v3(msgl_json_reader *r, msgl_model_config *c)
{
    if (msgl__deepseek_configure_sigmoids(r, c)) msgl__decoder_read_dense_layers(r, c, 0);
}

// Kimi-K2 that also sees: its other tensors are left.
static void configure_kimi(msgl_json_reader *r, msgl_model_config *c)
{
    configure_v3(r, c);
    c->decoder.names.prefix = "language_model.model.";
    c->decoder.names.head = "language_model.lm_head";
}

static void configure_glm(msgl_json_reader *r, msgl_model_config *c)
{
    if (msgl__deepseek_configure_sigmoids(r, c)) msgl__deepseek_read_mlp_layer_types(r, c, 1);
}

const msgl_arch msgl__arch_deepseek_v2 = {MSGL_DEEPSEEK, .name = "DeepseekV2ForCausalLM",
                                          .configure = configure_v2};
const msgl_arch msgl__arch_deepseek_v3 = {MSGL_DEEPSEEK, .name = "DeepseekV3ForCausalLM",
                                          .configure = configure_v3};
const msgl_arch msgl__arch_glm4_moe_lite = {MSGL_DEEPSEEK, .name = "Glm4MoeLiteForCausalLM",
                                            .configure = configure_glm};

const msgl_arch msgl__arch_kimi_k25 = {
    MSGL_DEEPSEEK,
    .name = "KimiK25ForConditionalGeneration",
    .other_name = "Kimi_K25ForConditionalGeneration",
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 129280, \"hidden_size\": 7168, \"intermediate_size\": 18432,"
                     " \"num_hidden_layers\": 61, \"num_attention_heads\": 128,"
                     " \"num_key_value_heads\": 128, \"max_position_embeddings\": 4096,"
                     " \"kv_lora_rank\": 512, \"q_lora_rank\": 1536, \"qk_nope_head_dim\": 128,"
                     " \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"n_routed_experts\": 256,"
                     " \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"n_group\": 8,"
                     " \"topk_group\": 4, \"moe_intermediate_size\": 2048,"
                     " \"routed_scaling_factor\": 2.5, \"first_k_dense_replace\": 3}",
    .ignored = {"vision_tower.", "mm_projector.", "model.vision_tower.", "model.mm_projector."},
    // As transformers 5 has them in memory, and as it writes them (a vision tower's rule hits
    // them).
    .renamed = {{"language_model.model.", "model.language_model."},
                {"language_model.lm_head.", "lm_head."},
                {"language_model.model.layers.", "language_model.model.blocks."}},
    .configure = configure_kimi,
};
