// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/serve_load.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "http/client.h"
#include "api/json.h"
#include "utils/clock.h"
#include "utils/json.h"
#include "utils/random.h"
#include "utils/stats.h"

enum { REQUEST_MAX = 64 << 20, BUF_SIZE = 64 << 10, MAX_CLIENTS = 4096, TICK_MS = 100 };

msgl_bench_serve_config msgl__bench_serve_config_default(void)
{
    return (msgl_bench_serve_config){.url = "http://127.0.0.1:1919",
                                     .concurrency = 8,
                                     .requests = 32,
                                     .max_tokens = 64,
                                     .ignore_eos = true,
                                     .prompt_tokens = 128,
                                     .vocab_size = 1000,
                                     .prompt_seed = 1,
                                     .sampling_seed = -1,
                                     .timeout_ms = 600000};
}

// Growing list of milliseconds.
typedef struct samples {
    double *ms;
    size_t len, cap;
} samples;

static int samples_add(samples *s, uint64_t ns)
{
    if (s->len == s->cap) {
        const size_t cap = s->cap == 0 ? 256 : 2 * s->cap;
        double *p = msgl__reallocarray(s->ms, cap, sizeof *p);
        if (p == NULL) return MSGL_ENOMEM;
        s->ms = p;
        s->cap = cap;
    }
    s->ms[s->len++] = (double)ns / 1e6;
    return 0;
}

typedef struct load load;

// One client and its request in flight.
typedef struct client {
    load *load;
    int fd;                 // -1: not connected
    bool connecting;        // until the socket can be written the first time
    bool waits_for_writing; // what epoll was asked for
    bool busy;              // a request is in flight
    bool reused;            // its connection served another one before
    msgl_strbuf out;        // the request
    size_t sent;            // bytes of it
    msgl_answer answer;
    msgl_sse_reader sse;
    msgl_strbuf plain; // the answer's beginning, in case it is an error and no stream
    uint64_t sent_at, received_at, last_event_at;
    int64_t events;
    int64_t prompt_tokens, cached_tokens, completion_tokens; // the last usage that came
    bool saw_done;
    bool enough; // open-ended: all it waited for has come
    char error[256];
} client;

struct load {
    const msgl_bench_serve_config *cfg;
    msgl_url url;
    msgl_address address;
    const char *path;
    char *model;
    int64_t context; // of the model, in tokens; 0: the server does not say
    int epoll;
    client *clients;
    int next, done, busy; // requests: index of the next, answered or failed, in flight
    samples ttft, gap, e2e;
    char *buf; // BUF_SIZE: what was just received
    msgl_bench_serve_result *result;
};

// --- requests ---

