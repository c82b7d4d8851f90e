// SPDX-License-Identifier: Apache-2.0
//
// What a model says of sparse prompts (docs/internals/dual-chunk.md): for every layer and query
// head how many columns (keys that all rows see) and distances (from a row to keys) it keeps, found
// out once by MInference (Jiang et al. 2024, arXiv 2407.02490). Published folders have it in
// sparse_attention_config.json, a list with an object for each layer: {"HEAD":
// ["vertical_and_slash", COLUMNS, DISTANCES, SCORE], ...}; config.json's
// dual_chunk_attention_config may have the same list as its sparse_attention_config.
#ifndef MSGL_ATTENTION_DUAL_CHUNK_PATTERN_H
#define MSGL_ATTENTION_DUAL_CHUNK_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#include "attention/attention.h"
#include "core/err.h"
#include "kernel/dual_chunk.h"

typedef struct msgl_head_pattern {
    int32_t columns, distances;
} msgl_head_pattern;

struct msgl_dual_pattern {
    msgl_sparse_prompts prompts;
    int32_t num_layers, num_q_heads;
    msgl_head_pattern *heads; // [num_layers, num_q_heads]; NULL: all prompts are dense
    // [2, 2 half] cosines and sines, of pairs i and half + i, that rotate a query by `len` and by
    // `size` positions of the model's msgl_dual_chunk.
    int32_t half;
    float *rotations;
};

// Reads the list of the model in folder `dir` into p->heads, for p's num_layers and num_q_heads; it
// stays NULL if there is none, or prompts says that it is not to be used. MSGL_EFORMAT,
// MSGL_EUNSUPPORTED (other kinds of patterns), MSGL_ENOMEM, and what reading files has; errors name
// the file, the layer and the head. msgl__dual_pattern_free frees.
int msgl__dual_pattern_load(const char *dir, const msgl_sparse_prompts *prompts,
                            msgl_dual_pattern *p, msgl_err *err);
// Makes p->rotations from inv_freq [half]. MSGL_ENOMEM.
int msgl__dual_pattern_rotations(msgl_dual_pattern *p, const msgl_dual_chunk *dual,
                                 const float *inv_freq, int32_t half, msgl_err *err);
void msgl__dual_pattern_free(msgl_dual_pattern *p);

// Columns that a head gets.
static inline int32_t msgl__dual_columns(const msgl_head_pattern *h)
{
    return h->columns + (h->columns == MSGL_SPARSE_FIRST_KEYS ? MSGL_SPARSE_MORE_KEYS : 0);
}

static inline const msgl_head_pattern *msgl__dual_heads(const msgl_dual_pattern *p, int32_t layer)
{
    return p->heads + (size_t)layer * (size_t)p->num_q_heads;
}

// Whether num_rows new tokens of a request that has num_keys with them are sparse. Fewer rows than
// choose would cost as much to choose by as to attend with.
static inline bool msgl__sparse_prompt(const msgl_dual_pattern *p, int32_t num_rows,
                                       int32_t num_keys)
{
    return p != NULL && num_rows > p->prompts.last && num_keys > p->prompts.threshold;
}

#endif
