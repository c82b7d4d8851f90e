// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/json_scan.h"

#include <string.h>

#include "utils/json.h"

static void skip_space(msgl_jscan *s)
{
    while (s->i < s->end) {
        const char c = s->text[s->i];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
        s->i++;
    }
}

char msgl__jscan_peek(msgl_jscan *s)
{
    skip_space(s);
    return s->i < s->end ? s->text[s->i] : '\0';
}

int msgl__jscan_take(msgl_jscan *s, char c)
{
    if (msgl__jscan_peek(s) != c) return 0;
    s->i++;
    return 1;
}

int msgl__jscan_skip_string(msgl_jscan *s, size_t *raw)
{
    if (!msgl__jscan_take(s, '"')) return 0;
    const size_t start = s->i;
    while (s->i < s->end && s->text[s->i] != '"') s->i += s->text[s->i] == '\\' ? 2 : 1;
    if (s->i >= s->end) return 0;
    *raw = s->i - start;
    s->i++;
    return 1;
}

int msgl__jscan_string(msgl_jscan *s, msgl_strbuf *out)
{
    size_t raw;
    if (!msgl__jscan_skip_string(s, &raw)) return 0;
    const char *p = s->text + s->i - 1 - raw;
    for (size_t i = 0; i < raw;) {
        size_t plain = i;
        while (plain < raw && p[plain] != '\\' && (unsigned char)p[plain] >= 0x20) plain++;
        int rc = msgl__strbuf_add(out, p + i, plain - i);
        if (rc != 0) return rc;
        i = plain;
        if (i == raw) break;
        if (p[i] != '\\' || i + 1 >= raw) return 0; // a control character
        char bytes[4];
        size_t used;
        const size_t n = msgl__json_unescape(p + i + 1, raw - i - 1, bytes, &used);
        if (n == 0) return 0;
        rc = msgl__strbuf_add(out, bytes, n);
        if (rc != 0) return rc;
        i += 1 + used;
    }
    return 1;
}

int msgl__jscan_int(msgl_jscan *s, int64_t *out)
{
    const int negative = msgl__jscan_take(s, '-');
    const size_t start = s->i;
    int64_t v = 0;
    while (s->i < s->end && s->text[s->i] >= '0' && s->text[s->i] <= '9' && s->i - start < 16) {
        v = v * 10 + (s->text[s->i++] - '0');
    }
    const size_t digits = s->i - start;
    if (digits == 0 || digits > 15 || (digits > 1 && s->text[start] == '0')) return 0;
    const char next = s->i < s->end ? s->text[s->i] : ' ';
    if (next == '.' || next == 'e' || next == 'E') return 0;
    *out = negative ? -v : v;
    return 1;
}

// ---- finding the two values ----

// Takes any value, checking no more than where it ends. 1 or 0.
static int skip_value(msgl_jscan *s)
{
    size_t depth = 0, raw;
    do {
        const char c = msgl__jscan_peek(s);
        if (c == '"') {
            if (!msgl__jscan_skip_string(s, &raw)) return 0;
        } else if (c == '{' || c == '[') {
            depth++;
            s->i++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return 0;
            depth--;
            s->i++;
        } else if (c == ',' || c == ':') {
            if (depth == 0) return 0;
            s->i++;
        } else if (c == '\0') {
            return 0;
        } else { // a number or a word
            while (s->i < s->end && strchr(",:{}[]\" \n\r\t", s->text[s->i]) == NULL) s->i++;
        }
    } while (depth > 0);
    return 1;
}

size_t msgl__jscan_count(const msgl_jspan *array)
{
    msgl_jscan s = msgl__jscan(array);
    size_t n = 0;
    if (!msgl__jscan_take(&s, '[') || msgl__jscan_peek(&s) == ']') return 0;
    do {
        if (!skip_value(&s)) break;
        n++;
    } while (msgl__jscan_take(&s, ','));
    return n;
}

// The value of a member of the object at *r; the first one of that name.
static int find_member(const msgl_jspan *r, const char *key, msgl_jspan *out)
{
    msgl_jscan s = msgl__jscan(r);
    if (!msgl__jscan_take(&s, '{')) return 0;
    while (msgl__jscan_peek(&s) == '"') {
        size_t raw;
        if (!msgl__jscan_skip_string(&s, &raw)) return 0;
        const char *name = s.text + s.i - 1 - raw;
        const int found = raw == strlen(key) && memcmp(name, key, raw) == 0;
        if (!msgl__jscan_take(&s, ':')) return 0;
        (void)msgl__jscan_peek(&s); // to the start of the value
        const size_t start = s.i;
        if (!skip_value(&s)) return 0;
        if (found) {
            *out = (msgl_jspan){s.text, start, s.i};
            return 1;
        }
        if (!msgl__jscan_take(&s, ',')) break;
    }
    return 0;
}

// The value is replaced by null and its newlines, so that lines keep their numbers.
static int leave_out(const msgl_jspan *r, size_t *copied, msgl_strbuf *rest)
{
    int rc = msgl__strbuf_add(rest, r->text + *copied, r->start - *copied);
    if (rc == 0) rc = msgl__strbuf_adds(rest, "null");
    for (size_t i = r->start; i < r->end && rc == 0; i++) {
        if (r->text[i] == '\n') rc = msgl__strbuf_addc(rest, '\n');
    }
    *copied = r->end;
    return rc;
}

int msgl__jscan_split(const char *text, size_t len, msgl_jspan *vocab, msgl_jspan *merges,
                      msgl_strbuf *rest)
{
    const msgl_jspan all = {text, 0, len};
    msgl_jspan model;
    *vocab = *merges = (msgl_jspan){text, 0, 0};
    size_t copied = 0;
    int rc = 0;
    if (find_member(&all, "model", &model)) {
        const int v = find_member(&model, "vocab", vocab);
        const int m = find_member(&model, "merges", merges);
        const int merges_first = v && m && merges->start < vocab->start;
        if (m && merges_first) rc = leave_out(merges, &copied, rest);
        if (v && rc == 0) rc = leave_out(vocab, &copied, rest);
        if (m && !merges_first && rc == 0) rc = leave_out(merges, &copied, rest);
    }
    return rc == 0 ? msgl__strbuf_add(rest, text + copied, len - copied) : rc;
}
