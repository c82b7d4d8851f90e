// SPDX-License-Identifier: Apache-2.0
//
// Prompts of dual chunk models beyond a length, sparse (docs/internals/dual-chunk.md): in every
// head a row sees a few columns, keys that all rows see, and a few distances. The last rows of a
// piece of the prompt choose them, by their exact softmax.
#ifndef MSGL_ATTENTION_DUAL_CHUNK_SPARSE_PROMPT_H
#define MSGL_ATTENTION_DUAL_CHUNK_SPARSE_PROMPT_H

#include "attention/attention.h"
#include "attention/dual_chunk/pattern.h"

// Memory that one layer's sparse prompts need at a time; zeroed `base`: none taken yet.
typedef struct msgl_sparse_room {
    void *base;
    size_t bytes;
    uint64_t *columns, *distances; // [num_q_heads, words] bits: the pattern of a piece
    size_t words;
    char *workers; // [threads, stride]
    size_t stride;
} msgl_sparse_room;

// For cfg->pattern, up to cfg->max_seq_len keys. MSGL_ENOMEM. msgl__sparse_room_destroy frees.
int msgl__sparse_room_create(const msgl_attn_config *cfg, msgl_sparse_room *room, msgl_err *err);
void msgl__sparse_room_destroy(msgl_sparse_room *room);

// Whether num_rows new tokens of a request that has num_keys with them are sparse. Fewer rows than
// choose would cost as much to choose by as to attend with.
static inline bool msgl__sparse_prompt(const msgl_dual_pattern *p, int32_t num_rows,
                                       int32_t num_keys)
{
    return p != NULL && num_rows > p->prompts.last && num_keys > p->prompts.threshold;
}

// A layer's attention of request `req` of the step, whose prompt is sparse. q and out as in a
// descriptor's forward.
void msgl__sparse_prompt_attend(const msgl_attn_config *cfg, const msgl_sparse_room *room,
                                msgl_exec *x, const msgl_attn_layer *layer, const msgl_seqs *seqs,
                                int32_t req, const msgl_attn_input *in, float *out);

#endif
