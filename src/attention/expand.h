// SPDX-License-Identifier: Apache-2.0
//
// Prompts over a latent cache with K and V of every head expanded (docs/decisions/016): instead of
// the backend of a latent group, whose queries are absorbed. The keys of a step's requests, those
// before the new tokens too, are taken in passes of a bounded number: gathered from the pool,
// multiplied by W_UK and W_UV (the layer's product), attended. A pass has whole requests, or
// a range of keys of one that is too long, whose results are then merged into those over earlier
// keys by their log-sum-exps: for new tokens and cached ones there is one mechanism.
#ifndef MSGL_ATTENTION_EXPAND_H
#define MSGL_ATTENTION_EXPAND_H

#include "attention/attention.h"

typedef struct msgl_expand msgl_expand;

// What a pass's attention reads and writes beside the sequences; shapes as in msgl_expanded_call,
// rows from the sequences' first token on.
typedef struct msgl_expand_io {
    const void *q;
    size_t ld_q;
    const void *kv, *rotary_keys;
    void *out, *partial_out;
    float *lse, *partial_lse;
} msgl_expand_io;

// Whether there are kernels for these needs.
bool msgl__expand_supports(const msgl_attn_needs *n, const msgl_attn_expanded *expanded);
// Most keys of a pass for steps of up to max_tokens, with `heads` heads of K and V of elements of
// so many bytes; 0: such steps are not expanded.
int32_t msgl__expand_keys(const msgl_attn_expanded *expanded, int32_t heads, size_t elem,
                          int32_t max_tokens);

// *out is NULL where msgl__expand_keys is 0.
int msgl__expand_create(const msgl_attn_config *cfg, msgl_expand **out, msgl_err *err);
void msgl__expand_destroy(msgl_expand *e); // NULL allowed
// Cuts the sequences' keys into passes, on the scheduler's thread; how many. 0: the backend is to
// attend, as these are no chunks, or have more keys before them than is worth expanding.
int32_t msgl__expand_prepare(msgl_expand *e, const msgl_seqs *seqs);
// The same for sequences that are prepared; e NULL: 0.
int32_t msgl__expand_passes(const msgl_expand *e, const msgl_seqs *seqs);
void msgl__expand_copy_in(msgl_expand *e, const msgl_seqs *seqs);
int32_t msgl__expand_pass_keys(const msgl_expand *e, const msgl_seqs *seqs, int32_t pass);
// latent [keys, rank], rotary_keys [keys, rotary] of exec->act.
void msgl__expand_gather(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t pass, void *latent, void *rotary_keys);
// Passes in order.
void msgl__expand_attend(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t pass, const msgl_expand_io *io);

#endif
