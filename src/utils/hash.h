// SPDX-License-Identifier: Apache-2.0
//
// FNV-1a with 64 bits (Fowler, Noll and Vo): the same everywhere, so files may hold it. Whoever
// chooses the bytes can choose the hash.
#ifndef MSGL_UTILS_HASH_H
#define MSGL_UTILS_HASH_H

#include <stddef.h>
#include <stdint.h>

#define MSGL_HASH_START UINT64_C(0xcbf29ce484222325)

// The hash of what gave `h` (of nothing: MSGL_HASH_START) with n bytes behind it.
static inline uint64_t msgl__hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

#endif
