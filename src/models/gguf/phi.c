// SPDX-License-Identifier: Apache-2.0
//
// Phi-3 and Phi-4: q, k and v in one tensor, gate and up in another; LongRoPE's factors are
// tensors. A window of 0 is none.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"attn_qkv.", "self_attn.qkv_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "mlp.gate_up_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"},
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_ROPE, "attention_factor", "rope.scaling.attn_factor"},
    {MSGL_GGUF_ROPE, "short_factor", "rope_factors_short.weight"}, // tensors
    {MSGL_GGUF_ROPE, "long_factor", "rope_factors_long.weight"},
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

const msgl_gguf_arch msgl__gguf_phi[] = {
    {.name = "phi3", .hf = "Phi3ForCausalLM", .names = NAMES, .fields = FIELDS, .derive = derive},
    {.name = NULL},
};
