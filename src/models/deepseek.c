// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V2 and V3, and models of their form (Kimi-K2 is a DeepseekV3ForCausalLM, GLM-4.7-Flash
// has its own name): multi-head latent attention, first some dense layers, then experts with some
// that every token has.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/archs.h"
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

static void read_sparse_layers(msgl_json_reader *r, msgl_model_config *c, int32_t usual)
{
    const int32_t dense = msgl__json_int_or(r, "first_k_dense_replace", 0, INT32_MAX, usual);
    const int32_t every = msgl__json_int_or(r, "moe_layer_freq", 1, INT32_MAX, 1);
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (l >= dense && l % every == 0) continue;
        c->decoder.layer_flags[l] &= (uint8_t)~MSGL_LAYER_SPARSE;
    }
}

void msgl__deepseek_read_mlp_layer_types(msgl_json_reader *r, msgl_model_config *c, int32_t usual)
{
    const char *const key = "mlp_layer_types";
    const json_t *types = msgl__json_get(r, key);
    if (types == NULL) {
        read_sparse_layers(r, c, usual);
        return;
    }
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->num_layers) {
        msgl__json_reject(r, MSGL_EFORMAT, key, types, "a list of num_hidden_layers");
        return;
    }
    for (int32_t l = 0; l < c->num_layers; l++) {
        const json_t *v = json_array_get(types, (size_t)l);
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        if (strcmp(name, "dense") == 0) {
            c->decoder.layer_flags[l] &= (uint8_t)~MSGL_LAYER_SPARSE;
        } else if (strcmp(name, "sparse") == 0) {
            c->decoder.layer_flags[l] |= MSGL_LAYER_SPARSE;
        } else {
            msgl__json_reject(r, MSGL_EFORMAT, key, v, "dense, sparse");
            return;
        }
    }
}

// What all of them have; false: nothing is to be said about experts.
static bool configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.shared = "mlp.shared_experts";
    d->names.shared_gate = NULL;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    d->interleaved = msgl__json_bool_or(r, "rope_interleave", true);
    msgl__decoder_read_latent(r, c);
    if (r->status != 0) return false;
    d->attn_scale = attn_scale(c);
    if (msgl__json_get(r, "n_routed_experts") == NULL) return false;
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    const int32_t shared = msgl__json_int_or(r, "n_shared_experts", 0, MSGL_MAX_EXPERTS, 0);
    d->router.scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 1);
    if (r->status != 0) return false;
    d->shared_intermediate_size = shared * d->moe_intermediate_size;
    return true;
}

// Groups of experts, of which a token's come from some only.
static void read_groups(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_router *router = &c->decoder.router;
    const int32_t experts = c->decoder.num_experts, least = router->group_pairs ? 2 : 1;
    const int32_t groups = msgl__json_int_or(r, "n_group", 1, MSGL_MAX_EXPERT_GROUPS, 1);
    router->num_groups = groups;
    router->top_groups = msgl__json_int_or(r, "topk_group", 1, groups, 1);
    if (r->status != 0 || groups == 1) return;
    if (experts % groups != 0 || experts / groups < least) {
        char allowed[80];
        snprintf(allowed, sizeof allowed, "a divisor of n_routed_experts %d, %d or more a group",
                 (int)experts, (int)least);
        msgl__json_reject(r, MSGL_EFORMAT, "n_group", msgl__json_get(r, "n_group"), allowed);
    } else if (router->top_k > experts / groups * router->top_groups) {
        msgl__json_reject(r, MSGL_EFORMAT, "num_experts_per_tok",
                          msgl__json_get(r, "num_experts_per_tok"),
                          "no more than topk_group groups have");
    }
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
    read_sparse_layers(r, c, 0);
    router->norm_topk = false;
    if (strcmp(msgl__json_str_or(r, "topk_method", METHODS[0]), METHODS[1]) == 0) read_groups(r, c);
}

bool msgl__deepseek_configure_sigmoids(msgl_json_reader *r, msgl_model_config *c)
{
    static const char *const METHODS[] = {"noaux_tc", "noaux_tc"};
    msgl_router *router = &c->decoder.router;
    if (!configure(r, c)) return false;
    read_method(r, METHODS);
    c->decoder.names.correction = "mlp.gate.e_score_correction_bias";
    router->scoring = MSGL_SCORE_SIGMOID;
    router->norm_topk = msgl__json_bool_or(r, "norm_topk_prob", true);
    router->group_pairs = true;
    read_groups(r, c);
    return true;
}

static void configure_v3(msgl_json_reader *r, msgl_model_config *c)
{
    if (msgl__deepseek_configure_sigmoids(r, c)) read_sparse_layers(r, c, 0);
}

static void configure_glm(msgl_json_reader *r, msgl_model_config *c)
{
    if (msgl__deepseek_configure_sigmoids(r, c)) msgl__deepseek_read_mlp_layer_types(r, c, 1);
}

#define LATENT                                                                                     \
    .family = &msgl__decoder_family, .head_dim_key = "qk_rope_head_dim",                           \
    .ignores_layers_behind = true, .mtp = msgl__mtp_of_deepseek

const msgl_arch msgl__arch_deepseek_v2 = {LATENT, .name = "DeepseekV2ForCausalLM",
                                          .configure = configure_v2};
const msgl_arch msgl__arch_deepseek_v3 = {LATENT, .name = "DeepseekV3ForCausalLM",
                                          .configure = configure_v3};
const msgl_arch msgl__arch_glm4_moe_lite = {LATENT, .name = "Glm4MoeLiteForCausalLM",
                                            .configure = configure_glm};
