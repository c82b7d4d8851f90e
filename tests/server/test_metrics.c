// SPDX-License-Identifier: Apache-2.0
//
// What operators see, with a scripted engine: /metrics line by line, what each number counts, and
// the names that dashboards of others look for; API keys; ids of requests; what web pages may read.
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "server/fixture.h"

// The number behind a sample's name and labels; fails if there is none.
static double value_of(const char *page, const char *sample)
{
    const size_t n = strlen(sample);
    for (const char *s = page; s != NULL && *s != '\0'; s = strchr(s, '\n'), s += s != NULL) {
        if (strncmp(s, sample, n) == 0 && s[n] == ' ') return strtod(s + n, NULL);
    }
    fail_msg("no sample %s in:\n%s", sample, page);
    return 0;
}

static bool has(const char *page, const char *text)
{
    return strstr(page, text) != NULL;
}

static response scrape(const server_fixture *s)
{
    response r = client_request(s, "GET", "/metrics", NULL);
    char buf[256];
    assert_int_equal(r.status, 200);
    assert_string_equal(header_of(&r, "Content-Type", buf),
                        "text/plain; version=0.0.4; charset=utf-8");
    return r;
}

// Every family is described once, in front of its samples, and every sample is a number behind a
// name that belongs to the family.
static void check_format(const char *page)
{
    char family[128] = "", type[16] = "";
    while (*page != '\0') {
        const char *end = strchr(page, '\n');
        assert_non_null(end);
        char line[512];
        assert_true((size_t)(end - page) < sizeof line);
        (void)snprintf(line, sizeof line, "%.*s", (int)(end - page), page);
        page = end + 1;
        if (strncmp(line, "# HELP ", 7) == 0) {
            char again[160];
            assert_int_equal(sscanf(line, "# HELP %127s", family), 1);
            (void)snprintf(again, sizeof again, "# HELP %s ", family);
            if (has(page, again)) fail_msg("%s is described twice", family);
            continue;
        }
        if (strncmp(line, "# TYPE ", 7) == 0) {
            char name[128];
            assert_int_equal(sscanf(line, "# TYPE %127s %15s", name, type), 2);
            assert_string_equal(name, family);
            continue;
        }
        const size_t n = strlen(family), len = strcspn(line, "{ ");
        const char *rest = line + n;
        if (strncmp(line, family, n) != 0) fail_msg("%s is not of %s", line, family);
        if (strcmp(type, "histogram") == 0) {
            assert_true(strncmp(rest, "_bucket{", 8) == 0 || strncmp(rest, "_sum", 4) == 0 ||
                        strncmp(rest, "_count", 6) == 0);
        } else {
            assert_int_equal(len, n);
        }
        if (strcmp(type, "counter") == 0 && strncmp(line + len - 6, "_total", 6) != 0) {
            fail_msg("the counter %s has no _total", family);
        }
        char *after;
        const char *number = strrchr(line, ' ');
        assert_non_null(number);
        (void)strtod(number + 1, &after);
        if (*after != '\0' || !isdigit((unsigned char)number[1])) fail_msg("%s", line);
    }
}

static msgl_msg a_report(void)
{
    msgl_msg m = {.type = MSGL_MSG_REPORT};
    m.u.report =
        (msgl_msg_report){.stats = {7, 1, 2, 900, 60, 40, 1000, 100, 12, 25, 14, 15, 16, 30, 21},
                          .process = {1 << 20, 2500000},
                          .num_groups = 2};
    msgl__durations_observe(&m.u.report.steps, 100000);              // just 100 us
    msgl__durations_observe(&m.u.report.steps, 100001);              // more
    msgl__durations_observe(&m.u.report.steps, UINT64_C(200) << 30); // more than all bounds
    m.u.report.groups[0].total = 1000;
    m.u.report.groups[0].free = 900;
    m.u.report.groups[0].cached = 60;
    m.u.report.groups[0].evicted = 5;
    m.u.report.groups[1].total = 30;
    m.u.report.groups[1].free = 10;
    m.u.report.drafted_at[0] = 20;
    m.u.report.drafted_at[1] = 10;
    m.u.report.accepted_at[0] = 15;
    m.u.report.accepted_at[1] = 6;
    return m;
}

