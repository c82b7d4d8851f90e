// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "core/mem.h"
#include "tokenizer/unicode_data.h"
#include "utils/strbuf.h"
#include "core/hex.h"
#include "utils/utf8.h"

#define MATCH_LIMIT 20000000u // steps of one match; a pattern that needs more is hostile
#define HEAP_LIMIT_KIB (64u * 1024u)
#define MAX_PATTERN 65536u
#define MAX_TRANSLATED ((size_t)4 << 20)

struct msgl_regex {
    pcre2_code *code;
};

struct msgl_regex_ws {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

// ---- translation ----

typedef struct translation {
    const msgl_unicode *u;
    const char *p;
    size_t n, i;
    msgl_strbuf out;
    msgl_err *err;
} translation;

static int refuse(translation *t, const char *what, size_t at)
{
    size_t end = at + 12 < t->n ? at + 12 : t->n;
    while (end > at && end < t->n && ((unsigned char)t->p[end] & 0xc0) == 0x80) end--;
    return msgl__err_set(t->err, MSGL_EUNSUPPORTED,
                         "regular expression: %s is not supported, at byte %zu: \"%.*s\"", what, at,
                         (int)(end - at), t->p + at);
}

static int put(translation *t, const char *s)
{
    return msgl__strbuf_adds(&t->out, s);
}

// Which set of characters a translation spells out.
typedef struct char_set {
    uint32_t gcs;
    uint16_t flags; // any of these property bits also belongs
    int word;       // Oniguruma's \w: without the joiners
    int latin_no;   // and, outside of brackets only, with the numerics of Latin-1
    int negate;
} char_set;

static int in_set(const translation *t, const char_set *s, uint32_t cp)
{
    const uint16_t v = msgl__uni(t->u, cp);
    int in = (s->gcs >> (v & MSGL_UNI_GC) & 1) != 0 || (v & s->flags) != 0;
    if (s->word) {
        if (cp == 0x200c || cp == 0x200d) in = 0;
        if (s->latin_no && (cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || (cp >= 0xbc && cp <= 0xbe)))
            in = 1;
    }
    return in != s->negate;
}

// Where the code points that are in the set, or are not, as `cp` is, end. Surrogates cannot occur
// in a text and are no valid ends of a range: a stretch ends before them.
static uint32_t set_stretch(const translation *t, const char_set *s, uint32_t cp)
{
    const int in = in_set(t, s, cp);
    while (cp < MSGL_UNI_END && cp != 0xd800 && in_set(t, s, cp) == in) {
        cp = cp < MSGL_UNI_FLAT ? cp + 1 : msgl__uni_stretch(cp);
    }
    return cp;
}

// The set as \x{..}-\x{..} ranges, for use inside brackets.
static int put_set(translation *t, const char_set *s)
{
    int rc = 0;
    for (uint32_t cp = 0, end; cp < MSGL_UNI_END && rc == 0; cp = end == 0xd800 ? 0xe000 : end) {
        end = set_stretch(t, s, cp);
        if (!in_set(t, s, cp)) continue;
        rc = msgl__strbuf_addf(&t->out, "\\x{%x}-\\x{%x}", (unsigned)cp, (unsigned)(end - 1));
    }
    return rc;
}

static int put_class(translation *t, const char_set *s, int in_brackets)
{
    if (in_brackets) return put_set(t, s);
    int rc = put(t, "[");
    if (rc == 0) rc = put_set(t, s);
    return rc == 0 ? put(t, "]") : rc;
}

static const char gc_names[MSGL_GC_COUNT][3] = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Cs"};

// The set named `name`: a category, its one-letter group, or a few words of Oniguruma's.
static int property_set(const char *name, size_t n, char_set *s)
{
    static const struct {
        const char *name;
        uint32_t gcs;
        uint16_t flags;
    } others[] = {
        {"L", MSGL_GCS_L, 0},      {"M", MSGL_GCS_M, 0},
        {"N", MSGL_GCS_N, 0},      {"P", MSGL_GCS_P, 0},
        {"S", MSGL_GCS_S, 0},      {"Z", MSGL_GCS_Z, 0},
        {"C", MSGL_GCS_C, 0},      {"Letter", MSGL_GCS_L, 0},
        {"Mark", MSGL_GCS_M, 0},   {"Number", MSGL_GCS_N, 0},
        {"Symbol", MSGL_GCS_S, 0}, {"Separator", MSGL_GCS_Z, 0},
        {"Any", UINT32_MAX, 0},    {"White_Space", 0, MSGL_UNI_SPACE},
    };
    for (unsigned g = 0; g < MSGL_GC_COUNT; g++) {
        if (n == 2 && memcmp(name, gc_names[g], 2) == 0) {
            s->gcs = MSGL_GC_BIT(g);
            return 1;
        }
    }
    for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++) {
        if (strlen(others[k].name) == n && memcmp(name, others[k].name, n) == 0) {
            s->gcs = others[k].gcs;
            s->flags = others[k].flags;
            return 1;
        }
    }
    return 0;
}

