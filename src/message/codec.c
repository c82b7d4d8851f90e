// SPDX-License-Identifier: Apache-2.0
#include "message/codec.h"

#include <string.h>

#include "core/mem.h"
#include "core/round.h"
#include "core/settings.h"
#include "message/frame.h"

// --- memory of decoded messages ---

struct msgl_msg_block {
    struct msgl_msg_block *next;
    size_t size, used;
    _Alignas(16) char data[];
};

enum { BLOCK_MIN = 64 * 1024 };

void msgl__msg_mem_reset(msgl_msg_mem *m)
{
    // The head is the largest block, as each is twice as large as the one before. It is kept for
    // the next message unless it is very large; the others are freed.
    if (m->head != NULL) {
        struct msgl_msg_block *b = m->head->next;
        while (b != NULL) {
            struct msgl_msg_block *next = b->next;
            msgl__free(b);
            b = next;
        }
        m->head->next = NULL;
        m->head->used = 0;
        if (m->head->size > 64 * (size_t)BLOCK_MIN) {
            msgl__free(m->head);
            m->head = NULL;
        }
    }
    m->total = 0;
    msgl__req_extra_unref(m->extra);
    m->extra = NULL;
}

void msgl__msg_mem_free(msgl_msg_mem *m)
{
    msgl__msg_mem_reset(m);
    msgl__free(m->head);
    m->head = NULL;
}

static int mem_get(msgl_msg_mem *m, size_t size, void **out)
{
    size = msgl__round_up(size, 16);
    if (size > MSGL_MSG_DECODED_MAX - m->total) return MSGL_ELIMIT;
    struct msgl_msg_block *b = m->head;
    if (b == NULL || b->size - b->used < size) {
        size_t want = b == NULL ? BLOCK_MIN : 2 * b->size;
        if (want < size) want = size;
        b = msgl__malloc(sizeof *b + want);
        if (b == NULL) return MSGL_ENOMEM;
        *b = (struct msgl_msg_block){.next = m->head, .size = want};
        m->head = b;
    }
    *out = b->data + b->used;
    b->used += size;
    m->total += size;
    return 0;
}

// --- a cursor that writes or reads ---

// One walk over a message's fields serves both directions, so that they cannot differ: the walk
// gives each field's address and range, and the cursor appends it to `out` or sets it from the
// bytes. It remembers the first failure: after it nothing is written, and every field reads as 0.
typedef struct cursor {
    msgl_strbuf *out; // writing; NULL: reading
    const char *base, *p, *end;
    msgl_msg_mem *mem;
    msgl_err *err;
    int rc;
} cursor;

static void fail(cursor *c, int code, const char *field, const char *what)
{
    if (c->rc != 0) return;
    if (c->out != NULL) {
        c->rc = code == MSGL_EFORMAT ? MSGL_EINVAL : code;
        return;
    }
    c->rc = msgl__err_set(c->err, code, "message: %s: %s at byte %zu", field, what,
                          (size_t)(c->p - c->base));
}

static void raw(cursor *c, void *value, size_t bytes, const char *field)
{
    if (c->rc != 0) {
        if (c->out == NULL) memset(value, 0, bytes);
        return;
    }
    if (c->out != NULL) {
        c->rc = msgl__strbuf_add(c->out, value, bytes);
    } else if ((size_t)(c->end - c->p) < bytes) {
        memset(value, 0, bytes);
        fail(c, MSGL_EFORMAT, field, "truncated");
    } else {
        memcpy(value, c->p, bytes);
        c->p += bytes;
    }
}

static void u64(cursor *c, uint64_t *v, const char *field)
{
    raw(c, v, sizeof *v, field);
}

static void f32(cursor *c, float *v, const char *field)
{
    raw(c, v, sizeof *v, field);
}

static void i32(cursor *c, int32_t *v, int32_t lo, int32_t hi, const char *field)
{
    raw(c, v, sizeof *v, field);
    if (c->rc == 0 && (*v < lo || *v > hi)) fail(c, MSGL_EFORMAT, field, "out of range");
}

static void count(cursor *c, int32_t *v, const char *field) // of anything, not negative
{
    i32(c, v, 0, INT32_MAX, field);
}

static void flag(cursor *c, bool *v, const char *field)
{
    uint8_t byte = *v;
    raw(c, &byte, 1, field);
    if (c->rc == 0 && byte > 1) fail(c, MSGL_EFORMAT, field, "not a boolean");
    *v = c->rc == 0 && byte != 0;
}

