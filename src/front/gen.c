// SPDX-License-Identifier: Apache-2.0
//
// The life of a request with a job: its body goes to a worker; the ids that come back go to the
// engines (dispatch.c), and their tokens to the client (answer.c); or the worker's answer does, if
// the endpoint ends there. A request ends in one of three ways: it is answered, it fails, or its
// client leaves; in each, every choice that an engine still has is aborted at once.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "front/front_impl.h"
#include "utils/clock.h"
#include "utils/siphash.h"

enum {
    BATCH_ALONE = 16, // requests of batches that run at once when there are no others
    BATCH_BESIDE = 2, // and while there are others
};

// --- its end ---

void msgl__queue_give(msgl_front *f, tenant *p, int n)
{
    f->waiting -= n;
    p->waiting -= n;
}

void msgl__choice_lost(msgl_front *f, choice *c)
{
    msgl__uids_remove(&f->uids, &c->uid);
    c->uid.id = 0;
    msgl__fair_left(f, c);
    msgl__router_ended(f->router, &c->route);
}

void msgl__choice_leave(msgl_front *f, choice *c, bool abort_it)
{
    if (c->uid.id == 0) return;
    if (abort_it) {
        const msgl_msg m = {.type = MSGL_MSG_ABORT, .u.abort_uid = c->uid.id};
        (void)msgl__replica_post(&f->replicas[c->route.replica], &m);
    }
    msgl__choice_lost(f, c);
    msgl__queue_give(f, c->owner->tenant, c->waiting);
    c->waiting = false;
    c->owner->num_left--;
}

// Batches have half of the engines' rows, and next to none of them while others are there.
static void set_batch_room(msgl_front *f)
{
    if (f->batches == NULL) return;
    const int half = msgl__front_engine(f)->max_running * msgl__front_num_serving(f) / 2;
    const int most = f->num_gens > f->num_inner ? BATCH_BESIDE : BATCH_ALONE;
    f->cfg.batches->set_room(f->batches, half < 1 ? 1 : half < most ? half : most);
}

void msgl__gen_free(msgl_front *f, gen *g)
{
    msgl__trace_end(f, g);
    msgl__queue_give(f, g->tenant, g->num_choices - g->num_sent);
    for (int i = 0; i < f->cfg.num_replicas && g->queues != NULL; i++) {
        (void)msgl__queue_clear(f, &g->queues[i]);
    }
    for (int i = 0; i < g->num_choices; i++) {
        msgl__choice_leave(f, &g->choices[i], true);
        msgl__sequence_free(&g->choices[i].seq);
    }
    msgl__free(g->queues);
    msgl__free(g->choices);
    msgl__job_free(g->job);
    if (g->prev != NULL) g->prev->next = g->next;
    if (g->next != NULL) g->next->prev = g->prev;
    if (f->gens == g) f->gens = g->next;
    msgl__tenant_leave(f, g->tenant);
    f->num_gens--;
    f->num_inner -= g->inner;
    set_batch_room(f);
    for (gen **d = &f->dirty; g->dirty && *d != NULL; d = &(*d)->next_dirty) {
        if (*d == g) {
            *d = g->next_dirty;
            break;
        }
    }
    msgl__free(g);
    msgl__front_idle_check(f);
}

void msgl__gen_fail(msgl_front *f, gen *g, const msgl_api_error *e)
{
    msgl_http_conn *c = g->base.conn;
    g->base.conn = NULL;
    if (c != NULL) msgl__trace_error(g, e);
    if (c != NULL && !g->streaming) {
        msgl__front_reply_error(f, g->ep, c, e);
    } else if (c != NULL) {
        const msgl_reply r = msgl__gen_reply(f, g);
        msgl__metrics_error(&f->metrics, e);
        msgl__strbuf_clear(&f->out);
        (void)g->ep->put_stream_error(&r, e, &f->out);
        (void)msgl__http_stream_write(c, msgl__strbuf_str(&f->out), f->out.len);
        msgl__http_stream_end(c);
    }
    if (g->in_worker) {
        atomic_store(&g->job->cancelled, true);
    } else {
        msgl__gen_free(f, g);
    }
}

