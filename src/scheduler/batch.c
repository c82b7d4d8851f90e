// SPDX-License-Identifier: Apache-2.0
//
// What the next step computes: one token for every answer, and beside them as many prompt tokens as
// the pace allows. An answer's products wait for the weights to arrive from memory; prompt tokens
// that ride along use the arithmetic that would idle meanwhile (Agrawal et al. 2024,
// Sarathi-Serve).
//
// A client's prompts are taken strictly in the order of arrival: first what the step before cut,
// then the queue. What is next waits until it fits; since what can never fit is refused on arrival
// and the oldest request always runs to its end, that is a finite wait, and nothing behind can
// starve it. Clients take turns: a row goes to the one that has fewest, and a step's prompt tokens
// first to the one that had some longest ago, so that one long prompt, or very many, are no more
// before another client's than one step's tokens.
//
// With overlap the results of the step before are not known yet; an answer that turns out to have
// ended there computes one token too many, which is dropped. One that reaches its maximum length is
// left out beforehand, so the surplus token never needs a slot beyond it.
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "core/req_extra.h"
#include "scheduler/internal.h"

// Rows of r's next chunk from which logits are wanted: the last one when it completes what is
// known, and with prompt_logprobs every row of the prompt, once.
static int32_t logits_from(msgl_req *r, int32_t device_len, bool last)
{
    const int32_t extend = device_len - r->device_len, end = r->prompt_len - 1;
    int32_t from = last ? extend - 1 : extend;
    if (r->sampling.prompt_logprobs >= 0 && r->echoed < end && r->device_len < r->prompt_len) {
        const int32_t next = r->echoed > r->device_len ? r->echoed - r->device_len : 0;
        if (next < from) from = next;
        // Back from the queue it may compute again what was echoed.
        const int32_t to = device_len < end ? device_len : end;
        if (to > r->echoed) r->echoed = to;
    }
    return from;
}

// Where the step keeps copies of r's state as it gets to `device_len` tokens: at every interval of
// a prompt. Of an answer, whose tokens are not known here yet, the last one is kept for its end.
static void add_saves(msgl_scheduler *s, msgl_inflight_step *step, msgl_req *r, int32_t device_len)
{
    const msgl_cache_span *span = msgl__cache_state_span(&s->cfg.cache);
    if (span == NULL || r->private_kv) return;
    msgl_batch_req *b = &step->batch.reqs[step->batch.size - 1];
    b->saves = step->saves + step->num_saves;
    for (int32_t len = (b->cached_len / span->interval + 1) * span->interval; len <= device_len;
         len += span->interval) {
        // Own checkpoints take each other's place.
        if (len > r->cache_handle.prefix.len && len + span->interval <= device_len) continue;
        const int32_t checkpoint = msgl__cache_checkpoint(s->cache, &r->cache_handle, len);
        if (checkpoint < 0) continue;
        step->saves[step->num_saves++] = (msgl_state_save){.len = len, .checkpoint = checkpoint};
        b->num_saves++;
    }
}

// Whether the engine reads something of r's variable part: of grammars and lists, it does not.
static bool engine_reads_extra(const msgl_req *r)
{
    return r->extra != NULL &&
           (r->extra->num_bias > 0 || r->extra->num_breakers > 0 || r->extra->pair_from > 0 ||
            r->extra->pool_from > 0 || r->row_values > 0 ||
            r->extra->token_task != MSGL_TASK_TEXT || r->extra->num_embeds > 0);
}

// What r's next token, which gets to position `at`, is chosen from; NULL: all.
static const uint32_t *mask_at(const msgl_req *r, int32_t at)
{
    if (r->constraint != NULL) return msgl__constraint_mask(r->constraint);
    if (r->masks == NULL) return NULL;
    return msgl__token_masks_at(r->masks, r->ids + r->prompt_len, at - r->prompt_len);
}

