// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_experts.h"

#include <stdio.h>

void msgl__decoder_read_dense_layers(msgl_json_reader *r, msgl_model_config *c, int32_t usual)
{
    const int32_t dense = msgl__json_int_or(r, "first_k_dense_replace", 0, INT32_MAX, usual);
    const int32_t every = msgl__json_int_or(r, "moe_layer_freq", 1, INT32_MAX, 1);
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (l >= dense && l % every == 0) continue;
        c->decoder.layer_flags[l] &= (uint16_t)~MSGL_LAYER_SPARSE;
    }
}

void msgl__decoder_read_routed_experts(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.shared = "mlp.shared_experts";
    d->names.shared_gate = NULL;
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    msgl__decoder_read_shared_experts(r, c, "n_shared_experts", 0, d->moe_intermediate_size);
    d->router.scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 1);
}

void msgl__decoder_read_groups(msgl_json_reader *r, msgl_model_config *c, const char *key)
{
    msgl_router *router = &c->decoder.router;
    const int32_t experts = c->decoder.num_experts, least = router->group_pairs ? 2 : 1;
    const int32_t groups = msgl__json_int_or(r, key, 1, MSGL_MAX_EXPERT_GROUPS, 1);
    router->num_groups = groups;
    router->top_groups = msgl__json_int_or(r, "topk_group", 1, groups, 1);
    if (r->status != 0 || groups == 1) return;
    if (experts % groups != 0 || experts / groups < least) {
        char allowed[80];
        snprintf(allowed, sizeof allowed, "a divisor of n_routed_experts %d, %d or more a group",
                 (int)experts, (int)least);
        msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key), allowed);
    } else if (router->top_k > experts / groups * router->top_groups) {
        msgl__json_reject(r, MSGL_EFORMAT, "num_experts_per_tok",
                          msgl__json_get(r, "num_experts_per_tok"),
                          "no more than topk_group groups have");
    }
}

void msgl__decoder_read_sigmoids(msgl_json_reader *r, msgl_model_config *c, bool norms)
{
    msgl_router *router = &c->decoder.router;
    c->decoder.names.correction = "mlp.gate.e_score_correction_bias";
    router->scoring = MSGL_SCORE_SIGMOID;
    router->norm_topk = msgl__json_bool_or(r, "norm_topk_prob", norms);
    router->group_pairs = true;
    msgl__decoder_read_groups(r, c, "n_group");
}
