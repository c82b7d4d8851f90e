// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/bert.h"

#include "core/attributes.h"

static bool in_ranges(const msgl_bert_range *ranges, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (c > ranges[mid].last) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && c >= ranges[lo].first;
}

// Characters of the categories Cc, Cf and Co are left out; tables older than ours know no others.
static bool is_removed(const msgl_unicode *u, uint32_t c)
{
    static const msgl_bert_range newer[] = {
        {0x890, 0x891}, {0x8e2, 0x8e2}, {0x110cd, 0x110cd}, {0x13430, 0x1343f}};
    const uint32_t gcs =
        MSGL_GC_BIT(MSGL_GC_CC) | MSGL_GC_BIT(MSGL_GC_CF) | MSGL_GC_BIT(MSGL_GC_CO);
    if (c == '\t' || c == '\n' || c == '\r') return false;
    if (c == 0 || c == 0xfffd) return true;
    return (MSGL_GC_BIT(msgl__uni(u, c) & MSGL_UNI_GC) & gcs) != 0 &&
           !in_ranges(newer, MSGL_COUNT(newer), c);
}

int msgl__norm_clean(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_text *in,
                     msgl_tok_buf *out)
{
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, in->n);
    for (size_t i = 0, next; i < in->n && rc == 0; i = next) {
        next = i;
        const uint32_t c = msgl__utf8_next(in->p, &next);
        if (is_removed(t->uni, c)) continue;
        msgl__zero_element(&zero, next, out->len);
        if ((msgl__uni(t->uni, c) & MSGL_UNI_SPACE) != 0) {
            rc = msgl__buf_put(ws, out, " ", 1, msgl__text_tag(in, i, next));
        } else {
            rc = msgl__buf_copy(ws, out, in, i, next);
        }
    }
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}

static bool is_ideograph(uint32_t c)
{
    static const msgl_bert_range ideographs[] = {
        {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},  {0x20000, 0x2a6df},
        {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
    return c >= 0x3400 && in_ranges(ideographs, MSGL_COUNT(ideographs), c);
}

int msgl__norm_ideographs(msgl_tok_ws *ws, const msgl_text *in, msgl_tok_buf *out)
{
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, in->n);
    for (size_t i = 0, next; i < in->n && rc == 0; i = next) {
        next = i;
        const bool apart = is_ideograph(msgl__utf8_next(in->p, &next));
        const unsigned char tag = msgl__text_tag(in, i, next);
        msgl__zero_element(&zero, next, out->len);
        if (apart) rc = msgl__buf_put(ws, out, " ", 1, tag);
        if (rc == 0) rc = msgl__buf_copy(ws, out, in, i, next);
        if (rc == 0 && apart) rc = msgl__buf_put(ws, out, " ", 1, tag);
    }
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}

static bool is_mark(const msgl_unicode *u, uint32_t c)
{
    return ((msgl__uni(u, c) & MSGL_UNI_GC) == MSGL_GC_MN) !=
           in_ranges(msgl__bert_mark_flips, msgl__bert_num_mark_flips, c);
}

int msgl__norm_marks(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_text *in,
                     msgl_tok_buf *out)
{
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, in->n);
    for (size_t i = 0, next; i < in->n && rc == 0; i = next) {
        next = i;
        if (is_mark(t->uni, msgl__utf8_next(in->p, &next))) continue;
        msgl__zero_element(&zero, next, out->len);
        rc = msgl__buf_copy(ws, out, in, i, next);
    }
    msgl__zero_end(ws, &zero, out->len);
    return rc;
}
