// SPDX-License-Identifier: Apache-2.0
//
// Drafts: guesses at what an answer goes on with, which a step computes as if they were known.
// From every row the token is chosen that would be chosen without drafts; as long as it is the
// draft behind the row, the next row is one that answers would have had, too.
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"

// Of a model that keeps states, which leaves one behind every row: of more the memory is better
// spent on checkpoints.
enum { MOST_DRAFT_STATES = 64 };

int msgl__drafts_choose(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    const char *why = NULL;
    e->max_drafts = 0;
    if (strcmp(o->speculative_algorithm, "none") == 0) return 0;
    if (e->info.pooling != MSGL_POOL_NONE) {
        why = "a model that makes no tokens";
    } else if (e->sparse.heavy_channels > 0) {
        why = "double sparsity, which attends to other tokens of a draft than of an answer";
    } else if (e->model.cfg.ropes[0].dual.len > 0) {
        why = "dual chunk attention";
    }
    msgl_cache_span *last = &e->info.cache.spans[e->info.cache.num_spans - 1];
    const bool states = last->kind == MSGL_SPAN_STATE;
    if (why == NULL) {
        e->max_drafts = states ? MOST_DRAFT_STATES : MSGL_MAX_STEP_DRAFTS;
        if (states) last->draft_states = MOST_DRAFT_STATES;
        // A row of a state goes on from the one before, in the same step.
        e->splits_drafts = !e->device->on_host && !states;
        return 0;
    }
    if (strcmp(o->speculative_algorithm, "auto") != 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "--speculative-algorithm %s: not with %s; allowed here: none, auto",
                             o->speculative_algorithm, why);
    }
    char line[160];
    snprintf(line, sizeof line, "speculation: none; not with %s", why);
    msgl__engine_print(o, line);
    return 0;
}

// Of `n` choices, how many the answer gets: those that are drafts, and the one behind them. A
// choice that failed ends it: the request fails.
static int32_t accepted(const int32_t *drafts, const int32_t *tokens, const int32_t *status,
                        int32_t n)
{
    int32_t i = 0;
    while (i < n - 1 && status[i] == 0 && tokens[i] == drafts[i]) i++;
    return i + 1;
}

// Drops the records of positions from `end` on, which the answer does not have; `from`: where those
// of the request begin. Returns where the next request's begin; *to: where the kept ones end.
static int32_t keep_records(msgl_engine_step *s, int32_t req, int32_t end, int32_t from,
                            int32_t *to)
{
    for (; from < s->num_records && s->records[from].req == req; from++) {
        if (s->records[from].position < end) s->records[(*to)++] = s->records[from];
    }
    return from;
}

void msgl__accept_drafts(const msgl_engine *e, msgl_engine_step *s)
{
    int32_t *status = s->sampled + e->max_samples;
    int32_t used = 0, kept = 0, records = 0;
    const int32_t *drafts = s->drafts;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t first = s->cu_tokens[i], n = s->cu_tokens[i + 1] - first;
        const int32_t all = n < 1 ? 0 : accepted(drafts, s->sampled + first, status + first, n);
        const int32_t end = r->num_drafts > 0 ? r->cached_len + all + 1 : INT32_MAX;
        records = keep_records(s, i, end, records, &kept);
        memmove(s->sampled + used, s->sampled + first, (size_t)all * sizeof *s->sampled);
        memmove(status + used, status + first, (size_t)all * sizeof *status);
        memmove(s->mu + used, s->mu + first, (size_t)all * sizeof *s->mu);
        for (int32_t k = 0; k < all; k++) s->sample_req[used + k] = i;
        drafts += r->num_drafts;
        s->cu_tokens[i] = used;
        used += all;
    }
    s->cu_tokens[s->batch.size] = used;
    s->num_samples = used;
    s->num_records = kept;
}
