// SPDX-License-Identifier: Apache-2.0
//
// From a step's results to token events: who has finished, why, and what was surplus.
#include "scheduler/internal.h"

enum { VALUES_AT_ONCE = 1 << 20 }; // about, so that a message stays far below a frame's limit

static bool is_stop(const msgl_scheduler *s, const msgl_req *r, int32_t token)
{
    // A grammar has it where the answer may end.
    const bool constrained = r->constraint != NULL && r->extra->grammar_kind != MSGL_GRAMMAR_NONE;
    if (!r->sampling.ignore_eos || constrained) {
        for (int32_t i = 0; i < s->cfg.num_eos; i++) {
            if (s->cfg.eos_ids[i] == token) return true;
        }
    }
    for (int32_t i = 0; i < r->sampling.num_stop_ids; i++) {
        if (r->sampling.stop_ids[i] == token) return true;
    }
    return false;
}

void msgl__sched_ended(msgl_scheduler *s, const msgl_req *r)
{
    const int32_t tokens = r->num_ids - r->prompt_len;
    msgl__sched_seen_answer(s, tokens, true);
    if (s->drafter != NULL) {
        msgl__draft_remember(s->drafter, r->salt, r->ids + r->prompt_len, tokens);
    }
}

static void finish(msgl_scheduler *s, msgl_req *r, msgl_token_event *e, msgl_finish why)
{
    e->finish = why;
    r->state = MSGL_REQ_DONE;
    msgl__uids_remove(&s->uids, &r->uid);
    s->stats.requests_done++;
    if (why != MSGL_FINISH_ERROR) msgl__sched_ended(s, r);
}

static void fail(msgl_scheduler *s, msgl_req *r, msgl_token_event *e, int status, const char *text)
{
    e->num_tokens = 0;
    e->status = status;
    e->text = text;
    e->num_logprobs = 0;
    e->logprobs = NULL;
    r->keep_kv = false;
    finish(s, r, e, MSGL_FINISH_ERROR);
}

// The prompt is computed, and that is all there is to it.
static void pool(msgl_scheduler *s, msgl_req *r, const msgl_step_result *res, int32_t i,
                 msgl_token_event *e)
{
    const size_t size = (size_t)s->cfg.pooled_size, index = (size_t)res->cu_tokens[i];
    const bool by_tokens = r->extra != NULL && r->extra->token_task != MSGL_TASK_TEXT;
    const float *values = by_tokens ? res->token_values : res->pooled;
    if (values == NULL || res->cu_tokens[i + 1] <= res->cu_tokens[i]) {
        fail(s, r, e, MSGL_EINTERNAL, "the engine returned no values");
        return;
    }
    const size_t from = by_tokens ? res->cu_token_values[i] : index * size;
    e->num_values = (int32_t)(by_tokens ? res->cu_token_values[i + 1] - from : size);
    e->values = values + from;
    finish(s, r, e, MSGL_FINISH_STOP);
}

// What request r, the step's i-th, learns from its results; false: nothing to tell.
static bool make_event(msgl_scheduler *s, const msgl_batch_req *b, msgl_req *r,
                       const msgl_step_result *res, int32_t i, msgl_token_event *e)
{
    const int32_t first = res->cu_tokens[i], num_tokens = res->cu_tokens[i + 1] - first;
    const int32_t status = res->status[i];
    if (status != 0) {
        fail(s, r, e, status,
             status == MSGL_ENUMERIC ? "logits are NaN" : msgl__status_text(status));
        return true;
    }
    if (!b->sample) return e->num_logprobs > 0;
    if (s->cfg.pooled_size > 0) {
        pool(s, r, res, i, e);
        return true;
    }
    if (num_tokens < 1) fail(s, r, e, MSGL_EINTERNAL, "the engine returned no token");
    for (int32_t t = first; t < first + num_tokens && r->state != MSGL_REQ_DONE; t++) {
        const int32_t token = res->tokens[t];
        if (token < 0 || token >= s->cfg.vocab_size) {
            fail(s, r, e, MSGL_EINTERNAL, "the engine returned a token outside the vocabulary");
            return true;
        }
        e->num_tokens++;
        if (res->mu != NULL) r->mu = res->mu[t];
        r->ids[r->num_ids++] = token;
        s->stats.generated_tokens++;
        if (is_stop(s, r, token)) {
            finish(s, r, e, MSGL_FINISH_STOP);
        } else if (r->num_ids == r->max_len) {
            finish(s, r, e, MSGL_FINISH_LENGTH);
        }
    }
    // Of accepted drafts behind the answer's end nothing is told.
    while (e->num_logprobs > 0 && e->logprobs[e->num_logprobs - 1].position >= r->num_ids) {
        e->num_logprobs--;
    }
    return true;
}

