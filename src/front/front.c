// SPDX-License-Identifier: Apache-2.0
#include "front/front.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "front/front_impl.h"

// What routing may remember of prompts, in bytes; 60 for each block of ROUTE_BLOCK tokens.
enum { ROUTE_MEMORY = 64 << 20 };
// A running engine meets a new front between two of its steps.
enum { AWAIT_ENGINES_MS = 2000 };

msgl_store_limits msgl__store_limits_default(void)
{
    return (msgl_store_limits){.max_files = 10000,
                               .max_batches = 10000,
                               .max_bytes = INT64_C(8) << 30,
                               .max_age_s = INT64_C(30) * 24 * 3600};
}

msgl_front_config msgl__front_config_default(void)
{
    return (msgl_front_config){.defaults = msgl__sampling_params_plain(),
                               .num_workers = 1,
                               .max_waiting = 4096,
                               .max_request_memory = (size_t)1 << 30,
                               .stop_timeout_ms = 5000,
                               .num_replicas = 1,
                               .routing = MSGL_ROUTING_CACHE_AWARE,
                               .balance = MSGL_ROUTER_BALANCE,
                               .max_silence_s = 30,
                               .beat_ms = 1000,
                               .batch_limits = msgl__store_limits_default(),
                               .http = msgl__http_config_default()};
}

void msgl__front_await_engines(msgl_front *f)
{
    f->awaits_engines = true;
    msgl__http_server_pause_accepting(f->http, AWAIT_ENGINES_MS);
}

void msgl__front_engine_ready(msgl_front *f)
{
    if (!f->awaits_engines) return;
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        if (f->replicas[i].chan != NULL && !f->replicas[i].ready) return;
    }
    f->awaits_engines = false;
    msgl__http_server_pause_accepting(f->http, 0);
}

struct event_base *msgl__front_base(msgl_front *f)
{
    return f->base;
}

// --- stopping ---

void msgl__front_idle_check(msgl_front *f)
{
    if (!f->stopping || f->num_gens > 0) return;
    const msgl_msg m = {.type = MSGL_MSG_EXIT};
    for (int i = 0; i < f->cfg.num_replicas; i++) (void)msgl__replica_post(&f->replicas[i], &m);
    // Answers that are complete still have to leave; connections close themselves then.
    const struct timeval tv = {0, msgl__http_server_connections(f->http) > 0 ? 300000 : 0};
    event_base_loopexit(f->base, &tv);
}

static void on_stop_timeout(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_front *f = arg;
    msgl_api_error e;
    (void)msgl__api_fail(&e, 503, NULL, "server_stopping",
                         "The server is stopping: it had to end this request.");
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
    if (f->batches != NULL) f->cfg.batches->stop(f->batches);
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

// Files and batches, if there is a folder for them.
static int front_batches(msgl_front *f, msgl_err *err)
{
    if (f->cfg.batch_dir == NULL || f->cfg.batches == NULL) return 0;
    return f->cfg.batches->open(f, &f->batches, err);
}

// Responses that clients may ask for again.
static int front_responses(msgl_front *f, msgl_err *err)
{
    const msgl_response_limits limits = msgl__response_limits_default(f->cfg.max_request_memory);
    const int rc = msgl__response_store_create(&limits, &f->budget, &f->responses);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "front: out of memory");
}

static void on_second(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    msgl_front *f = arg;
    for (int i = 0; i < f->cfg.num_replicas && f->cfg.heartbeats != NULL; i++) {
        msgl__replica_look_for_beats(&f->replicas[i]);
    }
    msgl__status_second(f);
    msgl__response_store_expire(f->responses, (int64_t)time(NULL));
    if (msgl__budget_trim_second(&f->budget)) msgl__workers_trim(f->workers);
}