static int put_prompt(const msgl_bench_serve_config *cfg, int64_t index, msgl_strbuf *out)
{
    uint64_t x = msgl__mix_bits(msgl__mix_bits(cfg->prompt_seed) + (uint64_t)index);
    int rc = msgl__strbuf_addc(out, '[');
    for (int i = 0; i < cfg->prompt_tokens && rc == 0; i++) {
        x = msgl__mix_bits(x);
        rc = msgl__strbuf_addf(out, "%s%" PRIu64, i == 0 ? "" : ",", x % (uint64_t)cfg->vocab_size);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_body(const load *l, int64_t index, msgl_strbuf *b)
{
    const msgl_bench_serve_config *cfg = l->cfg;
    int rc = msgl__strbuf_adds(b, "{\"model\":");
    if (rc == 0) rc = msgl__json_put_str(b, l->model, strlen(l->model));
    if (rc == 0) rc = msgl__strbuf_adds(b, ",\"prompt\":");
    if (rc == 0) rc = put_prompt(cfg, index, b);
    if (rc == 0 && cfg->sampling_seed >= 0) {
        rc = msgl__strbuf_addf(b, ",\"seed\":%" PRId64, cfg->sampling_seed + index);
    }
    if (rc != 0) return rc;
    // Open-ended: this endpoint takes 16 if none is named. And an event may hold several tokens:
    // where to hang up is told by usage.
    return msgl__strbuf_addf(b,
                             ",\"max_tokens\":%" PRId64
                             ",\"temperature\":%g,\"ignore_eos\":%s,\"stream\":true,"
                             "\"stream_options\":{\"include_usage\":true%s}}",
                             cfg->open_ended ? l->context - cfg->prompt_tokens : cfg->max_tokens,
                             cfg->temperature, cfg->ignore_eos ? "true" : "false",
                             cfg->open_ended ? ",\"continuous_usage_stats\":true" : "");
}

// Head and body of request `i` of this run.
static int make_request(client *c, int i)
{
    const load *l = c->load;
    msgl_strbuf body;
    msgl__strbuf_init(&body, REQUEST_MAX);
    msgl__strbuf_clear(&c->out);
    int rc = put_body(l, l->cfg->first_index + i, &body);
    if (rc == 0) rc = msgl__client_head(&l->url, l->path, true, body.len, &c->out);
    if (rc == 0) rc = msgl__strbuf_add(&c->out, body.data, body.len);
    msgl__strbuf_free(&body);
    return rc;
}

// --- answers ---

static void take_usage(client *c, const json_t *usage)
{
    if (!json_is_object(usage)) return;
    c->completion_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    c->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
    c->cached_tokens = json_integer_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static int64_t answer_tokens(const client *c)
{
    return c->completion_tokens > 0 ? c->completion_tokens : c->events;
}

static int on_event(void *ctx, const char *data, size_t len)
{
    client *c = ctx;
    load *l = c->load;
    if (c->enough) return 0; // came with the last one
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        c->saw_done = true;
        return 0;
    }
    json_t *j =
        msgl__json_loadb(data, len, JSON_ALLOW_NUL, NULL, NULL); // a token may be a zero byte
    const json_t *error = json_object_get(j, "error");
    if (j == NULL || error != NULL) {
        const char *text = json_string_value(json_object_get(error, "message"));
        (void)snprintf(c->error, sizeof c->error, "%s", text == NULL ? "not JSON" : text);
    }
    take_usage(c, json_object_get(j, "usage"));
    int rc = 0;
    if (json_array_size(json_object_get(j, "choices")) > 0) { // the one with usage has none
        rc = c->events == 0 ? samples_add(&l->ttft, c->received_at - c->sent_at)
                            : samples_add(&l->gap, c->received_at - c->last_event_at);
        c->events++;
        c->last_event_at = c->received_at;
        c->enough = l->cfg->open_ended && answer_tokens(c) >= l->cfg->max_tokens;
    }
    json_decref(j);
    return rc;
}

static int on_data(void *ctx, const char *data, size_t len)
{
    client *c = ctx;
    if (c->answer.status != 200) {
        const size_t room = c->plain.max - c->plain.len;
        return msgl__strbuf_add(&c->plain, data, len < room ? len : room);
    }
    return msgl__sse_reader_feed(&c->sse, data, len);
}

// --- a client's life ---

static void watch(client *c, bool writing)
{
    if (c->waits_for_writing == writing) return;
    struct epoll_event e = {.events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    (void)epoll_ctl(c->load->epoll, EPOLL_CTL_MOD, c->fd, &e);
    c->waits_for_writing = writing;
}

static void hang_up(client *c)
{
    if (c->fd >= 0) close(c->fd); // which also takes it out of the epoll set
    c->fd = -1;
}

static int dial(client *c, msgl_err *err)
{
    const msgl_address *a = &c->load->address;
    const int one = 1;
    c->fd = socket(a->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0) return msgl__err_set(err, MSGL_EIO, "socket: %s", strerror(errno));
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    int rc = 0;
    if (connect(c->fd, (const struct sockaddr *)&a->addr, a->len) != 0 && errno != EINPROGRESS) {
        rc = msgl__err_set(err, MSGL_EIO, "cannot connect: %s", strerror(errno));
    } else if (epoll_ctl(c->load->epoll, EPOLL_CTL_ADD, c->fd, &e) != 0) {
        rc = msgl__err_set(err, MSGL_EIO, "epoll: %s", strerror(errno));
    }
    if (rc != 0) hang_up(c);
    c->connecting = c->waits_for_writing = true;
    c->reused = false;
    return rc;
}

static int connected(client *c, msgl_err *err)
{
    int failed = 0;
    socklen_t n = sizeof failed;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &failed, &n) != 0) failed = errno;
    if (failed != 0) return msgl__err_set(err, MSGL_EIO, "cannot connect: %s", strerror(failed));
    c->connecting = false;
    return 0;
}

static int send_more(client *c, msgl_err *err)
{
    while (c->sent < c->out.len) {
        const ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) return msgl__err_set(err, MSGL_ECLOSED, "sending: %s", strerror(errno));
        c->sent += (size_t)n;
    }
    watch(c, c->sent < c->out.len);
    return 0;
}

