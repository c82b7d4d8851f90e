// SPDX-License-Identifier: Apache-2.0
//
// Token events of the engines, turned into text and sent to the clients: as a stream, chunk by
// chunk, or as one body when the last choice has ended.
#include <time.h>

#include <event2/buffer.h>

#include "core/mem.h"
#include "front/front_impl.h"
#include "utils/clock.h"

enum { OUT_KEEP = 1 << 20 }; // bytes; a larger scratch buffer is freed after use

msgl_reply msgl__gen_reply(const msgl_front *f, const gen *g)
{
    msgl_reply r = {.req = &g->job->req,
                    .id = g->id,
                    .model = f->cfg.model_name,
                    .weight_version = msgl__admin_version(f),
                    .created = g->created,
                    .num_choices = g->num_choices,
                    .prompt_ids = &g->job->ids[0],
                    .first_choice = g->num_choices == 0 ? NULL : &g->choices[0].seq};
    for (int i = 0; i < g->job->req.num_prompts; i++) {
        r.prompt_tokens += (int64_t)g->job->ids[i].len;
    }
    r.total_ns = (int64_t)(msgl__now_ns() - g->arrived_ns);
    r.first_ns = g->first_seen ? (int64_t)(g->first_ns - g->arrived_ns) : r.total_ns;
    if (r.req->chat.split.reasoning == NULL) r.reasoning_tokens = -1;
    for (int i = 0; i < g->num_choices && r.reasoning_tokens >= 0; i++) {
        r.reasoning_tokens += g->choices[i].seq.reasoning_tokens;
    }
    for (int i = 0; i < g->num_choices; i++) {
        r.drafted += g->choices[i].seq.drafted;
        r.accepted += g->choices[i].seq.accepted;
    }
    return r;
}

int msgl__choice_claim(gen *g, choice *c)
{
    const size_t now = msgl__sequence_bytes(&c->seq);
    int rc = 0;
    if (now > c->seq_bytes) {
        rc = msgl__claim_add(&g->job->claim, MSGL_BUDGET_ANSWER, now - c->seq_bytes);
    } else {
        msgl__claim_sub(&g->job->claim, c->seq_bytes - now);
    }
    if (rc == 0) c->seq_bytes = now;
    return rc;
}

// Cached tokens count once per prompt, as its tokens do.
static void totals(const gen *g, int64_t *cached, int64_t *completion)
{
    *cached = *completion = 0;
    for (int i = 0; i < g->num_choices; i++) {
        if (i % g->job->req.n == 0) *cached += g->choices[i].seq.cached_tokens;
        *completion += g->choices[i].seq.completion_tokens;
    }
}

// --- a whole answer ---

// The scratch buffer's text behind *body; the scratch is empty again.
static int out_move(msgl_front *f, struct evbuffer *body)
{
    const int rc = evbuffer_add(body, msgl__strbuf_str(&f->out), f->out.len);
    if (f->out.cap > OUT_KEEP) msgl__strbuf_free(&f->out);
    msgl__strbuf_clear(&f->out);
    return rc == 0 ? 0 : MSGL_ENOMEM;
}

// Choice by choice, and each is freed when it is written: the answer is not held twice.
static int put_choices(msgl_front *f, gen *g, const msgl_reply *r, struct evbuffer *body)
{
    int rc = 0;
    for (int i = 0; i < g->num_choices && rc == 0; i++) {
        choice *c = &g->choices[i];
        rc = g->ep->put_choice(r, i, &c->seq, &f->out);
        if (rc == 0) rc = msgl__claim_add(&g->job->claim, MSGL_BUDGET_ANSWER, f->out.len);
        if (rc == 0) rc = out_move(f, body);
        msgl__sequence_free(&c->seq);
        msgl__claim_sub(&g->job->claim, c->seq_bytes);
        c->seq_bytes = 0;
    }
    return rc;
}

