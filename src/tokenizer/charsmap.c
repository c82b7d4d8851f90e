// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/charsmap.h"

#include <string.h>
#include <utf8proc.h>

#include "utils/base64.h"

enum {
    MAX_BYTES = 16 << 20,  // decoded; published ones have 0.3 MB
    MAX_REPLACEMENT = 256, // bytes, so that a text cannot grow without bound
    MAX_GRAPHEME = 6,      // bytes from which on a grapheme is taken character by character
};

struct msgl_charsmap {
    uint32_t num_units;
    size_t num_text;
    const unsigned char *units; // [num_units] of four bytes, little-endian, in `data`
    const char *text;           // [num_text], in `data`, its last byte NUL
    unsigned char data[];
};

static uint32_t le32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int msgl__charsmap_load(const char *base64, size_t n, const char *where, msgl_charsmap **out,
                        msgl_err *err)
{
    if (n / 4 * 3 > MAX_BYTES) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s.precompiled_charsmap: %zu bytes; at most %d",
                             where, n / 4 * 3, MAX_BYTES);
    }
    msgl_charsmap *m = msgl__malloc(sizeof *m + n / 4 * 3 + 2);
    if (m == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const size_t bytes = n % 4 == 0 ? msgl__base64_decode(base64, n, m->data) : SIZE_MAX;
    const size_t trie = bytes != SIZE_MAX && bytes > 4 ? le32(m->data) : 0;
    if (trie == 0 || trie % 4 != 0 || trie > bytes - 4 || trie == bytes - 4 ||
        m->data[bytes - 1] != '\0') {
        msgl__free(m);
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s.precompiled_charsmap: expected base64 of a trie's size, a trie "
                             "and texts that end in NUL",
                             where);
    }
    m->num_units = (uint32_t)(trie / 4);
    m->units = m->data + 4;
    m->text = (const char *)m->data + 4 + trie;
    m->num_text = bytes - 4 - trie;
    *out = m;
    return 0;
}

void msgl__charsmap_free(msgl_charsmap *m)
{
    msgl__free(m);
}

// Unit `at`; 0, which leads nowhere, where there is none.
static uint32_t unit(const msgl_charsmap *m, uint32_t at)
{
    return at < m->num_units ? le32(m->units + 4 * (size_t)at) : 0;
}

static uint32_t offset_of(uint32_t u)
{
    return u >> 10 << ((u & 0x200) >> 6);
}

// What the shortest string of the trie that p[0, n) begins with is replaced by; NULL: there is
// none.
static const char *replacement(const msgl_charsmap *m, const char *p, size_t n, size_t *len)
{
    uint32_t at = offset_of(unit(m, 0));
    for (size_t i = 0; i < n && p[i] != '\0'; i++) {
        const unsigned char c = (unsigned char)p[i];
        at ^= c;
        const uint32_t u = unit(m, at);
        if ((u & 0x800000ff) != c) return NULL;
        at ^= offset_of(u);
        if ((u & 0x100) == 0) continue;
        const uint32_t value = unit(m, at) & 0x7fffffff;
        if (value >= m->num_text) return NULL;
        *len = strnlen(m->text + value, MAX_REPLACEMENT + 1);
        return *len <= MAX_REPLACEMENT && msgl__utf8_valid(m->text + value, *len) == *len
                   ? m->text + value
                   : NULL;
    }
    return NULL;
}

// in[start, end) as it is replaced, or as it is.
static int put(msgl_tok_ws *ws, const msgl_charsmap *m, const msgl_text *in, size_t start,
               size_t end, bool *replaced, msgl_zero *zero, msgl_tok_buf *out)
{
    size_t n = 0;
    const char *to = replacement(m, in->p + start, end - start, &n);
    *replaced = to != NULL;
    if (to == NULL) return 0;
    msgl__zero_element(zero, end, out->len);
    return msgl__buf_put(ws, out, to, n, msgl__text_tag(in, start, end));
}

// A grapheme: as a whole if it is short and the trie has a string that it begins with (what is
// behind that string is lost, as in SentencePiece's own normaliser), else character by character.
static int put_grapheme(msgl_tok_ws *ws, const msgl_charsmap *m, const msgl_text *in, size_t start,
                        size_t end, msgl_zero *zero, msgl_tok_buf *out)
{
    bool replaced = false;
    int rc = 0;
    if (end - start < MAX_GRAPHEME) rc = put(ws, m, in, start, end, &replaced, zero, out);
    for (size_t i = start, next; i < end && rc == 0 && !replaced; i = next) {
        bool one = false;
        next = i + msgl__utf8_len((unsigned char)in->p[i]);
        rc = put(ws, m, in, i, next, &one, zero, out);
        if (rc != 0 || one) continue;
        msgl__zero_copy(zero, i, next, out->len);
        rc = msgl__buf_copy(ws, out, in, i, next);
    }
    return rc;
}

int msgl__norm_charsmap(msgl_tok_ws *ws, const msgl_charsmap *m, const msgl_text *in,
                        msgl_tok_buf *out)
{
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, in->n);
    for (size_t start = 0, end; start < in->n && rc == 0; start = end) {
        utf8proc_int32_t state = 0;
        end = start;
        uint32_t c = msgl__utf8_next(in->p, &end);
        while (end < in->n) {
            size_t next = end;
            const uint32_t d = msgl__utf8_next(in->p, &next);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)d,
                                                 &state)) {
                break;
            }
            c = d;
            end = next;
        }
        rc = put_grapheme(ws, m, in, start, end, &zero, out);
    }
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}
