// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's life and its step. With overlap two steps are in flight: the next one is chosen
// and submitted before the results of the one before it are looked at.
#include "scheduler/scheduler.h"

#include <assert.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/round.h"
#include "scheduler/internal.h"
#include "utils/heartbeat.h"

// Expected length of an answer before any was seen, in tokens.
enum { FIRST_ANSWER = 256 };
// For masks or an adapter, with nothing else to do: what a message may have to wait before it is
// looked at. One that is done ends the wait.
enum { WAIT_MS = 5 };

static int check_config(const msgl_options *o, const msgl_scheduler_config *c,
                        const msgl_runner *runner, msgl_err *err)
{
    if (c->max_seq_len < 2 || c->vocab_size < 1 || c->num_eos < 0 ||
        c->num_eos > (int32_t)MSGL_COUNT(c->eos_ids)) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "scheduler: max_seq_len %d, vocab_size %d, num_eos %d; allowed: at "
                             "least 2, 1; 0 to %d",
                             c->max_seq_len, c->vocab_size, c->num_eos,
                             (int)MSGL_COUNT(c->eos_ids));
    }
    if (c->cache.num_spans < 1 || c->cache.num_spans > MSGL_MAX_SPANS || c->tables == NULL ||
        c->tables[0].max_running < o->max_running ||
        c->tables[0].paging.size != c->cache.page_size ||
        c->tables[0].stride < msgl__ceil_div(c->max_seq_len, c->cache.page_size) ||
        runner->max_in_flight < 1) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "scheduler: the page table or the engine is smaller than %d requests "
                             "of %d tokens",
                             o->max_running, c->max_seq_len);
    }
    return 0;
}

static size_t most_units(const msgl_cache_layout *l)
{
    int32_t most = 1;
    for (int32_t i = 0; i < l->num_spans; i++) {
        if (l->spans[i].num_units > most) most = l->spans[i].num_units;
    }
    return (size_t)most;
}

// Of a step: one of each answer, those that its chunks pass, and those of its drafts.
static size_t max_saves(const msgl_scheduler *s)
{
    const msgl_cache_span *span = msgl__cache_state_span(&s->cfg.cache);
    const size_t answers = (size_t)s->options.max_running;
    if (span == NULL) return answers;
    return answers + (size_t)(s->options.max_prefill_tokens / span->interval) +
           (size_t)span->draft_states;
}

static int allocate(msgl_scheduler *s, msgl_err *err)
{
    const size_t n = (size_t)s->options.max_running;
    s->free_rows = msgl__calloc(n, sizeof *s->free_rows);
    s->events = msgl__calloc(n, sizeof *s->events);
    s->marks = msgl__calloc(most_units(&s->cfg.cache), 1);
    bool ok = s->free_rows != NULL && s->events != NULL && s->marks != NULL;
    for (int32_t i = 0; i < s->depth; i++) {
        s->inflight[i].batch.reqs = msgl__calloc(n, sizeof(msgl_batch_req));
        s->inflight[i].owners = msgl__calloc(n, sizeof(msgl_req *));
        s->inflight[i].saves = msgl__calloc(max_saves(s), sizeof *s->inflight[i].saves);
        ok = ok && s->inflight[i].batch.reqs != NULL && s->inflight[i].owners != NULL &&
             s->inflight[i].saves != NULL;
    }
    ok = msgl__uids_init(&s->uids) == 0 && msgl__uids_init(&s->clients) == 0 && ok;
    if (!ok) return msgl__err_set(err, MSGL_ENOMEM, "scheduler: no memory for %zu requests", n);
    for (int32_t row = s->options.max_running - 1; row >= 0; row--) {
        s->free_rows[s->num_free_rows++] = row;
    }
    const bool naive = s->cfg.no_prefix_sharing || strcmp(s->options.cache_type, "naive") == 0;
    return msgl__cache_create(naive ? MSGL_CACHE_NAIVE : MSGL_CACHE_RADIX, &s->cfg.cache, &s->cache,
                              err);
}

int msgl__scheduler_create(const msgl_options *o, const msgl_scheduler_config *cfg,
                           const msgl_runner *runner, msgl_emit_fn emit, void *emit_ctx,
                           msgl_scheduler **out, msgl_err *err)
{
    *out = NULL;
    int rc = check_config(o, cfg, runner, err);
    if (rc != 0) return rc;
    msgl_scheduler *s = msgl__calloc(1, sizeof *s);
    if (s == NULL) return msgl__err_set(err, MSGL_ENOMEM, "scheduler: out of memory");
    s->options = *o;
    s->cfg = *cfg;
    s->runner = *runner;
    s->emit = emit;
    s->emit_ctx = emit_ctx;
    s->answer_len = 16 * FIRST_ANSWER;
    s->depth = o->overlap && runner->max_in_flight >= MSGL_MAX_IN_FLIGHT ? MSGL_MAX_IN_FLIGHT : 1;
    rc = allocate(s, err);
    if (rc == 0) rc = msgl__sched_drafter_create(s, err);
    if (rc == 0) rc = msgl__sched_draft_states_create(s, err);
    if (rc == 0) rc = msgl__sched_adapters_create(s, err);
    if (rc != 0) {
        msgl__scheduler_destroy(s);
        return rc;
    }
    *out = s;
    return 0;
}

