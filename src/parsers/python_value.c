// SPDX-License-Identifier: Apache-2.0
//
// Keyword arguments of a Python call, whose values are literals, as a JSON object.
#include <stdint.h>
#include <string.h>

#include "core/hex.h"
#include "parsers/internal.h"
#include "utils/json_write.h"

enum { MAX_DEPTH = 64 };

typedef struct reader {
    const char *at, *end;
    msgl_strbuf *out;
    int depth;
} reader;

static void skip_space(reader *r)
{
    while (r->at < r->end && msgl__is_space(*r->at)) r->at++;
}

// Whether c comes next, behind white space; it is read over.
static bool take(reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t word_len(const reader *r)
{
    size_t n = 0;
    while (r->at + n < r->end && (is_letter(r->at[n]) || (n > 0 && is_digit(r->at[n])))) n++;
    return n;
}

static int put_char(reader *r, char c)
{
    return msgl__put_json_byte(r->out, c);
}

// The digits of \xhh, \uhhhh or \Uhhhhhhhh.
static int hex_escape(reader *r, int digits)
{
    uint32_t cp = 0;
    if (r->end - r->at < digits) return MSGL_EFORMAT;
    for (int i = 0; i < digits; i++) {
        const int d = msgl__hex_digit(*r->at++);
        if (d < 0) return MSGL_EFORMAT;
        cp = cp << 4 | (uint32_t)d;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return MSGL_EFORMAT;
    if (cp < 0x80) return put_char(r, (char)cp);
    char text[12];
    return msgl__strbuf_add(r->out, text, msgl__json_escape(cp, true, text));
}

static int escape(reader *r)
{
    static const char letters[] = "nrtbfav0", values[] = "\n\r\t\b\f\a\v\0";
    const char c = *r->at++;
    switch (c) {
    case '\n': return 0; // a line that goes on
    case '\\':
    case '"':
    case '\'': return put_char(r, c);
    case 'x': return hex_escape(r, 2);
    case 'u': return hex_escape(r, 4);
    case 'U': return hex_escape(r, 8);
    default: break;
    }
    const char *known = c == '\0' ? NULL : strchr(letters, c);
    if (known != NULL) return put_char(r, values[known - letters]);
    const int rc = put_char(r, '\\'); // others mean themselves
    return rc == 0 ? put_char(r, c) : rc;
}

static int string(reader *r)
{
    const char quote = *r->at++;
    int rc = msgl__strbuf_addc(r->out, '"');
    while (rc == 0 && r->at < r->end && *r->at != quote) {
        const char c = *r->at++;
        if (c == '\\' && r->at == r->end) return MSGL_EFORMAT;
        rc = c == '\\' ? escape(r) : put_char(r, c);
    }
    if (rc == 0 && r->at == r->end) return MSGL_EFORMAT;
    r->at++;
    return rc == 0 ? msgl__strbuf_addc(r->out, '"') : rc;
}

static size_t digits(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && is_digit(s[i])) i++;
    return i;
}

// Numbers that are ones of JSON, too.
static int number(reader *r)
{
    const char *const s = r->at;
    const size_t n = (size_t)(r->end - s);
    size_t i = s[0] == '-', part = digits(s + i, n - i);
    if (part == 0 || (part > 1 && s[i] == '0')) return MSGL_EFORMAT;
    i += part;
    if (i < n && s[i] == '.') {
        part = digits(s + i + 1, n - i - 1);
        if (part == 0) return MSGL_EFORMAT;
        i += 1 + part;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        const size_t sign = i + 1 < n && (s[i + 1] == '-' || s[i + 1] == '+');
        part = digits(s + i + 1 + sign, n - i - 1 - sign);
        if (part == 0) return MSGL_EFORMAT;
        i += 1 + sign + part;
    }
    r->at += i;
    return msgl__strbuf_add(r->out, s, i);
}

static int word(reader *r)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const size_t n = word_len(r);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i][0]) != n || memcmp(words[i][0], r->at, n) != 0) continue;
        r->at += n;
        return msgl__strbuf_adds(r->out, words[i][1]);
    }
    return MSGL_EFORMAT;
}

static int value(reader *r);

// What is between brackets, up to `close`; pairs: of a dict.
static int items(reader *r, char close, bool pairs)
{
    if (++r->depth > MAX_DEPTH) return MSGL_EFORMAT;
    r->at++;
    int rc = msgl__strbuf_addc(r->out, pairs ? '{' : '[');
    for (bool first = true; rc == 0 && !take(r, close); first = false) {
        if (!first && !take(r, ',')) return MSGL_EFORMAT;
        if (!first && take(r, close)) break; // a comma behind the last one
        if (!first) rc = msgl__strbuf_adds(r->out, ", ");
        skip_space(r);
        const bool is_string = r->at < r->end && (*r->at == '"' || *r->at == '\'');
        if (pairs && !is_string) return MSGL_EFORMAT;
        if (rc == 0) rc = value(r);
        if (rc != 0 || !pairs) continue;
        if (!take(r, ':')) return MSGL_EFORMAT;
        rc = msgl__strbuf_adds(r->out, ": ");
        if (rc == 0) rc = value(r);
    }
    r->depth--;
    return rc == 0 ? msgl__strbuf_addc(r->out, pairs ? '}' : ']') : rc;
}

static int value(reader *r)
{
    skip_space(r);
    if (r->at == r->end) return MSGL_EFORMAT;
    switch (*r->at) {
    case '"':
    case '\'': return string(r);
    case '[': return items(r, ']', false);
    case '(': return items(r, ')', false);
    case '{': return items(r, '}', true);
    default: return is_letter(*r->at) ? word(r) : number(r);
    }
}

static int arguments(reader *r)
{
    int rc = msgl__strbuf_addc(r->out, '{');
    for (bool first = true; rc == 0; first = false) {
        skip_space(r);
        if (r->at == r->end) break;
        if (!first && !take(r, ',')) return MSGL_EFORMAT;
        skip_space(r);
        if (r->at == r->end) break; // a comma behind the last one
        const size_t n = word_len(r);
        if (n == 0) return MSGL_EFORMAT;
        if (!first) rc = msgl__strbuf_adds(r->out, ", ");
        if (rc == 0) rc = msgl__put_json_string(r->out, r->at, n);
        r->at += n;
        if (!take(r, '=')) return MSGL_EFORMAT;
        if (rc == 0) rc = msgl__strbuf_adds(r->out, ": ");
        if (rc == 0) rc = value(r);
    }
    return rc == 0 ? msgl__strbuf_addc(r->out, '}') : rc;
}

// With what `read` makes of the text, or as it was.
static int put(const char *text, size_t len, msgl_strbuf *out, int (*read)(reader *))
{
    const size_t before = out->len;
    reader r = {.at = text, .end = text + len, .out = out};
    int rc = read(&r);
    if (rc == 0 && r.at != r.end) rc = MSGL_EFORMAT;
    if (rc != 0) {
        out->len = before;
        if (out->data != NULL) out->data[before] = '\0';
    }
    return rc;
}

int msgl__python_arguments(const char *text, size_t len, msgl_strbuf *out)
{
    return put(text, len, out, arguments);
}

int msgl__python_value(const char *text, size_t len, msgl_strbuf *out)
{
    return put(text, len, out, value);
}