void msgl__gen_fail_status(msgl_front *f, gen *g, int rc)
{
    msgl_api_error e;
    switch (rc) {
    case MSGL_ECLOSED:
        (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready", "The engine is not ready.");
        break;
    case MSGL_ELIMIT:
    case MSGL_EBUSY: (void)msgl__api_fail_memory(&e, rc); break;
    default:
        (void)msgl__api_fail(&e, 500, NULL, NULL, "The server could not process the request: %s.",
                             msgl__status_text(rc));
        break;
    }
    msgl__gen_fail(f, g, &e);
}

void msgl__gen_fail_all(msgl_front *f, const msgl_api_error *e)
{
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (!g->in_worker || f->stopping) msgl__gen_fail(f, g, e);
    }
}

void msgl__gen_gone(msgl_front *f, gen *g)
{
    f->metrics.clients_gone++;
    msgl__trace_gone(g);
    if (g->in_worker && g->job != NULL) {
        atomic_store(&g->job->cancelled, true);
    } else {
        msgl__gen_free(f, g);
        msgl__dispatch(f);
    }
}

// --- from its body to a worker ---

// Takes n more places in the queue for a request that has `own` there. A request alone in it may
// pass the limit: it could never be served otherwise. A tenant with more than one request waiting
// leaves places for others.
static bool queue_take(msgl_front *f, tenant *p, int n, int own, msgl_api_error *e)
{
    const int left = f->cfg.max_waiting - f->waiting - n;
    const bool full = f->waiting > own && left < 0;
    if (full || (p->waiting > own && p->waiting + n > DYNAMIC_THRESHOLD * (int64_t)left)) {
        (void)msgl__api_fail(e, 429, NULL, "queue_full",
                             full ? "The server has %d requests waiting; try again later."
                                  : "You have %d requests waiting; try again later.",
                             full ? f->waiting : p->waiting);
        return false;
    }
    f->waiting += n;
    p->waiting += n;
    return true;
}

// The request's shell, with the body and its claim in its job; or NULL and *e.
static gen *gen_create(msgl_front *f, const tenant *from, msgl_http_parser *p,
                       const msgl_endpoint *ep, msgl_api_error *e)
{
    gen *g = msgl__calloc(1, sizeof *g);
    msgl_job *j = msgl__calloc(1, sizeof *j);
    if (g == NULL || j == NULL) {
        msgl__free(g);
        msgl__free(j);
        (void)msgl__api_oom(e);
        return NULL;
    }
    j->owner = g;
    j->ep = ep;
    j->config = f->api;
    if (f->cfg.salt_by_key) j->config.salt_of = from->name.key;
    j->max_seq_len = msgl__front_engine(f)->max_seq_len;
    j->body = p->body; // taken over
    msgl__strbuf_init(&p->body, p->body.max);
    j->claim = p->claim;
    p->claim.bytes = 0;
    g->job = j;
    const int rc = msgl__claim_add(&j->claim, MSGL_BUDGET_PROMPT, sizeof *g + sizeof *j);
    if (rc == 0) return g;
    (void)msgl__api_fail_memory(e, rc);
    msgl__job_free(j);
    msgl__free(g);
    return NULL;
}

