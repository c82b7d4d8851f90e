// SPDX-License-Identifier: Apache-2.0
#include "attention/largest.h"

#include <string.h>

enum { DIGIT = 11, DIGITS = 3 }; // bits of a score that one pass looks at, and passes

// A number whose order is the score's, -0 and 0 being equal.
static uint32_t order_of(float score)
{
    const float f = score + 0.0f;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (bits >> 31) != 0 ? ~bits : bits | 1u << 31;
}

// A digit a pass, the highest first: those that have so far what the n-th largest has are counted
// by their next digit, and the digit of the n-th largest is where the count from above reaches n.
void msgl__attn_largest(const float *scores, int32_t len, int32_t n, int32_t *indices)
{
    int32_t counts[1 << DIGIT];
    uint32_t prefix = 0, known = 0; // of the n-th largest; which bits are
    int32_t left = n;               // to take of those that have the prefix
    for (int pass = 0; pass < DIGITS; pass++) {
        const int shift = 32 - DIGIT * (pass + 1) > 0 ? 32 - DIGIT * (pass + 1) : 0;
        const int bits = pass < DIGITS - 1 ? DIGIT : 32 - DIGIT * (DIGITS - 1);
        memset(counts, 0, sizeof counts);
        for (int32_t i = 0; i < len; i++) {
            const uint32_t o = order_of(scores[i]);
            if ((o & known) == prefix) counts[o >> shift & ((1u << bits) - 1)]++;
        }
        uint32_t digit = (1u << bits) - 1;
        while (counts[digit] < left) left -= counts[digit--];
        prefix |= digit << shift;
        known |= ((1u << bits) - 1) << shift;
    }
    for (int32_t i = 0, taken = 0; taken < n; i++) {
        const uint32_t o = order_of(scores[i]);
        if (o < prefix || (o == prefix && left-- <= 0)) continue;
        indices[taken++] = i;
    }
}
