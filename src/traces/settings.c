// SPDX-License-Identifier: Apache-2.0
#include "traces/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/hex.h"
#include "core/mem.h"

enum { URL_MAX = 1024, MAX_HEADERS = 32, DELAY_MS = 5000, TIMEOUT_MS = 10000 };

// Empty is as good as unset, says the specification.
static const char *variable(const char *name)
{
    const char *v = getenv(name);
    return v == NULL || v[0] == '\0' ? NULL : v;
}

// The one of traces alone before that of all signals; *which: it.
static const char *either(const char *traces, const char *all, const char **which)
{
    const char *v = variable(traces);
    *which = v != NULL ? traces : all;
    return v != NULL ? v : variable(all);
}

// --- the URL ---

// What is behind host and port, or NULL if `url` is no URL that can be posted to.
static const char *path_of(const char *url)
{
    const size_t n = strncasecmp(url, "http://", 7) == 0    ? 7
                     : strncasecmp(url, "https://", 8) == 0 ? 8
                                                            : 0;
    if (n == 0 || strlen(url) > URL_MAX) return NULL;
    for (const char *s = url; *s != '\0'; s++) {
        if ((unsigned char)*s <= ' ' || *s == 0x7f) return NULL;
    }
    const size_t host = strcspn(url + n, "/?#");
    return host == 0 ? NULL : url + n + host;
}

// A URL of `path` behind `base`, or base alone.
static int set_url(msgl_traces_settings *s, const char *name, const char *base, bool complete,
                   msgl_err *err)
{
    if (path_of(base) == NULL) { // it may have a password in it
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s: allowed is a URL of OTLP over HTTP, http://HOST[:PORT][/PATH] or "
                             "https://..., such as http://localhost:4318/v1/traces",
                             name);
    }
    char url[URL_MAX + 16];
    size_t n = strlen(base);
    while (!complete && base[n - 1] == '/') n--;
    (void)snprintf(url, sizeof url, "%.*s%s", (int)n, base, complete ? "" : "/v1/traces");
    s->url = msgl__strdup(url);
    return s->url != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "traces: out of memory");
}

static bool is_off(const msgl_log *log)
{
    const char *which, *v = variable("OTEL_SDK_DISABLED");
    if (v != NULL && strcasecmp(v, "true") == 0) return true;
    v = variable("OTEL_TRACES_EXPORTER");
    if (v != NULL && strcmp(v, "otlp") != 0) return true;
    v = either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL", &which);
    if (v == NULL || strncmp(v, "http/", 5) == 0) return false;
    msgl__log(log, MSGL_LOG_WARN,
              "traces are off: %s is not http/json or http/protobuf, so the endpoint is none that "
              "is posted to; --otlp-traces-endpoint names one",
              which);
    return true;
}

static int read_url(const char *option, const msgl_log *log, msgl_traces_settings *s, msgl_err *err)
{
    if (option != NULL) {
        const char *path = path_of(option);
        const bool complete = path == NULL || (path[0] != '\0' && strcmp(path, "/") != 0);
        return set_url(s, "--otlp-traces-endpoint", option, complete, err);
    }
    static const char of_traces[] = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const char *which, *url = either(of_traces, "OTEL_EXPORTER_OTLP_ENDPOINT", &which);
    if (url == NULL || is_off(log)) return 0;
    return set_url(s, which, url, which == of_traces, err);
}

// --- lists ---

// Of a list's value: %XX are bytes. In place.
static void decode(char *text)
{
    char *to = text;
    for (const char *s = text; *s != '\0'; s++) {
        const int high = *s == '%' ? msgl__hex_digit(s[1]) : -1;
        const int low = high < 0 ? -1 : msgl__hex_digit(s[2]);
        *to++ = low < 0 ? *s : (char)(16 * high + low);
        if (low >= 0) s += 2;
    }
    *to = '\0';
}

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    text[n] = '\0';
    return text;
}

typedef bool (*pair_fn)(msgl_traces_settings *s, const char *key, const char *value);

// "a=b,c=d", as W3C's baggage writes it without properties. False: it is none, or add refused.
static bool read_list(msgl_traces_settings *s, const char *list, pair_fn add)
{
    char *copy = msgl__strdup(list), *rest = copy, *one;
    bool good = copy != NULL;
    while (good && (one = strsep(&rest, ",")) != NULL) {
        char *value = strchr(one, '=');
        if (value == NULL) {
            good = trim(one)[0] == '\0'; // a comma too many
            continue;
        }
        *value++ = '\0';
        value = trim(value);
        decode(value);
        good = add(s, trim(one), value);
    }
    msgl__free(copy);
    return good;
}