// The report has been read when the page shows it.
static response scrape_reported(server_fixture *s, const char *sample)
{
    const msgl_msg m = a_report();
    assert_int_equal(msgl__channel_send(s->engine, &m), 0);
    for (int i = 0; i < 500; i++) {
        response r = scrape(s);
        if (has(r.body, sample)) return r;
        response_free(&r);
        usleep(10000);
    }
    fail_msg("the report did not come");
    return (response){0};
}

static void test_engine_numbers(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    response r = scrape_reported(&s, "minisgl_evictions_total{group=\"0\"} 5\n");
    static const struct {
        const char *sample;
        double value;
    } want[] = {{"minisgl_engine_up", 1},
                {"minisgl_requests_running", 1},
                {"minisgl_requests_waiting", 2},
                {"minisgl_prompt_tokens_total", 100},
                {"minisgl_generation_tokens_total", 12},
                {"minisgl_cached_tokens_total", 25},
                {"minisgl_engine_requests_done_total", 14},
                {"minisgl_engine_requests_aborted_total", 15},
                {"minisgl_engine_requests_retracted_total", 16},
                {"minisgl_drafted_tokens_total", 30},
                {"minisgl_accepted_tokens_total", 21},
                {"minisgl_drafted_tokens_at_total{position=\"2\"}", 10},
                {"minisgl_accepted_tokens_at_total{position=\"1\"}", 15},
                {"minisgl_accepted_tokens_at_total{position=\"2\"}", 6},
                {"minisgl_engine_resident_memory_bytes", 1 << 20},
                {"minisgl_engine_cpu_seconds_total", 2.5},
                {"minisgl_pool_pages{group=\"0\"}", 1000},
                {"minisgl_pool_pages_used{group=\"0\"}", 40},
                {"minisgl_pool_pages_cached{group=\"0\"}", 60},
                {"minisgl_pool_pages{group=\"1\"}", 30},
                {"minisgl_pool_pages_used{group=\"1\"}", 20},
                {"minisgl_step_seconds_bucket{le=\"0.0001\"}", 1},
                {"minisgl_step_seconds_bucket{le=\"0.0002\"}", 2},
                {"minisgl_step_seconds_bucket{le=\"100\"}", 2},
                {"minisgl_step_seconds_bucket{le=\"+Inf\"}", 3},
                {"minisgl_step_seconds_count", 3}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const double v = value_of(r.body, want[i].sample);
        if (v != want[i].value) fail_msg("%s is %g", want[i].sample, v);
    }
    assert_true(value_of(r.body, "process_resident_memory_bytes") > 1e6);
    assert_true(value_of(r.body, "process_cpu_seconds_total") > 0);
    assert_false(has(r.body, "vllm:") || has(r.body, "sglang:") || has(r.body, "replica"));
    check_format(r.body);
    response_free(&r);
    server_close(&s);
}

// An answer, a stream, a refusal, a client that leaves: each counts where it belongs, once.
static void test_front_numbers(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    uint64_t uid;
    int fd = client_ask(&s, "{\"prompt\":\"x\",\"n\":1}", &uid);
    engine_text(&s, uid, "abc");
    engine_token(&s, uid, ID_EOS, MSGL_FINISH_STOP);
    expect_status(client_read(fd), 200);
    close(fd);
    fd = client_ask(&s, "{\"prompt\":\"x\",\"stream\":true}", &uid);
    engine_text(&s, uid, "ab");
    engine_token(&s, uid, ID_EOS, MSGL_FINISH_STOP);
    expect_status(client_read(fd), 200);
    close(fd);
    expect_status(client_request(&s, "POST", "/v1/completions", "{\"model\":\"other\"}"), 404);
    expect_status(client_request(&s, "GET", "/nowhere", NULL), 404);
    fd = client_open(&s);
    client_send(fd, "nonsense\r\n\r\n");
    expect_status(client_read(fd), 400);
    close(fd);
    fd = client_ask(&s, "{\"prompt\":\"x\"}", &uid);
    close(fd);
    assert_int_equal(engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid, uid);
    response r = scrape(&s);
    static const struct {
        const char *sample;
        double value;
    } want[] = {
        {"minisgl_http_requests_total{path=\"/v1/completions\",code=\"200\"}", 2},
        {"minisgl_http_requests_total{path=\"/v1/completions\",code=\"404\"}", 1},
        {"minisgl_http_requests_total{path=\"none\",code=\"404\"}", 1},
        {"minisgl_http_requests_total{path=\"none\",code=\"400\"}", 1},
        {"minisgl_errors_total{code=\"model_not_found\"}", 1},
        {"minisgl_requests_aborted_total", 1},
        {"minisgl_requests_open", 0},
        {"minisgl_time_to_first_token_seconds_count", 2},
        {"minisgl_time_to_first_token_seconds_bucket{le=\"+Inf\"}", 2},
        {"minisgl_inter_token_seconds_count", 3 + 2},
        {"minisgl_e2e_request_latency_seconds_count", 2},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const double v = value_of(r.body, want[i].sample);
        if (v != want[i].value) fail_msg("%s is %g", want[i].sample, v);
    }
    check_format(r.body);
    response_free(&r);
    server_close(&s);
}

