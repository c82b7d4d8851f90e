// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 as RFC 3629 has it: without surrogates, overlong forms and anything beyond U+10FFFF.
#ifndef MSGL_UTILS_UTF8_H
#define MSGL_UTILS_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes of the valid character that starts at s, where n > 0 bytes stand; 0 when it is not valid.
size_t msgl__utf8_char(const char *s, size_t n);

// Length of the valid UTF-8 prefix of s[0, n): n when all of it is valid.
size_t msgl__utf8_valid(const char *s, size_t n);

// Whether the valid character at s is one that changes how a line is shown, in place of being
// shown: C0 and C1 controls and DEL, U+2028 and U+2029, and marks of direction (U+061C, U+200E,
// U+200F, U+202A to U+202E, U+2066 to U+2069).
bool msgl__utf8_is_control(const char *s);

// Characters that begin in s[0, n).
size_t msgl__utf8_count(const char *s, size_t n);

// Code point at s[*i] of valid UTF-8; moves *i past it.
static inline uint32_t msgl__utf8_next(const char *s, size_t *i)
{
    const unsigned char *p = (const unsigned char *)s + *i;
    if (p[0] < 0x80) {
        *i += 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *i += 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *i += 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *i += 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
           (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

// Start of the character that ends at s[i], i > 0.
static inline size_t msgl__utf8_prev(const char *s, size_t i)
{
    do {
        i--;
    } while (((unsigned char)s[i] & 0xc0) == 0x80);
    return i;
}

// Bytes of the character whose first byte is `c`.
static inline size_t msgl__utf8_len(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

// Writes `cp` (a scalar value) to out; returns the number of bytes.
static inline size_t msgl__utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

#endif
