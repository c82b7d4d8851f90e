// SPDX-License-Identifier: Apache-2.0
//
// An engine as the front sees it: its channel from READY to its end, and whether it gives signs of
// life. The router hears of both: requests go to engines that are ready and do not hang.
#include <stdio.h>

#include "core/mem.h"
#include "front/front_impl.h"
#include "utils/clock.h"

enum { MESSAGES_AT_ONCE = 64 };

void msgl__replica_init(msgl_front *f, int index)
{
    replica *r = &f->replicas[index];
    *r = (replica){.front = f, .index = index, .start_max = 2048}; // until prompts were timed
    r->engine.attention = r->engine.device = "";
    if (f->cfg.num_replicas == 1) {
        (void)snprintf(r->name, sizeof r->name, "engine");
    } else {
        (void)snprintf(r->name, sizeof r->name, "engine %d", index);
    }
}

// --- who serves ---

bool msgl__replica_hangs(const replica *r)
{
    return r->ready && r->front->cfg.heartbeats != NULL &&
           r->silence_s >= r->front->cfg.max_silence_s;
}

bool msgl__replica_serves(const replica *r)
{
    return r->ready && !msgl__replica_hangs(r);
}

int msgl__front_num_serving(const msgl_front *f)
{
    int n = 0;
    for (int i = 0; i < f->cfg.num_replicas; i++) n += msgl__replica_serves(&f->replicas[i]);
    return n;
}

const msgl_msg_ready *msgl__front_engine(const msgl_front *f)
{
    int i = 0;
    while (i < f->cfg.num_replicas - 1 && !f->replicas[i].ready) i++;
    return &f->replicas[f->replicas[i].ready ? i : 0].engine;
}

// --- its channel ---

static void channel_close(replica *r)
{
    if (r->chan_read != NULL) event_free(r->chan_read);
    if (r->chan_write != NULL) event_free(r->chan_write);
    r->chan_read = r->chan_write = NULL;
    msgl__channel_destroy(r->chan);
    r->chan = NULL;
    r->ready = false;
    if (r->front->router != NULL) msgl__router_set_up(r->front->router, r->index, false);
}

void msgl__replica_free(replica *r)
{
    channel_close(r);
    msgl__free(r->attention);
    msgl__free(r->device);
    msgl__free(r->fatal);
}

// Whether the engine hung between two steps, so that it has seen nothing of what was sent since: an
// idle engine beats more often than once in two seconds.
static bool hung_idle(const replica *r)
{
    return r->ready && r->silence_s >= 2 && !r->in_step;
}

static void engine_lost(replica *r)
{
    msgl_front *f = r->front;
    const bool was_ready = r->ready, keep = hung_idle(r) && !f->stopping;
    channel_close(r);
    r->report = r->logged = (msgl_msg_report){0}; // the next engine counts from zero
    // Last words before the first start is complete are what the server ends with.
    const char *words = r->fatal == NULL || !r->started ? "" : r->fatal;
    msgl__log(f->cfg.log, f->stopping ? MSGL_LOG_INFO : MSGL_LOG_ERROR, "%s is gone%s%s", r->name,
              *words == '\0' ? "" : ": ", words);
    msgl_api_error e;
    (void)msgl__api_fail(&e, was_ready ? 500 : 503, NULL, "engine_stopped",
                         "The engine stopped while it worked on this request.");
    const int kept = msgl__dispatch_lost(r, keep, &e);
    if (kept > 0) {
        msgl__log(f->cfg.log, MSGL_LOG_INFO,
                  "%d requests that %s had not begun wait for the next one", kept, r->name);
    }
    msgl__stats_lost(r);
    msgl__admin_lost(r);
    if (f->cfg.on_lost != NULL) f->cfg.on_lost(f->cfg.ctx, r->index, r->fatal);
    msgl__free(r->fatal);
    r->fatal = NULL;
    msgl__front_idle_check(f);
}

static void engine_ready(replica *r, const msgl_msg_ready *ready)
{
    msgl_front *f = r->front;
    msgl__free(r->attention);
    msgl__free(r->device);
    r->attention = msgl__strdup(ready->attention == NULL ? "" : ready->attention);
    r->device = msgl__strdup(ready->device == NULL ? "" : ready->device);
    r->engine = *ready;
    r->engine.attention = r->attention == NULL ? "" : r->attention;
    r->engine.device = r->device == NULL ? "" : r->device;
    f->api.vocab_size = ready->vocab_size;
    f->api.pooled_size = ready->pooled_size;
    f->api.hidden_size = ready->hidden_size;
    f->api.embed_size = ready->embed_size;
    f->api.token_vector_size = ready->token_vector_size;
    f->api.token_weights = ready->token_weights;
    f->api.reranks = ready->pooling == MSGL_POOL_SCORE;
    msgl__admin_state(r, &ready->admin);
    r->engine.admin = (msgl_admin_state){0}; // its texts are the message's
    f->api.classifies = ready->pooling == MSGL_POOL_CLASSIFY;
    r->ready = r->started = true;
    r->silence_s = 0;
    r->reported_ns = r->logged_ns = msgl__now_ns();
    msgl__router_set_cache(f->router, r->index, (int64_t)ready->num_pages * ready->page_size);
    msgl__router_set_up(f->router, r->index, true);
    msgl__log(f->cfg.log, MSGL_LOG_INFO, "%s is ready: attention %s, %s", r->name,
              r->engine.attention, r->engine.device);
    msgl__front_engine_ready(f);
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        if (i == r->index || !msgl__replica_serves(&f->replicas[i])) msgl__reroute(&f->replicas[i]);
    }
    if (f->cfg.on_ready != NULL) f->cfg.on_ready(f->cfg.ctx, r->index, &r->engine);
}

