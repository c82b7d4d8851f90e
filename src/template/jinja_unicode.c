// SPDX-License-Identifier: Apache-2.0
//
// Code points, and the Unicode properties behind Python's str methods, from utf8proc's tables.
#include <utf8proc.h>

#include "template/jinja_string.h"

size_t msgl__jutf8_get(const char *p, const char *end, int32_t *cp)
{
    const unsigned char *u = (const unsigned char *)p;
    size_t n = msgl__utf8_len(u[0]);
    if (n > (size_t)(end - p)) n = (size_t)(end - p);
    switch (n) {
    case 2: *cp = (u[0] & 0x1f) << 6 | (u[1] & 0x3f); break;
    case 3: *cp = (u[0] & 0x0f) << 12 | (u[1] & 0x3f) << 6 | (u[2] & 0x3f); break;
    case 4:
        *cp = (u[0] & 0x07) << 18 | (u[1] & 0x3f) << 12 | (u[2] & 0x3f) << 6 | (u[3] & 0x3f);
        break;
    default: *cp = u[0]; break;
    }
    return n;
}

bool msgl__jis_space(int32_t cp)
{
    if (cp < 0x80) return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool msgl__jis_line_end(int32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

static bool in_category(int32_t cp, utf8proc_category_t from, utf8proc_category_t to)
{
    const utf8proc_category_t k = utf8proc_category(cp);
    return k >= from && k <= to;
}

bool msgl__jis_printable(int32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    return utf8proc_category(cp) != UTF8PROC_CATEGORY_CN &&
           !in_category(cp, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_CO);
}

bool msgl__jis_alpha(int32_t cp)
{
    if (cp < 0x80) return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
    return in_category(cp, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool msgl__jis_digit(int32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    return utf8proc_category(cp) == UTF8PROC_CATEGORY_ND;
}

bool msgl__jis_alnum(int32_t cp)
{
    if (cp < 0x80) return msgl__jis_alpha(cp) || msgl__jis_digit(cp);
    return msgl__jis_alpha(cp) || in_category(cp, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool msgl__jis_upper(int32_t cp)
{
    if (cp < 0x80) return cp >= 'A' && cp <= 'Z';
    return utf8proc_isupper(cp) != 0;
}

bool msgl__jis_lower(int32_t cp)
{
    if (cp < 0x80) return cp >= 'a' && cp <= 'z';
    return utf8proc_islower(cp) != 0;
}

bool msgl__jis_cased(int32_t cp)
{
    return msgl__jis_upper(cp) || msgl__jis_lower(cp) ||
           utf8proc_category(cp) == UTF8PROC_CATEGORY_LT;
}

typedef struct special_case {
    uint16_t cp, upper[3], title[3];
} special_case;

// Characters that become several (Unicode SpecialCasing.txt, the unconditional part without the
// Greek iota forms).
static const special_case SPECIAL[] = {
    {0x00df, {0x53, 0x53, 0}, {0x53, 0x73, 0}},
    {0x0149, {0x2bc, 0x4e, 0}, {0x2bc, 0x4e, 0}},
    {0x01f0, {0x4a, 0x30c, 0}, {0x4a, 0x30c, 0}},
    {0x0390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x03b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x0587, {0x535, 0x552, 0}, {0x535, 0x582, 0}},
    {0x1e96, {0x48, 0x331, 0}, {0x48, 0x331, 0}},
    {0x1e97, {0x54, 0x308, 0}, {0x54, 0x308, 0}},
    {0x1e98, {0x57, 0x30a, 0}, {0x57, 0x30a, 0}},
    {0x1e99, {0x59, 0x30a, 0}, {0x59, 0x30a, 0}},
    {0x1e9a, {0x41, 0x2be, 0}, {0x41, 0x2be, 0}},
    {0xfb00, {0x46, 0x46, 0}, {0x46, 0x66, 0}},
    {0xfb01, {0x46, 0x49, 0}, {0x46, 0x69, 0}},
    {0xfb02, {0x46, 0x4c, 0}, {0x46, 0x6c, 0}},
    {0xfb03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xfb04, {0x46, 0x46, 0x4c}, {0x46, 0x66, 0x6c}},
    {0xfb05, {0x53, 0x54, 0}, {0x53, 0x74, 0}},
    {0xfb06, {0x53, 0x54, 0}, {0x53, 0x74, 0}},
};

static int special(int32_t cp, bool title, int32_t out[3])
{
    for (size_t i = 0; i < sizeof SPECIAL / sizeof SPECIAL[0]; i++) {
        if (SPECIAL[i].cp != cp) continue;
        const uint16_t *to = title ? SPECIAL[i].title : SPECIAL[i].upper;
        int n = 0;
        while (n < 3 && to[n] != 0) {
            out[n] = to[n];
            n++;
        }
        return n;
    }
    return 0;
}

int msgl__jto_upper(int32_t cp, int32_t out[3])
{
    const int n = cp >= 0x80 ? special(cp, false, out) : 0;
    if (n > 0) return n;
    out[0] = cp < 0x80 ? (cp >= 'a' && cp <= 'z' ? cp - 32 : cp) : utf8proc_toupper(cp);
    return 1;
}

int msgl__jto_title(int32_t cp, int32_t out[3])
{
    const int n = cp >= 0x80 ? special(cp, true, out) : 0;
    if (n > 0) return n;
    out[0] = cp < 0x80 ? (cp >= 'a' && cp <= 'z' ? cp - 32 : cp) : utf8proc_totitle(cp);
    return 1;
}

int msgl__jto_lower(int32_t cp, int32_t out[3])
{
    if (cp == 0x130) { // capital I with dot
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = cp < 0x80 ? (cp >= 'A' && cp <= 'Z' ? cp + 32 : cp) : utf8proc_tolower(cp);
    return 1;
}
