// SPDX-License-Identifier: Apache-2.0
//
// The scheduler behind a channel: sleeps while there is nothing to do, looks for messages between
// steps while there is.
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "scheduler/internal.h"
#include "utils/clock.h"
#include "utils/heartbeat.h"

// Messages taken between two steps, so that a flood of them cannot stop the steps.
enum { MAX_MESSAGES = 1024 };
// Sleep with nothing to do, from one sign of life to the next.
enum { IDLE_MS = 1000 };
// Between two reports of counters.
static const uint64_t REPORT_NS = 1000000000u;

// Tensors of an update that has not begun.
typedef struct tensors {
    char *bytes; // [total], pages
    uint64_t total, come;
} tensors;

typedef struct server {
    msgl_channel *channel;
    msgl_scheduler *scheduler;
    msgl_heartbeat *heartbeat;
    const msgl_runner *runner;
    const msgl_msg_ready *ready;
    const msgl_admin_calls *engine;
    tensors tensors;
    bool named; // the weights, by:
    char version[MSGL_MAX_WEIGHT_VERSION + 1];
    uint64_t report_at; // ns
    int send_rc;        // of the first send that failed; nothing is sent behind it
} server;

static void send_message(server *v, const msgl_msg *m)
{
    const int rc = v->send_rc == 0 ? msgl__channel_send(v->channel, m) : 0;
    if (rc < 0) v->send_rc = rc;
}

static void on_wait(void *ctx)
{
    msgl__heartbeat_wait(((const server *)ctx)->heartbeat);
}

static void send_tokens(void *ctx, const msgl_msg_tokens *tokens)
{
    send_message(ctx, &(msgl_msg){.type = MSGL_MSG_TOKENS, .u.tokens = *tokens});
}

static void send_stats(server *v)
{
    msgl_msg m = {.type = MSGL_MSG_STATS};
    msgl__scheduler_stats(v->scheduler, &m.u.stats);
    send_message(v, &m);
}

static void send_tree(server *v)
{
    msgl_tree_run runs[MSGL_MAX_TREE_RUNS];
    msgl_msg m = {.type = MSGL_MSG_TREE};
    msgl__scheduler_tree(v->scheduler, runs, &m.u.tree);
    send_message(v, &m);
}

// What /metrics shows, when it is time; no decision depends on this clock.
static void report(server *v)
{
    const uint64_t now = msgl__now_ns();
    if (now < v->report_at) return;
    v->report_at = now + REPORT_NS;
    msgl_msg m = {.type = MSGL_MSG_REPORT};
    msgl__scheduler_report(v->scheduler, &m.u.report);
    m.u.report.process = msgl__process_use();
    send_message(v, &m);
}

// --- admin's calls ---

static msgl_admin_state admin_state(const server *v)
{
    msgl_admin_state s = {.version = v->named ? v->version : NULL, .paused = v->scheduler->paused};
    if (v->engine->state != NULL) v->engine->state(v->engine->ctx, &s);
    return s;
}

static void drop_tensors(server *v)
{
    msgl__pages_free(v->tensors.bytes, (size_t)v->tensors.total);
    v->tensors = (tensors){0};
}

// Bytes of tensors, in their order. What cannot be kept is missed when they are to be loaded.
static void take_tensors(server *v, const msgl_admin *a)
{
    tensors *t = &v->tensors;
    if (a->at == 0) {
        drop_tensors(v);
        t->bytes = msgl__pages_alloc((size_t)a->total);
        t->total = t->bytes == NULL ? 0 : a->total;
    }
    if (a->at != t->come || (uint64_t)a->num_bytes > t->total - t->come) {
        drop_tensors(v);
        return;
    }
    memcpy(t->bytes + t->come, a->bytes, (size_t)a->num_bytes);
    t->come += (uint64_t)a->num_bytes;
}

static int run_admin(server *v, const msgl_admin *a, msgl_err *err)
{
    msgl_admin own = *a;
    int rc = 0;
    switch (a->kind) {
    case MSGL_ADMIN_PAUSE:
        rc = msgl__scheduler_pause(v->scheduler, a->mode);
        return rc == 0 ? 0 : msgl__err_set(err, rc, "the engine has failed");
    case MSGL_ADMIN_CONTINUE: msgl__scheduler_continue(v->scheduler); return 0;
    case MSGL_ADMIN_VERSION: return 0;
    case MSGL_ADMIN_TENSORS:
    case MSGL_ADMIN_RECEIVE:
        if (v->tensors.bytes == NULL || v->tensors.come != a->total) {
            return msgl__err_set(err, MSGL_ENOMEM, "there is no memory for %llu bytes of tensors",
                                 (unsigned long long)a->total);
        }
        own.bytes = v->tensors.bytes;
        rc = msgl__scheduler_admin(v->scheduler, v->engine, &own, err);
        drop_tensors(v);
        return rc;
    default: return msgl__scheduler_admin(v->scheduler, v->engine, a, err);
    }
}

// The time that it takes is no step's, and the watch knows it as waiting.
static void admin(server *v, const msgl_admin *a)
{
    msgl_err err = {0};
    if (a->kind == MSGL_ADMIN_DATA_OF) {
        take_tensors(v, a);
        return;
    }
    msgl_msg_stats stats;
    msgl__scheduler_stats(v->scheduler, &stats);
    const int rc = run_admin(v, a, &err);
    if (rc == 0 && a->version != NULL) {
        v->named = true;
        (void)snprintf(v->version, sizeof v->version, "%s", a->version);
    }
    msgl_msg m = {.type = MSGL_MSG_ADMIN_DONE};
    m.u.admin_done = (msgl_msg_admin_done){.code = rc,
                                           .text = rc == 0 ? NULL : err.text,
                                           .num_requests = stats.running + stats.waiting,
                                           .state = admin_state(v)};
    send_message(v, &m);
}

