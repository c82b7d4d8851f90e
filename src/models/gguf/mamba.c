// SPDX-License-Identifier: Apache-2.0
//
// Models with Mamba-2: Granite 4 H and Bamba, which have one name, Falcon-H1, and Nemotron-H and
// Nemotron 3. What a layer is shows in its tensors. A is stored as -exp(A_log); limits of dt are
// not in the files, and so are those that the architectures have.
#include "models/gguf/arch.h"

#define MAMBA(model)                                                                               \
    {"ssm_in.", model ".in_proj.", MSGL_GGUF_AS_IT_IS},                                            \
        {"ssm_conv1d.", model ".conv1d.", MSGL_GGUF_TAPS},                                         \
        {"ssm_dt.bias", model ".dt_bias", MSGL_GGUF_AS_IT_IS},                                     \
        {"ssm_a", model ".A_log", MSGL_GGUF_AS_IT_IS}, {"ssm_d", model ".D", MSGL_GGUF_AS_IT_IS},  \
        {"ssm_norm.", model ".norm.", MSGL_GGUF_VECTOR},                                           \
    {                                                                                              \
        "ssm_out.", model ".out_proj.", MSGL_GGUF_AS_IT_IS                                         \
    }

#define MAMBA_FIELDS                                                                               \
    {MSGL_GGUF_CONFIG, "mamba_d_conv", "ssm.conv_kernel"},                                         \
        {MSGL_GGUF_CONFIG, "mamba_d_state", "ssm.state_size"},                                     \
        {MSGL_GGUF_CONFIG, "mamba_n_groups", "ssm.group_count"},                                   \
    {                                                                                              \
        MSGL_GGUF_CONFIG, "mamba_n_heads", "ssm.time_step_rank"                                    \
    }

// Fields of the product in, of its convolution and of one head's width.
static void set_mamba(msgl_gguf_model *m, const char *proj_bias, const char *conv_bias,
                      const char *head_dim)
{
    const int64_t heads = msgl__gguf_int(m, "ssm.time_step_rank", 0);
    msgl__gguf_set_bool(m, proj_bias, msgl__gguf_some_block_has(m, "ssm_in.bias"));
    msgl__gguf_set_bool(m, conv_bias, msgl__gguf_some_block_has(m, "ssm_conv1d.bias"));
    if (heads <= 0) return;
    msgl__gguf_set_int(m, head_dim, msgl__gguf_int(m, "ssm.inner_size", 0) / heads);
}

static void set_attention(msgl_gguf_model *m)
{
    msgl__gguf_kv_heads(m);
    msgl__gguf_set_bool(m, "attention_bias", msgl__gguf_some_block_has(m, "attn_q.bias"));
    msgl__gguf_set_bool(m, "mlp_bias", msgl__gguf_some_block_has(m, "ffn_up.bias"));
}

// ---- Granite 4 H and Bamba ----

