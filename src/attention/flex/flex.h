// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_FLEX_FLEX_H
#define MSGL_ATTENTION_FLEX_FLEX_H

#include "attention/attention.h"

extern const msgl_attn_desc msgl__attn_flex, msgl__attn_fa4;

#endif