static int begin_answer(client *c, msgl_err *err)
{
    msgl__answer_begin(&c->answer);
    msgl__sse_reader_clear(&c->sse);
    msgl__strbuf_clear(&c->plain);
    c->sent = 0;
    c->events = c->prompt_tokens = c->cached_tokens = c->completion_tokens = 0;
    c->saw_done = c->enough = false;
    c->error[0] = '\0';
    int rc = c->fd < 0 ? dial(c, err) : 0;
    if (rc == 0 && !c->connecting) rc = send_more(c, err);
    return rc;
}

// Counts the request; rc and err: how it ended.
static void finish(client *c, int rc, const msgl_err *err)
{
    load *l = c->load;
    msgl_bench_serve_result *r = l->result;
    c->busy = false;
    l->busy--;
    l->done++;
    if (rc != 0 || !c->answer.keep || c->enough) hang_up(c);
    c->reused = true;
    const bool whole = c->saw_done || c->enough;
    if (rc == 0 && c->answer.status == 200 && whole && c->error[0] == '\0') {
        r->completed++;
        r->prompt_tokens += c->prompt_tokens;
        r->cached_tokens += c->cached_tokens;
        r->output_tokens += answer_tokens(c);
        if (samples_add(&l->e2e, c->received_at - c->sent_at) == 0) return;
        rc = MSGL_ENOMEM;
    }
    r->failed++;
    if (r->first_error[0] != '\0') return;
    if (rc != 0) {
        (void)snprintf(r->first_error, sizeof r->first_error, "%s", err->text);
    } else if (c->answer.status != 200) {
        (void)snprintf(r->first_error, sizeof r->first_error, "HTTP %d: %.200s", c->answer.status,
                       msgl__strbuf_str(&c->plain));
    } else {
        (void)snprintf(r->first_error, sizeof r->first_error, "%s",
                       c->error[0] != '\0' ? c->error : "the stream ended early");
    }
}

// The server may close a kept connection at any time: one more try on a new one when that is all
// that went wrong. True when the request goes on.
static bool try_again(client *c, int rc, msgl_err *err)
{
    if (rc != MSGL_ECLOSED || !c->reused || c->answer.status != 0) return false;
    hang_up(c);
    return begin_answer(c, err) == 0;
}

// Sends this client's next request, until one is under way or none are left. The request is made
// already for those that start together.
static void next_request(client *c, bool made)
{
    load *l = c->load;
    while (!c->busy && l->next < l->cfg->requests) {
        msgl_err err = {0};
        const int i = l->next++;
        int rc = made ? 0 : make_request(c, i);
        made = false;
        c->busy = true;
        l->busy++;
        c->sent_at = c->received_at = msgl__now_ns();
        rc = rc != 0 ? msgl__err_set(&err, rc, "the request is too long") : begin_answer(c, &err);
        if (rc != 0 && !try_again(c, rc, &err)) finish(c, rc, &err);
    }
}

static int receive(client *c, msgl_err *err)
{
    load *l = c->load;
    ssize_t n;
    do {
        n = recv(c->fd, l->buf, BUF_SIZE, 0);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n < 0) return msgl__err_set(err, MSGL_ECLOSED, "receiving: %s", strerror(errno));
    c->received_at = msgl__now_ns();
    if (n == 0) return msgl__answer_end(&c->answer, err);
    size_t used;
    const int rc = msgl__answer_feed(&c->answer, l->buf, (size_t)n, &used, err);
    // Bytes that nobody asked for: the next answer could not be told from them.
    if (used < (size_t)n) c->answer.keep = false;
    return rc;
}

static void on_ready(client *c, unsigned events)
{
    if (!c->busy) { // bytes or an end between two requests
        hang_up(c);
        return;
    }
    msgl_err err = {0};
    int rc = 0;
    if (c->connecting) rc = connected(c, &err);
    if (rc == 0 && (events & EPOLLOUT) != 0) rc = send_more(c, &err);
    if (rc == 0 && (events & ~(unsigned)EPOLLOUT) != 0) rc = receive(c, &err);
    if (rc == 0 && c->answer.state != MSGL_ANSWER_DONE && !c->enough) return;
    if (rc != 0 && try_again(c, rc, &err)) return;
    finish(c, rc, &err);
    next_request(c, false);
}

