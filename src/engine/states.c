// SPDX-License-Identifier: Apache-2.0
//
// States of a step's requests, by number in the pools of groups that keep some: those of rows of
// the page table, then checkpoints, then those of drafts. A request that goes on begins with its
// row's; one that goes on from a cached prefix with the checkpoint itself, so that loading copies
// nothing, and one of whose drafts a part was accepted with the state behind that part; a new one
// with none. All leave theirs at their row. Layers write checkpoints, and the states behind drafts,
// as they come by.
#include "core/mem.h"
#include "core/round.h"
#include "engine/internal.h"

// A block: from, to and save_start, each with room for max_running + 1 numbers, then the saves.
static size_t stride(const msgl_engine *e)
{
    return msgl__round_up((size_t)e->max_running + 1, 16);
}

// The span of states, or NULL.
static const msgl_cache_span *state_span(const msgl_engine *e)
{
    return msgl__cache_state_span(&e->info.cache);
}

// Of a step: one of each answer, those that its chunks pass, and those of its drafts.
static size_t max_saves(const msgl_engine *e)
{
    const msgl_cache_span *span = state_span(e);
    return (size_t)e->max_running + (size_t)(e->max_step_tokens / span->interval) +
           (size_t)span->draft_states;
}

size_t msgl__states_bytes(const msgl_engine *e)
{
    if (state_span(e) == NULL) return 0;
    return 3 * stride(e) * sizeof(int32_t) + max_saves(e) * sizeof(msgl_kept_state);
}

int32_t msgl__states_cut(const msgl_engine *e)
{
    return e->device->on_host || state_span(e) == NULL ? 0 : MSGL_DELTA_CHUNK;
}

// Whether a request goes on with its answer: with its known token, and drafts. A chunk of one token
// may look so that comes back from the queue, which is as well.
static bool is_answer(const msgl_batch_req *r)
{
    return r->sample && msgl__extend_len(r) == 1 + r->num_drafts &&
           (r->num_drafts > 0 || r->cached_len >= r->prompt_len);
}

static bool request_valid(const msgl_batch_req *r, int32_t checkpoints)
{
    if (r->load_state >= checkpoints || (r->load_state >= 0 && r->cached_len == 0)) return false;
    int32_t len = r->cached_len;
    for (int32_t i = 0; i < r->num_saves; i++) {
        const msgl_state_save *s = &r->saves[i];
        if (s->len <= len || s->len > r->device_len || s->checkpoint < 0 ||
            s->checkpoint >= checkpoints) {
            return false;
        }
        len = s->len;
    }
    return true;
}

bool msgl__states_valid(const msgl_engine *e, const msgl_batch *b)
{
    const msgl_cache_span *span = state_span(e);
    size_t saves = 0;
    bool chunks = false; // kernels of a GPU want drafts in front of them
    for (int32_t i = 0; i < b->size && span != NULL; i++) {
        chunks = chunks || !is_answer(&b->reqs[i]);
        if (chunks && b->reqs[i].num_drafts > 0) return false;
        if (!request_valid(&b->reqs[i], span->num_units + span->draft_states)) return false;
        saves += (size_t)b->reqs[i].num_saves;
    }
    return span == NULL || saves <= max_saves(e);
}

void msgl__states_fill(const msgl_engine *e, msgl_engine_step *s, int32_t i, int32_t first)
{
    if (state_span(e) == NULL) return;
    const size_t n = stride(e);
    const int32_t checkpoints = e->max_running + 1; // behind the rows' and the dummy's
    int32_t *from = s->io.states[i], *to = from + n, *start = to + n, num_saves = 0, answers = 0;
    msgl_kept_state *saves = (msgl_kept_state *)(start + n);
    const int32_t *dev = s->dev.states[i];
    s->states[i] = (msgl_seq_states){.from = from,
                                     .to = to,
                                     .save_start = start,
                                     .saves = saves,
                                     .dev_from = dev,
                                     .dev_to = dev + n,
                                     .dev_save_start = dev + 2 * n,
                                     .dev_saves = (const msgl_kept_state *)(dev + 3 * n)};
    for (int32_t q = 0; q < s->seqs[i].size; q++) {
        const msgl_batch_req *r = first + q < s->batch.size ? &s->reqs[first + q] : NULL;
        const bool padding = r == NULL || r->table_idx == e->max_running;
        start[q] = num_saves;
        from[q] = to[q] = -1;
        if (padding) continue;
        to[q] = r->table_idx;
        if (r->cached_len > 0) {
            from[q] = r->load_state >= 0 ? checkpoints + r->load_state : r->table_idx;
        }
        for (int32_t k = 0; k < r->num_saves; k++) {
            saves[num_saves++] = (msgl_kept_state){.len = r->saves[k].len,
                                                   .state = checkpoints + r->saves[k].checkpoint};
        }
    }
    start[s->seqs[i].size] = num_saves;
    while (first + answers < s->batch.size && answers < s->seqs[i].size &&
           is_answer(&s->reqs[first + answers])) {
        answers++;
    }
    s->states[i].num_answers = answers;
}