// The number of elements that follow. Each takes at least min_bytes, so that a number for which
// there are not enough bytes is refused before anything is allocated: 3 elements of 20 bytes in 59.
// 0 after a failure.
static int32_t length(cursor *c, int32_t n, size_t min_bytes, int32_t max, const char *field)
{
    i32(c, &n, 0, max, field);
    if (c->rc == 0 && c->out == NULL && (size_t)n > (size_t)(c->end - c->p) / min_bytes) {
        fail(c, MSGL_EFORMAT, field, "too many elements");
    }
    return c->rc == 0 ? n : 0;
}

// Memory for n elements of a decoded message; NULL after a failure.
static void *room(cursor *c, size_t n, size_t size, const char *field)
{
    void *p = NULL;
    size_t bytes = 0;
    if (c->rc != 0) return NULL;
    int rc = msgl__size_mul(n, size, &bytes);
    if (rc == 0) rc = mem_get(c->mem, bytes, &p);
    if (rc != 0) fail(c, rc, field, "too large");
    return c->rc == 0 ? p : NULL;
}

// An array of n elements of 4 or 8 bytes, which are written as they are in memory. Read, it is NULL
// if there are none.
static void array(cursor *c, const void **p, int32_t *n, size_t size, int32_t max,
                  const char *field)
{
    *n = length(c, *n, size, max, field);
    if (*n == 0) {
        if (c->out == NULL) *p = NULL;
        return;
    }
    void *to = c->out != NULL ? (void *)(uintptr_t)*p : room(c, (size_t)*n, size, field);
    if (to != NULL) raw(c, to, (size_t)*n * size, field);
    if (c->out == NULL) *p = to;
    if (c->rc != 0) *n = 0;
}

static void ids(cursor *c, const int32_t **p, int32_t *n, int32_t least, int32_t max,
                const char *field)
{
    const void *at = *p;
    array(c, &at, n, sizeof **p, max, field);
    *p = at;
    for (int32_t i = 0; i < *n; i++) {
        if ((*p)[i] < least) fail(c, MSGL_EFORMAT, field, "out of range");
    }
}

// A text, as its length and its bytes without the NUL; one that is NULL has the length UINT32_MAX.
static void text(cursor *c, const char **s, bool may_miss, const char *field)
{
    uint32_t n = *s == NULL ? UINT32_MAX : (uint32_t)strlen(*s);
    raw(c, &n, sizeof n, field);
    if (c->rc == 0 && n == UINT32_MAX && !may_miss) fail(c, MSGL_EFORMAT, field, "missing");
    if (c->out != NULL) {
        if (n != UINT32_MAX) raw(c, (void *)(uintptr_t)*s, n, field);
        return;
    }
    *s = NULL;
    if (c->rc != 0 || n == UINT32_MAX) return;
    if ((size_t)(c->end - c->p) < n) {
        fail(c, MSGL_EFORMAT, field, "truncated");
    } else if (memchr(c->p, 0, n) != NULL) {
        fail(c, MSGL_EFORMAT, field, "string with a NUL");
    }
    char *to = room(c, (size_t)n + 1, 1, field);
    if (to == NULL) return;
    raw(c, to, n, field);
    to[n] = '\0';
    *s = to;
}

// --- the walks ---

static void setting(cursor *c, const msgl_setting *s, void *values)
{
    double v = c->out != NULL ? msgl__setting_number(s, values) : 0;
    if (s->type == MSGL_SETTING_REAL) {
        float f = (float)v;
        f32(c, &f, s->field);
        v = (double)f;
    } else if (s->type == MSGL_SETTING_INT) {
        int32_t i = (int32_t)v;
        i32(c, &i, INT32_MIN, INT32_MAX, s->field);
        v = i;
    } else {
        bool b = v != 0;
        flag(c, &b, s->field);
        v = b;
    }
    if (c->out == NULL) msgl__setting_put(s, v, values);
}

