// SPDX-License-Identifier: Apache-2.0
#include "template/jinja_lex.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hex.h"
#include "template/jinja_string.h"

enum { MAX_BRACKETS = 256 };

typedef struct msgl_jlexer {
    msgl_jarena *arena;
    msgl_jtokens *out;
    msgl_err *err;
    const char *src; // newlines normalised
    size_t len, pos;
    int line;
    bool line_starting; // the last match ended with a newline (or nothing came before)
    char brackets[MAX_BRACKETS];
    int nbrackets;
} msgl_jlexer;

static int fail(msgl_jlexer *x, const char *what)
{
    return msgl__err_set(x->err, MSGL_EFORMAT, "chat template line %d: %s", x->line, what);
}

static int nomem(msgl_jlexer *x, size_t size)
{
    return msgl__err_set(x->err, msgl__jarena_why(x->arena, size), "chat template is too large");
}

static int push(msgl_jlexer *x, msgl_jtok t)
{
    msgl_jtokens *o = x->out;
    if (o->len == o->cap) {
        const size_t cap = o->cap ? o->cap * 2 : 256;
        msgl_jtok *grown = msgl__jarena_alloc(x->arena, cap * sizeof *grown);
        if (grown == NULL) return nomem(x, cap * sizeof *grown);
        if (o->len > 0) memcpy(grown, o->toks, o->len * sizeof *grown);
        o->toks = grown;
        o->cap = cap;
    }
    o->toks[o->len++] = t;
    return 0;
}

static bool at(const msgl_jlexer *x, size_t pos, const char *text)
{
    const size_t n = strlen(text);
    return n <= x->len - pos && memcmp(x->src + pos, text, n) == 0;
}

static bool is_one_of(char ch, const char *set)
{
    return ch != '\0' && strchr(set, ch) != NULL;
}

// Consumes up to `end`, keeping the line count and what lstrip_blocks needs to know.
static void advance(msgl_jlexer *x, size_t end)
{
    for (size_t i = x->pos; i < end; i++) x->line += x->src[i] == '\n';
    if (end > x->pos) x->line_starting = x->src[end - 1] == '\n';
    x->pos = end;
}

static size_t skip_space(const msgl_jlexer *x, size_t pos)
{
    while (pos < x->len) {
        int32_t cp;
        const size_t n = msgl__jutf8_get(x->src + pos, x->src + x->len, &cp);
        if (!msgl__jis_space(cp)) break;
        pos += n;
    }
    return pos;
}

// Length of src[start, end) without trailing white space.
static size_t rstrip(const msgl_jlexer *x, size_t start, size_t end)
{
    while (end > start) {
        size_t p = end - 1;
        while (p > start && ((unsigned char)x->src[p] & 0xc0) == 0x80) p--;
        int32_t cp;
        msgl__jutf8_get(x->src + p, x->src + x->len, &cp);
        if (!msgl__jis_space(cp)) break;
        end = p;
    }
    return end;
}

// Template text [start, end) before a tag whose sign is '-', '+' or 0.
static int push_data(msgl_jlexer *x, size_t start, size_t end, char sign, bool is_variable)
{
    const int line = x->line;
    size_t stop = end;
    if (sign == '-') {
        stop = rstrip(x, start, end);
    } else if (sign != '+' && !is_variable) {
        size_t l = end;
        while (l > start && x->src[l - 1] != '\n') l--;
        if ((l > start || x->line_starting) && skip_space(x, l) >= end) stop = l;
    }
    if (stop == start) return 0;
    return push(x, (msgl_jtok){MSGL_JT_DATA, line, x->src + start, stop - start, 0, 0});
}

// End of a tag that may be trimmed: at `pos` stands "-%}", "+%}" or "%}" (`close` is "%}" or "#}").
// Returns the position behind, or 0 when there is no tag end here.
static size_t tag_end(const msgl_jlexer *x, size_t pos, const char *close, bool trim, bool plus)
{
    if (x->src[pos] == '-' && at(x, pos + 1, close)) return skip_space(x, pos + 3);
    if (plus && x->src[pos] == '+' && at(x, pos + 1, close)) return pos + 3;
    if (!at(x, pos, close)) return 0;
    pos += 2;
    return trim && pos < x->len && x->src[pos] == '\n' ? pos + 1 : pos;
}