// The block that every token has is called as a dense one where there are no experts.
static const msgl_gguf_name GRANITE_NAMES[] = {
    MAMBA("mamba"),
    {"ffn_gate.", "shared_mlp.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "shared_mlp.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down.", "shared_mlp.output_linear.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_shexp.", "shared_mlp.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "shared_mlp.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "shared_mlp.output_linear.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "block_sparse_moe.router.layer.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field GRANITE_FIELDS[] = {
    MAMBA_FIELDS,
    {MSGL_GGUF_CONFIG, "num_local_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "num_experts_per_tok", "expert_used_count"},
    {MSGL_GGUF_CONFIG, "shared_intermediate_size", "expert_shared_feed_forward_length"},
    {MSGL_GGUF_CONFIG, "attention_multiplier", "attention.scale"},
    {MSGL_GGUF_CONFIG, "embedding_multiplier", "embedding_scale"},
    {MSGL_GGUF_CONFIG, "residual_multiplier", "residual_scale"},
    {MSGL_GGUF_CONFIG, "logits_scaling", "logit_scale"}, // logits are divided by it
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// Attention rotates where rope.scaling.finetuned is true or missing: in Bamba, and in Granites that
// have no other layers, which are files of another name.
static bool rotates(const msgl_gguf_model *m)
{
    return !json_is_false(msgl__gguf_field(m, "rope.scaling.finetuned"));
}

// Without Granite's multipliers.
static bool is_bamba(const msgl_gguf_model *m)
{
    return rotates(m) && msgl__gguf_field(m, "logit_scale") == NULL &&
           msgl__gguf_field(m, "embedding_scale") == NULL && !msgl__gguf_has_experts(m);
}

static void derive_hybrid(msgl_gguf_model *m)
{
    set_mamba(m, "mamba_proj_bias", "mamba_conv_bias", "mamba_d_head");
    set_attention(m);
    msgl__gguf_kinds(m, "layer_types", "ssm_in.weight", "mamba", "attention");
}

static void derive_granite(msgl_gguf_model *m)
{
    derive_hybrid(m);
    msgl__gguf_set(m, m->config, "position_embedding_type",
                   json_string(rotates(m) ? "rope" : "nope"));
    if (!msgl__gguf_has_experts(m)) msgl__gguf_set_int(m, "num_local_experts", 0);
    if (msgl__gguf_field(m, "expert_shared_feed_forward_length") == NULL) {
        msgl__gguf_set_int(m, "shared_intermediate_size",
                           msgl__gguf_int(m, "feed_forward_length", 0));
    }
}

// Of Bamba and Falcon-H1, whose files leave out .weight of the norm.
static const msgl_gguf_name PLAIN_NAMES[] = {
    MAMBA("mamba"),
    {"ffn_norm.", "pre_ff_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_norm", "pre_ff_layernorm.weight", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate.", "feed_forward.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "feed_forward.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down.", "feed_forward.down_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field BAMBA_FIELDS[] = {
    MAMBA_FIELDS,
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive_bamba(msgl_gguf_model *m)
{
    derive_hybrid(m);
    msgl__gguf_partial_rotation(m);
}

// ---- Falcon-H1 ----

// Its multipliers are in the weights.
static const msgl_gguf_field FALCON_FIELDS[] = {
    MAMBA_FIELDS,
    {MSGL_GGUF_CONFIG, "mamba_d_ssm", "ssm.inner_size"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// A norm, where there is one, is behind the gate.
static void derive_falcon(msgl_gguf_model *m)
{
    set_mamba(m, "mamba_proj_bias", "mamba_conv_bias", "mamba_d_head");
    set_attention(m);
    msgl__gguf_set_bool(m, "mamba_rms_norm", msgl__gguf_some_block_has(m, "ssm_norm.weight"));
    msgl__gguf_set_bool(m, "mamba_norm_before_gate", false);
    msgl__gguf_set_bool(m, "projectors_bias", msgl__gguf_some_block_has(m, "ssm_out.bias"));
}

// ---- Nemotron-H ----

static const msgl_gguf_name NEMOTRON_NAMES[] = {
    MAMBA("mixer"),
    {"attn_norm.", "norm.", MSGL_GGUF_AS_IT_IS},
    {"attn_q.", "mixer.q_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_k.", "mixer.k_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_v.", "mixer.v_proj.", MSGL_GGUF_AS_IT_IS},
    {"attn_output.", "mixer.o_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "mixer.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down.", "mixer.down_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "mixer.gate.", MSGL_GGUF_AS_IT_IS},
    {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "mixer.shared_experts.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "mixer.shared_experts.down_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_latent_down.", "mixer.fc1_latent_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_latent_up.", "mixer.fc2_latent_proj.", MSGL_GGUF_AS_IT_IS},
    {"nextn.", "nextn.", MSGL_GGUF_AS_IT_IS}, // of blocks that are left
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

// rope.dimension_count is of no use: nothing rotates.
static const msgl_gguf_field NEMOTRON_FIELDS[] = {
    MSGL_GGUF_EXPERTS("n_routed_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, "moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {MSGL_GGUF_CONFIG, "n_shared_experts", "expert_shared_count"},
    {MSGL_GGUF_CONFIG, "norm_topk_prob", "expert_weights_norm"},
    {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},
    {MSGL_GGUF_CONFIG, "n_group", "expert_group_count"},
    {MSGL_GGUF_CONFIG, "topk_group", "expert_group_used_count"},
    {MSGL_GGUF_CONFIG, "moe_latent_size", "moe_latent_size"},
    {MSGL_GGUF_CONFIG, "layer_norm_epsilon", "attention.layer_norm_rms_epsilon"},
    {MSGL_GGUF_CONFIG, "layer_norm_epsilon", "attention.layer_norm_epsilon"},
    {MSGL_GGUF_CONFIG, "conv_kernel", "ssm.conv_kernel"},
    {MSGL_GGUF_CONFIG, "ssm_state_size", "ssm.state_size"},
    {MSGL_GGUF_CONFIG, "n_groups", "ssm.group_count"},
    {MSGL_GGUF_CONFIG, "mamba_num_heads", "ssm.time_step_rank"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_DERIVED, NULL, "nextn_predict_layers"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const char *nemotron_kind(const msgl_gguf_model *m, int64_t layer)
{
    if (msgl__gguf_block_has(m, layer, "ssm_in.weight")) return "mamba";
    if (msgl__gguf_block_has(m, layer, "ffn_gate_inp.weight")) return "moe";
    return msgl__gguf_block_has(m, layer, "attn_q.weight") ? "attention" : "mlp";
}

// Widths are an array with 0 for layers without a feed-forward block.
static void derive_nemotron(msgl_gguf_model *m)
{
    json_t *kinds = json_array();
    set_mamba(m, "use_bias", "use_conv_bias", "mamba_head_dim");
    set_attention(m);
    for (int64_t l = 0; l < msgl__gguf_layers(m); l++) {
        m->bad |= json_array_append_new(kinds, json_string(nemotron_kind(m, l)));
    }
    msgl__gguf_set(m, m->config, "layers_block_type", kinds);
    int64_t width = 0;
    for (int64_t l = 0; l < msgl__gguf_layers(m); l++) {
        const int64_t n = msgl__gguf_int_of(m, "feed_forward_length", l);
        width = n > width ? n : width;
    }
    msgl__gguf_set_int(m, "intermediate_size", width);
}

#define NEMOTRON                                                                                   \
    .hf = "NemotronHForCausalLM", .names = NEMOTRON_NAMES, .fields = NEMOTRON_FIELDS,              \
    .derive = derive_nemotron

const msgl_gguf_arch msgl__gguf_mamba[] = {
    {.name = "granitehybrid",
     .hf = "BambaForCausalLM",
     .takes = is_bamba,
     .pairs = true,
     .pairs_all = true,
     .names = PLAIN_NAMES,
     .fields = BAMBA_FIELDS,
     .derive = derive_bamba},
    {.name = "granitehybrid",
     .hf = "GraniteMoeHybridForCausalLM",
     .pairs = true,
     .names = GRANITE_NAMES,
     .fields = GRANITE_FIELDS,
     .derive = derive_granite},
    {.name = "falcon-h1",
     .hf = "FalconH1ForCausalLM",
     .names = PLAIN_NAMES,
     .fields = FALCON_FIELDS,
     .derive = derive_falcon},
    {.name = "nemotron_h", NEMOTRON},
    {.name = "nemotron_h_moe", NEMOTRON},
    {.name = NULL},
};
