// SPDX-License-Identifier: Apache-2.0
//
// Drafts of a draft model. It makes them behind a step, when that step's tokens are known, so how
// many is decided when the step is built: with it go the pages that they will need. The next step
// verifies them.
#include <string.h>

#include "scheduler/internal.h"

enum { USUAL_STEPS = 8, USUAL_NODES = 15 };

// Whether r's choices depend on nothing but logits and position: trees are for such requests.
static bool is_plain(const msgl_req *r)
{
    return r->constraint == NULL && r->masks == NULL &&
           !msgl__sampling_adjusts(&r->sampling, r->extra) &&
           !msgl__sampling_has_chain(&r->sampling);
}

// Drafts of a tree of r; 0: it gets a chain.
static int32_t most_nodes(const msgl_scheduler *s, const msgl_req *r)
{
    const msgl_options *o = &s->options;
    if (o->speculative_eagle_topk < 2 || !is_plain(r)) return 0;
    const int32_t rows = o->speculative_num_draft_tokens, all = rows > 0 ? rows - 1 : USUAL_NODES;
    const int32_t most = r->most_drafts < all ? r->most_drafts : all;
    return most > 1 ? most : 0;
}

// Of a tree of so many drafts, or a chain: whether there are pages and positions for the drafts
// behind a part.
static bool fits(const msgl_scheduler *s, const msgl_req *r, const msgl_batch_req *part,
                 int32_t depth, int32_t nodes)
{
    const int32_t topk = s->options.speculative_eagle_topk;
    const int32_t rows = nodes > 0 ? msgl__propose_rows(depth, topk, nodes) : depth;
    return rows <= s->cfg.max_seq_len - part->device_len &&
           msgl__sched_has_room(s, r, part->device_len + rows);
}

// Drafts of r that step's next one could verify, where all of this step's are right: the choice of
// the last one's row gets to max_len - 1 at most.
static int32_t most_proposals(const msgl_scheduler *s, const msgl_req *r, const msgl_batch_req *b)
{
    const msgl_options *o = &s->options;
    int32_t most = o->speculative_num_steps > 0 ? o->speculative_num_steps : USUAL_STEPS;
    const int32_t rows = o->speculative_num_draft_tokens, room = r->max_len - b->device_len - 2;
    if (rows > 0 && rows - 1 < most) most = rows - 1;
    if (r->most_drafts < most) most = r->most_drafts;
    if (s->runner.max_propose < most) most = s->runner.max_propose;
    return room < most ? room : most;
}

void msgl__sched_propose(msgl_scheduler *s, msgl_inflight_step *step)
{
    const msgl_batch *b = &step->batch;
    int32_t num = 0, answers = 0;
    for (int32_t i = 0; i < b->size; i++) {
        msgl_req *r = step->owners[i];
        r->num_proposed = 0;
        if (!b->reqs[i].sample) continue;
        answers++;
        const int32_t most = most_proposals(s, r, &b->reqs[i]);
        if (most < 1) continue;
        b->reqs[i].propose = most; // until it is known how many
        const int32_t nodes = most_nodes(s, r), topk = s->options.speculative_eagle_topk;
        const int32_t deepest = nodes > 0 ? msgl__propose_depth(topk) : most;
        s->asks[num++] = (msgl_depth_ask){.of = &r->depth,
                                          .tokens = r->num_ids,
                                          .most = most < deepest ? most : deepest,
                                          .width = nodes > 0 ? topk : 0,
                                          .rows = nodes};
    }
    if (num > 0) msgl__depth_choose(&s->depths, &s->costs, answers, s->asks, num);
    for (int32_t i = 0, at = 0; i < b->size; i++) {
        msgl_req *r = step->owners[i];
        msgl_batch_req *part = &b->reqs[i];
        if (part->propose == 0) continue;
        part->propose = 0;
        const msgl_depth_ask *ask = &s->asks[at++];
        const int32_t nodes = fits(s, r, part, ask->depth, ask->rows) ? ask->rows : 0;
        int32_t depth = ask->depth;
        while (depth > 0 && !fits(s, r, part, depth, nodes)) depth--;
        const int32_t rows = nodes > 0 ? msgl__propose_rows(depth, ask->width, nodes) : depth;
        if (depth == 0 || !msgl__sched_grow(s, r, part->device_len + rows)) continue;
        part->propose = depth;
        part->propose_nodes = nodes;
        step->num_proposing++;
    }
}