// The parts of a request that vary in size. The receiver checks token ids, as it knows the
// vocabulary.
static void extra(cursor *c, msgl_req_extra **x)
{
    msgl_req_extra_parts parts = {.grammar = "", .stages = ""};
    if (c->out != NULL && *x != NULL) {
        parts = msgl__req_extra_parts_of(*x);
    }
    int32_t kind = (int32_t)parts.grammar_kind, num_bias = (int32_t)parts.num_bias;
    int32_t num_allowed = (int32_t)parts.num_allowed, num_banned = (int32_t)parts.num_banned;
    int32_t num_breakers = (int32_t)parts.num_breakers, num_listed = (int32_t)parts.num_listed;
    int32_t embed_dim = (int32_t)parts.embed_dim;
    int32_t num_embeds = (int32_t)(parts.num_embeds * parts.embed_dim);
    const void *bias = parts.bias, *embeds = parts.embeds;
    i32(c, &parts.pair_from, 0, INT32_MAX, "request.pair_from");
    i32(c, &parts.token_task, MSGL_TASK_TEXT, MSGL_TASK_WEIGHTS, "request.token_task");
    i32(c, &parts.pool_from, 0, INT32_MAX, "request.pool_from");
    i32(c, &kind, MSGL_GRAMMAR_NONE, MSGL_GRAMMAR_JSON_SCHEMA_OPEN, "request.grammar");
    text(c, &parts.grammar, false, "request.grammar");
    text(c, &parts.stages, false, "request.stages");
    array(c, &bias, &num_bias, sizeof(msgl_bias), MSGL_MAX_LOGIT_BIAS, "request.logit_bias");
    ids(c, &parts.allowed, &num_allowed, 0, INT32_MAX, "request.allowed");
    ids(c, &parts.banned, &num_banned, 0, INT32_MAX, "request.banned");
    ids(c, &parts.breakers, &num_breakers, 0, INT32_MAX, "request.breakers");
    ids(c, &parts.listed, &num_listed, 0, INT32_MAX, "request.listed");
    flag(c, &parts.hidden, "request.hidden");
    i32(c, &embed_dim, 0, INT32_MAX, "request.embed_dim");
    array(c, &embeds, &num_embeds, sizeof(float), MSGL_MAX_EMBED_VALUES, "request.embeds");
    if (c->rc == 0 && (embed_dim == 0 ? num_embeds > 0 : num_embeds % embed_dim != 0)) {
        fail(c, MSGL_EFORMAT, "request.embeds", "not rows of embed_dim");
    }
    if (c->rc != 0 || c->out != NULL) return;
    parts.grammar_kind = (msgl_grammar_kind)kind;
    parts.bias = bias;
    parts.num_bias = num_bias;
    parts.num_allowed = num_allowed;
    parts.num_banned = num_banned;
    parts.num_breakers = num_breakers;
    parts.num_listed = num_listed;
    parts.embeds = embeds;
    parts.embed_dim = embed_dim;
    parts.num_embeds = embed_dim == 0 ? 0 : num_embeds / embed_dim;
    const int rc = msgl__req_extra_create_with(&parts, INT32_MAX, &c->mem->extra, NULL);
    if (rc != 0) {
        fail(c, rc == MSGL_EINVAL ? MSGL_EFORMAT : rc, "request.extra", "not valid");
    }
    *x = c->mem->extra;
}

static void request(cursor *c, msgl_msg_request *q)
{
    u64(c, &q->uid, "request.uid");
    u64(c, &q->client, "request.client");
    u64(c, &q->cache_salt, "request.cache_salt");
    u64(c, &q->adapter, "request.adapter");
    text(c, &q->adapter_path, q->adapter == 0, "request.adapter_path");
    ids(c, &q->ids, &q->num_ids, INT32_MIN, INT32_MAX, "request.ids");
    if (c->rc == 0 && q->num_ids == 0) fail(c, MSGL_EFORMAT, "request.ids", "empty");
    msgl_sampling_params *p = &q->sampling;
    const msgl_setting_table *settings = &msgl__sampling_settings;
    for (int i = 0; i < settings->count; i++) setting(c, &settings->rows[i], p);
    u64(c, &p->seed, "request.seed");
    i32(c, &p->max_tokens, INT32_MIN, INT32_MAX, "request.max_tokens");
    i32(c, &p->logprobs, INT32_MIN, INT32_MAX, "request.logprobs");
    i32(c, &p->prompt_logprobs, INT32_MIN, INT32_MAX, "request.prompt_logprobs");
    p->num_stop_ids = length(c, p->num_stop_ids, 4, MSGL_MAX_STOP_IDS, "request.stop_ids");
    raw(c, p->stop_ids, (size_t)p->num_stop_ids * sizeof p->stop_ids[0], "request.stop_ids");
    extra(c, &q->extra);
}

enum { LOGPROBS_MIN = 4 * 5 }; // bytes of one row, without tops

