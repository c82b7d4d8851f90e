// SPDX-License-Identifier: Apache-2.0
#include "http/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool begins(const char *s, size_t len, const char *with)
{
    const size_t n = strlen(with);
    return len >= n && strncasecmp(s, with, n) == 0;
}

// The value of `; name=value` or `; name="value"` in a header's text; NULL: it has no such
// parameter.
static const char *parameter(const char *s, size_t len, const char *name, size_t *value_len)
{
    const size_t n = strlen(name);
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '"') quoted = !quoted;
        if (quoted || s[i] != ';') continue;
        size_t at = i + 1;
        while (at < len && (s[at] == ' ' || s[at] == '\t')) at++;
        if (len - at <= n || !begins(s + at, len - at, name) || s[at + n] != '=') continue;
        at += n + 1;
        const bool quote = at < len && s[at] == '"';
        if (quote) at++;
        size_t end = at;
        while (end < len && (quote ? s[end] != '"' : s[end] != ';' && s[end] != ' ')) end++;
        if (quote && end == len) return NULL;
        *value_len = end - at;
        return s + at;
    }
    return NULL;
}

bool msgl__multipart_boundary(const char *type, size_t len,
                              char boundary[MSGL_MULTIPART_BOUNDARY_MAX + 1])
{
    size_t n = 0;
    if (type == NULL || !begins(type, len, "multipart/form-data")) return false;
    const char *value = parameter(type, len, "boundary", &n);
    if (value == NULL || n == 0 || n > MSGL_MULTIPART_BOUNDARY_MAX) return false;
    if (memchr(value, '\0', n) != NULL) return false;
    memcpy(boundary, value, n);
    boundary[n] = '\0';
    return true;
}

// The next "--boundary" at the beginning of a line, from `at` on; len: there is none.
static size_t find_delimiter(const char *body, size_t len, size_t at, const char *boundary)
{
    const size_t n = strlen(boundary);
    while (at < len) {
        const char *p = memmem(body + at, len - at, boundary, n);
        if (p == NULL) return len;
        const size_t i = (size_t)(p - body);
        const bool dashes = i >= 2 && p[-1] == '-' && p[-2] == '-';
        if (dashes && (i == 2 || (i >= 4 && p[-3] == '\n' && p[-4] == '\r'))) return i - 2;
        at = i + 1;
    }
    return len;
}

// Reads the headers of one part of the form, each of which ends in CR LF.
static void read_headers(const char *s, size_t len, msgl_multipart_field *out)
{
    static const char name[] = "content-disposition:";
    while (len > 0) {
        const char *end = memmem(s, len, "\r\n", 2);
        const size_t n = end == NULL ? len : (size_t)(end - s);
        if (begins(s, n, name)) {
            out->name = parameter(s, n, "name", &out->name_len);
            out->filename = parameter(s, n, "filename", &out->filename_len);
        }
        if (end == NULL) return;
        s += n + 2;
        len -= n + 2;
    }
}

int msgl__multipart_next(const char *body, size_t len, const char *boundary, size_t *at,
                         msgl_multipart_field *out)
{
    *out = (msgl_multipart_field){0};
    size_t i = find_delimiter(body, len, *at, boundary);
    if (i == len) return -1;
    i += 2 + strlen(boundary);
    if (len - i >= 2 && memcmp(body + i, "--", 2) == 0) return 0;
    const char *line = memmem(body + i, len - i, "\r\n", 2);
    if (line == NULL) return -1;
    const size_t headers = (size_t)(line - body); // with the CR LF in front of them
    const char *blank = memmem(body + headers, len - headers, "\r\n\r\n", 4);
    if (blank == NULL) return -1;
    const size_t value = (size_t)(blank - body) + 4;
    // The value of "\r\n\r\n--boundary" is empty: the second CR LF is also the one before the
    // delimiter.
    const size_t end = find_delimiter(body, len, value - 2, boundary);
    if (end == len) return -1;
    if ((size_t)(blank - body) > headers) {
        read_headers(body + headers + 2, (size_t)(blank - body) - headers - 2, out);
    }
    if (out->name == NULL) return -1;
    out->value = body + value;
    out->len = end > value + 2 ? end - 2 - value : 0;
    *at = end;
    return 1;
}
