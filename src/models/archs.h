// SPDX-License-Identifier: Apache-2.0
//
// The descriptors that registry.c lists, one per architecture's file.
#ifndef MSGL_MODELS_ARCHS_H
#define MSGL_MODELS_ARCHS_H

#include "models/arch.h"

extern const msgl_arch msgl__arch_llama, msgl__arch_mistral, msgl__arch_qwen2, msgl__arch_qwen3,
    msgl__arch_qwen3_moe;

#endif
