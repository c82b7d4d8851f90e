// SPDX-License-Identifier: Apache-2.0
//
// States behind drafts, of models that keep states. A state holds all tokens before it and none can
// be taken out again, so a step keeps a copy behind every row of an answer with drafts, in one of
// the units that the cache does not hand out; behind the last row that is the answer's own state.
// When its drafts are accepted up to some row, the next step begins with the state behind that row
// (msgl_batch_req.load_state) and nothing is copied. The other copies are free again at once, and
// this one when the step that began with it has ended: steps run in order, and the one behind a
// step with drafts is built when that has ended, so nobody writes what another still reads.
//
// Checkpoints for the prefix cache are those of an answer without drafts: a step with drafts stops
// before the next multiple of the interval, which the answer passes with a token that is certain.
#include "core/mem.h"
#include "scheduler/internal.h"

// The span of states, or NULL.
static const msgl_cache_span *state_span(const msgl_scheduler *s)
{
    return msgl__cache_state_span(&s->cfg.cache);
}

int msgl__sched_draft_states_create(msgl_scheduler *s, msgl_err *err)
{
    const msgl_cache_span *span = state_span(s);
    if (!s->drafting || span == NULL || span->draft_states == 0) return 0;
    s->free_draft_states = msgl__calloc((size_t)span->draft_states, sizeof *s->free_draft_states);
    if (s->free_draft_states == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "speculation: no memory for %d states",
                             span->draft_states);
    }
    for (int32_t i = span->draft_states - 1; i >= 0; i--) {
        s->free_draft_states[s->num_free_draft_states++] = span->num_units + i;
    }
    return 0;
}

int32_t msgl__sched_draft_states_left(const msgl_scheduler *s)
{
    return state_span(s) == NULL ? INT32_MAX : s->num_free_draft_states;
}

// Rows up to the last token before a checkpoint, less the known token's: with an interval of 512
// and 507 tokens before the step, rows of tokens 508 to 511, so 3 drafts.
int32_t msgl__sched_draft_room(const msgl_scheduler *s, const msgl_req *r)
{
    const msgl_cache_span *span = state_span(s);
    if (span == NULL) return INT32_MAX;
    const int32_t rows = span->interval - 1 - r->device_len % span->interval;
    return rows > 1 ? rows - 1 : 0;
}

static void push(msgl_scheduler *s, int32_t unit)
{
    s->free_draft_states[s->num_free_draft_states++] = unit;
}

void msgl__sched_save_drafts(msgl_scheduler *s, msgl_inflight_step *step, msgl_batch_req *b)
{
    if (state_span(s) == NULL) return;
    b->saves = step->saves + step->num_saves;
    for (int32_t i = 0; i < b->num_drafts; i++) {
        step->saves[step->num_saves++] =
            (msgl_state_save){.len = b->cached_len + 1 + i,
                              .checkpoint = s->free_draft_states[--s->num_free_draft_states]};
    }
    b->num_saves = b->num_drafts;
}

void msgl__sched_saved_drafts(msgl_scheduler *s, const msgl_batch_req *b, msgl_req *r,
                              int32_t num_tokens)
{
    const msgl_cache_span *span = state_span(s);
    if (span == NULL) return;
    if (b->load_state >= span->num_units) push(s, b->load_state);
    for (int32_t i = 0; i < b->num_drafts; i++) {
        if (i == num_tokens - 1) {
            r->draft_state = b->saves[i].checkpoint;
        } else {
            push(s, b->saves[i].checkpoint);
        }
    }
}

void msgl__sched_drop_draft_state(msgl_scheduler *s, msgl_req *r)
{
    if (r->draft_state >= 0) push(s, r->draft_state);
    r->draft_state = -1;
}

int msgl__sched_check_draft_states(const msgl_scheduler *s, msgl_err *err)
{
    const msgl_cache_span *span = state_span(s);
    if (s->free_draft_states == NULL) return 0;
    int64_t sum = 0; // no two of these are one and none is lost, if their sum is right, too
    int32_t free = s->num_free_draft_states, kept = 0, in_flight = 0;
    for (int32_t i = 0; i < free; i++) sum += s->free_draft_states[i];
    for (const msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->draft_state < 0) continue;
        sum += r->draft_state;
        kept++;
    }
    for (int32_t k = 1; k <= s->num_in_flight; k++) {
        const msgl_batch *b = &s->inflight[(s->next_step_slot + s->depth - k) % s->depth].batch;
        for (int32_t i = 0; i < b->size; i++) {
            const msgl_batch_req *q = &b->reqs[i];
            for (int32_t j = 0; j < q->num_drafts; j++) sum += q->saves[j].checkpoint;
            in_flight += q->num_drafts;
            if (q->load_state < span->num_units) continue;
            sum += q->load_state;
            in_flight++;
        }
    }
    const int64_t n = span->draft_states, all = n * span->num_units + n * (n - 1) / 2;
    if (free + kept + in_flight == n && sum == all) return 0;
    return msgl__err_set(err, MSGL_EINTERNAL,
                         "states of drafts: %d free, %d kept, %d in flight, of %d", free, kept,
                         in_flight, span->draft_states);
}