static int put_script(translation *t, const msgl_uni_script *script, int negate, int in_brackets,
                      size_t at)
{
    if (negate && in_brackets) return refuse(t, "a negated script in a class", at);
    int rc = in_brackets ? 0 : put(t, negate ? "[^" : "[");
    for (uint32_t i = 0; i < script->count && rc == 0; i++) {
        const msgl_uni_range *r = &msgl__uni_script_ranges[script->first + i];
        rc = msgl__strbuf_addf(&t->out, "\\x{%x}-\\x{%x}", (unsigned)r->first, (unsigned)r->last);
    }
    return rc != 0 || in_brackets ? rc : put(t, "]");
}

// \p{Name}, \P{Name}, \p{^Name}: categories and scripts, spelled out.
static int property(translation *t, int in_brackets)
{
    const size_t at = t->i;
    const char *open = t->p + at + 2;
    const char *close = at + 2 < t->n && *open == '{' ? memchr(open, '}', t->n - at - 2) : NULL;
    if (close == NULL) return refuse(t, "a property without braces", at);
    const char *name = open + 1;
    char_set s = {.negate = t->p[at + 1] == 'P'};
    if (name < close && *name == '^') {
        s.negate = !s.negate;
        name++;
    }
    const size_t n = (size_t)(close - name);
    t->i = (size_t)(close - t->p) + 1;
    if (property_set(name, n, &s)) return put_class(t, &s, in_brackets);
    for (size_t k = 0; k < msgl__uni_num_scripts; k++) {
        const msgl_uni_script *script = &msgl__uni_scripts[k];
        if (strlen(script->name) == n && memcmp(script->name, name, n) == 0) {
            return put_script(t, script, s.negate, in_brackets, at);
        }
    }
    return refuse(t, "this property", at);
}

static const char_set word_set = {.flags = MSGL_UNI_WORD, .word = 1, .latin_no = 1};

// \b and \B by look-around, as PCRE2's own words are not Oniguruma's.
static int word_boundary(translation *t, int negate)
{
    int rc = put(t, "(?:(?<=");
    if (rc == 0) rc = put_class(t, &word_set, 0);
    if (rc == 0) rc = put(t, negate ? ")(?=" : ")(?!");
    if (rc == 0) rc = put_class(t, &word_set, 0);
    if (rc == 0) rc = put(t, ")|(?<!");
    if (rc == 0) rc = put_class(t, &word_set, 0);
    if (rc == 0) rc = put(t, negate ? ")(?!" : ")(?=");
    if (rc == 0) rc = put_class(t, &word_set, 0);
    return rc == 0 ? put(t, "))") : rc;
}

static int hex_escape(translation *t)
{
    const size_t at = t->i;
    const int wide = t->p[at + 1] == 'u';
    const int braces = !wide && at + 2 < t->n && t->p[at + 2] == '{';
    const size_t max = braces ? 8 : wide ? 4 : 2;
    size_t i = at + (braces ? 3 : 2), digits = 0;
    uint32_t cp = 0;
    for (; digits < max && i < t->n; i++, digits++) {
        const int v = msgl__hex_digit(t->p[i]);
        if (v < 0) break;
        cp = cp << 4 | (uint32_t)v;
    }
    if (digits == 0 || (wide && digits != 4) || cp >= MSGL_UNI_END ||
        (cp & 0xfffff800u) == 0xd800 || (!braces && !wide && cp > 0x7f) ||
        (braces && (i >= t->n || t->p[i] != '}'))) {
        return refuse(t, "this escape", at);
    }
    t->i = braces ? i + 1 : i;
    return msgl__strbuf_addf(&t->out, "\\x{%x}", (unsigned)cp);
}