static char sign_at(const msgl_jlexer *x, size_t pos)
{
    return pos < x->len && (x->src[pos] == '-' || x->src[pos] == '+') ? x->src[pos] : 0;
}

// "{%- raw -%}" at `pos`: the position behind it, else 0.
static size_t raw_begin(const msgl_jlexer *x, size_t pos)
{
    pos += 2 + (sign_at(x, pos + 2) != 0);
    pos = skip_space(x, pos);
    if (!at(x, pos, "raw")) return 0;
    pos = skip_space(x, pos + 3);
    return pos < x->len ? tag_end(x, pos, "%}", false, false) : 0;
}

static int lex_raw(msgl_jlexer *x)
{
    for (size_t p = x->pos; p + 2 <= x->len; p++) {
        if (!at(x, p, "{%")) continue;
        const char sign = sign_at(x, p + 2);
        size_t q = skip_space(x, p + 2 + (sign != 0));
        if (!at(x, q, "endraw")) continue;
        q = skip_space(x, q + 6);
        const size_t end = q < x->len ? tag_end(x, q, "%}", true, true) : 0;
        if (end == 0) continue;
        MSGL_JTRY(push_data(x, x->pos, p, sign, false));
        advance(x, end);
        return 0;
    }
    return fail(x, "missing end of raw directive");
}

static int lex_comment(msgl_jlexer *x)
{
    for (size_t p = x->pos; p + 2 <= x->len; p++) {
        if (x->src[p] != '#' && x->src[p] != '-' && x->src[p] != '+') continue;
        const size_t end = tag_end(x, p, "#}", true, true);
        if (end == 0) continue;
        advance(x, end);
        return 0;
    }
    return fail(x, "missing end of comment tag");
}

// --- inside tags ---
static bool is_digit(char ch)
{
    return ch >= '0' && ch <= '9';
}

// (\d+_)*\d+ from `p`; returns the end, `p` when there is none.
static size_t digits(const msgl_jlexer *x, size_t p)
{
    size_t end = p;
    while (p < x->len && is_digit(x->src[p])) {
        while (p < x->len && is_digit(x->src[p])) p++;
        end = p;
        if (p + 1 < x->len && x->src[p] == '_' && is_digit(x->src[p + 1])) p++;
    }
    return end;
}

static size_t exponent(const msgl_jlexer *x, size_t p)
{
    if (p >= x->len || (x->src[p] | 0x20) != 'e') return p;
    size_t q = p + 1;
    if (q < x->len && (x->src[q] == '+' || x->src[q] == '-')) q++;
    const size_t end = digits(x, q);
    return end > q ? end : p;
}

static size_t float_end(const msgl_jlexer *x)
{
    if (x->pos > 0 && x->src[x->pos - 1] == '.') return x->pos;
    const size_t whole = digits(x, x->pos);
    if (whole == x->pos) return x->pos;
    size_t frac = whole;
    if (whole + 1 < x->len && x->src[whole] == '.') {
        const size_t f = digits(x, whole + 1);
        if (f > whole + 1) frac = f;
    }
    const size_t e = exponent(x, frac);
    if (e > frac) return e;
    return frac > whole ? frac : x->pos;
}

static bool digit_of_base(char ch, int base)
{
    if (base == 16) return msgl__hex_digit(ch) >= 0;
    return ch >= '0' && ch < '0' + base;
}

static size_t integer_end(const msgl_jlexer *x, int *base)
{
    *base = 10;
    size_t p = x->pos;
    if (p + 1 < x->len && x->src[p] == '0') {
        const char k = (char)(x->src[p + 1] | 0x20);
        const int b = k == 'b' ? 2 : k == 'o' ? 8 : k == 'x' ? 16 : 0;
        size_t q = p + 2, end = p;
        while (b != 0 && q < x->len) {
            if (x->src[q] == '_') q++;
            if (q >= x->len || !digit_of_base(x->src[q], b)) break;
            end = ++q;
        }
        if (end > p) {
            *base = b;
            return end;
        }
    }
    const bool zero = x->src[p] == '0';
    size_t end = p;
    while (p < x->len && is_digit(x->src[p]) && (!zero || x->src[p] == '0')) {
        end = ++p;
        if (p + 1 < x->len && x->src[p] == '_' && is_digit(x->src[p + 1]) &&
            (!zero || x->src[p + 1] == '0')) {
            p++;
        }
    }
    return end;
}

