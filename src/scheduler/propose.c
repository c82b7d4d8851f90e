// SPDX-License-Identifier: Apache-2.0
//
// Drafts of a draft model. It makes them behind a step, when that step's tokens are known, so how
// many is decided when the step is built: with it go the pages that they will need. The next step
// verifies them.
#include <string.h>

#include "scheduler/internal.h"

enum { USUAL_STEPS = 8 };

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
        s->asks[num++] = (msgl_depth_ask){.of = &r->depth, .tokens = r->num_ids, .most = most};
    }
    if (num > 0) msgl__depth_choose(&s->depths, &s->costs, answers, s->asks, num);
    for (int32_t i = 0, at = 0; i < b->size; i++) {
        msgl_req *r = step->owners[i];
        msgl_batch_req *part = &b->reqs[i];
        if (part->propose == 0) continue;
        part->propose = 0;
        int32_t depth = s->asks[at++].depth;
        while (depth > 0 && !msgl__sched_has_room(s, r, part->device_len + depth)) depth--;
        if (depth == 0 || !msgl__sched_grow(s, r, part->device_len + depth)) continue;
        part->propose = depth;
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
    if (n < 0 || n > MSGL_MAX_PROPOSALS) return;
    memcpy(r->proposed, res->proposals + (size_t)i * MSGL_MAX_PROPOSALS,
           (size_t)n * sizeof *r->proposed);
    r->num_proposed = n;
}

void msgl__sched_offer_proposed(const msgl_scheduler *s, const msgl_req *r, int32_t most,
                                msgl_draft *offer)
{
    float likely = 1;
    offer->num = r->inflight > 0 || most < 0 ? 0 : r->num_proposed < most ? r->num_proposed : most;
    offer->match = 0;
    for (int32_t i = 0; i < offer->num; i++) {
        likely *= msgl__depth_rate(&s->depths, &r->depth, i);
        offer->tokens[i] = r->proposed[i];
        offer->accepted[i] = likely;
    }
}
