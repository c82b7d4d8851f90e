// SPDX-License-Identifier: Apache-2.0
#include "traces/span.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "utils/json_write.h"

// opentelemetry/proto/trace/v1/trace.proto; in JSON enumerations are numbers.
enum { KIND_INTERNAL = 1, KIND_SERVER = 2, STATUS_ERROR = 2 };
enum { FLAG_SAMPLED = 1, FLAG_KNOWS_REMOTE = 0x100, FLAG_IS_REMOTE = 0x200 };

static const char *const FINISHES[MSGL_SPAN_NUM_FINISHES] = {"stop", "length", "tool_calls",
                                                             "abort"};

#define END(text) ((text)[sizeof(text) - 1] = '\0')

void msgl__span_check(msgl_span *s)
{
    END(s->path);
    END(s->operation);
    END(s->request_id);
    END(s->response_id);
    END(s->error);
    if (s->end_ns < s->first_ns || s->first_ns < s->sent_ns) s->first_ns = 0;
    if (s->end_ns < s->sent_ns) s->sent_ns = 0;
    if (s->num_finishes < 0) s->num_finishes = 0;
    if (s->num_finishes > MSGL_SPAN_CHOICES) s->num_finishes = MSGL_SPAN_CHOICES;
    for (int i = 0; i < s->num_finishes; i++) {
        if (s->finishes[i] >= MSGL_SPAN_NUM_FINISHES) s->finishes[i] = MSGL_SPAN_ABORT;
    }
}

// --- phases ---

typedef struct phase {
    const char *name;
    uint64_t begin, end; // since the request's arrival
} phase;

enum { MAX_PHASES = 3 };

static int phases_of(const msgl_span *s, phase out[MAX_PHASES])
{
    int n = 0;
    if (s->sent_ns == 0) return 0;
    out[n++] = (phase){"queue", 0, s->sent_ns};
    out[n++] = (phase){"prefill", s->sent_ns, s->first_ns == 0 ? s->end_ns : s->first_ns};
    if (s->first_ns != 0) out[n++] = (phase){"decode", s->first_ns, s->end_ns};
    return n;
}

int msgl__span_count(const msgl_span *s)
{
    phase phases[MAX_PHASES];
    return 1 + phases_of(s, phases);
}

// --- JSON ---

// value: taken; NULL (no memory, or a text that is no UTF-8): the attribute is left out.
static void put(json_t *list, const char *key, const char *type, json_t *value)
{
    if (value == NULL) return;
    json_t *one = json_pack("{s:s,s:{s:o}}", "key", key, "value", type, value);
    if (one != NULL) (void)json_array_append_new(list, one);
}

static void put_text(json_t *list, const char *key, const char *text)
{
    if (text[0] != '\0') put(list, key, "stringValue", json_string(text));
}

// 64-bit numbers are decimal strings in protobuf's JSON.
static json_t *number(uint64_t n)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, n);
    return json_string(text);
}

static void put_int(json_t *list, const char *key, int64_t n)
{
    if (n >= 0) put(list, key, "intValue", number((uint64_t)n));
}

// As many digits as a float has: 0.7 is 0.7.
static void put_float(json_t *list, const char *key, float v)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.7g", (double)v);
    put(list, key, "doubleValue", json_real(strtod(text, NULL)));
}

static void put_seconds(json_t *list, const char *key, uint64_t ns)
{
    put(list, key, "doubleValue", json_real((double)ns / 1e9));
}

static json_t *hex(const uint8_t *id, size_t n)
{
    char text[33];
    for (size_t i = 0; i < n; i++) (void)snprintf(text + 2 * i, 3, "%02x", id[i]);
    return json_string(text);
}

static void put_finishes(json_t *list, const msgl_span *s)
{
    if (s->num_finishes == 0) return;
    json_t *values = json_array();
    for (int i = 0; i < s->num_finishes && values != NULL; i++) {
        (void)json_array_append_new(values,
                                    json_pack("{s:s}", "stringValue", FINISHES[s->finishes[i]]));
    }
    put(list, "gen_ai.response.finish_reasons", "arrayValue",
        values == NULL ? NULL : json_pack("{s:o}", "values", values));
}

// OpenTelemetry's names of generative AI, and vLLM's where those have none.
static void put_generation(json_t *list, const msgl_span *s)
{
    if (s->choices != 1) put_int(list, "gen_ai.request.choice.count", s->choices);
    put_int(list, "gen_ai.request.n", s->choices);
    put(list, "gen_ai.request.stream", "boolValue", json_boolean(s->stream));
    if (s->sampled) {
        put_int(list, "gen_ai.request.max_tokens", s->max_tokens);
        put_float(list, "gen_ai.request.temperature", s->temperature);
        put_float(list, "gen_ai.request.top_p", s->top_p);
        if (s->top_k > 0) put_int(list, "gen_ai.request.top_k", s->top_k);
        put_float(list, "gen_ai.request.frequency_penalty", s->frequency_penalty);
        put_float(list, "gen_ai.request.presence_penalty", s->presence_penalty);
    }
    put_int(list, "gen_ai.usage.input_tokens", s->input_tokens);
    put_int(list, "gen_ai.usage.cache_read.input_tokens", s->cached_tokens);
    if (s->sampled) {
        put_int(list, "gen_ai.usage.output_tokens", s->output_tokens);
        put_int(list, "gen_ai.usage.reasoning.output_tokens", s->reasoning_tokens);
    }
    put_finishes(list, s);
}