// Whether its next token depends on the last one in a way that the host has to know.
static bool looks_back(const msgl_req *r)
{
    return r->constraint != NULL || msgl__token_masks_look_back(r->masks);
}

// The checkpoint that r's next part in a step begins with; -1: its row's state.
static int32_t load_state(const msgl_req *r)
{
    if (r->draft_state >= 0) return r->draft_state;
    return r->device_len == r->begin_len ? r->cache_handle.loads : -1;
}

// What r has in the step up to device_len.
static msgl_batch_req part_of(msgl_req *r, int32_t device_len)
{
    const bool last = device_len >= r->fill_len;
    return (msgl_batch_req){
        .uid = r->uid.id,
        .table_idx = r->row,
        .cached_len = r->device_len,
        .device_len = device_len,
        .prompt_len = r->prompt_len,
        .logits_from = logits_from(r, device_len, last),
        .load_state = load_state(r),
        .adapter = r->adapter_slot,
        .sample = last,
        .sampling = r->sampling,
        .extra = engine_reads_extra(r) ? r->extra : NULL,
        .mask = last ? mask_at(r, device_len) : NULL,
        // Of the first choice since it got its row: no result is out then, so r->mu is all of it.
        .mu = r->state == MSGL_REQ_PREFILL ? r->mu : NAN,
    };
}

static int32_t num_embeds(const msgl_req *r)
{
    return r->extra == NULL ? 0 : r->extra->num_embeds;
}

static void add(msgl_inflight_step *step, msgl_req *r, int32_t device_len)
{
    msgl_batch *b = &step->batch;
    const msgl_batch_req part = part_of(r, device_len);
    step->owners[b->size] = r;
    b->reqs[b->size++] = part;
    step->num_row_values += r->row_values * (msgl__extend_len(&part) - part.logits_from);
    if (r->device_len < num_embeds(r)) step->num_embeds += device_len - r->device_len;
    b->num_tokens += device_len - r->device_len;
    r->device_len = device_len;
    r->draft_state = -1; // the step's
    r->inflight++;
    if (device_len >= r->fill_len) r->state = MSGL_REQ_DECODE;
}

bool msgl__sched_goes_on(const msgl_req *r)
{
    return r->state == MSGL_REQ_DECODE && r->device_len + 1 < r->max_len &&
           !(r->inflight > 0 && looks_back(r)) && msgl__sched_may_choose(r);
}

// An answer's next token, and with it its drafts.
static void add_drafts(msgl_scheduler *s, msgl_inflight_step *step, msgl_req *r)
{
    msgl_batch_req part = part_of(r, r->device_len + 1);
    if (msgl__sched_take_drafts(s, step, r, &part)) {
        const bool grown = msgl__sched_grow(s, r, r->device_len + 1 + part.num_drafts);
        assert(grown); // there was room
        (void)grown;
        part.device_len += part.num_drafts;
        part.logits_from = 0;
        msgl__sched_save_drafts(s, step, &part);
        add(step, r, r->device_len + 1);
        step->batch.reqs[step->batch.size - 1] = part;
        step->batch.num_tokens += part.num_drafts;
    } else if (msgl__sched_grow(s, r, r->device_len + 1)) {
        add(step, r, r->device_len + 1);
    }
}

static void add_drafting(msgl_scheduler *s, msgl_inflight_step *step)
{
    if (!s->drafting) return;
    s->cursor = s->running.head;
    for (msgl_req *r; (r = s->cursor) != NULL;) {
        s->cursor = r->next;
        if (r->num_drafts > 0 && msgl__sched_goes_on(r)) add_drafts(s, step, r);
    }
}

static int by_adapter(const void *a, const void *b)
{
    const msgl_req *const x = *(msgl_req *const *)a, *const y = *(msgl_req *const *)b;
    return x->adapter_slot != y->adapter_slot ? x->adapter_slot - y->adapter_slot : x->row - y->row;
}