static void test_replicas(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.num_replicas = 2;
    cfg.stop_timeout_ms = 2000;
    server_fixture s;
    server_open(&s, &cfg, true);
    response r = scrape_reported(&s, "minisgl_evictions_total{replica=\"0\",group=\"0\"} 5\n");
    assert_true(value_of(r.body, "minisgl_engine_up{replica=\"0\"}") == 1);
    assert_true(value_of(r.body, "minisgl_engine_up{replica=\"1\"}") == 0);
    assert_true(value_of(r.body, "minisgl_step_seconds_count{replica=\"0\"}") == 3);
    assert_true(value_of(r.body, "minisgl_step_seconds_bucket{replica=\"1\",le=\"+Inf\"}") == 0);
    check_format(r.body);
    response_free(&r);
    server_close(&s);
}

// Whether a sample of this name (name[n]) has the label.
static bool has_label(const char *page, const char *name, size_t n, const char *label, size_t len)
{
    for (const char *s = page; s != NULL && *s != '\0'; s = strchr(s, '\n'), s += s != NULL) {
        if (strncmp(s, name, n) != 0 || s[n] != '{') continue;
        const char *end = strchr(s, '}');
        for (const char *at = s + n; at != NULL && at < end; at = strchr(at + 1, ',')) {
            if (strncmp(at + 1, label, len) == 0 && at[1 + len] == '=') return true;
        }
    }
    return false;
}

