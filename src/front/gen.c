// SPDX-License-Identifier: Apache-2.0
//
// The way of a request with a job: body to a worker, ids to the engines (one engine request per
// choice, where routing says), token events back into text, text to the client; or from the worker
// to the client, if the endpoint ends there. It ends in one of three ways: answered, failed, or its
// client left; in each, every choice that an engine still has is aborted at once.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <event2/buffer.h>

#include "core/mem.h"
#include "front/front_impl.h"
#include "utils/clock.h"
#include "utils/siphash.h"

enum {
    BATCH_ALONE = 16,    // requests of batches at once
    BATCH_BESIDE = 2,    // while there are others
    OUT_KEEP = 1 << 20,  // a larger scratch buffer is not kept
    SHARED_TO_START = 64 // what is computed of a prompt that an earlier choice brought
};

// --- life ---

// So many of its places in the queue are free again.
static void queue_give(msgl_front *f, tenant *p, int n)
{
    f->waiting -= n;
    p->waiting -= n;
}

// The engine is done with this choice (or is told to be).
static void choice_leave(msgl_front *f, choice *c, bool abort_it)
{
    if (c->uid.id == 0) return;
    if (abort_it) {
        const msgl_msg m = {.type = MSGL_MSG_ABORT, .u.abort_uid = c->uid.id};
        (void)msgl__replica_post(&f->replicas[c->route.replica], &m);
    }
    msgl__uids_remove(&f->uids, &c->uid);
    c->uid.id = 0;
    msgl__fair_left(f, c);
    msgl__router_ended(f->router, &c->route);
    queue_give(f, c->owner->tenant, c->waiting);
    c->waiting = false;
    c->owner->num_left--;
}

static void queue_left(replica *r, const choice *c)
{
    r->queued--;
    r->queued_tokens -= c->prompt;
}

// The queue's choices wait no longer, and count nowhere. Returns the list of them.
static choice *part_empty(msgl_front *f, request_queue *p)
{
    choice *all = p->first;
    replica *r = &f->replicas[p - p->owner->parts];
    for (choice *c = all; c != NULL; c = c->next) {
        msgl__router_ended(f->router, &c->route);
        queue_left(r, c);
    }
    msgl__fair_leave(r, p);
    p->first = p->last = NULL;
    return all;
}

// Batches have half of the engines' rows, and next to none of them while others are there.
static void tell_batches(msgl_front *f)
{
    if (f->batches == NULL) return;
    const int half = msgl__front_engine(f)->max_running * msgl__front_num_serving(f) / 2;
    const int most = f->num_gens > f->num_inner ? BATCH_BESIDE : BATCH_ALONE;
    f->cfg.batches->set_room(f->batches, half < 1 ? 1 : half < most ? half : most);
}

static void gen_free(msgl_front *f, gen *g)
{
    msgl__trace_end(f, g);
    queue_give(f, g->tenant, g->num_choices - g->num_sent);
    for (int i = 0; i < f->cfg.num_replicas && g->parts != NULL; i++) {
        (void)part_empty(f, &g->parts[i]);
    }
    for (int i = 0; i < g->num_choices; i++) {
        choice_leave(f, &g->choices[i], true);
        msgl__sequence_free(&g->choices[i].seq);
    }
    msgl__free(g->parts);
    msgl__free(g->choices);
    msgl__job_free(g->job);
    if (g->prev != NULL) g->prev->next = g->next;
    if (g->next != NULL) g->next->prev = g->prev;
    if (f->gens == g) f->gens = g->next;
    msgl__tenant_leave(f, g->tenant);
    f->num_gens--;
    f->num_inner -= g->inner;
    tell_batches(f);
    for (gen **d = &f->dirty; g->dirty && *d != NULL; d = &(*d)->next_dirty) {
        if (*d == g) {
            *d = g->next_dirty;
            break;
        }
    }
    msgl__free(g);
    msgl__front_idle_check(f);
}