// Those with the same adapter next to each other, so that its weights are read once.
static void add_answers(msgl_scheduler *s, msgl_inflight_step *step)
{
    msgl_req **const all = step->owners + step->batch.size; // `add` writes no further than it reads
    int32_t n = 0;
    bool adapters = false;
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (!msgl__sched_goes_on(r) || r->num_drafts > 0) continue;
        all[n++] = r;
        adapters = adapters || r->adapter_slot != 0;
    }
    if (adapters) qsort(all, (size_t)n, sizeof(msgl_req *), by_adapter);
    for (int32_t i = 0; i < n; i++) {
        msgl_req *r = all[i];
        // One before it may have needed its room and sent it back.
        if (!msgl__sched_goes_on(r) || !msgl__sched_grow(s, r, r->device_len + 1)) continue;
        add(step, r, r->device_len + 1);
        add_saves(s, step, r, r->device_len);
    }
    step->batch.num_decode = step->batch.size;
}

// Tokens of r's next chunk that the step has room for the values and rows of, which rows with
// log-probabilities bring (without prompt_logprobs the last row alone) and those without an
// embedding need. The step's answers have taken theirs.
static int32_t room_for(const msgl_scheduler *s, const msgl_inflight_step *step, const msgl_req *r,
                        int32_t budget)
{
    if (r->row_values > 0) {
        const int32_t rows = (s->runner.max_row_values - step->num_row_values) / r->row_values;
        if (rows < budget && (rows < 1 || r->sampling.prompt_logprobs >= 0)) budget = rows;
    }
    const int32_t embeds = MSGL_EMBED_ROWS - step->num_embeds;
    if (r->device_len < num_embeds(r) && embeds < budget) budget = embeds;
    return budget;
}

// Tokens of r's next chunk; 0: none in this step. One that is cut ends at a multiple of runner.cut;
// where the budget has no room for that, the step's first chunk takes more, if any step could.
static int32_t chunk_len(const msgl_scheduler *s, const msgl_inflight_step *step, const msgl_req *r,
                         int32_t budget)
{
    const int32_t rest = r->fill_len - r->device_len, cut = s->runner.cut;
    if (s->runner.whole_prompts) return rest <= budget || step->batch.size == 0 ? rest : 0;
    if (rest <= budget || cut == 0) return rest < budget ? rest : budget;
    const int32_t over = (r->device_len + budget) % cut;
    if (over < budget) return budget - over;
    if (step->batch.size > step->batch.num_decode + step->num_drafting) return 0;
    const int32_t more = budget - over + cut, n = rest < more ? rest : more;
    return n <= s->options.max_prefill_tokens ? n : budget;
}

// The next chunk of r; what is left of the budget, nothing behind one that was cut.
static int32_t add_chunk(msgl_scheduler *s, msgl_inflight_step *step, msgl_req *r, int32_t budget)
{
    const int32_t room = room_for(s, step, r, budget);
    const int32_t n = room <= 0 ? 0 : chunk_len(s, step, r, room);
    if (n == 0) return 0;
    // Back from the queue, and its mask is not there yet.
    if (r->device_len + n >= r->fill_len && !msgl__sched_may_choose(r)) return budget;
    if (!msgl__sched_grow(s, r, r->device_len + n)) return budget;
    add(step, r, r->device_len + n);
    // From the next step on others can share what this step computes: steps run in order.
    if (!r->private_kv) msgl__cache_extend(s->cache, &r->cache_handle, r->ids, r->device_len);
    add_saves(s, step, r, r->device_len);
    r->client->served = ++s->chunks;
    if (r->state != MSGL_REQ_PREFILL) return n < budget ? budget - n : 0;
    if (s->clients.count > 1) { // behind what others have begun
        msgl__req_unlink(&s->running, r);
        msgl__req_push(&s->running, r);
    }
    return 0;
}

static void wait_for(msgl_pace_queue *q, int32_t tokens)
{
    if (q->prompts++ == 0) q->first = tokens;
    q->tokens += tokens;
}

