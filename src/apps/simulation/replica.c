// SPDX-License-Identifier: Apache-2.0
#include "apps/simulation/replica.h"

#include "core/mem.h"
#include "core/round.h"

enum { STEP_SLOTS = 2, WARM_UP_TOKENS = 8 };

// ---- what replicas share ----

int msgl__sim_replica_kind_init(msgl_sim_replica_kind *k, const msgl_options *o,
                                const msgl_trace *trace, const msgl_step_table *steps,
                                msgl_err *err)
{
    const size_t n = (size_t)o->max_running + MSGL_MAX_STEP_DRAFTS;
    *k = (msgl_sim_replica_kind){.options = o, .trace = trace, .steps = steps};
    k->tokens = msgl__calloc(n, sizeof *k->tokens);
    k->cu_tokens = msgl__calloc(n + 1, sizeof *k->cu_tokens);
    k->status = msgl__calloc(n, sizeof *k->status);
    k->ids = msgl__reallocarray(NULL, (size_t)trace->longest, sizeof *k->ids);
    k->result =
        (msgl_step_result){.tokens = k->tokens, .cu_tokens = k->cu_tokens, .status = k->status};
    if (k->tokens != NULL && k->cu_tokens != NULL && k->status != NULL && k->ids != NULL) return 0;
    msgl__sim_replica_kind_free(k);
    return msgl__err_set(err, MSGL_ENOMEM, "simulation: out of memory");
}

void msgl__sim_replica_kind_free(msgl_sim_replica_kind *k)
{
    msgl__free(k->tokens);
    msgl__free(k->cu_tokens);
    msgl__free(k->status);
    msgl__free(k->ids);
    *k = (msgl_sim_replica_kind){0};
}

// ---- the runner ----

static int write_tokens(void *ctx, int32_t row, int32_t pos, const int32_t *ids, int32_t n)
{
    (void)ctx, (void)row, (void)pos, (void)ids, (void)n;
    return 0;
}

// Steps run one after the other, and begin at once when none is running.
static int submit(void *ctx, msgl_batch *b)
{
    msgl_sim_replica *r = ctx;
    const msgl_step_shape shape = msgl__step_shape_of(b);
    const uint64_t begin = r->device_ns > r->now_ns ? r->device_ns : r->now_ns;
    const uint64_t ns = msgl__step_table_ns(r->kind->steps, &shape);
    r->device_ns = begin + ns;
    r->busy_ns += ns;
    r->batches[b->step_slot] = b;
    r->ends_ns[b->step_slot] = begin + ns;
    r->took_ns[b->step_slot] = ns;
    return 0;
}

// The tokens that a step brings a request: up to and with the first that is not the draft of it.
static int32_t answer(const msgl_sim_replica_kind *k, const msgl_batch_req *q, int32_t *tokens)
{
    const int32_t first = q->device_len - q->num_drafts - q->prompt_len;
    for (int32_t i = 0;; i++) {
        tokens[i] = msgl__trace_answer(k->trace, (int32_t)q->uid, first + i);
        if (i == q->num_drafts || tokens[i] != q->drafts[i]) return i + 1;
    }
}

static int wait(void *ctx, int32_t step_slot, msgl_step_result *out)
{
    msgl_sim_replica *r = ctx;
    msgl_sim_replica_kind *k = r->kind;
    const msgl_batch *b = r->batches[step_slot];
    int32_t n = 0;
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *q = &b->reqs[i];
        k->cu_tokens[i] = n;
        if (!q->sample) continue;
        n += answer(k, q, k->tokens + n);
    }
    k->cu_tokens[b->size] = n;
    k->result.size = b->size;
    k->result.compute_ns = r->took_ns[step_slot];
    *out = k->result;
    if (r->ends_ns[step_slot] > r->now_ns) r->now_ns = r->ends_ns[step_slot];
    return 0;
}

// ---- the server ----

static void on_tokens(void *ctx, const msgl_msg_tokens *tokens)
{
    msgl_sim_replica *r = ctx;
    for (int32_t i = 0; i < tokens->num_events; i++) {
        const msgl_token_event *e = &tokens->events[i];
        if (e->finish == MSGL_FINISH_ERROR) {
            (void)msgl__err_set(r->refused, e->status, "%s", e->text);
            continue;
        }
        for (int32_t t = 0; t < e->num_tokens; t++) {
            r->events[r->num_events++] = (msgl_sim_replica_event){
                .line = (int32_t)e->uid,
                .cached_tokens = e->cached_tokens,
                .ended = e->finish != MSGL_FINISH_NONE && t + 1 == e->num_tokens};
        }
    }
}