static void on_beat(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    const msgl_front *f = arg;
    msgl__beat(f->cfg.own_heartbeat, MSGL_BEAT_SCHEDULER);
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
    f->beat_timer = event_new(f->base, -1, EV_PERSIST, on_beat, f);
    if (f->done_event == NULL || f->stop_event == NULL || f->stop_timer == NULL ||
        f->second_timer == NULL || f->beat_timer == NULL) {
        return MSGL_ENOMEM;
    }
    const struct timeval second = {1, 0};
    const struct timeval beat = {f->cfg.beat_ms / 1000, f->cfg.beat_ms % 1000 * 1000};
    if (f->cfg.own_heartbeat != NULL && event_add(f->beat_timer, &beat) != 0) return MSGL_ENOMEM;
    return event_add(f->done_event, NULL) != 0 || event_add(f->stop_event, NULL) != 0 ||
                   event_add(f->second_timer, &second) != 0
               ? MSGL_ENOMEM
               : 0;
}

static int front_replicas(msgl_front *f, msgl_err *err)
{
    const int n = f->cfg.num_replicas;
    if (n < 1 || n > MSGL_FRONT_MAX_REPLICAS) {
        return msgl__err_set(err, MSGL_EINVAL, "front: %d replicas; allowed: 1 to %d", n,
                             MSGL_FRONT_MAX_REPLICAS);
    }
    f->replicas = msgl__calloc((size_t)n, sizeof *f->replicas);
    if (f->replicas == NULL) return msgl__err_set(err, MSGL_ENOMEM, "front: out of memory");
    for (int i = 0; i < n; i++) msgl__replica_init(f, i);
    const msgl_router_config cfg = {// With one there is nothing to find out.
                                    .policy = n > 1 ? f->cfg.routing : MSGL_ROUTING_TOTAL_TOKENS,
                                    .num_replicas = n,
                                    .block_size = ROUTE_BLOCK,
                                    .cache_tokens = INT64_MAX, // each says how many
                                    .max_memory = ROUTE_MEMORY,
                                    .balance = f->cfg.balance};
    return msgl__router_create(&cfg, &f->router, err);
}

// How the model writes calls and thoughts.
static void front_forms(msgl_front *f)
{
    const msgl_front_config *cfg = &f->cfg;
    const char *text = cfg->templates == NULL ? NULL : msgl__chat_templates_text(cfg->templates);
    const char *tool = cfg->tool_parser == NULL ? "auto" : cfg->tool_parser;
    const char *reasoning = cfg->reasoning_parser == NULL ? "auto" : cfg->reasoning_parser;
    f->api.tool_form_auto = strcmp(tool, "auto") == 0;
    f->api.reasoning_form_auto = strcmp(reasoning, "auto") == 0;
    f->api.template_text = text == NULL ? "" : text;
    f->api.tool_form = msgl__tool_form(tool, text);
    f->api.reasoning_form = msgl__reasoning_form(reasoning, text);
    if (f->api.tool_form == NULL && f->api.tool_form_auto && text != NULL &&
        strstr(text, "tools") != NULL) {
        msgl__log(cfg->log, MSGL_LOG_WARN,
                  "the chat template takes tools, but no form of calls was recognised in it: calls "
                  "stay text (see --tool-call-parser)");
    }
    if (f->api.tool_form == NULL && f->api.reasoning_form == NULL) return;
    msgl__log(cfg->log, MSGL_LOG_INFO, "answers are read as: tool calls %s, reasoning %s",
              msgl__tool_form_name(f->api.tool_form),
              msgl__reasoning_form_name(f->api.reasoning_form));
}

static int num_endpoints(const msgl_endpoint *const *all)
{
    int n = 0;
    while (all != NULL && all[n] != NULL) n++;
    return n;
}

