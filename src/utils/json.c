// SPDX-License-Identifier: Apache-2.0
#include "utils/json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/mem.h"
#include "utils/file.h"
#include "utils/strbuf.h"
#include "core/hex.h"
#include "utils/utf8.h"

// Behind the closing quote of the string that starts at `i`, or the end of the text.
static size_t string_end(const char *text, size_t len, size_t i)
{
    for (i++; i < len && text[i] != '"'; i++) {
        if (text[i] == '\\') i++;
    }
    return i < len ? i + 1 : len;
}

// Whether the byte belongs to a number or a word.
static bool in_token(char c)
{
    const char l = (char)(c | 0x20);
    return (c >= '0' && c <= '9') || (l >= 'a' && l <= 'z') || c == '-' || c == '+' || c == '.';
}

static bool is(const char *token, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(token, word, n) == 0;
}

static bool not_finite(const char *token, size_t n)
{
    return is(token, n, "NaN") || is(token, n, "Infinity") || is(token, n, "-Infinity");
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

// Whether jansson refuses the number for its size: its own verdict, asked only where it can be one.
static bool too_large(const char *token, size_t n)
{
    const size_t shortest_int = sizeof "9223372036854775808" - 1, shortest_real = 5; // 1e309
    const number_kind kind = n < shortest_real ? NOT_A_NUMBER : kind_of(token, n);
    if (kind == NOT_A_NUMBER || (kind == INTEGER && n < shortest_int)) return false;
    json_error_t why;
    json_t *v = json_loadb(token, n, JSON_DECODE_ANY, &why);
    json_decref(v);
    return v == NULL && json_error_code(&why) == json_error_numeric_overflow;
}

// Appends what jansson takes instead of the token.
static int add_held(msgl_strbuf *out, const char *token, size_t n)
{
    const size_t start = out->len;
    int rc = 0;
    if (!not_finite(token, n) && kind_of(token, n) == INTEGER) {
        rc = msgl__strbuf_add(out, token, n);
        if (rc == 0) rc = msgl__strbuf_adds(out, "e0");
        if (rc != 0 || !too_large(out->data + start, n + 2)) return rc;
        out->len = start;
    }
    const char *const beyond = "-1.7976931348623157e308"; // MSGL_JSON_BEYOND
    return msgl__strbuf_adds(out, token[0] == '-' ? beyond : beyond + 1);
}

// Writes the text to *out with every number rewritten that jansson cannot hold; leaves it empty
// when there is none, as in nearly every file.
static int hold_numbers(const char *text, size_t len, msgl_strbuf *out)
{
    size_t copied = 0;
    int rc = 0;
    for (size_t i = 0, n; i < len && rc == 0; i += n) {
        n = 1;
        if (text[i] == '"') {
            n = string_end(text, len, i) - i;
        } else if (in_token(text[i])) {
            while (i + n < len && in_token(text[i + n])) n++;
            const char *token = text + i;
            if (!not_finite(token, n) && !too_large(token, n)) continue;
            rc = msgl__strbuf_add(out, text + copied, i - copied);
            if (rc == 0) rc = add_held(out, token, n);
            copied = i + n;
        }
    }
    return rc != 0 || copied == 0 ? rc : msgl__strbuf_add(out, text + copied, len - copied);
}

json_t *msgl__json_loadb(const char *text, size_t len, size_t flags, json_error_t *why, int *rc)
{
    errno = 0; // that of the allocation that failed is left in it
    json_t *root = json_loadb(text, len, flags, why);
    *rc = root != NULL ? 0 : errno == ENOMEM ? MSGL_ENOMEM : MSGL_EFORMAT;
    return root;
}

int msgl__json_parse(const char *name, const char *text, size_t len, size_t flags, json_t **out,
                     msgl_err *err)
{
    msgl_strbuf held;
    json_error_t why;
    msgl__strbuf_init(&held, SIZE_MAX / 2);
    int rc = hold_numbers(text, len, &held);
    *out = NULL;
    if (rc == 0) {
        const bool as_is = held.len == 0;
        *out = msgl__json_loadb(as_is ? text : held.data, as_is ? len : held.len, flags, &why, &rc);
    }
    msgl__strbuf_free(&held);
    if (rc == 0) return 0;
    if (rc != MSGL_EFORMAT) return msgl__err_set(err, rc, "%s: %s", name, msgl__status_text(rc));
    char shown[120];
    return msgl__err_set(err, rc, "%s: line %d column %d: %s", name, why.line, why.column,
                         msgl__printable(why.text, shown, sizeof shown));
}

static int load(const char *path, size_t max_bytes, size_t flags, json_type type, json_t **out,
                msgl_err *err)
{
    char *data = NULL;
    size_t len = 0;
    *out = NULL;
    int rc = msgl__file_read(path, max_bytes, &data, &len, err);
    if (rc == 0) rc = msgl__json_parse(msgl__path_shown(path), data, len, flags, out, err);
    msgl__free(data);
    if (rc != 0 || json_typeof(*out) == type) return rc;
    json_decref(*out);
    *out = NULL;
    return msgl__err_set(err, MSGL_EFORMAT, "%s: expected a JSON %s", msgl__path_shown(path),
                         type == JSON_OBJECT ? "object" : "array");
}

int msgl__json_load(const char *path, size_t max_bytes, size_t flags, json_t **out, msgl_err *err)
{
    return load(path, max_bytes, flags, JSON_OBJECT, out, err);
}

int msgl__json_load_array(const char *path, size_t max_bytes, size_t flags, json_t **out,
                          msgl_err *err)
{
    return load(path, max_bytes, flags, JSON_ARRAY, out, err);
}

// Four hex digits; -1: not that.
static int32_t hex4(const char *p, size_t n)
{
    int32_t v = 0;
    if (n < 4) return -1;
    for (size_t i = 0; i < 4; i++) {
        const int digit = msgl__hex_digit(p[i]);
        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

// The character of \uXXXX (and a second one for the low surrogate) at p; *used counts what was read
// behind the backslash. Returns its bytes in out, 0 for a malformed or lone one.
static size_t unicode_escape(const char *p, size_t n, char out[4], size_t *used)
{
    int32_t cp = hex4(p + 1, n - 1);
    *used = 5;
    if (cp < 0 || (cp >= 0xdc00 && cp < 0xe000)) return 0;
    if (cp >= 0xd800 && cp < 0xdc00) {
        const int32_t low = n >= 11 && p[5] == '\\' && p[6] == 'u' ? hex4(p + 7, n - 7) : -1;
        if (low < 0xdc00 || low >= 0xe000) return 0;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        *used = 11;
    }
    return msgl__utf8_put((uint32_t)cp, out);
}

size_t msgl__json_unescape(const char *p, size_t n, char out[4], size_t *used)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (p[0] == 'u') return unicode_escape(p, n, out, used);
    const char *at = p[0] != '\0' ? strchr(letters, p[0]) : NULL;
    *used = 1;
    if (at == NULL) return 0;
    out[0] = values[at - letters];
    return 1;
}
