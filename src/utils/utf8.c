// SPDX-License-Identifier: Apache-2.0
#include "utils/utf8.h"

#include <string.h>

size_t msgl__utf8_char(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    const size_t len = msgl__utf8_len(p[0]);
    if (n < len) return 0;
    for (size_t k = 1; k < len; k++) {
        if ((p[k] & 0xc0) != 0x80) return 0;
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)) {
        return 0;
    }
    return len;
}

size_t msgl__utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        while (n - i >= sizeof(word)) {
            memcpy(&word, s + i, sizeof(word));
            if ((word & UINT64_C(0x8080808080808080)) != 0) break;
            i += sizeof(word);
        }
        if (i >= n) break;
        const size_t len = msgl__utf8_char(s + i, n - i);
        if (len == 0) return i;
        i += len;
    }
    return n;
}

bool msgl__utf8_is_control(const char *s)
{
    size_t i = 0;
    const uint32_t c = msgl__utf8_next(s, &i);
    if (c < 0xa0) return c < 0x20 || c >= 0x7f;
    return c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

size_t msgl__utf8_count(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}
