// SPDX-License-Identifier: Apache-2.0
//
// States of a step's requests, by number in the pools of groups that keep some: those of rows of
// the page table, then checkpoints. A request that goes on begins with its row's; one that goes on
// from a cached prefix with the checkpoint itself, so that loading copies nothing; a new one with
// none. All leave theirs at their row. Layers write checkpoints as they come by.
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
    const msgl_cache_layout *c = &e->info.cache;
    const msgl_cache_span *last = &c->spans[c->num_spans - 1];
    return last->kind == MSGL_SPAN_STATE ? last : NULL;
}

// Of a step: one of each answer, and those that its chunks pass.
static size_t max_saves(const msgl_engine *e)
{
    return (size_t)e->max_running + (size_t)(e->max_step_tokens / state_span(e)->interval);
}

size_t msgl__states_bytes(const msgl_engine *e)
{
    if (state_span(e) == NULL) return 0;
    return 3 * stride(e) * sizeof(int32_t) + max_saves(e) * sizeof(msgl_delta_save);
}

int32_t msgl__states_cut(const msgl_engine *e)
{
    return e->device->on_host || state_span(e) == NULL ? 0 : MSGL_DELTA_CHUNK;
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
    for (int32_t i = 0; i < b->size && span != NULL; i++) {
        if (!request_valid(&b->reqs[i], span->num_units)) return false;
        saves += (size_t)b->reqs[i].num_saves;
    }
    return span == NULL || saves <= max_saves(e);
}

void msgl__states_fill(const msgl_engine *e, msgl_engine_step *s, int32_t i, int32_t first)
{
    if (state_span(e) == NULL) return;
    const size_t n = stride(e);
    const int32_t checkpoints = e->max_running + 1; // behind the rows' and the dummy's
    int32_t *from = s->io.states[i], *to = from + n, *start = to + n, num_saves = 0;
    msgl_delta_save *saves = (msgl_delta_save *)(start + n);
    const int32_t *dev = s->dev.states[i];
    s->states[i] = (msgl_seq_states){.from = from,
                                     .to = to,
                                     .save_start = start,
                                     .saves = saves,
                                     .dev_from = dev,
                                     .dev_to = dev + n,
                                     .dev_save_start = dev + 2 * n,
                                     .dev_saves = (const msgl_delta_save *)(dev + 3 * n)};
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
            saves[num_saves++] = (msgl_delta_save){.len = r->saves[k].len,
                                                   .state = checkpoints + r->saves[k].checkpoint};
        }
    }
    start[s->seqs[i].size] = num_saves;
}
