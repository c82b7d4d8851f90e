// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_TRTLLM_TRTLLM_H
#define MSGL_ATTENTION_TRTLLM_TRTLLM_H

#include "attention/table.h"

// trtllm_mha: the same with pages of 128 too (SGLang's name and sizes).
extern const msgl_attn_desc msgl__attn_trtllm,
    msgl__attn_trtllm_mha; // metadata: msgl_table_metadata

#endif
