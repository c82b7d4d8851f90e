// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_LATENT_LATENT_H
#define MSGL_ATTENTION_LATENT_LATENT_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_flashmla, msgl__attn_trtllm_mla, msgl__attn_cutlass_mla;

#endif