static bool add_header(msgl_traces_settings *s, const char *key, const char *value)
{
    static const char token[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "!#$%&'*+-.^_`|~";
    if (key[0] == '\0' || key[strspn(key, token)] != '\0' || s->num_headers == MAX_HEADERS) {
        return false;
    }
    for (const char *c = value; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) return false;
    }
    const size_t n = strlen(key) + strlen(value) + 3;
    char *line = msgl__calloc(1, n);
    if (line == NULL) return false;
    // curl would leave out a header that has no value but for this form.
    (void)snprintf(line, n, value[0] == '\0' ? "%s;%s" : "%s: %s", key, value);
    s->headers[s->num_headers++] = line;
    return true;
}

static bool add_attribute(msgl_traces_settings *s, const char *key, const char *value)
{
    return key[0] != '\0' && json_object_set_new(s->resource, key, json_string(value)) == 0;
}

static int read_headers(msgl_traces_settings *s, msgl_err *err)
{
    const char *which;
    const char *list =
        either("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS", &which);
    s->headers = msgl__calloc(MAX_HEADERS, sizeof *s->headers);
    if (s->headers == NULL) return msgl__err_set(err, MSGL_ENOMEM, "traces: out of memory");
    if (list == NULL || read_list(s, list, add_header)) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "%s: allowed are up to %d headers, name=value,name=value, with %%XX for "
                         "other characters",
                         which, MAX_HEADERS);
}

static int read_resource(const msgl_log *log, msgl_traces_settings *s, msgl_err *err)
{
    char host[256] = "";
    const char *list = variable("OTEL_RESOURCE_ATTRIBUTES"), *name = variable("OTEL_SERVICE_NAME");
    s->resource =
        json_pack("{s:s,s:s}", "service.name", "minisgl", "service.version", MSGL_VERSION);
    if (s->resource == NULL) return msgl__err_set(err, MSGL_ENOMEM, "traces: out of memory");
    if (gethostname(host, sizeof host - 1) == 0) (void)add_attribute(s, "host.name", host);
    if (list != NULL && !read_list(s, list, add_attribute)) {
        msgl__log(log, MSGL_LOG_WARN,
                  "OTEL_RESOURCE_ATTRIBUTES: not all of it is read; allowed is name=value,"
                  "name=value, with %%XX for other characters");
    }
    if (name != NULL && !add_attribute(s, "service.name", name)) {
        msgl__log(log, MSGL_LOG_WARN, "OTEL_SERVICE_NAME is not read: it is not UTF-8");
    }
    return 0;
}

// --- numbers ---

static int milliseconds(const msgl_log *log, const char *traces, const char *all, int preset)
{
    const char *which, *text = either(traces, all, &which);
    char *end;
    if (text == NULL) return preset;
    const long v = strtol(text, &end, 10);
    if (*end == '\0' && v >= 1 && v <= 600000) return (int)v;
    msgl__log(log, MSGL_LOG_WARN, "%s is \"%.40s\"; allowed: 1 to 600000 (ms); it is %d", which,
              text, preset);
    return preset;
}

int msgl__traces_settings(const char *option, const msgl_log *log, msgl_traces_settings *out,
                          msgl_err *err)
{
    *out = (msgl_traces_settings){0};
    int rc = read_url(option, log, out, err);
    if (rc != 0 || out->url == NULL) return rc;
    rc = read_headers(out, err);
    if (rc == 0) rc = read_resource(log, out, err);
    const char *which, *ca = either("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
                                    "OTEL_EXPORTER_OTLP_CERTIFICATE", &which);
    if (rc == 0 && ca != NULL && access(ca, R_OK) != 0) {
        rc = msgl__err_set(err, MSGL_EINVAL, "%s: %.200s cannot be read", which, ca);
    }
    if (rc == 0 && ca != NULL && (out->ca_file = msgl__strdup(ca)) == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "traces: out of memory");
    }
    if (rc != 0) {
        msgl__traces_settings_free(out);
        return rc;
    }
    out->delay_ms =
        milliseconds(log, "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_SCHEDULE_DELAY", DELAY_MS);
    out->timeout_ms = milliseconds(log, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
                                   "OTEL_EXPORTER_OTLP_TIMEOUT", TIMEOUT_MS);
    return 0;
}

void msgl__traces_settings_free(msgl_traces_settings *s)
{
    for (int i = 0; i < s->num_headers; i++) msgl__free(s->headers[i]);
    msgl__free(s->headers);
    msgl__free(s->url);
    msgl__free(s->ca_file);
    json_decref(s->resource);
    *s = (msgl_traces_settings){0};
}