// What could be computed now, were there no limit to a step.
static msgl_pace_queue queue_of(const msgl_scheduler *s)
{
    const int32_t usual = s->answer_len / 16;
    msgl_pace_queue q = {.answer_len = usual > 1 ? usual : 1};
    for (const msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->state == MSGL_REQ_PREFILL) wait_for(&q, r->fill_len - r->device_len);
    }
    int32_t rows = s->num_free_rows;
    for (const msgl_req *r = s->waiting.head; r != NULL && rows > 0 && !s->stuck; r = r->next) {
        wait_for(&q, r->num_ids);
        rows--;
    }
    return q;
}

// Whether what is next in the queue goes before the prompt that was cut.
static bool goes_first(const msgl_scheduler *s)
{
    const msgl_req *w = msgl__sched_next(s), *cut = s->running.head;
    if (s->clients.count == 1 || w == NULL) return false;
    while (cut != NULL && cut->state != MSGL_REQ_PREFILL) cut = cut->next;
    return cut != NULL && w->client->served < cut->client->served;
}

// A row and a chunk for what is next in the queue. 1: it has a row, and a chunk if the step has one
// for it; 0: not now; negative: the engine failed.
static int start_next(msgl_scheduler *s, msgl_inflight_step *step, int32_t *budget)
{
    msgl_req *r = msgl__sched_next(s);
    if (r == NULL) return 0;
    while (!msgl__sched_admit(s, r)) {
        if (!msgl__sched_give_way(s, r)) return 0;
    }
    msgl__sched_take_adapter(s, r);
    msgl__req_unlink(&s->waiting, r);
    msgl__req_push(&s->running, r);
    r->state = MSGL_REQ_PREFILL;
    int rc = s->runner.write_tokens(s->runner.ctx, r->row, 0, r->ids, r->fill_len);
    if (rc == 0 && engine_reads_extra(r))
        rc = s->runner.write_extra(s->runner.ctx, r->row, r->extra);
    if (rc < 0) return rc;
    *budget = add_chunk(s, step, r, *budget);
    // For want of a window's pages it may be back in the queue, where it would be next again.
    return r->row >= 0 ? 1 : 0;
}

static int add_chunks(msgl_scheduler *s, msgl_inflight_step *step)
{
    int rc = 1;
    // Where nobody waits for single tokens (prefill_first), long steps are the fast ones.
    int32_t budget = s->options.max_prefill_tokens;
    if (!s->options.prefill_first) {
        const msgl_pace_queue queue = queue_of(s);
        budget = msgl__pace_budget(&s->pace, step->batch.num_decode + step->num_drafting, &queue,
                                   s->runner.tile, budget);
    }
    if (step->has_trees) return 0; // whoever came in meanwhile is in the next step
    if (goes_first(s)) rc = start_next(s, step, &budget);
    if (rc < 0) return rc;
    s->cursor = s->running.head;
    for (msgl_req *r; (r = s->cursor) != NULL && budget > 0;) {
        s->cursor = r->next;
        if (r->state == MSGL_REQ_PREFILL) budget = add_chunk(s, step, r, budget);
    }
    rc = 1;
    while (rc > 0 && budget > 0 && s->waiting.head != NULL) rc = start_next(s, step, &budget);
    return rc < 0 ? rc : 0;
}

int msgl__sched_build(msgl_scheduler *s, msgl_inflight_step *step)
{
    step->num_saves = 0;
    step->num_drafts = step->num_drafting = step->num_proposing = 0;
    step->num_row_values = step->num_embeds = 0;
    step->has_trees = false;
    msgl__sched_slide(s);
    msgl__sched_plan_drafts(s);
    add_answers(s, step);
    add_drafting(s, step);
    const int rc = add_chunks(s, step);
    if (rc == 0 && s->runner.max_propose > 0) msgl__sched_propose(s, step);
    return rc < 0 ? rc : step->batch.size;
}