// The digits without "_", NUL-terminated.
static int plain_number(msgl_jlexer *x, size_t end, char buf[64])
{
    size_t n = 0;
    for (size_t p = x->pos; p < end; p++) {
        if (x->src[p] == '_') continue;
        if (n >= 63) return fail(x, "a number has more than 63 characters");
        buf[n++] = x->src[p];
    }
    buf[n] = '\0';
    return 0;
}

static int lex_number(msgl_jlexer *x)
{
    char buf[64];
    size_t end = float_end(x);
    msgl_jtok t = {MSGL_JT_FLOAT, x->line, x->src + x->pos, 0, 0, 0};
    if (end > x->pos) {
        MSGL_JTRY(plain_number(x, end, buf));
        t.f = strtod(buf, NULL);
    } else {
        int base;
        end = integer_end(x, &base);
        MSGL_JTRY(plain_number(x, end, buf));
        t.kind = MSGL_JT_INT;
        errno = 0;
        t.i = strtoll(base == 10 ? buf : buf + 2, NULL, base);
        if (errno == ERANGE) return fail(x, "an integer does not fit into 64 bits");
    }
    t.len = end - x->pos;
    MSGL_JTRY(push(x, t));
    advance(x, end);
    return 0;
}

// \xHH, \uHHHH, \UHHHHHHHH: `n` digits at s[i...].
static int hex_escape(msgl_jlexer *x, const char *s, size_t len, size_t i, size_t n, int32_t *cp)
{
    uint32_t v = 0;
    for (size_t k = 0; k < n; k++) {
        const int h = i + k < len ? msgl__hex_digit(s[i + k]) : -1;
        if (h < 0) return fail(x, "truncated escape in a string");
        v = v * 16 + (uint32_t)h;
    }
    if (v > 0x10ffff) return fail(x, "illegal Unicode character in a string");
    if (v >= 0xd800 && v < 0xe000) {
        return msgl__err_set(x->err, MSGL_EUNSUPPORTED,
                             "chat template line %d: surrogate escapes are not supported", x->line);
    }
    *cp = (int32_t)v;
    return 0;
}

// One escape at s[*i] (behind the backslash) to out; *n grows by what was written.
static int unescape_one(msgl_jlexer *x, const char *s, size_t len, size_t *i, char *out, size_t *n)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char ch = s[*i];
    const char *known = memchr(from, ch, sizeof from - 1);
    if (known != NULL) {
        out[(*n)++] = to[known - from];
        (*i)++;
        return 0;
    }
    int32_t cp = 0;
    if (ch == 'x' || ch == 'u' || ch == 'U') {
        const size_t nd = ch == 'x' ? 2 : ch == 'u' ? 4 : 8;
        MSGL_JTRY(hex_escape(x, s, len, *i + 1, nd, &cp));
        *i += 1 + nd;
    } else if (ch >= '0' && ch <= '7') {
        for (int k = 0; k < 3 && *i < len && s[*i] >= '0' && s[*i] <= '7'; k++, (*i)++) {
            cp = cp * 8 + (s[*i] - '0');
        }
    } else if (ch == '\n') {
        (*i)++;
        return 0;
    } else if (ch == 'N') {
        return msgl__err_set(x->err, MSGL_EUNSUPPORTED,
                             "chat template line %d: \\N{...} is not supported", x->line);
    } else if ((unsigned char)ch >= 0x80) {
        // Python sees "\" + "\xe9" here: an escaped backslash and the rest as text.
        *i += msgl__jutf8_get(s + *i, s + len, &cp);
        *n += (size_t)snprintf(out + *n, 12,
                               cp < 0x100     ? "\\x%02x"
                               : cp < 0x10000 ? "\\u%04x"
                                              : "\\U%08x",
                               (unsigned)cp);
        return 0;
    } else {
        out[(*n)++] = '\\';
        return 0;
    }
    *n += msgl__utf8_put((uint32_t)cp, out + *n);
    return 0;
}

