// SPDX-License-Identifier: Apache-2.0
//
// The reader of JSON texts (docs/decisions/043): jansson's values, made by its own constructors,
// each of which says when it found no memory; jansson 2.14's lexer does not.
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/json.h"
#include "utils/strbuf.h"
#include "utils/utf8.h"

// --- integers beyond 64 bits ---
//
// Such an integer is one of jansson's reals with the digits behind it, in a block that begins 8
// bytes before it: heap blocks are aligned to 16 bytes, so its address alone (8 modulo 16) tells it
// from every other value, and jansson frees it as it frees them all.

typedef struct big_head {
    uint32_t digits, len; // where they are, in bytes from the value, and how many
} big_head;

enum { ALIGN = 16, OFF = 8 };
_Static_assert(sizeof(big_head) == OFF, "the value is aligned to 8 bytes");

// The digits of the next value that this thread makes; NULL: it is none of these.
static _Thread_local struct {
    const char *digits;
    size_t len;
} t_big;

static bool is_big(const void *p)
{
    return (uintptr_t)p % ALIGN == OFF;
}

static void *alloc_aligned(size_t size)
{
    void *p = msgl__malloc(size);
    if (p == NULL || (uintptr_t)p % ALIGN == 0) return p;
    msgl__free(p); // an allocator of somebody's that aligns small blocks less than glibc's does
    return msgl__aligned_alloc(ALIGN, size);
}

static void *alloc_value(size_t size)
{
    if (t_big.digits == NULL) return alloc_aligned(size);
    char *p = alloc_aligned(OFF + size + t_big.len + 1);
    if (p == NULL) return NULL;
    const big_head head = {(uint32_t)size, (uint32_t)t_big.len};
    memcpy(p, &head, sizeof head);
    memcpy(p + OFF + size, t_big.digits, t_big.len);
    p[OFF + size + t_big.len] = '\0';
    return p + OFF;
}

static void free_value(void *p)
{
    msgl__free(is_big(p) ? (char *)p - OFF : p);
}

// Before anything of jansson's runs, in any thread.
__attribute__((constructor)) static void set_allocator(void)
{
    json_set_alloc_funcs(alloc_value, free_value);
}

const char *msgl__json_digits(const json_t *v)
{
    if (!json_is_real(v) || !is_big(v)) return NULL;
    big_head head;
    memcpy(&head, (const char *)v - OFF, sizeof head);
    return (const char *)v + head.digits;
}

// digits: NUL-terminated, an integer beyond 64 bits.
static json_t *big_integer(const char *digits, size_t len)
{
    const double v = strtod(digits, NULL);
    if (len > UINT32_MAX) return NULL;
    t_big.digits = digits;
    t_big.len = len;
    json_t *out = json_real(isfinite(v) ? v : copysign(MSGL_JSON_BEYOND, v));
    t_big.digits = NULL;
    return out;
}

json_t *msgl__json_copy(const json_t *v)
{
    json_t *out = json_is_array(v) ? json_array() : json_object();
    const int bad = json_is_array(v) ? json_array_extend(out, (json_t *)v)
                                     : json_object_update(out, (json_t *)v);
    if (bad == 0) return out;
    json_decref(out);
    return NULL;
}

static json_t *copy_object(const json_t *v)
{
    json_t *out = json_object(), *member;
    const char *key;
    size_t n;
    json_object_keylen_foreach((json_t *)v, key, n, member)
    {
        if (json_object_setn_new_nocheck(out, key, n, msgl__json_deep_copy(member)) == 0) continue;
        json_decref(out);
        return NULL;
    }
    return out;
}

json_t *msgl__json_deep_copy(const json_t *v)
{
    const char *digits = msgl__json_digits(v);
    if (digits != NULL) return big_integer(digits, strlen(digits));
    if (json_is_object(v)) return copy_object(v);
    if (json_is_string(v)) {
        return json_stringn_nocheck(json_string_value(v), json_string_length(v));
    }
    if (json_is_integer(v)) return json_integer(json_integer_value(v));
    if (json_is_real(v)) return json_real(json_real_value(v));
    if (!json_is_array(v)) return json_incref((json_t *)v); // of these there is one each
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (json_array_append_new(out, msgl__json_deep_copy(json_array_get(v, i))) == 0) continue;
        json_decref(out);
        return NULL;
    }
    return out;
}

// --- the reader ---

enum { MAX_DEPTH = 2048 }; // of nesting; a level costs less than 200 bytes of stack

