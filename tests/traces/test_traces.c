// SPDX-License-Identifier: Apache-2.0
//
// Traces without a server: which traceparent headers are read, what of the environment says where
// spans go, and what a batch looks like. Collectors are in tests/e2e/traces.py.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "traces/context.h"
#include "traces/exporter.h"
#include "traces/settings.h"

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"

static void test_context(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good, sampled;
    } all[] = {
        {"00-" TRACE "-" SPAN "-01", true, true},
        {"00-" TRACE "-" SPAN "-00", true, false},
        {"00-" TRACE "-" SPAN "-ff", true, true}, // flags that are not known yet
        {"00-" TRACE "-" SPAN "-02", true, false},
        {"cc-" TRACE "-" SPAN "-01", true, true}, // so is the version
        {"cc-" TRACE "-" SPAN "-01-what", true, true},
        {"cc-" TRACE "-" SPAN "-01.what", false, false},
        {"00-" TRACE "-" SPAN "-01-", false, false},
        {"00-" TRACE "-" SPAN "-1", false, false},
        {"00-" TRACE "-" SPAN "-0x", false, false},
        {"00-" TRACE "-" SPAN "-0A", false, false},
        {"ff-" TRACE "-" SPAN "-01", false, false},
        {"0-" TRACE "-" SPAN "-01", false, false},
        {"00_" TRACE "-" SPAN "-01", false, false},
        {"00-" TRACE "_" SPAN "-01", false, false},
        {"00-0AF7651916cd43dd8448eb211c80319c-" SPAN "-01", false, false},
        {"00-00000000000000000000000000000000-" SPAN "-01", false, false},
        {"00-" TRACE "-0000000000000000-01", false, false},
        {"", false, false},
    };
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        // Without a NUL behind it, so that a sanitizer sees what is read too far.
        const size_t n = strlen(all[i].text);
        char *text = malloc(n + (n == 0));
        assert_non_null(text);
        memcpy(text, all[i].text, n);
        msgl_trace_context c = {.sampled = false};
        const bool good = msgl__trace_context_read(text, n, &c);
        free(text);
        if (good != all[i].good || c.sampled != all[i].sampled) fail_msg("%s", all[i].text);
        if (!good) continue;
        assert_int_equal(c.trace_id[0], 0x0a);
        assert_int_equal(c.trace_id[15], 0x9c);
        assert_int_equal(c.span_id[7], 0x31);
    }
    uint8_t a[16], b[16];
    msgl__trace_id_make(a, 16);
    msgl__trace_id_make(b, 16);
    assert_memory_not_equal(a, b, 16);
}

static const char *const VARIABLES[] = {
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",  "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",        "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_EXPORTER_OTLP_TIMEOUT",  "OTEL_EXPORTER_OTLP_CERTIFICATE"};

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(VARIABLES); i++) unsetenv(VARIABLES[i]);
    return 0;
}

// What is posted to; "": nothing.
static void expect_url(const char *option, const char *url)
{
    msgl_traces_settings s;
    msgl_err err;
    if (msgl__traces_settings(option, NULL, &s, &err) != 0) fail_msg("%s", err.text);
    assert_string_equal(s.url == NULL ? "" : s.url, url);
    msgl__traces_settings_free(&s);
}

static void test_urls(void **state)
{
    (void)state;
    expect_url(NULL, "");
    expect_url("http://h:4318", "http://h:4318/v1/traces");
    expect_url("HTTPS://[::1]:4318/", "HTTPS://[::1]:4318/v1/traces");
    expect_url("http://h/own", "http://h/own");
    setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:4318/base/", 1);
    expect_url(NULL, "http://h:4318/base/v1/traces");
    setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", 1); // as good as none
    expect_url(NULL, "http://h:4318/base/v1/traces");
    setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1", 1); // as it is
    expect_url(NULL, "http://t:1");
    expect_url("http://h:4318", "http://h:4318/v1/traces");
    setenv("OTEL_SDK_DISABLED", "TRUE", 1);
    expect_url(NULL, "");
    expect_url("http://h/own", "http://h/own"); // whoever says so means it
    unsetenv("OTEL_SDK_DISABLED");
    setenv("OTEL_TRACES_EXPORTER", "none", 1);
    expect_url(NULL, "");
    unsetenv("OTEL_TRACES_EXPORTER");
    setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", 1);
    expect_url(NULL, "");
    setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", 1);
    expect_url(NULL, "http://t:1");
    static const char *const bad[] = {"",          "h:4318",      "ftp://h",   "http://",
                                      "http:///p", "http://h/ p", "http://h\n"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        msgl_traces_settings s;
        msgl_err err;
        assert_int_equal(msgl__traces_settings(bad[i], NULL, &s, &err), MSGL_EINVAL);
        assert_non_null(strstr(err.text, "--otlp-traces-endpoint: allowed is a URL"));
        assert_null(s.url);
    }
}