void msgl__sched_passes(msgl_scheduler *s, const msgl_inflight_step *step,
                        const msgl_step_result *res)
{
    int32_t passes = 0;
    for (int32_t i = 0; i < res->size && step->num_proposing > 0; i++) {
        const int32_t depth = step->batch.reqs[i].propose;
        if (depth > passes) passes = depth;
    }
    msgl__depth_proposed(&s->depths, step->num_proposing, passes, res->propose_ns);
}

void msgl__sched_proposed(msgl_req *r, const msgl_step_result *res, int32_t i)
{
    if (res->num_proposals == NULL) return;
    const int32_t n = res->num_proposals[i];
    const size_t at = (size_t)i * MSGL_MAX_DRAFTS, num = (size_t)n;
    if (n < 0 || n > MSGL_MAX_DRAFTS) return;
    memcpy(r->proposed, res->proposals + at, num * sizeof *r->proposed);
    memcpy(r->proposed_parents, res->proposal_parents + at, num * sizeof *r->proposed_parents);
    memcpy(r->proposed_shares, res->proposal_shares + at, num * sizeof *r->proposed_shares);
    r->num_proposed = n;
}

bool msgl__sched_trees_allowed(const msgl_scheduler *s)
{
    if (s->options.speculative_eagle_topk < 2 || s->waiting.head != NULL) return false;
    for (const msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->state == MSGL_REQ_PREFILL) return false;
    }
    return true;
}

static bool is_tree(const msgl_req *r)
{
    for (int32_t i = 0; i < r->num_proposed; i++) {
        if (r->proposed_parents[i] != i) return true;
    }
    return false;
}

void msgl__sched_offer_proposed(const msgl_scheduler *s, const msgl_req *r, int32_t most,
                                msgl_draft *offer)
{
    int32_t place[1 + MSGL_MAX_DRAFTS] = {0}, depth[1 + MSGL_MAX_DRAFTS] = {0}; // of rows
    float likely[1 + MSGL_MAX_DRAFTS] = {1};
    const bool tree = s->trees_allowed && is_tree(r) && is_plain(r);
    offer->num = offer->match = 0;
    offer->tree = tree;
    if (r->inflight > 0) return;
    for (int32_t i = 0; i < r->num_proposed; i++) {
        const int32_t parent = r->proposed_parents[i], n = offer->num;
        place[1 + i] = -1;
        depth[1 + i] = depth[parent] + 1;
        // Of a tree that must not be one its likeliest path is left.
        if (place[parent] < 0 || depth[1 + i] > most || (!tree && place[parent] != n)) continue;
        const float rate = msgl__depth_rate(&s->depths, &r->depth, depth[parent]);
        likely[1 + i] = likely[parent] * rate * r->proposed_shares[i];
        const float before = n > 0 ? offer->accepted[n - 1] : 1;
        offer->tokens[n] = r->proposed[i];
        offer->parents[n] = (int16_t)place[parent];
        offer->accepted[n] = likely[1 + i] < before ? likely[1 + i] : before;
        place[1 + i] = ++offer->num;
    }
}

int32_t msgl__sched_depth_tried(const msgl_batch_req *b, const int32_t *tokens, int32_t accepted)
{
    if (b->draft_parents == NULL) return b->num_drafts;
    int32_t row = 0;
    for (int32_t at = 0; at < accepted; at++) row = msgl__draft_behind(b, row, tokens[at]);
    return msgl__draft_behind(b, row, -1) >= 0 ? accepted + 1 : accepted;
}
