// SPDX-License-Identifier: Apache-2.0
//
// How a draft head draws a tree (EAGLE-2's way, Li et al. 2024): each pass says the topk likeliest
// tokens behind each row that it computes, and the topk of these that are likeliest with all that
// they follow are rows of the next pass; of everything that was said the likeliest are the drafts.
// A pass computes the rows of those before it again, so that one step's tree shows attention what
// each row sees: with topk 4 the passes have 1, 4, 8, 12 rows, which a head of one layer computes
// in the time of one.
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "engine/draw.h"

int msgl__drawing_create(msgl_drawing *d, int32_t topk, int32_t max_reqs)
{
    *d = (msgl_drawing){.topk = topk};
    if (topk < 2) return 0;
    const int32_t depth = msgl__propose_depth(topk);
    d->max_nodes = topk + (depth - 1) * topk * topk;
    d->trees = msgl__calloc((size_t)max_reqs, sizeof *d->trees);
    d->nodes = msgl__calloc((size_t)max_reqs * (size_t)d->max_nodes, sizeof *d->nodes);
    return d->trees != NULL && d->nodes != NULL ? 0 : MSGL_ENOMEM;
}

void msgl__drawing_destroy(msgl_drawing *d)
{
    msgl__free(d->trees);
    msgl__free(d->nodes);
}

static msgl_draw_node *nodes_of(const msgl_drawing *d, int32_t req)
{
    return d->nodes + (size_t)req * (size_t)d->max_nodes;
}

void msgl__draw_begin(msgl_drawing *d, int32_t req)
{
    d->trees[req].num = d->trees[req].num_rows = d->trees[req].num_asked = 0;
}

// Adds what a row has said; row -1: the one before all of the tree.
static void add_said(msgl_drawing *d, int32_t req, int32_t row, const msgl_token_logprobs *said,
                     const msgl_draw_tokens *tokens)
{
    msgl_drawn_tree *t = &d->trees[req];
    msgl_draw_node *nodes = nodes_of(d, req);
    const int32_t parent = row < 0 ? -1 : t->row_node[row];
    const float before = parent < 0 ? 0 : nodes[parent].likely;
    for (int32_t i = 0; i < said->num_top && i < d->topk && t->num < d->max_nodes; i++) {
        const int32_t token = msgl__draw_token(tokens, said->top_ids[i]);
        if (token < 0 || !isfinite(said->top_logprobs[i])) continue;
        nodes[t->num++] = (msgl_draw_node){
            .token = token, .parent = parent, .row = -1, .likely = before + said->top_logprobs[i]};
    }
}

// The topk likeliest of nodes [from, num) become rows, which read the states of their parents.
static void add_rows(msgl_drawing *d, int32_t req, int32_t from, int32_t first_state)
{
    msgl_drawn_tree *t = &d->trees[req];
    msgl_draw_node *nodes = nodes_of(d, req);
    const int32_t asked = t->num_rows - t->num_asked; // first row of the pass that has ended
    t->num_asked = 0;
    while (t->num_asked < d->topk && t->num_rows < MSGL_MAX_TREE) {
        int32_t best = -1;
        for (int32_t n = from; n < t->num; n++) {
            if (nodes[n].row < 0 && (best < 0 || nodes[n].likely > nodes[best].likely)) best = n;
        }
        if (best < 0) return;
        const int32_t parent = nodes[best].parent, row = t->num_rows++;
        nodes[best].row = (int16_t)row;
        t->row_node[row] = (int16_t)best;
        t->tokens[row] = nodes[best].token;
        t->parents[row] = parent < 0 ? -1 : nodes[parent].row;
        t->states[row] = first_state + (parent < 0 ? 0 : nodes[parent].row - asked);
        t->num_asked++;
    }
}

void msgl__draw_pass(msgl_drawing *d, int32_t req, const msgl_token_logprobs *said, int32_t num,
                     int32_t first_state, const msgl_draw_tokens *tokens)
{
    msgl_drawn_tree *t = &d->trees[req];
    const int32_t from = t->num, asked = t->num_rows - t->num_asked;
    if (t->num_rows == 0) {
        if (num == 1) add_said(d, req, -1, said, tokens);
    } else {
        for (int32_t i = 0; i < num && i < t->num_asked; i++) {
            add_said(d, req, asked + i, &said[i], tokens);
        }
    }
    add_rows(d, req, from, first_state);
}

// Of the nodes that are taken, the share that each has of what its siblings have together.
static void set_shares(const msgl_draw_node *nodes, const int16_t *order, int32_t num,
                       float *shares)
{
    for (int32_t i = 0; i < num; i++) {
        const msgl_draw_node *n = &nodes[order[i]];
        float all = 0;
        for (int32_t k = 0; k < num; k++) {
            const msgl_draw_node *other = &nodes[order[k]];
            if (other->parent == n->parent) all += expf(other->likely - n->likely);
        }
        shares[i] = 1 / all;
    }
}

int32_t msgl__draw_end(msgl_drawing *d, int32_t req, int32_t most, int32_t *tokens,
                       int16_t *parents, float *shares)
{
    const msgl_drawn_tree *t = &d->trees[req];
    msgl_draw_node *nodes = nodes_of(d, req);
    int16_t order[MSGL_MAX_DRAFTS];
    int32_t num = 0;
    for (int32_t n = 0; n < t->num; n++) nodes[n].row = 0; // from here on: 1 + its place
    for (; num < most && num < t->num; num++) {
        int32_t best = -1; // the earliest of the likeliest, so never before its parent
        for (int32_t n = 0; n < t->num; n++) {
            if (nodes[n].row == 0 && (best < 0 || nodes[n].likely > nodes[best].likely)) best = n;
        }
        const int32_t parent = nodes[best].parent;
        nodes[best].row = (int16_t)(num + 1);
        order[num] = (int16_t)best;
        tokens[num] = nodes[best].token;
        parents[num] = parent < 0 ? 0 : nodes[parent].row;
    }
    set_shares(nodes, order, num, shares);
    return num;
}
