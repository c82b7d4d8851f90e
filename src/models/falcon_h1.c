// SPDX-License-Identifier: Apache-2.0
//
// Falcon-H1: Mamba-2 and attention side by side in every layer, and multipliers of nearly every
// product. Those of linear parts are joined where they cost nothing: in the scale of scores, in the
// weights of convolution and norm, in what is added to the stream.
#include <math.h>

#include "models/archs.h"
#include "models/decoder.h"
#include "models/mamba_config.h"

static float multiplier(msgl_json_reader *r, const char *key)
{
    return (float)msgl__json_num_or(r, key, 1e-6, 1e6, 1);
}

// A list of n numbers; where it is missing all are 1.
static void multipliers(msgl_json_reader *r, const char *key, size_t n, float *out)
{
    const json_t *list = msgl__json_get(r, key);
    for (size_t i = 0; i < n; i++) out[i] = 1;
    if (list == NULL) return;
    for (size_t i = 0; i < n; i++) {
        const double v = json_number_value(json_array_get(list, i)); // 0 of what is none
        if (json_array_size(list) == n && v >= 1e-6 && v <= 1e6) {
            out[i] = (float)v;
            continue;
        }
        msgl__json_reject(r, MSGL_EFORMAT, key, list,
                          n == 2 ? "two numbers in 1e-06..1e+06" : "five numbers in 1e-06..1e+06");
        return;
    }
}

// A bias behind a product whose input is multiplied would have to be multiplied otherwise.
static void refuse_bias(msgl_json_reader *r, bool bias, const char *key, float factor,
                        const char *allowed)
{
    if (!bias || factor == 1 || r->status != 0) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), allowed);
}

static void read_mamba(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_mamba_keys KEYS = MSGL_MAMBA_KEYS;
    msgl_mamba_config *m = &c->decoder.mamba;
    msgl_mamba_keys keys = KEYS;
    float by[5];
    keys.width = "mamba_d_ssm";
    msgl__mamba_read(r, c, &keys);
    multipliers(r, "ssm_multipliers", 5, by);
    const float in = multiplier(r, "ssm_in_multiplier");
    m->z_scale = in * by[0];
    m->x_scale = in * by[1];
    m->b_scale = in * by[2];
    m->c_scale = in * by[3];
    m->dt_scale = in * by[4];
    m->beside_attention = true;
    m->out_scale = multiplier(r, "ssm_out_multiplier");
    m->out_bias = msgl__json_bool_or(r, "projectors_bias", false);
    if (!msgl__json_bool_or(r, "mamba_rms_norm", false)) {
        m->norm = MSGL_SSM_NORM_NONE;
    } else if (msgl__json_bool_or(r, "mamba_norm_before_gate", true)) {
        m->norm = MSGL_SSM_NORM_FIRST;
    }
    refuse_bias(r, m->proj_bias, "mamba_proj_bias", in, "false, with ssm_in_multiplier");
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    float mlp[2];
    d->names.mlp = "feed_forward";
    d->names.norm = "final_layernorm";
    d->names.ffn_norm = "pre_ff_layernorm";
    d->qkv_bias = d->o_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    d->embed_scale = multiplier(r, "embedding_multiplier");
    c->logit_scale = multiplier(r, "lm_head_multiplier");
    multipliers(r, "mlp_multipliers", 2, mlp);
    // silu(m gate) up = silu(m gate) (m up) / m: the norm before both is multiplied.
    d->ffn_norm_scale = mlp[0];
    d->ffn_out_scale = mlp[1] / mlp[0];
    // q, k and v are linear in what is multiplied before them.
    const float in = multiplier(r, "attention_in_multiplier");
    d->attn_scale *= in * in * multiplier(r, "key_multiplier");
    d->attn_out_scale = in * multiplier(r, "attention_out_multiplier");
    read_mamba(r, c);
    refuse_bias(r, d->mlp_bias, "mlp_bias", mlp[0], "false, with mlp_multipliers");
    refuse_bias(r, d->qkv_bias, "attention_bias", in, "false, with attention_in_multiplier");
    msgl__decoder_set_layers(c, 0, MSGL_LAYER_RECURRENT);
}

const msgl_arch msgl__arch_falcon_h1 = {
    .name = "FalconH1ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
