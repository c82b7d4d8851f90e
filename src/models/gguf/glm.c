// SPDX-License-Identifier: Apache-2.0
//
// GLM-4 (0414 and Z1): gate and up in one tensor; neighbours rotate together, in half of a head.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"post_attention_norm.", "post_self_attn_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm.", "post_mlp_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "mlp.gate_up_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    {MSGL_GGUF_DERIVED, NULL, "rope.dimension_count"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

const msgl_gguf_arch msgl__gguf_glm[] = {
    {.name = "glm4",
     .hf = "Glm4ForCausalLM",
     .pairs = true,
     .names = NAMES,
     .fields = FIELDS,
     .derive = msgl__gguf_partial_rotation},
    {.name = NULL},
};