// What is made of all choices at once.
static int put_all(msgl_front *f, gen *g, const msgl_reply *r, int64_t cached)
{
    const msgl_sequence **all = msgl__calloc((size_t)g->num_choices, sizeof *all);
    if (all == NULL) return MSGL_ENOMEM;
    for (int i = 0; i < g->num_choices; i++) all[i] = &g->choices[i].seq;
    int rc = g->ep->put_all(r, all, cached, &f->out);
    msgl__free(all);
    if (rc == 0) rc = msgl__claim_add(&g->job->claim, MSGL_BUDGET_ANSWER, f->out.len);
    return rc;
}

// An answer that its client may ask for again. One that finds no room is not kept.
static void keep(msgl_front *f, const gen *g, const void *body, size_t len)
{
    const msgl_strbuf *items = &g->job->req.kept;
    if (items->len == 0 || body == NULL) return;
    (void)msgl__response_store_put(f->responses, g->job->client, g->id, (int64_t)time(NULL), items,
                                   body, len);
}

static int put_whole(msgl_front *f, gen *g, struct evbuffer *body)
{
    const msgl_reply r = msgl__gen_reply(f, g);
    int64_t cached, completion;
    totals(g, &cached, &completion);
    int rc;
    msgl__trace_count(g);
    if (g->ep->put_all != NULL) {
        rc = put_all(f, g, &r, cached);
    } else {
        rc = g->ep->put_begin(&r, &f->out);
        if (rc == 0) rc = put_choices(f, g, &r, body);
        if (rc == 0) rc = g->ep->put_end(&r, cached, completion, &f->out);
    }
    return rc == 0 ? out_move(f, body) : rc;
}

// Its choices have ended: writes the body.
static void gen_answer_whole(msgl_front *f, gen *g)
{
    struct evbuffer *body = evbuffer_new();
    msgl__strbuf_clear(&f->out);
    const int rc = body == NULL ? MSGL_ENOMEM : put_whole(f, g, body);
    if (rc != 0) {
        msgl__gen_fail_status(f, g, rc);
    } else {
        msgl_http_conn *c = g->base.conn;
        g->base.conn = NULL;
        if (g->job->req.kept.len > 0) {
            keep(f, g, evbuffer_pullup(body, -1), evbuffer_get_length(body));
        }
        msgl__durations_observe(&f->metrics.latency, msgl__now_ns() - g->arrived_ns);
        msgl__trace_status(g, 200);
        msgl__http_reply_buffer(c, 200, msgl__endpoint_type(g->ep), body);
        msgl__gen_free(f, g);
    }
    if (body != NULL) evbuffer_free(body);
}

// --- a stream ---

// Writes what its choices have new, and the end of the stream behind the last one.
static void gen_stream(msgl_front *f, gen *g)
{
    const msgl_reply r = msgl__gen_reply(f, g);
    msgl__strbuf_clear(&f->out);
    int rc = 0;
    for (int i = 0; i < g->num_choices && rc == 0; i++) {
        msgl_sequence *s = &g->choices[i].seq;
        // A finished choice said so once.
        if (s->started && !(s->finish != NULL && s->finish_shown)) {
            const bool silent = s->finish == NULL && s->completion_tokens > s->tokens_shown;
            rc = g->ep->put_chunk(&r, i, s, silent, &f->out);
            s->first_shown = true;
            s->tokens_shown = s->completion_tokens;
            s->finish_shown = s->finish != NULL;
        }
    }
    if (rc == 0 && g->num_left == 0) {
        int64_t cached, completion;
        totals(g, &cached, &completion);
        rc = g->ep->put_stream_end(&r, cached, completion, &f->out);
        const msgl_sequence *s = &g->choices[0].seq;
        if (rc == 0) keep(f, g, msgl__strbuf_str(&f->out) + s->kept_at, s->kept_len);
    }
    if (rc != 0) {
        msgl__gen_fail_status(f, g, rc);
        return;
    }
    msgl_http_conn *c = g->base.conn;
    if (!g->streaming) msgl__trace_status(g, 200);
    if (!g->streaming) msgl__http_stream_begin(c, g->ep->stream_type);
    g->streaming = true;
    rc = msgl__http_stream_write(c, msgl__strbuf_str(&f->out), f->out.len);
    if (f->out.cap > OUT_KEEP) msgl__strbuf_free(&f->out);
    if (rc != 0) {
        msgl__gen_fail_status(f, g, rc);
        return;
    }
    if (g->num_left > 0) return;
    g->base.conn = NULL;
    msgl__durations_observe(&f->metrics.latency, msgl__now_ns() - g->arrived_ns);
    msgl__http_stream_end(c);
    msgl__gen_free(f, g);
}

