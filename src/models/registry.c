// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"

static const msgl_arch *const ARCHS[] = {
    &msgl__arch_llama,
    &msgl__arch_mistral,
    &msgl__arch_mixtral,
    &msgl__arch_qwen2,
    &msgl__arch_qwen2_moe,
    &msgl__arch_qwen3,
    &msgl__arch_qwen3_moe,
    &msgl__arch_phi3,
    &msgl__arch_olmo2,
    &msgl__arch_smollm3,
    &msgl__arch_arcee,
    &msgl__arch_starcoder2,
    &msgl__arch_stablelm,
    &msgl__arch_cohere,
    &msgl__arch_cohere2,
    &msgl__arch_apertus,
    &msgl__arch_phimoe,
    &msgl__arch_internlm3,
    &msgl__arch_bailing,
    &msgl__arch_bailing_2,
    &msgl__arch_granite,
    &msgl__arch_gemma2,
    &msgl__arch_gemma3,
    &msgl__arch_gemma3_vision,
    &msgl__arch_gemma4,
    &msgl__arch_gemma4_conditional,
    &msgl__arch_glm4,
    &msgl__arch_deepseek_v2,
    &msgl__arch_deepseek_v3,
    &msgl__arch_deepseek_v32,
    &msgl__arch_deepseek_v4,
    &msgl__arch_glm_moe_dsa,
    &msgl__arch_glm4_moe_lite,
    &msgl__arch_qwen3_next,
    &msgl__arch_qwen3_5,
    &msgl__arch_qwen3_5_moe,
    &msgl__arch_qwen3_5_conditional,
    &msgl__arch_qwen3_5_moe_conditional,
    &msgl__arch_qwen4_exp,
    &msgl__arch_qwen4_exp_conditional,
    &msgl__arch_lfm2,
    &msgl__arch_lfm2_moe,
    &msgl__arch_granite_hybrid,
    &msgl__arch_bamba,
    &msgl__arch_falcon_h1,
    &msgl__arch_kimi_linear,
    &msgl__arch_nemotron_h,
    &msgl__arch_zamba2,
    &msgl__arch_gpt_oss,
    &msgl__arch_llama4,
    &msgl__arch_llama4_conditional,
    &msgl__arch_mimo_v2_flash,
    &msgl__arch_bert,
    &msgl__arch_roberta,
    &msgl__arch_xlm_roberta,
    &msgl__arch_bge_m3,
    &msgl__arch_bert_classifier,
    &msgl__arch_roberta_classifier,
    &msgl__arch_xlm_roberta_classifier,
    &msgl__arch_modernbert,
    &msgl__arch_modernbert_classifier,
    &msgl__arch_nomic_bert,
    &msgl__arch_gemma3_encoder,
    &msgl__arch_gemma,
    &msgl__arch_ministral3,
    &msgl__arch_mistral3,
    &msgl__arch_qwen3_vl,
    &msgl__arch_qwen3_vl_moe,
    &msgl__arch_glm4_moe,
    &msgl__arch_minimax_m2,
    &msgl__arch_minimax_m3,
    &msgl__arch_minimax_m3_conditional,
    &msgl__arch_seed_oss,
    &msgl__arch_olmo3,
    &msgl__arch_olmoe,
    &msgl__arch_ernie4_5,
    &msgl__arch_ernie4_5_moe,
    &msgl__arch_dots1,
    &msgl__arch_hunyuan,
    &msgl__arch_hunyuan_moe,
    &msgl__arch_exaone4,
    &msgl__arch_kimi_k25,
};

// Draft heads, which are no models by themselves.
static const msgl_arch *const HEADS[] = {&msgl__arch_eagle3, &msgl__arch_eagle3_speculators,
                                         &msgl__arch_qwen3_mtp};

int msgl__arch_count(void)
{
    return (int)MSGL_COUNT(ARCHS);
}

const msgl_arch *msgl__arch_at(int i)
{
    return ARCHS[i];
}

const msgl_arch *msgl__arch_find(const char *name)
{
    for (size_t i = 0; i < MSGL_COUNT(ARCHS); i++) {
        const msgl_arch *a = ARCHS[i];
        if (strcmp(name, a->name) == 0) return a;
        if (a->other_name != NULL && strcmp(name, a->other_name) == 0) return a;
    }
    for (size_t i = 0; i < MSGL_COUNT(HEADS); i++) {
        if (strcmp(name, HEADS[i]->name) == 0) return HEADS[i];
    }
    return NULL;
}

void msgl__arch_names(char *buf, size_t size)
{
    size_t n = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < MSGL_COUNT(ARCHS) && n < size; i++) {
        n += (size_t)snprintf(buf + n, size - n, "%s%s", i > 0 ? ", " : "", ARCHS[i]->name);
    }
}