void msgl__gen_open(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl_api_error e;
    gen *g = NULL;
    tenant *from = NULL;
    if (msgl__front_num_serving(f) == 0) {
        (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready",
                             "The engine is not ready; try again soon.");
    } else if (msgl__admin_unusable(f) != NULL) {
        (void)msgl__api_fail(&e, 503, NULL, "weights_not_there", "%s", msgl__admin_unusable(f));
    } else if ((from = msgl__tenant_join(f, c, p)) == NULL) {
        (void)msgl__api_oom(&e);
    } else if (queue_take(f, from, 1, 0, &e)) {
        g = gen_create(f, from, p, ep, &e);
        if (g == NULL) msgl__queue_give(f, from, 1);
    }
    if (g == NULL) {
        if (from != NULL) msgl__tenant_leave(f, from);
        msgl__trace_refused(f, ep, c, p, &e);
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    g->ep = ep;
    g->tenant = from;
    g->number = ++f->num_opened;
    g->base = (client){.kind = CLIENT_GEN, .conn = c};
    g->in_worker = true;
    g->created = (int64_t)time(NULL);
    g->arrived_ns = msgl__now_ns();
    if (ep->id_prefix != NULL) {
        const uint64_t n = ++f->next_id; // the rest of it nobody can guess from other ids
        (void)snprintf(g->id, sizeof g->id, "%s-%016" PRIx64 "%08" PRIx64, ep->id_prefix,
                       msgl__siphash(f->api.salt_key, &n, sizeof n), n);
    }
    g->next = f->gens;
    if (g->next != NULL) g->next->prev = g;
    f->gens = g;
    g->inner = msgl__http_conn_is_inner(c);
    msgl__trace_open(f, g, p);
    f->num_gens++;
    f->num_inner += g->inner;
    set_batch_room(f);
    msgl__http_conn_set_user(c, &g->base);
    g->job->client = g->job->config.client = from->id;
    if (!msgl__http_conn_is_inner(c)) g->job->config.responses = f->responses;
    msgl__workers_submit(f->workers, g->job);
}

// --- from the worker to the engines, or to the client ---

// The request has one place in the queue, for the first of its choices.
static void gen_start(msgl_front *f, gen *g)
{
    const int n = g->job->req.n * g->job->req.num_prompts;
    msgl_api_error e;
    if (msgl__front_num_serving(f) == 0) {
        msgl__queue_give(f, g->tenant, 1);
        msgl__gen_fail_status(f, g, MSGL_ECLOSED);
        return;
    }
    if (!queue_take(f, g->tenant, n - 1, 1, &e)) {
        msgl__queue_give(f, g->tenant, 1);
        msgl__gen_fail(f, g, &e);
        return;
    }
    const size_t bytes =
        (size_t)n * sizeof *g->choices + (size_t)f->cfg.num_replicas * sizeof *g->queues;
    int rc = msgl__claim_add(&g->job->claim, MSGL_BUDGET_PROMPT, bytes);
    if (rc == 0) rc = msgl__gen_route(f, g, n);
    if (rc != 0) {
        msgl__queue_give(f, g->tenant, n - g->num_choices); // freeing it gives its choices' back
        msgl__gen_fail_status(f, g, rc);
        return;
    }
    if (g->aborted || msgl__gen_is_aborted(f, g)) {
        msgl__gen_end_aborted(f, g);
    } else {
        msgl__gen_join(f, g);
    }
}

// What the worker has written.
static void gen_answer_job(msgl_front *f, gen *g)
{
    msgl_http_conn *c = g->base.conn;
    const msgl_strbuf *answer = &g->job->answer;
    g->base.conn = NULL;
    msgl__trace_status(g, 200);
    msgl__http_reply(c, 200, msgl__endpoint_type(g->ep), NULL, msgl__strbuf_str(answer),
                     answer->len);
    msgl__gen_free(f, g);
}

// Each text once; when there are very many, somebody makes them up. format: of one.
static void log_once(msgl_front *f, const msgl_strbuf *texts, const char *format)
{
    enum { MAX = sizeof f->unknown / sizeof f->unknown[0] };
    for (size_t at = 0; at < texts->len; at += strlen(texts->data + at) + 1) {
        const char *text = texts->data + at;
        bool seen = f->num_unknown == MAX;
        for (int i = 0; i < f->num_unknown && !seen; i++) seen = strcmp(f->unknown[i], text) == 0;
        if (seen || (f->unknown[f->num_unknown] = msgl__strdup(text)) == NULL) continue;
        f->num_unknown++;
        char line[512];
        (void)snprintf(line, sizeof line, format, text);
        msgl__log(f->cfg.log, MSGL_LOG_WARN, "%s%s", line,
                  f->num_unknown == MAX ? " (further ones are not logged)" : "");
    }
}

void msgl__gen_jobs_done(msgl_front *f)
{
    for (msgl_job *j; (j = msgl__workers_take(f->workers)) != NULL;) {
        gen *g = j->owner;
        g->in_worker = false;
        log_once(f, &j->req.unknown,
                 "a request has the field '%s', which this server does not read; it is ignored");
        log_once(f, &j->req.left_out, "an answer's form is kept but for this: %s");
        log_once(f, &j->req.notes, "%s");
        if (g->base.conn != NULL && j->rc == 0 && !msgl__endpoint_ends_here(g->ep, &j->req)) {
            gen_start(f, g);
            continue;
        }
        msgl__queue_give(f, g->tenant, 1);
        if (g->base.conn == NULL) {
            msgl__gen_free(f, g); // left, or was failed, in the meantime
        } else if (j->rc != 0) {
            msgl__gen_fail(f, g, &j->error);
        } else {
            gen_answer_job(f, g);
        }
    }
    msgl__dispatch(f);
}