static void logprobs(cursor *c, msgl_token_logprobs *l)
{
    static const char field[] = "tokens.logprobs";
    count(c, &l->position, field);
    i32(c, &l->token, INT32_MIN, INT32_MAX, field);
    f32(c, &l->logprob, field);
    count(c, &l->rank, field);
    l->num_top = length(c, l->num_top, 8, MSGL_MAX_LOGPROBS, field);
    raw(c, l->top_ids, (size_t)l->num_top * sizeof l->top_ids[0], field);
    raw(c, l->top_logprobs, (size_t)l->num_top * sizeof l->top_logprobs[0], field);
}

enum { EVENT_MIN = 8 + 4 * 10 }; // bytes of one event that has nothing

static void event(cursor *c, msgl_token_event *e)
{
    int32_t finish = (int32_t)e->finish;
    const void *values = e->values;
    u64(c, &e->uid, "tokens.uid");
    ids(c, &e->tokens, &e->num_tokens, 0, INT32_MAX, "tokens.tokens");
    i32(c, &finish, MSGL_FINISH_NONE, MSGL_FINISH_ERROR, "tokens.finish");
    e->finish = (msgl_finish)finish;
    count(c, &e->prompt_tokens, "tokens.prompt_tokens");
    count(c, &e->cached_tokens, "tokens.cached_tokens");
    count(c, &e->drafted, "tokens.drafted");
    count(c, &e->accepted, "tokens.accepted");
    i32(c, &e->status, INT32_MIN, INT32_MAX, "tokens.status");
    text(c, &e->text, true, "tokens.text");
    array(c, &values, &e->num_values, sizeof(float), INT32_MAX, "tokens.values");
    e->values = values;
    e->num_logprobs = length(c, e->num_logprobs, LOGPROBS_MIN, INT32_MAX, "tokens.logprobs");
    msgl_token_logprobs *rows = NULL;
    if (c->out == NULL && e->num_logprobs > 0) {
        rows = room(c, (size_t)e->num_logprobs, sizeof *rows, "tokens.logprobs");
    }
    for (int32_t i = 0; i < e->num_logprobs && c->rc == 0; i++) {
        msgl_token_logprobs row = c->out != NULL ? e->logprobs[i] : (msgl_token_logprobs){0};
        logprobs(c, &row);
        if (rows != NULL) rows[i] = row;
    }
    if (c->out == NULL) e->logprobs = rows;
}

static void tokens(cursor *c, msgl_msg_tokens *t)
{
    t->num_events = length(c, t->num_events, EVENT_MIN, INT32_MAX, "tokens");
    msgl_token_event *events = NULL;
    if (c->out == NULL) events = room(c, (size_t)t->num_events, sizeof *events, "tokens");
    for (int32_t i = 0; i < t->num_events && c->rc == 0; i++) {
        msgl_token_event e = c->out != NULL ? t->events[i] : (msgl_token_event){0};
        event(c, &e);
        if (events != NULL) events[i] = e;
    }
    if (c->out == NULL) t->events = events;
}

static void admin_state(cursor *c, msgl_admin_state *s)
{
    text(c, &s->version, true, "admin.version");
    text(c, &s->unusable, true, "admin.unusable");
    i32(c, &s->released, 0, MSGL_MEMORY_ALL, "admin.released");
    flag(c, &s->paused, "admin.paused");
}

static void admin(cursor *c, msgl_admin *a)
{
    int32_t kind = (int32_t)a->kind, mode = (int32_t)a->mode;
    const void *bytes = a->bytes;
    i32(c, &kind, MSGL_ADMIN_PAUSE, MSGL_ADMIN_RECEIVE, "admin.kind");
    i32(c, &mode, MSGL_PAUSE_ABORT, MSGL_PAUSE_IN_PLACE, "admin.mode");
    a->kind = (msgl_admin_kind)kind;
    a->mode = (msgl_pause_mode)mode;
    i32(c, &a->tags, 0, MSGL_MEMORY_ALL, "admin.tags");
    flag(c, &a->discard, "admin.discard");
    flag(c, &a->flush, "admin.flush");
    text(c, &a->path, true, "admin.path");
    text(c, &a->version, true, "admin.version");
    u64(c, &a->at, "admin.at");
    u64(c, &a->total, "admin.total");
    array(c, &bytes, &a->num_bytes, 1, MSGL_ADMIN_DATA, "admin.bytes");
    a->bytes = bytes;
    const bool joins = a->kind == MSGL_ADMIN_JOIN;
    text(c, &a->group, !joins && a->kind != MSGL_ADMIN_LEAVE && a->kind != MSGL_ADMIN_RECEIVE,
         "admin.group");
    text(c, &a->host, !joins, "admin.host");
    i32(c, &a->port, 0, 65535, "admin.port");
    count(c, &a->rank, "admin.rank");
    count(c, &a->size, "admin.size");
    if (c->rc == 0 && a->kind == MSGL_ADMIN_DISK && a->path == NULL) {
        fail(c, MSGL_EFORMAT, "admin.path", "missing");
    }
}

