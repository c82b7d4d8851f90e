// SPDX-License-Identifier: Apache-2.0
//
// Which choice an engine gets next, of those that were routed to it: a fair queue of two levels.
// The engine's own queue costs memory in two processes, so it is kept short: it gets what it can
// run and a little more. Tenants are served round-robin, one choice at a time, and so are the
// requests of each tenant, which may be many people behind a proxy.
//
// A tenant that has something in the engine leaves places for others: it may hold seven times what
// is then left. Alone it gets 7/8 of the rows, and two tenants get 7/15 each. The scheduler knows
// whose a request is, and takes rows back from a tenant that has more than its equal part
// (src/scheduler); the places are for those that it takes them for.
//
// A request with nothing in the engine waits for nothing else than the round-robin. One that has
// something there leaves room for others of its tenant in the same way: of rows and of tokens it
// may hold seven times what is left after it took. A running answer is expected to take
// min(max_tokens, 4 x the usual length of answers) tokens, and what it has when it gets longer than
// that. max_tokens alone is mostly the rest of the context, which next to no answer needs. Example:
// answers have 100 tokens, max_tokens is 8,000: 400 tokens are reserved, and 401 once it has 401.
// And the prompts that others then find before theirs stay short: as many tokens as were started
// in half a second (docs/decisions/010).
#include "front/front_impl.h"
#include "utils/clock.h"

enum {
    START_NS = 500 * 1000 * 1000,
    START_MIN = 64, // of start_max
    START_MAX = 16384,
    ANSWER_MIN = 256, // tokens that an answer counts as at least, if it may have them
};

static replica *replica_of(msgl_front *f, const choice *c)
{
    return &f->replicas[c->route.replica];
}

static request_queue *queue_of(const choice *c)
{
    return &c->owner->queues[c->route.replica];
}

static tenant_queue *tenant_queue_of(const replica *r, const request_queue *p)
{
    return &p->owner->tenant->queues[r->index];
}

static void ring_join(ring **next, ring *x)
{
    if (x->next != NULL) return;
    if (*next == NULL) {
        x->prev = x->next = x;
        *next = x;
        return;
    }
    x->next = *next;
    x->prev = (*next)->prev;
    x->prev->next = x;
    (*next)->prev = x;
}

static void ring_leave(ring **next, ring *x)
{
    if (x->next == NULL) return;
    x->prev->next = x->next;
    x->next->prev = x->prev;
    if (*next == x) *next = x->next == x ? NULL : x->next;
    x->prev = x->next = NULL;
}

void msgl__fair_join(replica *r, request_queue *p)
{
    tenant_queue *s = tenant_queue_of(r, p);
    ring_join(&s->next, &p->ring);
    ring_join(&r->next, &s->ring);
}

void msgl__fair_leave(replica *r, request_queue *p)
{
    tenant_queue *s = tenant_queue_of(r, p);
    ring_leave(&s->next, &p->ring);
    if (s->next == NULL) ring_leave(&r->next, &s->ring);
}

int32_t msgl__fair_usual_answer(const msgl_front *f)
{
    return f->answer_len > 0 ? f->answer_len / 16 : ANSWER_MIN;
}

static int32_t expected(const msgl_front *f, const choice *c)
{
    const int64_t usual = 4 * (int64_t)f->answer_len / 16;
    const int64_t n = c->prompt + (usual > ANSWER_MIN ? usual : ANSWER_MIN);
    return n < c->most ? (int32_t)n : c->most;
}

static void add_tokens(msgl_front *f, const choice *c, int64_t more)
{
    replica *r = replica_of(f, c);
    request_queue *p = queue_of(c);
    r->tokens += more;
    tenant_queue_of(r, p)->tokens += more;
    p->tokens += more;
}

void msgl__fair_sent(msgl_front *f, choice *c)
{
    replica *r = replica_of(f, c);
    request_queue *p = queue_of(c);
    c->tokens = expected(f, c);
    tenant_queue *s = tenant_queue_of(r, p);
    r->tenants += s->in_engine == 0;
    r->in_engine++;
    s->in_engine++;
    p->in_engine++;
    add_tokens(f, c, c->tokens);
    p->to_start += c->to_start;
    c->sent_ns = msgl__now_ns();
    c->ahead = p->to_start;
}

