// SPDX-License-Identifier: Apache-2.0
#include "apps/simulation/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "apps/simulation/event_heap.h"
#include "apps/simulation/histogram.h"
#include "apps/simulation/replica.h"

enum {
    // Tokens that the router compares prefixes by. A server of few engines takes fewer; what is
    // known of thousands has to fit into memory.
    ROUTING_BLOCK = 64,
    PROGRESS_EVERY = 4096,
};
static const size_t ROUTER_MEMORY = (size_t)2 << 30;

typedef struct request {
    uint64_t sent_ns, last_ns; // last: of its latest token
    msgl_route route;
    int32_t next; // of its replica's inbox, -1
    bool started;
} request;

typedef struct fleet_member {
    msgl_sim_replica replica;
    int32_t inbox, inbox_end; // lines that arrive with its next step, -1: none
    bool waits;               // for a request: no step is due
} fleet_member;

typedef struct fleet {
    const msgl_simulation_config *cfg;
    msgl_sim_replica_kind kind;
    msgl_router *router;
    uint64_t *keys; // of one prompt's blocks, for the router
    fleet_member *members;
    request *requests; // [trace->count]
    // What is to come: first turns of conversations, in the order of their arrival, others, and
    // steps of replicas.
    msgl_heap_event *first;
    int32_t num_first, next_first;
    msgl_event_heap later, steps;
    msgl_histogram *ttft, *gap, *e2e;
    msgl_simulation_result *result;
    uint64_t begin_ns, end_ns;
} fleet;

// ---- life ----

static int by_arrival(const void *a, const void *b)
{
    return msgl__heap_event_before(a, b) ? -1 : 1;
}

static int create_router(fleet *f, msgl_err *err)
{
    const msgl_options *o = f->cfg->options;
    const msgl_router_config cfg = {.policy = f->cfg->policy,
                                    .num_replicas = f->cfg->num_replicas,
                                    .block_size = ROUTING_BLOCK,
                                    .cache_tokens = (int64_t)o->num_pages * o->page_size,
                                    .max_memory = ROUTER_MEMORY,
                                    .balance = f->cfg->balance};
    const int rc = msgl__router_create(&cfg, &f->router, err);
    for (int32_t i = 0; rc == 0 && i < cfg.num_replicas; i++) {
        msgl__router_set_up(f->router, i, true);
    }
    return rc;
}

static int create(fleet *f, msgl_err *err)
{
    const msgl_trace *t = f->cfg->trace;
    const int32_t n = f->cfg->num_replicas;
    const size_t count = (size_t)t->count;
    f->requests = msgl__calloc(count, sizeof *f->requests);
    f->first = msgl__reallocarray(NULL, count, sizeof *f->first);
    f->keys = msgl__reallocarray(NULL, (size_t)t->longest / ROUTING_BLOCK + 1, sizeof *f->keys);
    f->members = msgl__calloc((size_t)n, sizeof *f->members);
    f->ttft = msgl__calloc(1, sizeof *f->ttft);
    f->gap = msgl__calloc(1, sizeof *f->gap);
    f->e2e = msgl__calloc(1, sizeof *f->e2e);
    bool ok = f->requests != NULL && f->first != NULL && f->keys != NULL && f->members != NULL &&
              f->ttft != NULL && f->gap != NULL && f->e2e != NULL;
    ok = msgl__event_heap_init(&f->later, count) == 0 && ok;
    ok = msgl__event_heap_init(&f->steps, (size_t)n) == 0 && ok;
    if (!ok) return msgl__err_set(err, MSGL_ENOMEM, "simulation: out of memory");
    for (int32_t i = 0; i < t->count; i++) {
        if (t->lines[i].before >= 0) continue;
        f->first[f->num_first++] = (msgl_heap_event){.at = t->lines[i].at_ns, .what = i};
    }
    if (f->cfg->clients == 0) {
        qsort(f->first, (size_t)f->num_first, sizeof *f->first, by_arrival);
    }
    int rc = msgl__sim_replica_kind_init(&f->kind, f->cfg->options, t, f->cfg->steps, err);
    if (rc == 0) rc = create_router(f, err);
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        f->members[i].inbox = -1;
        f->members[i].waits = true;
        rc = msgl__sim_replica_init(&f->members[i].replica, &f->kind, err);
        if (rc == 0 && f->cfg->clients > 0) {
            rc = msgl__sim_replica_warm_up(&f->members[i].replica, f->first[0].what);
        }
    }
    return rc;
}