static const char WORD[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

static bool is_metric(const char *at)
{
    return strncmp(at, "minisgl_", 8) == 0 || strncmp(at, "process_", 8) == 0;
}

// Every metric of a query has the label, but for those that Prometheus adds.
static int check_label(const char *page, const char *query, const char *label, size_t len)
{
    if (len == 3 && strncmp(label, "job", 3) == 0) return 0;
    for (const char *at = query; *at != '\0';) {
        const size_t n = strspn(at, WORD);
        if (is_metric(at) && !has_label(page, at, n, label, len)) {
            fail_msg("%.*s has no label %.*s", (int)n, at, (int)len, label);
        }
        at += n > 0 ? n : 1;
    }
    return 1;
}

// The labels between `open` and `close`: those that a query groups or chooses by. Returns how many.
static int check_labels(const char *page, const char *query, const char *open, const char *close)
{
    int labels = 0;
    for (const char *at = query; (at = strstr(at, open)) != NULL;) {
        at += strlen(open);
        for (const char *end = at + strcspn(at, close); at < end;) {
            const size_t n = strspn(at, WORD);
            if (n > 0) labels += check_label(page, query, at, n);
            at += n;
            if (*at == '=' || *at == '!') { // a value
                at = strchr(strchr(at, '"') + 1, '"');
            }
            if (at < end) at++;
        }
    }
    return labels;
}

// Labels of all queries below o, and of what is shown of them. Returns how many.
static int check_queries(const char *page, const json_t *o)
{
    int labels = 0;
    size_t i;
    const char *key;
    const json_t *value;
    const char *query = json_string_value(json_object_get(o, "expr"));
    const char *legend = json_string_value(json_object_get(o, "legendFormat"));
    if (query != NULL) {
        labels += check_labels(page, query, "by (", ")");
        labels += check_labels(page, query, "{", "}");
    }
    for (const char *at = legend; query != NULL && at != NULL && (at = strstr(at, "{{")) != NULL;) {
        at += 2;
        labels += check_label(page, query, at, strspn(at, WORD));
    }
    json_object_foreach((json_t *)(uintptr_t)o, key, value)
    {
        labels += check_queries(page, value);
    }
    json_array_foreach(o, i, value)
    {
        labels += check_queries(page, value);
    }
    return labels;
}

// examples/grafana-minisgl.json asks for nothing that is not there.
static void test_dashboard(void **state)
{
    (void)state;
    static char text[1 << 17];
    FILE *file = fopen(MSGL_SOURCE_DIR "/examples/grafana-minisgl.json", "r");
    assert_non_null(file);
    const size_t len = fread(text, 1, sizeof text - 1, file);
    assert_true(len > 0 && len < sizeof text - 1);
    (void)fclose(file);
    json_t *dashboard = json_loadb(text, len, 0, NULL);
    assert_non_null(json_object_get(dashboard, "panels"));
    server_fixture s;
    server_open(&s, NULL, true);
    expect_status(client_request(&s, "POST", "/v1/completions", "{\"model\":\"other\"}"), 404);
    response r = scrape_reported(&s, "minisgl_evictions_total{group=\"0\"} 5\n");
    int names = 0;
    for (const char *at = text; *at != '\0';) {
        const size_t n = strspn(at, WORD);
        if (is_metric(at)) {
            char type[160];
            size_t m = n;
            if (m > 7 && strncmp(at + m - 7, "_bucket", 7) == 0) m -= 7;
            (void)snprintf(type, sizeof type, "# TYPE %.*s ", (int)m, at);
            if (!has(r.body, type)) fail_msg("/metrics has no %.*s", (int)m, at);
            names++;
        }
        at += n > 0 ? n : 1;
    }
    assert_true(names >= 25);
    assert_true(check_queries(r.body, dashboard) >= 25);
    json_decref(dashboard);
    response_free(&r);
    server_close(&s);
}

// Each served name is listed and means the model; answers have the first.
static void test_served_names(void **state)
{
    (void)state;
    static const char *const more[] = {"gpt-4o", "org/other"};
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.more_names = more;
    cfg.num_more_names = 2;
    server_fixture s;
    server_open(&s, &cfg, true);
    response r = client_request(&s, "GET", "/v1/models", NULL);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    const json_t *data = json_object_get(j, "data");
    static const char *const names[] = {"test-model", "gpt-4o", "org/other"};
    assert_int_equal(json_array_size(data), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *id = json_object_get(json_array_get(data, i), "id");
        assert_string_equal(json_string_value(id), names[i]);
    }
    json_decref(j);
    response_free(&r);
    r = client_request(&s, "GET", "/v1/models/org/other", NULL);
    assert_true(r.status == 200 && has(r.body, "\"id\":\"org/other\""));
    response_free(&r);
    expect_status(client_request(&s, "GET", "/v1/models/org", NULL), 404);
    static const char unknown[] = "{\"prompt\":\"x\",\"model\":\"o\"}";
    expect_status(client_request(&s, "POST", "/v1/completions", unknown), 404);
    uint64_t uid;
    const int fd = client_ask(&s, "{\"prompt\":\"x\",\"model\":\"gpt-4o\"}", &uid);
    engine_token(&s, uid, ID_EOS, MSGL_FINISH_STOP);
    r = client_read(fd);
    assert_true(r.status == 200 && has(r.body, "\"model\":\"test-model\""));
    response_free(&r);
    close(fd);
    server_close(&s);
}

static void test_compat(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.metrics_compat = MSGL_METRICS_VLLM;
    server_fixture s;
    server_open(&s, &cfg, true);
    response r = scrape_reported(&s, "minisgl_evictions_total{group=\"0\"} 5\n");
#define VLLM "{model_name=\"test-model\",engine=\"0\"}"
    assert_true(value_of(r.body, "vllm:num_requests_running" VLLM) == 1);
    assert_true(value_of(r.body, "vllm:kv_cache_usage_perc" VLLM) == 0.04);
    assert_true(value_of(r.body, "vllm:prefix_cache_hits_total" VLLM) == 25);
    assert_true(
        has(r.body, "vllm:time_to_first_token_seconds_bucket{model_name=\"test-model\",le="));
    check_format(r.body);
    response_free(&r);
    server_close(&s);
    cfg.metrics_compat = MSGL_METRICS_SGLANG;
    server_open(&s, &cfg, true);
    r = scrape_reported(&s, "minisgl_evictions_total{group=\"0\"} 5\n");
#define SGLANG "{model_name=\"test-model\",engine=\"0\"}"
    assert_true(value_of(r.body, "sglang:num_queue_reqs" SGLANG) == 2);
    assert_true(value_of(r.body, "sglang:token_usage" SGLANG) == 0.04);
    assert_true(value_of(r.body, "sglang:num_used_tokens" SGLANG) == 640);
    assert_true(value_of(r.body, "sglang:cache_hit_rate" SGLANG) == 0.25);
    check_format(r.body);
    response_free(&r);
    server_close(&s);
}

// With keys every path but /health and /ready needs one, also one where nothing is.
static void test_api_key(void **state)
{
    (void)state;
    msgl_front_config cfg = msgl__front_config_default();
    msgl_err err;
    cfg.stop_timeout_ms = 2000;
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "sk-test", 7, &err), 0);
    server_fixture s;
    server_open(&s, &cfg, true); // by /health
    static const char *const paths[] = {"/metrics",         "/v1/models", "/v1",
                                        "/get_server_info", "/nowhere",   "/health/"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char buf[256];
        response r = client_request(&s, "GET", paths[i], NULL);
        if (r.status != 401) fail_msg("%s: %d", paths[i], r.status);
        assert_string_equal(header_of(&r, "WWW-Authenticate", buf), "Bearer");
        assert_null(strstr(r.body, "sk-test"));
        expect_error(&r, 401, "invalid_api_key");
    }
    response refused = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"x\"}");
    expect_error(&refused, 401, "invalid_api_key");
    engine_expect_nothing(&s);
    // A body that none may send is not waited for, nor asked for.
    static const char *const heads[] = {"Content-Length: 20000000\r\n\r\n{",
                                        "Transfer-Encoding: chunked\r\n\r\n",
                                        "Content-Length: 20000000\r\nExpect: 100-continue\r\n\r\n"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const int early = client_open(&s);
        client_send(early, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n");
        client_send(early, heads[i]);
        refused = client_read(early);
        assert_int_equal(strncmp(refused.head, "HTTP/1.1 401 ", 13), 0);
        expect_error(&refused, 401, "invalid_api_key");
        assert_true(client_closed(early));
        close(early);
    }
    const int late = client_open(&s);
    client_send(late, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                      "Authorization: Bearer sk-test\r\n\r\n{");
    usleep(50000);
    client_send(late, "}");
    expect_status(client_read(late), 400); // it has no prompt
    close(late);
    const int fd = client_open(&s);
    client_send(fd, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-test"
                    "\r\n\r\n");
    response r = client_read(fd);
    assert_int_equal(r.status, 200);
    assert_true(value_of(r.body, "minisgl_errors_total{code=\"invalid_api_key\"}") == 10);
    response_free(&r);
    static const char *const others[] = {"X-Api-Key", "Api-Key"}; // Anthropic's and Azure's
    for (int i = 0; i < 2; i++) {
        char request[128];
        (void)snprintf(request, sizeof request,
                       "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n%s: sk-test\r\n\r\n",
                       others[i]);
        client_send(fd, request);
        expect_status(client_read(fd), 200);
    }
    client_send(fd, "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    expect_status(client_read(fd), 204);
    close(fd);
    server_close(&s);
    msgl__keys_free(&cfg.guard.keys);
}

// The id of an answer to a request with these header lines.
static void id_of(const server_fixture *s, const char *method, const char *path,
                  const char *headers, int status, char id[256])
{
    char text[1024];
    const int fd = client_open(s);
    (void)snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", method, path,
                   headers);
    client_send(fd, text);
    response r = client_read(fd);
    assert_int_equal(r.status, status);
    assert_non_null(header_of(&r, "X-Request-Id", id));
    assert_null(strstr(r.head, "secret"));
    response_free(&r);
    close(fd);
}