static const char *attribute(const msgl_traces_settings *s, const char *key)
{
    const char *v = json_string_value(json_object_get(s->resource, key));
    return v == NULL ? "" : v;
}

static void test_environment(void **state)
{
    (void)state;
    msgl_traces_settings s;
    msgl_err err;
    setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=1", 1);
    setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", " b = two%20words , c=x=y,,d= ", 1);
    setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=first,k=%C3%A9", 1);
    assert_int_equal(msgl__traces_settings("http://h", NULL, &s, &err), 0);
    assert_int_equal(s.num_headers, 3); // those of all signals do not count beside them
    assert_string_equal(s.headers[0], "b: two words");
    assert_string_equal(s.headers[1], "c: x=y");
    assert_string_equal(s.headers[2], "d;");
    assert_string_equal(attribute(&s, "service.name"), "first");
    assert_string_equal(attribute(&s, "k"), "\xc3\xa9");
    assert_int_equal(s.delay_ms, 5000);
    assert_int_equal(s.timeout_ms, 10000);
    msgl__traces_settings_free(&s);
    unsetenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS");
    setenv("OTEL_SERVICE_NAME", "second", 1);
    setenv("OTEL_BSP_SCHEDULE_DELAY", "20", 1);
    setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "x", 1); // a line of the log
    setenv("OTEL_RESOURCE_ATTRIBUTES", "no", 1);
    assert_int_equal(msgl__traces_settings("http://h", NULL, &s, &err), 0);
    assert_int_equal(s.num_headers, 1);
    assert_string_equal(attribute(&s, "service.name"), "second");
    assert_int_equal(s.delay_ms, 20);
    assert_int_equal(s.timeout_ms, 10000);
    msgl__traces_settings_free(&s);
    static const char *const bad[] = {"secret", "=secret", "a b=secret", "a=secret%0d%0ab: c"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        setenv("OTEL_EXPORTER_OTLP_HEADERS", bad[i], 1);
        assert_int_equal(msgl__traces_settings("http://h", NULL, &s, &err), MSGL_EINVAL);
        assert_non_null(strstr(err.text, "OTEL_EXPORTER_OTLP_HEADERS: allowed"));
        assert_null(strstr(err.text, "secret"));
    }
    unsetenv("OTEL_EXPORTER_OTLP_HEADERS");
    setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", 1);
    assert_int_equal(msgl__traces_settings("http://h", NULL, &s, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "/nowhere/ca.pem cannot be read"));
}

static const json_t *at(const json_t *o, const char *key, size_t i)
{
    const json_t *list = json_object_get(o, key);
    assert_true(json_is_array(list) && i < json_array_size(list));
    return json_array_get(list, i);
}

static const char *text_at(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    if (text == NULL) fail_msg("no text %s", key);
    return text;
}

// The only member of an attribute's value.
static const json_t *value_at(const json_t *span, const char *key, const char *type)
{
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(span, "attributes"), i, one)
    {
        if (strcmp(text_at(one, "key"), key) == 0) {
            return json_object_get(json_object_get(one, "value"), type);
        }
    }
    return NULL;
}