static void admin_done(cursor *c, msgl_msg_admin_done *d)
{
    i32(c, &d->code, INT32_MIN, 0, "admin.code");
    text(c, &d->text, true, "admin.text");
    count(c, &d->num_requests, "admin.num_requests");
    admin_state(c, &d->state);
}

static void ready(cursor *c, msgl_msg_ready *m)
{
    int32_t pooling = (int32_t)m->pooling;
    i32(c, &m->max_seq_len, 1, INT32_MAX, "ready.max_seq_len");
    i32(c, &m->max_running, 1, INT32_MAX, "ready.max_running");
    i32(c, &m->num_pages, 1, INT32_MAX, "ready.num_pages");
    i32(c, &m->page_size, 1, INT32_MAX, "ready.page_size");
    i32(c, &m->vocab_size, 1, INT32_MAX, "ready.vocab_size");
    text(c, &m->attention, true, "ready.attention");
    text(c, &m->device, true, "ready.device");
    i32(c, &pooling, MSGL_POOL_NONE, MSGL_POOL_CLASSIFY, "ready.pooling");
    m->pooling = (msgl_pooling)pooling;
    const bool none = m->pooling == MSGL_POOL_NONE;
    i32(c, &m->pooled_size, none ? 0 : 1, none ? 0 : INT32_MAX, "ready.pooled_size");
    count(c, &m->hidden_size, "ready.hidden_size");
    count(c, &m->embed_size, "ready.embed_size");
    i32(c, &m->token_vector_size, 0, none ? 0 : INT32_MAX, "ready.token_vector_size");
    flag(c, &m->token_weights, "ready.token_weights");
    admin_state(c, &m->admin);
}

static void stats(cursor *c, msgl_msg_stats *s)
{
    u64(c, &s->step, "stats.step");
    count(c, &s->running, "stats.running");
    count(c, &s->waiting, "stats.waiting");
    count(c, &s->free_pages, "stats.free_pages");
    count(c, &s->cached_pages, "stats.cached_pages");
    count(c, &s->used_pages, "stats.used_pages");
    count(c, &s->total_pages, "stats.total_pages");
    u64(c, &s->prompt_tokens, "stats.prompt_tokens");
    u64(c, &s->generated_tokens, "stats.generated_tokens");
    u64(c, &s->cached_tokens, "stats.cached_tokens");
    u64(c, &s->requests_done, "stats.requests_done");
    u64(c, &s->requests_aborted, "stats.requests_aborted");
    u64(c, &s->requests_retracted, "stats.requests_retracted");
    u64(c, &s->drafted_tokens, "stats.drafted_tokens");
    u64(c, &s->accepted_tokens, "stats.accepted_tokens");
}

static void report(cursor *c, msgl_msg_report *m)
{
    stats(c, &m->stats);
    u64(c, &m->process.memory, "report.memory");
    u64(c, &m->process.cpu_us, "report.cpu_us");
    u64(c, &m->steps.sum_ns, "report.step_ns");
    raw(c, m->steps.counts, sizeof m->steps.counts, "report.steps");
    raw(c, m->drafted_at, sizeof m->drafted_at, "report.drafted_at");
    raw(c, m->accepted_at, sizeof m->accepted_at, "report.accepted_at");
    m->num_groups = length(c, m->num_groups, 20, MSGL_MAX_REPORT_GROUPS, "report.groups");
    for (int i = 0; i < m->num_groups; i++) {
        count(c, &m->groups[i].total, "report.total");
        count(c, &m->groups[i].free, "report.free");
        count(c, &m->groups[i].cached, "report.cached");
        u64(c, &m->groups[i].evicted, "report.evicted");
    }
}