typedef struct reader {
    const char *text;
    size_t len, at, flags;
    int depth, rc;
    msgl_strbuf chars; // strings with escapes, each behind those that it is inside of
    json_error_t *why;
} reader;

// The error at byte `at`, which is on the line and in the column that it says.
__attribute__((format(printf, 4, 5))) static int
fail(reader *r, size_t at, enum json_error_code code, const char *fmt, ...)
{
    json_error_t *e = r->why;
    r->rc = MSGL_EFORMAT;
    if (e == NULL) return r->rc;
    memset(e, 0, sizeof *e);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->text, sizeof e->text - 1, fmt, ap);
    va_end(ap);
    size_t line = 1, start = 0;
    for (size_t i = 0; i < at; i++) {
        if (r->text[i] != '\n') continue;
        line++;
        start = i + 1;
    }
    e->line = line < INT32_MAX ? (int)line : INT32_MAX;
    e->column = (int)msgl__utf8_count(r->text + start, at - start < INT32_MAX ? at - start : 0) + 1;
    e->position = at < INT32_MAX ? (int)at : INT32_MAX;
    e->text[sizeof e->text - 1] = (char)code;
    return r->rc;
}

static int no_memory(reader *r)
{
    return r->rc = MSGL_ENOMEM;
}

// "WHAT near 'WHAT STANDS THERE'", or "near end of file".
static int unexpected(reader *r, size_t at, const char *what)
{
    if (at >= r->len) {
        return fail(r, at, json_error_premature_end_of_input, "%s near end of file", what);
    }
    size_t n = 0;
    while (n < 20 && at + n < r->len && (unsigned char)r->text[at + n] > ' ') n++;
    if (n == 0) n = 1;
    while (at + n < r->len && ((unsigned char)r->text[at + n] & 0xc0) == 0x80) n++;
    n = msgl__utf8_valid(r->text + at, n); // the message is text, whatever was read
    if (n == 0) {
        return fail(r, at, json_error_invalid_utf8, "%s: byte 0x%x is no UTF-8", what,
                    (unsigned char)r->text[at]);
    }
    return fail(r, at, json_error_invalid_syntax, "%s near '%.*s'", what, (int)n, r->text + at);
}

