// SPDX-License-Identifier: Apache-2.0
//
// Llama 4's text model. The length of its chunks and how it tempers queries are not in the files:
// llama.cpp's numbers are the ones that the architecture has (8192, 0.1). q and k are normed but in
// the model with 128 experts. Rows are neighbours from the start.
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"ffn_gate.", "feed_forward.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up.", "feed_forward.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down.", "feed_forward.down_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_inp.", "feed_forward.router.", MSGL_GGUF_AS_IT_IS},
    {"ffn_gate_shexp.", "feed_forward.shared_expert.gate_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_up_shexp.", "feed_forward.shared_expert.up_proj.", MSGL_GGUF_AS_IT_IS},
    {"ffn_down_shexp.", "feed_forward.shared_expert.down_proj.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

static const msgl_gguf_field FIELDS[] = {
    MSGL_GGUF_EXPERTS("num_local_experts", "intermediate_size"),
    {MSGL_GGUF_CONFIG, "intermediate_size_mlp", "feed_forward_length"},
    {MSGL_GGUF_CONFIG, "interleave_moe_layer_step", "interleave_moe_layer_step"},
    {MSGL_GGUF_CONFIG, "attention_chunk_size", "attention.sliding_window"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static void derive(msgl_gguf_model *m)
{
    msgl__gguf_set(m, m->config, "use_qk_norm",
                   json_boolean(msgl__gguf_int(m, "expert_count", 0) != 128));
}

const msgl_gguf_arch msgl__gguf_llama4[] = {
    {.name = "llama4",
     .hf = "Llama4ForCausalLM",
     .pairs = true,
     .names = NAMES,
     .fields = FIELDS,
     .derive = derive},
    {.name = NULL},
};
