// SPDX-License-Identifier: Apache-2.0
//
// GPT-OSS: the norm before the experts is called one behind attention, and gate and up of the
// experts, which alternate in its own files, are apart. That yarn's bounds are not rounded is not
// in the files.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"post_attention_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"attn_sinks.weight", "self_attn.sinks", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "mlp.router.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    MSGL_GGUF_EXPERTS("num_local_experts", "intermediate_size"),
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive(msgl_gguf_model *m)
{
    if (json_object_size(m->rope) > 0) {
        msgl__gguf_set(m, m->rope, "truncate", json_false());
    } else {
        m->bad |= json_object_set(m->config, "rope_scaling", json_null());
    }
}

const msgl_gguf_arch msgl__gguf_gpt_oss[] = {
    {.name = "gpt-oss",
     .hf = "GptOssForCausalLM",
     .names = NAMES,
     .fields = FIELDS,
     .derive = derive},
    {.name = NULL},
};