static void destroy(fleet *f)
{
    for (int32_t i = 0; f->members != NULL && i < f->cfg->num_replicas; i++) {
        msgl__sim_replica_free(&f->members[i].replica);
    }
    msgl__sim_replica_kind_free(&f->kind);
    msgl__router_destroy(f->router);
    msgl__event_heap_free(&f->later);
    msgl__event_heap_free(&f->steps);
    msgl__free(f->members);
    msgl__free(f->requests);
    msgl__free(f->first);
    msgl__free(f->keys);
    msgl__free(f->ttft);
    msgl__free(f->gap);
    msgl__free(f->e2e);
}

// ---- arrivals ----

static int arrive(fleet *f, int32_t line, uint64_t now)
{
    const msgl_trace_line *l = &f->cfg->trace->lines[line];
    request *q = &f->requests[line];
    int32_t n = l->history + l->input;
    const uint64_t *keys = NULL;
    if (f->cfg->policy == MSGL_ROUTING_CACHE_AWARE) {
        n = msgl__trace_prompt(f->cfg->trace, line, f->kind.ids);
        (void)msgl__router_keys(f->kind.ids, n, ROUTING_BLOCK, 0, f->keys);
        keys = f->keys;
    }
    const int rc = msgl__router_choose(f->router, keys, n, l->output, &q->route);
    if (rc != 0) return rc;
    q->sent_ns = now;
    q->next = -1;
    fleet_member *m = &f->members[q->route.replica];
    if (m->inbox < 0) {
        m->inbox = line;
    } else {
        f->requests[m->inbox_end].next = line;
    }
    m->inbox_end = line;
    if (m->waits) { // else its next step comes when this one has ended
        m->waits = false;
        m->replica.now_ns = now;
        msgl__event_heap_push(&f->steps, now, q->route.replica);
    }
    return 0;
}

// The time of the next arrival, and its line, which is taken; false: none until `before`.
static bool take_arrival(fleet *f, uint64_t before, uint64_t *now, int32_t *line)
{
    const bool open = f->cfg->clients == 0 && f->next_first < f->num_first;
    const uint64_t first = open ? f->first[f->next_first].at : UINT64_MAX;
    const uint64_t later = f->later.count > 0 ? f->later.events[0].at : UINT64_MAX;
    if ((first < later ? first : later) > before || (!open && f->later.count == 0)) return false;
    if (first <= later) {
        *now = first;
        *line = f->first[f->next_first++].what;
    } else {
        *now = later;
        *line = msgl__event_heap_pop(&f->later).what;
    }
    return true;
}

// A request has ended: what it kept from coming comes.
static void follow(fleet *f, int32_t line, uint64_t now)
{
    const msgl_trace *t = f->cfg->trace;
    const int32_t next = t->lines[line].next;
    if (next >= 0) {
        msgl__event_heap_push(&f->later, now + t->lines[next].at_ns, next);
    } else if (f->cfg->clients > 0 && f->next_first < f->num_first) {
        msgl__event_heap_push(&f->later, now, f->first[f->next_first++].what);
    }
}

// ---- steps of replicas ----

static void on_event(fleet *f, const msgl_sim_replica_event *e, uint64_t now)
{
    request *q = &f->requests[e->line];
    msgl_simulation_result *r = f->result;
    if (!q->started) {
        q->started = true;
        msgl__histogram_add(f->ttft, now - q->sent_ns);
        msgl__router_started(f->router, &q->route);
    } else {
        msgl__histogram_add(f->gap, now - q->last_ns);
    }
    q->last_ns = now;
    r->output_tokens++;
    if (!e->ended) return;
    const msgl_trace_line *l = &f->cfg->trace->lines[e->line];
    msgl__histogram_add(f->e2e, now - q->sent_ns);
    msgl__router_ended(f->router, &q->route);
    r->completed++;
    r->prompt_tokens += l->history + l->input;
    r->cached_tokens += e->cached_tokens;
    if (now > f->end_ns) f->end_ns = now;
    follow(f, e->line, now);
}

// The rest of the conversation is not sent: it would be refused, too.
static void on_refused(fleet *f, int32_t line, uint64_t now, const msgl_err *why)
{
    msgl_simulation_result *r = f->result;
    if (r->failed == 0) (void)snprintf(r->first_error, sizeof r->first_error, "%s", why->text);
    msgl__router_ended(f->router, &f->requests[line].route);
    int32_t last = line;
    for (r->failed++; f->cfg->trace->lines[last].next >= 0; r->failed++) {
        last = f->cfg->trace->lines[last].next;
    }
    follow(f, last, now);
}

