// SPDX-License-Identifier: Apache-2.0
//
// Prefill steps: first the rest of a prompt that was cut by the budget of the step before, then
// requests from the queue, strictly in the order of their arrival. The head of the queue waits
// until it fits; since what can never fit is refused on arrival and every running request ends,
// that is a finite wait, and nothing behind it can starve it.
#include "scheduler/internal.h"

void msgl__flight_add(msgl_flight *f, msgl_req *r, int32_t device_len)
{
    const bool last = device_len >= r->prompt_len;
    const int32_t extend = device_len - r->device_len;
    msgl_batch *b = &f->batch;
    f->owners[b->size] = r;
    b->reqs[b->size++] = (msgl_batch_req){
        .uid = r->uid,
        .table_idx = r->row,
        .cached_len = r->device_len,
        .device_len = device_len,
        .prompt_len = r->prompt_len,
        .logits_from = last ? extend - 1 : extend,
        .sample = last,
        .sampling = r->sampling,
    };
    if (b->phase == MSGL_PREFILL && r->sampling.prompt_logprobs >= 0) {
        b->reqs[b->size - 1].logits_from = 0;
    }
    b->padded_size = b->size;
    b->num_tokens += extend;
    r->device_len = device_len;
    r->inflight++;
    if (last) r->state = MSGL_REQ_DECODE;
}

// The next chunk of r, at most `budget` tokens; how many it took.
static int32_t add_chunk(msgl_scheduler *s, msgl_flight *f, msgl_req *r, int32_t budget)
{
    const int32_t rest = r->prompt_len - r->device_len;
    const int32_t n = rest < budget ? rest : budget;
    msgl__sched_grow(s, r, r->device_len + n);
    msgl__flight_add(f, r, r->device_len + n);
    // From the next step on others can share what this step computes: steps run in order.
    msgl__cache_extend(s->cache, &r->held, r->ids, msgl__page_table_row(s->cfg.page_table, r->row),
                       r->device_len);
    return n;
}

static bool any_decoding(const msgl_scheduler *s)
{
    for (const msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->state == MSGL_REQ_DECODE) return true;
    }
    return false;
}

int msgl__sched_build_prefill(msgl_scheduler *s, msgl_flight *f)
{
    // Where nobody waits for single tokens (prefill_first), long steps are the fast ones.
    int32_t budget = s->cfg.max_prefill_tokens;
    if (!s->cfg.prefill_first) budget = msgl__pace_budget(&s->pace, any_decoding(s), budget);
    for (msgl_req *r = s->running.head; r != NULL && budget > 0; r = r->next) {
        if (r->state == MSGL_REQ_PREFILL) budget -= add_chunk(s, f, r, budget);
    }
    while (budget > 0 && s->waiting.head != NULL) {
        msgl_req *r = s->waiting.head;
        if (!msgl__sched_admit(s, r)) break;
        msgl__req_unlink(&s->waiting, r);
        msgl__req_push(&s->running, r);
        r->state = MSGL_REQ_PREFILL;
        s->stats.cached_tokens += (uint64_t)r->cached_tokens;
        const int rc = s->runner.write_tokens(s->runner.ctx, r->row, 0, r->ids, r->prompt_len);
        if (rc < 0) return rc;
        budget -= add_chunk(s, f, r, budget);
    }
    return f->batch.size;
}
