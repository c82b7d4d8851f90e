// SPDX-License-Identifier: Apache-2.0
//
// The normalizers. The Unicode forms copy stretches of text that a form cannot touch and work only
// on the short segments between: a segment runs from a character that nothing joins backwards up to
// the next such character.
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/bert.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/workspace.h"

#define CCC_SHIFT 24 // a code point with its combining class above it
#define CP_MASK UINT32_C(0x1fffff)

static unsigned ccc_of(const msgl_unicode *u, uint32_t cp)
{
    if ((msgl__uni(u, cp) & MSGL_UNI_INERT) != 0 || cp >= MSGL_UNI_FLAT) return 0;
    return (unsigned)utf8proc_get_property((utf8proc_int32_t)cp)->combining_class & 0xff;
}

typedef struct segment {
    uint32_t *cp;
    size_t n, cap;
} segment;

static int decompose(const msgl_unicode *u, segment *s, uint32_t cp, int compat)
{
    utf8proc_int32_t parts[32];
    utf8proc_ssize_t n = 1;
    int last = 0;
    parts[0] = (utf8proc_int32_t)cp;
    if ((msgl__uni(u, cp) & (MSGL_UNI_NFD | MSGL_UNI_NFKD)) != 0) {
        const int options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
        n = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, 32, (utf8proc_option_t)options,
                                    &last);
        if (n <= 0 || n > 32) {
            parts[0] = (utf8proc_int32_t)cp;
            n = 1;
        }
    }
    if (msgl__tok_grow((void **)&s->cp, &s->cap, s->n + (size_t)n, sizeof(*s->cp)) != 0) {
        return MSGL_ENOMEM;
    }
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        const uint32_t c = (uint32_t)parts[i];
        s->cp[s->n++] = c | (uint32_t)ccc_of(u, c) << CCC_SHIFT;
    }
    return 0;
}

// Stable sort of a run of combining characters by class. Long runs are only ever hostile; they are
// sorted by counting so that they cost no more than linear time.
static int sort_marks(uint32_t *a, size_t n)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            const uint32_t v = a[i];
            size_t j = i;
            for (; j > 0 && a[j - 1] >> CCC_SHIFT > v >> CCC_SHIFT; j--) a[j] = a[j - 1];
            a[j] = v;
        }
        return 0;
    }
    uint32_t *sorted = msgl__malloc(n * sizeof(*sorted));
    if (sorted == NULL) return MSGL_ENOMEM;
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++) at[(a[i] >> CCC_SHIFT) + 1]++;
    for (int c = 0; c < 256; c++) at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++) sorted[at[a[i] >> CCC_SHIFT]++] = a[i];
    memcpy(a, sorted, n * sizeof(*a));
    msgl__free(sorted);
    return 0;
}

static int reorder(segment *s)
{
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        while (end < s->n && s->cp[end] >> CCC_SHIFT != 0) end++;
        if (end - i > 1 && sort_marks(s->cp + i, end - i) != 0) return MSGL_ENOMEM;
        i = end + 1;
    }
    return 0;
}