static int run_step(fleet *f, int32_t i)
{
    fleet_member *m = &f->members[i];
    msgl_sim_replica *r = &m->replica;
    for (int32_t k = 0; k < r->num_events; k++) on_event(f, &r->events[k], r->now_ns);
    r->num_events = 0;
    for (; m->inbox >= 0; m->inbox = f->requests[m->inbox].next) {
        msgl_err why;
        if (msgl__sim_replica_send(r, m->inbox, &why) != 0)
            on_refused(f, m->inbox, r->now_ns, &why);
    }
    m->waits = !msgl__sim_replica_has_work(r);
    if (m->waits) return 0;
    const int rc = msgl__sim_replica_step(r);
    if (rc == 0) msgl__event_heap_push(&f->steps, r->now_ns, i);
    return rc;
}

// ---- all of it ----

static int run(fleet *f, msgl_err *err)
{
    const msgl_simulation_config *cfg = f->cfg;
    const int32_t total = cfg->trace->count;
    int rc = 0;
    uint64_t now = 0;
    for (int32_t i = 0; i < cfg->clients && f->next_first < f->num_first; i++) {
        msgl__event_heap_push(&f->later, 0, f->first[f->next_first++].what);
    }
    if (cfg->clients == 0) f->begin_ns = f->first[0].at;
    for (uint64_t n = 0; rc == 0; n++) {
        int32_t line;
        const uint64_t next_step = f->steps.count > 0 ? f->steps.events[0].at : UINT64_MAX;
        if (take_arrival(f, next_step, &now, &line)) {
            rc = arrive(f, line, now);
        } else if (f->steps.count > 0) {
            rc = run_step(f, msgl__event_heap_pop(&f->steps).what);
        } else {
            break;
        }
        if (cfg->progress != NULL && n % PROGRESS_EVERY == 0 &&
            !cfg->progress(cfg->ctx, f->result->completed, total)) {
            return msgl__err_set(err, MSGL_EABORTED, "interrupted");
        }
    }
    return rc == 0 ? 0 : msgl__err_set(err, rc, "the simulation failed: %s", msgl__status_text(rc));
}

static msgl_simulation_dist dist_of(const msgl_histogram *h)
{
    return (msgl_simulation_dist){.p50 = (double)msgl__histogram_percentile(h, 0.5) / 1e6,
                                  .p90 = (double)msgl__histogram_percentile(h, 0.9) / 1e6,
                                  .p99 = (double)msgl__histogram_percentile(h, 0.99) / 1e6,
                                  .max = (double)h->max / 1e6};
}

static void summarise(fleet *f)
{
    msgl_simulation_result *r = f->result;
    uint64_t busy = 0;
    for (int32_t i = 0; i < f->cfg->num_replicas; i++) {
        msgl_msg_stats stats;
        msgl__scheduler_stats(f->members[i].replica.scheduler, &stats);
        busy += f->members[i].replica.busy_ns;
        r->steps += (int64_t)stats.step - f->members[i].replica.warm_steps;
        r->retracted += (int64_t)stats.requests_retracted;
        r->drafted_tokens += (int64_t)stats.drafted_tokens;
        r->accepted_tokens += (int64_t)stats.accepted_tokens;
    }
    if (f->end_ns > f->begin_ns) {
        r->wall_s = (double)(f->end_ns - f->begin_ns) / 1e9;
        r->busy = (double)busy / 1e9 / r->wall_s / f->cfg->num_replicas;
    }
    r->ttft = dist_of(f->ttft);
    r->gap = dist_of(f->gap);
    r->e2e = dist_of(f->e2e);
}

int msgl__simulate(const msgl_simulation_config *cfg, msgl_simulation_result *out, msgl_err *err)
{
    fleet f = {.cfg = cfg, .result = out};
    *out = (msgl_simulation_result){0};
    if (cfg->num_replicas < 1 || cfg->num_replicas > MSGL_SIMULATION_MAX_REPLICAS) {
        return msgl__err_set(err, MSGL_EINVAL, "%d replicas; allowed: 1 to %d", cfg->num_replicas,
                             (int)MSGL_SIMULATION_MAX_REPLICAS);
    }
    int rc = create(&f, err);
    if (rc == 0) rc = run(&f, err);
    if (rc == 0) summarise(&f);
    destroy(&f);
    return rc;
}