static void test_encode(void **state)
{
    (void)state;
    json_t *resource = json_pack("{s:s}", "service.name", "s");
    const msgl_span_origin from = {"model", "http", resource};
    msgl_span spans[2] = {{.trace_id = {[15] = 0x1f},
                           .span_id = {[0] = 0xa0},
                           .parent_id = {[7] = 1},
                           .has_parent = true,
                           .start_ns = UINT64_C(1700000000123456789),
                           .sent_ns = 10,
                           .first_ns = 30,
                           .end_ns = 100,
                           .path = "/v1/completions",
                           .operation = "text_completion",
                           .status = 200,
                           .error = "engine_failed", // behind what was streamed
                           .read = true,
                           .sampled = true,
                           .choices = 1,
                           .temperature = 0.7f,
                           .input_tokens = INT64_C(9007199254740993),
                           .num_finishes = 2,
                           .finishes = {MSGL_SPAN_STOP, MSGL_SPAN_TOOL_CALLS}},
                          {.path = "/tokenize", .status = 429, .error = "queue_full"}};
    assert_int_equal(msgl__span_count(&spans[0]), 4);
    assert_int_equal(msgl__span_count(&spans[1]), 1);
    char *text = msgl__spans_encode(&from, spans, 2);
    assert_non_null(text);
    json_t *all = json_loads(text, 0, NULL);
    free(text);
    const json_t *scope = at(at(all, "resourceSpans", 0), "scopeSpans", 0);
    assert_int_equal(json_array_size(json_object_get(scope, "spans")), 5);
    const json_t *s = at(scope, "spans", 0);
    assert_string_equal(text_at(s, "traceId"), "0000000000000000000000000000001f");
    assert_string_equal(text_at(s, "spanId"), "a000000000000000");
    assert_string_equal(text_at(s, "parentSpanId"), "0000000000000001");
    assert_string_equal(text_at(s, "startTimeUnixNano"), "1700000000123456789");
    assert_string_equal(text_at(s, "endTimeUnixNano"), "1700000000123456889");
    assert_int_equal(json_integer_value(json_object_get(s, "kind")), 2);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(s, "status"), "code")), 2);
    assert_string_equal(json_string_value(value_at(s, "gen_ai.usage.input_tokens", "intValue")),
                        "9007199254740993");
    assert_true(json_real_value(value_at(s, "gen_ai.request.temperature", "doubleValue")) == 0.7);
    assert_null(value_at(s, "gen_ai.request.choice.count", "intValue")); // 1 is understood
    const json_t *finishes = value_at(s, "gen_ai.response.finish_reasons", "arrayValue");
    assert_string_equal(text_at(at(finishes, "values", 1), "stringValue"), "tool_calls");
    assert_string_equal(text_at(at(scope, "spans", 2), "name"), "prefill");
    assert_string_equal(text_at(at(scope, "spans", 2), "parentSpanId"), "a000000000000000");
    assert_string_equal(text_at(at(scope, "spans", 3), "startTimeUnixNano"), "1700000000123456819");
    s = at(scope, "spans", 4);
    assert_null(json_object_get(s, "status")); // the client's fault
    assert_null(json_object_get(s, "parentSpanId"));
    assert_string_equal(json_string_value(value_at(s, "error.type", "stringValue")), "queue_full");
    json_decref(all);
    json_decref(resource);
}

// Whatever bytes a packet has, it can be encoded.
static void test_packets(void **state)
{
    (void)state;
    json_t *resource = json_object();
    const msgl_span_origin from = {"model", "http", resource};
    for (int fill = 0; fill < 256; fill++) {
        union {
            unsigned char bytes[sizeof(msgl_span)];
            msgl_span span;
        } u;
        memset(u.bytes, fill, sizeof u.bytes);
        msgl__span_check(&u.span);
        char *text = msgl__spans_encode(&from, &u.span, 1);
        assert_non_null(text);
        json_t *all = json_loads(text, 0, NULL);
        assert_non_null(all);
        json_decref(all);
        free(text);
    }
    json_decref(resource);
}

// A socket that nobody reads is full at some time; then spans are dropped, and counted.
static void test_nobody_reads(void **state)
{
    (void)state;
    int fd[2];
    msgl_traces_counts *counts;
    msgl_err err;
    assert_int_equal(msgl__traces_open(fd, &counts, &err), 0);
    const msgl_traces t = {fd[0], counts};
    const msgl_span s = {.sent_ns = 1, .first_ns = 2, .end_ns = 3};
    for (int i = 0; i < 20000; i++) msgl__traces_send(&t, &s);
    assert_true(counts->dropped > 4 && counts->dropped % 4 == 0);
    close(fd[1]);
    const uint64_t before = counts->dropped;
    msgl__traces_send(&t, &s); // without SIGPIPE
    assert_int_equal(counts->dropped, before + 4);
    close(fd[0]);
    msgl__traces_counts_free(counts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_context),
                                       cmocka_unit_test_setup(test_urls, clear),
                                       cmocka_unit_test_setup(test_environment, clear),
                                       cmocka_unit_test(test_encode),
                                       cmocka_unit_test(test_packets),
                                       cmocka_unit_test(test_nobody_reads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