static int lex_string(msgl_jlexer *x)
{
    const char quote = x->src[x->pos];
    size_t end = x->pos + 1;
    while (end < x->len && x->src[end] != quote) end += x->src[end] == '\\' ? 2 : 1;
    if (end >= x->len) return fail(x, "unexpected char: a string is not closed");
    const char *s = x->src + x->pos + 1;
    const size_t len = end - x->pos - 1;
    // An escape of a non-ASCII character may grow from 3 bytes to 10.
    char *out = msgl__jarena_alloc(x->arena, len * 4 + 16);
    if (out == NULL) return nomem(x, len * 4 + 16);
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (s[i] != '\\') {
            out[n++] = s[i++];
            continue;
        }
        i++;
        MSGL_JTRY(unescape_one(x, s, len, &i, out, &n));
    }
    MSGL_JTRY(push(x, (msgl_jtok){MSGL_JT_STRING, x->line, out, n, 0, 0}));
    advance(x, end + 1);
    return 0;
}

static int lex_name(msgl_jlexer *x, bool *found)
{
    size_t p = x->pos;
    while (p < x->len) {
        int32_t cp;
        const size_t n = msgl__jutf8_get(x->src + p, x->src + x->len, &cp);
        if (cp != '_' && !msgl__jis_alnum(cp)) break;
        p += n;
    }
    *found = p > x->pos;
    if (!*found) return 0;
    MSGL_JTRY(push(x, (msgl_jtok){MSGL_JT_NAME, x->line, x->src + x->pos, p - x->pos, 0, 0}));
    advance(x, p);
    return 0;
}

static int balance(msgl_jlexer *x, char ch)
{
    if (ch == '(' || ch == '[' || ch == '{') {
        if (x->nbrackets == MAX_BRACKETS) {
            return msgl__err_set(x->err, MSGL_ELIMIT,
                                 "chat template line %d: more than %d nested brackets", x->line,
                                 MAX_BRACKETS);
        }
        x->brackets[x->nbrackets++] = (char)(ch == '(' ? ')' : ch == '[' ? ']' : '}');
    } else if (ch == ')' || ch == ']' || ch == '}') {
        char what[48];
        if (x->nbrackets == 0) {
            snprintf(what, sizeof what, "unexpected '%c'", ch);
            return fail(x, what);
        }
        const char want = x->brackets[--x->nbrackets];
        if (want != ch) {
            snprintf(what, sizeof what, "unexpected '%c', expected '%c'", ch, want);
            return fail(x, what);
        }
    }
    return 0;
}

static int lex_operator(msgl_jlexer *x)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        if (at(x, x->pos, two[i])) n = 2;
    }
    if (n == 0 && is_one_of(x->src[x->pos], "+-/*%~[](){}><=.:|,;")) n = 1;
    if (n == 0) {
        char what[48];
        snprintf(what, sizeof what, "unexpected character '%.*s'",
                 (int)msgl__utf8_len((unsigned char)x->src[x->pos]), x->src + x->pos);
        return fail(x, what);
    }
    if (n == 1) MSGL_JTRY(balance(x, x->src[x->pos]));
    MSGL_JTRY(push(x, (msgl_jtok){MSGL_JT_OP, x->line, x->src + x->pos, n, 0, 0}));
    advance(x, x->pos + n);
    return 0;
}

