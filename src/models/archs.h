// SPDX-License-Identifier: Apache-2.0
//
// The descriptors that registry.c lists, one per architecture's file.
#ifndef MSGL_MODELS_ARCHS_H
#define MSGL_MODELS_ARCHS_H

#include "models/arch.h"

extern const msgl_arch msgl__arch_llama, msgl__arch_mistral, msgl__arch_mixtral, msgl__arch_qwen2,
    msgl__arch_qwen2_moe, msgl__arch_qwen3, msgl__arch_qwen3_moe, msgl__arch_phi3, msgl__arch_olmo2,
    msgl__arch_smollm3, msgl__arch_granite, msgl__arch_gemma2, msgl__arch_gemma3,
    msgl__arch_gemma3_vision, msgl__arch_gemma4, msgl__arch_gemma4_conditional, msgl__arch_glm4,
    msgl__arch_deepseek_v2, msgl__arch_deepseek_v3, msgl__arch_deepseek_v32, msgl__arch_glm_moe_dsa,
    msgl__arch_glm4_moe_lite, msgl__arch_qwen3_next, msgl__arch_qwen3_5, msgl__arch_qwen3_5_moe,
    msgl__arch_qwen3_5_conditional, msgl__arch_qwen3_5_moe_conditional, msgl__arch_qwen4_exp,
    msgl__arch_qwen4_exp_conditional, msgl__arch_gpt_oss, msgl__arch_llama4,
    msgl__arch_llama4_conditional, msgl__arch_gemma, msgl__arch_ministral3, msgl__arch_mistral3,
    msgl__arch_qwen3_vl, msgl__arch_qwen3_vl_moe, msgl__arch_glm4_moe, msgl__arch_minimax_m2,
    msgl__arch_seed_oss, msgl__arch_olmo3, msgl__arch_olmoe, msgl__arch_ernie4_5,
    msgl__arch_ernie4_5_moe, msgl__arch_dots1, msgl__arch_hunyuan, msgl__arch_hunyuan_moe,
    msgl__arch_exaone4, msgl__arch_kimi_k25, msgl__arch_mimo_v2_flash, msgl__arch_minimax_m3,
    msgl__arch_minimax_m3_conditional, msgl__arch_deepseek_v4;

// Encoders.
extern const msgl_arch msgl__arch_bert, msgl__arch_roberta, msgl__arch_xlm_roberta,
    msgl__arch_bge_m3, msgl__arch_bert_classifier, msgl__arch_roberta_classifier,
    msgl__arch_xlm_roberta_classifier, msgl__arch_modernbert, msgl__arch_modernbert_classifier,
    msgl__arch_nomic_bert, msgl__arch_gemma3_encoder;

extern const msgl_arch msgl__arch_arcee, msgl__arch_starcoder2, msgl__arch_stablelm,
    msgl__arch_cohere, msgl__arch_cohere2, msgl__arch_apertus, msgl__arch_phimoe,
    msgl__arch_internlm3, msgl__arch_bailing, msgl__arch_bailing_2;

// With states: short convolutions, Mamba-2, Kimi Delta Attention.
extern const msgl_arch msgl__arch_lfm2, msgl__arch_lfm2_moe, msgl__arch_granite_hybrid,
    msgl__arch_bamba, msgl__arch_falcon_h1, msgl__arch_kimi_linear, msgl__arch_nemotron_h,
    msgl__arch_zamba2;

// draft_heads.c: heads that have folders; and msgl_arch.mtp of models whose files have one.
extern const msgl_arch msgl__arch_eagle3, msgl__arch_eagle3_speculators, msgl__arch_qwen3_mtp;
void msgl__mtp_of_qwen(msgl_model_config *c, int32_t ahead);
void msgl__mtp_of_deepseek(msgl_model_config *c, int32_t ahead);
void msgl__mtp_of_mimo(msgl_model_config *c, int32_t ahead);
void msgl__mtp_of_nemotron(msgl_model_config *c, int32_t ahead);

#endif
