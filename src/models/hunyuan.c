// SPDX-License-Identifier: Apache-2.0
//
// Hunyuan, dense and with experts: heads of q and K are normed behind their rotation, whose base is
// raised once for all lengths; every layer of the other has experts, and one that all tokens have.
#include <math.h>

#include "models/archs.h"
#include "models/decoder.h"

// rope_scaling of type dynamic with an alpha is none that depends on the length: the base is
// multiplied by alpha^(d / (d - 2)) (bloc97 2023, "NTK-aware scaled RoPE").
static void read_alpha(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_rope_config *p = &c->ropes[0];
    msgl_json_reader sub;
    if (p->type != MSGL_ROPE_DYNAMIC || !msgl__config_rope_section(r, &sub)) return;
    const double alpha = msgl__json_num_or(&sub, "alpha", 1, 1e9, 0);
    r->status = sub.status;
    if (alpha == 0 || r->status != 0) return;
    const double d = p->dim;
    p->type = MSGL_ROPE_DEFAULT;
    p->theta *= pow(alpha, d / (d - 2));
    p->factor = 1;
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.q_norm = "self_attn.query_layernorm";
    d->names.k_norm = "self_attn.key_layernorm";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qk_norm = MSGL_QK_NORM_HEAD;
    d->norms_behind = true;
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    read_alpha(r, c);
}

// A number, or a list with the same number for every layer.
static int32_t one_for_all(msgl_json_reader *r, const msgl_model_config *c, const char *key,
                           int32_t hi, int32_t usual)
{
    const json_t *v = msgl__json_get(r, key);
    if (!json_is_array(v)) return msgl__json_int_or(r, key, 1, hi, usual);
    const json_t *first = json_array_get(v, 0);
    bool good = json_array_size(v) == (size_t)c->num_layers && json_is_integer(first) &&
                json_integer_value(first) >= 1 && json_integer_value(first) <= hi;
    for (size_t i = 0; i < json_array_size(v) && good; i++) {
        good = json_equal(first, json_array_get(v, i)) != 0;
    }
    if (good) return (int32_t)json_integer_value(first);
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, v, "a number, or the same one for every layer");
    return usual;
}

static void configure_moe(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    configure(r, c);
    d->names.router = "mlp.gate.wg";
    d->names.shared = "mlp.shared_mlp";
    d->names.shared_gate = NULL;
    d->num_experts = one_for_all(r, c, "num_experts", MSGL_MAX_EXPERTS, 1);
    d->router = (msgl_router){.top_k = one_for_all(r, c, "moe_topk", msgl__max_top_k(d), 1),
                              .norm_topk = true,
                              .scale = 1};
    // As transformers has it: of experts too, whatever moe_intermediate_size says beside it.
    d->moe_intermediate_size = d->shared_intermediate_size =
        msgl__json_int(r, "intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    msgl__decoder_set_layers(c, 0, MSGL_LAYER_SPARSE);
}

#define HUNYUAN .family = &msgl__decoder_family, .fixed = {{"use_cla", 0}, {"use_qk_norm", 1}}

const msgl_arch msgl__arch_hunyuan = {
    HUNYUAN,
    .name = "HunYuanDenseV1ForCausalLM",
    .configure = configure,
};

const msgl_arch msgl__arch_hunyuan_moe = {
    HUNYUAN,
    .name = "HunYuanMoEV1ForCausalLM",
    .only_experts = true,
    .configure = configure_moe,
};
