// SPDX-License-Identifier: Apache-2.0
//
// A request's span: filled in while it is on its way, sent to the exporter when
// it is over. Nothing of what was asked or answered is in it.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "front/front_impl.h"
#include "traces/context.h"
#include "utils/clock.h"

static uint64_t unix_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char *operation_of(const msgl_endpoint *ep)
{
    if (ep->id_prefix == NULL || ep->pooled) return ep->pooled ? "embeddings" : "";
    return ep->prompt == MSGL_PROMPT_TEXT ? "text_completion" : "chat";
}

// Of the trace that the request's header is of, or of one of its own. False: its sender does not
// record that trace.
static bool begin(msgl_span *s, const msgl_endpoint *ep, const msgl_http_conn *c,
                  const msgl_http_parser *p)
{
    msgl_trace_context from;
    const msgl_http_value *v = &p->traceparent;
    *s = (msgl_span){.start_ns = unix_ns(), .max_tokens = -1};
    if (v->at != NULL && msgl__trace_context_read(v->at, v->len, &from)) {
        if (!from.sampled) return false;
        memcpy(s->trace_id, from.trace_id, sizeof s->trace_id);
        memcpy(s->parent_id, from.span_id, sizeof s->parent_id);
        s->has_parent = true;
    } else {
        msgl__trace_id_make(s->trace_id, sizeof s->trace_id);
    }
    msgl__trace_id_make(s->span_id, sizeof s->span_id);
    (void)snprintf(s->path, sizeof s->path, "%s", ep->path);
    (void)snprintf(s->operation, sizeof s->operation, "%s", operation_of(ep));
    (void)snprintf(s->request_id, sizeof s->request_id, "%s", msgl__http_conn_id(c));
    return true;
}

void msgl__trace_open(msgl_front *f, gen *g, const msgl_http_parser *p)
{
    if (f->cfg.traces == NULL) return;
    g->span = msgl__malloc(sizeof *g->span);
    if (g->span == NULL) return;
    if (!begin(g->span, g->ep, g->base.conn, p)) {
        msgl__free(g->span);
        g->span = NULL;
        return;
    }
    (void)snprintf(g->span->response_id, sizeof g->span->response_id, "%s", g->id);
}

static uint64_t since(const gen *g, uint64_t now_ns)
{
    return now_ns > g->arrived_ns ? now_ns - g->arrived_ns : 1;
}

void msgl__trace_sent(const gen *g)
{
    if (g->span != NULL && g->span->sent_ns == 0) g->span->sent_ns = since(g, msgl__now_ns());
}

void msgl__trace_first(const gen *g, uint64_t now_ns)
{
    if (g->span != NULL) g->span->first_ns = since(g, now_ns);
}

void msgl__trace_status(const gen *g, int status)
{
    if (g->span != NULL) g->span->status = status;
}

static void put_error(msgl_span *s, const msgl_api_error *e)
{
    const char *code = e->code != NULL ? e->code : e->type;
    if (s->status == 0) s->status = e->status;
    (void)snprintf(s->error, sizeof s->error, "%s", code == NULL ? "other" : code);
}

void msgl__trace_error(const gen *g, const msgl_api_error *e)
{
    if (g->span != NULL) put_error(g->span, e);
}

void msgl__trace_gone(const gen *g)
{
    if (g->span != NULL) g->span->client_gone = true;
}

static msgl_span_finish finish_of(const char *text)
{
    static const struct {
        const char *text;
        msgl_span_finish finish;
    } all[] = {{"stop", MSGL_SPAN_STOP},
               {"length", MSGL_SPAN_LENGTH},
               {"tool_calls", MSGL_SPAN_TOOL_CALLS}};
    for (size_t i = 0; text != NULL && i < MSGL_COUNT(all); i++) {
        if (strcmp(all[i].text, text) == 0) return all[i].finish;
    }
    return MSGL_SPAN_ABORT; // also of those that did not come to their end
}

static void count_choices(msgl_span *s, const gen *g)
{
    for (int i = 0; i < g->num_choices; i++) {
        const msgl_sequence *q = &g->choices[i].seq;
        if (i % g->job->req.n == 0) s->cached_tokens += q->cached_tokens;
        s->output_tokens += q->completion_tokens;
        s->reasoning_tokens += q->reasoning_tokens;
        if (!s->sampled || s->num_finishes == MSGL_SPAN_CHOICES) continue;
        s->finishes[s->num_finishes++] = (uint8_t)finish_of(q->finish);
    }
}

void msgl__trace_count(const gen *g)
{
    msgl_span *s = g->span;
    if (s == NULL || s->read || g->job == NULL || g->job->rc != 0 || g->job->ids == NULL) return;
    const msgl_gen_request *r = &g->job->req;
    s->read = true;
    s->stream = r->stream;
    s->sampled = g->ep->id_prefix != NULL && !g->ep->pooled;
    s->choices = r->n;
    s->max_tokens = r->max_tokens;
    s->top_k = r->sampling.top_k;
    s->temperature = r->sampling.temperature;
    s->top_p = r->sampling.top_p;
    s->frequency_penalty = r->sampling.frequency_penalty;
    s->presence_penalty = r->sampling.presence_penalty;
    for (int i = 0; i < r->num_prompts; i++) s->input_tokens += (int64_t)g->job->ids[i].len;
    count_choices(s, g);
}

void msgl__trace_end(msgl_front *f, gen *g)
{
    if (g->span == NULL) return;
    msgl__trace_count(g);
    g->span->end_ns = since(g, msgl__now_ns());
    msgl__traces_send(f->cfg.traces, g->span);
    msgl__free(g->span);
    g->span = NULL;
}

void msgl__trace_refused(msgl_front *f, const msgl_endpoint *ep, const msgl_http_conn *c,
                         const msgl_http_parser *p, const msgl_api_error *e)
{
    msgl_span s;
    if (f->cfg.traces == NULL || !begin(&s, ep, c, p)) return;
    put_error(&s, e);
    s.end_ns = 1000; // about; it took no time
    msgl__traces_send(f->cfg.traces, &s);
}
