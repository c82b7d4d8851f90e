// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_ATTENTION_HYBRID_H
#define MSGL_ATTENTION_HYBRID_H

#include "attention/attention.h"

// A backend made of two: prefill batches go to c->prefill, decode batches and all graph calls to
// c->decode. Both share the KV pool and the page table.
int msgl__attn_hybrid_create(const msgl_attn_choice *c, const msgl_attn_config *cfg,
                             msgl_attn_backend **out, msgl_err *err);

#endif
