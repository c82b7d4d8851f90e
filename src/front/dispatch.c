// SPDX-License-Identifier: Apache-2.0
//
// Choices on their way to the engines: routed to one, queued there, handed over when fair_queue.c
// says so, and routed again when their engine hangs or ends.
#include "core/mem.h"
#include "front/front_impl.h"

enum { SHARED_TO_START = 64 }; // tokens to compute of a prompt that an earlier choice has brought

// --- handing over ---

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

bool msgl__gen_can_send(const msgl_front *f, const choice *c)
{
    if (!msgl__admin_lets(f, &f->replicas[c->route.replica], c->owner)) return false;
    const int copy = copy_of(c);
    if (copy == 0 || !shares_prompt(&c->owner->job->req)) return true;
    const choice *first = c - copy;
    return first->sent && (msgl__sequence_prompt_done(&first->seq) || first->seq.finish != NULL);
}

static void queue_left(replica *r, const choice *c)
{
    r->queued--;
    r->queued_tokens -= c->prompt;
}

choice *msgl__queue_clear(msgl_front *f, request_queue *q)
{
    choice *all = q->first;
    replica *r = &f->replicas[q - q->owner->queues];
    for (choice *c = all; c != NULL; c = c->next) {
        msgl__router_ended(f->router, &c->route);
        queue_left(r, c);
    }
    msgl__fair_leave(r, q);
    q->first = q->last = NULL;
    return all;
}

// The first choice of a queue goes to the queue's engine.
static int choice_start(msgl_front *f, request_queue *q)
{
    gen *g = q->owner;
    choice *c = q->first;
    replica *r = &f->replicas[c->route.replica];
    q->first = c->next;
    queue_left(r, c);
    if (q->first == NULL) {
        q->last = NULL;
        msgl__fair_leave(r, q);
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
        msgl__queue_give(f, g->tenant, 1);
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
                                     .adapter = req->adapter,
                                     .adapter_path = req->adapter_path,
                                     .num_ids = (int32_t)ids->len,
                                     .ids = ids->data,
                                     .sampling = req->sampling,
                                     .extra = msgl__prompt_extra(req, prompt)};
    msgl_req_extra *own = NULL;
    if (g->job->marks != NULL) {
        msgl_req_extra_parts parts = msgl__req_extra_parts_of(m.u.request.extra);
        parts.pair_from = g->job->marks[prompt].pair_from;
        parts.pool_from = g->job->marks[prompt].pool_from;
        rc = msgl__req_extra_create_with(&parts, INT32_MAX, &own, NULL);
        if (rc != 0) return rc;
        m.u.request.extra = own;
    }
    m.u.request.sampling.seed += (uint64_t)copy;
    m.u.request.sampling.max_tokens = c->most - c->prompt;
    if (copy > 0 && shares_prompt(req)) m.u.request.sampling.prompt_logprobs = -1;
    rc = msgl__replica_post(r, &m);
    msgl__req_extra_unref(own);
    return rc == 0 ? msgl__choice_claim(g, c) : rc;
}

static void dispatch(msgl_front *f)
{
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        replica *r = &f->replicas[i];
        for (request_queue *q; r->ready && (q = msgl__fair_next(r)) != NULL;) {
            gen *g = q->owner;
            const int rc = choice_start(f, q);
            if (rc != 0) msgl__gen_fail_status(f, g, rc);
        }
    }
}

void msgl__dispatch(msgl_front *f)
{
    do {
        dispatch(f);
    } while (msgl__admin_turn(f));
}

// --- routing ---

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

// The choice waits at this replica, before later ones of its request.
static void choice_enqueue(replica *r, choice *c)
{
    request_queue *q = &c->owner->queues[r->index];
    r->queued++;
    r->queued_tokens += c->prompt;
    choice **at = &q->first;
    if (q->last != NULL && q->last < c) at = &q->last->next;
    while (*at != NULL && *at < c) at = &(*at)->next;
    c->next = *at;
    *at = c;
    if (c->next == NULL) q->last = c;
}

// Routes a choice and has it wait there. keys: of its prompt's blocks. MSGL_ECLOSED: no replica is
// up.
static int choice_route(msgl_front *f, choice *c, const uint64_t *keys)
{
    gen *g = c->owner;
    const int32_t max = g->job->req.max_tokens, usual = msgl__fair_usual_answer(f);
    const int rc = msgl__router_choose(f->router, keys, c->prompt,
                                       max > 0 && max < usual ? max : usual, &c->route);
    if (rc != 0) return rc;
    replica *r = &f->replicas[c->route.replica];
    const int32_t rest = r->engine.max_seq_len > c->prompt ? r->engine.max_seq_len - c->prompt : 1;
    c->most = c->prompt + (max > 0 && max < rest ? max : rest);
    choice_enqueue(r, c);
    return 0;
}