static void skip_space(reader *r)
{
    while (r->at < r->len) {
        const char c = r->text[r->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') break;
        r->at++;
    }
}

// Takes the character if it is next.
static bool take(reader *r, char c)
{
    skip_space(r);
    if (r->at >= r->len || r->text[r->at] != c) return false;
    r->at++;
    return true;
}

// A stretch of the text, or of r->chars, which may move as it grows.
typedef struct chars {
    size_t at, len;
    bool unescaped;
} chars;

static const char *chars_of(const reader *r, const chars *s)
{
    return s->unescaped ? msgl__strbuf_str(&r->chars) + s->at : r->text + s->at;
}

static int bad_char(reader *r, size_t at)
{
    const unsigned char c = (unsigned char)r->text[at];
    if (c == '\n') return fail(r, at, json_error_invalid_syntax, "unexpected newline in a string");
    if (c < 0x20) {
        return fail(r, at, json_error_invalid_syntax, "control character 0x%x in a string", c);
    }
    return fail(r, at, json_error_invalid_utf8, "unable to decode byte 0x%x", c);
}

// Behind the characters from r->at on that stand for themselves.
static size_t plain_end(const reader *r)
{
    size_t i = r->at;
    while (i < r->len) {
        const unsigned char c = (unsigned char)r->text[i];
        if (c == '"' || c == '\\' || c < 0x20) break;
        const size_t n = c < 0x80 ? 1 : msgl__utf8_char(r->text + i, r->len - i);
        if (n == 0) break;
        i += n;
    }
    return i;
}

// One escape, whose backslash is at r->at.
static int read_escape(reader *r)
{
    char bytes[4];
    size_t used;
    if (r->at + 1 >= r->len) return unexpected(r, r->len, "string ends");
    const size_t n = msgl__json_unescape(r->text + r->at + 1, r->len - r->at - 1, bytes, &used);
    if (n == 0) return unexpected(r, r->at, "invalid escape");
    if (n == 1 && bytes[0] == '\0' && (r->flags & JSON_ALLOW_NUL) == 0) {
        return fail(r, r->at, json_error_null_character,
                    "\\u0000 is not allowed in a string without JSON_ALLOW_NUL");
    }
    r->at += 1 + used;
    return msgl__strbuf_add(&r->chars, bytes, n) == 0 ? 0 : no_memory(r);
}

// A string, behind its opening quote. What it puts into r->chars stays there.
static int read_string(reader *r, chars *out)
{
    const size_t begin = r->at, base = r->chars.len;
    size_t end = plain_end(r);
    if (end < r->len && r->text[end] == '"') {
        *out = (chars){begin, end - begin, false};
        r->at = end + 1;
        return 0;
    }
    for (;;) {
        if (msgl__strbuf_add(&r->chars, r->text + r->at, end - r->at) != 0) return no_memory(r);
        r->at = end;
        if (end >= r->len) return unexpected(r, end, "string ends");
        if (r->text[end] == '"') break;
        if (r->text[end] != '\\') return bad_char(r, end);
        if (read_escape(r) != 0) return r->rc;
        end = plain_end(r);
    }
    r->at++;
    *out = (chars){base, r->chars.len - base, true};
    return 0;
}

static void drop_chars(reader *r, size_t base)
{
    if (r->chars.len > base) r->chars.len = base;
}

static json_t *string_value(reader *r)
{
    const size_t base = r->chars.len;
    chars s;
    r->at++;
    if (read_string(r, &s) != 0) return NULL;
    json_t *v = json_stringn_nocheck(chars_of(r, &s), s.len);
    drop_chars(r, base);
    if (v == NULL) no_memory(r);
    return v;
}

// Whether the byte belongs to a number or a word.
static bool in_token(char c)
{
    const char l = (char)(c | 0x20);
    return (c >= '0' && c <= '9') || (l >= 'a' && l <= 'z') || c == '-' || c == '+' || c == '.';
}

static size_t digits(const char *token, size_t n, size_t i)
{
    size_t k = i;
    while (k < n && token[k] >= '0' && token[k] <= '9') k++;
    return k - i;
}

typedef enum number_kind { NOT_A_NUMBER, INTEGER, REAL } number_kind;

// RFC 8259's grammar of numbers, for the whole token.
static number_kind kind_of(const char *token, size_t n)
{
    size_t i = token[0] == '-', k = digits(token, n, i);
    if (k == 0 || (k > 1 && token[i] == '0')) return NOT_A_NUMBER;
    i += k;
    if (i == n) return INTEGER;
    if (token[i] == '.') {
        k = digits(token, n, ++i);
        if (k == 0) return NOT_A_NUMBER;
        i += k;
    }
    if (i < n && (token[i] == 'e' || token[i] == 'E')) {
        i++;
        if (i < n && (token[i] == '+' || token[i] == '-')) i++;
        k = digits(token, n, i);
        if (k == 0) return NOT_A_NUMBER;
        i += k;
    }
    return i == n ? REAL : NOT_A_NUMBER;
}

// An integer of 64 bits. False: it has more.
static bool small_integer(const char *token, size_t n, json_int_t *out)
{
    const bool minus = token[0] == '-';
    const uint64_t most = (uint64_t)INT64_MAX + minus;
    uint64_t v = 0;
    for (size_t i = minus; i < n; i++) {
        const uint64_t d = (uint64_t)(token[i] - '0');
        if (v > (most - d) / 10) return false;
        v = v * 10 + d;
    }
    *out = minus ? (json_int_t)(0 - v) : (json_int_t)v;
    return true;
}

static json_t *real_value(reader *r, const char *token, size_t at)
{
    const double v = strtod(token, NULL);
    if (isfinite(v)) return json_real(v);
    if (r->flags & MSGL_JSON_PYTHON) return json_real(copysign(MSGL_JSON_BEYOND, v));
    fail(r, at, json_error_numeric_overflow, "real number overflow");
    return NULL;
}

static json_t *number_value(reader *r, const char *token, size_t n, number_kind kind)
{
    json_int_t v;
    if (kind == INTEGER && small_integer(token, n, &v)) return json_integer(v);
    const size_t base = r->chars.len;
    char small[64]; // strtod wants a terminated text
    if (n < sizeof small) {
        memcpy(small, token, n);
        small[n] = '\0';
    } else if (msgl__strbuf_add(&r->chars, token, n) != 0) {
        return NULL;
    }
    const char *text = n < sizeof small ? small : r->chars.data + base;
    json_t *out =
        kind == INTEGER ? big_integer(text, n) : real_value(r, text, (size_t)(token - r->text));
    drop_chars(r, base);
    return out;
}

static bool is(const char *token, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(token, word, n) == 0;
}

// A number, or a word of the language.
static json_t *token_value(reader *r)
{
    const char *token = r->text + r->at;
    size_t n = 0;
    while (r->at + n < r->len && in_token(token[n])) n++;
    const number_kind kind = n == 0 ? NOT_A_NUMBER : kind_of(token, n);
    json_t *v = NULL;
    if (kind != NOT_A_NUMBER) {
        v = number_value(r, token, n, kind);
    } else if (is(token, n, "true")) {
        v = json_true();
    } else if (is(token, n, "false")) {
        v = json_false();
    } else if (is(token, n, "null")) {
        v = json_null();
    } else if ((r->flags & MSGL_JSON_PYTHON) && (is(token, n, "NaN") || is(token, n, "Infinity"))) {
        v = json_real(MSGL_JSON_BEYOND);
    } else if ((r->flags & MSGL_JSON_PYTHON) && is(token, n, "-Infinity")) {
        v = json_real(-MSGL_JSON_BEYOND);
    } else {
        unexpected(r, r->at, n == 0 ? "unexpected token" : "invalid token");
    }
    if (v == NULL && r->rc == 0) no_memory(r);
    r->at += n;
    return v;
}

static json_t *value(reader *r);

// Whether all of the elements could be read, behind the opening bracket.
static bool read_elements(reader *r, json_t *array)
{
    if (take(r, ']')) return true;
    do {
        json_t *v = value(r);
        if (v == NULL) return false;
        if (json_array_append_new(array, v) != 0) return no_memory(r) == 0;
    } while (take(r, ','));
    return take(r, ']') || unexpected(r, r->at, "']' expected") == 0;
}

static bool read_member(reader *r, json_t *object)
{
    const size_t base = r->chars.len, at = r->at;
    chars key;
    if (!take(r, '"')) return unexpected(r, r->at, "string expected") == 0;
    if (read_string(r, &key) != 0) return false;
    if (memchr(chars_of(r, &key), '\0', key.len) != NULL) {
        return fail(r, at, json_error_null_byte_in_key, "a name has a NUL character") == 0;
    }
    if ((r->flags & JSON_REJECT_DUPLICATES) != 0 &&
        json_object_getn(object, chars_of(r, &key), key.len) != NULL) {
        return fail(r, at, json_error_duplicate_key, "duplicate object key") == 0;
    }
    if (!take(r, ':')) return unexpected(r, r->at, "':' expected") == 0;
    json_t *v = value(r);
    if (v == NULL) return false;
    const bool bad = json_object_setn_new_nocheck(object, chars_of(r, &key), key.len, v) != 0;
    drop_chars(r, base);
    return !bad || no_memory(r) == 0;
}

static bool read_members(reader *r, json_t *object)
{
    if (take(r, '}')) return true;
    do {
        if (!read_member(r, object)) return false;
    } while (take(r, ','));
    return take(r, '}') || unexpected(r, r->at, "'}' expected") == 0;
}

static json_t *container(reader *r, bool array)
{
    if (++r->depth > MAX_DEPTH) {
        fail(r, r->at, json_error_stack_overflow, "nested in a depth of more than %d levels",
             MAX_DEPTH);
        return NULL;
    }
    r->at++;
    json_t *v = array ? json_array() : json_object();
    if (v == NULL) {
        no_memory(r);
    } else if (!(array ? read_elements(r, v) : read_members(r, v))) {
        json_decref(v);
        v = NULL;
    }
    r->depth--;
    return v;
}

static json_t *value(reader *r)
{
    skip_space(r);
    const char c = r->at < r->len ? r->text[r->at] : '\0';
    if (c == '"') return string_value(r);
    return c == '[' || c == '{' ? container(r, c == '[') : token_value(r);
}

json_t *msgl__json_loadb(const char *text, size_t len, size_t flags, json_error_t *why, int *rc)
{
    reader r = {.text = text, .len = len, .flags = flags, .why = why};
    msgl__strbuf_init(&r.chars, SIZE_MAX / 2);
    skip_space(&r);
    const char c = r.at < len ? text[r.at] : '\0';
    json_t *root = NULL;
    if (c != '[' && c != '{' && (flags & JSON_DECODE_ANY) == 0) {
        unexpected(&r, r.at, "'[' or '{' expected");
    } else if ((root = value(&r)) != NULL) {
        skip_space(&r);
        if (r.at < len) unexpected(&r, r.at, "end of file expected");
    }
    msgl__strbuf_free(&r.chars);
    if (r.rc == MSGL_ENOMEM) {
        (void)fail(&r, r.at < len ? r.at : len, json_error_out_of_memory, "out of memory");
        r.rc = MSGL_ENOMEM;
    }
    if (r.rc != 0) json_decref(root);
    if (rc != NULL) *rc = r.rc;
    return r.rc == 0 ? root : NULL;
}