// The engine may go on; the supervisor ends it.
static void channel_failed(replica *r, int rc)
{
    char why[128];
    (void)snprintf(why, sizeof why, "what the %s sent could not be read: %s", r->name,
                   rc == MSGL_EFORMAT ? "garbage" : msgl__status_text(rc));
    msgl__free(r->fatal);
    r->fatal = msgl__strdup(why);
}

static void on_channel(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    replica *r = arg;
    const msgl_log *log = r->front->cfg.log;
    msgl_msg m;
    // A bounded number at a time: the loop comes back at once, and serves connections between.
    for (int i = 0; i < MESSAGES_AT_ONCE && r->chan != NULL; i++) {
        const int rc = msgl__channel_recv(r->chan, 0, &m);
        if (rc == 0) return;
        if (rc < 0) {
            if (rc != MSGL_ECLOSED) channel_failed(r, rc);
            engine_lost(r);
            return;
        }
        switch (m.type) {
        case MSGL_MSG_READY: engine_ready(r, &m.u.ready); break;
        case MSGL_MSG_TOKENS: msgl__gen_tokens(r->front, &m.u.tokens); break;
        case MSGL_MSG_REPORT:
            r->report = m.u.report;
            r->reported_ns = msgl__now_ns();
            break;
        case MSGL_MSG_STATS:
        case MSGL_MSG_TREE: msgl__stats_arrived(r, &m); break;
        case MSGL_MSG_ADMIN_DONE: msgl__admin_arrived(r, &m.u.admin_done); break;
        case MSGL_MSG_ADAPTER_DONE: msgl__lora_done(r, &m.u.adapter_done); break;
        case MSGL_MSG_FATAL:
            msgl__free(r->fatal);
            r->fatal = msgl__strdup(m.u.fatal);
            break;
        default: msgl__log(log, MSGL_LOG_WARN, "%s sent message type %d", r->name, m.type); break;
        }
    }
}

static void on_channel_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    replica *r = arg;
    if (msgl__channel_flush(r->chan) != 1) event_del(r->chan_write);
}

int msgl__replica_post(replica *r, const msgl_msg *m)
{
    if (r->chan == NULL) return MSGL_ECLOSED;
    const int rc = msgl__channel_post(r->chan, m);
    if (rc == 0 && r->chan_write != NULL && msgl__channel_flush(r->chan) == 1) {
        event_add(r->chan_write, NULL);
    }
    return rc;
}

int msgl__front_set_channel(msgl_front *f, int index, msgl_channel *ch)
{
    replica *r = &f->replicas[index];
    if (r->chan != NULL) engine_lost(r);
    r->chan = ch;
    const int wfd = msgl__channel_write_fd(ch);
    r->chan_read =
        event_new(f->base, msgl__channel_poll_fd(ch), EV_READ | EV_PERSIST, on_channel, r);
    if (wfd >= 0) {
        r->chan_write = event_new(f->base, wfd, EV_WRITE | EV_PERSIST, on_channel_writable, r);
    }
    if (r->chan_read == NULL || (wfd >= 0 && r->chan_write == NULL) ||
        event_add(r->chan_read, NULL) != 0) {
        channel_close(r);
        return MSGL_ENOMEM;
    }
    return 0;
}

// --- signs of life ---

// Counts ticks of the timer and no clock: a front that was stopped itself has not looked.
void msgl__replica_look_for_beats(replica *r)
{
    msgl_front *f = r->front;
    const uint64_t beats = msgl__beats(f->cfg.heartbeats[r->index]);
    const bool hung = msgl__replica_hangs(r);
    r->silence_s = r->ready && beats == r->beats ? r->silence_s + 1 : 0;
    r->beats = beats;
    r->in_step = msgl__heartbeat_in_step(f->cfg.heartbeats[r->index]);
    if (!r->ready || hung == msgl__replica_hangs(r)) return;
    msgl__router_set_up(f->router, r->index, hung);
    if (hung) {
        msgl__log(f->cfg.log, MSGL_LOG_WARN, "%s works again", r->name);
    } else {
        msgl__log(f->cfg.log, MSGL_LOG_ERROR, "%s has given no sign of life for %d s: it hangs",
                  r->name, r->silence_s);
        msgl__reroute(r);
    }
}