// The primary composite of two characters; 0: none.
static uint32_t compose_pair(const msgl_unicode *u, uint32_t first, uint32_t second)
{
    if (((msgl__uni(u, first) | msgl__uni(u, second)) & MSGL_UNI_INERT) != 0) return 0;
    if ((msgl__uni(u, second) & MSGL_UNI_NFC) == 0) return 0;
    utf8proc_int32_t pair[2] = {(utf8proc_int32_t)first, (utf8proc_int32_t)second};
    const utf8proc_ssize_t n =
        utf8proc_normalize_utf32(pair, 2, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    return n == 1 ? (uint32_t)pair[0] : 0;
}

// Canonical composition (UAX #15, D117), in place: a character joins the last starter unless one of
// the same or a higher class stands between.
static void compose(const msgl_unicode *u, segment *s)
{
    size_t out = 0, starter = SIZE_MAX;
    unsigned between = 0; // class of the last character kept behind the starter; 0: none kept
    for (size_t i = 0; i < s->n; i++) {
        const uint32_t c = s->cp[i];
        const unsigned ccc = c >> CCC_SHIFT;
        if (starter != SIZE_MAX && (out == starter + 1 || between < ccc)) {
            const uint32_t joined = compose_pair(u, s->cp[starter] & CP_MASK, c & CP_MASK);
            if (joined != 0) {
                s->cp[starter] = joined;
                continue;
            }
        }
        if (ccc == 0) starter = out;
        between = ccc;
        s->cp[out++] = c;
    }
    s->n = out;
}

typedef struct form {
    unsigned bit;
    int compat, compose;
} form;

// The form of in[start, end), in *s.
static int segment_form(const msgl_tokenizer *t, const form *f, segment *s, const msgl_text *in,
                        size_t start, size_t end)
{
    s->n = 0;
    int rc = 0;
    for (size_t i = start; i < end && rc == 0;) {
        rc = decompose(t->uni, s, msgl__utf8_next(in->p, &i), f->compat);
    }
    if (rc == 0) rc = reorder(s);
    if (rc == 0 && f->compose) compose(t->uni, s);
    return rc;
}

static int put_segment(const msgl_tokenizer *t, msgl_tok_ws *ws, const form *f, segment *s,
                       const msgl_text *in, size_t start, size_t end, msgl_zero *zero,
                       msgl_tok_buf *out)
{
    const unsigned char tag = msgl__text_tag(in, start, end);
    char bytes[4];
    int rc = 0;
    if (!zero->done && end > zero->in) { // what the input's first character becomes by itself
        rc = segment_form(t, f, s, in, start, zero->in > start ? zero->in : start);
        msgl__zero_element(zero, end, out->len);
        for (size_t i = 0; i < s->n; i++) zero->out += msgl__utf8_put(s->cp[i] & CP_MASK, bytes);
    }
    if (rc == 0) rc = segment_form(t, f, s, in, start, end);
    for (size_t i = 0; i < s->n && rc == 0; i++) {
        rc = msgl__buf_put(ws, out, bytes, msgl__utf8_put(s->cp[i] & CP_MASK, bytes), tag);
    }
    return rc;
}

static int norm_form(const msgl_tokenizer *t, msgl_tok_ws *ws, const form *f, const msgl_text *in,
                     msgl_tok_buf *out)
{
    msgl_zero zero = msgl__zero_start(ws);
    segment seg = {0};
    size_t copied = 0,
           last = 0; // in[0, copied) is written; the last safe character starts at `last`
    int rc = msgl__buf_reserve(ws, out, in->n);
    for (size_t i = 0; i < in->n && rc == 0;) {
        const size_t at = i;
        if ((unsigned char)in->p[i] < 0x80) {
            last = i++;
            continue;
        }
        if ((msgl__uni(t->uni, msgl__utf8_next(in->p, &i)) & f->bit) == 0) {
            last = at;
            continue;
        }
        const size_t start = last >= copied ? last : at;
        for (size_t next = i; i < in->n; i = next) {
            if ((msgl__uni(t->uni, msgl__utf8_next(in->p, &next)) & f->bit) == 0) break;
        }
        msgl__zero_copy(&zero, copied, start, out->len);
        rc = msgl__buf_copy(ws, out, in, copied, start);
        if (rc == 0) rc = put_segment(t, ws, f, &seg, in, start, i, &zero, out);
        copied = last = i;
    }
    msgl__free(seg.cp);
    msgl__zero_copy(&zero, copied, in->n, out->len);
    if (rc == 0) rc = msgl__buf_copy(ws, out, in, copied, in->n);
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}

static int norm_lowercase(msgl_tok_ws *ws, const msgl_text *in, msgl_tok_buf *out)
{
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, in->n);
    for (size_t i = 0; i < in->n && rc == 0;) {
        const size_t at = i;
        uint32_t lower[2];
        const int n = msgl__uni_lower_of(msgl__utf8_next(in->p, &i), lower);
        msgl__zero_element(&zero, i, out->len);
        for (int k = 0; k < n && rc == 0; k++) {
            char bytes[4];
            rc = msgl__buf_put(ws, out, bytes, msgl__utf8_put(lower[k], bytes),
                               msgl__text_tag(in, at, i));
        }
    }
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}

static int norm_strip(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_norm *norm,
                      const msgl_text *in, msgl_tok_buf *out)
{
    size_t start = 0, end = in->n;
    while (norm->left && start < end) {
        size_t next = start;
        if ((msgl__uni(t->uni, msgl__utf8_next(in->p, &next)) & MSGL_UNI_SPACE) == 0) break;
        start = next;
    }
    while (norm->right && end > start) {
        const size_t prev = msgl__utf8_prev(in->p, end);
        size_t i = prev;
        if ((msgl__uni(t->uni, msgl__utf8_next(in->p, &i)) & MSGL_UNI_SPACE) == 0) break;
        end = prev;
    }
    ws->zero = ws->zero > start ? ws->zero - start : 0;
    return msgl__buf_copy(ws, out, in, start, end);
}