// Every answer has an id: the request's if it can be shown as it is, else one of its own.
static void test_request_ids(void **state)
{
    (void)state;
    server_fixture s;
    char id[256], other[256], longest[200] = "X-Request-Id: ";
    server_open(&s, NULL, true);
    id_of(&s, "GET", "/health", "x-request-id:  a.B-c_9:z \r\n", 200, id);
    assert_string_equal(id, "a.B-c_9:z");
    id_of(&s, "GET", "/nowhere", "X-Request-Id: one\r\nX-Request-Id: two\r\n", 404, id);
    assert_string_equal(id, "one");
    // Refused by the connection itself, with the head complete.
    id_of(&s, "POST", "/health", "X-Request-Id: big\r\nContent-Length: 99999999999\r\n", 413, id);
    assert_string_equal(id, "big");
    const size_t n = strlen(longest);
    memset(longest + n, 'x', MSGL_HTTP_ID_MAX);
    memcpy(longest + n + MSGL_HTTP_ID_MAX, "\r\n", 3);
    id_of(&s, "GET", "/health", longest, 200, id);
    assert_int_equal(strlen(id), MSGL_HTTP_ID_MAX);
    static const char *const made_up[] = {"", "X-Request-Id:\r\n", "X-Request-Id: a secret\r\n",
                                          "X-Request-Id: secret\"\r\n",
                                          "X-Request-Id: secret\xc3\xa9\r\n"};
    (void)snprintf(other, sizeof other, "-");
    for (size_t i = 0; i < sizeof made_up / sizeof made_up[0]; i++) {
        id_of(&s, "GET", "/health", made_up[i], 200, id);
        assert_int_equal(strlen(id), 24);
        assert_int_equal(strspn(id, "0123456789abcdef"), 24);
        assert_string_not_equal(id, other);
        (void)snprintf(other, sizeof other, "%s", id);
    }
    // A stream's is in its head; the next request of the connection has another.
    uint64_t uid;
    const int fd = client_ask(&s, "{\"prompt\":\"x\",\"stream\":true}", &uid);
    engine_token(&s, uid, ID_EOS, MSGL_FINISH_STOP);
    response r = client_read(fd);
    assert_non_null(header_of(&r, "X-Request-Id", id));
    response_free(&r);
    client_send(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    r = client_read(fd);
    assert_non_null(header_of(&r, "X-Request-Id", other));
    assert_string_not_equal(id, other);
    response_free(&r);
    close(fd);
    server_close(&s);
}

// An answer's Access-Control-Allow-Origin, "" for none; frees nothing but its own.
static void share_of(const server_fixture *s, const char *request, int status, char value[256])
{
    const int fd = client_open(s);
    client_send(fd, request);
    response r = client_read(fd);
    if (r.status != status) fail_msg("%d: %s", r.status, request);
    if (header_of(&r, "Access-Control-Allow-Origin", value) == NULL) value[0] = '\0';
    const bool preflight = has(r.head, "Access-Control-Allow-Headers: Authorization");
    assert_true(preflight == (strncmp(request, "OPTIONS", 7) == 0 && value[0] != '\0'));
    response_free(&r);
    close(fd);
}

// Pages of a listed origin read whatever they are answered, refusals too; those of others do not.
static void test_cors(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://app.example", "http://b.example:3000"},
                             *any = "*";
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.guard.local = true;
    cfg.guard.cors = origins;
    cfg.guard.num_cors = 2;
    server_fixture s;
    char value[256];
    server_open(&s, &cfg, true);
#define ASK(line, origin) line " HTTP/1.1\r\nHost: localhost\r\nOrigin: " origin "\r\n\r\n"
    share_of(&s, ASK("GET /v1/models", "https://app.example"), 200, value);
    assert_string_equal(value, "https://app.example");
    share_of(&s, ASK("GET /nowhere", "http://b.example:3000"), 404, value);
    assert_string_equal(value, "http://b.example:3000");
    share_of(&s, ASK("OPTIONS /v1/completions", "https://app.example"), 204, value);
    assert_string_equal(value, "https://app.example");
    share_of(&s, ASK("POST /v1/completions", "https://app.example"), 415, value);
    assert_string_equal(value, "https://app.example");
    share_of(&s, ASK("GET /v1/models", "https://app.example.evil"), 403, value);
    assert_string_equal(value, "");
    share_of(&s, ASK("GET /v1/models", "http://b.example"), 403, value);
    assert_string_equal(value, "");
    share_of(&s, ASK("GET /v1/models", "http://localhost"), 200, value);
    assert_string_equal(value, "");
    share_of(&s, ASK("OPTIONS /v1/models", "http://localhost"), 204, value);
    assert_string_equal(value, "");
    // What a page's library sends, OpenAI's headers for one, is what it may send; nothing that
    // could be another header's line.
    static const char asks[] = "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: "
                               "https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
                               "Access-Control-Request-Headers: ";
    static const char *const asked[][2] = {
        {"authorization,content-type,openai-organization,x-stainless-os,x-stainless-timeout",
         "authorization,content-type,openai-organization,x-stainless-os,x-stainless-timeout"},
        {"x-a: b", NULL},
        {"", NULL},
    };
    for (int i = 0; i < 3; i++) {
        char request[512], allowed[256];
        (void)snprintf(request, sizeof request, "%s%s\r\n\r\n", asks, asked[i][0]);
        const int fd = client_open(&s);
        client_send(fd, request);
        response r = client_read(fd);
        assert_int_equal(r.status, 204);
        assert_non_null(header_of(&r, "Access-Control-Allow-Headers", allowed));
        assert_string_equal(allowed, asked[i][1] != NULL
                                         ? asked[i][1]
                                         : "Authorization, Content-Type, X-Api-Key, "
                                           "X-Request-Id, Anthropic-Version");
        response_free(&r);
        close(fd);
    }
    server_close(&s);
    cfg.guard.cors = &any;
    cfg.guard.num_cors = 1;
    server_open(&s, &cfg, true);
    share_of(&s, ASK("GET /v1/models", "https://any.example"), 200, value);
    assert_string_equal(value, "*");
    share_of(&s, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, value);
    assert_string_equal(value, "");
    server_close(&s);
}

// Of three choices with a prompt of 2,500 tokens the first is in the engine, and two wait in the
// front: the engine's report has none that waits.
static void test_waiting(void **state)
{
    (void)state;
    enum { LONG = 2500 };
    msgl_strbuf body;
    msgl__strbuf_init(&body, 1 << 20);
    assert_int_equal(msgl__strbuf_adds(&body, "{\"n\":3,\"prompt\":[1"), 0);
    for (int i = 1; i < LONG; i++) assert_int_equal(msgl__strbuf_adds(&body, ",1"), 0);
    assert_int_equal(msgl__strbuf_adds(&body, "]}"), 0);
    msgl_front_config cfg = msgl__front_config_default();
    cfg.metrics_compat = MSGL_METRICS_VLLM;
    server_fixture s;
    server_open(&s, &cfg, true);
    const int fd = client_ask(&s, msgl__strbuf_str(&body), NULL);
    response r = scrape(&s);
    assert_true(value_of(r.body, "minisgl_requests_waiting") == 2);
    response_free(&r);
    close(fd);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    msgl__strbuf_free(&body);
    server_close(&s);
}

// The first token of a choice has no gap before it, also when another choice has had one: of two
// choices with two tokens each there are two gaps.
static void test_gaps(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    uint64_t uid[2];
    const int fd = client_ask(&s, "{\"prompt\":\"x\",\"n\":2}", &uid[0]);
    uid[1] = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    for (int i = 0; i < 2; i++) engine_token(&s, uid[i], 'a', MSGL_FINISH_NONE);
    for (int i = 0; i < 2; i++) engine_token(&s, uid[i], 'b', MSGL_FINISH_LENGTH);
    expect_status(client_read(fd), 200);
    close(fd);
    response r = scrape(&s);
    assert_true(value_of(r.body, "minisgl_time_to_first_token_seconds_count") == 1);
    assert_true(value_of(r.body, "minisgl_inter_token_seconds_count") == 2);
    assert_true(value_of(r.body, "minisgl_inter_token_seconds_sum") < 60);
    response_free(&r);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gaps),           cmocka_unit_test(test_waiting),
        cmocka_unit_test(test_engine_numbers), cmocka_unit_test(test_front_numbers),
        cmocka_unit_test(test_replicas),       cmocka_unit_test(test_dashboard),
        cmocka_unit_test(test_served_names),   cmocka_unit_test(test_compat),
        cmocka_unit_test(test_cors),           cmocka_unit_test(test_api_key),
        cmocka_unit_test(test_request_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