static msgl_inflight_step *oldest_step(msgl_scheduler *s)
{
    return &s->inflight[(s->next_step_slot + s->depth - s->num_in_flight) % s->depth];
}

// Waits for what is in flight without looking at it.
static void drain(msgl_scheduler *s)
{
    for (; s->num_in_flight > 0; s->num_in_flight--) {
        msgl_step_result res;
        (void)s->runner.wait(s->runner.ctx, oldest_step(s)->batch.step_slot, &res);
    }
}

void msgl__scheduler_destroy(msgl_scheduler *s)
{
    if (s == NULL) return;
    drain(s);
    msgl_req_list *lists[] = {&s->grammar_queue, &s->waiting, &s->running};
    for (size_t i = 0; i < MSGL_COUNT(lists); i++) {
        for (msgl_req *r = lists[i]->head, *next; r != NULL; r = next) {
            next = r->next;
            msgl__req_free(s, r);
        }
    }
    for (int32_t i = 0; i < MSGL_MAX_IN_FLIGHT; i++) {
        msgl__free(s->inflight[i].batch.reqs);
        msgl__free(s->inflight[i].owners);
        msgl__free(s->inflight[i].saves);
    }
    msgl__sched_drafter_destroy(s);
    msgl__constrainer_destroy(s->constrainer);
    msgl__cache_destroy(s->cache);
    msgl__uids_free(&s->uids);
    msgl__uids_free(&s->clients);
    msgl__free(s->marks);
    msgl__free(s->events);
    msgl__free(s->free_rows);
    msgl__free(s->free_draft_states);
    msgl__sched_adapters_destroy(s);
    msgl__free(s);
}

void msgl__sched_retire(msgl_scheduler *s, msgl_req *r)
{
    msgl__sched_free_row(s, r);
    msgl__req_unlink(&s->running, r);
    msgl__req_free(s, r);
    msgl__sched_sweep_adapters(s);
}

void msgl__scheduler_flush(msgl_scheduler *s)
{
    msgl__cache_flush(s->cache);
}

static bool has_requests(const msgl_scheduler *s)
{
    return s->grammar_queue.head != NULL || s->waiting.head != NULL || s->running.head != NULL;
}

bool msgl__scheduler_has_work(const msgl_scheduler *s)
{
    return msgl__sched_loads_adapters(s) || (!s->paused && has_requests(s));
}

void msgl__scheduler_stats(const msgl_scheduler *s, msgl_msg_stats *out)
{
    const msgl_cache_counts n = msgl__cache_count(s->cache, 0);
    *out = s->stats;
    out->running = s->running.count;
    out->waiting = s->waiting.count + s->grammar_queue.count;
    out->total_pages = n.total;
    out->free_pages = n.free;
    out->cached_pages = n.cached;
    out->used_pages = n.total - n.free - n.cached;
}

void msgl__scheduler_tree(const msgl_scheduler *s, msgl_tree_run *runs, msgl_msg_tree *out)
{
    msgl_cache_run all[MSGL_MAX_TREE_RUNS];
    const int32_t page_size = s->cfg.cache.page_size;
    const int32_t n = msgl__cache_runs(s->cache, all, MSGL_MAX_TREE_RUNS, &out->all);
    for (int32_t i = 0; i < n; i++) {
        int32_t parent = all[i].parent == MSGL_CACHE_ROOT ? -1 : 0;
        while (parent >= 0 && all[parent].end != all[i].parent) parent++;
        runs[i] = (msgl_tree_run){.parent = parent,
                                  .tokens = all[i].pages * page_size,
                                  .pins = all[i].pins,
                                  .hits = all[i].hits};
    }
    out->tokens = (int64_t)msgl__cache_count(s->cache, 0).cached * page_size;
    out->num_runs = n;
    out->runs = runs;
}

void msgl__scheduler_report(const msgl_scheduler *s, msgl_msg_report *out)
{
    *out = (msgl_msg_report){.steps = s->step_ns};
    memcpy(out->drafted_at, s->drafted_at, sizeof out->drafted_at);
    memcpy(out->accepted_at, s->accepted_at, sizeof out->accepted_at);
    msgl__scheduler_stats(s, &out->stats);
    _Static_assert(MSGL_MAX_SPANS <= (int)MSGL_MAX_REPORT_GROUPS, "a group each");
    while (out->num_groups < s->cfg.cache.num_spans) {
        const int32_t i = out->num_groups++;
        const msgl_cache_counts n = msgl__cache_count(s->cache, i);
        out->groups[i].total = n.total;
        out->groups[i].free = n.free;
        out->groups[i].cached = n.cached;
        out->groups[i].evicted = n.evicted;
    }
}