static void end_the_silent(load *l)
{
    const uint64_t now = msgl__now_ns(), limit = (uint64_t)l->cfg->timeout_ms * 1000000u;
    for (int i = 0; i < l->cfg->concurrency; i++) {
        client *c = &l->clients[i];
        if (!c->busy || now - c->received_at < limit) continue;
        msgl_err err;
        msgl__err_set(&err, MSGL_EIO, "nothing came in %d ms", l->cfg->timeout_ms);
        finish(c, MSGL_EIO, &err);
        next_request(c, false);
    }
}

// All clients connect before the clock starts, so that the first requests leave together.
static int connect_all(load *l, msgl_err *err)
{
    for (int i = 0; i < l->cfg->concurrency; i++) {
        client *c = &l->clients[i];
        int rc = dial(c, err);
        if (rc != 0) return rc;
        struct pollfd p = {.fd = c->fd, .events = POLLOUT};
        if (poll(&p, 1, 10000) == 0) return msgl__err_set(err, MSGL_EIO, "connecting took 10 s");
        rc = connected(c, err);
        if (rc != 0) return rc;
        if (i < l->cfg->requests && make_request(c, i) != 0) {
            return msgl__err_set(err, MSGL_ELIMIT, "the request is too long");
        }
    }
    return 0;
}

static int run(load *l, msgl_err *err)
{
    struct epoll_event events[256];
    const msgl_bench_serve_config *cfg = l->cfg;
    uint64_t looked_at = msgl__now_ns();
    for (int i = 0; i < cfg->concurrency; i++) next_request(&l->clients[i], true);
    while (l->busy > 0) {
        const int n = epoll_wait(l->epoll, events, 256, TICK_MS);
        if (n < 0 && errno != EINTR) {
            return msgl__err_set(err, MSGL_EIO, "epoll: %s", strerror(errno));
        }
        for (int i = 0; i < n; i++) on_ready(events[i].data.ptr, events[i].events);
        const uint64_t now = msgl__now_ns();
        if (n > 0 && now - looked_at < TICK_MS * 1000000u) continue;
        looked_at = now;
        end_the_silent(l);
        if (cfg->progress != NULL && !cfg->progress(cfg->ctx, l->done, cfg->requests)) {
            return msgl__err_set(err, MSGL_EABORTED, "interrupted");
        }
    }
    return 0;
}

// --- results ---

static msgl_bench_dist dist_of(samples *s)
{
    msgl_bench_dist d = {0};
    if (s->len == 0) return d;
    msgl__sort(s->ms, s->len);
    d.p50 = msgl__percentile(s->ms, s->len, 0.50);
    d.p99 = msgl__percentile(s->ms, s->len, 0.99);
    d.max = s->ms[s->len - 1];
    return d;
}

static double thread_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int measure(load *l, msgl_err *err)
{
    msgl_bench_serve_result *r = l->result;
    const double cpu = thread_cpu_s();
    const uint64_t begin = msgl__now_ns();
    const int rc = run(l, err);
    r->wall_s = (double)(msgl__now_ns() - begin) / 1e9;
    r->client_core = (thread_cpu_s() - cpu) / r->wall_s;
    r->output_tok_per_s = (double)r->output_tokens / r->wall_s;
    r->ttft = dist_of(&l->ttft);
    r->gap = dist_of(&l->gap);
    r->e2e = dist_of(&l->e2e);
    if (rc == 0 && r->completed == 0) {
        return msgl__err_set(err, MSGL_EIO, "no request succeeded: %.200s", r->first_error);
    }
    return rc;
}

// --- set-up ---

// The server's first model, and which of the host's addresses it listens at.
static int ask_model(load *l, const char *path, msgl_err *err)
{
    msgl_strbuf body;
    msgl__strbuf_init(&body, 1 << 20);
    int status = 0;
    int rc = msgl__client_get(&l->url, path, 10000, &body, &status, &l->address, err);
    if (rc == 0) {
        json_t *j = msgl__json_loadb(msgl__strbuf_str(&body), body.len, 0, NULL, NULL);
        const json_t *first = json_array_get(json_object_get(j, "data"), 0);
        const char *id = json_string_value(json_object_get(first, "id"));
        l->context = json_integer_value(json_object_get(first, "max_model_len"));
        l->model = id == NULL ? NULL : msgl__strdup(id);
        if (l->model == NULL) {
            rc = msgl__err_set(err, MSGL_EFORMAT, "%.150s: %s does not name a model (HTTP %d)",
                               l->cfg->url, path, status);
        }
        json_decref(j);
    }
    msgl__strbuf_free(&body);
    return rc;
}