static msgl_reply reply_of(const msgl_front *f, const gen *g)
{
    msgl_reply r = {.req = &g->job->req,
                    .id = g->id,
                    .model = f->cfg.model_name,
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
    return r;
}

// Answers with an error, in the form that fits how far the answer is, and ends the request. With a
// worker it stays as a shell until the job comes back.
static void gen_fail(msgl_front *f, gen *g, const msgl_api_error *e)
{
    msgl_http_conn *c = g->base.conn;
    g->base.conn = NULL;
    if (c != NULL) msgl__trace_error(g, e);
    if (c != NULL && !g->streaming) {
        msgl__front_reply_error(f, g->ep, c, e);
    } else if (c != NULL) {
        const msgl_reply r = reply_of(f, g);
        msgl__metrics_error(&f->metrics, e);
        msgl__strbuf_clear(&f->out);
        (void)g->ep->put_stream_error(&r, e, &f->out);
        (void)msgl__http_stream_write(c, msgl__strbuf_str(&f->out), f->out.len);
        msgl__http_stream_end(c);
    }
    if (g->in_worker) {
        atomic_store(&g->job->cancelled, true);
    } else {
        gen_free(f, g);
    }
}

static void gen_fail_status(msgl_front *f, gen *g, int rc)
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
    gen_fail(f, g, &e);
}

void msgl__gen_fail_all(msgl_front *f, const msgl_api_error *e)
{
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (!g->in_worker || f->stopping) gen_fail(f, g, e);
    }
}

void msgl__gen_gone(msgl_front *f, gen *g)
{
    f->metrics.clients_gone++;
    msgl__trace_gone(g);
    if (g->in_worker && g->job != NULL) {
        atomic_store(&g->job->cancelled, true);
    } else {
        gen_free(f, g);
        msgl__gen_turns(f);
    }
}

// --- body to worker ---

// Takes n more places in the queue for a request that has `own` there. A request alone in it may
// pass the limit: it could never be served otherwise. A tenant with more than one request waiting
// leaves places for others.
static bool queue_take(msgl_front *f, tenant *p, int n, int own, msgl_api_error *e)
{
    const int left = f->cfg.max_waiting - f->waiting - n;
    const bool full = f->waiting > own && left < 0;
    if (full || (p->waiting > own && p->waiting + n > SHARE * (int64_t)left)) {
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
    if (f->cfg.salt_by_key) j->config.salt_of = from->key;
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
    } else if ((from = msgl__tenant_join(f, c, p)) == NULL) {
        (void)msgl__api_oom(&e);
    } else if (queue_take(f, from, 1, 0, &e)) {
        g = gen_create(f, from, p, ep, &e);
        if (g == NULL) queue_give(f, from, 1);
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
    tell_batches(f);
    msgl__http_conn_set_user(c, &g->base);
    g->job->client = g->job->config.client = from->id;
    if (!msgl__http_conn_is_inner(c)) g->job->config.responses = f->responses;
    msgl__workers_submit(f->workers, g->job);
}

// --- ids to engines ---

// Log-probabilities of a prompt are computed once: its first choice asks for them, the others wait
// until they are there.
static bool shares_prompt(const msgl_gen_request *r)
{
    return r->n > 1 && r->sampling.prompt_logprobs >= 0;
}

static int copy_of(const choice *c)
{
    return (int)(c - c->owner->choices) % c->owner->job->req.n;
}

bool msgl__gen_can_send(const choice *c)
{
    const int copy = copy_of(c);
    if (copy == 0 || !shares_prompt(&c->owner->job->req)) return true;
    const choice *first = c - copy;
    return first->sent && (msgl__sequence_prompt_done(&first->seq) || first->seq.finish != NULL);
}

// Claims what the choice's buffers have grown by.
static int choice_claim(gen *g, choice *c)
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

// The first choice of a queue goes to the queue's engine.
static int choice_start(msgl_front *f, request_queue *p)
{
    gen *g = p->owner;
    choice *c = p->first;
    replica *r = &f->replicas[c->route.replica];
    p->first = c->next;
    queue_left(r, c);
    if (p->first == NULL) {
        p->last = NULL;
        msgl__fair_leave(r, p);
    }
    const msgl_gen_request *req = &g->job->req;
    const int copy = copy_of(c), prompt = (int)(c - g->choices) / req->n;
    const msgl_ids *ids = &g->job->ids[prompt];
    c->sent = true;
    g->num_sent++;
    int rc = msgl__sequence_init(&c->seq, req, prompt, ids, f->cfg.tokenizer);
    if (rc == 0 && shares_prompt(req)) {
        c->seq.keep_prompt = copy == 0;
        if (copy > 0) rc = msgl__sequence_share_prompt(&c->seq, &(c - copy)->seq);
    }
    if (rc != 0) {
        queue_give(f, g->tenant, 1);
        msgl__router_ended(f->router, &c->route);
        return rc;
    }
    c->uid.id = ++f->last_uid;
    msgl__uids_put(&f->uids, &c->uid);
    c->waiting = true;
    msgl__trace_sent(g);
    msgl__fair_sent(f, c);
    msgl_msg m = {.type = MSGL_MSG_REQUEST};
    m.u.request = (msgl_msg_request){.uid = c->uid.id,
                                     .client = g->tenant->number,
                                     .cache_salt = req->cache_salt,
                                     .num_ids = (int32_t)ids->len,
                                     .ids = ids->data,
                                     .sampling = req->sampling,
                                     .extra = req->extra};
    m.u.request.sampling.seed += (uint64_t)copy;
    m.u.request.sampling.max_tokens = c->most - c->prompt;
    if (copy > 0 && shares_prompt(req)) m.u.request.sampling.prompt_logprobs = -1;
    rc = msgl__replica_post(r, &m);
    return rc == 0 ? choice_claim(g, c) : rc;
}

void msgl__gen_turns(msgl_front *f)
{
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        replica *r = &f->replicas[i];
        for (request_queue *p; r->ready && (p = msgl__fair_next(r)) != NULL;) {
            gen *g = p->owner;
            const int rc = choice_start(f, p);
            if (rc != 0) gen_fail_status(f, g, rc);
        }
    }
}