static int escape(translation *t, int in_brackets)
{
    const size_t at = t->i;
    if (at + 1 >= t->n) {
        return msgl__err_set(t->err, MSGL_EFORMAT, "regular expression ends in a backslash");
    }
    const char c = t->p[at + 1];
    const char_set space = {.flags = MSGL_UNI_SPACE, .negate = c == 'S'};
    const char_set digit = {.gcs = MSGL_GC_BIT(MSGL_GC_ND), .negate = c == 'D'};
    char_set word = word_set;
    word.negate = c == 'W';
    word.latin_no = !in_brackets;
    switch (c) {
    case 'p':
    case 'P': return property(t, in_brackets);
    case 'x':
    case 'u': return hex_escape(t);
    case 's':
    case 'S': t->i += 2; return put_class(t, &space, in_brackets);
    case 'd':
    case 'D': t->i += 2; return put_class(t, &digit, in_brackets);
    case 'w':
    case 'W': t->i += 2; return put_class(t, &word, in_brackets);
    case 'h': t->i += 2; return put(t, in_brackets ? "0-9a-fA-F" : "[0-9a-fA-F]");
    case 'b':
    case 'B':
        if (in_brackets) return refuse(t, "this escape", at);
        t->i += 2;
        return word_boundary(t, c == 'B');
    case 'A':
    case 'z':
    case 'Z':
        if (in_brackets) return refuse(t, "this escape", at);
        break;
    case 'v': t->i += 2; return put(t, "\\x{b}");
    case 't':
    case 'n':
    case 'r':
    case 'f':
    case 'a':
    case 'e': break;
    default: // an escaped punctuation or non-ASCII character is itself
        if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')) {
            return refuse(t, "this escape", at);
        }
        if ((unsigned char)c >= 0x80) {
            t->i += 1;
            return 0; // the character follows and is copied as any other
        }
        break;
    }
    t->i += 2;
    return msgl__strbuf_add(&t->out, t->p + at, 2);
}

static int brackets(translation *t)
{
    int rc = put(t, "[");
    t->i++;
    if (t->i < t->n && t->p[t->i] == '^') {
        rc = put(t, "^");
        t->i++;
    }
    for (int first = 1; rc == 0; first = 0) {
        if (t->i >= t->n) {
            return msgl__err_set(t->err, MSGL_EFORMAT, "regular expression: [ without ]");
        }
        const char c = t->p[t->i];
        if (c == '\\') {
            rc = escape(t, 1);
        } else if (c == ']') {
            if (first) return refuse(t, "an empty character class", t->i);
            t->i++;
            return put(t, "]");
        } else if (c == '[') {
            return refuse(t, "a class inside a class", t->i);
        } else if (c == '&' && t->i + 1 < t->n && t->p[t->i + 1] == '&') {
            return refuse(t, "an intersection of classes", t->i);
        } else {
            rc = msgl__strbuf_addc(&t->out, c);
            t->i++;
        }
    }
    return rc;
}

// "(" and what may follow it.
static int group(translation *t)
{
    static const char *const known[] = {
        "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:", "(?i)"};
    const size_t left = t->n - t->i;
    if (left < 2 || t->p[t->i + 1] != '?') {
        t->i++;
        return put(t, "(?:"); // groups are not referred to: back-references are refused
    }
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        const size_t n = strlen(known[k]);
        // "(?i)" further on would reach over the alternatives behind it, which PCRE2 does not do.
        if (known[k][n - 1] == ')' && t->i > 0) continue;
        if (left >= n && memcmp(t->p + t->i, known[k], n) == 0) {
            t->i += n;
            return put(t, known[k]);
        }
    }
    return refuse(t, "this group", t->i);
}

// {n}, {n,}, {n,m}, {,m}; a following + or ? does not mean what it does to PCRE2.
static int interval(translation *t)
{
    const size_t at = t->i;
    size_t i = at + 1, digits = 0, commas = 0;
    for (; i < t->n && t->p[i] != '}'; i++) {
        if (t->p[i] == ',') {
            commas++;
        } else if (t->p[i] >= '0' && t->p[i] <= '9') {
            digits++;
        } else {
            break;
        }
    }
    if (i >= t->n || t->p[i] != '}' || digits == 0 || commas > 1) {
        return refuse(t, "a brace that is no repetition", at);
    }
    if (i + 1 < t->n && (t->p[i + 1] == '+' || t->p[i + 1] == '?')) {
        return refuse(t, "a repetition of a repetition", at);
    }
    t->i = i + 1;
    if (t->p[at + 1] == ',') {
        return msgl__strbuf_addf(&t->out, "{0%.*s", (int)(i - at), t->p + at + 1);
    }
    return msgl__strbuf_add(&t->out, t->p + at, i + 1 - at);
}