static int norm_replace(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_norm *norm,
                        const msgl_text *in, msgl_tok_buf *out)
{
    int rc = msgl__pattern_spans(t, &norm->pattern, ws, in->p, 0, in->n);
    if (rc == 0) rc = msgl__buf_reserve(ws, out, in->n);
    msgl_zero zero = msgl__zero_start(ws);
    for (size_t i = 0; i < ws->num_spans && rc == 0; i++) {
        const msgl_span *s = &ws->spans[i];
        const size_t end = s->off + s->len;
        if (s->match) {
            msgl__zero_element(&zero, end, out->len);
            rc = msgl__buf_put(ws, out, norm->content.p, norm->content.n,
                               msgl__text_tag(in, s->off, end));
        } else {
            msgl__zero_copy(&zero, s->off, end, out->len);
            rc = msgl__buf_copy(ws, out, in, s->off, end);
        }
    }
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}

static int norm_byte_level(msgl_tok_ws *ws, const msgl_text *in, msgl_tok_buf *out)
{
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, 2 * in->n);
    for (size_t i = 0; i < in->n && rc == 0; i++) {
        rc = msgl__ws_put_byte(ws, &zero, in, i, out);
    }
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}

static int run_step(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_norm *norm,
                    const msgl_text *in, msgl_tok_buf *out)
{
    static const form forms[] = {
        [MSGL_NORM_NFC] = {MSGL_UNI_NFC, 0, 1},
        [MSGL_NORM_NFD] = {MSGL_UNI_NFD, 0, 0},
        [MSGL_NORM_NFKC] = {MSGL_UNI_NFKC, 1, 1},
        [MSGL_NORM_NFKD] = {MSGL_UNI_NFKD, 1, 0},
    };
    int rc;
    switch (norm->type) {
    case MSGL_NORM_NFC:
    case MSGL_NORM_NFD:
    case MSGL_NORM_NFKC:
    case MSGL_NORM_NFKD: return norm_form(t, ws, &forms[norm->type], in, out);
    case MSGL_NORM_LOWERCASE: return norm_lowercase(ws, in, out);
    case MSGL_NORM_STRIP: return norm_strip(t, ws, norm, in, out);
    case MSGL_NORM_REPLACE: return norm_replace(t, ws, norm, in, out);
    case MSGL_NORM_BYTE_LEVEL: return norm_byte_level(ws, in, out);
    case MSGL_NORM_CHARSMAP: return msgl__norm_charsmap(ws, norm->charsmap, in, out);
    case MSGL_NORM_CLEAN: return msgl__norm_clean(t, ws, in, out);
    case MSGL_NORM_IDEOGRAPHS: return msgl__norm_ideographs(ws, in, out);
    case MSGL_NORM_MARKS: return msgl__norm_marks(t, ws, in, out);
    case MSGL_NORM_PREPEND:
        if (ws->zero > 0) ws->zero += norm->content.n;
        rc = msgl__buf_put(ws, out, norm->content.p, norm->content.n, 0);
        return rc != 0 ? rc : msgl__buf_copy(ws, out, in, 0, in->n);
    }
    return MSGL_EINTERNAL;
}

// Nothing in the text that a form could touch: the text stays where it is.
static int form_is_identity(const msgl_tokenizer *t, const msgl_norm *norm, const msgl_text *in)
{
    static const unsigned bits[] = {
        [MSGL_NORM_NFC] = MSGL_UNI_NFC,
        [MSGL_NORM_NFD] = MSGL_UNI_NFD,
        [MSGL_NORM_NFKC] = MSGL_UNI_NFKC,
        [MSGL_NORM_NFKD] = MSGL_UNI_NFKD,
    };
    if (norm->type > MSGL_NORM_NFKD) return 0;
    for (size_t i = 0; i < in->n;) {
        uint64_t word;
        if (in->n - i >= 8) {
            memcpy(&word, in->p + i, 8);
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                i += 8;
                continue;
            }
        }
        if ((msgl__uni(t->uni, msgl__utf8_next(in->p, &i)) & bits[norm->type]) != 0) return 0;
    }
    return 1;
}

int msgl__normalize(const msgl_tokenizer *t, msgl_tok_ws *ws, msgl_text *text)
{
    for (size_t i = 0; i < t->num_norms; i++) {
        if (text->n == 0) return 0; // every normalizer leaves an empty text empty
        if (form_is_identity(t, &t->norms[i], text)) continue;
        msgl_tok_buf *out = msgl__ws_other(ws, text);
        int rc = msgl__buf_reserve(ws, out, 1);
        if (rc == 0) rc = run_step(t, ws, &t->norms[i], text, out);
        if (rc != 0) return rc;
        *text = msgl__buf_text(ws, out);
    }
    return 0;
}
