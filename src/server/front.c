// SPDX-License-Identifier: Apache-2.0
#include "server/front.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/mem.h"
#include "server/front_impl.h"

enum { MESSAGES_PER_TURN = 64 };

msgl_front_config msgl__front_config_default(void)
{
    return (msgl_front_config){.defaults = msgl__sampling_params_plain(),
                               .num_workers = 1,
                               .max_waiting = 4096,
                               .max_request_memory = (size_t)1 << 30,
                               .stop_timeout_ms = 5000,
                               .max_silence_s = 30,
                               .http = msgl__http_config_default()};
}

struct event_base *msgl__front_base(msgl_front *f)
{
    return f->base;
}

// --- the engine's channel ---

static void channel_close(msgl_front *f)
{
    if (f->chan_read != NULL) event_free(f->chan_read);
    if (f->chan_write != NULL) event_free(f->chan_write);
    f->chan_read = f->chan_write = NULL;
    msgl__channel_destroy(f->chan);
    f->chan = NULL;
    f->ready = false;
}

static void engine_lost(msgl_front *f)
{
    const bool was_ready = f->ready;
    channel_close(f);
    msgl__log(f->cfg.log, f->stopping ? MSGL_LOG_INFO : MSGL_LOG_ERROR, "engine is gone%s%s",
              f->fatal == NULL ? "" : ": ", f->fatal == NULL ? "" : f->fatal);
    msgl_api_error e;
    (void)msgl__api_fail(&e, was_ready ? 500 : 503, NULL, "engine_stopped",
                         "The engine stopped while it worked on this request.");
    msgl__gen_fail_all(f, &e);
    msgl__stats_fail_all(f);
    if (f->cfg.on_lost != NULL) f->cfg.on_lost(f->cfg.ctx, f->fatal);
    msgl__free(f->fatal);
    f->fatal = NULL;
    msgl__front_idle_check(f);
}

static void engine_ready(msgl_front *f, const msgl_msg_ready *r)
{
    msgl__free(f->attention);
    msgl__free(f->device);
    f->attention = msgl__strdup(r->attention == NULL ? "" : r->attention);
    f->device = msgl__strdup(r->device == NULL ? "" : r->device);
    f->engine = *r;
    f->engine.attention = f->attention == NULL ? "" : f->attention;
    f->engine.device = f->device == NULL ? "" : f->device;
    f->api.vocab_size = r->vocab_size;
    f->ready = true;
    f->silence_s = 0;
    msgl__log(f->cfg.log, MSGL_LOG_INFO, "engine is ready: attention %s, %s", f->engine.attention,
              f->engine.device);
    if (f->cfg.on_ready != NULL) f->cfg.on_ready(f->cfg.ctx, &f->engine);
}

static void on_channel(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_front *f = arg;
    msgl_msg m;
    // A bounded number per turn: the loop comes back at once, and connections get theirs between.
    for (int i = 0; i < MESSAGES_PER_TURN && f->chan != NULL; i++) {
        const int rc = msgl__channel_recv(f->chan, 0, &m);
        if (rc == 0) return;
        if (rc < 0) {
            if (rc == MSGL_EFORMAT) msgl__log(f->cfg.log, MSGL_LOG_ERROR, "engine sent garbage");
            engine_lost(f);
            return;
        }
        switch (m.type) {
        case MSGL_MSG_READY: engine_ready(f, &m.u.ready); break;
        case MSGL_MSG_TOKENS: msgl__gen_tokens(f, &m.u.tokens); break;
        case MSGL_MSG_STATS: msgl__stats_arrived(f, &m.u.stats); break;
        case MSGL_MSG_FATAL:
            msgl__free(f->fatal);
            f->fatal = msgl__strdup(m.u.fatal);
            break;
        default: msgl__log(f->cfg.log, MSGL_LOG_WARN, "engine sent message type %d", m.type); break;
        }
    }
}

static void on_channel_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_front *f = arg;
    if (msgl__channel_flush(f->chan) != 1) event_del(f->chan_write);
}

