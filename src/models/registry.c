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
    &msgl__arch_granite,
    &msgl__arch_gemma2,
    &msgl__arch_gemma3,
    &msgl__arch_gemma3_vision,
    &msgl__arch_glm4,
    &msgl__arch_deepseek_v2,
    &msgl__arch_deepseek_v3,
    &msgl__arch_deepseek_v32,
    &msgl__arch_glm_moe_dsa,
    &msgl__arch_glm4_moe_lite,
    &msgl__arch_qwen3_next,
    &msgl__arch_qwen3_5,
    &msgl__arch_qwen3_5_moe,
    &msgl__arch_qwen3_5_conditional,
    &msgl__arch_qwen3_5_moe_conditional,
    &msgl__arch_lfm2,
    &msgl__arch_lfm2_moe,
    &msgl__arch_granite_hybrid,
    &msgl__arch_bamba,
    &msgl__arch_falcon_h1,
    &msgl__arch_kimi_linear,
    &msgl__arch_gpt_oss,
    &msgl__arch_llama4,
    &msgl__arch_llama4_conditional,
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
        if (strcmp(name, ARCHS[i]->name) == 0) return ARCHS[i];
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