void msgl__gen_answer(msgl_front *f, gen *g)
{
    if (g->job->req.stream) {
        gen_stream(f, g);
    } else if (g->num_left == 0) {
        gen_answer_whole(f, g);
    }
}

// --- events ---

static void engine_error(msgl_front *f, gen *g, const msgl_token_event *e)
{
    msgl_api_error api;
    const char *text = e->text == NULL ? msgl__status_text(e->status) : e->text;
    const bool theirs = e->status == MSGL_EINVAL || e->status == MSGL_ELIMIT;
    (void)msgl__api_fail(&api, theirs ? 400 : 500, NULL,
                         e->status == MSGL_ELIMIT ? "context_length_exceeded" : NULL, "%s", text);
    msgl__gen_fail(f, g, &api);
}

// Tokens of a choice have come.
static void observe(msgl_front *f, choice *c, uint64_t now_ns)
{
    gen *g = c->owner;
    if (!g->first_seen) {
        msgl__durations_observe(&f->metrics.first_token, now_ns - g->arrived_ns);
        msgl__trace_first(g, now_ns);
        g->first_ns = now_ns;
    }
    if (c->last_ns != 0) msgl__durations_observe(&f->metrics.gap, now_ns - c->last_ns);
    g->first_seen = true;
    c->last_ns = now_ns;
}

static void token_event(msgl_front *f, const msgl_token_event *e, uint64_t now_ns)
{
    choice *c = (choice *)msgl__uids_find(&f->uids, e->uid);
    if (c == NULL) return; // aborted in the meantime
    gen *g = c->owner;
    if (c->waiting) {
        msgl__queue_give(f, g->tenant, 1);
        msgl__fair_started(f, c);
        msgl__router_started(f->router, &c->route);
    }
    c->waiting = false;
    if (e->num_tokens > 0) observe(f, c, now_ns);
    if (e->finish == MSGL_FINISH_ERROR) {
        msgl__choice_leave(f, c, false);
        engine_error(f, g, e);
        return;
    }
    int rc = msgl__sequence_event(&c->seq, e);
    if (rc == 0) rc = msgl__choice_claim(g, c);
    if (rc != 0) {
        msgl__gen_fail_status(f, g, rc);
        return;
    }
    msgl__fair_grown(f, c);
    if (c->seq.finish != NULL) msgl__choice_leave(f, c, e->finish == MSGL_FINISH_NONE);
    if (!g->dirty) {
        g->dirty = true;
        g->next_dirty = f->dirty;
        f->dirty = g;
    }
}

void msgl__gen_tokens(msgl_front *f, const msgl_msg_tokens *t)
{
    const uint64_t now_ns = msgl__now_ns();
    for (int32_t i = 0; i < t->num_events; i++) token_event(f, &t->events[i], now_ns);
    // One write per client and step, however many of its choices moved.
    while (f->dirty != NULL) {
        gen *g = f->dirty;
        f->dirty = g->next_dirty;
        g->dirty = false;
        msgl__gen_answer(f, g);
    }
    msgl__dispatch(f);
}