int msgl__gen_route(msgl_front *f, gen *g, int n)
{
    const size_t queues = (size_t)f->cfg.num_replicas;
    g->queues = msgl__calloc(queues, sizeof *g->queues);
    if (g->queues == NULL) return MSGL_ENOMEM;
    for (size_t i = 0; i < queues; i++) g->queues[i].owner = g; // msgl__queue_clear reads it
    g->choices = msgl__calloc((size_t)n, sizeof *g->choices);
    if (g->choices == NULL) return MSGL_ENOMEM;
    g->num_choices = g->num_left = n;
    const msgl_gen_request *req = &g->job->req;
    const uint64_t *keys = NULL;
    for (int i = 0; i < n; i++) {
        choice *c = &g->choices[i];
        const msgl_ids *ids = &g->job->ids[i / req->n];
        const int32_t len = (int32_t)ids->len;
        if (i % req->n == 0) keys = route_keys(f, ids, req->cache_salt ^ req->adapter);
        c->owner = g;
        c->prompt = len;
        c->to_start = i % req->n == 0 || len < SHARED_TO_START ? len : SHARED_TO_START;
        const int rc = choice_route(f, c, keys);
        if (rc != 0) return rc;
    }
    return 0;
}

void msgl__gen_join(msgl_front *f, gen *g)
{
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        if (g->queues[i].first != NULL) msgl__fair_join(&f->replicas[i], &g->queues[i]);
    }
}

// --- an engine hangs, or is gone ---

// Routes what waits in a queue anew: its replica does not serve and another one does, or it has
// come back itself.
static void queue_reroute(msgl_front *f, request_queue *q)
{
    gen *g = q->owner;
    int prompt = -1;
    const uint64_t *keys = NULL;
    for (choice *c = msgl__queue_clear(f, q), *next; c != NULL; c = next) {
        next = c->next;
        const int own = (int)(c - g->choices) / g->job->req.n;
        if (own != prompt) {
            const msgl_gen_request *req = &g->job->req;
            keys = route_keys(f, &g->job->ids[prompt = own], req->cache_salt ^ req->adapter);
        }
        (void)choice_route(f, c, keys); // cannot fail while a replica is up
    }
    msgl__gen_join(f, g);
}

void msgl__reroute(replica *r)
{
    msgl_front *f = r->front;
    if (msgl__front_num_serving(f) == 0) return;
    for (gen *g = f->gens; g != NULL; g = g->next) {
        if (g->queues != NULL && g->queues[r->index].first != NULL) {
            queue_reroute(f, &g->queues[r->index]);
        }
    }
    msgl__dispatch(f);
}

static bool in_engine(const choice *c, const replica *r)
{
    return c->uid.id != 0 && c->route.replica == r->index;
}

// Whether the engine has begun none of the request's choices, and this is the first engine that it
// loses: what ends engine after engine must not do so for ever.
static bool may_return(const gen *g, const replica *r)
{
    for (int i = 0; i < g->num_choices; i++) {
        const choice *c = &g->choices[i];
        if (in_engine(c, r) && (!c->waiting || c->returned)) return false;
    }
    return true;
}

// The choice waits in its replica's queue again, as if it had never been sent. Until a replica is
// ready it counts in no load.
static void choice_return(msgl_front *f, choice *c)
{
    gen *g = c->owner;
    replica *r = &f->replicas[c->route.replica];
    msgl__choice_lost(f, c);
    msgl__sequence_free(&c->seq);
    msgl__claim_sub(&g->job->claim, c->seq_bytes);
    c->seq_bytes = 0;
    c->sent = c->waiting = false;
    c->returned = true;
    g->num_sent--;
    choice_enqueue(r, c);
}

static int gen_return(msgl_front *f, gen *g, const replica *r)
{
    int n = 0;
    for (int i = 0; i < g->num_choices; i++) {
        if (!in_engine(&g->choices[i], r)) continue;
        choice_return(f, &g->choices[i]);
        n++;
    }
    msgl__gen_join(f, g);
    return n;
}

int msgl__dispatch_lost(replica *r, bool keep, const msgl_api_error *e)
{
    msgl_front *f = r->front;
    const bool others = msgl__front_num_serving(f) > 0;
    int n = 0;
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (g->queues == NULL) continue; // with a worker
        const request_queue *q = &g->queues[r->index];
        if (keep && may_return(g, r)) {
            n += gen_return(f, g, r);
        } else if (q->in_engine > 0 || (q->first != NULL && !others)) {
            msgl__gen_fail(f, g, e);
        }
    }
    msgl__reroute(r);
    return n;
}