// Ends everything after a failure of the engine; returns its code.
static int break_down(msgl_scheduler *s, int code)
{
    msgl_err err;
    const char *fault = s->runner.fault != NULL ? s->runner.fault(s->runner.ctx) : NULL;
    msgl__err_set(&err, code, "the engine has failed: %s",
                  fault != NULL ? fault : msgl__status_text(code));
    s->broken = code;
    drain(s);
    while (has_requests(s)) {
        msgl_req_list *l = s->running.head != NULL   ? &s->running
                           : s->waiting.head != NULL ? &s->waiting
                                                     : &s->grammar_queue;
        msgl_req *r = l->head;
        const uint64_t uid = r->uid.id;
        const int32_t prompt_len = r->prompt_len;
        const bool reported = r->state == MSGL_REQ_DONE;
        if (!reported) msgl__uids_remove(&s->uids, &r->uid);
        if (r->row >= 0) {
            r->keep_kv = false;
            msgl__sched_retire(s, r);
        } else {
            msgl__req_unlink(l, r);
            msgl__req_free(s, r);
        }
        if (!reported) {
            msgl__sched_emit_error(s, uid, prompt_len, code, err.text);
        }
    }
    return code;
}

// Says what is under way: the steps in flight, and `more`, which is about to be submitted.
static void tell_steps(const msgl_scheduler *s, const msgl_inflight_step *more)
{
    uint64_t sum = 1;
    bool known = more == NULL || more->expected_ns > 0;
    if (more != NULL) sum += more->expected_ns;
    for (int32_t i = 0; i < s->num_in_flight; i++) {
        const msgl_inflight_step *step =
            &s->inflight[(s->next_step_slot + s->depth - 1 - i) % s->depth];
        known = known && step->expected_ns > 0;
        sum += step->expected_ns;
    }
    msgl__heartbeat_begin(s->cfg.heartbeat, known ? sum : 0);
}

// Chooses and submits a step. 1: did; 0: nothing to run; negative: the engine failed.
static int start_step(msgl_scheduler *s)
{
    msgl_inflight_step *step = &s->inflight[s->next_step_slot];
    msgl_batch_req *reqs = step->batch.reqs;
    msgl__cache_next_step(s->cache);
    step->batch = (msgl_batch){
        .reqs = reqs, .step_slot = s->next_step_slot, .mask_words = (s->cfg.vocab_size + 31) / 32};
    const int n = msgl__sched_build(s, step);
    if (n <= 0) return n;
    step->expected_ns = msgl__step_expect(&s->times, &step->batch);
    tell_steps(s, step);
    const int rc = s->runner.submit(s->runner.ctx, &step->batch);
    if (rc < 0) return rc;
    s->next_step_slot = (s->next_step_slot + 1) % s->depth;
    s->num_in_flight++;
    return 1;
}

static int finish_step(msgl_scheduler *s)
{
    msgl_inflight_step *step = oldest_step(s);
    msgl_step_result res;
    const int rc = s->runner.wait(s->runner.ctx, step->batch.step_slot, &res);
    s->num_in_flight--;
    if (rc < 0) return rc;
    return msgl__sched_handle(s, step, &res);
}

int msgl__sched_finish_step(msgl_scheduler *s)
{
    tell_steps(s, NULL);
    const int rc = finish_step(s);
    msgl__heartbeat_end(s->cfg.heartbeat);
    return rc < 0 ? break_down(s, rc) : 0;
}

// Whether some answer may have to wait for its mask, or for its grammar.
static bool may_wait(const msgl_scheduler *s)
{
    bool may = s->grammar_queue.head != NULL;
    for (const msgl_req *r = s->running.head; r != NULL && !may; r = r->next) {
        may = r->constraint != NULL;
    }
    return may;
}

static int turn(msgl_scheduler *s)
{
    msgl__sched_adapters(s, s->paused ? WAIT_MS : 0);
    if (s->paused) return 0;
    msgl__sched_constraints(s);
    tell_steps(s, NULL); // what is sent to other ranks may wait for those, too
    const int started = msgl__sched_drafts_in_flight(s) ? 0 : start_step(s);
    if (started < 0) return break_down(s, started);
    // Something is always in flight while there is work, or answers wait for their masks, or
    // adapters are read: with nothing running, all pages are free or evictable, and the next of the
    // queue fits.
    if (s->num_in_flight == 0 && msgl__scheduler_has_work(s)) {
        assert(may_wait(s) || msgl__sched_loads_adapters(s));
        if (s->loading != NULL) {
            msgl__sched_adapters(s, WAIT_MS);
        } else if (s->constrainer != NULL) {
            msgl__constrainer_wait(s->constrainer, WAIT_MS);
        }
        return 0;
    }
    if (s->num_in_flight == s->depth || (started == 0 && s->num_in_flight > 0)) {
        const int rc = finish_step(s);
        if (rc < 0) return break_down(s, rc);
    }
    return 0;
}

int msgl__scheduler_step(msgl_scheduler *s)
{
    if (s->broken != 0) return s->broken;
    const int rc = turn(s);
    msgl__heartbeat_end(s->cfg.heartbeat);
#ifdef MSGL_CHECK_STEPS
    assert(rc < 0 || msgl__scheduler_check(s, NULL) == 0);
#endif
    return rc;
}
