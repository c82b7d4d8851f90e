// SPDX-License-Identifier: Apache-2.0
//
// Trees of drafts while a draft head draws them, pass by pass; draw.c says how.
#ifndef MSGL_ENGINE_DRAW_H
#define MSGL_ENGINE_DRAW_H

#include "core/batch.h"

// A token that a pass has said.
typedef struct msgl_draw_node {
    int32_t token;  // of the target's vocabulary
    int32_t parent; // the node that it follows, an earlier one; -1: none
    int16_t row;    // of the passes, -1: none
    float likely;   // log of the probability of it and all that it follows
} msgl_draw_node;

// Of a request. Rows are those of its next pass, in its order.
typedef struct msgl_drawn_tree {
    int32_t num;                 // nodes
    int32_t num_rows, num_asked; // all rows; the last of them, which the next pass asks
    int16_t row_node[MSGL_MAX_TREE];
    int32_t tokens[MSGL_MAX_TREE];
    int16_t parents[MSGL_MAX_TREE]; // rows, -1: none
    int32_t states[MSGL_MAX_TREE];  // which of the head's states each reads
} msgl_drawn_tree;

// What a head's tokens [0, vocab) are in the target's vocabulary, ids NULL: the same.
typedef struct msgl_draw_tokens {
    const int32_t *ids; // [vocab]
    int32_t vocab, target_vocab;
} msgl_draw_tokens;

// The target's token, -1: it has none such.
static inline int32_t msgl__draw_token(const msgl_draw_tokens *t, int32_t id)
{
    if (id < 0 || id >= t->vocab) return -1;
    const int32_t token = t->ids != NULL ? t->ids[id] : id;
    return token < t->target_vocab ? token : -1;
}

typedef struct msgl_drawing {
    int32_t topk;
    int32_t max_nodes;
    msgl_drawn_tree *trees; // [max_reqs]
    msgl_draw_node *nodes;  // [max_reqs, max_nodes]
} msgl_drawing;

// topk 1: takes nothing. 0 or MSGL_ENOMEM; destroy either way.
int msgl__drawing_create(msgl_drawing *d, int32_t topk, int32_t max_reqs);
void msgl__drawing_destroy(msgl_drawing *d);

void msgl__draw_begin(msgl_drawing *d, int32_t req);
// A pass has said the likeliest tokens (said[i].top_ids, top_logprobs) behind its rows that were
// asked, [num], and left their states as the head's states first_state and on; the first pass has
// one such row. Sets the rows of the next pass. Tokens that the target has not are left out.
void msgl__draw_pass(msgl_drawing *d, int32_t req, const msgl_token_logprobs *said, int32_t num,
                     int32_t first_state, const msgl_draw_tokens *tokens);
// The likeliest drafts, up to `most` <= MSGL_MAX_DRAFTS, as msgl_step_result has them; how many.
int32_t msgl__draw_end(msgl_drawing *d, int32_t req, int32_t most, int32_t *tokens,
                       int16_t *parents, float *shares);

#endif