// Names of a prompt's blocks, by its salt, in the front's scratch; NULL without memory, or for the
// only replica: then they are not compared.
static const uint64_t *route_keys(msgl_front *f, const msgl_ids *ids, uint64_t salt)
{
    const size_t n = ids->len / ROUTE_BLOCK;
    if (f->cfg.num_replicas == 1) return NULL;
    if (n > f->cap_route_keys) {
        uint64_t *more = msgl__reallocarray(f->route_keys, n, sizeof *more);
        if (more == NULL) return NULL;
        f->route_keys = more;
        f->cap_route_keys = n;
    }
    if (n > 0) {
        (void)msgl__router_keys(ids->data, (int32_t)ids->len, ROUTE_BLOCK, f->route_seed ^ salt,
                                f->route_keys);
    }
    return f->route_keys;
}

// Routes a choice and has it wait there, before later ones of its request. keys: of its prompt.
// MSGL_ECLOSED.
static int choice_route(msgl_front *f, choice *c, const uint64_t *keys)
{
    gen *g = c->owner;
    const int32_t max = g->job->req.max_tokens, usual = msgl__fair_usual_answer(f);
    const int rc = msgl__router_choose(f->router, keys, c->prompt,
                                       max > 0 && max < usual ? max : usual, &c->route);
    if (rc != 0) return rc;
    replica *r = &f->replicas[c->route.replica];
    r->queued++;
    r->queued_tokens += c->prompt;
    const int32_t rest = r->engine.max_seq_len > c->prompt ? r->engine.max_seq_len - c->prompt : 1;
    c->most = c->prompt + (max > 0 && max < rest ? max : rest);
    request_queue *p = &g->parts[c->route.replica];
    choice **at = &p->first;
    if (p->last != NULL && p->last < c) at = &p->last->next;
    while (*at != NULL && *at < c) at = &(*at)->next;
    c->next = *at;
    *at = c;
    if (c->next == NULL) p->last = c;
    return 0;
}

