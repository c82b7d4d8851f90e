// SPDX-License-Identifier: Apache-2.0
#include "server/bench_serve.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "server/client.h"
#include "server/json.h"
#include "utils/clock.h"

enum { BODY_MAX = 64 << 20 };

msgl_bench_serve_config msgl__bench_serve_config_default(void)
{
    return (msgl_bench_serve_config){.url = "http://127.0.0.1:1919",
                                     .concurrency = 8,
                                     .requests = 64,
                                     .max_tokens = 64,
                                     .ignore_eos = true,
                                     .prompt_tokens = 128,
                                     .seed = 1,
                                     .timeout_ms = 600000};
}

// Growing list of nanoseconds.
typedef struct samples {
    uint64_t *ns;
    size_t len, cap;
} samples;

static int samples_add(samples *s, uint64_t ns)
{
    if (s->len == s->cap) {
        const size_t cap = s->cap == 0 ? 256 : 2 * s->cap;
        uint64_t *p = msgl__reallocarray(s->ns, cap, sizeof *p);
        if (p == NULL) return MSGL_ENOMEM;
        s->ns = p;
        s->cap = cap;
    }
    s->ns[s->len++] = ns;
    return 0;
}

typedef struct shared {
    const msgl_bench_serve_config *cfg;
    msgl_url url;
    const char *path, *model;
    atomic_int next, done;
} shared;

// One client.
typedef struct worker {
    shared *sh;
    pthread_t thread;
    msgl_client client;
    msgl_sse_reader sse;
    msgl_strbuf body, plain; // request; an answer that is no stream (errors)
    samples ttft, gap, e2e;
    int completed, failed;
    char first_error[256];
    int64_t prompt_tokens, cached_tokens, output_tokens;
    // of the current request:
    uint64_t sent_at, last_text_at;
    int64_t chunks, usage_completion;
    bool saw_done;
    char error[256];
} worker;

static uint64_t mix(uint64_t x) // splitmix64's output function
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int put_made_up_prompt(const msgl_bench_serve_config *cfg, int index, msgl_strbuf *out)
{
    static const char *const words[] = {"river", "stone", "light",  "winter", "music", "paper",
                                        "cloud", "table", "garden", "letter", "train", "ocean",
                                        "glass", "field", "market", "silver"};
    uint64_t x = mix(cfg->seed * 1000003u + (uint64_t)index);
    const bool ids = cfg->vocab_size > 0;
    int rc = msgl__strbuf_addc(out, ids ? '[' : '"');
    for (int i = 0; i < cfg->prompt_tokens && rc == 0; i++) {
        x = mix(x);
        rc = ids ? msgl__strbuf_addf(out, "%s%" PRIu64, i == 0 ? "" : ",",
                                     x % (uint64_t)cfg->vocab_size)
                 : msgl__strbuf_addf(out, "%s%s", i == 0 ? "" : " ", words[x >> 60]);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ids ? ']' : '"') : rc;
}

