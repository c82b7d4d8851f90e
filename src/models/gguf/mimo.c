// SPDX-License-Identifier: Apache-2.0
//
// MiMo-V2. Heads of K and V are an array, as are the layers with a window, both with the blocks
// that predict further tokens, which are last and are left. Sinks and experts show in the tensors.
// The window is what hubs' folders have, which does not count a query's own token.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"attn_sinks.weight", "self_attn.attention_sink_bias", MSGL_GGUF_AS_IT_IS},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", MSGL_GGUF_AS_IT_IS},
    {"nextn.", "nextn.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    MSGL_GGUF_EXPERTS("n_routed_experts", "moe_intermediate_size"),
    {MSGL_GGUF_CONFIG, "n_group", "expert_group_count"},
    {MSGL_GGUF_CONFIG, "topk_group", "expert_group_used_count"},
    {MSGL_GGUF_CONFIG, "norm_topk_prob", "expert_weights_norm"},
    {MSGL_GGUF_CONFIG, "routed_scaling_factor", "expert_weights_scale"},
    {MSGL_GGUF_CONFIG, "v_head_dim", "attention.value_length"},
    {MSGL_GGUF_CONFIG, "attention_value_scale", "attention.value_scale"},
    {MSGL_GGUF_CONFIG, "sliding_window_size", "attention.sliding_window"},
    {MSGL_GGUF_DERIVED, NULL, "attention.sliding_window_pattern"},
    {MSGL_GGUF_CONFIG, "swa_rope_theta", "rope.freq_base_swa"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_DERIVED, NULL, "nextn_predict_layers"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// What layers of the two kinds differ in.
static void set_shapes(msgl_gguf_model *m)
{
    bool sinks[2] = {false, false};
    for (int64_t l = msgl__gguf_layers(m) - 1; l >= 0; l--) {
        const bool window = msgl__gguf_slides(m, l);
        const char *hf = window ? "swa_num_key_value_heads" : "num_key_value_heads";
        const int64_t heads = msgl__gguf_int_of(m, "attention.head_count_kv", l);
        if (heads != 0) msgl__gguf_set_int(m, hf, heads);
        sinks[window] = sinks[window] || msgl__gguf_block_has(m, l, "attn_sinks.weight");
    }
    msgl__gguf_set_bool(m, "add_full_attention_sink_bias", sinks[0]);
    msgl__gguf_set_bool(m, "add_swa_attention_sink_bias", sinks[1]);
}

static void derive(msgl_gguf_model *m)
{
    set_shapes(m);
    msgl__gguf_sliding_layers(m);
    msgl__gguf_partial_rotation(m);
    msgl__gguf_kinds(m, "mlp_layer_types", "ffn_gate_inp.weight", "sparse", "dense");
    msgl__gguf_set_int(m, "num_hidden_layers", msgl__gguf_layers(m));
    if (msgl__gguf_field(m, "attention.value_scale") == NULL) {
        msgl__gguf_set(m, m->config, "attention_value_scale", json_null());
    }
}

const msgl_gguf_arch msgl__gguf_mimo[] = {
    {.name = "mimo2",
     .hf = "MiMoV2FlashForCausalLM",
     .names = NAMES,
     .fields = FIELDS,
     .derive = derive},
    {.name = NULL},
};
