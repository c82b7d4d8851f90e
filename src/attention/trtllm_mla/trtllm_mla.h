// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_TRTLLM_MLA_TRTLLM_MLA_H
#define MSGL_ATTENTION_TRTLLM_MLA_TRTLLM_MLA_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_trtllm_mla; // on the CPU

#endif