static int gen_choices(msgl_front *f, gen *g, int n)
{
    const size_t parts = (size_t)f->cfg.num_replicas;
    g->parts = msgl__calloc(parts, sizeof *g->parts);
    if (g->parts == NULL) return MSGL_ENOMEM;
    for (size_t i = 0; i < parts; i++) g->parts[i].owner = g; // by which gen_free empties them
    g->choices = msgl__calloc((size_t)n, sizeof *g->choices);
    if (g->choices == NULL) return MSGL_ENOMEM;
    g->num_choices = g->num_left = n;
    const msgl_gen_request *req = &g->job->req;
    const uint64_t *keys = NULL;
    for (int i = 0; i < n; i++) {
        choice *c = &g->choices[i];
        const msgl_ids *ids = &g->job->ids[i / req->n];
        const int32_t len = (int32_t)ids->len;
        if (i % req->n == 0) keys = route_keys(f, ids, req->cache_salt);
        c->owner = g;
        c->prompt = len;
        c->to_start = i % req->n == 0 || len < SHARED_TO_START ? len : SHARED_TO_START;
        const int rc = choice_route(f, c, keys);
        if (rc != 0) return rc;
    }
    return 0;
}

// Its parts wait for their turns.
static void gen_join(msgl_front *f, gen *g)
{
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        if (g->parts[i].first != NULL) msgl__fair_join(&f->replicas[i], &g->parts[i]);
    }
}

// Routes what waits in a queue anew, its replica being down and another one up.
static void part_move(msgl_front *f, request_queue *p)
{
    gen *g = p->owner;
    int prompt = -1;
    const uint64_t *keys = NULL;
    for (choice *c = part_empty(f, p), *next; c != NULL; c = next) {
        next = c->next;
        const int own = (int)(c - g->choices) / g->job->req.n;
        if (own != prompt) {
            keys = route_keys(f, &g->job->ids[prompt = own], g->job->req.cache_salt);
        }
        (void)choice_route(f, c, keys);
    }
    gen_join(f, g);
}

void msgl__gen_move(replica *r)
{
    msgl_front *f = r->front;
    if (msgl__front_num_serving(f) == 0) return;
    for (gen *g = f->gens; g != NULL; g = g->next) {
        if (g->parts != NULL && g->parts[r->index].first != NULL) {
            part_move(f, &g->parts[r->index]);
        }
    }
    msgl__gen_turns(f);
}

void msgl__gen_replica_lost(replica *r, const msgl_api_error *e)
{
    msgl_front *f = r->front;
    const bool others = msgl__front_num_serving(f) > 0;
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (g->parts == NULL) continue; // with a worker
        const request_queue *p = &g->parts[r->index];
        if (p->in_engine > 0 || (p->first != NULL && !others)) gen_fail(f, g, e);
    }
    msgl__gen_move(r);
}

static void gen_answer_whole(msgl_front *f, gen *g);
static void gen_stream(msgl_front *f, gen *g);

// Ends a choice with what there is of it.
static int choice_abort(msgl_front *f, choice *c)
{
    gen *g = c->owner;
    const msgl_gen_request *req = &g->job->req;
    if (c->seq.finish != NULL) return 0;
    if (c->sent) {
        choice_leave(f, c, true);
    } else {
        const int prompt = (int)(c - g->choices) / req->n;
        c->sent = true;
        g->num_sent++;
        g->num_left--;
        queue_give(f, g->tenant, 1);
        const int rc =
            msgl__sequence_init(&c->seq, req, prompt, &g->job->ids[prompt], f->cfg.tokenizer);
        if (rc != 0) return rc;
    }
    const msgl_token_event e = {.finish = MSGL_FINISH_ABORT, .cached_tokens = c->seq.cached_tokens};
    const int rc = msgl__sequence_event(&c->seq, &e);
    return rc == 0 ? choice_claim(g, c) : rc;
}