// What r's drafts have come to, or the token that there was instead.
static void note_drafts(msgl_scheduler *s, const msgl_batch_req *b, msgl_req *r, int32_t num_tokens,
                        msgl_token_event *e)
{
    if (b->num_drafts == 0) {
        if (s->drafter != NULL) msgl__draft_seen(s->drafter, &r->draft, r->ids, r->num_ids);
    } else {
        r->accepted += e->num_tokens < num_tokens ? e->num_tokens : num_tokens - 1;
    }
    e->drafted = r->drafted;
    e->accepted = r->accepted;
}

int msgl__sched_handle(msgl_scheduler *s, msgl_inflight_step *step, const msgl_step_result *res)
{
    const msgl_batch *b = &step->batch;
    if (res->size != b->size) return MSGL_EINTERNAL;
    const int32_t answers = b->num_decode + step->num_drafting;
    const int32_t chunks = b->num_tokens - answers - step->num_drafts;
    msgl__pace_observe(&s->pace, answers, chunks, s->runner.tile, res->compute_ns);
    if (chunks == 0) msgl__costs_observe(&s->costs, b->num_tokens, res->compute_ns);
    msgl__step_observe(&s->times, b, res->compute_ns);
    msgl__durations_observe(&s->step_ns, res->compute_ns);
    msgl__sched_passes(s, step, res);
    int32_t num_events = 0, num_values = 0, row = 0;
    for (int32_t i = 0; i < b->size; i++) {
        msgl_req *r = step->owners[i];
        const int32_t first = row;
        while (row < res->num_logprobs && res->logprobs[row].req == i) row++;
        msgl_token_event *e = &s->events[num_events];
        *e = (msgl_token_event){.uid = r->uid.id,
                                .tokens = res->tokens + res->cu_tokens[i],
                                .prompt_tokens = r->prompt_len,
                                .cached_tokens = r->cached_tokens,
                                .num_logprobs = row - first,
                                .logprobs = row > first ? res->logprobs + first : NULL};
        r->inflight--;
        const int32_t num_tokens = res->cu_tokens[i + 1] - res->cu_tokens[i];
        msgl__sched_saved_drafts(s, &b->reqs[i], r, num_tokens);
        if (b->reqs[i].num_drafts > 0 && num_tokens > 0) {
            msgl__sched_drafts_verified(s, &b->reqs[i], r, res->tokens + res->cu_tokens[i],
                                        num_tokens);
        }
        if (r->state != MSGL_REQ_DONE && make_event(s, &b->reqs[i], r, res, i, e)) {
            if (r->row_values > 0 && e->num_logprobs > 0) {
                e->num_values = e->num_logprobs * r->row_values;
                e->values = res->row_values + res->cu_row_values[i];
            }
            if (r->most_drafts > 0) note_drafts(s, &b->reqs[i], r, num_tokens, e);
            msgl__sched_proposed(r, res, i);
            if (r->constraint != NULL && r->state != MSGL_REQ_DONE && e->num_tokens > 0) {
                msgl__sched_go_on(s, r, e->tokens, e->num_tokens);
            }
            num_events++;
            num_values += e->num_values;
        }
        if (num_values > VALUES_AT_ONCE) {
            s->emit(s->emit_ctx, &(msgl_msg_tokens){.num_events = num_events, .events = s->events});
            num_events = num_values = 0;
        }
        if (r->inflight > 0) continue;
        if (r->state == MSGL_REQ_DONE) {
            msgl__sched_retire(s, r);
        } else if (r->state == MSGL_REQ_LEAVING) {
            msgl__sched_leave(s, r);
        }
    }
    s->stats.step++;
    if (num_events > 0) {
        s->emit(s->emit_ctx, &(msgl_msg_tokens){.num_events = num_events, .events = s->events});
    }
    return 0;
}