// From behind the opening "{{" or "{%" to behind its end.
static int lex_tag(msgl_jlexer *x, bool variable)
{
    x->nbrackets = 0;
    while (x->pos < x->len) {
        if (x->nbrackets == 0) {
            const size_t end = variable ? tag_end(x, x->pos, "}}", false, false)
                                        : tag_end(x, x->pos, "%}", true, true);
            if (end > 0) {
                const msgl_jtok_kind k = variable ? MSGL_JT_VAR_END : MSGL_JT_BLOCK_END;
                MSGL_JTRY(push(x, (msgl_jtok){k, x->line, "", 0, 0, 0}));
                advance(x, end);
                return 0;
            }
        }
        const size_t sp = skip_space(x, x->pos);
        if (sp > x->pos) {
            advance(x, sp);
            continue;
        }
        const char ch = x->src[x->pos];
        bool found = false;
        if (is_digit(ch)) {
            MSGL_JTRY(lex_number(x));
        } else if (ch == '\'' || ch == '"') {
            MSGL_JTRY(lex_string(x));
        } else {
            MSGL_JTRY(lex_name(x, &found));
            if (!found) MSGL_JTRY(lex_operator(x));
        }
    }
    return 0; // the parser reports what is missing
}

static int lex_root(msgl_jlexer *x)
{
    while (x->pos < x->len) {
        size_t p = x->pos;
        while (p < x->len &&
               !(x->src[p] == '{' && p + 1 < x->len && is_one_of(x->src[p + 1], "{%#"))) {
            p++;
        }
        if (p >= x->len) {
            MSGL_JTRY(
                push(x, (msgl_jtok){MSGL_JT_DATA, x->line, x->src + x->pos, p - x->pos, 0, 0}));
            advance(x, p);
            break;
        }
        const char kind = x->src[p + 1], sign = sign_at(x, p + 2);
        const size_t raw = kind == '%' ? raw_begin(x, p) : 0;
        MSGL_JTRY(push_data(x, x->pos, p, sign, kind == '{'));
        advance(x, raw > 0 ? raw : p + 2 + (sign != 0));
        if (raw > 0) {
            MSGL_JTRY(lex_raw(x));
        } else if (kind == '#') {
            MSGL_JTRY(lex_comment(x));
        } else {
            const msgl_jtok_kind k = kind == '{' ? MSGL_JT_VAR_BEGIN : MSGL_JT_BLOCK_BEGIN;
            MSGL_JTRY(push(x, (msgl_jtok){k, x->line, "", 0, 0, 0}));
            MSGL_JTRY(lex_tag(x, kind == '{'));
        }
    }
    return push(x, (msgl_jtok){MSGL_JT_EOF, x->line, "", 0, 0, 0});
}

int msgl__jlex(msgl_jarena *arena, const char *source, size_t len, msgl_jtokens *out, msgl_err *err)
{
    msgl_jlexer x = {.arena = arena, .out = out, .err = err, .line = 1, .line_starting = true};
    const size_t valid = msgl__utf8_valid(source, len);
    if (valid != len) {
        return msgl__err_set(err, MSGL_EFORMAT, "chat template: byte %zu is not valid UTF-8",
                             valid);
    }
    char *norm = msgl__jarena_alloc(arena, len + 1);
    if (norm == NULL) return nomem(&x, len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        const bool crlf = source[i] == '\r' && i + 1 < len && source[i + 1] == '\n';
        if (!crlf) norm[n++] = (char)(source[i] == '\r' ? '\n' : source[i]);
    }
    if (n > 0 && norm[n - 1] == '\n') n--; // keep_trailing_newline is off
    norm[n] = '\0';
    x.src = norm;
    x.len = n;
    return lex_root(&x);
}

const char *msgl__jtok_describe(const msgl_jtok *t, char buf[64])
{
    switch (t->kind) {
    case MSGL_JT_EOF: return "end of template";
    case MSGL_JT_DATA: return "template text";
    case MSGL_JT_VAR_BEGIN: return "begin of print statement";
    case MSGL_JT_VAR_END: return "end of print statement";
    case MSGL_JT_BLOCK_BEGIN: return "begin of statement block";
    case MSGL_JT_BLOCK_END: return "end of statement block";
    case MSGL_JT_STRING: return "string";
    case MSGL_JT_INT: return "integer";
    case MSGL_JT_FLOAT: return "float";
    case MSGL_JT_NAME:
    case MSGL_JT_OP: break;
    }
    snprintf(buf, 64, "'%.*s'", (int)(t->len < 40 ? t->len : 40), t->text);
    return buf;
}
