// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include "tokenizer/unicode_data.h"

static int in_ranges(const msgl_uni_range *r, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (cp > r[mid].last) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && cp >= r[lo].first;
}

static int is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

// Other_Alphabetic symbols (circled letters) and the two joiners: word characters by Unicode's
// definition although their categories are S and Cf.
static int is_word_symbol(uint32_t cp)
{
    return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
           (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
           (cp >= 0x1f170 && cp <= 0x1f189);
}

static int is_ascii_punct(uint32_t cp)
{
    return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
           (cp >= '{' && cp <= '~');
}

// The bits that follow from the category and the short lists.
static uint16_t classify(uint32_t cp, unsigned gc)
{
    const uint32_t bit = MSGL_GC_BIT(gc);
    unsigned v = gc;
    if (is_space(cp)) v |= MSGL_UNI_SPACE;
    if ((bit & MSGL_GCS_P) != 0 || is_ascii_punct(cp)) v |= MSGL_UNI_PUNCT;
    // Two ranges that Rust's newer Unicode counts as numbers and the regex engine has unassigned.
    if ((bit & MSGL_GCS_N) != 0 || (cp >= 0x11de0 && cp <= 0x11de9) ||
        (cp >= 0x16ff4 && cp <= 0x16ff6)) {
        v |= MSGL_UNI_NUMERIC;
    }
    if ((bit & (MSGL_GCS_L | MSGL_GCS_M | MSGL_GC_BIT(MSGL_GC_ND) | MSGL_GC_BIT(MSGL_GC_NL) |
                MSGL_GC_BIT(MSGL_GC_PC))) != 0 ||
        is_word_symbol(cp)) {
        v |= MSGL_UNI_WORD;
    }
    return (uint16_t)v;
}

static unsigned run_gc(uint32_t run, uint32_t cp)
{
    const unsigned gc = run & 0xff;
    return gc != MSGL_GC_ALTERNATING      ? gc
           : ((cp - (run >> 8)) & 1) != 0 ? (unsigned)MSGL_GC_LL
                                          : (unsigned)MSGL_GC_LU;
}

// Index of the run that holds `cp`.
static size_t run_at(uint32_t cp)
{
    size_t lo = 0, hi = msgl__uni_num_gc_runs;
    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;
        if (msgl__uni_gc_runs[mid] >> 8 <= cp) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

uint16_t msgl__uni_above(uint32_t cp)
{
    return classify(cp, run_gc(msgl__uni_gc_runs[run_at(cp)], cp));
}

uint32_t msgl__uni_stretch(uint32_t cp)
{
    const size_t next = run_at(cp) + 1;
    return next < msgl__uni_num_gc_runs ? msgl__uni_gc_runs[next] >> 8 : MSGL_UNI_END;
}

// Which normalization forms may touch `cp`. A form touches what it decomposes, what it reorders
// (a combining class other than 0) and, when it composes, what can join the character before.
static unsigned form_bits(uint32_t cp)
{
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    if (p->combining_class != 0) {
        return MSGL_UNI_NFC | MSGL_UNI_NFD | MSGL_UNI_NFKC | MSGL_UNI_NFKD;
    }
    unsigned bits = 0;
    if (in_ranges(msgl__uni_seconds, msgl__uni_num_seconds, cp))
        bits |= MSGL_UNI_NFC | MSGL_UNI_NFKC;
    if (p->decomp_seqindex == UINT16_MAX && (cp < 0xac00 || cp > 0xd7a3)) return bits;
    if (p->decomp_type != 0) return bits | MSGL_UNI_NFKC | MSGL_UNI_NFKD; // a compatibility mapping
    bits |= MSGL_UNI_NFD | MSGL_UNI_NFKD;
    if (cp >= 0xac00 && cp <= 0xd7a3) return bits;
    utf8proc_int32_t buf[8];
    int last = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, buf, 8, UTF8PROC_DECOMPOSE, &last);
    if (n <= 0 || n > 8) return bits | MSGL_UNI_NFC | MSGL_UNI_NFKC;
    const utf8proc_ssize_t m = utf8proc_normalize_utf32(buf, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (m != 1 || buf[0] != (utf8proc_int32_t)cp) bits |= MSGL_UNI_NFC | MSGL_UNI_NFKC;
    return bits | MSGL_UNI_NFKC; // its parts may have compatibility mappings of their own
}

void msgl__uni_build(msgl_unicode *u)
{
    for (size_t i = 0; i < msgl__uni_num_gc_runs; i++) {
        const uint32_t run = msgl__uni_gc_runs[i];
        const uint32_t end =
            i + 1 < msgl__uni_num_gc_runs ? msgl__uni_gc_runs[i + 1] >> 8 : MSGL_UNI_END;
        for (uint32_t cp = run >> 8; cp < end && cp < MSGL_UNI_FLAT; cp++) {
            u->flat[cp] = classify(cp, run_gc(run, cp));
        }
    }
    for (size_t i = 0; i < msgl__uni_num_punct_flips; i++) {
        for (uint32_t cp = msgl__uni_punct_flips[i].first; cp <= msgl__uni_punct_flips[i].last;
             cp++) {
            u->flat[cp] ^= MSGL_UNI_PUNCT;
        }
    }
    for (size_t i = 0; i < msgl__uni_num_inert; i++) {
        for (uint32_t cp = msgl__uni_inert[i].first;
             cp <= msgl__uni_inert[i].last && cp < MSGL_UNI_FLAT; cp++) {
            u->flat[cp] |= MSGL_UNI_INERT;
        }
    }
    for (uint32_t cp = 0x80; cp < MSGL_UNI_FLAT; cp++) {
        // Unassigned characters, ideographs and the inert ones are skipped: nothing happens to
        // them.
        const unsigned gc = u->flat[cp] & MSGL_UNI_GC;
        if (gc >= MSGL_GC_CO || (u->flat[cp] & MSGL_UNI_INERT) != 0) continue;
        if ((cp >= 0x3400 && cp < 0xa000) || (cp >= 0x20000 && cp < 0x2f800)) continue;
        u->flat[cp] |= (uint16_t)form_bits(cp);
    }
}

int msgl__uni_lower_of(uint32_t cp, uint32_t out[2])
{
    if (cp == 0x130) { // capital I with dot above: the one mapping to two characters
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    for (size_t i = 0; cp >= 0x1c89 && i < msgl__uni_num_lower; i++) {
        const msgl_uni_lower *l = &msgl__uni_lower[i];
        if (cp >= l->first && cp <= l->last) {
            out[0] = (uint32_t)((int32_t)cp + l->delta);
            return 1;
        }
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return 1;
}

// The bytes that stand for themselves; the other 68 take U+0100 upward in their order.
static int is_plain_byte(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t msgl__byte_char(unsigned char b)
{
    if (is_plain_byte(b)) return b;
    if (b <= 0x20) return 0x100u + b;
    if (b <= 0xa0) return 0x121u + (b - 0x7fu);
    return 0x143;
}

int msgl__char_byte(uint32_t cp)
{
    if (cp < 0x100) return is_plain_byte(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}
