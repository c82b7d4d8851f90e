// SPDX-License-Identifier: Apache-2.0
//
// Whose choice the engine gets next. The engine's queue is first come, first served; so it is kept
// short here: it gets what it can run and a little more, and requests take turns, one choice at a
// time. A connection has one open request, so these are turns between connections.
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

void msgl__turn_join(msgl_front *f, gen *g)
{
    g->in_turn = true;
    if (f->turn == NULL) {
        g->turn_prev = g->turn_next = g;
        f->turn = g;
        return;
    }
    g->turn_next = f->turn;
    g->turn_prev = f->turn->turn_prev;
    g->turn_prev->turn_next = g;
    f->turn->turn_prev = g;
}

void msgl__turn_leave(msgl_front *f, gen *g)
{
    if (!g->in_turn) return;
    g->in_turn = false;
    g->turn_prev->turn_next = g->turn_next;
    g->turn_next->turn_prev = g->turn_prev;
    if (f->turn == g) f->turn = g->turn_next == g ? NULL : g->turn_next;
}

static int32_t expected(const msgl_front *f, const choice *c)
{
    const int64_t usual = 4 * (int64_t)f->answer_len / 16;
    const int64_t n = c->prompt + (usual > ANSWER_MIN ? usual : ANSWER_MIN);
    return n < c->most ? (int32_t)n : c->most;
}

void msgl__turn_sent(msgl_front *f, choice *c)
{
    gen *g = c->owner;
    c->tokens = expected(f, c);
    f->in_engine++;
    g->in_engine++;
    f->tokens += c->tokens;
    g->tokens += c->tokens;
    g->to_start += c->to_start;
    c->sent_ns = msgl__now_ns();
    c->ahead = g->to_start;
}

void msgl__turn_started(msgl_front *f, choice *c)
{
    const int64_t ns = (int64_t)(msgl__now_ns() - c->sent_ns) + 1;
    const int64_t rate = (int64_t)((double)c->ahead * START_NS / (double)ns);
    // Few tokens in a short time only show what a step costs.
    if (rate > f->start_max || ns > START_NS / 2) f->start_max += (rate - f->start_max) / 4;
    if (f->start_max < START_MIN) f->start_max = START_MIN;
    if (f->start_max > START_MAX) f->start_max = START_MAX;
    c->owner->to_start -= c->to_start;
    c->to_start = 0;
}

void msgl__turn_grown(msgl_front *f, choice *c)
{
    const int32_t now = c->prompt + c->seq.completion_tokens;
    if (now <= c->tokens) return;
    const int32_t more = c->most - c->tokens < now / 2 ? c->most - c->tokens : now / 2;
    c->tokens += more;
    c->owner->tokens += more;
    f->tokens += more;
}

void msgl__turn_left(msgl_front *f, choice *c)
{
    gen *g = c->owner;
    if (c->seq.finish != NULL) {
        f->answer_len += (16 * c->seq.completion_tokens - f->answer_len) / 16;
    }
    f->in_engine--;
    g->in_engine--;
    f->tokens -= c->tokens;
    g->tokens -= c->tokens;
    g->to_start -= c->to_start;
}

// Room for requests that have nothing in the engine; what cannot run yet is at hand there when
// something ends.
static int room(const msgl_front *f)
{
    return f->engine.max_running + 1 + f->engine.max_running / 8 - f->in_engine;
}

static bool may_take(const msgl_front *f, const gen *g)
{
    const choice *c = &g->choices[g->num_sent];
    if (!msgl__gen_can_send(g)) return false;
    if (g->in_engine == 0) return true;
    const int64_t rows = f->engine.max_running - f->in_engine - 1;
    const int64_t all = (int64_t)f->engine.num_pages * f->engine.page_size;
    const int32_t more = expected(f, c);
    const int64_t tokens = all - f->tokens - more;
    return g->in_engine + 1 <= SHARE * rows && g->tokens + more <= SHARE * tokens &&
           g->to_start + c->to_start <= f->start_max;
}

gen *msgl__turn_next(msgl_front *f)
{
    if (f->turn == NULL || room(f) <= 0) return NULL;
    const gen *first = f->turn;
    do {
        gen *g = f->turn;
        f->turn = g->turn_next;
        if (may_take(f, g)) return g;
    } while (f->turn != first);
    return NULL;
}