static void adapter(server *v, const msgl_msg_adapter *a)
{
    msgl_err err;
    msgl_msg m = {.type = MSGL_MSG_ADAPTER_DONE};
    msgl_msg_adapter_done *done = &m.u.adapter_done;
    done->adapter = a->adapter;
    done->dropped = a->path == NULL;
    if (done->dropped) {
        msgl__scheduler_drop_adapter(v->scheduler, a->adapter);
    } else {
        done->status = msgl__scheduler_load_adapter(v->scheduler, a->adapter, a->path, &err);
        if (done->status == 0) return; // it is told when it has ended
        done->text = err.text;
    }
    send_message(v, &m);
}

static void tell_adapters(server *v)
{
    msgl_msg m = {.type = MSGL_MSG_ADAPTER_DONE};
    while (msgl__scheduler_adapter_done(v->scheduler, &m.u.adapter_done)) send_message(v, &m);
}

// False: the loop ends.
static bool handle_message(server *v, const msgl_msg *m)
{
    switch (m->type) {
    case MSGL_MSG_REQUEST: msgl__scheduler_add(v->scheduler, &m->u.request); return true;
    case MSGL_MSG_ABORT: msgl__scheduler_abort(v->scheduler, m->u.abort_uid); return true;
    case MSGL_MSG_FLUSH:
        msgl__scheduler_flush(v->scheduler);
        send_stats(v);
        return true;
    case MSGL_MSG_GET_STATS: send_stats(v); return true;
    case MSGL_MSG_GET_TREE: send_tree(v); return true;
    case MSGL_MSG_ADMIN: admin(v, &m->u.admin); return true;
    case MSGL_MSG_ADAPTER: adapter(v, &m->u.adapter); return true;
    case MSGL_MSG_EXIT: return false;
    default: return true; // engine -> front types: nothing that could be done here
    }
}

static int step(server *v, msgl_err *err)
{
    const int rc = msgl__scheduler_step(v->scheduler);
    if (rc >= 0) return 0;
    const char *fault = v->runner->fault != NULL ? v->runner->fault(v->runner->ctx) : NULL;
    return msgl__err_set(err, rc, "the engine has failed: %s",
                         fault != NULL ? fault : msgl__status_text(rc));
}

// READY, and reports from then on.
static void greet(server *v)
{
    msgl_msg m = {.type = MSGL_MSG_READY, .u.ready = *v->ready};
    m.u.ready.admin = admin_state(v);
    send_message(v, &m);
    v->report_at = msgl__now_ns() + REPORT_NS;
}

// The front is gone, and nobody waits for what it asked; the next one numbers its requests anew, so
// that no event of an old one may reach it. 1: it is here; 0: there is none; negative: failed.
static int next_front(server *v, msgl_err *err)
{
    v->send_rc = MSGL_ECLOSED;
    drop_tensors(v);
    msgl__scheduler_abort_all(v->scheduler);
    int rc = 0;
    while (rc == 0) {
        msgl__beat(v->heartbeat, MSGL_BEAT_SCHEDULER);
        if (msgl__scheduler_has_work(v->scheduler)) {
            rc = step(v, err);
        } else {
            rc = msgl__channel_renew(v->channel, IDLE_MS);
            if (rc == MSGL_ECLOSED) return 0;
            if (rc < 0) msgl__err_set(err, rc, "cannot take the channel to the next front");
        }
    }
    if (rc < 0) return rc;
    v->send_rc = 0;
    greet(v);
    return 1;
}

// 1: go on; 0: EXIT, or no front is left; negative: failed.
static int turn(server *v, msgl_err *err)
{
    msgl__beat(v->heartbeat, MSGL_BEAT_SCHEDULER);
    tell_adapters(v);
    for (int i = 0; i < MAX_MESSAGES; i++) {
        msgl_msg m;
        const bool idle = i == 0 && !msgl__scheduler_has_work(v->scheduler);
        const int rc =
            v->send_rc != 0 ? v->send_rc : msgl__channel_recv(v->channel, idle ? IDLE_MS : 0, &m);
        if (rc == MSGL_ECLOSED) return next_front(v, err);
        if (rc < 0)
            return msgl__err_set(err, rc, "message from or to the front: %s",
                                 msgl__status_text(rc));
        if (rc == 0) break;
        msgl__beat(v->heartbeat, MSGL_BEAT_SCHEDULER); // each may take its time
        if (!handle_message(v, &m)) return 0;
    }
    report(v);
    if (!msgl__scheduler_has_work(v->scheduler)) return 1;
    const int rc = step(v, err);
    return rc == 0 ? 1 : rc;
}

int msgl__scheduler_serve(const msgl_options *o, const msgl_scheduler_config *cfg,
                          const msgl_runner *runner, const msgl_msg_ready *ready,
                          msgl_channel *channel, msgl_err *err)
{
    server v = {.channel = channel,
                .heartbeat = cfg->heartbeat,
                .runner = runner,
                .ready = ready,
                .engine = &cfg->admin};
    msgl_err own;
    msgl__channel_on_wait(channel, on_wait, &v);
    int rc = msgl__scheduler_create(o, cfg, runner, send_tokens, &v, &v.scheduler, &own);
    if (rc == 0) {
        greet(&v);
        do {
            rc = turn(&v, &own);
        } while (rc > 0);
        msgl__scheduler_destroy(v.scheduler);
        drop_tensors(&v);
    }
    if (rc < 0) {
        send_message(&v, &(msgl_msg){.type = MSGL_MSG_FATAL, .u.fatal = own.text});
        if (err != NULL) *err = own;
    }
    msgl__channel_on_wait(channel, NULL, NULL);
    return rc < 0 ? rc : 0;
}