static int check_context(const load *l, msgl_err *err)
{
    const msgl_bench_serve_config *cfg = l->cfg;
    if (!cfg->open_ended) return 0;
    if (l->context <= 0) {
        return msgl__err_set(
            err, MSGL_EUNSUPPORTED,
            "%.150s: open-ended requests need the model's max_model_len, which the "
            "list of models does not have",
            cfg->url);
    }
    if (cfg->max_tokens < l->context - cfg->prompt_tokens) return 0;
    return msgl__err_set(
        err, MSGL_EINVAL,
        "a prompt of %d tokens and %d of an open-ended answer; allowed: fewer than "
        "%" PRId64 " together, the model's context",
        cfg->prompt_tokens, cfg->max_tokens, l->context);
}

static int check_config(const msgl_bench_serve_config *cfg, msgl_err *err)
{
    if (cfg->concurrency < 1 || cfg->concurrency > MAX_CLIENTS) {
        return msgl__err_set(err, MSGL_EINVAL, "concurrency is %d; allowed: 1 to %d",
                             cfg->concurrency, (int)MAX_CLIENTS);
    }
    if (cfg->requests < 1) {
        return msgl__err_set(err, MSGL_EINVAL, "requests is %d; allowed: 1 or more", cfg->requests);
    }
    if (cfg->max_tokens < 1 || cfg->prompt_tokens < 1 || cfg->vocab_size < 1) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "prompt, output and vocabulary must be 1 token or more");
    }
    return 0;
}

static int raise_file_limit(int clients, msgl_err *err)
{
    struct rlimit lim;
    const rlim_t want = (rlim_t)clients + 64;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur >= want) return 0;
    const rlim_t max = lim.rlim_max;
    lim.rlim_cur = want;
    if (max >= want && setrlimit(RLIMIT_NOFILE, &lim) == 0) return 0;
    return msgl__err_set(err, MSGL_ELIMIT, "%d clients need %d file descriptors; ulimit -n is %d",
                         clients, (int)want, (int)max);
}

static int open_load(load *l, msgl_err *err)
{
    const int n = l->cfg->concurrency;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll < 0) return msgl__err_set(err, MSGL_EIO, "epoll: %s", strerror(errno));
    l->buf = msgl__malloc(BUF_SIZE);
    l->clients = msgl__calloc((size_t)n, sizeof *l->clients);
    if (l->clients == NULL || l->buf == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench: out of memory");
    }
    for (int i = 0; i < n; i++) {
        client *c = &l->clients[i];
        c->load = l;
        c->fd = -1;
        msgl__strbuf_init(&c->out, REQUEST_MAX);
        msgl__strbuf_init(&c->plain, 4096);
        msgl__answer_init(&c->answer, on_data, c);
        msgl__sse_reader_init(&c->sse, on_event, c);
    }
    return 0;
}

static void close_load(load *l)
{
    for (int i = 0; l->clients != NULL && i < l->cfg->concurrency; i++) {
        client *c = &l->clients[i];
        hang_up(c);
        msgl__sse_reader_free(&c->sse);
        msgl__answer_free(&c->answer);
        msgl__strbuf_free(&c->out);
        msgl__strbuf_free(&c->plain);
    }
    msgl__free(l->clients);
    msgl__free(l->buf);
    msgl__free(l->ttft.ms);
    msgl__free(l->gap.ms);
    msgl__free(l->e2e.ms);
    msgl__free(l->model);
    if (l->epoll >= 0) close(l->epoll);
}

int msgl__bench_serve(const msgl_bench_serve_config *cfg, msgl_bench_serve_result *out,
                      msgl_err *err)
{
    *out = (msgl_bench_serve_result){0};
    load l = {.cfg = cfg, .epoll = -1, .result = out};
    int rc = check_config(cfg, err);
    if (rc == 0) rc = msgl__url_parse(cfg->url, &l.url, err);
    if (rc == 0) rc = raise_file_limit(cfg->concurrency, err);
    if (rc != 0) return rc;
    const size_t n = strlen(l.url.path);
    const bool has_v1 = n >= 3 && strcmp(l.url.path + n - 3, "/v1") == 0;
    l.path = has_v1 ? "/completions" : "/v1/completions";
    rc = ask_model(&l, has_v1 ? "/models" : "/v1/models", err);
    if (rc == 0) rc = check_context(&l, err);
    if (rc == 0) rc = open_load(&l, err);
    if (rc == 0) rc = connect_all(&l, err);
    if (rc == 0) rc = measure(&l, err);
    close_load(&l);
    return rc;
}