static int translate(translation *t)
{
    int rc = 0;
    while (t->i < t->n && rc == 0) {
        const char c = t->p[t->i];
        switch (c) {
        case '\\': rc = escape(t, 0); break;
        case '[': rc = brackets(t); break;
        case '(': rc = group(t); break;
        case '{': rc = interval(t); break;
        default: rc = msgl__strbuf_addc(&t->out, c); t->i++;
        }
    }
    return rc;
}

// ---- compiling and matching ----

static int compile(const char *pattern, size_t len, msgl_regex **out, msgl_err *err)
{
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    msgl_regex *re = msgl__malloc(sizeof(*re));
    if (cc == NULL || re == NULL) {
        pcre2_compile_context_free(cc);
        msgl__free(re);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE at = 0;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (re->code == NULL) {
        char text[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof(text));
        msgl__free(re);
        return msgl__err_set(err, MSGL_EFORMAT, "regular expression: %s", text);
    }
    pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE); // without JIT the interpreter runs it
    *out = re;
    return 0;
}

int msgl__regex_compile(const msgl_unicode *u, const char *pattern, size_t len, msgl_regex **out,
                        msgl_err *err)
{
    if (len > MAX_PATTERN) {
        return msgl__err_set(err, MSGL_ELIMIT, "regular expression of %zu bytes; at most %u", len,
                             MAX_PATTERN);
    }
    translation t = {.u = u, .p = pattern, .n = len, .err = err};
    msgl__strbuf_init(&t.out, MAX_TRANSLATED);
    int rc = translate(&t);
    if (rc == 0) {
        rc = compile(msgl__strbuf_str(&t.out), t.out.len, out, err);
    } else if (rc == MSGL_ENOMEM || rc == MSGL_ELIMIT) {
        rc = msgl__err_set(err, rc, "regular expression of %zu bytes: %s", len,
                           rc == MSGL_ENOMEM ? "out of memory" : "too large when translated");
    }
    msgl__strbuf_free(&t.out);
    return rc;
}

void msgl__regex_free(msgl_regex *re)
{
    if (re == NULL) return;
    pcre2_code_free(re->code);
    msgl__free(re);
}

msgl_regex_ws *msgl__regex_ws_create(void)
{
    msgl_regex_ws *ws = msgl__calloc(1, sizeof(*ws));
    if (ws == NULL) return NULL;
    ws->data = pcre2_match_data_create(1, NULL);
    ws->context = pcre2_match_context_create(NULL);
    ws->stack = pcre2_jit_stack_create(64 * 1024, 4 * 1024 * 1024, NULL);
    if (ws->data == NULL || ws->context == NULL || ws->stack == NULL) {
        msgl__regex_ws_free(ws);
        return NULL;
    }
    pcre2_set_match_limit(ws->context, MATCH_LIMIT);
    pcre2_set_heap_limit(ws->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(ws->context, NULL, ws->stack);
    return ws;
}

void msgl__regex_ws_free(msgl_regex_ws *ws)
{
    if (ws == NULL) return;
    pcre2_match_data_free(ws->data);
    pcre2_match_context_free(ws->context);
    pcre2_jit_stack_free(ws->stack);
    msgl__free(ws);
}

int msgl__regex_next(const msgl_regex *re, msgl_regex_ws *ws, const char *text, size_t len,
                     msgl_regex_iter *it, size_t *start, size_t *end)
{
    while (it->pos <= len) {
        const int rc = pcre2_match(re->code, (PCRE2_SPTR)text, len, it->pos, PCRE2_NO_UTF_CHECK,
                                   ws->data, ws->context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY) return MSGL_ENOMEM;
        if (rc < 0) return MSGL_ELIMIT; // match, heap, depth or JIT stack limit
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(ws->data);
        if (at[0] == at[1] && it->matched && it->last_end == at[1]) {
            it->pos = at[1] < len ? at[1] + msgl__utf8_len((unsigned char)text[at[1]]) : len + 1;
            continue;
        }
        it->pos = it->last_end = *end = at[1];
        *start = at[0];
        it->matched = 1;
        return 1;
    }
    it->pos = len + 1;
    return 0;
}