// Not msgl__page_table_create, which writes every row: of thousands of replicas most rows are never
// used, and memory that nobody touches is none.
static int create_table(msgl_sim_replica *r, msgl_err *err)
{
    const msgl_options *o = r->kind->options;
    const int32_t stride = msgl__ceil_div(o->max_seq_len, o->page_size);
    size_t n;
    r->table = (msgl_page_table){
        .max_running = o->max_running, .stride = stride, .paging = msgl__paging_of(o->page_size)};
    if (msgl__size_mul((size_t)o->max_running + 1, (size_t)stride, &n) == 0) {
        r->table.pages = msgl__calloc(n, sizeof *r->table.pages);
    }
    r->events = msgl__calloc((size_t)o->max_running + MSGL_MAX_STEP_DRAFTS, sizeof *r->events);
    if (r->table.pages != NULL && r->events != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "simulation: no memory for a page table of %d x %d",
                         o->max_running, o->max_seq_len);
}

int msgl__sim_replica_init(msgl_sim_replica *r, msgl_sim_replica_kind *k, msgl_err *err)
{
    const msgl_options *o = k->options;
    *r = (msgl_sim_replica){.kind = k};
    int rc = create_table(r, err);
    if (rc == 0) {
        const msgl_scheduler_config cfg = {
            .max_seq_len = o->max_seq_len,
            .cache = {.page_size = o->page_size,
                      .num_spans = 1,
                      .spans = {{.kind = MSGL_SPAN_ALL, .window = -1, .num_units = o->num_pages}}},
            .vocab_size = MSGL_TRACE_VOCAB,
            .tables = &r->table};
        const msgl_runner runner = {.ctx = r,
                                    .max_in_flight = STEP_SLOTS,
                                    .tile = msgl__step_table_tile(k->steps),
                                    .max_drafts = MSGL_MAX_STEP_DRAFTS,
                                    .write_tokens = write_tokens,
                                    .submit = submit,
                                    .wait = wait};
        rc = msgl__scheduler_create(o, &cfg, &runner, on_tokens, r, &r->scheduler, err);
    }
    if (rc != 0) msgl__sim_replica_free(r);
    return rc;
}

void msgl__sim_replica_free(msgl_sim_replica *r)
{
    msgl__scheduler_destroy(r->scheduler);
    msgl__free(r->table.pages);
    msgl__free(r->events);
    *r = (msgl_sim_replica){0};
}

int msgl__sim_replica_send(msgl_sim_replica *r, int32_t line, msgl_err *err)
{
    msgl_sim_replica_kind *k = r->kind;
    msgl_msg_request q = {.uid = (uint64_t)line,
                          .num_ids = msgl__trace_prompt(k->trace, line, k->ids),
                          .ids = k->ids,
                          .sampling = msgl__sampling_params_default()};
    q.sampling.max_tokens = k->trace->lines[line].output;
    q.sampling.ignore_eos = true;
    msgl_err refused = {0};
    r->refused = &refused;
    msgl__scheduler_add(r->scheduler, &q);
    r->refused = NULL;
    if (refused.code != 0 && err != NULL) *err = refused;
    return refused.code;
}

int msgl__sim_replica_warm_up(msgl_sim_replica *r, int32_t line)
{
    const msgl_trace_line *l = &r->kind->trace->lines[line];
    msgl_msg_request q = {.uid = (uint64_t)r->kind->trace->count,
                          .num_ids = l->input,
                          .ids = r->kind->ids,
                          .sampling = msgl__sampling_params_default()};
    for (int32_t i = 0; i < l->input; i++) r->kind->ids[i] = i;
    q.sampling.max_tokens = l->output < WARM_UP_TOKENS ? l->output : WARM_UP_TOKENS;
    q.sampling.ignore_eos = true;
    msgl_err refused = {0}; // as the line itself will be
    r->refused = &refused;
    msgl__scheduler_add(r->scheduler, &q);
    r->refused = NULL;
    int rc = 0;
    while (rc == 0 && msgl__scheduler_has_work(r->scheduler)) rc = msgl__sim_replica_step(r);
    msgl_msg_stats stats;
    msgl__scheduler_stats(r->scheduler, &stats);
    r->warm_steps = (int64_t)stats.step;
    r->now_ns = r->device_ns = r->busy_ns = 0;
    r->num_events = 0;
    return rc;
}

bool msgl__sim_replica_has_work(const msgl_sim_replica *r)
{
    return msgl__scheduler_has_work(r->scheduler);
}

int msgl__sim_replica_step(msgl_sim_replica *r)
{
    r->num_events = 0;
    return msgl__scheduler_step(r->scheduler);
}
