// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_TRTLLM_TRTLLM_H
#define MSGL_ATTENTION_TRTLLM_TRTLLM_H

#include "attention/table.h"

extern const msgl_attn_desc msgl__attn_trtllm; // metadata: msgl_table_metadata

#endif
