// SPDX-License-Identifier: Apache-2.0
#include "utils/base64.h"

#include <stdint.h>

static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

size_t msgl__base64_decode(const char *text, size_t len, unsigned char *out)
{
    size_t n = 0;
    uint32_t bits = 0;
    const size_t most = len % 4 == 0 ? 2 : 0;
    for (size_t pads = 0; pads < most && len > 0 && text[len - 1] == '='; pads++) len--;
    if (len % 4 == 1) return SIZE_MAX;
    for (size_t i = 0; i < len; i++) {
        const int digit = digit_of(text[i]);
        if (digit < 0) return SIZE_MAX;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 > 0)
            out[n++] = (unsigned char)(bits >> (6 - 2 * (i % 4))); // 4, 2, 0 bits are left
    }
    return n;
}
