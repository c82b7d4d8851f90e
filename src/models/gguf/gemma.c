// SPDX-License-Identifier: Apache-2.0
//
// Gemma 1 to 3. Norms have the 1 added. The converters write neither query_pre_attn_scalar, which
// is a head's dimension but in the models of 27B, nor Gemma 3's pattern of windows, nor, before
// 2026, the base of what rotates beside them: llama.cpp's numbers for these are the ones that the
// architectures have (6 layers, 10,000).
#include "models/gguf/arch.h"

static const msgl_gguf_name NAMES[] = {
    {"post_attention_norm.", "post_attention_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"ffn_norm.", "pre_feedforward_layernorm.", MSGL_GGUF_AS_IT_IS},
    {"post_ffw_norm.", "post_feedforward_layernorm.", MSGL_GGUF_AS_IT_IS},
    {NULL, NULL, MSGL_GGUF_AS_IT_IS},
};

#define GEMMA                                                                                      \
    {MSGL_GGUF_CONFIG, "sliding_window", "attention.sliding_window"},                              \
        {MSGL_GGUF_DERIVED, NULL, "attention.sliding_window_pattern"},                             \
    {                                                                                              \
        MSGL_GGUF_CONFIG, "final_logit_softcapping", "final_logit_softcapping"                     \
    }

static const msgl_gguf_field GEMMA2_FIELDS[] = {
    GEMMA,
    {MSGL_GGUF_CONFIG, "attn_logit_softcapping", "attn_logit_softcapping"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_field GEMMA3_FIELDS[] = {
    GEMMA,
    {MSGL_GGUF_CONFIG, "rope_local_base_freq", "rope.freq_base_swa"},
    {MSGL_GGUF_CONFIG, NULL, NULL},
};

static const msgl_gguf_default GEMMA3_DEFAULTS[] = {
    {"attention.sliding_window_pattern", "attention.sliding_window", "6"},
    {"rope.freq_base_swa", "attention.sliding_window", "10000"},
    {NULL, NULL, NULL},
};

// Of the model with so many layers the scores' scale is that of hidden_size / num_attention_heads.
static void set_scale(msgl_gguf_model *m, int64_t layers_of_27b)
{
    const int64_t heads = msgl__gguf_int(m, "attention.head_count", 0);
    int64_t scalar = msgl__gguf_head_dim(m);
    if (msgl__gguf_blocks(m) == layers_of_27b && heads > 0) {
        scalar = msgl__gguf_int(m, "embedding_length", 0) / heads;
    }
    if (scalar > 0) msgl__gguf_set(m, m->config, "query_pre_attn_scalar", json_integer(scalar));
}

static void derive_2(msgl_gguf_model *m)
{
    set_scale(m, 46);
    if (msgl__gguf_field(m, "attention.sliding_window") != NULL) msgl__gguf_sliding_layers(m);
}

static void derive_3(msgl_gguf_model *m)
{
    set_scale(m, 62);
    msgl__gguf_sliding_layers(m);
}

const msgl_gguf_arch msgl__gguf_gemma[] = {
    {.name = "gemma", .hf = "GemmaForCausalLM", .norms_whole = true},
    {.name = "gemma2",
     .hf = "Gemma2ForCausalLM",
     .norms_whole = true,
     .names = NAMES,
     .fields = GEMMA2_FIELDS,
     .derive = derive_2},
    {.name = "gemma3",
     .hf = "Gemma3ForCausalLM",
     .norms_whole = true,
     .names = NAMES,
     .fields = GEMMA3_FIELDS,
     .defaults = GEMMA3_DEFAULTS,
     .derive = derive_3},
    {.name = NULL},
};