int msgl__front_create(const msgl_front_config *cfg, int listen_fd, msgl_front **out, msgl_err *err)
{
    const int endpoints = num_endpoints(cfg->endpoints);
    if (endpoints == 0 || endpoints >= MSGL_METRICS_ENDPOINTS) {
        close(listen_fd);
        return msgl__err_set(err, MSGL_EINVAL, "front: %d endpoints; allowed: 1 to %d", endpoints,
                             MSGL_METRICS_ENDPOINTS - 1);
    }
    msgl_front *f = msgl__calloc(1, sizeof *f);
    if (f == NULL) {
        close(listen_fd);
        return msgl__err_set(err, MSGL_ENOMEM, "front: out of memory");
    }
    f->cfg = *cfg;
    msgl__budget_init(&f->budget, cfg->max_request_memory);
    f->cfg.http.limits.budget = &f->budget;
    f->api = (msgl_api_config){.endpoints = cfg->endpoints,
                               .model_name = cfg->model_name,
                               .more_names = cfg->more_names,
                               .num_more_names = cfg->num_more_names,
                               .model_path = cfg->model_path,
                               .defaults = cfg->defaults,
                               .vocab_size = msgl__tokenizer_vocab_size(cfg->tokenizer),
                               .labels = cfg->labels,
                               .multi_label = cfg->multi_label,
                               .prompts = cfg->prompts,
                               .text_form = cfg->text_form,
                               .open_schemas = cfg->open_schemas,
                               .unknown_fields = cfg->unknown_fields,
                               .added_from_text = cfg->added_from_text,
                               .trust_template = cfg->trust_template};
    f->started_at = time(NULL);
    msgl__api_put_path(cfg->model_path, f->shown_path, sizeof f->shown_path);
    front_forms(f);
    f->started = (int64_t)time(NULL);
    f->done_fd = f->stop_fd = -1;
    f->stats_last = &f->stats_first;
    f->admin_last = &f->admin_first;
    msgl__strbuf_init(&f->out, (size_t)1 << 30);
    if (getrandom(&f->id_base, sizeof f->id_base, 0) < 0) f->id_base = (uint64_t)getpid();
    if (getrandom(&f->route_seed, sizeof f->route_seed, 0) < 0) f->route_seed = f->id_base;
    if (getrandom(f->api.salt_key, sizeof f->api.salt_key, 0) < 0) {
        f->api.salt_key[0] = f->route_seed; // salts can be found that share; only tests get here
    }
    int rc = msgl__uids_init(&f->uids);
    if (rc == 0) rc = front_events(f);
    if (rc != 0) (void)msgl__err_set(err, rc, "front: cannot set up the event loop");
    if (rc == 0) rc = front_replicas(f, err);
    if (rc == 0) {
        rc = msgl__workers_create(cfg->num_workers < 1 ? 1 : cfg->num_workers, cfg->tokenizer,
                                  cfg->templates, &f->budget, f->done_fd, &f->workers, err);
    }
    if (rc == 0) rc = front_responses(f, err);
    if (rc == 0) rc = msgl__loras_open(f, err);
    if (rc == 0) rc = front_batches(f, err);
    const msgl_http_handlers handlers = {.ctx = f,
                                         .on_head = msgl__route_head,
                                         .on_request = msgl__route,
                                         .on_gone = msgl__route_gone,
                                         .on_answer = msgl__route_answer,
                                         .on_done = cfg->access_log ? msgl__access_log : NULL,
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
    f->stopping = false; // nothing below may end the loop again, or start a choice
    for (int i = 0; i < f->cfg.num_replicas && f->replicas != NULL; i++) {
        f->replicas[i].ready = false;
    }
    msgl__http_server_destroy(f->http); // before the requests that its connections point to
    f->http = NULL;
    if (f->batches != NULL) f->cfg.batches->close(f->batches);
    f->batches = NULL;
    msgl__workers_destroy(f->workers);
    f->workers = NULL;
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (g->in_worker) g->job = NULL; // freed with the workers
        g->base.conn = NULL;
        msgl__gen_gone(f, g);
    }
    for (int i = 0; i < f->cfg.num_replicas && f->replicas != NULL; i++) {
        msgl__stats_lost(&f->replicas[i]);
        msgl__replica_free(&f->replicas[i]);
    }
    for (admin_call *a = f->admin_first, *next; a != NULL; a = next) {
        next = a->next;
        msgl__admin_free(a);
    }
    msgl__loras_close(f);
    msgl__response_store_free(f->responses);
    msgl__free(f->replicas);
    msgl__router_destroy(f->router);
    msgl__free(f->route_keys);
    struct event *const events[] = {f->done_event, f->stop_event, f->stop_timer, f->second_timer,
                                    f->beat_timer};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (events[i] != NULL) event_free(events[i]);
    }
    if (f->base != NULL) event_base_free(f->base);
    if (f->done_fd >= 0) close(f->done_fd);
    if (f->stop_fd >= 0) close(f->stop_fd);
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
