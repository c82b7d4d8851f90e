// SPDX-License-Identifier: Apache-2.0
//
// The from_json filter: JSON text to values, as Python's json.loads reads it (NaN and the
// infinities are numbers, the last of equal keys wins). Written here and not on a JSON library
// because values have to come out of the render's budgets and every byte keeps its provenance.
#include <math.h>
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_string.h"
#include "utils/json.h"

typedef struct reader {
    msgl_jctx *c;
    const msgl_jstr *s;
    size_t at;
} reader;

static int load_value(reader *r, msgl_jval *out);

static int fail(const reader *r, const char *what)
{
    return msgl__jctx_fail(r->c, "from_json: %s at byte %zu", what, r->at);
}

static void skip_space(reader *r)
{
    while (r->at < r->s->len && memchr(" \t\n\r", r->s->data[r->at], 4) != NULL) r->at++;
}

static bool take(reader *r, const char *text)
{
    const size_t n = strlen(text);
    if (r->s->len - r->at < n || memcmp(r->s->data + r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

// The escape behind the backslash at r->at.
static int load_escape(reader *r, msgl_jbuf *b)
{
    const char *letter = r->s->data + r->at + 1;
    const size_t left = r->s->len - r->at - 1;
    char bytes[4];
    size_t used, n = 0;
    if (left > 0) n = msgl__json_unescape(letter, left, bytes, &used);
    if (n == 0) {
        return fail(r, left > 0 && *letter == 'u' ? "Invalid \\uXXXX escape" : "Invalid \\escape");
    }
    const msgl_jfrom untrusted = msgl__jstr_untrusted_at(r->s, r->at);
    r->at += 1 + used;
    return msgl__jbuf_add(b, bytes, n, untrusted);
}

// A string whose opening quote is at r->at.
static int load_string(reader *r, msgl_jstr **out)
{
    const size_t start = ++r->at;
    msgl_jbuf *b = NULL; // NULL: what was read so far stands in the text as it is
    for (size_t run = start;;) {
        while (r->at < r->s->len && r->s->data[r->at] != '"' && r->s->data[r->at] != '\\' &&
               (unsigned char)r->s->data[r->at] >= 0x20) {
            r->at++;
        }
        if (r->at >= r->s->len) return fail(r, "Unterminated string");
        const char ch = r->s->data[r->at];
        if (ch != '"' && ch != '\\') return fail(r, "Invalid control character");
        if (ch == '"' && b == NULL) {
            MSGL_JTRY(msgl__jstr_sub(r->c, r->s, start, r->at++ - start, out));
            (*out)->markup = false;
            return 0;
        }
        if (b == NULL) MSGL_JTRY(msgl__jbuf_new(r->c, r->at - start + 16, &b));
        MSGL_JTRY(msgl__jbuf_add_sub(b, r->s, run, r->at - run));
        if (ch == '"') {
            r->at++;
            return msgl__jbuf_finish(b, out);
        }
        MSGL_JTRY(load_escape(r, b));
        run = r->at;
    }
}

static size_t digits(const reader *r, size_t at)
{
    size_t n = 0;
    while (at + n < r->s->len && r->s->data[at + n] >= '0' && r->s->data[at + n] <= '9') n++;
    return n;
}

// Longest match, as Python's scanner: what follows is somebody else's error.
static int load_number(reader *r, msgl_jval *out)
{
    const char *p = r->s->data;
    const size_t start = r->at, n = r->s->len;
    size_t i = start + (p[start] == '-'), k = digits(r, i);
    if (k == 0) return fail(r, "Expecting value");
    i += p[i] == '0' ? 1 : k;
    bool real = false;
    if (i < n && p[i] == '.' && (k = digits(r, i + 1)) > 0) {
        real = true;
        i += 1 + k;
    }
    if (i < n && (p[i] == 'e' || p[i] == 'E')) {
        const size_t e = i + 1 + (i + 1 < n && (p[i + 1] == '+' || p[i + 1] == '-'));
        if ((k = digits(r, e)) > 0) {
            real = true;
            i = e + k;
        }
    }
    const msgl_jstr text = {.data = p + start, .len = i - start, .chars = i - start};
    r->at = i;
    double f;
    if (real) {
        if (!msgl__jparse_float(&text, &f)) return fail(r, "Expecting value");
        *out = msgl__jfloat(f);
        return 0;
    }
    int64_t v;
    if (msgl__jfits_int(&text, &v)) {
        *out = msgl__jint(v);
        return 0;
    }
    out->type = MSGL_J_BIG;
    return msgl__jstr_sub(r->c, r->s, start, i - start, &out->as.s);
}

static int push(reader *r, msgl_jlist *l, size_t *cap, msgl_jval v)
{
    if (l->len == *cap) {
        const size_t more = *cap > 0 ? *cap * 2 : 4;
        msgl_jval *items = msgl__jctx_alloc(r->c, more * sizeof *items);
        if (items == NULL) return msgl__jctx_nomem(r->c, more * sizeof *items);
        if (l->len > 0) memcpy(items, l->items, l->len * sizeof *items);
        l->items = items;
        *cap = more;
    }
    l->items[l->len++] = v;
    return 0;
}

// Behind an element: *more at a comma, not at the closing bracket.
static int next_element(reader *r, const char *close, bool *more)
{
    skip_space(r);
    *more = take(r, ",");
    return *more || take(r, close) ? 0 : fail(r, "Expecting ',' delimiter");
}

static int load_list(reader *r, msgl_jval *out)
{
    msgl_jlist *l;
    size_t cap = 0;
    MSGL_JTRY(msgl__jlist_new(r->c, 0, &l));
    l->untrusted = msgl__jstr_untrusted_at(r->s, r->at++);
    *out = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    skip_space(r);
    for (bool more = !take(r, "]"); more;) {
        msgl_jval v;
        MSGL_JTRY(load_value(r, &v));
        MSGL_JTRY(push(r, l, &cap, v));
        MSGL_JTRY(next_element(r, "]", &more));
    }
    return 0;
}

static int load_dict(reader *r, msgl_jval *out)
{
    msgl_jdict *d;
    MSGL_JTRY(msgl__jdict_new(r->c, 0, &d));
    d->untrusted = msgl__jstr_untrusted_at(r->s, r->at++);
    *out = (msgl_jval){.type = MSGL_J_DICT, .as.d = d};
    skip_space(r);
    for (bool more = !take(r, "}"); more;) {
        msgl_jstr *key;
        msgl_jval v;
        skip_space(r);
        if (r->at >= r->s->len || r->s->data[r->at] != '"') {
            return fail(r, "Expecting property name enclosed in double quotes");
        }
        MSGL_JTRY(load_string(r, &key));
        skip_space(r);
        if (!take(r, ":")) return fail(r, "Expecting ':' delimiter");
        MSGL_JTRY(load_value(r, &v));
        MSGL_JTRY(msgl__jdict_set(r->c, d, msgl__jstrval(key), v));
        MSGL_JTRY(next_element(r, "}", &more));
    }
    return 0;
}

static int load_value(reader *r, msgl_jval *out)
{
    MSGL_JTRY(msgl__jctx_steps(r->c, 1));
    skip_space(r);
    const char ch = r->at < r->s->len ? r->s->data[r->at] : '\0';
    *out = msgl__jnone();
    if (ch == '{' || ch == '[') {
        MSGL_JTRY(msgl__jctx_enter(r->c));
        const int rc = ch == '{' ? load_dict(r, out) : load_list(r, out);
        r->c->depth--;
        return rc;
    }
    if (ch == '"') {
        msgl_jstr *s;
        MSGL_JTRY(load_string(r, &s));
        *out = msgl__jstrval(s);
    } else if (take(r, "true") || take(r, "false")) {
        *out = msgl__jbool(ch == 't');
    } else if (take(r, "NaN")) {
        *out = msgl__jfloat(NAN);
    } else if (take(r, "Infinity")) {
        *out = msgl__jfloat(INFINITY);
    } else if (take(r, "-Infinity")) {
        *out = msgl__jfloat(-INFINITY);
    } else if (ch == '-' || (ch >= '0' && ch <= '9')) {
        return load_number(r, out);
    } else if (!take(r, "null")) {
        return fail(r, "Expecting value");
    }
    return 0;
}

int msgl__jloads(msgl_jctx *c, const msgl_jstr *s, msgl_jval *out)
{
    reader r = {.c = c, .s = s};
    MSGL_JTRY(msgl__jctx_chars(c, s->len));
    MSGL_JTRY(load_value(&r, out));
    skip_space(&r);
    return r.at == s->len ? 0 : fail(&r, "Extra data");
}