// Its choices end, and so its answer does, with what there is of it: of a vector nothing.
static void gen_abort(msgl_front *f, gen *g)
{
    if (g->ep->pooled) {
        msgl_api_error e;
        (void)msgl__api_fail(&e, 400, NULL, "aborted", "The request was ended by /abort_request.");
        gen_fail(f, g, &e);
        return;
    }
    for (int i = 0; i < f->cfg.num_replicas; i++) (void)part_empty(f, &g->parts[i]);
    int rc = 0;
    for (int i = 0; i < g->num_choices && rc == 0; i++) rc = choice_abort(f, &g->choices[i]);
    if (rc != 0) {
        gen_fail_status(f, g, rc);
    } else if (g->job->req.stream) {
        gen_stream(f, g);
    } else {
        gen_answer_whole(f, g);
    }
}

// Whether it was aborted by a name that only its worker knew.
static bool aborted_late(const msgl_front *f, const gen *g)
{
    enum { MAX = sizeof f->late_aborts / sizeof f->late_aborts[0] };
    for (uint64_t i = 0; i < f->num_late_aborts && i < MAX; i++) {
        const struct late_abort *a = &f->late_aborts[i];
        if (a->up_to >= g->number && (a->of == 0 || a->of == g->tenant->number) &&
            strcmp(a->rid, g->job->req.rid) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_name(const gen *g, const char *rid)
{
    if (strcmp(g->id, rid) == 0 || strcmp(msgl__http_conn_id(g->base.conn), rid) == 0) return true;
    return !g->in_worker && strcmp(g->job->req.rid, rid) == 0;
}

int msgl__gen_abort(msgl_front *f, const tenant *of, const char *rid)
{
    enum { MAX = sizeof f->late_aborts / sizeof f->late_aborts[0] };
    int n = 0;
    bool late = false;
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (g->base.conn == NULL || !msgl__endpoint_has_engine(g->ep) ||
            (rid == NULL && g->inner)) {
            continue;
        }
        if (of != NULL && g->tenant != of) continue;
        if (rid != NULL && !has_name(g, rid)) {
            late |= g->in_worker;
            continue;
        }
        n++;
        g->aborted = true;
        if (!g->in_worker) gen_abort(f, g);
    }
    if (late) {
        struct late_abort *a = &f->late_aborts[f->num_late_aborts++ % MAX];
        (void)snprintf(a->rid, sizeof a->rid, "%s", rid);
        a->up_to = f->num_opened;
        a->of = of == NULL ? 0 : of->number;
    }
    msgl__gen_turns(f);
    return n;
}

// The request has one place in the queue, for the first of its choices.
static void gen_start(msgl_front *f, gen *g)
{
    const int n = g->job->req.n * g->job->req.num_prompts;
    msgl_api_error e;
    if (msgl__front_num_serving(f) == 0) {
        queue_give(f, g->tenant, 1);
        gen_fail_status(f, g, MSGL_ECLOSED);
        return;
    }
    if (!queue_take(f, g->tenant, n - 1, 1, &e)) {
        queue_give(f, g->tenant, 1);
        gen_fail(f, g, &e);
        return;
    }
    const size_t bytes =
        (size_t)n * sizeof *g->choices + (size_t)f->cfg.num_replicas * sizeof *g->parts;
    int rc = msgl__claim_add(&g->job->claim, MSGL_BUDGET_PROMPT, bytes);
    if (rc == 0) rc = gen_choices(f, g, n);
    if (rc != 0) {
        queue_give(f, g->tenant, n - g->num_choices); // freeing it gives its choices' back
        gen_fail_status(f, g, rc);
        return;
    }
    if (g->aborted || aborted_late(f, g)) {
        gen_abort(f, g);
    } else {
        gen_join(f, g);
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
    gen_free(f, g);
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
        queue_give(f, g->tenant, 1);
        if (g->base.conn == NULL) {
            gen_free(f, g); // left, or was failed, in the meantime
        } else if (j->rc != 0) {
            gen_fail(f, g, &j->error);
        } else {
            gen_answer_job(f, g);
        }
    }
    msgl__gen_turns(f);
}

// --- token events to client ---

// Cached tokens count once per prompt, as its tokens do.
static void totals(const gen *g, int64_t *cached, int64_t *completion)
{
    *cached = *completion = 0;
    for (int i = 0; i < g->num_choices; i++) {
        if (i % g->job->req.n == 0) *cached += g->choices[i].seq.cached_tokens;
        *completion += g->choices[i].seq.completion_tokens;
    }
}

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
    const msgl_reply r = reply_of(f, g);
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

static void gen_answer_whole(msgl_front *f, gen *g)
{
    struct evbuffer *body = evbuffer_new();
    msgl__strbuf_clear(&f->out);
    const int rc = body == NULL ? MSGL_ENOMEM : put_whole(f, g, body);
    if (rc != 0) {
        gen_fail_status(f, g, rc);
    } else {
        msgl_http_conn *c = g->base.conn;
        g->base.conn = NULL;
        if (g->job->req.kept.len > 0) {
            keep(f, g, evbuffer_pullup(body, -1), evbuffer_get_length(body));
        }
        msgl__durations_observe(&f->metrics.latency, msgl__now_ns() - g->arrived_ns);
        msgl__trace_status(g, 200);
        msgl__http_reply_buffer(c, 200, msgl__endpoint_type(g->ep), body);
        gen_free(f, g);
    }
    if (body != NULL) evbuffer_free(body);
}

static void gen_stream(msgl_front *f, gen *g)
{
    const msgl_reply r = reply_of(f, g);
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
        gen_fail_status(f, g, rc);
        return;
    }
    msgl_http_conn *c = g->base.conn;
    if (!g->streaming) msgl__trace_status(g, 200);
    if (!g->streaming) msgl__http_stream_begin(c, g->ep->stream_type);
    g->streaming = true;
    rc = msgl__http_stream_write(c, msgl__strbuf_str(&f->out), f->out.len);
    if (f->out.cap > OUT_KEEP) msgl__strbuf_free(&f->out);
    if (rc != 0) {
        gen_fail_status(f, g, rc);
        return;
    }
    if (g->num_left > 0) return;
    g->base.conn = NULL;
    msgl__durations_observe(&f->metrics.latency, msgl__now_ns() - g->arrived_ns);
    msgl__http_stream_end(c);
    gen_free(f, g);
}

static void engine_error(msgl_front *f, gen *g, const msgl_token_event *e)
{
    msgl_api_error api;
    const char *text = e->text == NULL ? msgl__status_text(e->status) : e->text;
    const bool theirs = e->status == MSGL_EINVAL || e->status == MSGL_ELIMIT;
    (void)msgl__api_fail(&api, theirs ? 400 : 500, NULL,
                         e->status == MSGL_ELIMIT ? "context_length_exceeded" : NULL, "%s", text);
    gen_fail(f, g, &api);
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
        queue_give(f, g->tenant, 1);
        msgl__fair_started(f, c);
        msgl__router_started(f->router, &c->route);
    }
    c->waiting = false;
    if (e->num_tokens > 0) observe(f, c, now_ns);
    if (e->finish == MSGL_FINISH_ERROR) {
        choice_leave(f, c, false);
        engine_error(f, g, e);
        return;
    }
    int rc = msgl__sequence_event(&c->seq, e);
    if (rc == 0) rc = choice_claim(g, c);
    if (rc != 0) {
        gen_fail_status(f, g, rc);
        return;
    }
    msgl__fair_grown(f, c);
    if (c->seq.finish != NULL) choice_leave(f, c, e->finish == MSGL_FINISH_NONE);
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
        if (g->job->req.stream) {
            gen_stream(f, g);
        } else if (g->num_left == 0) {
            gen_answer_whole(f, g);
        }
    }
    msgl__gen_turns(f);
}
