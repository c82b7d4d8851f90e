// SPDX-License-Identifier: Apache-2.0
//
// Nemotron-H and Nemotron 3: every layer is one block alone, Mamba-2, attention without rotation,
// or a feed-forward block without a gate, dense or of DeepSeek-V3's experts, which may read a
// latent vector.
#include <float.h>
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/decoder_experts.h"
#include "models/mamba_config.h"

enum {
    MAMBA = MSGL_LAYER_RECURRENT | MSGL_LAYER_NO_FFN,
    ATTENTION = MSGL_LAYER_NO_FFN,
    DENSE = MSGL_LAYER_NO_MIXER,
    SPARSE = MSGL_LAYER_NO_MIXER | MSGL_LAYER_SPARSE,
};

// As hubs have them and as transformers 5 writes them.
static const msgl_layer_kind KINDS[] = {{"mamba", MAMBA},         {"linear_attention", MAMBA},
                                        {"attention", ATTENTION}, {"full_attention", ATTENTION},
                                        {"mlp", DENSE},           {"moe", SPARSE}};

// One character a layer: "M-*E" is Mamba-2, a dense block, attention, experts.
static void read_pattern(msgl_json_reader *r, msgl_model_config *c)
{
    const char *const key = "hybrid_override_pattern";
    static const struct {
        char symbol;
        uint16_t flags;
    } SYMBOLS[] = {{'M', MAMBA}, {'*', ATTENTION}, {'-', DENSE}, {'E', SPARSE}};
    const json_t *v = msgl__json_get(r, key);
    const char *pattern = json_is_string(v) ? json_string_value(v) : "";
    for (int32_t l = 0; l < c->num_layers; l++) {
        size_t i = 0;
        while (i < MSGL_COUNT(SYMBOLS) && SYMBOLS[i].symbol != pattern[l]) i++;
        if (i == MSGL_COUNT(SYMBOLS)) {
            msgl__json_reject(r, MSGL_EUNSUPPORTED, key, v, "a string of M, *, - and E");
            return;
        }
        c->decoder.layer_flags[l] = SYMBOLS[i].flags;
    }
}

static void read_layers(msgl_json_reader *r, msgl_model_config *c)
{
    if (msgl__decoder_read_kinds(r, c, "layers_block_type", KINDS, MSGL_COUNT(KINDS))) return;
    if (msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS))) return;
    read_pattern(r, c);
}

static bool has_experts(const msgl_model_config *c)
{
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (msgl__layer_has(&c->decoder, l, MSGL_LAYER_SPARSE)) return true;
    }
    return false;
}

// Which layers have them is known.
static void read_experts(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    uint16_t flags[MSGL_MAX_LAYERS];
    memcpy(flags, d->layer_flags, sizeof flags);
    msgl__decoder_read_routed_experts(r, c);
    msgl__decoder_read_sigmoids(r, c, true);
    memcpy(d->layer_flags, flags, sizeof flags);
    if (d->pointwise == MSGL_POINTWISE_XIELU) { // whose parameters experts have not
        const char *const act = "mlp_hidden_act";
        msgl__json_reject(r, MSGL_EUNSUPPORTED, act, msgl__json_get(r, act), "relu2, for experts");
    }
    d->shared_intermediate_size =
        msgl__json_int(r, "moe_shared_expert_intermediate_size", 1, MSGL_MAX_INTERMEDIATE);
    d->moe_latent_size = msgl__json_int_or(r, "moe_latent_size", 1, MSGL_MAX_HIDDEN, 0);
    d->names.latent_in = "mixer.fc1_latent_proj";
    d->names.latent_out = "mixer.fc2_latent_proj";
    d->names.router = "mixer.gate";
    d->names.correction = "mixer.gate.e_score_correction_bias";
    d->names.experts = "mixer.experts";
    d->names.all_gate_up = "mixer.experts.up_proj";
    d->names.all_down = "mixer.experts.down_proj";
    d->names.shared = "mixer.shared_experts";
}

static void read_mamba(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_mamba_keys KEYS = {
        .heads = {"mamba_num_heads", 128},
        .groups = {"n_groups", 8},
        .head_dim = {"mamba_head_dim", 64},
        .state_dim = {"ssm_state_size", 128},
        .taps = {"conv_kernel", 4},
        .expand = {"expand", 2},
        .conv_bias = "use_conv_bias",
        .proj_bias = "use_bias",
    };
    msgl__mamba_read(r, c, &KEYS);
    msgl__json_only(r, "mamba_hidden_act", "silu");
    // Not time_step_limit, which the files have, too.
    c->decoder.mamba.dt_min = (float)msgl__json_num_or(r, "time_step_min", 0, 1e6, 0.001);
    c->decoder.mamba.dt_max = FLT_MAX;
}

static void name_tensors(msgl_decoder_names *n)
{
    n->prefix = "backbone.";
    n->embed = "embeddings";
    n->norm = "norm_f";
    n->attn_norm = n->ffn_norm = "norm"; // of a layer's one block
    n->mamba = n->attn = n->mlp = "mixer";
    n->out = "mixer.o_proj";
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    name_tensors(&c->decoder.names);
    c->decoder.rms_eps = (float)msgl__json_num_or(r, "layer_norm_epsilon", 0, 1, 1e-5);
    c->decoder.mlp_bias = msgl__json_bool_or(r, "mlp_bias", false);
    c->ropes[0].type = MSGL_ROPE_NONE;
    read_layers(r, c);
    if (r->status == 0) read_mamba(r, c);
    if (r->status == 0 && has_experts(c)) read_experts(r, c);
}

const msgl_arch msgl__arch_nemotron_h = {
    .name = "NemotronHForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .activation_key = "mlp_hidden_act",
    .default_activation = "relu2",
    .plain_mlp = true,
    .layer_lists = {"layers_block_type", "layer_types", "hybrid_override_pattern"},
    .ignored = {"mtp."},
    .ignores_layers_behind = true, // as files of GGUF have what predicts further tokens
    .mtp = msgl__mtp_of_nemotron,
    .fixed = {{"attention_bias", 0}, {"n_shared_experts", 1}},
    .configure = configure,
};