static void put_latencies(json_t *list, const msgl_span *s)
{
    put_seconds(list, "gen_ai.latency.e2e", s->end_ns);
    if (s->sent_ns == 0) return;
    put_seconds(list, "gen_ai.latency.time_in_queue", s->sent_ns);
    put_seconds(list, "gen_ai.latency.time_in_model_inference", s->end_ns - s->sent_ns);
    if (s->first_ns == 0) return;
    put_seconds(list, "gen_ai.latency.time_to_first_token", s->first_ns);
    put_seconds(list, "gen_ai.latency.time_in_model_prefill", s->first_ns - s->sent_ns);
    put_seconds(list, "gen_ai.latency.time_in_model_decode", s->end_ns - s->first_ns);
}

static json_t *attributes_of(const msgl_span_origin *from, const msgl_span *s)
{
    json_t *list = json_array();
    if (list == NULL) return NULL;
    put_text(list, "http.request.method", "POST");
    put_text(list, "http.route", s->path);
    put_text(list, "url.path", s->path);
    put_text(list, "url.scheme", from->scheme);
    if (s->status != 0) put_int(list, "http.response.status_code", s->status);
    put_text(list, "error.type", s->error);
    if (s->client_gone) put(list, "minisgl.client_gone", "boolValue", json_true());
    put_text(list, "gen_ai.request.id", s->request_id);
    if (s->operation[0] != '\0') {
        put_text(list, "gen_ai.operation.name", s->operation);
        put_text(list, "gen_ai.provider.name", "minisgl");
        put_text(list, "gen_ai.request.model", from->model);
        put_text(list, "gen_ai.response.model", from->model);
        put_text(list, "gen_ai.response.id", s->response_id);
    }
    if (s->read) put_generation(list, s);
    put_latencies(list, s);
    return list;
}

// OpenTelemetry's HTTP conventions: what the client did wrong is no error of a server's span.
static bool is_error(const msgl_span *s)
{
    return s->error[0] != '\0' && (s->status < 400 || s->status >= 500);
}

static json_t *server_span(const msgl_span_origin *from, const msgl_span *s)
{
    char name[56];
    (void)snprintf(name, sizeof name, "POST %s", s->path);
    json_t *o =
        json_pack("{s:o,s:o,s:s,s:i,s:o,s:o,s:o,s:i}", "traceId", hex(s->trace_id, 16), "spanId",
                  hex(s->span_id, 8), "name", name, "kind", KIND_SERVER, "startTimeUnixNano",
                  number(s->start_ns), "endTimeUnixNano", number(s->start_ns + s->end_ns),
                  "attributes", attributes_of(from, s), "flags",
                  FLAG_SAMPLED | FLAG_KNOWS_REMOTE | (s->has_parent ? FLAG_IS_REMOTE : 0));
    if (o == NULL) return NULL;
    if (s->has_parent) (void)json_object_set_new(o, "parentSpanId", hex(s->parent_id, 8));
    if (is_error(s)) {
        (void)json_object_set_new(
            o, "status", json_pack("{s:i,s:s}", "code", STATUS_ERROR, "message", s->error));
    }
    return o;
}

static json_t *phase_span(const msgl_span *s, const phase *p, int index)
{
    uint8_t id[8]; // as random as its parent's, and the same when it is sent again
    memcpy(id, s->span_id, sizeof id);
    id[0] ^= (uint8_t)(0x40 + index);
    return json_pack("{s:o,s:o,s:o,s:s,s:i,s:o,s:o,s:i}", "traceId", hex(s->trace_id, 16), "spanId",
                     hex(id, 8), "parentSpanId", hex(s->span_id, 8), "name", p->name, "kind",
                     KIND_INTERNAL, "startTimeUnixNano", number(s->start_ns + p->begin),
                     "endTimeUnixNano", number(s->start_ns + p->end), "flags",
                     FLAG_SAMPLED | FLAG_KNOWS_REMOTE);
}

static void put_spans(json_t *list, const msgl_span_origin *from, const msgl_span *s)
{
    phase phases[MAX_PHASES];
    const int n = phases_of(s, phases);
    (void)json_array_append_new(list, server_span(from, s));
    for (int i = 0; i < n; i++) (void)json_array_append_new(list, phase_span(s, &phases[i], i));
}

char *msgl__spans_encode(const msgl_span_origin *from, const msgl_span *spans, int n)
{
    json_t *list = json_array(), *resource = json_array();
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)from->resource, key, value)
    {
        if (resource != NULL) put_text(resource, key, json_string_value(value));
    }
    for (int i = 0; i < n && list != NULL; i++) put_spans(list, from, &spans[i]);
    json_t *all = json_pack("{s:[{s:{s:o},s:[{s:{s:s,s:s},s:o}]}]}", "resourceSpans", "resource",
                            "attributes", resource, "scopeSpans", "scope", "name", "minisgl",
                            "version", MSGL_VERSION, "spans", list);
    char *text = all == NULL ? NULL : msgl__json_text(all, JSON_COMPACT);
    json_decref(all);
    return text;
}
