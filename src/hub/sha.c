// SPDX-License-Identifier: Apache-2.0
#include "hub/sha.h"

#include <stdio.h>
#include <string.h>

// Of SHA-256: the first 32 bits behind the point of the cube roots of the first 64 primes.
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t left(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static uint32_t right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void block1(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[80];
    for (int t = 0; t < 16; t++) w[t] = load(p + 4 * t);
    for (int t = 16; t < 80; t++) w[t] = left(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int t = 0; t < 80; t++) {
        const uint32_t f = t < 20   ? (b & c) | (~b & d)
                           : t < 40 ? b ^ c ^ d
                           : t < 60 ? (b & c) | (b & d) | (c & d)
                                    : b ^ c ^ d;
        const uint32_t k = t < 20   ? 0x5a827999
                           : t < 40 ? 0x6ed9eba1
                           : t < 60 ? 0x8f1bbcdc
                                    : 0xca62c1d6;
        const uint32_t next = left(a, 5) + f + e + k + w[t];
        e = d, d = c, c = left(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

static void block256(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++) w[t] = load(p + 4 * t);
    for (int t = 16; t < 64; t++) {
        const uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + (right(x, 7) ^ right(x, 18) ^ x >> 3) + w[t - 7] +
               (right(y, 17) ^ right(y, 19) ^ y >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int t = 0; t < 64; t++) {
        const uint32_t a = v[0], b = v[1], c = v[2], e = v[4];
        const uint32_t one = v[7] + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) +
                             ((e & v[5]) ^ (~e & v[6])) + K[t] + w[t];
        const uint32_t two =
            (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void msgl__sha_start(msgl_sha *s, msgl_sha_kind kind)
{
    static const uint32_t ONE[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    static const uint32_t TWO[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    };
    *s = (msgl_sha){.kind = kind};
    memcpy(s->state, kind == MSGL_SHA1 ? ONE : TWO, sizeof s->state);
}

void msgl__sha_add(msgl_sha *s, const void *data, size_t n)
{
    void (*const block)(uint32_t *, const unsigned char *) =
        s->kind == MSGL_SHA1 ? block1 : block256;
    const unsigned char *p = data;
    size_t have = s->bytes % 64;
    s->bytes += n;
    if (have > 0) {
        const size_t take = n < 64 - have ? n : 64 - have;
        memcpy(s->block + have, p, take);
        have += take, p += take, n -= take;
        if (have < 64) return;
        block(s->state, s->block);
    }
    for (; n >= 64; p += 64, n -= 64) block(s->state, p);
    if (n > 0) memcpy(s->block, p, n);
}

void msgl__sha_end(msgl_sha *s, char out[65])
{
    static const unsigned char PAD[64] = {0x80};
    const uint64_t bits = s->bytes * 8;
    const size_t have = s->bytes % 64;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    msgl__sha_add(s, PAD, have < 56 ? 56 - have : 120 - have);
    msgl__sha_add(s, length, sizeof length);
    const int words = s->kind == MSGL_SHA1 ? 5 : 8;
    for (int i = 0; i < words; i++) (void)snprintf(out + (size_t)i * 8, 9, "%08x", s->state[i]);
}