void msgl__fair_started(msgl_front *f, choice *c)
{
    replica *r = replica_of(f, c);
    const int64_t ns = (int64_t)(msgl__now_ns() - c->sent_ns) + 1;
    const int64_t rate = (int64_t)((double)c->ahead * START_NS / (double)ns);
    // Few tokens in a short time only show what a step costs.
    if (rate > r->start_max || ns > START_NS / 2) r->start_max += (rate - r->start_max) / 4;
    if (r->start_max < START_MIN) r->start_max = START_MIN;
    if (r->start_max > START_MAX) r->start_max = START_MAX;
    queue_of(c)->to_start -= c->to_start;
    c->to_start = 0;
}

void msgl__fair_grown(msgl_front *f, choice *c)
{
    const int32_t now = c->prompt + c->seq.completion_tokens;
    if (now <= c->tokens) return;
    const int32_t more = c->most - c->tokens < now / 2 ? c->most - c->tokens : now / 2;
    c->tokens += more;
    add_tokens(f, c, more);
}

void msgl__fair_left(msgl_front *f, choice *c)
{
    replica *r = replica_of(f, c);
    request_queue *p = queue_of(c);
    if (c->seq.finish != NULL) {
        f->answer_len += (16 * c->seq.completion_tokens - f->answer_len) / 16;
    }
    tenant_queue *s = tenant_queue_of(r, p);
    r->in_engine--;
    s->in_engine--;
    p->in_engine--;
    r->tenants -= s->in_engine == 0;
    add_tokens(f, c, -c->tokens);
    p->to_start -= c->to_start;
}

// Room for tenants that have nothing in the engine; what cannot run yet is at hand there when
// something ends. Seven eighths of all are what the engine can run, and at least one.
static int room(const replica *r)
{
    return r->engine.max_running + 2 + r->engine.max_running / 4 - r->in_engine;
}

static bool tenant_may_send(const replica *r, const tenant_queue *s)
{
    return s->in_engine == 0 || s->in_engine + 1 <= DYNAMIC_THRESHOLD * (room(r) - 1);
}

// What a tenant can have of `all`, others holding so much: what they leave, and at least an
// equal part, which the engine takes from them.
static int64_t reach(const replica *r, int64_t all, int64_t others)
{
    return all - others > all / r->tenants ? all - others : all / r->tenants;
}

static bool request_may_send(const replica *r, const tenant_queue *s, const request_queue *p)
{
    const choice *c = p->first;
    if (!msgl__gen_can_send(r->front, c)) return false;
    if (p->in_engine == 0) return true;
    const int64_t rows =
        reach(r, r->engine.max_running, r->in_engine - s->in_engine) - s->in_engine - 1;
    const int64_t all = (int64_t)r->engine.num_pages * r->engine.page_size;
    const int32_t more = expected(r->front, c);
    const int64_t tokens = reach(r, all, r->tokens - s->tokens) - s->tokens - more;
    return p->in_engine + 1 <= DYNAMIC_THRESHOLD * rows &&
           p->tokens + more <= DYNAMIC_THRESHOLD * tokens &&
           p->to_start + c->to_start <= r->start_max;
}

static request_queue *queue_next(const replica *r, tenant_queue *s)
{
    const ring *first = s->next;
    do {
        request_queue *p = (request_queue *)s->next;
        s->next = p->ring.next;
        if (request_may_send(r, s, p)) return p;
    } while (s->next != first);
    return NULL;
}

request_queue *msgl__fair_next(replica *r)
{
    if (r->next == NULL || room(r) <= 0) return NULL;
    const ring *first = r->next;
    do {
        tenant_queue *s = (tenant_queue *)r->next;
        r->next = s->ring.next;
        request_queue *p = tenant_may_send(r, s) ? queue_next(r, s) : NULL;
        if (p != NULL) return p;
    } while (r->next != first);
    return NULL;
}
