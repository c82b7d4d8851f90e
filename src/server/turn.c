// SPDX-License-Identifier: Apache-2.0
//
// Whose choice an engine gets next, of those that were routed to it. The engine's queue is first
// come, first served; so it is kept short here: it gets what it can run and a little more, and
// requests take turns, one choice at a time. A connection has one open request, so these are turns
// between connections.
//
// A request that has nothing in the engine only waits for its turn. One that has leaves room for
// others: of rows and of tokens it may hold seven times what is left after it took, so that one
// request gets 7/8 of the engine, two get 7/15 each, and there is something left for the next one.
// An answer counts as four times the usual length (or max_tokens), and more when it gets longer:
// max_tokens alone is mostly the rest of the context, which next to no answer needs.
// And the prompts that others then find before theirs stay short: as many tokens as were started
// in half a second (docs/decisions/010).
#include "server/front_impl.h"
#include "utils/clock.h"

enum {
    SHARE = 7,
    START_NS = 500 * 1000 * 1000,
    START_MIN = 64, // of start_max
    START_MAX = 16384,
    ANSWER_MIN = 256, // tokens that an answer counts as at least, if it may have them
};

static replica *replica_of(msgl_front *f, const choice *c)
{
    return &f->replicas[c->route.replica];
}

static part *part_of(const choice *c)
{
    return &c->owner->parts[c->route.replica];
}

void msgl__turn_join(replica *r, part *p)
{
    if (p->next != NULL) return;
    if (r->turn == NULL) {
        p->prev = p->next = p;
        r->turn = p;
        return;
    }
    p->next = r->turn;
    p->prev = r->turn->prev;
    p->prev->next = p;
    r->turn->prev = p;
}

void msgl__turn_leave(replica *r, part *p)
{
    if (p->next == NULL) return;
    p->prev->next = p->next;
    p->next->prev = p->prev;
    if (r->turn == p) r->turn = p->next == p ? NULL : p->next;
    p->prev = p->next = NULL;
}

int32_t msgl__turn_usual_answer(const msgl_front *f)
{
    return f->answer_len > 0 ? f->answer_len / 16 : ANSWER_MIN;
}

static int32_t expected(const msgl_front *f, const choice *c)
{
    const int64_t usual = 4 * (int64_t)f->answer_len / 16;
    const int64_t n = c->prompt + (usual > ANSWER_MIN ? usual : ANSWER_MIN);
    return n < c->most ? (int32_t)n : c->most;
}

void msgl__turn_sent(msgl_front *f, choice *c)
{
    replica *r = replica_of(f, c);
    part *p = part_of(c);
    c->tokens = expected(f, c);
    r->in_engine++;
    p->in_engine++;
    r->tokens += c->tokens;
    p->tokens += c->tokens;
    p->to_start += c->to_start;
    c->sent_ns = msgl__now_ns();
    c->ahead = p->to_start;
}

void msgl__turn_started(msgl_front *f, choice *c)
{
    replica *r = replica_of(f, c);
    const int64_t ns = (int64_t)(msgl__now_ns() - c->sent_ns) + 1;
    const int64_t rate = (int64_t)((double)c->ahead * START_NS / (double)ns);
    // Few tokens in a short time only show what a step costs.
    if (rate > r->start_max || ns > START_NS / 2) r->start_max += (rate - r->start_max) / 4;
    if (r->start_max < START_MIN) r->start_max = START_MIN;
    if (r->start_max > START_MAX) r->start_max = START_MAX;
    part_of(c)->to_start -= c->to_start;
    c->to_start = 0;
}

void msgl__turn_grown(msgl_front *f, choice *c)
{
    const int32_t now = c->prompt + c->seq.completion_tokens;
    if (now <= c->tokens) return;
    const int32_t more = c->most - c->tokens < now / 2 ? c->most - c->tokens : now / 2;
    c->tokens += more;
    part_of(c)->tokens += more;
    replica_of(f, c)->tokens += more;
}

void msgl__turn_left(msgl_front *f, choice *c)
{
    replica *r = replica_of(f, c);
    part *p = part_of(c);
    if (c->seq.finish != NULL) {
        f->answer_len += (16 * c->seq.completion_tokens - f->answer_len) / 16;
    }
    r->in_engine--;
    p->in_engine--;
    r->tokens -= c->tokens;
    p->tokens -= c->tokens;
    p->to_start -= c->to_start;
}

// Room for requests that have nothing in the engine; what cannot run yet is at hand there when
// something ends.
static int room(const replica *r)
{
    return r->engine.max_running + 1 + r->engine.max_running / 8 - r->in_engine;
}

static bool may_take(const replica *r, const part *p)
{
    const choice *c = p->first;
    if (!msgl__gen_can_send(c)) return false;
    if (p->in_engine == 0) return true;
    const int64_t rows = r->engine.max_running - r->in_engine - 1;
    const int64_t all = (int64_t)r->engine.num_pages * r->engine.page_size;
    const int32_t more = expected(r->front, c);
    const int64_t tokens = all - r->tokens - more;
    return p->in_engine + 1 <= SHARE * rows && p->tokens + more <= SHARE * tokens &&
           p->to_start + c->to_start <= r->start_max;
}

part *msgl__turn_next(replica *r)
{
    if (r->turn == NULL || room(r) <= 0) return NULL;
    const part *first = r->turn;
    do {
        part *p = r->turn;
        r->turn = p->next;
        if (may_take(r, p)) return p;
    } while (r->turn != first);
    return NULL;
}
