// SPDX-License-Identifier: Apache-2.0
//
// The descriptors that registry.c lists, one per architecture's file.
#ifndef MSGL_MODELS_ARCHS_H
#define MSGL_MODELS_ARCHS_H

#include "models/arch.h"

extern const msgl_arch msgl__arch_llama, msgl__arch_mistral, msgl__arch_mixtral, msgl__arch_qwen2,
    msgl__arch_qwen2_moe, msgl__arch_qwen3, msgl__arch_qwen3_moe, msgl__arch_phi3, msgl__arch_olmo2,
    msgl__arch_smollm3, msgl__arch_granite, msgl__arch_gemma2, msgl__arch_gemma3,
    msgl__arch_gemma3_vision, msgl__arch_glm4, msgl__arch_deepseek_v2, msgl__arch_deepseek_v3,
    msgl__arch_deepseek_v32, msgl__arch_glm_moe_dsa, msgl__arch_glm4_moe_lite,
    msgl__arch_qwen3_next, msgl__arch_qwen3_5, msgl__arch_qwen3_5_moe,
    msgl__arch_qwen3_5_conditional, msgl__arch_qwen3_5_moe_conditional, msgl__arch_gpt_oss,
    msgl__arch_llama4, msgl__arch_llama4_conditional;

// With states: short convolutions, Mamba-2, Kimi Delta Attention.
extern const msgl_arch msgl__arch_lfm2, msgl__arch_lfm2_moe, msgl__arch_granite_hybrid,
    msgl__arch_bamba, msgl__arch_falcon_h1, msgl__arch_kimi_linear;

// draft_heads.c: heads that have folders; and msgl_arch.mtp of models whose files have one.
extern const msgl_arch msgl__arch_eagle3, msgl__arch_eagle3_speculators, msgl__arch_qwen3_mtp;
void msgl__mtp_of_qwen(msgl_model_config *c);
void msgl__mtp_of_deepseek(msgl_model_config *c);

#endif