static void tree(cursor *c, msgl_msg_tree *m)
{
    uint64_t all_tokens = (uint64_t)m->tokens;
    flag(c, &m->all, "tree.all");
    u64(c, &all_tokens, "tree.tokens");
    m->tokens = (int64_t)(all_tokens & INT64_MAX);
    m->num_runs = length(c, m->num_runs, 20, MSGL_MAX_TREE_RUNS, "tree.runs");
    msgl_tree_run *runs = NULL;
    if (c->out == NULL) runs = room(c, (size_t)m->num_runs, sizeof *runs, "tree.runs");
    for (int i = 0; i < m->num_runs && c->rc == 0; i++) {
        msgl_tree_run run = c->out != NULL ? m->runs[i] : (msgl_tree_run){0};
        uint64_t hits = (uint64_t)run.hits;
        i32(c, &run.parent, -1, m->num_runs - 1, "tree.parent");
        i32(c, &run.tokens, 1, INT32_MAX, "tree.run_tokens");
        count(c, &run.pins, "tree.pins");
        u64(c, &hits, "tree.hits");
        run.hits = (int64_t)(hits & INT64_MAX);
        if (runs != NULL) runs[i] = run;
    }
    if (c->out == NULL) m->runs = runs;
}

static void message(cursor *c, msgl_msg *m)
{
    switch (m->type) {
    case MSGL_MSG_REQUEST: request(c, &m->u.request); return;
    case MSGL_MSG_ABORT: u64(c, &m->u.abort_uid, "abort.uid"); return;
    case MSGL_MSG_FLUSH:
    case MSGL_MSG_GET_STATS:
    case MSGL_MSG_GET_TREE:
    case MSGL_MSG_EXIT: return;
    case MSGL_MSG_READY: ready(c, &m->u.ready); return;
    case MSGL_MSG_TOKENS: tokens(c, &m->u.tokens); return;
    case MSGL_MSG_STATS: stats(c, &m->u.stats); return;
    case MSGL_MSG_TREE: tree(c, &m->u.tree); return;
    case MSGL_MSG_ADMIN: admin(c, &m->u.admin); return;
    case MSGL_MSG_ADMIN_DONE: admin_done(c, &m->u.admin_done); return;
    case MSGL_MSG_REPORT: report(c, &m->u.report); return;
    case MSGL_MSG_ADAPTER:
        u64(c, &m->u.adapter.adapter, "adapter.adapter");
        text(c, &m->u.adapter.path, true, "adapter.path");
        return;
    case MSGL_MSG_ADAPTER_DONE:
        u64(c, &m->u.adapter_done.adapter, "adapter_done.adapter");
        flag(c, &m->u.adapter_done.dropped, "adapter_done.dropped");
        i32(c, &m->u.adapter_done.status, INT32_MIN, INT32_MAX, "adapter_done.status");
        text(c, &m->u.adapter_done.text, true, "adapter_done.text");
        return;
    case MSGL_MSG_FATAL: text(c, &m->u.fatal, false, "fatal"); return;
    }
    fail(c, MSGL_EFORMAT, "type", "unknown");
}

int msgl__msg_encode(const msgl_msg *m, msgl_strbuf *out)
{
    const size_t before = out->len;
    size_t start;
    cursor c = {.out = out};
    msgl_msg copy = *m; // the walk takes addresses of fields; it changes none
    c.rc = msgl__frame_begin(out, &start);
    if (c.rc == 0) message(&c, &copy);
    if (c.rc == 0) c.rc = msgl__frame_end(out, start, (uint32_t)m->type, MSGL_MSG_FRAME_MAX);
    if (c.rc != 0 && out->data != NULL) {
        out->len = before;
        out->data[before] = '\0';
    }
    return c.rc;
}

int msgl__msg_decode(const void *data, size_t len, msgl_msg_mem *mem, msgl_msg *out, msgl_err *err)
{
    msgl__msg_mem_reset(mem);
    *out = (msgl_msg){0};
    msgl_frame_head head = {0};
    cursor c = {.base = data, .p = data, .end = (const char *)data + len, .mem = mem, .err = err};
    if (msgl__frame_peek(data, len, MSGL_MSG_FRAME_MAX, &head) != 1) {
        fail(&c, MSGL_EFORMAT, "frame", "not whole, or too long");
    } else {
        c.p += sizeof head;
        out->type = (msgl_msg_type)head.kind;
        message(&c, out);
        if (c.rc == 0 && c.p != c.end) fail(&c, MSGL_EFORMAT, "message", "trailing bytes");
    }
    if (c.rc != 0) *out = (msgl_msg){0};
    return c.rc;
}
