// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_FA_FA_H
#define MSGL_ATTENTION_FA_FA_H

#include "attention/table.h"

extern const msgl_attn_desc msgl__attn_fa; // metadata: msgl_table_metadata

#endif
