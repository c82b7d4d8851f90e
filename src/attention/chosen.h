// SPDX-License-Identifier: Apache-2.0
//
// Attention over latent vectors of chosen keys (kernel/index.h): every new token has a list of
// slots of its own, as a request of one token whose page table has pages of one. The kernel is that
// of the paged backends, which reads K once for all heads of a token. Tiles are of a list's places:
// where all keys are chosen they are those of their positions, and on the CPU a token's bits those
// of fa.
#ifndef MSGL_ATTENTION_CHOSEN_H
#define MSGL_ATTENTION_CHOSEN_H

#include "attention/attention.h"

typedef struct msgl_attn_chosen msgl_attn_chosen; // of one group of layers

// The backend of a device with memory of its own that attends to such lists, whatever the user has
// named: one that reads lengths and page table on the device alone. MSGL_EUNSUPPORTED: none can.
int msgl__chosen_select(const msgl_attn_needs *needs, const msgl_attn_desc **out, msgl_err *err);
// Takes all memory for steps of cfg, whose group is LATENT, with up to top_k keys chosen. desc:
// what select has chosen; NULL: the CPU. MSGL_ENOMEM, MSGL_ELIMIT, MSGL_EINVAL. *out is owned by
// the caller (destroy).
int msgl__chosen_create(const msgl_attn_config *cfg, const msgl_attn_desc *desc, int32_t top_k,
                        msgl_attn_chosen **out, msgl_err *err);
void msgl__chosen_destroy(msgl_attn_chosen *c); // NULL allowed

// Calls the kernel with *call completed by what is here: top_k, page table and scores.
void msgl__chosen_choose(const msgl_attn_chosen *c, msgl_exec *x,
                         const msgl_index_choose_call *call);

// Of `tokens` tokens: slots [tokens, top_k] and counts [tokens] as msgl_index_choose_call leaves
// them, q [tokens, ld] absorbed -> out [tokens, num_q_heads * v_dim].
void msgl__chosen_attend(const msgl_attn_chosen *c, msgl_exec *x, const msgl_attn_layer *layer,
                         int32_t tokens, const int32_t *slots, const int32_t *counts, const void *q,
                         size_t ld, void *out);

#endif