static int make_body(worker *w, int index)
{
    const msgl_bench_serve_config *cfg = w->sh->cfg;
    msgl_strbuf *b = &w->body;
    msgl__strbuf_clear(b);
    int rc = msgl__strbuf_adds(b, "{\"model\":");
    if (rc == 0) rc = msgl__json_put_str(b, w->sh->model, strlen(w->sh->model));
    if (rc == 0) rc = msgl__strbuf_adds(b, ",\"prompt\":");
    if (rc == 0) {
        rc = cfg->prompts != NULL ? msgl__strbuf_adds(b, cfg->prompts[index % cfg->num_prompts])
                                  : put_made_up_prompt(cfg, index, b);
    }
    if (rc != 0) return rc;
    return msgl__strbuf_addf(b,
                             ",\"max_tokens\":%d,\"temperature\":%g,\"ignore_eos\":%s,"
                             "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                             cfg->max_tokens, cfg->temperature, cfg->ignore_eos ? "true" : "false");
}

static void take_usage(worker *w, const json_t *usage)
{
    if (!json_is_object(usage)) return;
    w->usage_completion = json_integer_value(json_object_get(usage, "completion_tokens"));
    w->prompt_tokens += json_integer_value(json_object_get(usage, "prompt_tokens"));
    w->cached_tokens += json_integer_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static int on_event(void *ctx, const char *data, size_t len)
{
    worker *w = ctx;
    const uint64_t now = msgl__now_ns();
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        w->saw_done = true;
        return 0;
    }
    json_t *j = json_loadb(data, len, 0, NULL);
    const json_t *error = json_object_get(j, "error");
    if (j == NULL || error != NULL) {
        const char *text = json_string_value(json_object_get(error, "message"));
        (void)snprintf(w->error, sizeof w->error, "%s", text == NULL ? "not JSON" : text);
    }
    take_usage(w, json_object_get(j, "usage"));
    const char *text = json_string_value(
        json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text"));
    int rc = 0;
    if (text != NULL && text[0] != '\0') {
        rc = w->chunks == 0 ? samples_add(&w->ttft, now - w->sent_at)
                            : samples_add(&w->gap, now - w->last_text_at);
        w->chunks++;
        w->last_text_at = now;
    }
    json_decref(j);
    return rc;
}

static int on_data(void *ctx, const char *data, size_t len)
{
    worker *w = ctx;
    // The beginning is kept for the case that this is an error's body.
    if (w->plain.len + len <= w->plain.max) (void)msgl__strbuf_add(&w->plain, data, len);
    return msgl__sse_reader_feed(&w->sse, data, len);
}

static void one_request(worker *w, int index)
{
    msgl_err err = {0};
    int status = 0;
    w->chunks = w->usage_completion = 0;
    w->saw_done = false;
    w->error[0] = '\0';
    msgl__strbuf_clear(&w->plain);
    int rc = make_body(w, index);
    w->sent_at = msgl__now_ns();
    if (rc == 0) {
        rc = msgl__client_request(&w->client, w->sh->path, msgl__strbuf_str(&w->body), w->body.len,
                                  on_data, w, &status, &err);
    }
    const uint64_t end = msgl__now_ns();
    if (rc == 0 && status == 200 && w->saw_done && w->error[0] == '\0') {
        w->completed++;
        w->output_tokens += w->usage_completion > 0 ? w->usage_completion : w->chunks;
        (void)samples_add(&w->e2e, end - w->sent_at);
        return;
    }
    w->failed++;
    if (w->first_error[0] != '\0') return;
    if (rc != 0) {
        (void)snprintf(w->first_error, sizeof w->first_error, "%s", err.text);
    } else if (status != 200) {
        (void)snprintf(w->first_error, sizeof w->first_error, "HTTP %d: %.200s", status,
                       msgl__strbuf_str(&w->plain));
    } else {
        (void)snprintf(w->first_error, sizeof w->first_error, "%s",
                       w->error[0] != '\0' ? w->error : "the stream ended early");
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    shared *sh = w->sh;
    for (;;) {
        const int i = atomic_fetch_add(&sh->next, 1);
        if (i >= sh->cfg->requests) return NULL;
        one_request(w, i);
        const int done = atomic_fetch_add(&sh->done, 1) + 1;
        if (sh->cfg->progress != NULL) sh->cfg->progress(sh->cfg->ctx, done, sh->cfg->requests);
    }
}

// --- results ---

static int compare_ns(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Nearest-rank percentile of sorted values.
static double percentile(const samples *s, double q)
{
    size_t rank = (size_t)(q * (double)s->len + 0.999999);
    if (rank < 1) rank = 1;
    return (double)s->ns[rank - 1] / 1e6;
}

static msgl_bench_dist dist_of(samples *s)
{
    msgl_bench_dist d = {0};
    if (s->len == 0) return d;
    qsort(s->ns, s->len, sizeof s->ns[0], compare_ns);
    double sum = 0;
    for (size_t i = 0; i < s->len; i++) sum += (double)s->ns[i] / 1e6;
    d.mean = sum / (double)s->len;
    d.p50 = percentile(s, 0.50);
    d.p95 = percentile(s, 0.95);
    d.p99 = percentile(s, 0.99);
    d.max = (double)s->ns[s->len - 1] / 1e6;
    return d;
}

static int merge(samples *all, const samples *one)
{
    int rc = 0;
    for (size_t i = 0; i < one->len && rc == 0; i++) rc = samples_add(all, one->ns[i]);
    return rc;
}

static int collect(worker *workers, int n, double wall_s, msgl_bench_serve_result *out)
{
    samples ttft = {0}, gap = {0}, e2e = {0};
    int rc = 0;
    *out = (msgl_bench_serve_result){.wall_s = wall_s};
    for (int i = 0; i < n && rc == 0; i++) {
        const worker *w = &workers[i];
        out->completed += w->completed;
        out->failed += w->failed;
        out->prompt_tokens += w->prompt_tokens;
        out->cached_tokens += w->cached_tokens;
        out->output_tokens += w->output_tokens;
        if (out->first_error[0] == '\0') {
            memcpy(out->first_error, w->first_error, sizeof out->first_error);
        }
        rc = merge(&ttft, &w->ttft);
        if (rc == 0) rc = merge(&gap, &w->gap);
        if (rc == 0) rc = merge(&e2e, &w->e2e);
    }
    if (wall_s > 0) {
        out->requests_per_s = out->completed / wall_s;
        out->output_tok_per_s = (double)out->output_tokens / wall_s;
        out->total_tok_per_s = (double)(out->output_tokens + out->prompt_tokens) / wall_s;
    }
    out->ttft = dist_of(&ttft);
    out->gap = dist_of(&gap);
    out->e2e = dist_of(&e2e);
    msgl__free(ttft.ns);
    msgl__free(gap.ns);
    msgl__free(e2e.ns);
    return rc;
}

// --- set-up ---

static int keep(void *ctx, const char *data, size_t len)
{
    return msgl__strbuf_add(ctx, data, len);
}

// The id of the server's first model, into new memory.
static int ask_model(const msgl_url *url, const char *path, char **model, msgl_err *err)
{
    msgl_client c = {0};
    msgl_strbuf body;
    msgl__strbuf_init(&body, 1 << 20);
    int status = 0, rc = msgl__client_init(&c, url, 10000, err);
    if (rc == 0) rc = msgl__client_request(&c, path, NULL, 0, keep, &body, &status, err);
    if (rc == 0) {
        json_t *j = json_loadb(msgl__strbuf_str(&body), body.len, 0, NULL);
        const char *id =
            json_string_value(json_object_get(json_array_get(json_object_get(j, "data"), 0), "id"));
        *model = id == NULL ? NULL : msgl__strdup(id);
        if (*model == NULL) {
            rc =
                msgl__err_set(err, MSGL_EFORMAT, "%s did not name a model (HTTP %d)", path, status);
        }
        json_decref(j);
    }
    msgl__strbuf_free(&body);
    msgl__client_close(&c);
    return rc;
}

static int worker_init(worker *w, shared *sh, msgl_err *err)
{
    w->sh = sh;
    msgl__strbuf_init(&w->body, BODY_MAX);
    msgl__strbuf_init(&w->plain, 4096);
    msgl__sse_reader_init(&w->sse, on_event, w);
    return msgl__client_init(&w->client, &sh->url, sh->cfg->timeout_ms, err);
}

static void worker_free(worker *w)
{
    msgl__client_close(&w->client);
    msgl__sse_reader_free(&w->sse);
    msgl__strbuf_free(&w->body);
    msgl__strbuf_free(&w->plain);
    msgl__free(w->ttft.ns);
    msgl__free(w->gap.ns);
    msgl__free(w->e2e.ns);
}

static int check_config(const msgl_bench_serve_config *cfg, msgl_err *err)
{
    if (cfg->concurrency < 1 || cfg->concurrency > 1024) {
        return msgl__err_set(err, MSGL_EINVAL, "concurrency is %d; allowed: 1 to 1024",
                             cfg->concurrency);
    }
    if (cfg->requests < 1) {
        return msgl__err_set(err, MSGL_EINVAL, "requests is %d; allowed: 1 or more", cfg->requests);
    }
    if (cfg->max_tokens < 1 || (cfg->prompts == NULL && cfg->prompt_tokens < 1)) {
        return msgl__err_set(err, MSGL_EINVAL, "prompt and output must be 1 token or more");
    }
    return 0;
}

int msgl__bench_serve(const msgl_bench_serve_config *cfg, msgl_bench_serve_result *out,
                      msgl_err *err)
{
    shared sh = {.cfg = cfg};
    char *model = NULL;
    worker *workers = NULL;
    int rc = check_config(cfg, err);
    if (rc == 0) rc = msgl__url_parse(cfg->url, &sh.url, err);
    if (rc != 0) return rc;
    const size_t n = strlen(sh.url.path);
    const bool has_v1 = n >= 3 && strcmp(sh.url.path + n - 3, "/v1") == 0;
    sh.path = has_v1 ? "/completions" : "/v1/completions";
    rc =
        cfg->model != NULL ? 0 : ask_model(&sh.url, has_v1 ? "/models" : "/v1/models", &model, err);
    if (rc != 0) return rc;
    sh.model = cfg->model != NULL ? cfg->model : model;
    workers = msgl__calloc((size_t)cfg->concurrency, sizeof *workers);
    if (workers == NULL) rc = msgl__err_set(err, MSGL_ENOMEM, "bench: out of memory");
    for (int i = 0; i < cfg->concurrency && rc == 0; i++) rc = worker_init(&workers[i], &sh, err);
    int started = 0;
    const uint64_t begin = msgl__now_ns();
    while (rc == 0 && started < cfg->concurrency) {
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) {
            rc = msgl__err_set(err, MSGL_EINTERNAL, "bench: cannot start %d clients",
                               cfg->concurrency);
            atomic_store(&sh.next, cfg->requests);
        } else {
            started++;
        }
    }
    for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    const double wall_s = (double)(msgl__now_ns() - begin) / 1e9;
    if (rc == 0 && collect(workers, cfg->concurrency, wall_s, out) != 0) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "bench: out of memory");
    }
    if (rc == 0 && out->completed == 0) {
        rc = msgl__err_set(err, MSGL_EIO, "no request succeeded: %.200s", out->first_error);
    }
    for (int i = 0; workers != NULL && i < cfg->concurrency; i++) worker_free(&workers[i]);
    msgl__free(workers);
    msgl__free(model);
    return rc;
}
