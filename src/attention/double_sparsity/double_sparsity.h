// SPDX-License-Identifier: Apache-2.0
//
// The double_sparsity backend: on the CPU here.
#ifndef MSGL_ATTENTION_DOUBLE_SPARSITY_DOUBLE_SPARSITY_H
#define MSGL_ATTENTION_DOUBLE_SPARSITY_DOUBLE_SPARSITY_H

#include "attention/attention.h"

// Descriptor function of all devices: whether there are channels for these layers.
int msgl__sparse_supports(const msgl_attn_needs *needs, msgl_err *err);
// How many requests' scores, [num_q_heads, max_seq_len] f32 each, there is room for at once, in
// [1, max_running]: more are attended to in rounds.
int32_t msgl__sparse_round(const msgl_attn_config *cfg);

extern const msgl_attn_desc msgl__attn_sparse;

#endif