int msgl__front_post(msgl_front *f, const msgl_msg *m)
{
    if (f->chan == NULL) return MSGL_ECLOSED;
    const int rc = msgl__channel_post(f->chan, m);
    if (rc == 0 && f->chan_write != NULL && msgl__channel_flush(f->chan) == 1) {
        event_add(f->chan_write, NULL);
    }
    return rc;
}

int msgl__front_set_channel(msgl_front *f, msgl_channel *ch)
{
    if (f->chan != NULL) engine_lost(f);
    f->chan = ch;
    const int wfd = msgl__channel_write_fd(ch);
    f->chan_read =
        event_new(f->base, msgl__channel_poll_fd(ch), EV_READ | EV_PERSIST, on_channel, f);
    if (wfd >= 0) {
        f->chan_write = event_new(f->base, wfd, EV_WRITE | EV_PERSIST, on_channel_writable, f);
    }
    if (f->chan_read == NULL || (wfd >= 0 && f->chan_write == NULL) ||
        event_add(f->chan_read, NULL) != 0) {
        channel_close(f);
        return MSGL_ENOMEM;
    }
    return 0;
}

// --- signs of life ---

bool msgl__front_engine_hangs(const msgl_front *f)
{
    return f->ready && f->cfg.heartbeat != NULL && f->silence_s >= f->cfg.max_silence_s;
}

// Counts turns of the timer and no clock: a front that was stopped itself has not looked.
static void look_for_beats(msgl_front *f)
{
    const uint64_t beats = msgl__beats(f->cfg.heartbeat);
    const bool hung = msgl__front_engine_hangs(f);
    f->silence_s = f->ready && beats == f->beats ? f->silence_s + 1 : 0;
    f->beats = beats;
    if (hung == msgl__front_engine_hangs(f)) return;
    if (hung) {
        msgl__log(f->cfg.log, MSGL_LOG_WARN, "engine works again");
    } else {
        msgl__log(f->cfg.log, MSGL_LOG_ERROR, "engine has given no sign of life for %d s: it hangs",
                  f->silence_s);
    }
}

// --- stopping ---

void msgl__front_idle_check(msgl_front *f)
{
    if (!f->stopping || f->num_gens > 0) return;
    const msgl_msg m = {.type = MSGL_MSG_EXIT};
    (void)msgl__front_post(f, &m);
    // Answers that are complete still have to leave; connections close themselves then.
    const struct timeval tv = {0, msgl__http_server_connections(f->http) > 0 ? 300000 : 0};
    event_base_loopexit(f->base, &tv);
}

static void on_stop_timeout(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_front *f = arg;
    msgl_api_error e;
    (void)msgl__api_fail(&e, 503, NULL, "server_stopping", "The server is stopping.");
    msgl__gen_fail_all(f, &e);
    msgl__front_idle_check(f);
    const struct timeval tv = {0, 500000};
    event_base_loopexit(f->base, &tv); // whatever a worker still holds
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    msgl_front *f = arg;
    uint64_t n;
    if (read((int)fd, &n, sizeof n) < 0 || f->stopping) return;
    f->stopping = true;
    msgl__log(f->cfg.log, MSGL_LOG_INFO, "stopping; %d requests in flight", f->num_gens);
    msgl__http_server_drain(f->http);
    const struct timeval tv = {f->cfg.stop_timeout_ms / 1000,
                               (f->cfg.stop_timeout_ms % 1000) * 1000};
    event_add(f->stop_timer, &tv);
    msgl__front_idle_check(f);
}

