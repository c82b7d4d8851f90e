// SPDX-License-Identifier: Apache-2.0
//
// Leftmost-longest matching over the sorted contents: from each position whose byte starts any
// token, the range of tokens that share the bytes read so far is narrowed byte by byte. Tokens
// that would lie on bytes where they are not trusted are no candidates at all, so what they would
// have hidden still matches.
#include "tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

static const msgl_tok_str *match_text(const msgl_added *a)
{
    return a->normalized && a->normed.p != NULL ? &a->normed : &a->content;
}

static int by_text(const void *x, const void *y)
{
    const msgl_added *a = *(const msgl_added *const *)x, *b = *(const msgl_added *const *)y;
    const msgl_tok_str *s = match_text(a), *t = match_text(b);
    const int c = memcmp(s->p, t->p, s->n < t->n ? s->n : t->n);
    if (c != 0) return c;
    if (s->n != t->n) return s->n < t->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

int msgl__matcher_build(msgl_matcher *m, const msgl_added *added, size_t n, int normalized)
{
    *m = (msgl_matcher){0};
    m->sorted = msgl__malloc(n * sizeof(*m->sorted));
    m->text = msgl__malloc(n * sizeof(*m->text));
    if (m->sorted == NULL || m->text == NULL) {
        msgl__matcher_free(m);
        return MSGL_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        if (added[i].normalized != normalized || match_text(&added[i])->n == 0) continue;
        m->sorted[m->n++] = &added[i];
    }
    qsort(m->sorted, m->n, sizeof(*m->sorted), by_text);
    size_t kept = 0;
    for (size_t i = 0; i < m->n; i++) {
        const msgl_tok_str *s = match_text(m->sorted[i]);
        if (kept > 0 && m->text[kept - 1]->n == s->n &&
            memcmp(m->text[kept - 1]->p, s->p, s->n) == 0) {
            continue;
        }
        m->sorted[kept] = m->sorted[i];
        m->text[kept++] = s;
    }
    m->n = kept;
    size_t i = 0;
    for (unsigned b = 0; b <= 256; b++) {
        while (i < m->n && (unsigned char)m->text[i]->p[0] < b) i++;
        m->first[b] = (uint32_t)i;
    }
    return 0;
}

void msgl__matcher_free(msgl_matcher *m)
{
    msgl__free(m->sorted);
    msgl__free(m->text);
    *m = (msgl_matcher){0};
}

static int trusted(const msgl_text *text, const msgl_trust *trust, int which, size_t start,
                   size_t end)
{
    if (text->tags != NULL) return (msgl__text_tag(text, start, end) & (1 << which)) == 0;
    const msgl_text_span *spans = trust->spans[which];
    const size_t n = trust->n[which];
    size_t lo = 0, hi = n;
    while (lo < hi) { // the first span that ends behind `start`
        const size_t mid = lo + (hi - lo) / 2;
        if (spans[mid].end <= trust->base + start) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    while (lo < n && spans[lo].start == spans[lo].end) lo++; // an empty one
    return lo == n || spans[lo].start >= trust->base + end;
}

// First index in [lo, hi) whose byte `depth` is at least `b`; all of them are longer than `depth`.
static size_t narrow(const msgl_matcher *m, size_t lo, size_t hi, size_t depth, unsigned b)
{
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)m->text[mid]->p[depth] < b) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

// The longest allowed token at text[pos]; NULL: none. *len is its length.
static const msgl_added *longest(const msgl_matcher *m, const msgl_text *text,
                                 const msgl_trust *trust, size_t pos, size_t *len)
{
    const unsigned b = (unsigned char)text->p[pos];
    size_t lo = m->first[b], hi = m->first[b + 1];
    const msgl_added *best = NULL;
    for (size_t depth = 1; lo < hi; depth++) {
        if (m->text[lo]->n == depth) {
            const msgl_added *a = m->sorted[lo++];
            if (a->blank || trusted(text, trust, a->special ? 0 : 1, pos, pos + depth)) {
                best = a;
                *len = depth;
            }
        }
        if (pos + depth >= text->n) break;
        const unsigned c = (unsigned char)text->p[pos + depth];
        lo = narrow(m, lo, hi, depth, c);
        hi = narrow(m, lo, hi, depth, c + 1);
    }
    return best;
}

static int word_before(const msgl_unicode *u, const msgl_text *text, size_t i)
{
    if (i == 0) return 0;
    size_t at = msgl__utf8_prev(text->p, i);
    return (msgl__uni(u, msgl__utf8_next(text->p, &at)) & MSGL_UNI_WORD) != 0;
}

static int word_at(const msgl_unicode *u, const msgl_text *text, size_t i)
{
    return i < text->n && (msgl__uni(u, msgl__utf8_next(text->p, &i)) & MSGL_UNI_WORD) != 0;
}

// Start of the white space before text[i], but not before `floor`.
static size_t spaces_before(const msgl_unicode *u, const msgl_text *text, size_t i, size_t floor)
{
    while (i > floor) {
        const size_t prev = msgl__utf8_prev(text->p, i);
        size_t at = prev;
        if ((msgl__uni(u, msgl__utf8_next(text->p, &at)) & MSGL_UNI_SPACE) == 0) break;
        i = prev;
    }
    return i;
}

// End of the white space from text[i] on. The last run is remembered: tokens that are white space
// themselves would else read a long run once for each of its characters.
static size_t spaces_behind(const msgl_unicode *u, const msgl_text *text, msgl_match_iter *it,
                            size_t i)
{
    if (i >= it->run_start && i < it->run_end) return it->run_end;
    it->run_start = i;
    while (i < text->n) {
        size_t next = i;
        if ((msgl__uni(u, msgl__utf8_next(text->p, &next)) & MSGL_UNI_SPACE) == 0) break;
        i = next;
    }
    it->run_end = i;
    return i;
}

// The next token from it->pos on, with the white space that its flags take. 1 or 0.
static int next_token(const msgl_matcher *m, const msgl_unicode *u, const msgl_text *text,
                      const msgl_trust *trust, msgl_match_iter *it, msgl_stretch *out)
{
    while (it->pos < text->n) {
        const size_t at = it->pos;
        const unsigned b = (unsigned char)text->p[at];
        size_t len = 0;
        const msgl_added *a =
            m->first[b] < m->first[b + 1] ? longest(m, text, trust, at, &len) : NULL;
        if (a == NULL) {
            it->pos++;
            continue;
        }
        it->pos = at + len; // even if it is turned down: no token starts inside it
        if (a->single_word && (word_before(u, text, at) || word_at(u, text, at + len))) continue;
        *out = (msgl_stretch){at, at + len, a->id};
        if (a->lstrip) {
            // The token before may have taken some of it already.
            out->start = at > it->start ? spaces_before(u, text, at, it->start) : it->start;
        }
        if (a->rstrip) out->end = spaces_behind(u, text, it, out->end);
        return 1;
    }
    return 0;
}

int msgl__matcher_next(const msgl_matcher *m, const msgl_unicode *u, const msgl_text *text,
                       const msgl_trust *trust, msgl_match_iter *it, msgl_stretch *out)
{
    if (it->has_pending) {
        it->has_pending = 0;
        *out = it->pending;
        it->start = out->end;
        return 1;
    }
    msgl_stretch token;
    if (m->n > 0 && next_token(m, u, text, trust, it, &token)) {
        if (it->start < token.start) {
            *out = (msgl_stretch){it->start, token.start, -1};
            it->pending = token;
            it->has_pending = 1;
        } else {
            *out = token;
            it->start = token.end;
        }
        return 1;
    }
    it->pos = text->n;
    if (it->start == text->n) return 0;
    *out = (msgl_stretch){it->start, text->n, -1};
    it->start = text->n;
    return 1;
}
