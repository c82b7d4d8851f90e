// SPDX-License-Identifier: Apache-2.0
//
// Phi-3 and Phi-4: q, k and v in one tensor, gate and up in another; LongRoPE's factors are
// tensors. A window of 0 is none. Phi-3.5-MoE and GRIN-MoE: q, k and v apart, and experts.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"attn_qkv.", "self_attn.qkv_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "mlp.gate_up_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

#define PHI                                                                                        \
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"},                              \
        {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},                                         \
        {MSGL_GGUF_ROPE, "short_factor", "rope_factors_short.weight"}, /* tensors */               \
    {                                                                                              \
        MSGL_GGUF_ROPE, "long_factor", "rope_factors_long.weight"                                  \
    }

static const msgl_gguf_field FIELDS[] = {
    PHI,
    {MSGL_GGUF_ROPE, "attention_factor", "rope.scaling.attn_factor"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive(msgl_gguf_model *m)
{
    msgl__gguf_partial_rotation(m);
    msgl__gguf_long_factors(m);
    if (msgl__gguf_num(m, "attention.sliding_window", 1) == 0) {
        msgl__gguf_set(m, m->config, "sliding_window", json_null());
    }
}

static const msgl_gguf_name MOE_NAMES[] = {
    {"ffn_gate_inp.", "block_sparse_moe.gate.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field MOE_FIELDS[] = {
    {MSGL_GGUF_CONFIG, "num_local_experts", "expert_count"},
    {MSGL_GGUF_CONFIG, "num_experts_per_tok", "expert_used_count"},
    PHI,
    {MSGL_GGUF_DERIVED, NULL, "rope.scaling.attn_factor"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

// rope.scaling.attn_factor is LongRoPE's own factor of cosines and sines, which these models do not
// have: theirs is in config.json alone, and the same in all of them that are published.
static void derive_moe(msgl_gguf_model *m)
{
    static const double SCALE = 1.243163121016122; // Phi-3.5-MoE's short_mscale and long_mscale
    derive(m);
    msgl__gguf_set_bool(m, "lm_head_bias", msgl__gguf_has(m, "output.bias"));
    if (!msgl__gguf_has(m, "rope_factors_long.weight")) return;
    msgl__gguf_set(m, m->rope, "short_mscale", json_real(SCALE));
    msgl__gguf_set(m, m->rope, "long_mscale", json_real(SCALE));
}

const msgl_gguf_arch msgl__gguf_phi[] = {
    {.name = "phi3", .hf = "Phi3ForCausalLM", .names = NAMES, .fields = FIELDS, .derive = derive},
    {.name = "phimoe",
     .hf = "PhimoeForCausalLM",
     .names = MOE_NAMES,
     .fields = MOE_FIELDS,
     .derive = derive_moe},
    {.name = NULL},
};