void msgl__front_stop(msgl_front *f)
{
    const uint64_t one = 1;
    while (write(f->stop_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

// --- life ---

static void on_jobs_done(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    uint64_t n;
    if (read((int)fd, &n, sizeof n) < 0) return;
    msgl__gen_jobs_done(arg);
}

static void on_second(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_front *f = arg;
    if (f->cfg.heartbeat != NULL) look_for_beats(f);
    if (msgl__budget_trim_due(&f->budget)) msgl__workers_trim(f->workers);
}

static int front_events(msgl_front *f)
{
    f->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->base = event_base_new();
    if (f->done_fd < 0 || f->stop_fd < 0 || f->base == NULL) return MSGL_ENOMEM;
    f->done_event = event_new(f->base, f->done_fd, EV_READ | EV_PERSIST, on_jobs_done, f);
    f->stop_event = event_new(f->base, f->stop_fd, EV_READ | EV_PERSIST, on_stop, f);
    f->stop_timer = event_new(f->base, -1, 0, on_stop_timeout, f);
    f->second_timer = event_new(f->base, -1, EV_PERSIST, on_second, f);
    if (f->done_event == NULL || f->stop_event == NULL || f->stop_timer == NULL ||
        f->second_timer == NULL) {
        return MSGL_ENOMEM;
    }
    const struct timeval second = {1, 0};
    return event_add(f->done_event, NULL) != 0 || event_add(f->stop_event, NULL) != 0 ||
                   event_add(f->second_timer, &second) != 0
               ? MSGL_ENOMEM
               : 0;
}

int msgl__front_create(const msgl_front_config *cfg, int listen_fd, msgl_front **out, msgl_err *err)
{
    msgl_front *f = msgl__calloc(1, sizeof *f);
    if (f == NULL) {
        close(listen_fd);
        return msgl__err_set(err, MSGL_ENOMEM, "front: out of memory");
    }
    f->cfg = *cfg;
    msgl__budget_init(&f->budget, cfg->max_request_memory);
    f->cfg.http.limits.budget = &f->budget;
    f->api = (msgl_api_config){.model_name = cfg->model_name,
                               .model_path = cfg->model_path,
                               .defaults = cfg->defaults,
                               .vocab_size = msgl__tokenizer_vocab_size(cfg->tokenizer),
                               .refuse_unknown = cfg->refuse_unknown};
    f->engine.attention = f->engine.device = "";
    f->done_fd = f->stop_fd = -1;
    f->start_max = 2048; // until prompts were timed
    f->stats_last = &f->stats_first;
    msgl__strbuf_init(&f->out, (size_t)1 << 30);
    if (getrandom(&f->id_base, sizeof f->id_base, 0) < 0) f->id_base = (uint64_t)getpid();
    int rc = msgl__uids_init(&f->uids);
    if (rc == 0) rc = front_events(f);
    if (rc != 0) (void)msgl__err_set(err, rc, "front: cannot set up the event loop");
    if (rc == 0) {
        rc = msgl__workers_create(cfg->num_workers < 1 ? 1 : cfg->num_workers, cfg->tokenizer,
                                  cfg->templates, &f->budget, f->done_fd, &f->workers, err);
    }
    const msgl_http_handlers handlers = {.ctx = f,
                                         .on_request = msgl__route,
                                         .on_gone = msgl__route_gone,
                                         .write_error = msgl__route_write_error};
    if (rc == 0) {
        rc = msgl__http_server_create(f->base, listen_fd, &f->cfg.http, &handlers, &f->http, err);
    }
    if (rc != 0) {
        close(listen_fd);
        msgl__front_destroy(f);
        return rc;
    }
    *out = f;
    return 0;
}

void msgl__front_destroy(msgl_front *f)
{
    if (f == NULL) return;
    f->stopping = f->ready = false;     // nothing below may end the loop again, or start a choice
    msgl__http_server_destroy(f->http); // before the requests that its connections point to
    f->http = NULL;
    msgl__workers_destroy(f->workers);
    f->workers = NULL;
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (g->in_worker) g->job = NULL; // freed with the workers
        g->base.conn = NULL;
        msgl__gen_gone(f, g);
    }
    msgl__stats_fail_all(f);
    channel_close(f);
    struct event *const events[] = {f->done_event, f->stop_event, f->stop_timer, f->second_timer};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (events[i] != NULL) event_free(events[i]);
    }
    if (f->base != NULL) event_base_free(f->base);
    if (f->done_fd >= 0) close(f->done_fd);
    if (f->stop_fd >= 0) close(f->stop_fd);
    msgl__free(f->attention);
    msgl__free(f->device);
    msgl__free(f->fatal);
    msgl__uids_free(&f->uids);
    for (int i = 0; i < f->num_unknown; i++) msgl__free(f->unknown[i]);
    msgl__strbuf_free(&f->out);
    msgl__free(f);
}

int msgl__front_run(msgl_front *f)
{
    sigset_t pipe_signal;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
    return event_base_dispatch(f->base) < 0 ? MSGL_EINTERNAL : 0;
}
