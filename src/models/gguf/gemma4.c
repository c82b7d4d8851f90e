// SPDX-License-Identifier: Apache-2.0
//
// Gemma 4. Norms are as in its folders. Keys of attention are those of layers that see all tokens,
// with _swa those of the others. V's product is missing where it is K's; the share of a head that
// rotates is in a tensor of factors: 1 for pairs that do, 1e30 for the others.
#include <string.h>

#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"post_attention_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_norm.", "pre_feedforward_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm.", "post_feedforward_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"layer_output_scale.weight", "layer_scalar", MSGL_GGUF_AS_IT_IS},
    // Of per-layer embeddings.
    {"inp_gate.", "per_layer_input_gate.", MSGL_GGUF_AS_IT_IS},
    {"proj.", "per_layer_projection.", MSGL_GGUF_AS_IT_IS},
    {"post_norm.", "post_per_layer_input_norm.", MSGL_GGUF_AS_IT_IS},
    // Of experts.
    {"ffn_gate_inp.scale", "router.scale", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "router.proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_exps.scale", "router.per_expert_scale", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm_1.", "post_feedforward_layernorm_1.", MSGL_GGUF_AS_IT_IS},
    {"pre_ffw_norm_2.", "pre_feedforward_layernorm_2.", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm_2.", "post_feedforward_layernorm_2.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    {MSGL_GGUF_CONFIG, "num_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "top_k_experts", "expert_used_count"},
    {MSGL_GGUF_CONFIG, "moe_intermediate_size", "expert_feed_forward_length"},
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"},
    {MSGL_GGUF_DERIVED, NULL, "attention.sliding_window_pattern"},
    {MSGL_GGUF_CONFIG, "final_logit_softcapping", "final_logit_softcapping"},
    {MSGL_GGUF_CONFIG, "rope_local_base_freq", "rope.freq_base_swa"},
    {MSGL_GGUF_CONFIG, "head_dim", "attention.key_length_swa"},
    {MSGL_GGUF_CONFIG, "global_head_dim", "attention.key_length"},
    {MSGL_GGUF_CONFIG, "num_kv_shared_layers", "attention.shared_kv_layers"},
    {MSGL_GGUF_CONFIG, "hidden_size_per_layer_input", "embedding_length_per_layer_input"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// Heads of K, where layers of the two kinds differ in them, and whether they are V's, too. Last
// layers, which attend to K and V of others, may have some of their own.
static void set_kv(msgl_gguf_model *m)
{
    const char *const key = "attention.head_count_kv";
    const int64_t own = msgl__gguf_layers(m) - msgl__gguf_int(m, "attention.shared_kv_layers", 0);
    bool k_is_v = false;
    for (int64_t l = msgl__gguf_layers(m) - 1; l >= 0; l--) {
        const char *hf =
            msgl__gguf_slides(m, l) ? "num_key_value_heads" : "num_global_key_value_heads";
        const int64_t heads = msgl__gguf_int_of(m, key, l);
        if (heads != 0) msgl__gguf_set_int(m, hf, heads);
        k_is_v = k_is_v || (l < own && !msgl__gguf_block_has(m, l, "attn_v.weight"));
    }
    if (json_is_array(json_object_get(m->config, "num_key_value_heads"))) { // no layer slides
        msgl__gguf_set_int(m, "num_key_value_heads", msgl__gguf_int_of(m, key, 0));
    }
    msgl__gguf_set_bool(m, "attention_k_eq_v", k_is_v);
}

// Widths of the feed-forward blocks are an array where last layers without K and V have twice the
// others'.
static void set_widths(msgl_gguf_model *m)
{
    const char *const key = "feed_forward_length";
    const int64_t first = msgl__gguf_int_of(m, key, 0), last = msgl__gguf_layers(m) - 1;
    if (!json_is_array(msgl__gguf_field(m, key))) return;
    msgl__gguf_set_int(m, "intermediate_size", first);
    msgl__gguf_set_bool(m, "use_double_wide_mlp", msgl__gguf_int_of(m, key, last) > first);
}

// Factors that are anything else stay a scaling by themselves.
static void set_rope(msgl_gguf_model *m)
{
    const json_t *factors = json_object_get(m->rope, "long_factor");
    const size_t n = json_array_size(factors);
    size_t rotated = 0, others = 0;
    for (size_t i = 0; i < n; i++) {
        const double f = json_number_value(json_array_get(factors, i));
        rotated += f == 1;
        others += f != 1 && f < 1e20;
    }
    if (n > 0 && others == 0) {
        // A little too large, as the reader rounds down.
        const double share = rotated < n ? ((double)rotated + 0.25) / (double)n : 1;
        m->bad |= json_object_clear(m->rope);
        msgl__gguf_set(m, m->rope, "rope_type", json_string("proportional"));
        msgl__gguf_set(m, m->rope, "partial_rotary_factor", json_real(share));
    }
    m->bad |= json_object_set(m->config, "rope_parameters", m->rope);
}

static void derive(msgl_gguf_model *m)
{
    const msgl_gguf_tensor *t = msgl__gguf_tensor_named(m->g, "per_layer_token_embd.weight");
    set_kv(m);
    set_widths(m);
    set_rope(m);
    msgl__gguf_sliding_layers(m);
    msgl__gguf_set_bool(m, "enable_moe_block", msgl__gguf_has_experts(m));
    if (t != NULL && t->ndim == 2) {
        msgl__gguf_set_int(m, "vocab_size_per_layer_input", t->dims[1]);
    }
}

const msgl_gguf_arch msgl__gguf_gemma4[] = {
    {.name = "gemma4",
     .hf = "Gemma4ForCausalLM",
     .names = NAMES,
     .fields = FIELDS,
     .derive = derive},
    {.name = NULL},
};
